//! Examples for embedding models: a query, the text that answers it, and texts that do not.

use jerboa::exec::EncoderInput;
use jerboa::task::{EmbedEncoder, SentenceTransformersConfig};
use jerboa::text::Tokenizer;
use jerboa::{Error, Result};
use serde_json::Value;

/// An example as callers give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingExample {
    /// The anchor.
    pub query: String,
    /// Text that the query shall find.
    pub positive: String,
    /// Texts that are similar to the positive, but that the query shall not find.
    pub negatives: Vec<String>,
}

impl EmbeddingExample {
    /// Whether a JSON value is meant as an example.
    pub fn is_like(value: &Value) -> bool {
        value.get("query").is_some() || value.get("positive").is_some()
    }

    /// Reads an example from JSON: `{ query, positive, negatives? }`.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let fields = value
            .as_object()
            .ok_or("it is not an object with 'query' and 'positive'")?;
        if let Some(name) = fields
            .keys()
            .find(|name| !["query", "positive", "negatives"].contains(&name.as_str()))
        {
            return Err(format!(
                "unknown field '{name}'. Use 'query', 'positive' and 'negatives'"
            ));
        }
        let filled = |value: &Value| {
            let text = value.as_str().filter(|text| !text.trim().is_empty());
            text.map(str::to_owned)
        };
        let text = |name: &str| {
            let found = fields.get(name).and_then(filled);
            found.ok_or_else(|| format!("'{name}' must be a string that is not empty"))
        };
        let negatives = match fields.get("negatives") {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(Value::Array(all)) => all.iter().map(filled).collect(),
            Some(_) => None,
        };
        Ok(Self {
            query: text("query")?,
            positive: text("positive")?,
            negatives: negatives
                .ok_or("'negatives' must be an array of strings that are not empty")?,
        })
    }
}

/// A tokenized example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingPair {
    /// The anchor.
    pub query: EncoderInput,
    /// Its positive.
    pub positive: EncoderInput,
    /// Its negatives.
    pub negatives: Vec<EncoderInput>,
}

impl EmbeddingPair {
    /// All sequences.
    pub fn sequences(&self) -> impl Iterator<Item = &EncoderInput> {
        [&self.query, &self.positive]
            .into_iter()
            .chain(&self.negatives)
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.sequences().map(|input| input.ids.len()).sum()
    }
}

/// Tokenizes examples as `embed` does: queries with the model's prompt for `query`, other texts with
/// that for `document`. Longer texts are cut off at `max_length` tokens.
///
/// # Errors
/// Errors of the tokenizer; `Request` for a text without tokens.
pub fn embedding_pairs(
    config: &SentenceTransformersConfig,
    tokenizer: &Tokenizer,
    pairs: &[EmbeddingExample],
    max_length: usize,
) -> Result<Vec<EmbeddingPair>> {
    let encoder = |task: &str| {
        let prompt = config.prompt(Some(task), None)?;
        EmbedEncoder::new(config, tokenizer, prompt, max_length)
    };
    let [queries, documents] = [encoder("query")?, encoder("document")?];
    let encode = |encoder: &EmbedEncoder<'_>, text: &str| {
        let input = encoder.encode(text)?;
        match input.ids.is_empty() {
            false => Ok(input),
            true => Err(Error::Request {
                parameter: "dataset".into(),
                reason: format!("the text {text:?} has no tokens. Leave the example out."),
            }),
        }
    };
    let tokenized = |pair: &EmbeddingExample| {
        let negatives = pair.negatives.iter();
        Ok(EmbeddingPair {
            query: encode(&queries, &pair.query)?,
            positive: encode(&documents, &pair.positive)?,
            negatives: negatives
                .map(|text| encode(&documents, text))
                .collect::<Result<_>>()?,
        })
    };
    pairs.iter().map(tokenized).collect()
}

/// Reads the examples of a file of JSON lines.
///
/// # Errors
/// `Request` with the line that is no example.
pub fn file_examples(name: &str, content: &str) -> Result<Vec<EmbeddingExample>> {
    let mut pairs = Vec::new();
    for (index, line) in content.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let value = serde_json::from_str(line).map_err(|e| format!("invalid JSON: {e}"));
        let pair = value.and_then(|value: Value| EmbeddingExample::from_json(&value));
        pairs.push(pair.map_err(|reason| Error::Request {
            parameter: "data".into(),
            reason: format!("line {} of {name}: {reason}", index + 1),
        })?);
    }
    Ok(pairs)
}

/// Whether the first line of a file of JSON lines is an example for embedding models.
pub fn is_examples_file(name: &str, content: &str) -> bool {
    let mut lines = content.lines().filter(|line| !line.trim().is_empty());
    let first = lines
        .next()
        .and_then(|line| serde_json::from_str(line).ok());
    name.ends_with(".jsonl") && first.is_some_and(|value: Value| EmbeddingExample::is_like(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_read_from_lines() {
        let lines = r#"{"query": "Who?", "positive": "The cat."}

{"query": "Where?", "positive": "At home.", "negatives": ["In Rome."]}"#;
        assert!(is_examples_file("data.jsonl", lines));
        assert!(!is_examples_file("data.txt", lines));
        assert!(!is_examples_file("data.jsonl", r#"{"text": "Once"}"#));
        let pairs = file_examples("data.jsonl", lines).expect("two examples");
        assert_eq!(pairs.len(), 2);
        assert_eq!(pairs[1].negatives, ["In Rome."]);
        for (line, expected) in [
            ("[]", "not an object"),
            ("{", "invalid JSON"),
            (r#"{"query": "a"}"#, "'positive' must"),
            (r#"{"query": " ", "positive": "b"}"#, "'query' must"),
            (
                r#"{"query": "a", "positive": "b", "negatives": "c"}"#,
                "'negatives' must",
            ),
            (
                r#"{"query": "a", "positive": "b", "negative": "c"}"#,
                "unknown field 'negative'",
            ),
        ] {
            let error = file_examples("data.jsonl", line)
                .expect_err(line)
                .to_string();
            assert!(
                error.contains(expected) && error.contains("line 1"),
                "{error}"
            );
        }
    }
}
