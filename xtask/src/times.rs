//! How long each test took, from what the runners print: libtest with `--report-time` and node. Knows their lines only.

use crate::tally::plain;

/// Tests with their seconds.
#[derive(Default)]
pub struct Times(Vec<(f64, String)>);

impl Times {
    /// Adds what a line of output says, if it is of a test that ended; `runner` goes before its name.
    pub fn read(&mut self, runner: &str, line: &str) {
        let line = plain(line);
        if let Some((name, seconds)) = libtest(line.trim()).or_else(|| node(line.trim())) {
            self.0.push((seconds, format!("{runner}: {name}")));
        }
    }

    /// The slowest tests, the slowest first, a line each.
    pub fn slowest(&self, most: usize) -> Vec<String> {
        let mut sorted: Vec<&(f64, String)> = self.0.iter().collect();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
        sorted.into_iter().take(most).map(|(seconds, name)| format!("{seconds:7.1} s  {name}")).collect()
    }
}

/// `test exec::tests::name ... ok <1.234s>`
fn libtest(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = rest.split_once('<')?.1.strip_suffix("s>")?;
    Some((name, seconds.parse().ok()?))
}

/// `✔ name (1234.5ms)`; a file as a whole is its tests once more.
fn node(line: &str) -> Option<(&str, f64)> {
    let line = line.strip_prefix('✔').or_else(|| line.strip_prefix('✖'))?.trim_start();
    let (name, time) = line.rsplit_once(" (")?;
    let milliseconds: f64 = time.strip_suffix("ms)")?.parse().ok()?;
    (!name.ends_with(".mjs")).then_some((name, milliseconds / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::Times;

    #[test]
    fn the_slowest_come_first() {
        let mut times = Times::default();
        for line in [
            "test gpu::tests::quick ... \u{1b}[32mok\u{1b}[m <0.012s>",
            "test kernels::slow ... FAILED <12.500s>",
            "test result: ok. 2 passed; 0 failed; 0 ignored; finished in 12.6s",
            "    ✔ a page (with brackets) opens (2500.25ms)",
            "✔ tests/page/page.test.mjs (9000ms)",
            "✖ fails (100ms)",
        ] {
            times.read("native", line);
        }
        let slowest = times.slowest(2);
        assert_eq!(slowest, ["   12.5 s  native: kernels::slow", "    2.5 s  native: a page (with brackets) opens"]);
        assert_eq!(times.slowest(10).len(), 4);
    }
}
