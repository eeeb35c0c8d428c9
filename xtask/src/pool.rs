//! Runs tests that are programs of their own, as many at a time as there are cores, the slowest first; those that passed and whose
//! inputs have not changed since are left out. Knows no runner's output.

use crate::command::say;
use crate::inputs::Inputs;
use crate::passed::{KERNELS, Passed};
use anyhow::{Context, Result};
use std::collections::{BTreeSet, VecDeque};
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Instant;

/// A test, or a file of tests.
pub struct Job {
    /// Its name among those of its runner.
    pub name: String,
    /// What runs it, and fails when it does.
    pub command: Command,
}

/// What became of a job.
pub struct Done {
    /// The job's name.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// How long it took.
    pub seconds: f64,
    /// What it wrote.
    pub output: String,
}

/// Those jobs of a runner that have not passed as they are, or all.
pub fn due(runner: &str, mut jobs: Vec<Job>, inputs: &Inputs, all: bool) -> Result<Vec<Job>> {
    let passed = Passed::of(runner);
    passed.keep(&jobs.iter().map(|job| job.name.as_str()).collect::<BTreeSet<_>>())?;
    let count = jobs.len();
    jobs.retain(|job| all || !passed.holds(&job.name, inputs));
    if jobs.len() < count {
        let left = count - jobs.len();
        say(&format!("{runner}: {left} of {count} are as they were when they last passed; with --all they run, too"));
    }
    Ok(jobs)
}

/// Runs jobs of a runner and hands on what became of each.
pub fn run(runner: &str, mut jobs: Vec<Job>, inputs: &Inputs, each: &mut dyn FnMut(&Done)) -> Result<()> {
    let passed = Passed::of(runner);
    // A new one may take long.
    let seconds = |job: &Job| passed.seconds(&job.name).unwrap_or(f64::MAX);
    jobs.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    let queue = Mutex::new(VecDeque::from(jobs));
    let next = || queue.lock().ok()?.pop_front();
    let (sender, receiver) = mpsc::channel();
    let cores = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            let (sender, passed) = (sender.clone(), &passed);
            scope.spawn(move || {
                while let Some(job) = next() {
                    let name = job.name.clone();
                    if sender.send(one(job, passed, inputs).with_context(|| name)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        receiver.iter().try_for_each(|done| done.map(|done| each(&done)))
    })
}

fn one(mut job: Job, passed: &Passed, inputs: &Inputs) -> Result<Done> {
    let kernels = passed.begin(&job.name)?;
    let (mut reader, writer) = std::io::pipe().context("a pipe")?;
    job.command.env(KERNELS, &kernels).stdin(Stdio::null());
    job.command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
    let start = Instant::now();
    let mut child = job.command.spawn().with_context(|| format!("starting {:?}", job.command.get_program()))?;
    // The command holds the writing end: what is read would have no end.
    drop(job.command);
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut output).context("reading its output")?;
    let succeeded = child.wait().context("waiting for it")?.success();
    let seconds = start.elapsed().as_secs_f64();
    if succeeded {
        passed.end(&job.name, seconds, &kernels, inputs)?;
    }
    let output = String::from_utf8_lossy(&output).into_owned();
    Ok(Done { name: job.name, passed: succeeded, seconds, output })
}
