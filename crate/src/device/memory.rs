//! Memory of a device as loads have measured it, and the record of it that is persisted.

use super::Caps;
use serde_json::{Value, json};

/// The name under which the record is persisted.
pub const RECORD_NAME: &str = "device/memory";

/// Format of the record.
const VERSION: u64 = 1;
/// Devices of the record, the last used first.
const MAX_DEVICES: usize = 8;
/// How long a refusal counts, in milliseconds: a driver or another program may change it.
const REFUSAL_MS: f64 = 86_400_000.0;
/// The same for less than the device has held before: something else takes its memory for now.
const SHORTAGE_MS: f64 = 600_000.0;

/// What loads have found a device to hold, and to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeasuredMemory {
    /// Bytes that were allocated at once.
    pub held: u64,
    /// Bytes that there was room for when the device refused more.
    pub limit: Option<u64>,
    /// Until when `limit` counts, in milliseconds since the Unix epoch.
    until: f64,
}

impl MeasuredMemory {
    /// Whether it says something else than `known` that is worth a write: another limit, or a tenth
    /// more held.
    pub fn differs_from(self, known: Self) -> bool {
        self.limit != known.limit || self.held > known.held + known.held / 10
    }

    /// Adds that the device held `bytes`.
    pub fn add_held(&mut self, bytes: u64) {
        self.held = self.held.max(bytes);
        self.limit = self.limit.filter(|limit| *limit >= bytes);
    }

    /// Adds that the device had room for `bytes` and refused more.
    pub fn add_refused(&mut self, bytes: u64, now: f64) {
        let counts = if bytes < self.held {
            SHORTAGE_MS
        } else {
            REFUSAL_MS
        };
        self.limit = Some(bytes);
        self.until = now + counts;
    }
}

/// The key of a device's entry.
fn device_key(caps: &Caps) -> String {
    let Caps {
        vendor,
        architecture,
        description,
        ..
    } = caps;
    format!("{vendor}, {architecture}, {description}")
}

/// The entries of a record; none if it is damaged or of another version.
fn entries(record: &[u8]) -> Vec<Value> {
    let record = serde_json::from_slice(record).unwrap_or(Value::Null);
    match record["devices"].as_array() {
        Some(entries) if record["version"] == VERSION => entries.clone(),
        _ => Vec::new(),
    }
}

/// Reads what a record says about a device.
pub fn read_measured(record: &[u8], caps: &Caps, now: f64) -> MeasuredMemory {
    let key = device_key(caps);
    let entries = entries(record);
    let Some(entry) = entries.iter().find(|entry| entry["device"] == key) else {
        return MeasuredMemory::default();
    };
    let until = entry["until"].as_f64().unwrap_or(0.0);
    // A clock that was set back must not extend a limit.
    let counts = until > now && until <= now + REFUSAL_MS;
    MeasuredMemory {
        held: entry["held"].as_u64().unwrap_or(0),
        limit: entry["limit"].as_u64().filter(|_| counts),
        until,
    }
}

/// Returns a record with a device's new entry.
pub fn with_measured(record: &[u8], caps: &Caps, measured: MeasuredMemory) -> Vec<u8> {
    let key = device_key(caps);
    let MeasuredMemory { held, limit, until } = measured;
    let own = json!({ "device": key, "held": held, "limit": limit, "until": until });
    let others = entries(record)
        .into_iter()
        .filter(|entry| entry["device"].is_string() && entry["device"] != key);
    let devices: Vec<Value> = std::iter::once(own)
        .chain(others)
        .take(MAX_DEVICES)
        .collect();
    json!({ "version": VERSION, "devices": devices })
        .to_string()
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: f64 = 1.7e12;

    fn caps(description: &str) -> Caps {
        Caps {
            description: description.into(),
            ..Caps::default()
        }
    }

    #[test]
    fn refusals_expire_and_larger_loads_disprove_them() {
        let mut measured = MeasuredMemory::default();
        measured.add_held(1000);
        measured.add_refused(3000, NOW);
        let record = with_measured(&[], &caps("a"), measured);
        let read = |at| read_measured(&record, &caps("a"), at);
        assert_eq!(read(NOW), measured);
        assert_eq!(read(NOW + 86_399_999.0).limit, Some(3000));
        assert_eq!(read(NOW + 86_400_001.0).limit, None);
        assert_eq!(read(NOW - 86_400_001.0).limit, None, "a clock set back");
        assert_eq!(read(NOW + 86_400_001.0).held, 1000);
        measured.add_held(3000);
        assert_eq!(measured.limit, Some(3000));
        measured.add_held(3001);
        assert_eq!((measured.held, measured.limit), (3001, None));
        // Another program takes the memory.
        measured.add_refused(2000, NOW);
        let record = with_measured(&record, &caps("a"), measured);
        let read = |at| read_measured(&record, &caps("a"), at).limit;
        assert_eq!(
            [read(NOW + 599_999.0), read(NOW + 600_001.0)],
            [Some(2000), None]
        );
    }

    #[test]
    fn a_record_is_bounded_and_tells_devices_apart() {
        let mut record = Vec::new();
        for index in 0..20u64 {
            let measured = MeasuredMemory {
                held: index,
                ..MeasuredMemory::default()
            };
            record = with_measured(&record, &caps(&index.to_string()), measured);
        }
        assert_eq!(entries(&record).len(), MAX_DEVICES);
        let held = |name: &str| read_measured(&record, &caps(name), NOW).held;
        assert_eq!(
            [held("19"), held("12"), held("11"), held("none")],
            [19, 12, 0, 0]
        );
    }

    #[test]
    fn damaged_records_are_ignored() {
        let good =
            r#"{"version":1,"devices":[{"device":", , a","held":5,"limit":7,"until":1.7e12}]}"#;
        let read = |text: &str| read_measured(text.as_bytes(), &caps("a"), NOW - 1.0);
        assert_eq!((read(good).held, read(good).limit), (5, Some(7)));
        for bad in [
            "",
            "null",
            "[]",
            &good[..30],
            r#"{"version":2,"devices":[{"device":", , a","held":5}]}"#,
            r#"{"version":1,"devices":{"device":", , a","held":5}}"#,
            r#"{"version":1,"devices":[3,{"device":", , a","held":"x","limit":-1,"until":"y"}]}"#,
        ] {
            assert_eq!(read(bad), MeasuredMemory::default(), "{bad}");
            let kept = with_measured(bad.as_bytes(), &caps("a"), read(good));
            assert_eq!(entries(&kept).len(), 1, "{bad}");
        }
    }
}
