//! `tokenize`, `render-chat` and `perplexity`: what turns on a model's text side.

use crate::open::{on_model, with_texts};
use crate::options::{Given, Result, told, value};
use crate::out;
use clap::Command;
use jerboa::text::ChatInput;
use serde_json::json;

pub fn tokenize_command(command: Command) -> Command {
    with_texts(on_model(command))
}

pub async fn tokenize(given: &Given) -> Result<()> {
    let text = given.whole_text()?;
    let ids = given.loaded().await?.text.tokenizer().and_then(|t| t.encode(&text, true)).map_err(told)?;
    out::line(format_args!("{ids:?}"));
    Ok(())
}

pub fn render_command(command: Command) -> Command {
    on_model(command).arg(value("chat", "FILE", "A JSON file with messages").required(true))
}

pub async fn render(given: &Given) -> Result<()> {
    let input = ChatInput { add_generation_prompt: true, messages: given.messages()?, ..ChatInput::default() };
    out::text(given.loaded().await?.text.render(&input).map_err(told)?.text);
    Ok(())
}

pub fn perplexity_command(command: Command) -> Command {
    with_texts(on_model(command))
}

pub async fn perplexity(given: &Given) -> Result<()> {
    let text = given.whole_text()?;
    let (perplexity, tokens) = given.loaded().await?.perplexity(&text).await.map_err(told)?;
    out::line(json!({ "perplexity": perplexity, "tokens": tokens }));
    Ok(())
}
