//! `cargo xtask test`: native tests, browser tests and page tests. Prints time per runner, the
//! slowest tests, and a summary line.

use crate::command::{command, print_heading};
use crate::passed_cache::PassedCache;
use crate::pool::{self, Job, JobResult};
use crate::setup::{self, Toolchain};
use crate::stamp::files;
use crate::test_counts::{TestCounts, strip_ansi};
use crate::test_inputs::TestInputs;
use crate::test_times::TestTimes;
use crate::{manifest, native, package, real, workspace};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::{self, JoinHandle};
use std::time::Instant;

const RUNNERS: [&str; 5] = ["native", "wasm", "page", "firefox", "webkit"];
/// Runners of files for node, with their folders under tests/.
const NODE_RUNNERS: [(&str, &[&str]); 4] = [
    ("wasm", &["wasm"]),
    ("page", &["page", "memory"]),
    ("firefox", &["firefox"]),
    ("webkit", &["webkit"]),
];
/// Variable with the compiled tests of crate/tests.
const ENGINE_TESTS: &str = "JERBOA_ENGINE_TESTS";
/// Number of slowest tests in the summary.
const MAX_SLOWEST: usize = 10;

/// Sets up and runs the named runners, or all. Tests that passed with unchanged inputs are skipped,
/// unless `--all` is given. `--list` prints what would run.
pub fn run(args: &[String]) -> Result<()> {
    let (options, names): (Vec<&str>, Vec<&str>) = args
        .iter()
        .map(String::as_str)
        .partition(|arg| arg.starts_with("--"));
    if let Some((&"real", models)) = names.split_first() {
        let _alone = lock_target()?;
        return real::run_models(models, options.contains(&"--all"));
    }
    if let Some(unknown) = names.iter().find(|name| !RUNNERS.contains(name)) {
        bail!(
            "unknown runner '{unknown}'. Use one of: {}.",
            RUNNERS.join(", ")
        );
    }
    if let Some(unknown) = options
        .iter()
        .find(|option| !["--all", "--list"].contains(option))
    {
        bail!("unknown option '{unknown}'. Use --all or --list.");
    }
    let toolchain = setup::everything()?;
    let wanted = |name: &str| match names.is_empty() {
        // WebKitGTK exists on Linux only.
        true => name != "webkit" || cfg!(target_os = "linux"),
        false => names.contains(&name),
    };
    let inputs = TestInputs::read(toolchain)?;
    if options.contains(&"--list") {
        return RUNNERS
            .iter()
            .filter(|name| wanted(name))
            .try_for_each(|name| list(name, &inputs));
    }
    let _alone = lock_target()?;
    let all = options.contains(&"--all");
    let mut pages = BTreeMap::new();
    for (name, folders) in NODE_RUNNERS {
        if wanted(name) {
            setup::browser(name)?;
            let jobs = pool::pending_jobs(name, node_jobs(folders)?, &inputs, all)?;
            pages.insert(name, jobs);
        }
    }
    // Build the package, then the browser tests, in parallel with the other runners: these
    // compilers use one core for minutes.
    let with_package = pages.values().any(|jobs| !jobs.is_empty());
    let with_wasm = wanted("wasm") || wanted("firefox") || wanted("webkit");
    let mut building = with_package.then(|| {
        thread::spawn(move || {
            package::build(toolchain)?;
            // Errors are reported by the test run itself.
            Ok(with_wasm
                .then(|| build_engine_tests(toolchain).ok())
                .flatten())
        })
    });
    let mut built = None;
    let mut total = TestCounts::default();
    let mut times = TestTimes::default();
    let mut table = Vec::new();
    for name in RUNNERS {
        if !wanted(name) {
            continue;
        }
        print_heading(&format!("{name} tests"));
        let start = Instant::now();
        let tally = match name {
            "native" => native_tests(&inputs, all, &mut times),
            _ => wait_for(&mut building, &mut built).and_then(|()| {
                let jobs = pages.remove(name).unwrap_or_default();
                node_tests(name, jobs, built.as_deref(), &inputs, &mut times)
            }),
        };
        // A runner that cannot start counts as one failure; the other runners still run.
        let tally = tally.unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            TestCounts {
                passed: 0,
                failed: 1,
            }
        });
        let seconds = start.elapsed().as_secs();
        table.push(format!(
            "{seconds:7} s  {name}: {} passed, {} failed",
            tally.passed, tally.failed
        ));
        total = total.plus(tally);
    }
    if !inputs.equals(&TestInputs::read(toolchain)?) {
        print_heading(
            "files changed during the run, so its results are not recorded. The next run repeats all tests.",
        );
        RUNNERS
            .iter()
            .try_for_each(|name| PassedCache::open(name).clear())?;
    }
    println!(
        "\nthe slowest tests:\n{}\n\nby runner, building included:\n{}",
        times.slowest(MAX_SLOWEST).join("\n"),
        table.join("\n")
    );
    println!("\n{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 {
        bail!("{} tests failed", total.failed);
    }
    Ok(())
}

