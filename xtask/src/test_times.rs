//! Test durations, from the runners or from the output of node's runner.

use crate::test_counts::strip_ansi;

/// Tests with their durations in seconds.
#[derive(Default)]
pub struct TestTimes(Vec<(f64, String)>);

impl TestTimes {
    /// Adds a test.
    pub fn add(&mut self, runner: &str, name: &str, seconds: f64) {
        self.0.push((seconds, format!("{runner}: {name}")));
    }

    /// Adds the test of a line of node's output, if the line reports one.
    pub fn read(&mut self, runner: &str, line: &str) {
        if let Some((name, seconds)) = parse_node_line(strip_ansi(line).trim()) {
            self.add(runner, name, seconds);
        }
    }

    /// The slowest tests, slowest first, one line each.
    pub fn slowest(&self, most: usize) -> Vec<String> {
        let mut sorted: Vec<&(f64, String)> = self.0.iter().collect();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
        sorted
            .into_iter()
            .take(most)
            .map(|(seconds, name)| format!("{seconds:7.1} s  {name}"))
            .collect()
    }
}

/// Parses `✔ name (1234.5ms)`. Skips lines of whole files, whose time is the sum of their tests.
fn parse_node_line(line: &str) -> Option<(&str, f64)> {
    let line = line
        .strip_prefix('✔')
        .or_else(|| line.strip_prefix('✖'))?
        .trim_start();
    let (name, time) = line.rsplit_once(" (")?;
    let milliseconds: f64 = time.strip_suffix("ms)")?.parse().ok()?;
    (!name.ends_with(".mjs")).then_some((name, milliseconds / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::TestTimes;

    #[test]
    fn the_slowest_come_first() {
        let mut times = TestTimes::default();
        times.add("native", "kernels::slow", 12.5);
        times.add("native", "gpu::tests::quick", 0.012);
        for line in [
            "    \u{1b}[32m✔ a page (with brackets) opens (2500.25ms)\u{1b}[39m",
            "✔ tests/page/page.test.mjs (9000ms)",
            "✖ fails (100ms)",
        ] {
            times.read("page", line);
        }
        let slowest = times.slowest(2);
        assert_eq!(
            slowest,
            [
                "   12.5 s  native: kernels::slow",
                "    2.5 s  page: a page (with brackets) opens"
            ]
        );
        assert_eq!(times.slowest(10).len(), 4);
    }
}
