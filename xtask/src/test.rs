//! `cargo xtask test`: native tests, browser tests and page tests. Prints time per runner, the
//! slowest tests, and a summary line.

use crate::bindings::{self, Purpose};
use crate::command::{command, print_heading};
use crate::passed_cache::PassedCache;
use crate::pool::{self, Job, JobResult};
use crate::setup::{self, Toolchain};
use crate::stamp::files;
use crate::test_counts::{TestCounts, strip_ansi};
use crate::test_inputs::TestInputs;
use crate::test_times::TestTimes;
use crate::{native, package, real, workspace};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const RUNNERS: [&str; 5] = ["native", "wasm", "page", "firefox", "webkit"];
/// Runners of files for node, with their folders under tests/.
const NODE_RUNNERS: [(&str, &[&str]); 4] = [
    ("wasm", &["wasm"]),
    ("page", &["page", "memory"]),
    ("firefox", &["firefox"]),
    ("webkit", &["webkit"]),
];
/// Variable with the folder of the compiled tests of crate/tests.
const ENGINE_TESTS: &str = "JERBOA_ENGINE_TESTS";
/// Number of slowest tests in the summary.
const MAX_SLOWEST: usize = 10;

/// Sets up and runs the named runners, or all. Tests that passed with unchanged inputs are skipped,
/// unless `--all` is given. `--list` prints what would run. `--minutes=N` starts no test after
/// that time and fails if any is left.
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
    let began = Instant::now();
    let minutes = options
        .iter()
        .find_map(|option| option.strip_prefix("--minutes="));
    let minutes = minutes.map(str::parse::<u64>).transpose();
    let minutes = minutes.context("--minutes must be a whole number")?;
    let until = minutes.map(|minutes| began + Duration::from_secs(60 * minutes));
    if let Some(unknown) = options
        .iter()
        .find(|option| !["--all", "--list"].contains(option) && !option.starts_with("--minutes="))
    {
        bail!("unknown option '{unknown}'. Use --all, --list or --minutes=N.");
    }
    let wanted = |name: &str| match names.is_empty() {
        // WebKitGTK exists on Linux only.
        true => name != "webkit" || cfg!(target_os = "linux"),
        false => names.contains(&name),
    };
    if options.contains(&"--list") {
        let inputs = TestInputs::read(setup::everything()?)?;
        return RUNNERS
            .iter()
            .filter(|name| wanted(name))
            .try_for_each(|name| list(name, &inputs));
    }
    let _alone = lock_target()?;
    // Compiles while what is missing is downloaded and unpacked.
    let compiling = wanted("native").then(|| thread::spawn(native::jobs));
    let toolchain = setup::everything()?;
    let inputs = TestInputs::read(toolchain)?;
    let all = options.contains(&"--all");
    let mut node = Vec::new();
    for (name, folders) in NODE_RUNNERS {
        if wanted(name) {
            setup::browser(name)?;
            let jobs = node_jobs(name, folders)?;
            node.extend(pool::pending_jobs(name, jobs, &inputs, all)?);
        }
    }
    // Build the package, then the browser tests, in parallel with the other runners: these
    // compilers use one core for minutes.
    let with_wasm = wanted("wasm") || wanted("firefox") || wanted("webkit");
    let building = (!node.is_empty()).then(|| {
        thread::spawn(move || {
            package::build(toolchain)?;
            // Errors are reported by the test run itself.
            Ok(with_wasm
                .then(|| build_engine_tests(toolchain).ok())
                .flatten())
        })
    });
    let mut summary = Summary::default();
    let heading =
        |tests: &str| print_heading(&format!("{tests} (at {} s)", began.elapsed().as_secs()));
    // A group that cannot start counts as one failure; the other still runs.
    if let Some(compiling) = compiling {
        heading("native tests");
        let done = join(compiling, "compiles the native tests")
            .and_then(|jobs| native_tests(jobs, &inputs, all, until, &mut summary));
        summary.complete("native", done);
    }
    if let Some(building) = building {
        heading("tests in browsers and Node");
        let done = join(building, "builds the package")
            .and_then(|built| node_tests(node, built.as_deref(), &inputs, until, &mut summary));
        summary.complete("browsers", done);
    }
    if !inputs.equals(&TestInputs::read(toolchain)?) {
        print_heading(
            "files changed during the run, so its results are not recorded. The next run repeats all tests.",
        );
        RUNNERS
            .iter()
            .try_for_each(|name| PassedCache::open(name).clear())?;
    }
    summary.print();
    let failed = summary.total().failed;
    if failed > 0 {
        bail!("{failed} tests failed");
    }
    Ok(())
}

