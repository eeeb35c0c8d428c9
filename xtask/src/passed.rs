//! Tests that passed: how long they took and which kernels they asked for, kept in target/ between runs. Knows no runner.

use crate::inputs::Inputs;
use crate::workspace;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// The variable that names the file to which a test's kernels are written: crate/src/device/registry.rs and
/// tests/page/support/kernels.mjs do it.
pub const KERNELS: &str = "JERBOA_KERNELS";

/// What is kept of a test that passed.
struct Record {
    seconds: f64,
    fingerprint: String,
    kernels: Vec<String>,
}

impl Record {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::to_owned);
        Some(Self { seconds: lines.next()?.parse().ok()?, fingerprint: lines.next()?, kernels: lines.collect() })
    }

    fn text(&self) -> String {
        format!("{}\n{}\n{}", self.seconds, self.fingerprint, self.kernels.join("\n"))
    }

    /// Whether the test would see what it saw.
    fn holds(&self, inputs: &Inputs) -> bool {
        inputs.fingerprint(self.kernels.iter().map(String::as_str)).is_some_and(|now| now == self.fingerprint)
    }
}

/// The tests of a runner that passed.
pub struct Passed {
    folder: PathBuf,
    /// What those that run now ask for.
    kernels: PathBuf,
}

impl Passed {
    /// Those of a runner.
    pub fn of(runner: &str) -> Self {
        let folder = |name: &str| workspace::path("target/xtask").join(name).join(runner);
        Self { folder: folder("passed"), kernels: folder("kernels") }
    }

    /// The names of all, with the seconds that each took and whether nothing that it depends on has changed since.
    pub fn all(&self, inputs: &Inputs) -> Result<Vec<(String, f64, bool)>> {
        let mut all = Vec::new();
        for file in crate::stamp::files(&self.folder)? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().replace('.', "::");
            if let Some(record) = self.record(&name) {
                all.push((name, record.seconds, record.holds(inputs)));
            }
        }
        Ok(all)
    }

    /// How long a test took when it last passed.
    pub fn seconds(&self, name: &str) -> Option<f64> {
        Some(self.record(name)?.seconds)
    }

    /// Whether a test passed and nothing that it depends on has changed since.
    pub fn holds(&self, name: &str, inputs: &Inputs) -> bool {
        self.record(name).is_some_and(|record| record.holds(inputs))
    }

    /// A test begins: nothing is known of it until it ends. The file to which its kernels go.
    pub fn begin(&self, name: &str) -> Result<PathBuf> {
        let kernels = self.kernels.join(file_name(name));
        for file in [&kernels, &self.folder.join(file_name(name))] {
            fs::create_dir_all(file.parent().unwrap_or(file)).with_context(|| format!("{}", file.display()))?;
            if file.exists() {
                fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
            }
        }
        fs::write(&kernels, "").with_context(|| format!("writing {}", kernels.display()))?;
        Ok(kernels)
    }

    /// A test has passed.
    pub fn end(&self, name: &str, seconds: f64, kernels: &PathBuf, inputs: &Inputs) -> Result<()> {
        let seen = fs::read_to_string(kernels).with_context(|| format!("reading {}", kernels.display()))?;
        fs::remove_file(kernels).with_context(|| format!("removing {}", kernels.display()))?;
        let seen: BTreeSet<&str> = seen.lines().collect();
        // What depends on more than is known is never left out.
        let fingerprint = inputs.fingerprint(seen.iter().copied()).unwrap_or_default();
        let record = Record { seconds, fingerprint, kernels: seen.into_iter().map(str::to_owned).collect() };
        let file = self.folder.join(file_name(name));
        fs::write(&file, record.text()).with_context(|| format!("writing {}", file.display()))
    }

    /// Forgets all tests.
    pub fn forget(&self) -> Result<()> {
        self.keep(&BTreeSet::new())
    }

    /// Forgets all tests but these, such as those that are no more.
    pub fn keep(&self, names: &BTreeSet<&str>) -> Result<()> {
        for file in crate::stamp::files(&self.folder)? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().replace('.', "::");
            if !names.contains(name.as_str()) {
                fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
            }
        }
        Ok(())
    }

    fn record(&self, name: &str) -> Option<Record> {
        Record::parse(&fs::read_to_string(self.folder.join(file_name(name))).ok()?)
    }
}

/// No file may have a colon in its name on Windows.
fn file_name(test: &str) -> String {
    test.replace("::", ".")
}

#[cfg(test)]
mod tests {
    use super::Record;
    use crate::inputs::{Inputs, tests::inputs};

    fn passed(inputs: &Inputs, kernels: &[&str]) -> Record {
        let fingerprint = inputs.fingerprint(kernels.iter().copied()).unwrap_or_default();
        let kernels = kernels.iter().map(|name| (*name).to_owned()).collect();
        Record { seconds: 1.5, fingerprint, kernels }
    }

    #[test]
    fn what_passed_holds_until_something_that_it_saw_changes() {
        let (before, shader, rest) = (inputs(1, &[]), inputs(1, &[("cut", "other")]), inputs(2, &[]));
        let holds = |kernels: &[&str]| {
            let record = Record::parse(&passed(&before, kernels).text()).unwrap();
            assert_eq!((record.seconds, record.kernels.as_slice()), (1.5, &passed(&before, kernels).kernels[..]));
            [&before, &shader, &rest].map(|now| record.holds(now))
        };
        assert_eq!(holds(&[]), [true, true, false]);
        assert_eq!(holds(&["sum", "sum+norm"]), [true, true, false]);
        assert_eq!(holds(&["cut+w_f32", "sum"]), [true, false, false]);
        assert_eq!(holds(&["*"]), [false; 3], "what may have seen anything is run again");
    }

    #[test]
    fn a_record_that_is_cut_is_none() {
        for text in ["", "1.5", "soon\n12"] {
            assert!(Record::parse(text).is_none(), "{text}");
        }
    }
}
