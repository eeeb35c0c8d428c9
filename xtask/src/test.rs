//! `cargo xtask test`: native tests, tests in headless Chromium, page tests; the time by runner, the slowest tests, one closing line for all. Knows no test.

use crate::command::{command, say, watch};
use crate::inputs::Inputs;
use crate::passed::Passed;
use crate::pool::{self, Done, Job};
use crate::setup::{self, Toolchain};
use crate::stamp::files;
use crate::tally::{Tally, plain};
use crate::times::Times;
use crate::{manifest, native, package, real, workspace};
use anyhow::{Context, Result, anyhow, bail};
use std::fs::File;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Instant;

const RUNNERS: [&str; 3] = ["native", "wasm", "page"];
/// So many of the slowest tests are named at the end.
const SLOWEST: usize = 10;
/// How often the wasm runner is started until a test runs.
const ATTEMPTS: usize = 3;

/// Sets up, runs the runners that are named, or all of them. What passed and depends on nothing that has changed since is left
/// out, unless `--all` is among the arguments; `--list` says what would run.
pub fn run(args: &[String]) -> Result<()> {
    let (options, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| arg.starts_with("--"));
    if let Some((&"real", models)) = names.split_first() {
        let _alone = alone()?;
        return real::run_models(models, options.contains(&"--all"));
    }
    if let Some(unknown) = names.iter().find(|name| !RUNNERS.contains(name)) {
        bail!("there is no runner '{unknown}': {}", RUNNERS.join(", "));
    }
    if let Some(unknown) = options.iter().find(|option| !["--all", "--list"].contains(option)) {
        bail!("there is no option '{unknown}': --all, --list");
    }
    let toolchain = setup::everything()?;
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    let inputs = Inputs::read(toolchain)?;
    if options.contains(&"--list") {
        return RUNNERS.iter().filter(|name| wanted(name)).try_for_each(|name| list(name, &inputs));
    }
    let _alone = alone()?;
    let all = options.contains(&"--all");
    let mut pages = if wanted("page") { pool::due("page", page_jobs()?, &inputs, all)? } else { Vec::new() };
    // The package, and behind it what runs in the browser's tests, are built beside the other runners: for minutes these compilers keep
    // one core busy and leave the rest idle.
    let with_wasm = wanted("wasm");
    let mut building = (!pages.is_empty()).then(|| {
        thread::spawn(move || {
            package::build(toolchain)?;
            if with_wasm {
                // What is wrong with it, its own run says.
                _ = wasm_command(toolchain)?.arg("--no-run").stdin(Stdio::null()).status();
            }
            Ok(())
        })
    });
    let mut total = Tally::default();
    let mut times = Times::default();
    let mut table = Vec::new();
    for name in RUNNERS {
        if !wanted(name) {
            continue;
        }
        say(&format!("{name} tests"));
        let start = Instant::now();
        let tally = match name {
            "native" => native_tests(&inputs, all, &mut times),
            "wasm" => wasm(toolchain),
            _ => page(building.take(), std::mem::take(&mut pages), &inputs, &mut times),
        };
        // A runner that cannot start is a failure among others: the rest still runs, and the closing line tells.
        let tally = tally.unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            Tally { passed: 0, failed: 1 }
        });
        let seconds = start.elapsed().as_secs();
        table.push(format!("{seconds:7} s  {name}: {} passed, {} failed", tally.passed, tally.failed));
        total = total.and(tally);
    }
    if !inputs.are(&Inputs::read(toolchain)?) {
        say("files have changed meanwhile: nobody knows what the tests have seen, and the next run has all of them");
        RUNNERS.iter().try_for_each(|name| Passed::of(name).forget())?;
    }
    println!(
        "\nthe slowest tests:\n{}\n\nby runner, building included:\n{}",
        times.slowest(SLOWEST).join("\n"),
        table.join("\n")
    );
    println!("\n{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 {
        bail!("{} tests failed", total.failed);
    }
    Ok(())
}