/// Results of a run.
#[derive(Default)]
struct Summary {
    /// Counts, and seconds of all jobs, by runner.
    runners: BTreeMap<&'static str, (TestCounts, f64)>,
    times: TestTimes,
}

impl Summary {
    /// Adds a job's counts.
    fn add(&mut self, done: &JobResult, counts: TestCounts) {
        let (tally, seconds) = self.runners.entry(done.runner).or_default();
        *tally = tally.plus(counts);
        *seconds += done.seconds;
    }

    /// Counts jobs that were left as failures, and an error as one.
    fn complete(&mut self, group: &'static str, left: Result<u64>) {
        let left = left.unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            1
        });
        if left > 0 {
            self.runners.entry(group).or_default().0.failed += left;
        }
    }

    fn total(&self) -> TestCounts {
        self.runners
            .values()
            .fold(TestCounts::default(), |total, (tally, _)| {
                total.plus(*tally)
            })
    }

    fn print(&self) {
        let slowest = self.times.slowest(MAX_SLOWEST).join("\n");
        println!("\nthe slowest tests:\n{slowest}\n\nby runner, seconds of all its jobs:");
        for (name, (tally, seconds)) in &self.runners {
            let TestCounts { passed, failed } = tally;
            println!("{seconds:7.0} s  {name}: {passed} passed, {failed} failed");
        }
        let TestCounts { passed, failed } = self.total();
        println!("\n{passed} passed, {failed} failed");
    }
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

/// Runs each native test as a process of its own; prints the output of failed ones. Returns the
/// number of tests left when the time was over.
fn native_tests(
    jobs: Vec<Job>,
    inputs: &TestInputs,
    all: bool,
    until: Option<Instant>,
    summary: &mut Summary,
) -> Result<u64> {
    let jobs = pool::pending_jobs("native", jobs, inputs, all)?;
    pool::run_jobs(jobs, inputs, until, &mut |done| {
        if !done.passed {
            println!("{}", done.output);
        }
        summary.add(done, done.report());
        summary.times.add(done.runner, &done.name, done.seconds);
    })
}

/// Builds crate/tests and its dependencies only: unit tests and examples run in no browser. The
/// crate is not optimized, because that compiles faster. Host builds of the native tests, such as
/// naga's, are reused. Returns the folder of tests.js and its module.
fn build_engine_tests(toolchain: Toolchain) -> Result<PathBuf> {
    let mut cargo = toolchain.command("cargo");
    cargo.args(["test", "--package", "jerboa", "--test", "*", "--no-run"]);
    cargo.args(["--target", setup::TARGET]);
    let built = cargo
        .args(["--message-format=json-render-diagnostics"])
        .args(package::only_features(package::PAGE_FEATURES))
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
    let module = programs
        .into_iter()
        .find(|program| program.extension().is_some_and(|end| end == "wasm"))
        .context("building crate/tests for wasm32 failed")?;
    let folder = workspace::path("target/xtask/engine-tests");
    bindings::write(&module, "tests", &folder, &Purpose::Tests)?;
    Ok(folder)
}

/// One job of node's test runner per test file of these folders of tests/.
fn node_jobs(runner: &'static str, folders: &[&str]) -> Result<Vec<Job>> {
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
                    runner,
                    name: format!("{folder}::{name}"),
                    command: node,
                });
            }
        }
    }
    Ok(jobs)
}

/// Waits for a thread that does `what`.
fn join<T>(thread: JoinHandle<Result<T>>, what: &str) -> Result<T> {
    thread
        .join()
        .map_err(|_| anyhow!("the thread that {what} panicked"))?
}

/// Runs files of tests, one per core, each with its own browser, because a software GPU compiles
/// kernels on one core. Returns the number of files left when the time was over.
fn node_tests(
    mut jobs: Vec<Job>,
    engine_tests: Option<&Path>,
    inputs: &TestInputs,
    until: Option<Instant>,
    summary: &mut Summary,
) -> Result<u64> {
    for job in &mut jobs {
        job.command
            .envs(engine_tests.map(|program| (ENGINE_TESTS, program)));
    }
    pool::run_jobs(jobs, inputs, until, &mut |done| {
        let counts = read(done, &mut summary.times);
        summary.add(done, counts);
    })
}

/// Prints the output of node's runner for a file and counts its tests. A file that fails without a
/// failed test counts as one failure.
fn read(
    JobResult {
        runner,
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
