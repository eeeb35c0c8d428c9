//! Runs tests as separate programs, one per core, slowest first. Tests that passed with unchanged
//! inputs are skipped.

use crate::command::print_heading;
use crate::passed_cache::{KERNELS, PassedCache};
use crate::test_counts::TestCounts;
use crate::test_inputs::TestInputs;
use anyhow::{Context, Result};
use std::collections::{BTreeSet, VecDeque};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Instant;

/// A test, or a file of tests.
pub struct Job {
    /// Its runner, a folder of records under target/xtask.
    pub runner: &'static str,
    /// Name within its runner.
    pub name: String,
    /// Command that runs the test; its exit status is the result.
    pub command: Command,
}

/// Result of a job.
pub struct JobResult {
    /// The job's runner.
    pub runner: &'static str,
    /// The job's name.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// Duration in seconds.
    pub seconds: f64,
    /// Standard output and stderr.
    pub output: String,
}

impl JobResult {
    /// Prints the result as a line; returns its counts.
    pub fn report(&self) -> TestCounts {
        let outcome = if self.passed { "ok" } else { "FAILED" };
        println!("test {} ... {outcome} <{:.3}s>", self.name, self.seconds);
        TestCounts {
            passed: self.passed.into(),
            failed: (!self.passed).into(),
        }
    }
}

/// The jobs of a runner that must run: those that have not passed with their current inputs, or
/// all.
pub fn pending_jobs(
    runner: &str,
    mut jobs: Vec<Job>,
    inputs: &TestInputs,
    all: bool,
) -> Result<Vec<Job>> {
    let passed = PassedCache::open(runner);
    passed.retain_only(
        &jobs
            .iter()
            .map(|job| job.name.as_str())
            .collect::<BTreeSet<_>>(),
    )?;
    let count = jobs.len();
    jobs.retain(|job| all || !passed.is_valid(&job.name, inputs));
    if jobs.len() < count {
        let left = count - jobs.len();
        print_heading(&format!(
            "{runner}: skipping {left} of {count} tests with unchanged inputs; use --all to run them"
        ));
    }
    Ok(jobs)
}

/// Runs jobs and passes each result to `each`. Starts none after `until`; prints and returns how
/// many that leaves.
pub fn run_jobs(
    jobs: Vec<Job>,
    inputs: &TestInputs,
    until: Option<Instant>,
    each: &mut dyn FnMut(&JobResult),
) -> Result<u64> {
    let count = jobs.len();
    let mut left = count;
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let queue = Mutex::new(JobQueue::new(jobs, cores, |job: &Job| {
        PassedCache::open(job.runner).seconds(&job.name)
    }));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for core in 0..cores {
            let sender = sender.clone();
            let queue = &queue;

            let next = move || {
                let in_time = until.is_none_or(|until| Instant::now() < until);
                in_time.then(|| queue.lock().ok()?.next_job(core)).flatten()
            };
            scope.spawn(move || {
                while let Some(job) = next() {
                    let name = job.name.clone();
                    if sender
                        .send(run_job(job, inputs).with_context(|| name))
                        .is_err()
                    {
                        break;
                    }
                }
            });
        }
        drop(sender);
        receiver.iter().try_for_each(|done| {
            left -= 1;
            done.map(|done| each(&done))
        })
    })?;
    if left > 0 {
        print_heading(&format!(
            "the time of --minutes is over, {left} of {count} jobs were not run"
        ));
    }
    Ok(left as u64)
}

/// Jobs that wait for a core.
struct JobQueue<T> {
    /// New jobs, a consecutive range per core. Neighbours use the same kernels, which two parallel
    /// jobs would both compile.
    ranges: Vec<VecDeque<T>>,
    /// Jobs with a known duration, longest first.
    known: VecDeque<T>,
}

