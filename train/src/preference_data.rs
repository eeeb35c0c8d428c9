//! Preference pairs from texts and conversations, in the formats of TRL.

use crate::batch::{PreferencePair, TrainSequence};
use crate::dataset::{chat_ids, file_sequences, numbered_lines, shared_prefix};
use jerboa::task::TextPipeline;
use jerboa::{Error, Result};
use serde_json::{Value, json};

/// Data of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TrainData {
    /// Sequences to learn.
    Sequences(Vec<TrainSequence>),
    /// Pairs to prefer.
    Pairs(Vec<PreferencePair>),
}

/// A pair before it is tokenized.
#[derive(Debug, Clone, PartialEq)]
enum PairText {
    /// Prompt, chosen and rejected.
    Strings([String; 3]),
    /// Messages of the prompt, then those that follow it in either case.
    Messages([Vec<Value>; 3]),
}

/// Whether an item of a data set is a pair: an object with `chosen` or `rejected`.
pub fn is_pair(item: &Value) -> bool {
    ["chosen", "rejected"]
        .iter()
        .any(|key| item.get(key).is_some())
}

/// Returns a pair of an object with `chosen`, `rejected` and a prompt: strings or arrays of
/// messages. The prompt is `prompt` or `messages`; without one, what both answers begin with.
///
/// Strings follow each other and end with the end token. Messages are rendered by the chat
/// template; all after the prompt counts. Strings after a conversation are the assistant's answers.
/// A `prompt` that is a string is not read if the answers are conversations that repeat it.
///
/// # Errors
/// `fault` of the reason, for objects of another form; errors of the tokenizer and the chat
/// template.
pub fn preference_pair(
    text: &TextPipeline,
    item: &Value,
    fault: impl Fn(&str) -> Error,
) -> Result<PreferencePair> {
    let parts = parse(item).map_err(|reason| fault(&reason))?;
    let [chosen, rejected] = match parts {
        PairText::Strings([prompt, chosen, rejected]) => {
            let tokenizer = text.tokenizer()?;
            let prompt_ids = tokenizer.encode(&prompt, true)?;
            let sequence = |answer: String| {
                let mut ids = tokenizer.encode(&(prompt.clone() + &answer), true)?;
                ids.extend(tokenizer.eos_ids().first());
                Ok(answered(&prompt_ids, ids))
            };
            [sequence(chosen)?, sequence(rejected)?]
        }
        PairText::Messages([prompt, chosen, rejected]) => {
            let prompt_ids = chat_ids(text, &prompt, true)?;
            let sequence = |answer: Vec<Value>| {
                let all = [&prompt[..], &answer[..]].concat();
                Ok(answered(&prompt_ids, chat_ids(text, &all, false)?))
            };
            [sequence(chosen)?, sequence(rejected)?]
        }
    };
    Ok(PreferencePair::new(chosen, rejected))
}

fn answered(prompt: &[u32], ids: Vec<u32>) -> TrainSequence {
    TrainSequence {
        first_label: shared_prefix(prompt, &ids),
        ids,
    }
}

