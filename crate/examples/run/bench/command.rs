//! The `bench` command: options, and the model to measure, generated if needed.

use super::{BenchSettings, LoadTimings, bench, checkpoint, draft_lines, load_line};
use crate::open::with_optional_model;
use crate::options::{CliArgs, Result, flag, format_error, list, parsed, value};
use crate::out;
use clap::{ArgGroup, Command, value_parser};
use jerboa::gpu::Backend;
use jerboa::hub::Progress;
use jerboa::task::ChatModel;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

pub fn command(command: Command) -> Command {
    with_optional_model(command)
        .args([
            value(
                "shape",
                "NAME",
                "Shape of a random checkpoint: from www/bench/shapes.json, or a config.json",
            ),
            parsed(
                "stored",
                "TYPE",
                ["mlx4", "f16"],
                "Encoding of that checkpoint",
            )
            .default_value("mlx4"),
            list(
                "prompt",
                "N,…",
                value_parser!(usize),
                "Prompt lengths in tokens",
            )
            .default_value("128,1024"),
            parsed("gen", "N", value_parser!(usize), "Tokens to generate").default_value("256"),
            list(
                "sequences",
                "N,…",
                value_parser!(usize),
                "Also measure decoding of N sequences in one step",
            ),
            parsed("reps", "N", value_parser!(usize), "Measured runs").default_value("3"),
            parsed(
                "warm",
                "N",
                value_parser!(usize),
                "Tokens to generate in the warm-up run",
            )
            .default_value("16"),
            value(
                "draft",
                "NAME",
                "Also measure with a draft model: a shape with --shape, else a model",
            ),
            parsed(
                "acceptance",
                "SHARE",
                value_parser!(f64),
                "Accept proposals of the draft model at random with this chance, for random weights",
            ),
            parsed(
                "draft-length",
                "N",
                value_parser!(usize),
                "Tokens that the draft model proposes in every step, instead of as many as pay off",
            ),
            flag(
                "settled",
                "First compile what an idle model compiles: kernels for short prompts",
            ),
            flag(
                "no-profile",
                "Skip time by kernel, hardware limits and host overhead",
            ),
        ])
        .group(
            ArgGroup::new("which")
                .args(["MODEL", "model", "shape"])
                .required(true),
        )
}

pub fn make_command(command: Command) -> Command {
    command.args([
        value("shape", "NAME", "Shape from www/bench/speech-shapes.json").required(true),
        value("out", "DIR", "Output folder").required(true),
    ])
}

/// Writes a random checkpoint of a speech model, for `transcribe --times`, `speak` and the bench
/// page.
pub async fn make(given: &CliArgs) -> Result<()> {
    checkpoint::make_speech_checkpoint(
        &given.require::<String>("shape")?,
        std::path::Path::new(&given.require::<String>("out")?),
    )
}

pub async fn run(given: &CliArgs) -> Result<()> {
    let settings = BenchSettings {
        shape: given.text("shape"),
        stored: given.require("stored")?,
        weights: given.require("weights")?,
        prompts: given.values("prompt"),
        tokens: given.require("gen")?,
        sequences: given.values("sequences"),
        draft: given.text("draft"),
        acceptance: given.get("acceptance"),
        draft_length: given.get("draft-length"),
        runs: given.require("reps")?,
        warm: given.require("warm")?,
        settled: given.is_set("settled"),
        profile: !given.is_set("no-profile"),
    };

    let made = settings
        .shape
        .as_ref()
        .map(|shape: &String| checkpoint::make_checkpoint(shape, settings.stored == "mlx4", false))
        .transpose()?;
    let name = made.as_ref().map_or_else(
        || given.model_name(),
        |made| made.path().to_string_lossy().into_owned(),
    );
    let mut options = given.run_options()?;
    options
        .max_context
        .get_or_insert(settings.prompts.iter().max().copied().unwrap_or(0) + settings.tokens + 64);
    let start = Instant::now();
    let phases: Rc<RefCell<BTreeMap<&'static str, f64>>> = Rc::default();
    let seen = phases.clone();
    let progress = Progress::new(move |event| {
        seen.borrow_mut()
            .entry(event.phase.name())
            .or_insert(start.elapsed().as_secs_f64() * 1e3);
    });
    let source = given.source_of(&name, progress).await?;
    let mut loaded = ChatModel::load(given.gpu().await?, &source, &name, options)
        .await
        .map_err(format_error)?;
    let load = LoadTimings {
        ms: start.elapsed().as_secs_f64() * 1e3,
        phases: phases.take(),
    };
    let made_draft = match (&settings.draft, &settings.shape) {
        (Some(draft), Some(_)) => {
            let is_mlx = settings.stored == "mlx4";
            Some(checkpoint::make_checkpoint(draft, is_mlx, false)?)
        }
        _ => None,
    };
    if let Some(draft) = &settings.draft {
        let path = made_draft
            .as_ref()
            .map(|made| made.path().to_string_lossy());
        let draft = path.as_deref().unwrap_or(draft);
        given.load_draft(&mut loaded, draft).await?;
        loaded.force_draft(settings.acceptance, settings.draft_length);
    }
    let name = settings.shape.as_deref().unwrap_or(&name);
    let result = bench(&mut loaded, name, &load, &settings).await?;
    if loaded.session.gpu().caps().software {
        eprintln!(
            "This adapter is a software renderer on the CPU: its timings say nothing about GPU speed."
        );
    }
    eprintln!("{}", load_line(&result));
    draft_lines(&result)
        .iter()
        .for_each(|line| eprintln!("{line}"));
    out::print_line(result);
    Ok(())
}
