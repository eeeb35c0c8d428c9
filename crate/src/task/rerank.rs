//! Reranking of documents for a query, with a classification head over pairs or a decoder that
//! answers yes or no.

use super::embed::{encoder_info, run_batches};
use super::text_pipeline::TextPipeline;
use crate::exec::{EncoderInput, EncoderModel};
use crate::hub::AbortFlag;
use crate::text::Tokenizer;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::rc::Rc;

/// Default instruction of Qwen3-Reranker.
const DEFAULT_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";
const PROMPT_PREFIX: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
                      Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const PROMPT_SUFFIX: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// Input format of a query and a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptStyle {
    /// A sequence pair.
    Pair,
    /// The yes-or-no prompt of Qwen3-Reranker.
    YesNo,
}

/// A loaded reranker.
pub struct Reranker {
    /// Encoder graph and weights.
    pub encoder: EncoderModel,
    /// Tokenizer and chat template.
    pub text: Rc<TextPipeline>,
    /// Input format.
    pub prompt_style: PromptStyle,
    /// Whether a sigmoid maps scores to 0 to 1.
    pub sigmoid: bool,
    /// Name that the model was loaded by.
    pub name: String,
    /// Commit hash, if the server named one.
    pub revision: Option<String>,
    /// Warnings of the load.
    pub warnings: Vec<String>,
}

impl Reranker {
    /// Returns `model.info` as JSON, with the JavaScript API's field names.
    pub fn info(&self) -> Value {
        let mut info = encoder_info(&self.encoder, &self.text, "rerank", &self.warnings);
        info["model"] = json!(self.name);
        info["revision"] = json!(self.revision);
        info
    }

    /// Scores each document, in input order.
    ///
    /// # Errors
    /// `Request` if the model does not support instructions; `Aborted`; errors of the tokenizer or
    /// the device.
    pub async fn rerank(
        &mut self,
        query: &str,
        documents: &[String],
        instruction: Option<&str>,
        abort: &AbortFlag,
    ) -> Result<Vec<f32>> {
        if instruction.is_some() && self.prompt_style == PromptStyle::Pair {
            let reason = "this model does not support instructions. Leave it out.".into();
            return Err(Error::Request {
                parameter: "instruction".into(),
                reason,
            });
        }
        let tokenizer = self.text.tokenizer()?;
        let longest = self.encoder.max_sequence_len;
        let tokens = |document: &String| match self.prompt_style {
            PromptStyle::Pair => {
                let (ids, types) = tokenizer.encode_pair(query, document, longest)?;
                Ok(EncoderInput {
                    ids,
                    types,
                    skip: 0,
                })
            }
            PromptStyle::YesNo => yes_no_prompt(
                tokenizer,
                query,
                document,
                instruction.unwrap_or(DEFAULT_INSTRUCTION),
                longest,
            ),
        };
        let rows = run_batches(&self.encoder, documents, tokens, abort, |_, _| {}).await?;
        let score = |row: &Vec<f32>| row.first().copied().unwrap_or(f32::NEG_INFINITY);
        let sigmoid = |x: f32| {
            if self.sigmoid {
                (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
            } else {
                x
            }
        };
        Ok(rows.iter().map(|row| sigmoid(score(row))).collect())
    }
}

/// Builds Qwen3-Reranker's prompt of at most `most` tokens by truncating query and document. Does
/// not parse their special tokens.
fn yes_no_prompt(
    tokenizer: &Tokenizer,
    query: &str,
    document: &str,
    instruction: &str,
    most: usize,
) -> Result<EncoderInput> {
    let mut ids = tokenizer.encode_trusted(PROMPT_PREFIX, false)?;
    let after = tokenizer.encode_trusted(PROMPT_SUFFIX, false)?;
    let text = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
    let mut middle = tokenizer.encode(&text, false)?;
    middle.truncate(most.saturating_sub(ids.len() + after.len()));
    ids.extend(middle);
    ids.extend(after);
    ids.truncate(most);
    Ok(EncoderInput {
        ids,
        types: Vec::new(),
        skip: 0,
    })
}