/// Separates the prompt and the answers of an object.
fn parse(item: &Value) -> Result<PairText, String> {
    let answer = |key: &str| match item.get(key) {
        None | Some(Value::Null) => Err(format!(
            "the pair has no '{key}'. Give 'prompt', 'chosen' and 'rejected'"
        )),
        Some(Value::String(text)) if text.trim().is_empty() => Err(format!("'{key}' is empty")),
        Some(Value::Array(messages)) if messages.is_empty() => Err(format!("'{key}' is empty")),
        Some(value @ (Value::String(_) | Value::Array(_))) => Ok(value.clone()),
        Some(_) => Err(format!("'{key}' must be a string or an array of messages")),
    };
    let answers = [answer("chosen")?, answer("rejected")?];
    if answers[0] == answers[1] {
        return Err("'chosen' and 'rejected' are equal, so there is nothing to prefer".into());
    }
    let prompts = ["prompt", "messages"].map(|key| item.get(key).filter(|v| !v.is_null()));
    let prompt = match prompts {
        [Some(_), Some(_)] => return Err("the pair has both 'prompt' and 'messages'".into()),
        [prompt, messages] => prompt.or(messages),
    };
    match (prompt, answers) {
        (Some(Value::String(prompt)), [Value::String(chosen), Value::String(rejected)]) => {
            Ok(PairText::Strings([prompt.clone(), chosen, rejected]))
        }
        (Some(Value::Array(prompt)), [Value::String(chosen), Value::String(rejected)]) => {
            let message =
                |content: String| vec![json!({ "role": "assistant", "content": content })];
            conversations(prompt.clone(), message(chosen), message(rejected))
        }
        (Some(Value::Array(prompt)), [Value::Array(chosen), Value::Array(rejected)]) => {
            conversations(prompt.clone(), chosen, rejected)
        }
        (None, [Value::String(chosen), Value::String(rejected)]) => {
            let [prompt, chosen, rejected] = without_shared_text(&chosen, &rejected)?;
            Ok(PairText::Strings([prompt, chosen, rejected]))
        }
        (None | Some(Value::String(_)), [Value::Array(chosen), Value::Array(rejected)]) => {
            let equal = chosen.iter().zip(&rejected).take_while(|(a, b)| a == b);
            let shared = equal.count();
            let [prompt, chosen, rejected] =
                [&chosen[..shared], &chosen[shared..], &rejected[shared..]].map(<[Value]>::to_vec);
            conversations(prompt, chosen, rejected)
        }
        (Some(Value::Array(_) | Value::String(_)) | None, _) => {
            Err("'chosen' and 'rejected' must both be strings, or both arrays of messages".into())
        }
        (Some(_), _) => Err("the prompt must be a string or an array of messages".into()),
    }
}

/// Separates what two texts begin with, up to a space before the first difference, as TRL does.
fn without_shared_text(chosen: &str, rejected: &str) -> Result<[String; 3], String> {
    let same = chosen
        .chars()
        .zip(rejected.chars())
        .take_while(|(a, b)| a == b);
    let mut end: usize = same.map(|(a, _)| a.len_utf8()).sum();
    if chosen[..end].ends_with(' ') {
        end -= 1;
    }
    if end == 0 {
        return Err(NO_PROMPT.into());
    }
    Ok([&chosen[..end], &chosen[end..], &rejected[end..]].map(String::from))
}

const NO_PROMPT: &str =
    "the pair has no prompt, and 'chosen' and 'rejected' begin differently. Add 'prompt'";

fn conversations(
    prompt: Vec<Value>,
    chosen: Vec<Value>,
    rejected: Vec<Value>,
) -> Result<PairText, String> {
    if prompt.is_empty() {
        return Err(NO_PROMPT.into());
    }
    for (key, answer) in [("chosen", &chosen), ("rejected", &rejected)] {
        if answer
            .last()
            .is_none_or(|message| message["role"] != "assistant")
        {
            return Err(format!(
                "'{key}' must end with a message with role 'assistant' that the other answer has not"
            ));
        }
    }
    Ok(PairText::Messages([prompt, chosen, rejected]))
}

/// Returns the data of a file: a text, or JSON lines with `text`, with `messages`, or with `chosen`
/// and `rejected`. Lines are all pairs or none.
///
/// # Errors
/// `Request` for other lines; errors of the tokenizer and the chat template.
pub fn file_data(
    text: &TextPipeline,
    name: &str,
    content: &str,
    max_length: usize,
) -> Result<TrainData> {
    let mut pairs = Vec::new();
    for line in numbered_lines(name, content) {
        let line = line?;
        match is_pair(&line.value) {
            true => pairs.push(preference_pair(text, &line.value, |reason| {
                line.fault(reason)
            })?),
            false if pairs.is_empty() => break,
            false => {
                return Err(line.fault(
                    "expected a pair with 'chosen' and 'rejected', as in the lines before",
                ));
            }
        }
    }
    if !pairs.is_empty() {
        return Ok(TrainData::Pairs(pairs));
    }
    file_sequences(text, name, content, max_length).map(TrainData::Sequences)
}
