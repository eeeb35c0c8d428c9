//! Embeddings of text and images: prompts, tokenization, batches in flight, truncation and
//! normalization.

use super::language_model::{common_info, modalities};
use super::request::EmbedRequest;
use super::sentence_transformers::SentenceTransformersConfig;
use super::text_pipeline::TextPipeline;
use super::vision::VisionPipeline;
use crate::arch;
use crate::exec::{EncoderInput, EncoderModel, PendingRows, RunOptions};
use crate::hub::{AbortFlag, Source};
use crate::util::clock::now_ms;
use crate::util::sort::sort_by;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::rc::Rc;

/// Batches in flight: one runs while the rows of another are read back.
const MAX_IN_FLIGHT: usize = 2;
/// Tokens of the first batch. Later batches double below `QUICK_MS` and halve above `SLOW_MS`, so
/// that progress and aborts work on a slow device.
const FIRST_BATCH_TOKENS: usize = 1024;
const QUICK_MS: f64 = 60.0;
const SLOW_MS: f64 = 400.0;

/// Input of an embedding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbedInput {
    /// Text, to which the prompt and the model's special tokens are added.
    Text(String),
    /// Token ids, used unchanged.
    Ids(Vec<u32>),
}

/// A loaded embedding model.
pub struct Embedder {
    /// Encoder graph and weights.
    pub encoder: EncoderModel,
    /// Tokenizer and chat template.
    pub text: Rc<TextPipeline>,
    /// Settings of sentence-transformers.
    pub config: SentenceTransformersConfig,
    /// Name that the model was loaded by.
    pub name: String,
    /// Commit hash, if the server named one.
    pub revision: Option<String>,
    /// Warnings of the load.
    pub warnings: Vec<String>,
    /// Image and video input, set by [`Self::open_eyes`].
    pub vision: Option<Rc<VisionPipeline>>,
}

impl Embedder {
    /// Returns `model.info` as JSON, with the JavaScript API's field names.
    pub fn info(&self) -> Value {
        let mut info = encoder_info(&self.encoder, &self.text, "embed", &self.warnings);
        info["model"] = json!(self.name);
        info["revision"] = json!(self.revision);
        info["dimensions"] = json!(self.encoder.cols());
        info["prompts"] = json!(self.config.prompts);
        info["capabilities"] = modalities(self.vision.as_ref());
        info
    }

