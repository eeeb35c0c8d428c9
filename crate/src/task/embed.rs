//! Vectors of texts: prompts, tokens, batches in flight, cutting and scaling. It knows text and vectors; how they are
//! computed is the engine's business.

use super::language::{describe, takes};
use super::parts::TextParts;
use super::sentence::SentenceConfig;
use super::sight::Sight;
use crate::arch;
use crate::exec::{Encoder, Outputs, RunOptions, Tokens};
use crate::hub::{AbortFlag, Source};
use crate::util::clock::now_ms;
use crate::util::lists::sort_by;
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::rc::Rc;

/// Batches that the GPU has at once: one works while another's rows come back.
const IN_FLIGHT: usize = 2;
/// Tokens of the first batch; later ones grow while batches take less than `QUICK_MS` and shrink over `SLOW_MS`, so that
/// progress is seen and an abort takes hold on a slow device.
const FIRST: usize = 1024;
const QUICK_MS: f64 = 60.0;
const SLOW_MS: f64 = 400.0;

/// How texts are embedded, in the names of the JavaScript face.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EmbedRequest {
    /// The name of one of the model's prompts.
    pub task: Option<String>,
    /// A text before each input instead.
    pub prompt: Option<String>,
    /// Whether vectors are scaled to length 1; as the model's files say by default.
    pub normalize: Option<bool>,
    /// Keeps the first so many numbers.
    pub truncate_dim: Option<usize>,
}

/// What becomes a vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbedInput {
    /// A text, behind the prompt and between the special tokens that the model wants.
    Text(String),
    /// Token ids as they are.
    Ids(Vec<u32>),
}

/// A loaded embedding model.
pub struct Embedder {
    /// The engine.
    pub encoder: Encoder,
    /// Tokenizer and template.
    pub text: Rc<TextParts>,
    /// What sentence-transformers' files say.
    pub config: SentenceConfig,
    /// The name that it was loaded by.
    pub name: String,
    /// The commit, where the server named one.
    pub revision: Option<String>,
    /// What did not go as asked.
    pub warnings: Vec<String>,
    /// How it sees, after [`Self::open_eyes`].
    pub sight: Option<Rc<Sight>>,
}

impl Embedder {
    /// What the model is and what it costs, in the names of the JavaScript face.
    pub fn info(&self) -> Value {
        let mut info = describe_encoder(&self.encoder, &self.text, "embed", &self.warnings);
        info["model"] = json!(self.name);
        info["revision"] = json!(self.revision);
        info["dimensions"] = json!(self.encoder.cols());
        info["prompts"] = json!(self.config.prompts);
        info["capabilities"] = takes(self.sight.as_ref());
        info
    }

    /// The vectors of texts, in their order; `progress` hears how many are done.
    ///
    /// # Errors
    /// `Request` for what the model cannot do, `Aborted`, or what the tokenizer or the device refuses.
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

    /// The vectors of texts and of lists of token ids, in their order; `progress` hears how many are done.
    ///
    /// # Errors
    /// As [`Self::embed`]; `Request` for ids that the vocabulary does not have.
    pub async fn embed_inputs(
        &mut self,
        inputs: &[EmbedInput],
        request: &EmbedRequest,
        abort: &AbortFlag,
        progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Vec<f32>>> {
        let (cols, dims) = (self.encoder.cols(), self.dims(request)?);
        let prompt = self.config.prompt(request.task.as_deref(), request.prompt.as_deref())?;
        let tokenizer = self.text.tokenizer()?;
        let longest = self.encoder.longest;
        let skip = match self.config.include_prompt || prompt.is_empty() {
            true => 0,
            false => tokenizer.prefix_len() + tokenizer.encode_trusted(prompt, false)?.len(),
        };
        let vocabulary = self.encoder.vocab();
        let tokens = |input: &EmbedInput| {
            let (mut ids, skip) = match input {
                EmbedInput::Text(text) => {
                    let whole = format!("{prompt}{text}");
                    let whole = if self.config.lower_case { whole.to_lowercase() } else { whole };
                    (tokenizer.encode_text(&whole, longest)?, skip)
                }
                EmbedInput::Ids(ids) => {
                    if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
                        let reason = format!("there is no token {id}; the vocabulary has {vocabulary}");
                        return Err(Error::Request { parameter: "input".into(), reason });
                    }
                    (ids[..ids.len().min(longest)].to_vec(), 0)
                }
            };
            if let Some((token, count)) = self.config.fill {
                ids.resize(count, token);
            }
            Ok(Tokens { ids, types: Vec::new(), skip })
        };
        let normalize = request.normalize.unwrap_or(self.config.normalize);
        let rows = run_all(&self.encoder, inputs, tokens, abort, progress).await?;
        Ok(rows.into_iter().map(|row| shape(row, cols, dims, normalize)).collect())
    }

    /// How many numbers a request asks for.
    fn dims(&self, request: &EmbedRequest) -> Result<usize> {
        let cols = self.encoder.cols();
        let dims = request.truncate_dim.unwrap_or(cols);
        if dims == 0 || dims > cols {
            let reason = format!("{dims} numbers were asked for; this model's vectors have {cols}");
            return Err(Error::Request { parameter: "truncateDim".into(), reason });
        }
        Ok(dims)
    }

    /// Lets it take pictures, where its texts lie among them; the tower is loaded when the first one comes.
    ///
    /// # Errors
    /// A processor that is not built or whose settings are missing; what the source reports.
    pub async fn open_eyes(&mut self, source: Rc<Source>, options: RunOptions) -> Result<()> {
        if arch::shared(&self.encoder.config).is_some() {
            let Encoder { gpu, config, longest, .. } = &self.encoder;
            self.sight = Sight::open(gpu, config, *longest, source, None, options).await?.map(Rc::new);
        }
        Ok(())
    }

