//! The commands `embed`, for texts and images, and `rerank`.

use crate::open::{on_model, with_texts};
use crate::options::{Given, Result, flag, parsed, told, value};
use crate::out;
use crate::see::images;
use clap::{Command, value_parser};
use jerboa::hub::AbortFlag;
use jerboa::task::{AnyModel, EmbedRequest, Task};
use serde_json::json;
use std::rc::Rc;
use std::time::Instant;

pub fn embed_command(command: Command) -> Command {
    with_texts(on_model(command)).mut_group("texts", |texts| texts.required(false)).args([
        images().required_unless_present("texts"),
        value("task", "NAME", "Name of one of the model's prompts"),
        value("prompt", "TEXT", "Text to prepend to each input").conflicts_with("task"),
        parsed("dim", "N", value_parser!(usize), "Truncate embeddings to N dimensions"),
        flag("raw", "Do not normalize the embeddings"),
        flag("json", "Print the embeddings as JSON"),
    ])
}

pub async fn embed(given: &Given) -> Result<()> {
    let files = given.all::<String>("image");
    let texts = if files.is_empty() || given.has("text") || given.has("file") { given.texts()? } else { Vec::new() };
    let AnyModel::Embed(mut model) = given.any_model(Task::Embed).await? else {
        return Err("this model cannot embed. Use an embedding model.".into());
    };
    let request = EmbedRequest {
        task: given.text("task"),
        prompt: given.text("prompt"),
        normalize: given.has("raw").then_some(false),
        truncate_dim: given.get("dim"),
    };
    let start = Instant::now();
    let mut vectors = model.embed(&texts, &request, &AbortFlag::new(), |_, _| {}).await.map_err(told)?;
    if !files.is_empty() {
        model.open_eyes(Rc::new(given.source().await?), given.run_options()?).await.map_err(told)?;
    }
    for file in &files {
        let of_file = |e: jerboa::Error| format!("{file}: {}", told(e));
        let sight = model.sight.clone().ok_or("this model embeds text only")?;
        let bytes = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
        let seen = sight.see(sight.file(&bytes).map_err(of_file)?, &[]).await.map_err(of_file)?;
        vectors.push(model.vector(seen.picture, &request).await.map_err(of_file)?);
    }
    let seconds = start.elapsed().as_secs_f64();
    if given.has("json") {
        out::line(json!(vectors));
        return Ok(());
    }
    for vector in &vectors {
        let shown: Vec<String> = vector.iter().take(6).map(|v| format!("{v:.4}")).collect();
        out::line(format_args!("{} numbers: {} …", vector.len(), shown.join(" ")));
    }
    let texts = texts.len() + files.len();
    eprintln!("{texts} in {:.1} ms, {:.1} texts/s", seconds * 1e3, texts as f64 / seconds);
    Ok(())
}

pub fn rerank_command(command: Command) -> Command {
    with_texts(on_model(command)).args([
        value("query", "TEXT", "Query to score the texts against").required(true),
        value("instruction", "TEXT", "Definition of relevance, for models that support it"),
        flag("json", "Print the scores as JSON"),
    ])
}

pub async fn rerank(given: &Given) -> Result<()> {
    let (texts, query, instruction) = (given.texts()?, given.need::<String>("query")?, given.text("instruction"));
    let AnyModel::Rerank(mut model) = given.any_model(Task::Rerank).await? else {
        return Err("this model cannot rerank. Use a reranker model.".into());
    };
    let scores = model.rerank(&query, &texts, instruction.as_deref(), &AbortFlag::new()).await.map_err(told)?;
    if given.has("json") {
        out::line(json!(scores));
    } else {
        scores.iter().zip(&texts).for_each(|(score, text)| out::line(format_args!("{score:.4} {text}")));
    }
    Ok(())
}
