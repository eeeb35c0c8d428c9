//! Faults of the network, the server and the cache: a load ends with the right weights or with one
//! clear error, and the next load over a working network succeeds. `JERBOA_FAULT_LOADS=200` runs
//! more loads.

use super::ahead::first_load_ahead;
use super::server::{Server, pattern};
use super::{CONFIG, WEIGHTS, content, file_of, model, options};
use jerboa::hub::{AbortFlag, HubOptions, Progress, Source};
use jerboa::{Error, Result};
use pollster::block_on;
use serde_json::{Value, json};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of loads in a test run.
const LOADS: u64 = 36;
/// Byte range of the weights.
const CDN: &str = "/cdn/";

/// A fault during a load.
enum Trouble {
    /// Caused by the server.
    Served(Value),
    /// Applied to the cache between loads.
    Stored(fn(&Path, u64)),
    /// The caller aborts after this many progress reports.
    Aborted(u64),
}

/// Every kind of fault, with parameters from a seed.
fn troubles(seed: u64) -> Vec<(&'static str, Trouble)> {
    let times = 1 + seed % 3;
    let after = seed * 7919 % 250_000;
    let status = |file: &str, status: u16| {
        Trouble::Served(
            json!({ "kind": "status", "match": file, "status": status, "times": times }),
        )
    };
    let body = |kind: &str| {
        Trouble::Served(json!({ "kind": kind, "match": CDN, "after": after, "times": times }))
    };
    let always = |kind: &str| Trouble::Served(json!({ "kind": kind }));
    let other = pattern(seed, 261_000);
    vec![
        (
            "too many requests",
            Trouble::Served(
                json!({ "kind": "status", "match": "config.json", "status": 429, "retryAfter": 0, "times": 1 }),
            ),
        ),
        ("too many requests for weights", status(CDN, 429)),
        ("too early", status(CDN, 425)),
        ("a timeout of the server", status("config.json", 408)),
        ("a fault of the server", status(CDN, 500)),
        ("a bad gateway", status("config.json", 502)),
        ("no service", status(CDN, 503)),
        ("a gateway's timeout", status(CDN, 504)),
        ("an unknown fault of a CDN", status(CDN, 520)),
        ("a signature that ran out", status(CDN, 403)),
        ("gated", status("config.json", 401)),
        ("not there", status("config.json", 404)),
        ("no longer there", status(CDN, 410)),
        ("a connection that breaks", body("drop")),
        (
            "a connection that breaks at once",
            Trouble::Served(json!({ "kind": "drop", "match": CDN, "after": 0, "times": times })),
        ),
        (
            "a connection that always breaks",
            Trouble::Served(json!({ "kind": "drop", "match": CDN, "after": 30_000 })),
        ),
        ("a body that ends early", body("short")),
        (
            "a configuration that ends early",
            Trouble::Served(
                json!({ "kind": "short", "match": "config.json", "after": 5, "times": times }),
            ),
        ),
        (
            "silence",
            Trouble::Served(json!({ "kind": "stall", "match": CDN, "after": after, "times": 1 })),
        ),
        (
            "a slow line",
            Trouble::Served(json!({ "kind": "slow", "match": CDN, "rate": 900_000 })),
        ),
        ("no ranges", always("noRange")),
        ("no validator", always("noEtag")),
        ("no length", always("noLength")),
        (
            "neither range nor length",
            Trouble::Served(json!({ "kind": "noRange" })),
        ),
        ("no HEAD", always("noHead")),
        ("a page for what is missing", always("fallback")),
        (
            "a page for everything",
            Trouble::Served(
                json!({ "kind": "portal", "match": if seed.is_multiple_of(2) { CDN } else { "" }, "times": times }),
            ),
        ),
        ("no commit", always("noCommit")),
        (
            "a flipped bit",
            Trouble::Served(
                json!({ "kind": "flip", "match": CDN, "after": after, "times": times }),
            ),
        ),
        (
            "bytes from elsewhere",
            Trouble::Served(json!({ "kind": "shift", "match": CDN, "times": times })),
        ),
        (
            "bytes from elsewhere under a false name",
            Trouble::Served(json!({ "kind": "shift", "match": CDN, "lie": true, "times": times })),
        ),
        (
            "the file changes during the load",
            Trouble::Served(
                json!({ "kind": "change", "match": CDN, "after": after, "times": 1,
            "path": format!("org/model/{WEIGHTS}"), "base64": super::server::base64(&other) }),
            ),
        ),
        (
            "parts that were evicted",
            Trouble::Stored(|cache, seed| {
                entries(cache)
                    .iter()
                    .skip(1)
                    .step_by(2 + seed as usize % 5)
                    .for_each(|e| drop(std::fs::remove_file(e)));
            }),
        ),
        (
            "parts that were cut",
            Trouble::Stored(|cache, seed| {
                damage(cache, seed, |bytes| bytes.truncate(bytes.len() / 2));
            }),
        ),
        (
            "the first part with other bytes",
            Trouble::Stored(|cache, _| {
                for entry in entries(cache).iter().filter(|e| {
                    e.to_string_lossy().contains("safetensors")
                        && e.to_string_lossy().contains("-0-")
                }) {
                    let mut bytes = std::fs::read(entry).expect("an entry");
                    bytes[..24].fill(b'x');
                    std::fs::write(entry, bytes).expect("an entry");
                }
            }),
        ),
        (
            "manifests of nonsense",
            Trouble::Stored(|cache, _| {
                let manifests = entries(cache)
                    .into_iter()
                    .filter(|e| e.ends_with("manifest"));
                manifests.for_each(|e| std::fs::write(e, b"{\"version\":1,").expect("a manifest"));
            }),
        ),
        (
            "an empty cache",
            Trouble::Stored(|cache, _| drop(std::fs::remove_dir_all(cache))),
        ),
        ("an abort", Trouble::Aborted(seed % 40)),
    ]
}

