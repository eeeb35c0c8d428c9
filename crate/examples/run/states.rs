//! `logits` and `hidden`: rows of numbers to a file, to be compared with another engine's.

use crate::open::on_model;
use crate::options::{Given, Result, flag, list, told, value};
use crate::see::{placed, with_images};
use clap::{Command, value_parser};
use jerboa::arch::Head;
use jerboa::exec::{Encoder, Files, Tokens};
use serde_json::Value;

fn with_ids(command: Command) -> Command {
    on_model(command).args([
        list("ids", "ID,…", value_parser!(u32), "Token ids").required(true),
        value("out", "FILE", "Where they are written").required(true),
    ])
}

pub fn logits_command(command: Command) -> Command {
    with_images(with_ids(command)).arg(flag("all", "Those of every token, not of the last alone"))
}

pub async fn logits(given: &Given) -> Result<()> {
    let mut session = given.model().await?;
    let ids = placed(given, &session, given.all::<u32>("ids")).await?;
    let values = session.every_row(&ids, false).await.map_err(told)?;
    save(given, "logits", values, ids.len(), if given.has("all") { ids.len() } else { 1 })
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

/// The hidden states of a model that reads both ways; none for one that generates.
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
fn save(given: &Given, name: &str, mut values: Vec<f32>, all: usize, rows: usize) -> Result<()> {
    let out: String = given.need("out")?;
    let cols = values.len() / all;
    let values = values.split_off(values.len() - rows * cols);
    let bytes: &[u8] = bytemuck::cast_slice(&values);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![rows, cols], bytes);
    let view = view.map_err(|e| e.to_string())?;
    let data = safetensors::serialize([(name, view)], None).map_err(|e| e.to_string())?;
    std::fs::write(&out, data).map_err(|e| format!("{out}: {e}"))
}
