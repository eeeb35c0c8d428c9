//! The `generate` command: prompt, conversation or token ids in; sampled text out.

use crate::image::{fill_placeholders, image_question, with_images};
use crate::open::with_required_model;
use crate::options::{CliArgs, Result, flag, format_error, list, parsed, value};
use crate::out;
use clap::{ArgAction, ArgGroup, Command, value_parser};
use jerboa::hub::AbortFlag;
use jerboa::task::{GenerateRequest, GenerationResult, TokenEvent};
use serde_json::{Value, json};

/// Minimum number of tokens for a decode rate: fewer arrive in one batch of steps.
const MIN_TOKENS_FOR_RATE: usize = 16;

pub fn command(command: Command) -> Command {
    with_images(with_required_model(command))
        .args([
            value("prompt", "TEXT", "Text to continue"),
            value("chat", "FILE", "JSON file with the messages to answer"),
            list("ids", "ID,…", value_parser!(u32), "Token ids to continue"),
        ])
        .group(
            ArgGroup::new("input")
                .args(["prompt", "chat", "ids"])
                .required(true),
        )
        .args([
            parsed(
                "max-tokens",
                "N",
                value_parser!(usize),
                "Maximum number of tokens to generate",
            )
            .visible_alias("max-new")
            .default_value("128"),
            parsed(
                "temperature",
                "T",
                value_parser!(f64),
                "0 selects the most likely token; default: the model's setting",
            ),
            parsed(
                "top-k",
                "K",
                value_parser!(u64),
                "Sample from the K most likely tokens only",
            ),
            parsed(
                "top-p",
                "P",
                value_parser!(f64),
                "Sample from the top tokens up to this cumulative probability",
            ),
            parsed(
                "min-p",
                "P",
                value_parser!(f64),
                "Drop tokens below this fraction of the top token's probability",
            ),
            parsed(
                "seed",
                "N",
                value_parser!(u64),
                "Random seed; equal seeds give equal output",
            ),
            value("stop", "TEXT", "Stop sequence; may be repeated").action(ArgAction::Append),
            flag("special", "Recognize special tokens in --prompt"),
            flag(
                "continue-final",
                "Continue the last message of --chat instead of answering it",
            ),
            flag(
                "no-generation-prompt",
                "Do not add the generation prompt after --chat",
            ),
            flag("ignore-eos", "Continue after the end-of-text token"),
            parsed(
                "speculation",
                "HOW",
                ["off", "prompt-lookup"],
                "Speculative decoding",
            ),
            flag("json", "Print the result as JSON"),
        ])
}

pub async fn run(given: &CliArgs) -> Result<()> {
    let mut request =
        GenerateRequest::from_json(&request(given)?.to_string()).map_err(format_error)?;
    let mut loaded = given.loaded().await?;
    if let Some(ids) = request.ids.take() {
        request.ids = Some(fill_placeholders(given, &loaded.session, ids).await?);
    }
    if let Some(question) = request.prompt.take_if(|_| given.is_set("image")) {
        request.messages = Some(image_question(given, &mut loaded, &question).await?);
    }
    let as_json = given.is_set("json");

    let outcome = loaded
        .generate(&request, &AbortFlag::new(), |event: &TokenEvent| {
            if !as_json {
                out::print_text(&event.text);
            }
        })
        .await
        .map_err(format_error)?;
    if as_json {
        out::print_line(serde_json::to_string(&outcome).map_err(|e| e.to_string())?);
    } else {
        eprintln!("\n{}", summary(&outcome));
    }
    Ok(())
}

/// Builds the request with the field names of the JavaScript API.
fn request(given: &CliArgs) -> Result<Value> {
    let mut request = json!({
        "maxTokens": given.require::<usize>("max-tokens")?,
        "ignoreEos": given.is_set("ignore-eos"),
        "parseSpecial": given.is_set("special"),
        "continueFinalMessage": given.is_set("continue-final"),
    });
    if given.is_set("no-generation-prompt") {
        request["addGenerationPrompt"] = json!(false);
    }
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            request[name] = value;
        }
    };
    set("prompt", json!(given.text("prompt")));
    if given.is_set("ids") {
        set("ids", json!(given.values::<u32>("ids")));
    }
    if given.is_set("chat") {
        set("messages", json!(given.messages()?));
    }
    set("temperature", json!(given.get::<f64>("temperature")));
    set("topK", json!(given.get::<u64>("top-k")));
    set("topP", json!(given.get::<f64>("top-p")));
    set("minP", json!(given.get::<f64>("min-p")));
    set("seed", json!(given.get::<u64>("seed")));
    set("speculation", json!(given.text("speculation")));
    if given.is_set("stop") {
        set("stop", json!(given.values::<String>("stop")));
    }
    Ok(request)
}

fn summary(outcome: &GenerationResult) -> String {
    let tokens = outcome.completion_tokens;
    let mut text = format!("prefill {:.1} ms, {tokens} tokens", outcome.prefill_ms);
    if tokens >= MIN_TOKENS_FOR_RATE {
        text += &format!(
            " at {:.1} tok/s",
            (tokens - 1) as f64 * 1000.0 / outcome.decode_ms.max(1e-3)
        );
    }
    if outcome.drafted_tokens > 0 {
        text += &format!(
            "\n{} tokens drafted, {} accepted",
            outcome.drafted_tokens, outcome.accepted_tokens
        );
    }
    if let Some(paging) = &outcome.paging {
        let share = |hits: u64| 100.0 * hits as f64 / paging.requested.max(1) as f64;
        text += &format!(
            "\n{} expert slots per layer: hit rate {:.1} %, {:.1} % without prefetch; {} experts prefetched, {} of them used; \
             {:.1} MB loaded",
            paging.slots,
            share(paging.hits),
            share(paging.hits_without_prefetch),
            paging.prefetched,
            paging.prefetch_hits,
            paging.bytes as f64 / 1e6
        );
    }
    text
}
