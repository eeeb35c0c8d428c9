//! `cargo xtask bench`: times the native runner over a model. Knows which program to build, not what it measures.

use crate::command::{command, run, step};
use crate::{manifest, workspace};
use anyhow::Result;
use std::process::Command;

/// The bundled model, long enough to leave the first token behind.
const DEFAULT: [&str; 6] =
    ["--model", "www/public/models/stories260K", "--prompt", "Once upon a time", "--max-new", "200"];

/// Builds the runner with optimisation and runs its `generate`, which prints prefill and decode times as JSON.
pub fn run_task(args: &[String]) -> Result<()> {
    let settings = manifest::read()?.bench;
    let runner = |action: &str| -> Command {
        let mut cargo = command("cargo");
        cargo.args([action, "--package", "jerboa", "--example", "run", "--profile", &settings.profile]);
        cargo.args(manifest::feature_flags(&settings.features)).current_dir(workspace::root());
        cargo
    };
    step("building the native runner with optimisation (some minutes the first time)", || run(&mut runner("build")))?;
    let mut command = runner("run");
    command.args(["--quiet", "--", "generate", "--json"]);
    if args.is_empty() { run(command.args(DEFAULT)) } else { run(command.args(args)) }
}
