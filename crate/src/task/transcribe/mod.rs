//! Speech to text: a loaded model with its tokenizer and decoding rules. Audio is mono, at 16 kHz.

mod beams;
mod decode;
mod events;
mod long_form;
mod request;
mod word_timestamps;

use super::kind::Task;
use super::language_model::{LoadedLanguageModel, Provenance, model_info};
use super::serves_task::{LoadFuture, ServesTask, TaskLoad};
use super::text_pipeline::{TextPipeline, TokenizerSources};
use super::token_loop::{TokenLoop, TokenSink};
use crate::audio::vad::Vad;
use crate::audio::whisper::WhisperRules;
use crate::exec::{
    AudioEncoder, DecodeBatch, LogitsPipeline, ModelFiles, RunOptions, Session,
    flatten_convolutions,
};
use crate::gpu::{Backend, Gpu};
use crate::hub::{Phase, Source};
use crate::sample::{GenerationConfig, Sampler, SamplingParams};
use crate::util::clock::now_ms;
use crate::{Error, Result};
pub use request::{SegmentEvent, TRANSCRIBE_OPTIONS, TimestampMode, TranscribeRequest};
use serde_json::{Value, json};
use std::ops::ControlFlow::{self, Continue};
use std::rc::Rc;

/// A loaded speech-to-text model.
pub struct Transcriber {
    /// Session of the decoder, which also holds the model.
    pub session: Session,
    /// Audio encoder.
    pub encoder: AudioEncoder,
    /// Tokenizer.
    pub text: Rc<TextPipeline>,
    /// Special tokens and decoding rules.
    pub rules: WhisperRules,
    /// Name, revision and warnings of the load.
    pub origin: Provenance,
    /// Voice activity detector, if one is loaded.
    pub vad: Option<Rc<Vad>>,
    /// End tokens.
    pub end_tokens: Vec<u32>,
    /// The beams of a beam search.
    beam_batch: Option<DecodeBatch>,
}

impl ServesTask for Transcriber {
    #[inline(never)]
    fn load_task(request: TaskLoad<'_>) -> LoadFuture<'_, Self> {
        let TaskLoad {
            gpu,
            source,
            name,
            options,
            ..
        } = request;
        Box::pin(Self::load(gpu, source, name, options))
    }

    fn info(&self) -> Value {
        let model = self.session.model();
        let mut bytes = model.bytes();
        bytes.weights += self.encoder.bytes();
        let mut info = model_info(model, &self.origin, Task::Transcribe, bytes);
        info["parameters"] = json!(model.parameters() + self.encoder.parameters());
        let can = [
            ("translate", self.rules.translate.is_some()),
            ("timestamps", self.rules.no_timestamps.is_some()),
            ("words", !self.rules.alignment_heads.is_empty()),
        ];
        let can = can.iter().filter(|(_, can)| *can).map(|(name, _)| *name);
        info["capabilities"] = json!(std::iter::once("transcribe").chain(can).collect::<Vec<_>>());
        info["asr"] = json!({
            "seconds": self.max_window_seconds(),
            "languages": self.rules.languages.keys().collect::<Vec<_>>(),
        });
        info
    }

    fn text(&self) -> &Rc<TextPipeline> {
        &self.text
    }

    fn gpu(&self) -> &Gpu {
        self.session.gpu()
    }
}

impl Transcriber {
    /// Loads a speech-to-text model.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub async fn load(gpu: Gpu, source: &Source, name: &str, options: RunOptions) -> Result<Self> {
        let progress = source.progress();
        progress.phase(Phase::Config);
        let mut files = ModelFiles::open(source, None).await?;
        flatten_convolutions(&mut files.weights);
        let speech = files
            .speech_graphs()
            .ok_or_else(|| Error::UnsupportedOption {
                architecture: files.config.fields().architecture(),
                option: "audio input".into(),
                hint: "Load a speech-to-text model such as Whisper or Moonshine.".into(),
            })?;
        progress.phase(Phase::Tokenizer);
        let texts = TokenizerSources::from_source(source).await?;
        let generation = match source.read_optional("generation_config.json").await? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|e| Error::Config {
                file: "generation_config.json".into(),
                reason: format!("is not JSON: {e}"),
            })?,
            None => json!({}),
        };
        let rules = WhisperRules::read(&generation, files.config.json())?;
        progress.phase(Phase::Weights);
        let audio_encoder = AudioEncoder::load(&gpu, source, &files, speech, options).await?;
        let LoadedLanguageModel {
            model,
            text,
            mut origin,
        } = LoadedLanguageModel::load(gpu.into(), source, name, files, texts, options).await?;
        origin
            .warnings
            .extend(GenerationConfig::asr_warnings(&generation));
        let session = Session::with_shared_buffers(&model, audio_encoder.cross_kv().clone())?;
        session.ready().await?;
        let mut ends = vec![rules.end];
        ends.extend(
            text.tokenizer()
                .iter()
                .flat_map(|t| t.eos_ids())
                .filter(|id| **id != rules.end),
        );
        progress.phase(Phase::Ready);
        Ok(Self {
            session,
            encoder: audio_encoder,
            text,
            rules,
            origin,
            vad: None,
            end_tokens: ends,
            beam_batch: None,
        })
    }

    /// Maximum seconds of audio in one window.
    pub fn max_window_seconds(&self) -> f64 {
        self.encoder.frontend.max_samples() as f64 / f64::from(crate::audio::SAMPLE_RATE)
    }

    /// Encodes samples. Returns the encoder states `[rows, cols]` and the number of rows.
    ///
    /// # Errors
    /// `Request` for audio that is too short or too long; errors of the device.
    pub async fn encode(&mut self, samples: &[f32]) -> Result<(Vec<f32>, usize)> {
        crate::audio::check_samples(samples, "audio")?;
        let rows = self.encoder.encode(self.session.gpu(), samples).await?;
        Ok((self.encoder.states(self.session.gpu()).await?, rows))
    }

    /// Encodes samples and returns the decoder's logits for the given tokens, `[ids, vocab]`.
    ///
    /// # Errors
    /// As [`Self::encode`]; `Request` for ids outside the vocabulary.
    pub async fn logits(&mut self, samples: &[f32], ids: &[u32]) -> Result<Vec<f32>> {
        crate::audio::check_samples(samples, "audio")?;
        self.encoder.encode(self.session.gpu(), samples).await?;
        self.session.clear();
        self.session.all_rows(ids, false).await
    }

    /// Decodes tokens to text, without special and timestamp tokens.
    fn decode_text(&self, ids: &[u32]) -> String {
        let first_time = self.rules.first_timestamp();
        let spoken: Vec<u32> = ids.iter().copied().filter(|id| *id < first_time).collect();
        self.text
            .tokenizer()
            .map_or_else(|_| String::new(), |t| t.decode(&spoken, true))
    }
}

