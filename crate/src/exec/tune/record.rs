//! Stores measurements between loads, in memory and in the source's cache. A record covers one case
//! and is valid for its key only; unreadable or mismatched records are ignored.

use super::candidates::TuningCase;
use crate::device::Caps;
use crate::hub::Source;
use crate::util::map::SortedMap;
use serde_json::{Map, Value, json};
use std::cell::RefCell;

thread_local! {
    /// Records measured or read by this thread, by key.
    static KNOWN_RECORDS: RefCell<SortedMap<String, TuningRecord>> = RefCell::default();
    /// The dispatch cost, likewise.
    static KNOWN_DISPATCH_COST: RefCell<Option<(String, f64)>> = const { RefCell::new(None) };
}

/// The result of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct TuningRecord {
    /// The key that it is valid for.
    key: String,
    /// The name of the chosen variant.
    name: &'static str,
    /// Its index.
    pub variant: usize,
    /// Microseconds of each variant.
    pub us: Map<String, Value>,
}

impl TuningRecord {
    pub fn new(key: String, contest: &TuningCase, variant: usize, us: Map<String, Value>) -> Self {
        Self {
            key,
            name: contest.variants[variant].0,
            variant,
            us,
        }
    }

    fn json(&self) -> Value {
        json!({ "key": self.key, "pick": self.name, "us": self.us })
    }

    fn parse(record: &Value, contest: &TuningCase, key: &str) -> Option<Self> {
        let form = contest.variant_index(record.get("pick")?.as_str()?)?;
        let us = record.get("us")?.as_object()?;
        let holds = record.get("key")?.as_str()? == key
            && us
                .iter()
                .all(|(name, us)| contest.variant_index(name).is_some() && us.is_f64());
        holds.then(|| Self::new(key.into(), contest, form, us.clone()))
    }
}

/// The validity key: device, driver, features in use, engine version and hash of the shaders.
pub fn validity_key(caps: &Caps, what: &str, kernels: u64) -> String {
    let Caps {
        vendor,
        architecture,
        description,
        f16,
        subgroups,
        subgroup_size: (least, most),
        ..
    } = caps;
    let version = env!("CARGO_PKG_VERSION");
    let limits = [caps.max_workgroup_storage, caps.max_invocations];
    let packed = caps.packed_dot;
    format!(
        "jerboa {version}; {vendor}, {architecture}, {description}; {}; f16 {f16}, subgroups {subgroups} {least} to {most}, \
         packed {packed}, limits {limits:?}; {what}, kernels {kernels:016x}",
        major_versions(&caps.agent),
    )
}

