//! `generate`: a prompt, a conversation or ids, and how to sample.

use crate::open::on_model;
use crate::options::{Given, Result, flag, list, parsed, told, value};
use crate::out;
use crate::see::{asked, placed, with_images};
use clap::{ArgAction, ArgGroup, Command, value_parser};
use jerboa::hub::AbortFlag;
use jerboa::task::{Event, GenerateRequest, Outcome};
use serde_json::{Value, json};

/// Fewer tokens than this tell no rate: they come in one batch of steps.
const RATED: usize = 16;

pub fn command(command: Command) -> Command {
    with_images(on_model(command))
        .args([
            value("prompt", "TEXT", "The text to continue"),
            value("chat", "FILE", "A JSON file with the messages to answer"),
            list("ids", "ID,…", value_parser!(u32), "Token ids to continue"),
        ])
        .group(ArgGroup::new("input").args(["prompt", "chat", "ids"]).required(true))
        .args([
            parsed("max-tokens", "N", value_parser!(usize), "The most tokens to generate")
                .visible_alias("max-new")
                .default_value("128"),
            parsed("temperature", "T", value_parser!(f64), "0 takes the most likely token; by default the model's own"),
            parsed("top-k", "K", value_parser!(u64), "Sample from the K most likely tokens"),
            parsed("top-p", "P", value_parser!(f64), "Sample from the most likely tokens that together reach P"),
            parsed("min-p", "P", value_parser!(f64), "Drop tokens less likely than this share of the most likely one"),
            parsed("seed", "N", value_parser!(u64), "Same seed, same answer"),
            value("stop", "TEXT", "A text that ends the answer; may be given several times").action(ArgAction::Append),
            flag("special", "Turn special tokens that --prompt spells into such"),
            flag("continue-final", "Go on with the last message of --chat instead of answering it"),
            flag("no-generation-prompt", "Do not open the assistant's turn behind --chat"),
            flag("ignore-eos", "Go on after the end-of-text token"),
            parsed("speculation", "HOW", ["off", "prompt-lookup"], "Draft tokens ahead"),
            flag("json", "Print the outcome as JSON"),
        ])
}

pub async fn run(given: &Given) -> Result<()> {
    let mut request = GenerateRequest::from_json(&request(given)?.to_string()).map_err(told)?;
    let mut loaded = given.loaded().await?;
    if let Some(ids) = request.ids.take() {
        request.ids = Some(placed(given, &loaded.session, ids).await?);
    }
    if let Some(question) = request.prompt.take_if(|_| given.has("image")) {
        request.messages = Some(asked(given, &mut loaded, &question).await?);
    }
    let as_json = given.has("json");
    let show = |event: &Event| {
        if !as_json {
            out::text(&event.text);
        }
    };
    let outcome = loaded.generate(&request, &AbortFlag::new(), show).await.map_err(told)?;
    if as_json {
        out::line(serde_json::to_string(&outcome).map_err(|e| e.to_string())?);
    } else {
        eprintln!("\n{}", summary(&outcome));
    }
    Ok(())
}

/// The request in the names of the JavaScript face.
fn request(given: &Given) -> Result<Value> {
    let mut request = json!({
        "maxTokens": given.need::<usize>("max-tokens")?,
        "ignoreEos": given.has("ignore-eos"),
        "parseSpecial": given.has("special"),
        "continueFinalMessage": given.has("continue-final"),
    });
    if given.has("no-generation-prompt") {
        request["addGenerationPrompt"] = json!(false);
    }
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            request[name] = value;
        }
    };
    set("prompt", json!(given.text("prompt")));
    if given.has("ids") {
        set("ids", json!(given.all::<u32>("ids")));
    }
    if given.has("chat") {
        set("messages", json!(given.messages()?));
    }
    set("temperature", json!(given.get::<f64>("temperature")));
    set("topK", json!(given.get::<u64>("top-k")));
    set("topP", json!(given.get::<f64>("top-p")));
    set("minP", json!(given.get::<f64>("min-p")));
    set("seed", json!(given.get::<u64>("seed")));
    set("speculation", json!(given.text("speculation")));
    if given.has("stop") {
        set("stop", json!(given.all::<String>("stop")));
    }
    Ok(request)
}

fn summary(outcome: &Outcome) -> String {
    let tokens = outcome.completion_tokens;
    let mut text = format!("prefill {:.1} ms, {tokens} tokens", outcome.prefill_ms);
    if tokens >= RATED {
        text += &format!(" at {:.1} tok/s", (tokens - 1) as f64 * 1000.0 / outcome.decode_ms.max(1e-3));
    }
    if outcome.drafted_tokens > 0 {
        text += &format!("\n{} tokens were drafted, {} accepted", outcome.drafted_tokens, outcome.accepted_tokens);
    }
    if let Some(paging) = &outcome.paging {
        let share = |hits: u64| 100.0 * hits as f64 / paging.asked.max(1) as f64;
        text += &format!(
            "\n{} experts a layer on the device: {:.1} % of those asked for were there, {:.1} % without looking ahead; {} fetched \
             ahead, {} of them used; {:.1} MB came",
            paging.held,
            share(paging.hits),
            share(paging.hits_alone),
            paging.ahead,
            paging.ahead_used,
            paging.bytes as f64 / 1e6
        );
    }
    text
}