    /// The vector of a picture that was seen.
    ///
    /// # Errors
    /// `Request` for what the model cannot do and for a number of no picture.
    pub async fn vector(&self, picture: u32, request: &EmbedRequest) -> Result<Vec<f32>> {
        let dims = self.dims(request)?;
        let sight = self.sight.as_ref().ok_or_else(|| Error::Request {
            parameter: "input".into(),
            reason: "has a picture; this model makes vectors of texts alone".into(),
        })?;
        let row = sight.rows(picture).await?;
        Ok(shape(row, self.encoder.cols(), dims, request.normalize.unwrap_or(self.config.normalize)))
    }
}

/// Cuts a vector and scales it. A text without tokens has no direction.
fn shape(mut row: Vec<f32>, cols: usize, dims: usize, normalize: bool) -> Vec<f32> {
    row.resize(cols, 0.0);
    row.truncate(dims);
    if normalize {
        let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            row.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
        }
    }
    row
}

/// What an encoder is, in the names of the JavaScript face.
pub(super) fn describe_encoder(encoder: &Encoder, text: &TextParts, task: &str, warnings: &[String]) -> Value {
    let mut info = describe(&encoder.gpu, &encoder.config, &encoder.weights, encoder.bytes);
    info["architecture"] = json!(encoder.graph.name);
    info["task"] = json!(task);
    info["parameters"] = json!(encoder.parameters());
    info["precision"] = json!(encoder.precision.name());
    info["contextLength"] = json!(encoder.longest);
    info["vocabSize"] = json!(encoder.vocab());
    info["dispatchesPerBatch"] = json!(encoder.dispatches());
    info["load"] = json!(encoder.load);
    info["hasChatTemplate"] = json!(text.has_template());
    info["warnings"] = json!(warnings);
    info
}

/// Packs texts into batches: the tokens of one are made while the batches before it run. The rows are those of the texts'
/// order; one without tokens is empty.
pub(super) async fn run_all<T>(
    encoder: &Encoder,
    texts: &[T],
    tokens: impl Fn(&T) -> Result<Tokens>,
    abort: &AbortFlag,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Vec<f32>>> {
    let mut queue = Queue::new(encoder, texts.len());
    let mut made: Vec<(usize, Tokens)> = Vec::new();
    let mut total = 0;
    for (index, text) in texts.iter().enumerate() {
        let text = tokens(text)?;
        total += text.ids.len();
        made.push((index, text));
        let last = index + 1 == texts.len();
        while !made.is_empty() && (last || total >= queue.budget || made.len() >= encoder.most_texts) {
            abort.check("embedding")?;
            // Neighbours of one length share tiles of attention; the longest come first.
            sort_by(&mut made, |(_, a): &(usize, Tokens), (_, b)| b.ids.len().cmp(&a.ids.len()));
            let batch: Vec<(usize, Tokens)> = made.drain(..queue.fitting(&made)).collect();
            total = made.iter().map(|(_, t)| t.ids.len()).sum();
            queue.submit(&batch)?;
            while queue.flying.len() >= IN_FLIGHT {
                queue.take().await?;
                abort.check("embedding")?;
                progress(queue.done, texts.len());
            }
        }
    }
    while !queue.flying.is_empty() {
        queue.take().await?;
        abort.check("embedding")?;
        progress(queue.done, texts.len());
    }
    Ok(queue.rows)
}

/// Batches under way and the rows that came back.
struct Queue<'a> {
    encoder: &'a Encoder,
    flying: VecDeque<(Vec<usize>, Outputs)>,
    rows: Vec<Vec<f32>>,
    done: usize,
    /// Tokens of the next batch.
    budget: usize,
    last_ms: f64,
}

impl<'a> Queue<'a> {
    fn new(encoder: &'a Encoder, count: usize) -> Self {
        let budget = FIRST.min(encoder.most_tokens);
        Self { encoder, flying: VecDeque::new(), rows: vec![Vec::new(); count], done: 0, budget, last_ms: now_ms() }
    }

    /// How many of the texts go into the next batch: at least one.
    fn fitting(&self, texts: &[(usize, Tokens)]) -> usize {
        let mut total = 0;
        let fits = |(_, text): &&(usize, Tokens)| {
            total += text.ids.len();
            total <= self.budget
        };
        texts.iter().take(self.encoder.most_texts).take_while(fits).count().max(1)
    }

    fn submit(&mut self, batch: &[(usize, Tokens)]) -> Result<()> {
        let some: Vec<&(usize, Tokens)> = batch.iter().filter(|(_, t)| !t.ids.is_empty()).collect();
        self.done += batch.len() - some.len();
        if some.is_empty() {
            return Ok(());
        }
        let texts: Vec<&Tokens> = some.iter().map(|(_, t)| t).collect();
        let outputs = self.encoder.submit(&texts)?;
        self.flying.push_back((some.iter().map(|(index, _)| *index).collect(), outputs));
        Ok(())
    }

    /// Waits for the oldest batch.
    async fn take(&mut self) -> Result<()> {
        let Some((places, outputs)) = self.flying.pop_front() else { return Ok(()) };
        let rows = outputs.wait().await?;
        for (place, row) in places.iter().zip(rows.chunks_exact(self.encoder.cols())) {
            self.rows[*place] = row.to_vec();
        }
        self.done += places.len();
        let now = now_ms();
        let took = now - std::mem::replace(&mut self.last_ms, now);
        if took < QUICK_MS {
            self.budget = (self.budget * 2).min(self.encoder.most_tokens);
        } else if took > SLOW_MS {
            self.budget = (self.budget / 2).max(64);
        }
        Ok(())
    }
}
