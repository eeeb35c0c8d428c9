//! Sequences from texts and conversations.

use crate::batch::TrainSequence;
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
    let tokenizer = text.tokenizer()?;
    let encode = |messages: &[Value], add_generation_prompt| -> Result<Vec<u32>> {
        let prompt = text.render(&ChatInput {
            messages: messages.to_vec(),
            add_generation_prompt,
            ..ChatInput::default()
        })?;
        tokenizer.encode_prompt(&prompt)
    };
    let mut sequences = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if message["role"] != "assistant" {
            continue;
        }
        let prompt = encode(&messages[..index], true)?;
        let ids = encode(&messages[..=index], false)?;
        // Templates may write an answer otherwise than they begin it.
        let shared = prompt.iter().zip(&ids).take_while(|(a, b)| a == b);
        sequences.push(TrainSequence {
            first_label: shared.count(),
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

/// Separates a `share` of sequences that only measure the loss of what is not trained on, evenly
/// spread: at least one, unless there is only one or the share is 0. Returns the others first.
pub fn split_evaluation(
    sequences: Vec<TrainSequence>,
    share: f32,
) -> (Vec<TrainSequence>, Vec<TrainSequence>) {
    let all = sequences.len();
    let most = all.saturating_sub(1);
    let held = if share > 0.0 {
        ((all as f32 * share) as usize).clamp(1.min(most), most)
    } else {
        0
    };
    let mut train = Vec::with_capacity(all - held);
    let mut evaluation = Vec::with_capacity(held);
    for (index, sequence) in sequences.into_iter().enumerate() {
        // The middles of `held` equal ranges.
        let middle = (2 * evaluation.len() + 1) * all / (2 * held).max(1);
        if evaluation.len() < held && index == middle {
            evaluation.push(sequence);
        } else {
            train.push(sequence);
        }
    }
    (train, evaluation)
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
    if !name.ends_with(".jsonl") {
        return text_sequences(text, content, max_length);
    }
    let mut sequences = Vec::new();
    for (index, line) in content.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let fault = |reason: &str| Error::Request {
            parameter: "data".into(),
            reason: format!("line {} of {name}: {reason}", index + 1),
        };
        let value: Value =
            serde_json::from_str(line).map_err(|e| fault(&format!("invalid JSON: {e}")))?;
        match (value["text"].as_str(), value["messages"].as_array()) {
            (Some(document), _) => sequences.extend(text_sequences(text, document, max_length)?),
            (_, Some(messages)) => sequences.extend(chat_sequences(text, messages)?),
            _ => return Err(fault("expected an object with 'text' or 'messages'")),
        }
    }
    Ok(sequences)
}
