//! `cargo xtask TASK`: picks the task and reports its failure. Knows no task's steps.

mod bench;
mod command;
mod demo;
mod inputs;
mod lint;
mod manifest;
mod native;
mod npm;
mod package;
mod passed;
mod pool;
mod real;
mod setup;
mod sizes;
mod stamp;
mod tally;
mod test;
mod times;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "cargo xtask TASK

  demo [--port N]   set up what is missing, build, serve the demo page
  test [RUNNER..] [--all] [--list]
                    set up what is missing, run every test (or only: native, wasm, page) that has not passed since something that
                    it depends on has changed, or all; --list says which, and how long they took
  test real [MODEL..] [--all]
                    real published weights, natively and in Chromium: smollm2, minilm, whisper-tiny.en, or those that are named
                    (also whisper-base, gemma3); downloads 270 MB once
  build             build the npm package into dist/jerboa and the demo page into dist/www
  lint              rustfmt, clippy, tsc and the validation of every shader variant
  bench [--native] [--browser PATH] [NAME=VALUE ..]
                    time the engine in a browser on this machine's GPU, or natively; CONTRIBUTING.md has all options
  setup             set up what is missing, and nothing else
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let task = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let done = match task.as_str() {
        "demo" => demo::run(&rest),
        "test" => test::run(&rest),
        "build" => package::run_task(),
        "lint" => lint::run_all(),
        "bench" => bench::run_task(&rest),
        "setup" => setup::everything().map(|_| ()),
        "" | "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(anyhow::anyhow!("there is no task '{other}'\n\n{USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
