//! Reranking of documents for a query, with a classification head over pairs or a decoder that
//! answers yes or no.

use super::embed::run_batches;
use super::kind::{Task, has_score_head};
use super::serves_task::{LoadFuture, ServesTask, TaskLoad};
use super::text_encoder::{EncoderText, TextEncoder, open_encoder};
use super::text_pipeline::TextPipeline;
use crate::arch::EncoderHead;
use crate::exec::EncoderInput;
use crate::gpu::Gpu;
use crate::hub::AbortFlag;
use crate::text::Tokenizer;
use crate::{Error, Result};
use serde_json::Value;
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
    /// The encoder with its tokenizer.
    pub encoder: TextEncoder,
    /// Input format.
    pub prompt_style: PromptStyle,
    /// Whether a sigmoid maps scores to 0 to 1.
    pub sigmoid: bool,
}

impl ServesTask for Reranker {
    #[inline(never)]
    fn load_task(request: TaskLoad<'_>) -> LoadFuture<'_, Self> {
        Box::pin(load_reranker(request))
    }

    fn info(&self) -> Value {
        self.encoder.info(Task::Rerank)
    }

    fn text(&self) -> &Rc<TextPipeline> {
        &self.encoder.text
    }

    fn gpu(&self) -> &Gpu {
        &self.encoder.model.gpu
    }
}

async fn load_reranker(request: TaskLoad<'_>) -> Result<Reranker> {
    let TaskLoad {
        gpu,
        source,
        files,
        name,
        options,
        ..
    } = request;
    let files = open_encoder(source, files, &[]).await?;
    let config = &files.config;
    let read = EncoderText::read(source, &files).await?;
    let text = read.sources.build(source)?;
    let (head, asking) = if has_score_head(config) {
        (EncoderHead::Score, PromptStyle::Pair)
    } else {
        let find = |token: &str| {
            let reason = || {
                format!(
                    "the vocabulary lacks the reranker's answer '{token}'. Use the original tokenizer."
                )
            };
            let id = text.tokenizer().ok().and_then(|t| t.token_to_id(token));
            id.ok_or_else(|| Error::Tokenizer { reason: reason() })
        };
        (
            EncoderHead::LogitDifference {
                yes: find("yes")?,
                no: Some(find("no")?),
            },
            PromptStyle::YesNo,
        )
    };
    let activation = config
        .get("sentence_transformers")
        .and_then(|s| s.get("activation_fn"))
        .or(config.get("sbert_ce_default_activation_function"))
        .and_then(Value::as_str)
        .unwrap_or("Sigmoid");
    let sigmoid = activation.ends_with("Sigmoid");
    if !sigmoid && !activation.ends_with("Identity") {
        return Err(Error::UnsupportedOption {
            architecture: config.class().into(),
            option: format!("activation_fn = {activation}"),
            hint: "Supported: Sigmoid and Identity.".into(),
        });
    }
    let from = (source, name);
    let encoder = TextEncoder::load(
        gpu,
        from,
        files,
        &head,
        (text, read.max_length),
        read.warnings,
        options,
    );
    let encoder = encoder.await?;
    if encoder.model.cols() != 1 {
        return Err(Error::UnsupportedOption {
            architecture: encoder.model.graph().name.clone(),
            option: format!("a head of {} labels", encoder.model.cols()),
            hint: "A reranker must have one label.".into(),
        });
    }
    Ok(Reranker {
        encoder,
        prompt_style: asking,
        sigmoid,
    })
}

impl Reranker {
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
        let tokenizer = self.encoder.text.tokenizer()?;
        let longest = self.encoder.model.max_sequence_len;
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
        let rows = run_batches(
            (&self.encoder.model, None),
            documents,
            tokens,
            abort,
            |_, _| {},
        )
        .await?;
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
