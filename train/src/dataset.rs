//! Sequences from texts and conversations.

use crate::batch::TrainSequence;
use crate::preference_data::is_pair;
use jerboa::task::TextPipeline;
use jerboa::text::ChatInput;
use jerboa::{Error, Result};
use serde_json::Value;

/// Returns the sequences of a text: its tokens and the end token, in parts of about the same length
/// of at most `max_length` tokens.
///
/// # Errors
/// Errors of the tokenizer.
pub fn text_sequences(
    text: &TextPipeline,
    document: &str,
    max_length: usize,
) -> Result<Vec<TrainSequence>> {
    let tokenizer = text.tokenizer()?;
    let mut ids = tokenizer.encode(document, true)?;
    ids.extend(tokenizer.eos_ids().first());
    // A short rest would count as much in its step as a long sequence.
    let count = ids.len().div_ceil(max_length.max(2)).max(1);
    let parts = ids.chunks(ids.len().div_ceil(count).max(2));
    let whole = |part: &[u32]| TrainSequence::whole(part.to_vec());
    Ok(parts.filter(|part| part.len() > 1).map(whole).collect())
}

/// Returns a sequence per answer of a conversation: the messages up to it, of which only the answer
/// counts in the loss.
///
/// # Errors
/// Errors of the tokenizer and the chat template; `Request` for a conversation without an answer.
pub fn chat_sequences(text: &TextPipeline, messages: &[Value]) -> Result<Vec<TrainSequence>> {
    let mut sequences = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if message["role"] != "assistant" {
            continue;
        }
        let prompt = chat_ids(text, &messages[..index], true)?;
        let ids = chat_ids(text, &messages[..=index], false)?;
        sequences.push(TrainSequence {
            first_label: shared_prefix(&prompt, &ids),
            ids,
        });
    }
    if sequences.is_empty() {
        return Err(Error::Request {
            parameter: "messages".into(),
            reason:
                "the conversation has no message with role 'assistant'. Add the answer to learn."
                    .into(),
        });
    }
    Ok(sequences)
}

/// Returns the token ids of a conversation by the chat template.
pub(crate) fn chat_ids(
    text: &TextPipeline,
    messages: &[Value],
    add_generation_prompt: bool,
) -> Result<Vec<u32>> {
    let prompt = text.render(&ChatInput {
        messages: messages.to_vec(),
        add_generation_prompt,
        ..ChatInput::default()
    })?;
    text.tokenizer()?.encode_prompt(&prompt)
}

/// Returns the tokens of a prompt that a sequence begins with: templates may write an answer
/// otherwise than they begin it, and tokens may cross the end of a text.
pub(crate) fn shared_prefix(prompt: &[u32], ids: &[u32]) -> usize {
    prompt.iter().zip(ids).take_while(|(a, b)| a == b).count()
}

/// Separates a `share` of sequences or pairs that only measure the loss of what is not trained on,
/// evenly spread: at least one, unless there is only one or the share is 0. Returns the others first.
pub fn split_evaluation<T>(items: Vec<T>, share: f32) -> (Vec<T>, Vec<T>) {
    let all = items.len();
    let most = all.saturating_sub(1);
    let held = if share > 0.0 {
        ((all as f32 * share) as usize).clamp(1.min(most), most)
    } else {
        0
    };
    let mut train = Vec::with_capacity(all - held);
    let mut evaluation = Vec::with_capacity(held);
    for (index, item) in items.into_iter().enumerate() {
        // The middles of `held` equal ranges.
        let middle = (2 * evaluation.len() + 1) * all / (2 * held).max(1);
        if evaluation.len() < held && index == middle {
            evaluation.push(item);
        } else {
            train.push(item);
        }
    }
    (train, evaluation)
}

/// A line of a JSON lines file.
pub(crate) struct JsonLine<'a> {
    /// What the line has.
    pub value: Value,
    file: &'a str,
    number: usize,
}

impl JsonLine<'_> {
    /// The error of this line.
    pub fn fault(&self, reason: &str) -> Error {
        fault(self.file, self.number, reason)
    }
}

fn fault(file: &str, number: usize, reason: &str) -> Error {
    Error::Request {
        parameter: "data".into(),
        reason: format!("line {number} of {file}: {reason}"),
    }
}

/// The lines of a `.jsonl` file that are not empty; none of other files.
pub(crate) fn numbered_lines<'a>(
    file: &'a str,
    content: &'a str,
) -> impl Iterator<Item = Result<JsonLine<'a>>> {
    let lines = content.lines().enumerate();
    lines
        .filter(move |(_, line)| is_json_lines(file) && !line.trim().is_empty())
        .map(move |(index, line)| {
            let number = index + 1;
            let value = serde_json::from_str(line);
            Ok(JsonLine {
                value: value.map_err(|e| fault(file, number, &format!("invalid JSON: {e}")))?,
                file,
                number,
            })
        })
}

fn is_json_lines(file: &str) -> bool {
    file.ends_with(".jsonl")
}

/// Returns the sequences of a file: a text, or JSON lines with `text` or `messages` each.
///
/// # Errors
/// `Request` for lines that are neither; errors of the tokenizer and the chat template.
pub fn file_sequences(
    text: &TextPipeline,
    name: &str,
    content: &str,
    max_length: usize,
) -> Result<Vec<TrainSequence>> {
    if !is_json_lines(name) {
        return text_sequences(text, content, max_length);
    }
    let mut sequences = Vec::new();
    for line in numbered_lines(name, content) {
        let line = line?;
        if is_pair(&line.value) {
            return Err(
                line.fault("pairs cannot follow other lines. Use a file of its own for each")
            );
        }
        match (
            line.value["text"].as_str(),
            line.value["messages"].as_array(),
        ) {
            (Some(document), _) => sequences.extend(text_sequences(text, document, max_length)?),
            (_, Some(messages)) => sequences.extend(chat_sequences(text, messages)?),
            _ => {
                return Err(line.fault(
                    "expected an object with 'text', 'messages', or 'chosen' and 'rejected'",
                ));
            }
        }
    }
    Ok(sequences)
}
