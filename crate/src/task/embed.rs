//! Embeddings of text and images: prompts, tokenization, batches in flight, truncation and
//! normalization.

use super::adapters::Adapters;
use super::gguf::gguf_embedding_config;
use super::kind::Task;
use super::language_model::modalities;
use super::request::EmbedRequest;
use super::sentence_transformers::SentenceTransformersConfig;
use super::serves_task::{LoadFuture, ServesTask, TaskFiles, TaskLoad};
use super::task_files::open_task_files;
use super::text_encoder::{EncoderText, TextEncoder, open_encoder};
use super::text_pipeline::TextPipeline;
use super::vision::VisionPipeline;
use crate::arch::{self, DenseLayer, PositionScheme};
use crate::exec::{EncoderInput, EncoderModel, ModelFiles, OverlayId, PendingRows, RunOptions};
use crate::gpu::Gpu;
use crate::hub::{AbortFlag, Source};
use crate::ir::{Activation, Pooling};
use crate::text::Tokenizer;
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
    /// The encoder with its tokenizer.
    pub encoder: TextEncoder,
    /// Settings of sentence-transformers.
    pub config: SentenceTransformersConfig,
    /// Image and video input, set by [`Self::enable_vision`].
    pub vision: Option<Rc<VisionPipeline>>,
    adapters: Adapters,
}

impl ServesTask for Embedder {
    #[inline(never)]
    fn load_task(request: TaskLoad<'_>) -> LoadFuture<'_, Self> {
        Box::pin(load_embedder(request))
    }

    fn info(&self) -> Value {
        let mut info = self.encoder.info(Task::Embed);
        info["dimensions"] = json!(self.encoder.model.cols());
        info["prompts"] = json!(self.config.prompts);
        info["capabilities"] = modalities(self.vision.as_ref());
        info
    }

    fn text(&self) -> &Rc<TextPipeline> {
        &self.encoder.text
    }

    fn gpu(&self) -> &Gpu {
        &self.encoder.model.gpu
    }

    fn enable_images(&mut self, source: Rc<Source>, options: RunOptions) -> LoadFuture<'_, ()> {
        Box::pin(self.enable_vision(source, options))
    }

    fn images(&self) -> Option<&Rc<VisionPipeline>> {
        self.vision.as_ref()
    }
}

async fn load_embedder(request: TaskLoad<'_>) -> Result<Embedder> {
    let TaskLoad {
        gpu,
        source,
        files,
        name,
        options,
        ..
    } = request;
    let EmbedderFiles {
        files,
        config,
        text,
        max_length,
        warnings,
        ..
    } = EmbedderFiles::read(source, files).await?;
    let head = config.head();
    let from = (source, name);
    let text = (text, max_length);
    let encoder = TextEncoder::load(gpu, from, files, &head, text, warnings, options);
    Ok(Embedder {
        encoder: encoder.await?,
        config,
        vision: None,
        adapters: Adapters::default(),
    })
}

/// The opened files of an embedding model: all that turns text into its input, and its graph.
pub struct EmbedderFiles {
    /// Configuration and weights.
    pub files: ModelFiles,
    /// Settings of sentence-transformers, or their defaults.
    pub config: SentenceTransformersConfig,
    /// Tokenizer.
    pub text: TextPipeline,
    /// Maximum input length in tokens, if the files name one.
    pub max_length: Option<usize>,
    /// Position ids of the input, and the limit of its length.
    pub positions: PositionScheme,
    /// Warnings of the files.
    pub warnings: Vec<String>,
}

impl EmbedderFiles {
    /// Opens a model's files to embed. With `is_forced`, a model whose files imply another task is
    /// opened too, if it can embed.
    ///
    /// # Errors
    /// `Request` for a model of another task; errors of the files or the source.
    pub async fn open(source: &Source, name: &str, is_forced: bool) -> Result<Self> {
        let wanted = is_forced.then_some(Task::Embed);
        let (files, task) = open_task_files(source, name, wanted, false).await?;
        if task != Task::Embed {
            return Err(Task::Embed.misused(name, task));
        }
        Self::read(source, files).await
    }