    /// Embeds strings, in input order. Calls `progress(done, total)`.
    ///
    /// # Errors
    /// `Request` for unsupported options; `Aborted`; errors of the tokenizer or the device.
    pub async fn embed(
        &mut self,
        texts: &[String],
        request: &EmbedRequest,
        abort: &AbortFlag,
        progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Vec<f32>>> {
        let inputs: Vec<EmbedInput> = texts.iter().cloned().map(EmbedInput::Text).collect();
        self.embed_inputs(&inputs, request, abort, progress).await
    }

    /// Embeds strings and lists of token ids, in input order. Calls `progress(done, total)`.
    ///
    /// # Errors
    /// As [`Self::embed`]; `Request` for ids outside the vocabulary.
    pub async fn embed_inputs(
        &mut self,
        inputs: &[EmbedInput],
        request: &EmbedRequest,
        abort: &AbortFlag,
        progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Vec<f32>>> {
        let cols = self.encoder.cols();
        let dims = self.requested_dims(request)?;

        let prompt = self
            .config
            .prompt(request.task.as_deref(), request.prompt.as_deref())?;
        let tokenizer = self.text.tokenizer()?;
        let longest = self.encoder.max_sequence_len;
        let skip = match self.config.include_prompt || prompt.is_empty() {
            true => 0,
            false => tokenizer.prefix_len() + tokenizer.encode_trusted(prompt, false)?.len(),
        };
        let vocabulary = self.encoder.vocab();
        let tokens = |input: &EmbedInput| {
            let (mut ids, skip) = match input {
                EmbedInput::Text(text) => {
                    let whole = format!("{prompt}{text}");
                    let whole = if self.config.lower_case {
                        whole.to_lowercase()
                    } else {
                        whole
                    };
                    (tokenizer.encode_text(&whole, longest)?, skip)
                }
                EmbedInput::Ids(ids) => {
                    if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
                        let reason = format!(
                            "token id {id} is not below the vocabulary size {vocabulary}. Use this model's tokenizer."
                        );
                        return Err(Error::Request {
                            parameter: "input".into(),
                            reason,
                        });
                    }
                    (ids[..ids.len().min(longest)].to_vec(), 0)
                }
            };
            if let Some((token, count)) = self.config.padding {
                ids.resize(count, token);
            }
            Ok(EncoderInput {
                ids,
                types: Vec::new(),
                skip,
            })
        };
        let normalize = request.normalize.unwrap_or(self.config.normalize);
        let rows = run_batches(&self.encoder, inputs, tokens, abort, progress).await?;
        Ok(rows
            .into_iter()
            .map(|row| truncate_and_normalize(row, cols, dims, normalize))
            .collect())
    }

    /// Returns the number of dimensions that a request asks for.
    fn requested_dims(&self, request: &EmbedRequest) -> Result<usize> {
        let cols = self.encoder.cols();
        let dims = request.truncate_dim.unwrap_or(cols);
        if dims == 0 || dims > cols {
            let reason = format!(
                "{dims} is out of range: embeddings have {cols} dimensions. Use 1 to {cols}."
            );
            return Err(Error::Request {
                parameter: "truncateDim".into(),
                reason,
            });
        }
        Ok(dims)
    }

    /// Enables image input for models that embed text and images jointly. The vision encoder loads
    /// with the first image.
    ///
    /// # Errors
    /// Unsupported image processors and missing settings; errors of the source.
    pub async fn enable_vision(&mut self, source: Rc<Source>, options: RunOptions) -> Result<()> {
        if arch::joint_embedding(&self.encoder.config).is_some() {
            let EncoderModel {
                gpu,
                config,
                max_sequence_len: longest,
                ..
            } = &self.encoder;
            self.vision = VisionPipeline::open(gpu, config, *longest, source, None, options)
                .await?
                .map(Rc::new);
        }
        Ok(())
    }

    /// Returns the embedding of an encoded image.
    ///
    /// # Errors
    /// `Request` for models without image input and for unknown image ids.
    pub async fn image_embedding(&self, image_id: u32, request: &EmbedRequest) -> Result<Vec<f32>> {
        let dims = self.requested_dims(request)?;
        let sight = self.vision.as_ref().ok_or_else(|| Error::Request {
            parameter: "input".into(),
            reason:
                "this model embeds text only. Leave out images, or load a CLIP or SigLIP model."
                    .into(),
        })?;
        let row = sight.embeddings(image_id).await?;
        Ok(truncate_and_normalize(
            row,
            self.encoder.cols(),
            dims,
            request.normalize.unwrap_or(self.config.normalize),
        ))
    }
}

/// Truncates an embedding and normalizes it. The embedding of an empty input stays zero.
fn truncate_and_normalize(
    mut row: Vec<f32>,
    cols: usize,
    dims: usize,
    normalize: bool,
) -> Vec<f32> {
    row.resize(cols, 0.0);
    row.truncate(dims);
    if normalize {
        let length = row
            .iter()
            .map(|v| f64::from(*v).powi(2))
            .sum::<f64>()
            .sqrt();
        if length > 0.0 {
            row.iter_mut()
                .for_each(|v| *v = (f64::from(*v) / length) as f32);
        }
    }
    row
}

/// Returns `model.info` of an encoder model as JSON.
pub(super) fn encoder_info(
    encoder: &EncoderModel,
    text: &TextPipeline,
    task: &str,
    warnings: &[String],
) -> Value {
    let mut info = common_info(
        &encoder.gpu,
        &encoder.config,
        encoder.weights(),
        encoder.bytes,
    );
    info["architecture"] = json!(encoder.graph().name);
    info["task"] = json!(task);
    info["parameters"] = json!(encoder.parameters());
    info["precision"] = json!(encoder.precision.name());
    info["contextLength"] = json!(encoder.max_sequence_len);
    info["vocabSize"] = json!(encoder.vocab());
    info["dispatchesPerBatch"] = json!(encoder.dispatches());
    info["load"] = json!(encoder.load);
    info["hasChatTemplate"] = json!(text.has_template());
    info["warnings"] = json!(warnings);
    info
}

/// Runs inputs in packed batches and tokenizes one batch while earlier ones run. Returns one row
/// per input, in input order; the row of an input without tokens is empty.
pub(super) async fn run_batches<T>(
    encoder: &EncoderModel,
    texts: &[T],
    tokens: impl Fn(&T) -> Result<EncoderInput>,
    abort: &AbortFlag,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Vec<f32>>> {
    let mut queue = BatchQueue::new(encoder, texts.len());
    let mut made: Vec<(usize, EncoderInput)> = Vec::new();
    let mut total = 0;
    for (index, text) in texts.iter().enumerate() {
        let text = tokens(text)?;
        total += text.ids.len();
        made.push((index, text));
        let last = index + 1 == texts.len();
        while !made.is_empty()
            && (last || total >= queue.budget || made.len() >= encoder.max_batch_sequences)
        {
            abort.check("embedding")?;
            // Sequences of similar length share attention tiles; the longest come first.
            sort_by(&mut made, |(_, a): &(usize, EncoderInput), (_, b)| {
                b.ids.len().cmp(&a.ids.len())
            });
            let batch: Vec<(usize, EncoderInput)> =
                made.drain(..queue.next_batch_len(&made)).collect();
            total = made.iter().map(|(_, t)| t.ids.len()).sum();
            queue.submit(&batch)?;
            while queue.in_flight.len() >= MAX_IN_FLIGHT {
                queue.wait_oldest().await?;
                abort.check("embedding")?;
                progress(queue.done, texts.len());
            }
        }
    }
    while !queue.in_flight.is_empty() {
        queue.wait_oldest().await?;
        abort.check("embedding")?;
        progress(queue.done, texts.len());
    }
    Ok(queue.rows)
}

/// Batches in flight and the rows read back so far.
struct BatchQueue<'a> {
    encoder: &'a EncoderModel,
    in_flight: VecDeque<(Vec<usize>, PendingRows)>,
    rows: Vec<Vec<f32>>,
    done: usize,
    /// Token budget of the next batch.
    budget: usize,
    last_ms: f64,
}

impl<'a> BatchQueue<'a> {
    fn new(encoder: &'a EncoderModel, count: usize) -> Self {
        let budget = FIRST_BATCH_TOKENS.min(encoder.max_batch_tokens);
        Self {
            encoder,
            in_flight: VecDeque::new(),
            rows: vec![Vec::new(); count],
            done: 0,
            budget,
            last_ms: now_ms(),
        }
    }

