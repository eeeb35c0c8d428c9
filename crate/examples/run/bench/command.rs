//! `bench`: its options, and the model that is measured, which may be made for it.

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
            value("shape", "NAME", "A random checkpoint of this shape of www/bench/shapes.json, or of a config.json"),
            parsed("stored", "TYPE", ["mlx4", "f16"], "How such a checkpoint is stored").default_value("mlx4"),
            list("prompt", "N,…", value_parser!(usize), "Lengths of prompts").default_value("128,1024"),
            parsed("gen", "N", value_parser!(usize), "New tokens").default_value("256"),
            parsed("reps", "N", value_parser!(usize), "Runs that count").default_value("3"),
            parsed("warm", "N", value_parser!(usize), "New tokens of a first run that does not count")
                .default_value("16"),
            flag("settled", "Make ready first what an idle model does: kernels of short prompts"),
            flag("no-profile", "Leave out time by kernel, limits and the host's cost"),
        ])
        .group(ArgGroup::new("which").args(["MODEL", "model", "shape"]).required(true))
}

pub fn make_command(command: Command) -> Command {
    command.args([
        value("shape", "NAME", "A shape of www/bench/sounds.json").required(true),
        value("out", "DIR", "The folder that is written").required(true),
    ])
}

/// A random checkpoint of a model that hears or speaks, for `transcribe --times`, `speak` and the bench page.
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
        eprintln!("This adapter computes on the processor: its numbers say nothing about the engine's speed.");
    }
    eprintln!("{}", load_line(&result));
    out::line(result);
    Ok(())
}