    async fn read(source: &Source, mut files: TaskFiles) -> Result<Self> {
        let sentence = match &mut files {
            TaskFiles::Folder { sentence, .. } => sentence.take(),
            TaskFiles::Container(_) => None,
        };
        let modules = sentence.iter().flat_map(|sentence| &sentence.dense);
        let folders: Vec<&str> = modules.map(|dense| dense.path.as_str()).collect();
        let mut files = open_encoder(source, files, &folders).await?;
        let mut warnings = Vec::new();
        let sentence = match &files.gguf {
            Some(_) => Some(gguf_embedding_config(&files, &mut warnings)?),
            None => sentence,
        };
        let shared = arch::joint_embedding(&files.config);
        let mut sentence = match sentence {
            Some(sentence) => sentence,
            None if shared.is_some() => SentenceTransformersConfig {
                normalize: true,
                ..SentenceTransformersConfig::with_pooling(Pooling::Last)
            },
            None => {
                warnings.push(
                    "modules.json is missing: embeddings use the default pooling of sentence-transformers."
                        .to_string(),
                );
                SentenceTransformersConfig::with_pooling(arch::default_pooling(&files.config)?)
            }
        };
        if let Some(class) = arch::unread_embedding_class(&files.config) {
            warnings.push(format!(
                "The repository's code for '{class}' (\"auto_map\") does not run: embeddings use causal attention. \
                 If that code attends to both sides, set \"is_causal\": false in config.json."
            ));
        }
        let projection = token_projection(&files, sentence.pooling)?;
        sentence.dense.splice(0..0, projection);
        let positions = files.headless_encoder()?.positions();
        let read = EncoderText::read(source, &files).await?;
        warnings.extend(read.warnings);
        if shared.is_some() {
            sentence.max_length = Some(positions.max_tokens);
        }
        let padding = read.sources.pad_token();
        let max_length = sentence.max_length.or(read.max_length);
        let text = read.sources.build(source)?;
        if shared.is_some_and(|s| s.padded) {
            let named = padding.and_then(|token| text.tokenizer().ok()?.token_to_id(&token));
            let own = files
                .config
                .get("text_config")
                .and_then(|c| c.get("pad_token_id"))
                .and_then(Value::as_u64);
            let token = named.unwrap_or(own.unwrap_or(1) as u32);
            sentence = SentenceTransformersConfig {
                lower_case: true,
                padding: Some((token, positions.max_tokens)),
                ..sentence
            };
        }
        Ok(Self {
            files,
            config: sentence,
            text,
            max_length,
            positions,
            warnings,
        })
    }
}

/// Returns the projection of each token's last hidden state in voyage-4-nano's `linear.weight`. It
/// has no bias, so it gives the same after pooling.
///
/// # Errors
/// `UnsupportedOption` with pooling by maximum.
fn token_projection(files: &ModelFiles, pooling: Pooling) -> Result<Option<DenseLayer>> {
    let class = files.config.class();
    let stored = files.weights.iter().find(|w| w.name == "linear.weight");
    let Some([outputs, inputs]) = stored
        .filter(|_| class.ends_with("BidirectionalModel"))
        .map(|weight| &weight.shape[..])
    else {
        return Ok(None);
    };
    if pooling == Pooling::Max {
        return Err(Error::UnsupportedOption {
            architecture: class.into(),
            option: "pooling_mode = max with 'linear.weight'".into(),
            hint: "Use a model with mean, cls or lasttoken pooling.".into(),
        });
    }
    Ok(Some(DenseLayer {
        path: String::new(),
        inputs: *inputs,
        outputs: *outputs,
        bias: false,
        act: Activation::None,
    }))
}

/// Turns text into the input of an embedding model: prompt, special tokens, length and padding.
pub struct EmbedEncoder<'a> {
    config: &'a SentenceTransformersConfig,
    tokenizer: &'a Tokenizer,
    prompt: &'a str,
    /// Maximum tokens of an input.
    max_length: usize,
    /// Tokens of the prompt that pooling skips.
    skip: usize,
}

impl<'a> EmbedEncoder<'a> {
    /// Creates it for inputs with one prompt and at most `max_length` tokens.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn new(
        config: &'a SentenceTransformersConfig,
        tokenizer: &'a Tokenizer,
        prompt: &'a str,
        max_length: usize,
    ) -> Result<Self> {
        let skip = match config.include_prompt || prompt.is_empty() {
            true => 0,
            false => tokenizer.prefix_len() + tokenizer.encode_trusted(prompt, false)?.len(),
        };
        Ok(Self {
            config,
            tokenizer,
            prompt,
            max_length,
            skip,
        })
    }

    /// The input for a text.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn encode(&self, text: &str) -> Result<EncoderInput> {
        let whole = format!("{}{text}", self.prompt);
        let whole = if self.config.lower_case {
            whole.to_lowercase()
        } else {
            whole
        };
        let ids = self.tokenizer.encode_text(&whole, self.max_length)?;
        Ok(self.padded(ids, self.skip))
    }

    fn padded(&self, mut ids: Vec<u32>, skip: usize) -> EncoderInput {
        if let Some((token, count)) = self.config.padding {
            ids.resize(count, token);
        }
        EncoderInput {
            ids,
            types: Vec::new(),
            skip,
        }
    }
}

