//! The commands `logits`, `hidden` and `trace`: write values to a file, for comparison with other
//! engines.

use crate::image::{fill_placeholders, with_images};
use crate::open::with_required_model;
use crate::options::{CliArgs, Result, flag, format_error, list, value};
use crate::transcribe::{logits as heard, with_audio};
use clap::{Command, value_parser};
use jerboa::arch::{EncoderHead, LoadConfig};
use jerboa::exec::{EncoderInput, EncoderModel, ModelFiles, RunOptions};
use jerboa::plan::Fusions;
use serde_json::Value;
use std::collections::BTreeMap;

fn with_ids(command: Command) -> Command {
    with_required_model(command).args([
        list("ids", "ID,…", value_parser!(u32), "Token ids").required(true),
        value("out", "FILE", "Output file").required(true),
    ])
}

pub fn logits_command(command: Command) -> Command {
    with_audio(with_images(with_ids(command))).arg(flag(
        "all",
        "Write the logits of every token, not only of the last",
    ))
}

pub async fn logits(given: &CliArgs) -> Result<()> {
    let rows = |ids: usize| if given.is_set("all") { ids } else { 1 };
    if let Some(values) = heard(given).await? {
        let ids = given.values::<u32>("ids").len();
        return save(given, "logits", values, ids, rows(ids));
    }
    let mut session = given.model().await?;
    let ids = fill_placeholders(given, &session, given.values::<u32>("ids")).await?;
    let values = session.all_rows(&ids, false).await.map_err(format_error)?;
    save(given, "logits", values, ids.len(), rows(ids.len()))
}

pub fn hidden_command(command: Command) -> Command {
    with_ids(command)
}

pub async fn hidden(given: &CliArgs) -> Result<()> {
    let ids = given.values::<u32>("ids");
    let values = match encoder_hidden_states(given, &ids).await? {
        Some(values) => values,
        None => given
            .model()
            .await?
            .all_rows(&ids, true)
            .await
            .map_err(format_error)?,
    };
    save(given, "last_hidden_state", values, ids.len(), ids.len())
}

pub fn trace_command(command: Command) -> Command {
    with_ids(command)
}

pub async fn trace(given: &CliArgs) -> Result<()> {
    let options = RunOptions {
        fusions: Fusions::NONE,
        ..given.run_options()?
    };
    let mut session = given.session(options).await?;
    let mut seen = BTreeMap::new();
    let mut all = Vec::new();
    for traced in session
        .trace(&given.values::<u32>("ids"))
        .await
        .map_err(format_error)?
    {
        // Repeated names get a number.
        let count = seen
            .entry(traced.name.clone())
            .and_modify(|n| *n += 1)
            .or_insert(1);
        let name = if *count == 1 {
            traced.name
        } else {
            format!("{}, {count}", traced.name)
        };
        all.push((name, traced.values, traced.cols));
    }
    write(given, &all)
}

/// The hidden states of a bidirectional encoder; `None` for a generative model.
async fn encoder_hidden_states(given: &CliArgs, ids: &[u32]) -> Result<Option<Vec<f32>>> {
    let source = given.source().await?;
    let Some(config) = source
        .read_optional("config.json")
        .await
        .map_err(format_error)?
    else {
        return Ok(None);
    };
    let config: Value = serde_json::from_slice(&config).map_err(|e| format!("config.json: {e}"))?;
    let config = LoadConfig::from(config);
    if !jerboa::arch::is_encoder(&config) {
        return Ok(None);
    }
    let files = ModelFiles::encoder(&source, config, &[])
        .await
        .map_err(format_error)?;
    let gpu = given.gpu().await?;
    let options = given.run_options()?;

    let encoder = EncoderModel::load(gpu, &source, files, &EncoderHead::Hidden, None, options)
        .await
        .map_err(format_error)?;
    let tokens = EncoderInput {
        ids: ids.to_vec(),
        ..EncoderInput::default()
    };
    encoder
        .submit(&[&tokens])
        .map_err(format_error)?
        .wait()
        .await
        .map(Some)
        .map_err(format_error)
}

/// Writes the last `rows` of `all` rows.
pub fn save(
    given: &CliArgs,
    name: &str,
    mut values: Vec<f32>,
    all: usize,
    rows: usize,
) -> Result<()> {
    let cols = values.len() / all;
    let values = values.split_off(values.len() - rows * cols);
    write(given, &[(name.to_string(), values, cols)])
}

/// Writes tensors, given as name, values and columns.
fn write(given: &CliArgs, tensors: &[(String, Vec<f32>, usize)]) -> Result<()> {
    let out: String = given.require("out")?;
    let mut views = Vec::new();
    for (name, values, cols) in tensors {
        let shape = vec![values.len() / cols, *cols];
        let bytes = bytemuck::cast_slice(values);

        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, bytes);
        views.push((name, view.map_err(|e| e.to_string())?));
    }
    let data = safetensors::serialize(views, None).map_err(|e| e.to_string())?;
    std::fs::write(&out, data).map_err(|e| format!("{out}: {e}"))
}
