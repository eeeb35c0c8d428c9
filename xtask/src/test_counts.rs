//! Test counts from the output of libtest, wasm-bindgen's runner and node. Parses summary lines
//! only.

/// Tests that passed and failed.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestCounts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed or were left out for want of time, or runners that crashed.
    pub failed: u64,
}

impl TestCounts {
    /// Adds the counts of a summary line; ignores other lines.
    pub fn read(&mut self, line: &str) {
        let line = strip_ansi(line);
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("test result:") {
            // test result: ok. 5 passed; 0 failed; 1 ignored; ...
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
        } else if let Some(count) = line.strip_prefix("ℹ pass ") {
            self.passed += count.parse().unwrap_or(0);
        } else if let Some(count) = line
            .strip_prefix("ℹ fail ")
            .or_else(|| line.strip_prefix("ℹ cancelled "))
        {
            self.failed += count.parse().unwrap_or(0);
        }
    }

    /// Sums both counts.
    pub fn plus(self, other: TestCounts) -> TestCounts {
        TestCounts {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
        }
    }
}

fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or_default();
    before
        .rsplit(|each: char| !each.is_ascii_digit())
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

/// Strips ANSI color escapes from a line.
pub fn strip_ansi(line: &str) -> String {
    let mut text = String::new();
    let mut escape = false;
    for each in line.chars() {
        match each {
            '\u{1b}' => escape = true,
            'm' if escape => escape = false,
            _ if escape => {}
            _ => text.push(each),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::TestCounts;

    #[test]
    fn summaries_of_all_runners_are_read() {
        let mut tally = TestCounts::default();
        for line in [
            "test result: ok. 15 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored",
            "\u{1b}[34mℹ pass 12\u{1b}[39m",
            "ℹ fail 1",
            "ℹ cancelled 0",
            "test text::passes ... ok",
            "9 passed",
        ] {
            tally.read(line);
        }
        assert_eq!(
            tally,
            TestCounts {
                passed: 30,
                failed: 3
            }
        );
    }
}
