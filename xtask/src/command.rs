//! Runs other programs: prints each command, its duration, and which one failed.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Prints a line that stands out from the programs' output.
pub fn print_heading(text: &str) {
    println!("==> {text}");
}

/// Prints a step's name, runs it, and prints its duration.
pub fn run_step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    print_heading(what);
    let start = Instant::now();
    let done = work().with_context(|| what.to_owned())?;
    println!("    done in {:.1} s", start.elapsed().as_secs_f32());
    Ok(done)
}

/// Creates a command without the variables that `cargo run` sets: crates that watch them would be
/// rebuilt.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command with inherited output; fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    println!("    $ {line}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting `{line}`"))?;
    if !status.success() {
        bail!("`{line}` exited with {status}");
    }
    Ok(())
}

/// The trimmed standard output of a command; `None` if the command is missing or fails.
pub fn output_of(command: &mut Command) -> Option<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether a program is on PATH and accepts `--version`.
pub fn is_installed(program: &str) -> bool {
    output_of(command(program).arg("--version")).is_some()
}

/// A command run as root, through sudo if necessary.
pub fn as_root(program: &str) -> Command {
    let root = output_of(Command::new("id").arg("-u")).is_some_and(|id| id == "0");
    if root {
        return command(program);
    }
    let mut sudo = command("sudo");
    sudo.arg(program);
    sudo
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
