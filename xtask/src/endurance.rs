//! `cargo xtask fuzz` and `cargo xtask soak`: runs of any length that look for hangs, panics and
//! growth.

use crate::command::{command, run, run_step};
use crate::{npm, package, setup, workspace};
use anyhow::{Context, Result, bail};

/// Fuzz targets of crate/fuzz/targets.rs, and the worker's messages.
const TARGETS: [&str; 10] = [
    "safetensors",
    "gguf",
    "mlc",
    "checkpoint",
    "config",
    "tokenizer",
    "template",
    "audio",
    "image",
    MESSAGES,
];
const MESSAGES: &str = "messages";
/// Seconds of each target.
const FUZZ_SECONDS: f64 = 1200.0;

/// Runs the named fuzz targets, or all, one after another; each parser in a process with 512 MB.
pub fn fuzz(args: &[String]) -> Result<()> {
    let (seconds, names) = option(args, "--seconds")?;
    let seconds = seconds.unwrap_or(FUZZ_SECONDS).ceil().to_string();
    if let Some(unknown) = names.iter().find(|name| !TARGETS.contains(name)) {
        bail!(
            "unknown target '{unknown}'. Use some of: {}.",
            TARGETS.join(", ")
        );
    }
    setup::everything()?;
    for target in TARGETS {
        if !names.is_empty() && !names.contains(&target) {
            continue;
        }
        let mut fuzz = if target == MESSAGES {
            let mut node = command("node");
            node.args(["--test", "--test-name-pattern=random messages"])
                .arg("tests/page/inputs.test.mjs");
            node
        } else {
            let mut cargo = command("cargo");
            cargo.args(["test", "--quiet", "--package", "jerboa-tests"]);
            cargo.args(["--test", "formats", "--", "--exact", "--nocapture"]);
            cargo.arg(format!("seeds::{target}"));
            cargo
        };
        fuzz.env("JERBOA_FUZZ_SECONDS", &seconds)
            .current_dir(workspace::root());
        run_step(&format!("fuzzing {target} for {seconds} s"), || {
            run(&mut fuzz)
        })?;
    }
    Ok(())
}

/// Runs tests/page/soak-long.mjs in Chromium on the built package.
pub fn soak(args: &[String]) -> Result<()> {
    let (hours, rest) = option(args, "--hours")?;
    if let Some(unknown) = rest.first() {
        bail!("unknown argument '{unknown}'. Use --hours N.");
    }
    let toolchain = setup::everything()?;
    npm::install()?;
    package::build(toolchain)?;
    let mut node = command("node");
    node.arg("tests/page/soak-long.mjs")
        .args(["--hours", &hours.unwrap_or(8.0).to_string()])
        .current_dir(workspace::root());
    run_step("soak", || run(&mut node))
}

/// The number after an option, and the other arguments.
fn option<'a>(args: &'a [String], name: &str) -> Result<(Option<f64>, Vec<&'a str>)> {
    let mut rest: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some(at) = rest.iter().position(|arg| *arg == name) else {
        return Ok((None, rest));
    };
    let number = rest
        .get(at + 1)
        .and_then(|text| text.parse().ok())
        .filter(|number| *number > 0.0)
        .with_context(|| format!("{name} needs a number above 0"))?;
    rest.drain(at..at + 2);
    Ok((Some(number), rest))
}