/// The files of a cache.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(list) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = list
        .flatten()
        .flat_map(|e| {
            if e.path().is_dir() {
                entries(&e.path())
            } else {
                vec![e.path()]
            }
        })
        .collect();
    found.sort();
    found
}

fn damage(cache: &Path, seed: u64, change: impl Fn(&mut Vec<u8>)) {
    let parts: Vec<_> = entries(cache)
        .into_iter()
        .filter(|e| !e.ends_with("manifest"))
        .collect();
    for part in parts.iter().skip(seed as usize % 3).step_by(3) {
        let mut bytes = std::fs::read(part).expect("an entry");
        change(&mut bytes);
        std::fs::write(part, bytes).expect("an entry");
    }
}

/// Loads like the engine.
fn whole_load(options: &HubOptions, reports: Option<u64>) -> Result<(Vec<u8>, super::Tensors)> {
    let abort = AbortFlag::new();
    let left = Cell::new(reports);
    let flag = abort.clone();

    let progress = Progress::new(move |_| match left.get() {
        Some(0) => flag.abort(),
        Some(count) => left.set(Some(count - 1)),
        None => {}
    });

    block_on(Source::load(
        async || Source::open(&model(), options, abort.clone(), progress.clone()).await,
        async |source| {
            let loaded = source.load_verified(first_load_ahead(source)).await?;
            serde_json::from_slice::<Value>(&loaded.0).map_err(|e| Error::Config {
                file: "config.json".into(),
                reason: e.to_string(),
            })?;
            Ok(loaded)
        },
    ))
}

#[test]
fn every_load_succeeds_or_reports_one_error_and_leaves_a_clean_cache() {
    let server = Server::start();
    let expected = content(1);
    server.file("config.json", CONFIG);
    server.file(WEIGHTS, &file_of(&expected));
    let quiet = options(&server);
    let mut options = quiet.clone();
    options.retry.stall_ms = 400.0;
    options.retry.attempts = 4;
    let cache = options.cache_dir.clone().expect("a cache");
    let loads = std::env::var("JERBOA_FAULT_LOADS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(LOADS);
    let mut right = 0;
    let mut refused = 0;

    for seed in 0..loads {
        // All kinds in turn, and a second one at random.
        let kinds = troubles(seed);
        let count = kinds.len() as u64;
        let second = (seed * 11 + seed / count * 5 + 3) % (2 * count);
        let mut names = Vec::new();
        let mut reports = None;

        for (index, (name, trouble)) in kinds.into_iter().enumerate() {
            if index as u64 != seed % count && index as u64 != second {
                continue;
            }
            names.push(name);
            match trouble {
                Trouble::Served(fault) => server.fault(&fault),
                Trouble::Stored(change) => change(&cache, seed),
                Trouble::Aborted(count) => reports = Some(count),
            }
        }
        // Half of the loads start with a cache.
        if seed % 4 < 2 {
            let _ = std::fs::remove_dir_all(&cache);
        }
        let begun = Instant::now();
        match whole_load(&options, reports) {
            Ok((config, found)) => {
                assert_eq!(config, CONFIG, "load {seed}: {names:?}");
                assert!(
                    found == expected,
                    "load {seed}: {names:?} gave other weights"
                );
                right += 1;
            }
            Err(error) => {
                let clear = [
                    "network",
                    "not_found",
                    "gated",
                    "changed",
                    "aborted",
                    "missing_file",
                    "malformed",
                    "missing_tensor",
                ];
                assert!(
                    clear.contains(&error.code()),
                    "load {seed}: {names:?}: {} {error}",
                    error.code()
                );
                refused += 1;
            }
        }
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "load {seed}: {names:?} took {:?}",
            begun.elapsed()
        );
        server.control("reset", &Value::Null);
        let (config, found) = whole_load(&quiet, None)
            .unwrap_or_else(|e| panic!("after load {seed}, {names:?}: {e}"));
        assert!(
            config == CONFIG && found == expected,
            "load {seed}: {names:?} poisoned the cache"
        );
    }
    println!("{right} loads were right, {refused} were refused");
    assert!(
        right > loads / 3 && refused > loads / 10,
        "{right} right, {refused} refused: the faults do not strike"
    );
}
