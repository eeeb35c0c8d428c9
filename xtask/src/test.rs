//! `cargo xtask test`: native tests, tests in headless Chromium, page tests; the time by runner, the slowest tests, one closing line for all. Knows no test.

use crate::command::{ask, command, say, watch};
use crate::setup::{self, Toolchain};
use crate::stamp::files;
use crate::tally::Tally;
use crate::times::Times;
use crate::{manifest, package, workspace};
use anyhow::{Result, anyhow, bail};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Instant;

const RUNNERS: [&str; 3] = ["native", "wasm", "page"];
/// So many of the slowest tests are named at the end.
const SLOWEST: usize = 10;
/// How often the wasm runner is started until a test runs.
const ATTEMPTS: usize = 3;

/// Sets up, runs the runners that are named, or all of them.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(unknown) = args.iter().find(|name| !RUNNERS.contains(&name.as_str())) {
        bail!("there is no runner '{unknown}': {}", RUNNERS.join(", "));
    }
    let toolchain = setup::everything()?;
    let wanted = |name: &str| args.is_empty() || args.iter().any(|each| each == name);
    // The package is built beside the other runners: for minutes its compiler keeps one core busy and leaves the rest idle.
    let mut building = wanted("page").then(|| thread::spawn(move || package::build(toolchain)));
    let mut all = Tally::default();
    let mut times = Times::default();
    let mut table = Vec::new();
    for name in RUNNERS {
        if !wanted(name) {
            continue;
        }
        say(&format!("{name} tests"));
        let start = Instant::now();
        let tally = match name {
            "native" => count(&mut native(), name, &mut times),
            "wasm" => wasm(toolchain, name, &mut times),
            _ => page(building.take(), name, &mut times),
        };
        // A runner that cannot start is a failure among others: the rest still runs, and the closing line tells.
        let tally = tally.unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            Tally { passed: 0, failed: 1 }
        });
        let seconds = start.elapsed().as_secs();
        table.push(format!("{seconds:7} s  {name}: {} passed, {} failed", tally.passed, tally.failed));
        all = all.and(tally);
    }
    println!(
        "\nthe slowest tests:\n{}\n\nby runner, building included:\n{}",
        times.slowest(SLOWEST).join("\n"),
        table.join("\n")
    );
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
    // libtest tells each test's time to a compiler that allows unstable options. It is told so when it runs, through cargo's
    // `runner`: set for cargo, the variable would have everything built anew.
    let host = ask(command("rustc").arg("-vV")).unwrap_or_default();
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    if cfg!(unix) && !host.is_empty() {
        let runner = format!("CARGO_TARGET_{}_RUNNER", host.to_uppercase().replace(['-', '.'], "_"));
        cargo.env(runner, "env RUSTC_BOOTSTRAP=1").args(["--", "-Zunstable-options", "--report-time"]);
    }
    cargo
}

/// In headless Chromium, on its software adapter: crate/webdriver.json holds the flags. crate/tests and what it needs, no more:
/// wasm-pack would compile the unit tests and the examples for wasm32 too, of which no browser runs any. The crate is not optimised,
/// which is quick to compile; what the native tests built for this machine, such as naga, serves here too. On a busy machine the
/// browser's driver may not have its port in time, and no test runs: then it is started again.
fn wasm(toolchain: Toolchain, name: &str, times: &mut Times) -> Result<Tally> {
    let settings = manifest::read()?.test;
    let mut attempt = 1;
    loop {
        let mut portless = false;
        let mut see = |line: &str| portless |= line.contains("failed to bind port");
        let tally = count_and(
            &mut see,
            toolchain
                .command("cargo")
                .args(["test", "--package", "jerboa", "--target", "wasm32-unknown-unknown", "--test", "*"])
                .args(manifest::feature_flags(&settings.features))
                .envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")])
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner")
                .env("CHROMEDRIVER", &settings.driver)
                .current_dir(workspace::root()),
            name,
            times,
        )?;
        if !portless || tally.passed > 0 || attempt == ATTEMPTS {
            return Ok(tally);
        }
        attempt += 1;
        say("the browser's driver had no port: once more");
    }
}

/// node's runner over tests/page, against the package and the page once they are built, and over tests/memory.
fn page(building: Option<JoinHandle<Result<()>>>, name: &str, times: &mut Times) -> Result<Tally> {
    if let Some(building) = building {
        building.join().map_err(|_| anyhow!("building the package broke off"))??;
    }
    let mut node = command("node");
    // Two files at a time, each with a browser of its own: a software GPU compiles kernels on one core.
    node.args(["--test", "--test-reporter=spec", "--test-concurrency=2"]).current_dir(workspace::root());
    for folder in ["tests/page", "tests/memory"] {
        let files = files(&workspace::path(folder))?;
        node.args(files.iter().filter(|file| file.to_string_lossy().ends_with(".test.mjs")));
    }
    count(&mut node, name, times)
}

/// Runs a runner and counts; one that fails without a failed test (it did not compile, it crashed) counts as one.
fn count(runner: &mut Command, name: &str, times: &mut Times) -> Result<Tally> {
    count_and(&mut |_| {}, runner, name, times)
}

/// The same, with each line for somebody else too.
fn count_and(see: &mut dyn FnMut(&str), runner: &mut Command, name: &str, times: &mut Times) -> Result<Tally> {
    let mut tally = Tally::default();
    let succeeded = watch(runner, |line| {
        see(line);
        tally.read(line);
        times.read(name, line);
    })?;
    if !succeeded && tally.failed == 0 {
        eprintln!("error: the runner broke off before its summary");
        tally.failed = 1;
    }
    Ok(tally)
}
