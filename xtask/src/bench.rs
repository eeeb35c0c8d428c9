//! `cargo xtask bench`: starts the bench page in a browser, or the native benchmark, and stores the
//! results.

use crate::command::{command, print_heading, run, run_step};
use crate::{manifest, npm, package, setup, workspace};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Parsed command line, serialized for drive.mjs.
#[derive(Default, Serialize)]
struct BenchRequest {
    #[serde(skip)]
    native: bool,
    /// Path of the browser; the first one found by default.
    browser: Option<String>,
    /// Additional browser flags.
    flags: Vec<String>,
    /// Whether to show the browser window.
    window: bool,
    /// Folder or URL of a checkpoint, instead of a generated one.
    model: Option<String>,
    out: PathBuf,
    /// Settings, named as in the page's URL.
    settings: BTreeMap<String, String>,
}

impl BenchRequest {
    fn parse(args: &[String]) -> Result<Self> {
        let mut request = Self {
            out: workspace::path("target/bench"),
            ..Self::default()
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .cloned()
                    .with_context(|| format!("{arg} requires a value"))
            };
            match arg.as_str() {
                "--native" => request.native = true,
                "--window" => request.window = true,
                "--browser" => request.browser = Some(value()?),
                "--browser-flag" => request.flags.push(value()?),
                "--model" => request.model = Some(absolute(value()?)?),
                "--out" => request.out = absolute(value()?)?.into(),
                setting => match setting.split_once('=') {
                    Some((name, value)) if !name.starts_with('-') => {
                        request.settings.insert(name.into(), value.into());
                    }
                    _ => {
                        bail!(
                            "unknown option '{setting}' of `cargo xtask bench`. See CONTRIBUTING.md for the options."
                        )
                    }
                },
            }
        }
        Ok(request)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }
}

/// Makes a folder's path absolute, because programs run in other directories. URLs stay unchanged.
fn absolute(name: String) -> Result<String> {
    if name.contains("://") {
        return Ok(name);
    }
    let path =
        std::path::absolute(&name).with_context(|| format!("'{name}' is not a valid path"))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Builds what is missing, runs the benchmark, and writes JSON and tables.
pub fn run_task(args: &[String]) -> Result<()> {
    let request = BenchRequest::parse(args)?;
    if request.native {
        return run_native(&request);
    }
    let toolchain = setup::for_build()?;
    package::build(toolchain)?;
    let asked = serde_json::to_string(&request)?;
    run(command("node")
        .arg(script("drive.mjs"))
        .arg(asked)
        .current_dir(workspace::root()))
}

fn script(name: &str) -> PathBuf {
    workspace::path("xtask/bench").join(name)
}

/// Runs the native runner's `bench` for each shape and writes the same tables.
fn run_native(request: &BenchRequest) -> Result<()> {
    npm::install()?;
    let settings = manifest::read()?.bench;
    let runner = |action: &str| -> Command {
        let mut cargo = command("cargo");
        cargo.args([
            action,
            "--package",
            "jerboa",
            "--example",
            "run",
            "--profile",
            &settings.profile,
        ]);
        cargo
            .args(manifest::feature_flags(&settings.features))
            .current_dir(workspace::root());
        cargo
    };
    run_step(
        "building the optimized native runner (several minutes the first time)",
        || run(&mut runner("build")),
    )?;
    fs::create_dir_all(&request.out)
        .with_context(|| format!("creating {}", request.out.display()))?;
    let shapes = request.setting("shape").unwrap_or("qwen3-0.6b");
    let shapes: Vec<&str> = if request.model.is_some() {
        vec!["model"]
    } else {
        shapes.split(',').collect()
    };
    let mut files = Vec::new();
    for shape in shapes {
        print_heading(shape);
        let mut runner = runner("run");
        runner.args(["--quiet", "--", "bench"]);
        match &request.model {
            Some(folder) => runner.args(["--model", folder]),
            None => runner.args(["--shape", shape]),
        };
        runner.args(native_flags(&request.settings)?);
        files.push(measure(
            &mut runner,
            &request.out.join(format!("native-{shape}.json")),
        )?);
    }
    let text = stdout_of(
        command("node")
            .arg(script("table.mjs"))
            .args(&files)
            .current_dir(workspace::root()),
    )?;
    fs::write(request.out.join("bench.md"), &text).context("writing bench.md")?;
    println!(
        "\n{text}\nResults in {}: JSON files and bench.md.",
        request.out.display()
    );
    Ok(())
}

/// Runs the runner and stores the JSON that it prints.
fn measure(runner: &mut Command, file: &Path) -> Result<PathBuf> {
    fs::write(file, stdout_of(runner)?).with_context(|| format!("writing {}", file.display()))?;
    Ok(file.to_path_buf())
}

/// The standard output of a program; its stderr is inherited.
fn stdout_of(program: &mut Command) -> Result<String> {
    let name = program.get_program().to_string_lossy().into_owned();
    let output = program
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {name}"))?;
    if !output.status.success() {
        bail!("{name} exited with {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("reading the output of {name}"))
}

/// Converts the page's settings to the runner's flags.
fn native_flags(settings: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let mut flags = Vec::new();
    let mut features = Vec::new();
    for (name, value) in settings {
        match (name.as_str(), value.as_str()) {
            ("shape", _) => {}
            ("profile", "0") => flags.push("--no-profile".to_owned()),
            ("settled", "1") => flags.push("--settled".to_owned()),
            ("f16" | "subgroups" | "matrix", "0") => features.push(format!("no-{name}")),
            ("f16" | "subgroups" | "matrix" | "settled" | "profile", _) => {}
            ("embeddingWeights", value) => {
                flags.extend(["--embedding-weights".to_owned(), value.to_owned()]);
            }
            (
                "stored" | "weights" | "kv" | "tune" | "prompt" | "gen" | "reps" | "warm"
                | "sequences",
                value,
            ) => {
                flags.extend([format!("--{name}"), value.to_owned()]);
            }
            _ => bail!("the native runner does not support the setting '{name}'"),
        }
    }
    if !features.is_empty() {
        flags.extend(["--features".to_owned(), features.join(",")]);
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(args: &[&str]) -> Result<BenchRequest> {
        BenchRequest::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_and_settings_are_distinguished() {
        let asked = [
            "--browser",
            "/opt/chrome",
            "shape=tiny,host",
            "--browser-flag",
            "--a=\"b\"",
            "f16=0",
        ];
        let request = request(&asked).unwrap();
        assert_eq!(request.setting("shape"), Some("tiny,host"));
        let json = serde_json::to_value(&request).unwrap();
        assert_eq!(json["browser"], "/opt/chrome");
        assert_eq!(json["flags"][0], "--a=\"b\"");
        assert_eq!(json["settings"]["f16"], "0");
        assert_eq!(
            native_flags(&request.settings).unwrap(),
            ["--features", "no-f16"]
        );
    }

    #[test]
    fn unknown_options_are_refused() {
        assert!(request(&["--nativ"]).is_err());
        assert!(request(&["--browser"]).is_err());
        assert!(native_flags(&BTreeMap::from([("worker".into(), "0".into())])).is_err());
    }
}
