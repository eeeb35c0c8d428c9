//! The `bench` command: options, and the model to measure, generated if needed.

use super::{Load, Settings, bench, checkpoint, load_line};
use crate::open::with_model;
use crate::options::{Given, Result, flag, list, parsed, told, value};
use crate::out;
use clap::{ArgGroup, Command, value_parser};
use jerboa::gpu::Backend;
use jerboa::hub::Progress;
use jerboa::task::Loaded;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

pub fn command(command: Command) -> Command {
    with_model(command)
        .args([
            value("shape", "NAME", "Shape of a random checkpoint: from www/bench/shapes.json, or a config.json"),
            parsed("stored", "TYPE", ["mlx4", "f16"], "Encoding of that checkpoint").default_value("mlx4"),
            list("prompt", "N,…", value_parser!(usize), "Prompt lengths in tokens").default_value("128,1024"),
            parsed("gen", "N", value_parser!(usize), "Tokens to generate").default_value("256"),
            parsed("reps", "N", value_parser!(usize), "Measured runs").default_value("3"),
            parsed("warm", "N", value_parser!(usize), "Tokens to generate in the warm-up run").default_value("16"),
            flag("settled", "First compile what an idle model compiles: kernels for short prompts"),
            flag("no-profile", "Skip time by kernel, hardware limits and host overhead"),
        ])
        .group(ArgGroup::new("which").args(["MODEL", "model", "shape"]).required(true))
}

pub fn make_command(command: Command) -> Command {
    command.args([
        value("shape", "NAME", "Shape from www/bench/sounds.json").required(true),
        value("out", "DIR", "Output folder").required(true),
    ])
}

/// Writes a random checkpoint of a speech model, for `transcribe --times`, `speak` and the bench page.
pub async fn make(given: &Given) -> Result<()> {
    checkpoint::make_sound(&given.need::<String>("shape")?, std::path::Path::new(&given.need::<String>("out")?))
}

pub async fn run(given: &Given) -> Result<()> {
    let settings = Settings {
        shape: given.text("shape"),
        stored: given.need("stored")?,
        weights: given.need("weights")?,
        prompts: given.all("prompt"),
        tokens: given.need("gen")?,
        runs: given.need("reps")?,
        warm: given.need("warm")?,
        settled: given.has("settled"),
        profile: !given.has("no-profile"),
    };
    let make = |shape: &String| checkpoint::make(shape, settings.stored == "mlx4", false);
    let made = settings.shape.as_ref().map(make).transpose()?;
    let name = made.as_ref().map_or_else(|| given.model_name(), |made| made.path().to_string_lossy().into_owned());
    let mut options = given.run_options()?;
    options.max_context.get_or_insert(settings.prompts.iter().max().copied().unwrap_or(0) + settings.tokens + 64);
    let start = Instant::now();
    let phases: Rc<RefCell<BTreeMap<&'static str, f64>>> = Rc::default();
    let seen = phases.clone();
    let progress = Progress::new(move |event| {
        seen.borrow_mut().entry(event.phase.name()).or_insert(start.elapsed().as_secs_f64() * 1e3);
    });
    let source = given.source_of(&name, progress).await?;
    let mut loaded = Loaded::load(given.gpu().await?, &source, &name, options).await.map_err(told)?;
    let load = Load { ms: start.elapsed().as_secs_f64() * 1e3, phases: phases.take() };
    let name = settings.shape.as_deref().unwrap_or(&name);
    let result = bench(&mut loaded, name, &load, &settings).await?;
    if loaded.session.gpu.caps().software {
        eprintln!("This adapter is a software renderer on the CPU: its timings say nothing about GPU speed.");
    }
    eprintln!("{}", load_line(&result));
    out::line(result);
    Ok(())
}
