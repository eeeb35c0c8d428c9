//! Records of passed tests: duration and compiled kernels, stored in target/ between runs.

use crate::test_inputs::TestInputs;
use crate::workspace;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Environment variable with the file to which a test's kernels are written, by
/// crate/src/device/registry.rs and tests/page/support/kernels.mjs.
pub const KERNELS: &str = "JERBOA_KERNELS";

/// Record of a passed test.
struct PassedRecord {
    seconds: f64,
    fingerprint: String,
    kernels: Vec<String>,
}

impl PassedRecord {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::to_owned);
        Some(Self {
            seconds: lines.next()?.parse().ok()?,
            fingerprint: lines.next()?,
            kernels: lines.collect(),
        })
    }

    fn text(&self) -> String {
        format!(
            "{}\n{}\n{}",
            self.seconds,
            self.fingerprint,
            self.kernels.join("\n")
        )
    }

    /// Whether the test's inputs are unchanged.
    fn is_valid(&self, inputs: &TestInputs) -> bool {
        inputs
            .fingerprint(self.kernels.iter().map(String::as_str))
            .is_some_and(|now| now == self.fingerprint)
    }
}

/// Passed tests of a runner.
pub struct PassedCache {
    folder: PathBuf,
    /// Folder for the kernel lists of running tests.
    kernels: PathBuf,
}

impl PassedCache {
    /// Opens the records of a runner.
    pub fn open(runner: &str) -> Self {
        let folder = |name: &str| workspace::path("target/xtask").join(name).join(runner);
        Self {
            folder: folder("passed"),
            kernels: folder("kernels"),
        }
    }

    /// All passed tests: name, duration in seconds, and whether the test's inputs are unchanged.
    pub fn all(&self, inputs: &TestInputs) -> Result<Vec<(String, f64, bool)>> {
        let mut all = Vec::new();
        for file in crate::stamp::files(&self.folder)? {
            let name = test_name(&file);
            if let Some(record) = self.record(&name) {
                all.push((name, record.seconds, record.is_valid(inputs)));
            }
        }
        Ok(all)
    }

    /// Duration in seconds of a test's last passing run.
    pub fn seconds(&self, name: &str) -> Option<f64> {
        Some(self.record(name)?.seconds)
    }

    /// Whether a test passed with its current inputs.
    pub fn is_valid(&self, name: &str, inputs: &TestInputs) -> bool {
        self.record(name)
            .is_some_and(|record| record.is_valid(inputs))
    }

    /// Marks a test as started: removes its record. Returns the file for its kernel list.
    pub fn begin(&self, name: &str) -> Result<PathBuf> {
        let kernels = self.kernels.join(file_name(name));
        for file in [&kernels, &self.folder.join(file_name(name))] {
            fs::create_dir_all(file.parent().unwrap_or(file))
                .with_context(|| format!("{}", file.display()))?;
            if file.exists() {
                fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
            }
        }
        fs::write(&kernels, "").with_context(|| format!("writing {}", kernels.display()))?;
        Ok(kernels)
    }

    /// Records that a test passed.
    pub fn end(
        &self,
        name: &str,
        seconds: f64,
        kernels: &PathBuf,
        inputs: &TestInputs,
    ) -> Result<()> {
        let seen = fs::read_to_string(kernels)
            .with_context(|| format!("reading {}", kernels.display()))?;
        fs::remove_file(kernels).with_context(|| format!("removing {}", kernels.display()))?;
        let seen: BTreeSet<&str> = seen.lines().collect();
        // A test with unknown dependencies is never skipped.
        let fingerprint = inputs.fingerprint(seen.iter().copied()).unwrap_or_default();
        let record = PassedRecord {
            seconds,
            fingerprint,
            kernels: seen.into_iter().map(str::to_owned).collect(),
        };
        let file = self.folder.join(file_name(name));
        fs::write(&file, record.text()).with_context(|| format!("writing {}", file.display()))
    }

    /// Removes all records.
    pub fn clear(&self) -> Result<()> {
        self.retain_only(&BTreeSet::new())
    }

    /// Removes all records except these, such as those of deleted tests.
    pub fn retain_only(&self, names: &BTreeSet<&str>) -> Result<()> {
        for file in crate::stamp::files(&self.folder)? {
            let name = test_name(&file);
            if !names.contains(name.as_str()) {
                fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
            }
        }
        Ok(())
    }

    fn record(&self, name: &str) -> Option<PassedRecord> {
        PassedRecord::parse(&fs::read_to_string(self.folder.join(file_name(name))).ok()?)
    }
}

/// The test of a record.
fn test_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().replace('.', "::")
}

/// The record's file name; Windows allows no colon in it.
fn file_name(test: &str) -> String {
    test.replace("::", ".")
}

#[cfg(test)]
mod tests {
    use super::PassedRecord;
    use crate::test_inputs::{TestInputs, tests::inputs};

    fn passed(inputs: &TestInputs, kernels: &[&str]) -> PassedRecord {
        let fingerprint = inputs
            .fingerprint(kernels.iter().copied())
            .unwrap_or_default();
        let kernels = kernels.iter().map(|name| (*name).to_owned()).collect();
        PassedRecord {
            seconds: 1.5,
            fingerprint,
            kernels,
        }
    }

    #[test]
    fn records_are_valid_until_an_input_changes() {
        let before = inputs(1, &[]);
        let shader = inputs(1, &[("cut", "other")]);
        let rest = inputs(2, &[]);

        let holds = |kernels: &[&str]| {
            let record = PassedRecord::parse(&passed(&before, kernels).text()).unwrap();
            assert_eq!(
                (record.seconds, record.kernels.as_slice()),
                (1.5, &passed(&before, kernels).kernels[..])
            );
            [&before, &shader, &rest].map(|now| record.is_valid(now))
        };
        assert_eq!(holds(&[]), [true, true, false]);
        assert_eq!(holds(&["sum", "sum+norm"]), [true, true, false]);
        assert_eq!(holds(&["cut+w_f32", "sum"]), [true, false, false]);
        assert_eq!(
            holds(&["*"]),
            [false; 3],
            "a test with unknown dependencies runs again"
        );
    }

    #[test]
    fn truncated_records_are_ignored() {
        for text in ["", "1.5", "soon\n12"] {
            assert!(PassedRecord::parse(text).is_none(), "{text}");
        }
    }
}
