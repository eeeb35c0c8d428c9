//! `cargo xtask test`: native tests, tests in headless Chromium, page tests; one closing line for all. Knows no test.

use crate::command::{command, say, watch};
use crate::setup::{self, Toolchain};
use crate::stamp::files;
use crate::tally::Tally;
use crate::{manifest, package, workspace};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Instant;

const RUNNERS: [&str; 3] = ["native", "wasm", "page"];

/// Sets up, runs the runners that are named, or all of them.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(unknown) = args.iter().find(|name| !RUNNERS.contains(&name.as_str())) {
        bail!("there is no runner '{unknown}': {}", RUNNERS.join(", "));
    }
    let toolchain = setup::everything()?;
    let mut all = Tally::default();
    for name in RUNNERS {
        if !args.is_empty() && !args.iter().any(|each| each == name) {
            continue;
        }
        say(&format!("{name} tests"));
        let start = Instant::now();
        let tally = match name {
            "native" => count(&mut native()),
            "wasm" => wasm(toolchain),
            _ => page(toolchain),
        };
        // A runner that cannot start is a failure among others: the rest still runs, and the closing line tells.
        let tally = tally.unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            Tally { passed: 0, failed: 1 }
        });
        let seconds = start.elapsed().as_secs();
        println!("    {name}: {} passed, {} failed, {seconds} s", tally.passed, tally.failed);
        all = all.and(tally);
    }
    println!("\n{} passed, {} failed", all.passed, all.failed);
    if all.failed > 0 {
        bail!("{} tests failed", all.failed);
    }
    Ok(())
}

/// On whatever Vulkan, Metal or DX12 adapter there is: Mesa's llvmpipe where there is no GPU.
fn native() -> Command {
    let mut cargo = command("cargo");
    cargo.args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]).current_dir(workspace::root());
    cargo
}

/// In headless Chromium, on its software adapter: crate/webdriver.json holds the flags.
fn wasm(toolchain: Toolchain) -> Result<Tally> {
    let settings = manifest::read()?.test;
    count(
        toolchain
            .command("wasm-pack")
            .args(["test", "--headless", &format!("--{}", settings.browser), "--mode", "no-install"])
            .arg(workspace::path("crate"))
            .args(manifest::feature_flags(&settings.features))
            .current_dir(workspace::root()),
    )
}

/// node's runner over tests/page, against the built package and page, and over tests/memory.
fn page(toolchain: Toolchain) -> Result<Tally> {
    package::build(toolchain)?;
    let mut node = command("node");
    // Two files at a time, each with a browser of its own: a software GPU compiles kernels on one core.
    node.args(["--test", "--test-reporter=spec", "--test-concurrency=2"]).current_dir(workspace::root());
    for folder in ["tests/page", "tests/memory"] {
        let files = files(&workspace::path(folder))?;
        node.args(files.iter().filter(|file| file.to_string_lossy().ends_with(".test.mjs")));
    }
    count(&mut node)
}

/// Runs a runner and counts; one that fails without a failed test (it did not compile, it crashed) counts as one.
fn count(runner: &mut Command) -> Result<Tally> {
    let mut tally = Tally::default();
    let succeeded = watch(runner, |line| tally.read(line))?;
    if !succeeded && tally.failed == 0 {
        eprintln!("error: the runner broke off before its summary");
        tally.failed = 1;
    }
    Ok(tally)
}
