//! Standard output of the runner. A closed pipe ends the runner silently, as in other command-line
//! programs.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints text without a newline and flushes.
pub fn print_text(text: impl Display) {
    check_written(write!(io::stdout(), "{text}").and_then(|()| io::stdout().flush()));
}

/// Prints a line.
pub fn print_line(text: impl Display) {
    check_written(writeln!(io::stdout(), "{text}"));
}

fn check_written(result: io::Result<()>) {
    let Err(error) = result else { return };
    if error.kind() != ErrorKind::BrokenPipe {
        eprintln!("error: writing to standard output failed: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}
