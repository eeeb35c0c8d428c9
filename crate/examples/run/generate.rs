//! The `generate` command: prompt, conversation or token ids in; sampled text out.

use crate::image::{fill_placeholders, image_question, with_images};
use crate::open::with_required_model;
use crate::options::{
    CliArgs, Result, flag, format_error, list, request_flag, request_flags, value,
};
use crate::out;
use clap::{ArgGroup, Command, value_parser};
use jerboa::hub::AbortFlag;
use jerboa::sample::SAMPLING_OPTIONS;
use jerboa::task::{GENERATE_OPTIONS, GenerateRequest, GenerationResult, LOAD_OPTIONS, TokenEvent};
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
        .arg(
            request_flag(GENERATE_OPTIONS, "max_tokens")
                .visible_alias("max-new")
                .default_value("128"),
        )
        .args(
            SAMPLING_OPTIONS
                .iter()
                .filter(|option| option.name != "logit_bias")
                .map(|option| request_flag(SAMPLING_OPTIONS, option.name)),
        )
        .args(request_flags(
            GENERATE_OPTIONS,
            &["stop", "overflow", "ignore_eos", "speculation"],
        ))
        .args([
            request_flag(LOAD_OPTIONS, "draft"),
            flag("special", "Recognize special tokens in --prompt"),
            flag(
                "continue-final",
                "Continue the last message of --chat instead of answering it",
            ),
            flag(
                "no-generation-prompt",
                "Do not add the generation prompt after --chat",
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
    let mut request = given.request(GENERATE_OPTIONS);
    request.extend(given.request(SAMPLING_OPTIONS));
    let mut set = |name: &str, value: Value| request.insert(name.into(), value);
    set("parseSpecial", json!(given.is_set("special")));
    set(
        "continueFinalMessage",
        json!(given.is_set("continue-final")),
    );
    if given.is_set("no-generation-prompt") {
        set("addGenerationPrompt", json!(false));
    }
    if given.is_set("ids") {
        set("ids", json!(given.values::<u32>("ids")));
    }
    if given.is_set("chat") {
        set("messages", json!(given.messages()?));
    }
    Ok(request.into())
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