impl<T> JobQueue<T> {
    fn new(jobs: Vec<T>, cores: usize, seconds: impl Fn(&T) -> Option<f64>) -> Self {
        let mut known = Vec::new();
        let mut new = VecDeque::new();

        for job in jobs {
            match seconds(&job) {
                Some(seconds) => known.push((seconds, job)),
                None => new.push_back(job),
            }
        }
        known.sort_by(|a, b| b.0.total_cmp(&a.0));
        let length = new.len().div_ceil(cores);
        let ranges = (0..cores)
            .map(|_| new.drain(..length.min(new.len())).collect())
            .collect();
        Self {
            ranges,
            known: known.into_iter().map(|(_, job)| job).collect(),
        }
    }

    /// The next job of a core. New jobs come first, since they may take long. A core without any
    /// steals the last job of the longest range.
    fn next_job(&mut self, core: usize) -> Option<T> {
        let own = self.ranges.get_mut(core).and_then(VecDeque::pop_front);

        own.or_else(|| {
            self.ranges
                .iter_mut()
                .max_by_key(|stretch| stretch.len())?
                .pop_back()
        })
        .or_else(|| self.known.pop_front())
    }
}

fn run_job(mut job: Job, inputs: &TestInputs) -> Result<JobResult> {
    let passed = PassedCache::open(job.runner);
    let kernels = passed.begin(&job.name)?;
    job.command.env(KERNELS, &kernels).stdin(Stdio::null());
    let start = Instant::now();
    let (mut status, mut output) = run_command(&mut job.command)?;
    if is_crash_on_exit(status, &output) {
        println!(
            "test {} passed, but its process ended with {status}: running it once more",
            job.name
        );
        (status, output) = run_command(&mut job.command)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    if status.success() {
        passed.end(&job.name, seconds, &kernels, inputs)?;
    }
    Ok(JobResult {
        runner: job.runner,
        name: job.name,
        passed: status.success(),
        seconds,
        output,
    })
}

/// Runs a command; returns its status, and its standard output and stderr.
fn run_command(command: &mut Command) -> Result<(ExitStatus, String)> {
    let (mut reader, writer) = std::io::pipe().context("a pipe")?;
    command
        .stdout(writer.try_clone().context("a pipe")?)
        .stderr(writer);
    let started = command.spawn();
    let mut child = started.with_context(|| format!("starting {:?}", command.get_program()))?;
    // The command holds the write end of the pipe; close it, or reading never ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut output).context("reading its output")?;
    let status = child.wait().context("waiting for it")?;
    Ok((status, String::from_utf8_lossy(&output).into_owned()))
}

/// Whether a signal ended the process of a Rust test after the test had passed. Mesa's llvmpipe
/// does so once in thousands of processes, with "double free or corruption".
fn is_crash_on_exit(status: ExitStatus, output: &str) -> bool {
    status.code().is_none() && output.contains("\ntest result: ok.")
}

#[cfg(test)]
mod tests {
    use super::{JobQueue, is_crash_on_exit, run_command};
    use std::process::Command;

    #[test]
    fn cores_start_in_separate_ranges_and_end_with_short_jobs() {
        let mut queue = JobQueue::new(vec![1, 12, 2, 3, 30, 4, 5], 2, |job: &u32| {
            (*job >= 10).then(|| f64::from(*job))
        });
        let taken = [0, 1, 0, 0, 1, 0, 1, 0].map(|core| queue.next_job(core));
        assert_eq!(
            taken,
            [1, 4, 2, 3, 5, 30, 12, 0].map(|job| (job > 0).then_some(job))
        );
    }

    #[cfg(unix)]
    #[test]
    fn only_a_signal_after_a_pass_is_a_crash_on_exit() {
        for (script, expected) in [
            (
                "echo; echo 'test result: ok. 1 passed'; kill -ABRT $$",
                true,
            ),
            ("echo; echo 'test result: FAILED'; kill -ABRT $$", false),
            ("kill -SEGV $$", false),
            ("echo; echo 'test result: ok. 1 passed'; exit 101", false),
            ("echo; echo 'test result: ok. 1 passed' >&2", false),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            for _ in 0..2 {
                let (status, output) = run_command(&mut command).expect("sh");
                assert_eq!(is_crash_on_exit(status, &output), expected, "{script}");
            }
        }
    }
}
