//! The commands `tokenize`, `render-chat` and `perplexity`.

use crate::open::{with_required_model, with_texts};
use crate::options::{CliArgs, Result, flag, format_error, value};
use crate::out;
use clap::Command;
use jerboa::task::TextPipeline;
use jerboa::text::{ChatInput, EncodeOptions};
use serde_json::json;

pub fn tokenize_command(command: Command) -> Command {
    with_texts(with_required_model(command))
        .arg(flag("special", "Recognize special tokens in the text").overrides_with("no-special"))
        .arg(
            flag("no-special", "Treat special tokens as plain text (default)")
                .overrides_with("special"),
        )
}

pub async fn tokenize(given: &CliArgs) -> Result<()> {
    let text = given.text_or_file()?;
    let options = EncodeOptions {
        add_special: true,
        parse_special: given.is_set("special"),
    };
    let parts = text_parts(given).await?;
    let ids = parts
        .tokenizer()
        .and_then(|t| t.encode_with_options(&text, options))
        .map_err(format_error)?;
    out::print_line(format_args!("{ids:?}"));
    Ok(())
}

/// Loads tokenizer and chat template, without the model.
async fn text_parts(given: &CliArgs) -> Result<TextPipeline> {
    TextPipeline::open(&given.source().await?)
        .await
        .map_err(format_error)
}

pub fn render_command(command: Command) -> Command {
    with_required_model(command).args([
        value("chat", "FILE", "JSON file with messages").required(true),
        flag(
            "continue-final",
            "End with the text of the last message, to be continued",
        ),
        flag("no-generation-prompt", "Do not add the generation prompt"),
    ])
}

pub async fn render(given: &CliArgs) -> Result<()> {
    let continue_final_message = given.is_set("continue-final");
    let input = ChatInput {
        add_generation_prompt: !continue_final_message && !given.is_set("no-generation-prompt"),
        continue_final_message,
        messages: given.messages()?,
        ..ChatInput::default()
    };
    out::print_text(
        text_parts(given)
            .await?
            .render(&input)
            .map_err(format_error)?
            .text,
    );
    Ok(())
}

pub fn perplexity_command(command: Command) -> Command {
    with_texts(with_required_model(command))
}

pub async fn perplexity(given: &CliArgs) -> Result<()> {
    let text = given.text_or_file()?;
    let (perplexity, tokens) = given
        .loaded()
        .await?
        .perplexity(&text)
        .await
        .map_err(format_error)?;
    out::print_line(json!({ "perplexity": perplexity, "tokens": tokens }));
    Ok(())
}