/// Measured times of a speech-to-text model.
#[derive(Debug, Clone, Copy)]
pub struct AsrTimings {
    /// Milliseconds to encode a window, from samples to cross-attention keys and values.
    pub encode_ms: f64,
    /// Milliseconds per decoded token.
    pub token_ms: f64,
}

/// Counts tokens.
struct CountingSink(usize);

impl TokenSink for CountingSink {
    fn check(&mut self) -> Result<ControlFlow<()>> {
        Ok(Continue(()))
    }

    async fn take(&mut self, tokens: &[u32], _logits: Option<&[f32]>) -> Result<ControlFlow<()>> {
        self.0 += tokens.len();
        Ok(Continue(()))
    }
}

impl Transcriber {
    /// Measures encoding of one window and decoding of `tokens` tokens, best of three runs.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub async fn measure(&mut self, samples: &[f32], tokens: usize) -> Result<AsrTimings> {
        let mut timed = AsrTimings {
            encode_ms: f64::MAX,
            token_ms: f64::MAX,
        };
        let vocabulary = self.session.vocab();
        let mut sampler = Sampler::new(SamplingParams::default(), vocabulary, 0)?;
        for _ in 0..3 {
            let begin = now_ms();
            self.encoder.encode(self.session.gpu(), samples).await?;
            self.session.gpu().wait_idle().await?;
            timed.encode_ms = timed.encode_ms.min(now_ms() - begin);
            self.session.clear();
            self.session.prefill(&[self.rules.start], 0).await?;
            self.session.gpu().wait_idle().await?;
            let begin = now_ms();
            let greedy = Some(LogitsPipeline::greedy());
            let mut sink = CountingSink(0);
            let session = &mut self.session;
            TokenLoop::new(session, &mut sampler, greedy, &[], tokens)
                .run(&mut sink)
                .await?;
            timed.token_ms = timed
                .token_ms
                .min((now_ms() - begin) / sink.0.max(1) as f64);
        }
        Ok(timed)
    }
}
