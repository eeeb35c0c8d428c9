//! Native tests: builds the test programs and lists their tests, one job per test.

use crate::command::command;
use crate::pool::Job;
use crate::workspace;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Cargo's JSON message about a built artifact.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// The packages of the workspace but xtask, which is built by itself.
pub const OTHERS: [&str; 3] = ["--workspace", "--exclude", "xtask"];

/// Builds all tests of the workspace and lists them. They run on any Vulkan, Metal or DX12 adapter;
/// without a GPU on Mesa's llvmpipe. Each test is a process of its own: cores stay busy, and its
/// kernels are recorded separately.
pub fn jobs() -> Result<Vec<Job>> {
    // Test output of the last run is not needed any more.
    let scratch = workspace::path("target/tmp");
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch)
            .with_context(|| format!("removing {}", scratch.display()))?;
    }
    std::fs::create_dir_all(&scratch).with_context(|| format!("creating {}", scratch.display()))?;
    // With the features that `cargo xtask` is built with: its dependencies, wasm-bindgen's library
    // among them, would be compiled a second time with those of the workspace.
    let mut jobs = build("native", &["--package", "xtask", "--bins"])?;
    let others = [&OTHERS[..], &["--lib", "--bins", "--tests"]].concat();
    jobs.append(&mut build("native", &others)?);
    Ok(jobs)
}

/// Builds test programs and lists their tests as jobs of a runner.
pub fn build(runner: &'static str, targets: &[&str]) -> Result<Vec<Job>> {
    let mut cargo = command("cargo");
    cargo.arg("test").args(targets).arg("--no-run");
    println!("    $ cargo test {} --no-run", targets.join(" "));
    cargo
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace::root());
    let built = cargo
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !built.status.success() {
        bail!("building the tests failed");
    }
    let mut jobs = Vec::new();
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        if let Ok(Artifact {
            manifest_path,
            target,
            executable: Some(program),
        }) = serde_json::from_str(line)
        {
            jobs.append(&mut tests(
                runner,
                &program,
                manifest_path.parent().unwrap_or(&manifest_path),
                &target.name,
            )?);
        }
    }
    Ok(jobs)
}

/// The programs among cargo's JSON messages.
pub fn executables(messages: &str) -> Vec<PathBuf> {
    let artifacts = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    artifacts
        .filter_map(|artifact| artifact.executable)
        .collect()
}

fn tests(runner: &'static str, program: &Path, package: &Path, target: &str) -> Result<Vec<Job>> {
    let list = command(program)
        .args(["--list", "--format", "terse"])
        .current_dir(package)
        .output();
    let list = list.with_context(|| format!("listing the tests of {}", program.display()))?;
    if !list.status.success() {
        bail!("{} failed to list its tests", program.display());
    }

    Ok(String::from_utf8_lossy(&list.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(|test: &str| {
            let mut run = command(program);
            run.args(["--exact", test]).current_dir(package);
            // tests/kernels and tests/train/kernels.rs
            let of_kernels = target == "kernels" || test.starts_with("kernels::");
            run.envs(environment(of_kernels));
            Job {
                runner,
                name: format!("{target}::{test}"),
                command: run,
            }
        })
        .collect())
}

/// Variables of a test program. wgpu takes a backtrace at every lock of its debug build if
/// `RUST_BACKTRACE` is set; those of panics stay. llvmpipe hands each dispatch to a thread per core,
/// which takes longer than most dispatches of tests, and all cores run tests: one thread runs them.
/// Tests of single kernels keep the threads, so that workgroups run in parallel.
fn environment(of_kernels: bool) -> Vec<(&'static str, &'static str)> {
    let threads = (!of_kernels).then_some(("LP_NUM_THREADS", "0"));
    [("RUST_LIB_BACKTRACE", "0")]
        .into_iter()
        .chain(threads)
        .collect()
}