/// Waits until no other run uses this target/: two would take each other's records away. It is the only one while the file is open.
fn alone() -> Result<File> {
    let folder = workspace::path("target/xtask");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join("running");
    let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
    if file.try_lock().is_err() {
        say("waiting for another `cargo xtask test` of this folder");
        file.lock().with_context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
}

/// Says which of the tests that passed would run again, and how long they took.
fn list(runner: &str, inputs: &Inputs) -> Result<()> {
    let known = Passed::of(runner).all(inputs)?;
    let mut changed: Vec<_> = known.iter().filter(|(_, _, holds)| !holds).collect();
    changed.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (name, seconds, _) in &changed {
        println!("{seconds:7.1} s  {runner}: {name}");
    }
    let sum = |of: &dyn Fn(bool) -> bool| known.iter().filter(|test| of(test.2)).fold(0.0, |sum, test| sum + test.1);
    let (some, all) = (sum(&|holds| !holds), sum(&|_| true));
    println!(
        "{runner}: {} of the {} that passed, {some:.0} of {all:.0} s of a core; and what is new or failed",
        changed.len(),
        known.len()
    );
    Ok(())
}

/// Each test is a process of its own; what one wrote is shown where it failed.
fn native_tests(inputs: &Inputs, all: bool, times: &mut Times) -> Result<Tally> {
    let jobs = pool::due("native", native::jobs()?, inputs, all)?;
    let mut tally = Tally::default();
    pool::run("native", jobs, inputs, &mut |done| {
        if !done.passed {
            println!("{}", done.output);
        }
        println!("test {} ... {} <{:.3}s>", done.name, if done.passed { "ok" } else { "FAILED" }, done.seconds);
        tally = tally.and(Tally { passed: done.passed.into(), failed: (!done.passed).into() });
        times.add("native", &done.name, done.seconds);
    })?;
    Ok(tally)
}

/// In headless Chromium, on its software adapter: crate/webdriver.json holds the flags. On a busy machine the browser's driver may not
/// have its port in time, and no test runs: then it is started again.
fn wasm(toolchain: Toolchain) -> Result<Tally> {
    let mut attempt = 1;
    loop {
        let (mut tally, mut portless) = (Tally::default(), false);
        let succeeded = watch(&mut wasm_command(toolchain)?, |line| {
            portless |= line.contains("failed to bind port");
            tally.read(line);
        })?;
        tally.failed += u64::from(!succeeded && tally.failed == 0);
        if !portless || tally.passed > 0 || attempt == ATTEMPTS {
            return Ok(tally);
        }
        attempt += 1;
        say("the browser's driver had no port: once more");
    }
}

/// What only the engine in a browser stands on, and is long to compile optimised. What stands on this machine as well, such as what
/// naga needs, is not among them: it would be built once more.
const UNOPTIMISED: [&str; 2] = ["minijinja", "minijinja-contrib"];

/// Builds and runs crate/tests and what it needs, no more: wasm-pack would compile the unit tests and the examples for wasm32 too, of
/// which no browser runs any. The crate is not optimised, which is quick to compile; what the native tests built for this machine, such
/// as naga, serves here too.
fn wasm_command(toolchain: Toolchain) -> Result<Command> {
    let settings = manifest::read()?.test;
    let mut cargo = toolchain.command("cargo");
    cargo
        .args(UNOPTIMISED.map(|name| format!("--config=profile.dev.package.{name}.opt-level=0")))
        .args(["test", "--package", "jerboa", "--target", "wasm32-unknown-unknown", "--test", "*"])
        .args(manifest::feature_flags(&settings.features))
        .envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")])
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner")
        .env("CHROMEDRIVER", &settings.driver)
        .current_dir(workspace::root());
    Ok(cargo)
}

/// node's runner over each file of tests/page and tests/memory.
fn page_jobs() -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for folder in ["page", "memory"] {
        for file in files(&workspace::path("tests").join(folder))? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(name) = name.strip_suffix(".test.mjs") {
                let mut node = command("node");
                node.args(["--test", "--test-reporter=spec"]).arg(&file).current_dir(workspace::root());
                jobs.push(Job { name: format!("{folder}::{name}"), command: node });
            }
        }
    }
    Ok(jobs)
}

/// Page tests, against the package and the page once they are built. As many files at a time as there are cores, each with a
/// browser of its own: a software GPU compiles kernels on one core.
fn page(building: Option<JoinHandle<Result<()>>>, jobs: Vec<Job>, inputs: &Inputs, times: &mut Times) -> Result<Tally> {
    if let Some(building) = building {
        building.join().map_err(|_| anyhow!("building the package broke off"))??;
    }
    let mut tally = Tally::default();
    pool::run("page", jobs, inputs, &mut |done| tally = tally.and(read(done, times)))?;
    Ok(tally)
}

/// Shows what node's runner says of a file, and counts. One that fails without a failed test counts as one.
fn read(Done { name, passed, seconds, output }: &Done, times: &mut Times) -> Tally {
    let mut tally = Tally::default();
    println!("{name} <{seconds:.1}s>");
    for line in output.lines() {
        tally.read(line);
        times.read("page", line);
        if !passed || !plain(line).starts_with('ℹ') {
            println!("{line}");
        }
    }
    tally.failed += u64::from(!passed && tally.failed == 0);
    tally
}