/// Locks target/ against other runs, which would overwrite the records. The lock lasts while the
/// file is open.
fn lock_target() -> Result<File> {
    let folder = workspace::path("target/xtask");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join("running");
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    if file.try_lock().is_err() {
        print_heading("waiting for another `cargo xtask test` in this folder");
        file.lock()
            .with_context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
}

/// Lists passed tests whose inputs changed, with their durations.
fn list(runner: &str, inputs: &TestInputs) -> Result<()> {
    let known = PassedCache::open(runner).all(inputs)?;
    let mut changed: Vec<_> = known.iter().filter(|(_, _, holds)| !holds).collect();
    changed.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (name, seconds, _) in &changed {
        println!("{seconds:7.1} s  {runner}: {name}");
    }
    let sum = |of: &dyn Fn(bool) -> bool| {
        known
            .iter()
            .filter(|test| of(test.2))
            .fold(0.0, |sum, test| sum + test.1)
    };
    let some = sum(&|holds| !holds);
    let all = sum(&|_| true);

    println!(
        "{runner}: {} of {} passed tests would run again ({some:.0} of {all:.0} core seconds), plus new and failed ones",
        changed.len(),
        known.len()
    );
    Ok(())
}

/// Runs each native test as a process of its own; prints the output of failed ones.
fn native_tests(inputs: &TestInputs, all: bool, times: &mut TestTimes) -> Result<TestCounts> {
    let jobs = pool::pending_jobs("native", native::jobs()?, inputs, all)?;
    let mut tally = TestCounts::default();
    pool::run_jobs("native", jobs, inputs, &mut |done| {
        if !done.passed {
            println!("{}", done.output);
        }
        tally = tally.plus(done.report());
        times.add("native", &done.name, done.seconds);
    })?;
    Ok(tally)
}

/// Builds crate/tests and its dependencies only: wasm-pack would also compile unit tests and
/// examples for wasm32, which no browser runs. The crate is not optimized, because that compiles
/// faster. Host builds of the native tests, such as naga's, are reused. Returns the WebAssembly
/// file.
fn build_engine_tests(toolchain: Toolchain) -> Result<PathBuf> {
    let settings = manifest::read()?.test;
    let mut cargo = toolchain.command("cargo");
    cargo.args(["test", "--package", "jerboa", "--test", "*", "--no-run"]);
    cargo.args(["--target", "wasm32-unknown-unknown"]);
    let built = cargo
        .args(["--message-format=json-render-diagnostics"])
        .args(manifest::feature_flags(&settings.features))
        .envs([
            ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
            ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ])
        .current_dir(workspace::root())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    let programs = native::executables(&String::from_utf8_lossy(&built.stdout));
    programs
        .into_iter()
        .find(|program| program.extension().is_some_and(|end| end == "wasm"))
        .context("building crate/tests for wasm32 failed")
}

/// One job of node's test runner per test file of these folders of tests/.
fn node_jobs(folders: &[&str]) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for folder in folders {
        for file in files(&workspace::path("tests").join(folder))? {
            let name = file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if let Some(name) = name.strip_suffix(".test.mjs") {
                let mut node = command("node");
                node.args(["--test", "--test-reporter=spec"])
                    .arg(&file)
                    .current_dir(workspace::root());
                jobs.push(Job {
                    name: format!("{folder}::{name}"),
                    command: node,
                });
            }
        }
    }
    Ok(jobs)
}

/// A thread that builds the package, and the engine's tests for a browser if one runs them.
type Building = JoinHandle<Result<Option<PathBuf>>>;

/// Waits until the package and the page are built, once.
fn wait_for(building: &mut Option<Building>, built: &mut Option<PathBuf>) -> Result<()> {
    if let Some(building) = building.take() {
        *built = building
            .join()
            .map_err(|_| anyhow!("the thread that builds the package panicked"))??;
    }
    Ok(())
}

/// Runs the tests of a browser. Runs one file per core, each with its own browser, because a
/// software GPU compiles kernels on one core.
fn node_tests(
    runner: &str,
    mut jobs: Vec<Job>,
    engine_tests: Option<&Path>,
    inputs: &TestInputs,
    times: &mut TestTimes,
) -> Result<TestCounts> {
    for job in &mut jobs {
        job.command
            .envs(engine_tests.map(|program| (ENGINE_TESTS, program)));
    }
    let mut tally = TestCounts::default();
    pool::run_jobs(runner, jobs, inputs, &mut |done| {
        tally = tally.plus(read(runner, done, times));
    })?;
    Ok(tally)
}

/// Prints the output of node's runner for a file and counts its tests. A file that fails without a
/// failed test counts as one failure.
fn read(
    runner: &str,
    JobResult {
        name,
        passed,
        seconds,
        output,
    }: &JobResult,
    times: &mut TestTimes,
) -> TestCounts {
    let mut tally = TestCounts::default();
    println!("{name} <{seconds:.1}s>");
    for line in output.lines() {
        tally.read(line);
        times.read(runner, line);
        if !passed || !strip_ansi(line).starts_with('ℹ') {
            println!("{line}");
        }
    }
    tally.failed += u64::from(!passed && tally.failed == 0);
    tally
}
