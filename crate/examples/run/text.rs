//! The commands `tokenize`, `render-chat` and `perplexity`.

use crate::open::{on_model, with_texts};
use crate::options::{Given, Result, flag, told, value};
use crate::out;
use clap::Command;
use jerboa::task::TextParts;
use jerboa::text::{ChatInput, EncodeOptions};
use serde_json::json;

pub fn tokenize_command(command: Command) -> Command {
    with_texts(on_model(command))
        .arg(flag("special", "Recognize special tokens in the text").overrides_with("no-special"))
        .arg(flag("no-special", "Treat special tokens as plain text (default)").overrides_with("special"))
}

pub async fn tokenize(given: &Given) -> Result<()> {
    let text = given.whole_text()?;
    let options = EncodeOptions { add_special: true, parse_special: given.has("special") };
    let parts = text_parts(given).await?;
    let ids = parts.tokenizer().and_then(|t| t.encode_with_options(&text, options)).map_err(told)?;
    out::line(format_args!("{ids:?}"));
    Ok(())
}

/// Loads tokenizer and chat template, without the model.
async fn text_parts(given: &Given) -> Result<TextParts> {
    TextParts::open(&given.source().await?).await.map_err(told)
}

pub fn render_command(command: Command) -> Command {
    on_model(command).args([
        value("chat", "FILE", "JSON file with messages").required(true),
        flag("continue-final", "End with the text of the last message, to be continued"),
        flag("no-generation-prompt", "Do not add the generation prompt"),
    ])
}

pub async fn render(given: &Given) -> Result<()> {
    let continue_final_message = given.has("continue-final");
    let input = ChatInput {
        add_generation_prompt: !continue_final_message && !given.has("no-generation-prompt"),
        continue_final_message,
        messages: given.messages()?,
        ..ChatInput::default()
    };
    out::text(text_parts(given).await?.render(&input).map_err(told)?.text);
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
