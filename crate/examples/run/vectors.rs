//! The commands `embed`, for texts and images, and `rerank`.

use crate::image::images;
use crate::open::{with_required_model, with_texts};
use crate::options::{CliArgs, Result, flag, format_error, parsed, value};
use crate::out;
use clap::{Command, value_parser};
use jerboa::hub::{AbortFlag, Progress};
use jerboa::task::{EmbedRequest, Task, TaskModel};
use serde_json::json;
use std::rc::Rc;
use std::time::Instant;

pub fn embed_command(command: Command) -> Command {
    with_texts(with_required_model(command))
        .mut_group("texts", |texts| texts.required(false))
        .args([
            images().required_unless_present("texts"),
            value("task", "NAME", "Name of one of the model's prompts"),
            value("prompt", "TEXT", "Text to prepend to each input").conflicts_with("task"),
            parsed(
                "dim",
                "N",
                value_parser!(usize),
                "Truncate embeddings to N dimensions",
            ),
            value("adapter", "FOLDER", "LoRA adapter to embed with"),
            flag("raw", "Do not normalize the embeddings"),
            flag("json", "Print the embeddings as JSON"),
        ])
}

pub async fn embed(given: &CliArgs) -> Result<()> {
    let files = given.values::<String>("image");
    let texts = if files.is_empty() || given.is_set("text") || given.is_set("file") {
        given.texts()?
    } else {
        Vec::new()
    };
    let TaskModel::Embed(mut model) = given.any_model(Task::Embed).await? else {
        return Err("this model cannot embed. Use an embedding model.".into());
    };
    let request = EmbedRequest {
        task: given.text("task"),
        prompt: given.text("prompt"),
        normalize: given.is_set("raw").then_some(false),
        truncate_dim: given.get("dim"),
        adapter: given.text("adapter"),
    };
    if let Some(folder) = &request.adapter {
        let source = given.source_of(folder, Progress::silent()).await?;
        let load = model.load_adapter(folder, &source, false);
        load.await.map_err(format_error)?;
    }
    let start = Instant::now();
    let mut vectors = model
        .embed(&texts, &request, &AbortFlag::new(), |_, _| {})
        .await
        .map_err(format_error)?;
    if !files.is_empty() {
        model
            .enable_vision(Rc::new(given.source().await?), given.run_options()?)
            .await
            .map_err(format_error)?;
    }
    for file in &files {
        let of_file = |e: jerboa::Error| format!("{file}: {}", format_error(e));
        let sight = model
            .vision
            .clone()
            .ok_or("this model embeds text only. Use a model such as CLIP or SigLIP for images.")?;
        let bytes = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
        let seen = sight
            .encode(sight.image_from_file(&bytes).map_err(of_file)?, &[])
            .await
            .map_err(of_file)?;
        vectors.push(
            model
                .image_embedding(seen.id, &request)
                .await
                .map_err(of_file)?,
        );
    }
    let seconds = start.elapsed().as_secs_f64();
    if given.is_set("json") {
        out::print_line(json!(vectors));
        return Ok(());
    }
    for vector in &vectors {
        let shown: Vec<String> = vector.iter().take(6).map(|v| format!("{v:.4}")).collect();
        out::print_line(format_args!(
            "{} numbers: {} …",
            vector.len(),
            shown.join(" ")
        ));
    }
    let texts = texts.len() + files.len();
    eprintln!(
        "{texts} in {:.1} ms, {:.1} texts/s",
        seconds * 1e3,
        texts as f64 / seconds
    );
    Ok(())
}

pub fn rerank_command(command: Command) -> Command {
    with_texts(with_required_model(command)).args([
        value("query", "TEXT", "Query to score the texts against").required(true),
        value(
            "instruction",
            "TEXT",
            "Definition of relevance, for models that support it",
        ),
        flag("json", "Print the scores as JSON"),
    ])
}

pub async fn rerank(given: &CliArgs) -> Result<()> {
    let texts = given.texts()?;
    let query = given.require::<String>("query")?;
    let instruction = given.text("instruction");

    let TaskModel::Rerank(mut model) = given.any_model(Task::Rerank).await? else {
        return Err("this model cannot rerank. Use a reranker model.".into());
    };
    let scores = model
        .rerank(&query, &texts, instruction.as_deref(), &AbortFlag::new())
        .await
        .map_err(format_error)?;
    if given.is_set("json") {
        out::print_line(json!(scores));
    } else {
        scores
            .iter()
            .zip(&texts)
            .for_each(|(score, text)| out::print_line(format_args!("{score:.4} {text}")));
    }
    Ok(())
}
