//! The commands `logits`, `hidden` and `trace`: write values to a file, for comparison with other engines.

use crate::hear::{logits as heard, with_audio};
use crate::open::on_model;
use crate::options::{Given, Result, flag, list, told, value};
use crate::see::{placed, with_images};
use clap::{Command, value_parser};
use jerboa::arch::Head;
use jerboa::exec::{Encoder, Files, RunOptions, Tokens};
use jerboa::plan::Fusions;
use serde_json::Value;
use std::collections::BTreeMap;

fn with_ids(command: Command) -> Command {
    on_model(command).args([
        list("ids", "ID,…", value_parser!(u32), "Token ids").required(true),
        value("out", "FILE", "Output file").required(true),
    ])
}

pub fn logits_command(command: Command) -> Command {
    with_audio(with_images(with_ids(command))).arg(flag("all", "Write the logits of every token, not only of the last"))
}

pub async fn logits(given: &Given) -> Result<()> {
    let rows = |ids: usize| if given.has("all") { ids } else { 1 };
    if let Some(values) = heard(given).await? {
        let ids = given.all::<u32>("ids").len();
        return save(given, "logits", values, ids, rows(ids));
    }
    let mut session = given.model().await?;
    let ids = placed(given, &session, given.all::<u32>("ids")).await?;
    let values = session.every_row(&ids, false).await.map_err(told)?;
    save(given, "logits", values, ids.len(), rows(ids.len()))
}

pub fn hidden_command(command: Command) -> Command {
    with_ids(command)
}

pub async fn hidden(given: &Given) -> Result<()> {
    let ids = given.all::<u32>("ids");
    let values = match encoded(given, &ids).await? {
        Some(values) => values,
        None => given.model().await?.every_row(&ids, true).await.map_err(told)?,
    };
    save(given, "last_hidden_state", values, ids.len(), ids.len())
}

pub fn trace_command(command: Command) -> Command {
    with_ids(command)
}

pub async fn trace(given: &Given) -> Result<()> {
    let options = RunOptions { fusions: Fusions::NONE, ..given.run_options()? };
    let mut session = given.session(options).await?;
    let mut seen = BTreeMap::new();
    let mut all = Vec::new();
    for traced in session.trace(&given.all::<u32>("ids")).await.map_err(told)? {
        // Repeated names get a number.
        let count = seen.entry(traced.name.clone()).and_modify(|n| *n += 1).or_insert(1);
        let name = if *count == 1 { traced.name } else { format!("{}, {count}", traced.name) };
        all.push((name, traced.values, traced.cols));
    }
    write(given, &all)
}

/// The hidden states of a bidirectional encoder; `None` for a generative model.
async fn encoded(given: &Given, ids: &[u32]) -> Result<Option<Vec<f32>>> {
    let source = given.source().await?;
    let Some(config) = source.read_optional("config.json").await.map_err(told)? else { return Ok(None) };
    let config: Value = serde_json::from_slice(&config).map_err(|e| format!("config.json: {e}"))?;
    if !jerboa::arch::is_encoder(&config) {
        return Ok(None);
    }
    let files = Files::safetensors(&source, config).await.map_err(told)?;
    let (gpu, options) = (given.gpu().await?, given.run_options()?);
    let encoder = Encoder::load(gpu, &source, files, &Head::Hidden, None, options).await.map_err(told)?;
    let tokens = Tokens { ids: ids.to_vec(), ..Tokens::default() };
    encoder.submit(&[&tokens]).map_err(told)?.wait().await.map(Some).map_err(told)
}

/// Writes the last `rows` of `all` rows.
pub fn save(given: &Given, name: &str, mut values: Vec<f32>, all: usize, rows: usize) -> Result<()> {
    let cols = values.len() / all;
    let values = values.split_off(values.len() - rows * cols);
    write(given, &[(name.to_string(), values, cols)])
}

/// Writes tensors, given as name, values and columns.
fn write(given: &Given, tensors: &[(String, Vec<f32>, usize)]) -> Result<()> {
    let out: String = given.need("out")?;
    let mut views = Vec::new();
    for (name, values, cols) in tensors {
        let (shape, bytes) = (vec![values.len() / cols, *cols], bytemuck::cast_slice(values));
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, bytes);
        views.push((name, view.map_err(|e| e.to_string())?));
    }
    let data = safetensors::serialize(views, None).map_err(|e| e.to_string())?;
    std::fs::write(&out, data).map_err(|e| format!("{out}: {e}"))
}
