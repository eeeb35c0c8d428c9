//! Real published weights, compared with transformers, sentence-transformers and tokenizers on the
//! same files.
//!
//! `cargo xtask test real` prepares the weights (fetch.py) and runs this; JERBOA_REAL names their
//! folder. References: tests/golden/real, made by tests/golden/scripts/make_real*.py.

mod language;
mod lora;
mod speech;
mod structured;
mod vectors;

use jerboa::exec::{Precision, PrecisionOptions, RunOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::kernels::attention::Kv;
use jerboa::task::TaskModel;
use jerboa_tests::golden;
use pollster::block_on;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Instant;

/// The checks of one model: each prints a line, all failures are reported at the end.
struct Report {
    model: &'static str,
    since: Instant,
    checks: usize,
    failures: Vec<String>,
}

impl Report {
    fn new(model: &'static str) -> Self {
        Self {
            model,
            since: Instant::now(),
            checks: 0,
            failures: Vec::new(),
        }
    }

    /// Records one check with the measured value.
    fn check(&mut self, what: &str, passed: bool, found: &str) {
        let line = format!(
            "{} {what}: {} {found}",
            self.model,
            if passed { "ok" } else { "FAILED" }
        );
        println!("{line} ({:.1} s)", self.since.elapsed().as_secs_f32());
        self.since = Instant::now();
        self.checks += 1;
        if !passed {
            self.failures.push(line);
        }
    }

    /// Fails with all failures, or if nothing was checked.
    fn finish(self) {
        assert!(self.checks > 0, "{}: nothing was checked", self.model);
        assert!(
            self.failures.is_empty(),
            "{} of {} checks:\n{}",
            self.failures.len(),
            self.checks,
            self.failures.join("\n")
        );
    }
}

/// The folder of a repository that fetch.py prepared.
fn repository(repo: &str) -> PathBuf {
    let root = std::env::var_os("JERBOA_REAL")
        .expect("JERBOA_REAL names the folder that tests/real/fetch.py wrote");
    PathBuf::from(root).join("hub").join(repo)
}

/// Loads a repository that fetch.py prepared.
fn load(repo: &str, options: RunOptions) -> TaskModel {
    let folder = repository(repo);
    let loaded = block_on(async {
        let source = golden::open(&folder).await?;
        TaskModel::load(
            jerboa_tests::open(&DeviceOptions::default()),
            &source,
            repo,
            None,
            options,
        )
        .await
    });
    loaded.unwrap_or_else(|error| panic!("{repo}: {error}"))
}

/// f32 weights, activations and KV cache, as in the references.
fn exact() -> RunOptions {
    let overrides = PrecisionOptions {
        kv_type: Some(Kv::F32),
        precision: Precision::F32,
        ..PrecisionOptions::default()
    };
    RunOptions {
        overrides,
        ..RunOptions::default()
    }
}

/// A JSON file of tests/golden/real.
fn facts(name: &str) -> Value {
    let path = golden::golden(&format!("real/{name}.json"));
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A text file of tests/golden/real.
fn text(name: &str) -> String {
    std::fs::read_to_string(golden::golden(&format!("real/{name}"))).expect(name)
}

/// A list of token ids.
fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("token ids")
}

/// Compares the ids of every string of strings.json.
fn strings(report: &mut Report, model: &TaskModel, expected: &Value) {
    let tokenizer = model.text().tokenizer().expect("a tokenizer");
    let strings: Vec<String> = serde_json::from_str(&text("strings.json")).expect("strings.json");
    let expected = expected.as_array().expect("ids of each string");
    assert!(strings.len() >= 200 && strings.len() == expected.len());
    let differing = strings.iter().zip(expected).find_map(|(string, expected)| {
        let found = tokenizer.encode_trusted(string, true);
        (found.as_ref().ok() != Some(&ids(expected)))
            .then(|| format!("{string:?}: {found:?}, expected {expected}"))
    });
    report.check(
        "token ids",
        differing.is_none(),
        &differing.unwrap_or_else(|| format!("{} strings", strings.len())),
    );
}