impl Embedder {
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
        let cols = self.encoder.model.cols();
        let dims = self.requested_dims(request)?;

        let prompt = self
            .config
            .prompt(request.task.as_deref(), request.prompt.as_deref())?;
        let adapter = self
            .adapters
            .find(request.adapter.as_deref().unwrap_or(""))?;
        let tokenizer = self.encoder.text.tokenizer()?;
        let longest = self.encoder.model.max_sequence_len;
        let encoder = EmbedEncoder::new(&self.config, tokenizer, prompt, longest)?;
        let vocabulary = self.encoder.model.vocab();
        let tokens = |input: &EmbedInput| match input {
            EmbedInput::Text(text) => encoder.encode(text),
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
                Ok(encoder.padded(ids[..ids.len().min(longest)].to_vec(), 0))
            }
        };
        let normalize = request.normalize.unwrap_or(self.config.normalize);
        let rows = run_batches(
            (&self.encoder.model, adapter),
            inputs,
            tokens,
            abort,
            progress,
        )
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| truncate_and_normalize(row, cols, dims, normalize))
            .collect())
    }

    /// Loads a LoRA or DoRA adapter of peft under a name; requests choose it by `adapter`.
    ///
    /// # Errors
    /// As [`EncoderModel::load_adapter`]; `Request` for a name that is empty or taken.
    pub async fn load_adapter(&self, name: &str, source: &Source, merge: bool) -> Result<()> {
        let load = self.encoder.model.load_adapter(source, merge);
        self.adapters.load(name, load).await
    }

    /// Frees an adapter; requests that name it are refused from now on.
    ///
    /// # Errors
    /// `Request` for an unknown name.
    pub fn unload_adapter(&self, name: &str) -> Result<()> {
        self.encoder
            .model
            .unload_adapter(self.adapters.remove(name)?);
        Ok(())
    }

    /// Returns the number of dimensions that a request asks for.
    fn requested_dims(&self, request: &EmbedRequest) -> Result<usize> {
        let cols = self.encoder.model.cols();
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
        if arch::joint_embedding(&self.encoder.model.config).is_some() {
            let EncoderModel {
                gpu,
                config,
                max_sequence_len: longest,
                ..
            } = &self.encoder.model;
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
        if request
            .adapter
            .as_ref()
            .is_some_and(|name| !name.is_empty())
        {
            return Err(Error::Request {
                parameter: "adapter".into(),
                reason: "adapters change the embeddings of texts only. Leave it out for images."
                    .into(),
            });
        }
        let sight = self.vision.as_ref().ok_or_else(|| Error::Request {
            parameter: "input".into(),
            reason:
                "this model embeds text only. Leave out images, or load a CLIP or SigLIP model."
                    .into(),
        })?;
        let row = sight.embeddings(image_id).await?;
        Ok(truncate_and_normalize(
            row,
            self.encoder.model.cols(),
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

/// Runs inputs in packed batches and tokenizes one batch while earlier ones run. Returns one row
/// per input, in input order; the row of an input without tokens is empty.
pub(super) async fn run_batches<T>(
    (encoder, adapter): (&EncoderModel, Option<OverlayId>),
    texts: &[T],
    tokens: impl Fn(&T) -> Result<EncoderInput>,
    abort: &AbortFlag,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Vec<f32>>> {
    let mut queue = BatchQueue::new(encoder, adapter, texts.len());
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
    adapter: Option<OverlayId>,
    in_flight: VecDeque<(Vec<usize>, PendingRows)>,
    rows: Vec<Vec<f32>>,
    done: usize,
    /// Token budget of the next batch.
    budget: usize,
    last_ms: f64,
}

impl<'a> BatchQueue<'a> {
    fn new(encoder: &'a EncoderModel, adapter: Option<OverlayId>, count: usize) -> Self {
        let budget = FIRST_BATCH_TOKENS.min(encoder.max_batch_tokens);
        Self {
            encoder,
            adapter,
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
        let outputs = self.encoder.submit_with(&texts, self.adapter)?;
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
