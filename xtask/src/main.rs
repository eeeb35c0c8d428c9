//! `cargo xtask TASK`: runs a task of the repository and reports its failure.

mod audit;
mod bench;
mod bindings;
mod command;
mod demo;
mod endurance;
mod lint;
mod manifest;
mod native;
mod npm;
mod package;
mod passed_cache;
mod pool;
mod real;
mod setup;
mod sizes;
mod stamp;
mod test;
mod test_counts;
mod test_inputs;
mod test_times;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "cargo xtask TASK

  demo [--port N]   install what is missing, build, serve the demo page
  test [RUNNER..] [--all] [--list] [--minutes=N]
                    install what is missing and run the tests (of: native, wasm, page, firefox, webkit); skips tests
                    that passed with unchanged inputs, unless --all is given; --list prints what would run, with
                    durations; --minutes=N starts no test after N minutes, and fails if any is left
  test real [MODEL..] [--all]
                    test published weights, natively and in Chromium: smollm2, smollm2-lora, minilm and whisper-tiny.en, or the
                    named models (also whisper-base, gemma3, smollm2-structured); downloads 270 MB once
  build             build the npm package (dist/jerboa), the demo page and its documentation (dist/www)
  lint              run rustfmt, clippy, tsc, cargo audit and npm audit, and validate every shader variant
  fuzz [TARGET..] [--seconds N]
                    mutate files for each parser, in a process with 512 MB, and messages to the worker; 1200 s each
  soak [--hours N]  load, run, abort and unload models at random in Chromium; fails on growth; 8 hours
  bench [--native] [--browser PATH] [NAME=VALUE ..]
                    benchmark on this machine's GPU, in a browser or natively; see CONTRIBUTING.md for all options
  setup             install what is missing
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
        "fuzz" => endurance::fuzz(&rest),
        "soak" => endurance::soak(&rest),
        "bench" => bench::run_task(&rest),
        "setup" => setup::everything().map(|_| ()),
        "" | "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(anyhow::anyhow!("unknown task '{other}'\n\n{USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