/// The user agent with major versions only: minor ones change too often to matter.
fn major_versions(agent: &str) -> String {
    agent
        .split_whitespace()
        .map(|word: &str| match word.split_once('/') {
            Some((name, version)) => format!("{name}/{}", version.split('.').next().unwrap_or("")),
            None => word.to_string(),
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// The entry that stores the records of a device. One for all: every load waits for it.
pub const RECORDS: &str = "tuning/records";
/// The name of the dispatch cost among them, which is no layout's.
const DISPATCH_COST: &str = "dispatch";

/// The stored records by name. There is one of a name, which another device or browser overwrites.
#[derive(Debug, Default)]
pub struct StoredRecords(Map<String, Value>);

impl StoredRecords {
    /// Reads the records; none if they are missing or damaged.
    pub async fn read(source: &Source) -> Self {
        let bytes = source.read_persisted(RECORDS).await;
        let records = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self(records.unwrap_or_default())
    }

    /// Stores the records.
    pub async fn store(&self, source: &Source) {
        let text = Value::Object(self.0.clone()).to_string();
        source.persist(RECORDS, text.into_bytes()).await;
    }

    /// The record of a case, if present and valid.
    pub fn record(&self, contest: &TuningCase, key: &str) -> Option<TuningRecord> {
        if let Some(known) = KNOWN_RECORDS.with_borrow(|known| known.get(key).cloned()) {
            return Some(known);
        }
        let record = TuningRecord::parse(self.0.get(&contest.target.name())?, contest, key)?;
        KNOWN_RECORDS.with_borrow_mut(|known| known.insert(key.to_string(), record.clone()));
        Some(record)
    }

    /// Adds a record.
    pub fn add(&mut self, contest: &TuningCase, record: &TuningRecord) {
        KNOWN_RECORDS.with_borrow_mut(|known| known.insert(record.key.clone(), record.clone()));
        self.0.insert(contest.target.name(), record.json());
    }

    /// The dispatch cost in microseconds, if present and valid.
    pub fn dispatch_cost(&self, key: &str) -> Option<f64> {
        let known = KNOWN_DISPATCH_COST
            .with_borrow(|known| known.as_ref().filter(|(k, _)| k == key).map(|(_, us)| *us));
        let stored = || {
            let record = self.0.get(DISPATCH_COST)?;
            let holds = record.get("key").and_then(Value::as_str) == Some(key);
            record.get("us")?.as_f64().filter(|_| holds)
        };
        known.or_else(stored)
    }

    /// Adds the dispatch cost.
    pub fn add_dispatch_cost(&mut self, key: &str, us: f64) {
        KNOWN_DISPATCH_COST.replace(Some((key.into(), us)));
        self.0
            .insert(DISPATCH_COST.into(), json!({ "key": key, "us": us }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::{TuningTarget, tests::caps};
    use super::*;
    use crate::format::quantize;

    #[test]
    fn records_round_trip_through_json() {
        let forms = TuningCase::of(&caps(), TuningTarget::Gemv(quantize::layout(4)))
            .expect("several forms");
        let us = Map::from_iter([
            ("rows".into(), json!(8.25)),
            ("packedBlocks".into(), json!(3.5)),
        ]);
        let record = TuningRecord::new(
            "a key".into(),
            &forms,
            forms.variant_index("packedBlocks").expect("a form"),
            us,
        );
        let text = record.json().to_string();
        let stored: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(TuningRecord::parse(&stored, &forms, "a key"), Some(record));
        assert_eq!(TuningRecord::parse(&stored, &forms, "another key"), None);
    }

    #[test]
    fn damaged_records_are_ignored() {
        let mut forms = TuningCase::of(&caps(), TuningTarget::Gemv(quantize::layout(4)))
            .expect("several forms");
        let parse = |text: &str, forms: &TuningCase| {
            let record: Value = serde_json::from_str(text).unwrap_or_default();
            TuningRecord::parse(&record, forms, "k")
        };
        let good = r#"{"key":"k","pick":"packedBlocks","us":{"rows":2.5}}"#;
        assert!(parse(good, &forms).is_some());
        for bad in [
            "",
            "null",
            "{}",
            &good[..20],
            r#"{"key":"k","pick":"backwards","us":{}}"#,
            r#"{"key":"k","pick":"rows","us":{"rows":"fast"}}"#,
            r#"{"key":"k","pick":"rows","us":{"sideways":2.5}}"#,
            r#"{"key":"k","pick":"rows"}"#,
        ] {
            assert_eq!(parse(bad, &forms), None, "{bad}");
        }
        // A variant that this device does not support.
        forms = TuningCase::of(
            &Caps {
                packed_dot: false,
                ..caps()
            },
            TuningTarget::Gemv(quantize::layout(4)),
        )
        .expect("several forms");
        assert_eq!(parse(good, &forms), None);
    }

    #[test]
    fn the_key_depends_on_device_browser_features_and_kernels() {
        let agent = "Mozilla/5.0 (X11; Linux x86_64) Chrome/141.0.0.0 Safari/537.36";
        let one = Caps {
            agent: agent.into(),
            ..caps()
        };
        let layout = "q4";
        let other = "q8";

        let first = validity_key(&one, layout, 1);
        let others = [
            validity_key(
                &Caps {
                    vendor: "amd".into(),
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(
                &Caps {
                    architecture: "other".into(),
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(
                &Caps {
                    description: "driver 2".into(),
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(
                &Caps {
                    agent: agent.replace("141", "142"),
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(
                &Caps {
                    f16: !one.f16,
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(
                &Caps {
                    subgroups: false,
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(
                &Caps {
                    subgroup_size: (8, 16),
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(
                &Caps {
                    packed_dot: false,
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(
                &Caps {
                    max_invocations: 256,
                    ..one.clone()
                },
                layout,
                1,
            ),
            validity_key(&one, other, 1),
            validity_key(&one, layout, 2),
        ];
        for (index, other) in others.iter().enumerate() {
            assert!(
                *other != first && !others[..index].contains(other),
                "{other}"
            );
        }
        assert_eq!(
            validity_key(
                &Caps {
                    agent: agent.replace("141.0.0.0", "141.0.7390.1"),
                    ..one
                },
                layout,
                1
            ),
            first
        );
    }
}
