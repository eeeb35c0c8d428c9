//! What the runner prints. Knows that whoever reads it may leave: that ends the runner in silence, as it does other programs.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints a text at once, without a line's end.
pub fn text(text: impl Display) {
    written(write!(io::stdout(), "{text}").and_then(|()| io::stdout().flush()));
}

/// Prints a line.
pub fn line(text: impl Display) {
    written(writeln!(io::stdout(), "{text}"));
}

fn written(result: io::Result<()>) {
    let Err(error) = result else { return };
    if error.kind() != ErrorKind::BrokenPipe {
        eprintln!("error: the output cannot be written: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}