    /// Returns how many inputs fit into the next batch, at least one.
    fn next_batch_len(&self, texts: &[(usize, EncoderInput)]) -> usize {
        let mut total = 0;

        texts
            .iter()
            .take(self.encoder.max_batch_sequences)
            .take_while(|(_, text): &&(usize, EncoderInput)| {
                total += text.ids.len();
                total <= self.budget
            })
            .count()
            .max(1)
    }

    fn submit(&mut self, batch: &[(usize, EncoderInput)]) -> Result<()> {
        let some: Vec<&(usize, EncoderInput)> =
            batch.iter().filter(|(_, t)| !t.ids.is_empty()).collect();
        self.done += batch.len() - some.len();
        if some.is_empty() {
            return Ok(());
        }
        let texts: Vec<&EncoderInput> = some.iter().map(|(_, t)| t).collect();
        let outputs = self.encoder.submit(&texts)?;
        self.in_flight
            .push_back((some.iter().map(|(index, _)| *index).collect(), outputs));
        Ok(())
    }

    /// Waits for the oldest batch and adapts the token budget.
    async fn wait_oldest(&mut self) -> Result<()> {
        let Some((places, outputs)) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let rows = outputs.wait().await?;
        for (place, row) in places.iter().zip(rows.chunks_exact(self.encoder.cols())) {
            self.rows[*place] = row.to_vec();
        }
        self.done += places.len();
        let now = now_ms();
        let took = now - std::mem::replace(&mut self.last_ms, now);
        if took < QUICK_MS {
            self.budget = (self.budget * 2).min(self.encoder.max_batch_tokens);
        } else if took > SLOW_MS {
            self.budget = (self.budget / 2).max(64);
        }
        Ok(())
    }
}
