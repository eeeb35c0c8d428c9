//! `embed` and `rerank`.

use crate::open::{on_model, with_texts};
use crate::options::{Given, Result, flag, parsed, told, value};
use crate::out;
use clap::{Command, value_parser};
use jerboa::hub::AbortFlag;
use jerboa::task::{AnyModel, EmbedRequest, Task};
use serde_json::json;
use std::time::Instant;

pub fn embed_command(command: Command) -> Command {
    with_texts(on_model(command)).args([
        value("task", "NAME", "The name of one of the model's prompts"),
        value("prompt", "TEXT", "A text to set before each").conflicts_with("task"),
        parsed("dim", "N", value_parser!(usize), "Keep the first N numbers"),
        flag("raw", "Leave vectors unscaled"),
        flag("json", "Print the vectors as JSON"),
    ])
}

pub async fn embed(given: &Given) -> Result<()> {
    let texts = given.texts()?;
    let AnyModel::Embed(mut model) = given.any_model(Task::Embed).await? else {
        return Err("this model makes no vectors".into());
    };
    let request = EmbedRequest {
        task: given.text("task"),
        prompt: given.text("prompt"),
        normalize: given.has("raw").then_some(false),
        truncate_dim: given.get("dim"),
    };
    let start = Instant::now();
    let vectors = model.embed(&texts, &request, &AbortFlag::new(), |_, _| {}).await.map_err(told)?;
    let seconds = start.elapsed().as_secs_f64();
    if given.has("json") {
        out::line(json!(vectors));
        return Ok(());
    }
    for vector in &vectors {
        let shown: Vec<String> = vector.iter().take(6).map(|v| format!("{v:.4}")).collect();
        out::line(format_args!("{} numbers: {} …", vector.len(), shown.join(" ")));
    }
    eprintln!("{} texts in {:.1} ms, {:.1} texts/s", texts.len(), seconds * 1e3, texts.len() as f64 / seconds);
    Ok(())
}

pub fn rerank_command(command: Command) -> Command {
    with_texts(on_model(command)).args([
        value("query", "TEXT", "What the texts are to answer").required(true),
        value("instruction", "TEXT", "What counts as relevant, for models that take it"),
        flag("json", "Print the scores as JSON"),
    ])
}

pub async fn rerank(given: &Given) -> Result<()> {
    let (texts, query, instruction) = (given.texts()?, given.need::<String>("query")?, given.text("instruction"));
    let AnyModel::Rerank(mut model) = given.any_model(Task::Rerank).await? else {
        return Err("this model does not rank texts".into());
    };
    let scores = model.rerank(&query, &texts, instruction.as_deref(), &AbortFlag::new()).await.map_err(told)?;
    if given.has("json") {
        out::line(json!(scores));
    } else {
        scores.iter().zip(&texts).for_each(|(score, text)| out::line(format_args!("{score:.4} {text}")));
    }
    Ok(())
}
