//! Text to speech: a language model of codec tokens, its audio codec, and streaming of samples.

mod codec;
mod codec_files;
mod request;

use super::kind::Task;
use super::language_model::{LoadedLanguageModel, Provenance, model_info};
use super::serves_task::{LoadFuture, ServesTask, TaskLoad};
use super::text_pipeline::{TextPipeline, TokenizerSources};
use super::token_loop::{TokenLoop, TokenSink};
use crate::arch::SPEAKER_PROJECTION;
use crate::audio::codec_tokens::{CodecVocab, SpeechToken};
use crate::exec::{ModelFiles, RunOptions, Session, SoftEmbeddings, float_of};
use crate::gpu::Gpu;
use crate::hub::{AbortFlag, Phase, Source};
use crate::sample::{Sampler, SamplingParams, TokenConstraint};
use crate::util::clock::now_ms;
use crate::{Error, Result};
pub use codec::AudioCodec;
use codec::CodecFiles;
pub use request::{SPEAK_OPTIONS, SpeakRequest, SynthesisResult};
use serde_json::{Value, json};
use std::ops::ControlFlow::{self, Break, Continue};
use std::rc::Rc;

/// End-of-text token id.
const END_OF_TEXT: u32 = 2;
/// Frames of the first audio chunk, short for low latency, and of later chunks.
const FIRST_CHUNK_FRAMES: usize = 4;
const CHUNK_FRAMES: usize = 16;

/// A loaded text-to-speech model.
pub struct SpeechSynthesizer {
    /// Session of the language model of codec tokens, which also holds the model.
    pub session: Session,
    /// Tokenizer.
    pub text: Rc<TextPipeline>,
    /// Codec decoder, from codes to samples.
    pub codec: AudioCodec,
    /// Layout of codec tokens in the vocabulary.
    pub codec_vocab: CodecVocab,
    /// Name, revision and warnings of the load.
    pub origin: Provenance,
    /// Projection of speaker embeddings `[hidden, speaker_dims]` and `speaker_dims`, if the model
    /// has one.
    projection: Option<(Vec<f32>, usize)>,
}

/// State of a synthesis: tokens, codes of complete frames, and the number of frames already
/// emitted.
#[derive(Default)]
struct SynthesisState {
    ids: Vec<u32>,
    /// Tokens of the incomplete frame.
    frame: Vec<u32>,
    codes: Vec<u32>,
    emitted_frames: usize,
    dropped: usize,
    first_ms: Option<f64>,
}

impl SynthesisState {
    /// Adds a token. Drops a frame whose codebooks are out of order, unless `any` is set.
    fn push_token(&mut self, frames: &CodecVocab, token: u32, any: bool) {
        self.frame.push(token);
        self.ids.push(token);
        if self.frame.len() < frames.codes_per_frame {
            return;
        }

        let codes: Vec<u32> = self
            .frame
            .drain(..)
            .enumerate()
            .filter_map(|(place, token): (usize, u32)| {
                frames.code(token, place).or_else(|| {
                    any.then(|| token.saturating_sub(frames.start) % frames.codebook_size)
                })
            })
            .collect();
        if codes.len() == frames.codes_per_frame {
            self.codes.extend(codes);
        } else {
            self.dropped += 1;
        }
    }
}

/// Allows only the next codebook's tokens, and the end token between frames.
struct FrameGrammar<'a> {
    codec_vocab: &'a CodecVocab,
    /// Number of codes so far.
    codes: usize,
}

impl TokenConstraint for FrameGrammar<'_> {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        let ends = self.codes > 0 && self.codes.is_multiple_of(self.codec_vocab.codes_per_frame);
        let end = ends.then(|| self.codec_vocab.special(SpeechToken::EndOfSpeech));
        for id in self.codec_vocab.codebook_tokens(self.codes).chain(end) {
            if let Some(word) = words.get_mut(id as usize / 32) {
                *word |= 1 << (id % 32);
            }
        }
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> Result<()> {
        self.codes += 1;
        Ok(())
    }

    fn may_follow(&mut self, token: u32) -> Result<Option<bool>> {
        let mut codes = self.codec_vocab.codebook_tokens(self.codes);
        Ok(Some(codes.any(|id| id == token)))
    }
}

/// Turns tokens into audio as they come.
struct SpeechSink<'a> {
    speech: SynthesisState,
    codec: &'a mut AudioCodec,
    codec_vocab: &'a CodecVocab,
    gpu: Rc<Gpu>,
    /// Whether frames out of order are decoded too.
    any: bool,
    ended: bool,
    abort: &'a AbortFlag,
    on_sound: &'a mut dyn FnMut(&[f32]),
}

impl TokenSink for SpeechSink<'_> {
    fn check(&mut self) -> Result<ControlFlow<()>> {
        self.abort.check("speaking").map(Continue)
    }

    async fn take(&mut self, tokens: &[u32], _logits: Option<&[f32]>) -> Result<ControlFlow<()>> {
        let end = self.codec_vocab.special(SpeechToken::EndOfSpeech);
        for token in tokens {
            if *token == end {
                self.ended = true;
                return Ok(Break(()));
            }
            self.speech.push_token(self.codec_vocab, *token, self.any);
        }
        self.emit_audio(false).await.map(Continue)
    }
}

impl SpeechSink<'_> {
    /// Decodes complete frames and emits their samples once they fill a chunk, or at once if `all`
    /// is set.
    async fn emit_audio(&mut self, all: bool) -> Result<()> {
        let speech = &mut self.speech;
        let frames = speech.codes.len() / self.codec_vocab.codes_per_frame;
        let wanted = if speech.emitted_frames == 0 {
            FIRST_CHUNK_FRAMES
        } else {
            CHUNK_FRAMES
        };
        if frames == speech.emitted_frames || (!all && frames < speech.emitted_frames + wanted) {
            return Ok(());
        }
        let samples = self
            .codec
            .decode(&self.gpu, &speech.codes, speech.emitted_frames)
            .await?;
        speech.emitted_frames = frames;
        speech.first_ms.get_or_insert_with(now_ms);
        (self.on_sound)(&samples);
        Ok(())
    }
}

impl ServesTask for SpeechSynthesizer {
    #[inline(never)]
    fn load_task(request: TaskLoad<'_>) -> LoadFuture<'_, Self> {
        let TaskLoad {
            gpu,
            source,
            codec,
            name,
            options,
            ..
        } = request;
        let Some(codec) = codec else {
            let reason =
                "a text-to-speech model needs an audio codec. Name its repository in 'codec'.";
            return Box::pin(async {
                Err(Error::Request {
                    parameter: "codec".into(),
                    reason: reason.into(),
                })
            });
        };
        Box::pin(Self::load(gpu, source, codec, name, options))
    }

    fn info(&self) -> Value {
        let model = self.session.model();
        let mut bytes = model.bytes();
        bytes.weights += self.codec.bytes();
        let mut info = model_info(model, &self.origin, Task::Speak, bytes);
        info["parameters"] = json!(model.parameters() + self.codec.parameters());
        info["capabilities"] = json!(["speak"]);
        info["tts"] = json!({
            "sampleRate": self.codec.rate,
            "framesPerSecond": f64::from(self.codec.rate) / self.codec.hop as f64,
            "speaker": self.projection.as_ref().map(|(_, numbers)| numbers),
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

impl SpeechSynthesizer {
    /// Loads a text-to-speech model and its codec, each from its own source.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub async fn load(
        gpu: Gpu,
        source: &Source,
        codec: &Source,
        name: &str,
        options: RunOptions,
    ) -> Result<Self> {
        let progress = source.progress();
        progress.phase(Phase::Config);
        let mut files = ModelFiles::open(source, None).await?;
        let frames = CodecVocab::read(files.config.json()).ok_or_else(|| {
            Error::UnsupportedOption {
            architecture: files.config.fields().architecture(),
            option: "speech synthesis".into(),
            hint:
                "Its vocabulary has no codec tokens. Load a text-to-speech model such as Kani-TTS."
                    .into(),
        }
        })?;
        progress.phase(Phase::Tokenizer);
        let texts = TokenizerSources::from_source(source).await?;
        let projection = read_projection(source, &files).await?;
        let opened = CodecFiles::open(codec).await?;
        progress.phase(Phase::Weights);
        opened.add_to_progress(codec);
        files.add_decoder_to_progress(source)?;
        let codec = opened.load(&gpu, codec, options).await?;
        if codec.groups != frames.codes_per_frame || codec.codes_per_group() < frames.codebook_size
        {
            let has = codec.groups;
            let codes = codec.codes_per_group();

            let reason = format!(
                "the model has {} codebooks of {}, the codec {has} of {codes}. Load the model's codec.",
                frames.codes_per_frame, frames.codebook_size
            );
            return Err(Error::Config {
                file: "config.json".into(),
                reason,
            });
        }
        let LoadedLanguageModel {
            model,
            text,
            origin,
        } = LoadedLanguageModel::load(gpu.into(), source, name, files, texts, options).await?;
        let session = Session::with_positions(&model)?;
        session.ready().await?;
        progress.phase(Phase::Ready);
        Ok(Self {
            session,
            text,
            codec,
            codec_vocab: frames,
            origin,
            projection,
        })
    }

    /// Returns the prompt ids, with the speaker's soft token if one is given.
    fn prompt(&mut self, request: &SpeakRequest) -> Result<Vec<u32>> {
        let special = |which| self.codec_vocab.special(which);
        let mut ids = match &request.ids {
            Some(ids) => ids.clone(),
            None => {
                let mut ids = vec![special(SpeechToken::StartOfHuman)];
                ids.extend(
                    self.text
                        .tokenizer()?
                        .encode(&request.spoken_text(), true)?,
                );
                ids.extend([END_OF_TEXT, special(SpeechToken::EndOfHuman)]);
                ids.extend([
                    special(SpeechToken::StartOfAi),
                    special(SpeechToken::StartOfSpeech),
                ]);
                ids
            }
        };
        let Some(speaker) = &request.speaker else {
            return Ok(ids);
        };
        let refuse = |reason: String| Error::Request {
            parameter: "speaker".into(),
            reason,
        };
        let (matrix, numbers) = self.projection.as_ref().ok_or_else(|| {
            refuse("this model does not support speaker embeddings. Leave it out.".into())
        })?;
        if speaker.len() != *numbers || speaker.iter().any(|v| !v.is_finite()) || ids.is_empty() {
            return Err(refuse(format!(
                "{} values given. Use {numbers} finite values.",
                speaker.len()
            )));
        }
        let row: Vec<f32> = matrix
            .chunks_exact(*numbers)
            .map(|w| w.iter().zip(speaker).map(|(a, b)| a * b).sum())
            .collect();
        // The same speaker keeps its id, so that later prompts hit the cache.
        let content = speaker.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, v| {
            (h ^ u64::from(v.to_bits())).wrapping_mul(0x0100_0000_01b3)
        });
        let mut cache = self.session.soft_token_cache().borrow_mut();
        let known = cache.find(content);
        let number = match known {
            Some(number) => number,
            None => {
                let gpu = self.session.gpu();
                cache.add(content, SoftEmbeddings::from_vector(gpu, "speaker", &row)?)
            }
        };
        // The speaker is the second token of the sequence.
        ids.insert(1, self.session.vocab() as u32 + number);
        Ok(ids)
    }

    /// Synthesizes speech. Calls `on_sound` with samples as they are decoded.
    ///
    /// # Errors
    /// `Request` for unsupported options; `SequenceTooLong`; `Aborted`; errors of the device.
    pub async fn speak(
        &mut self,
        request: &SpeakRequest,
        abort: &AbortFlag,
        mut on_sound: impl FnMut(&[f32]),
    ) -> Result<SynthesisResult> {
        let begin = now_ms();
        let prompt = self.prompt(request)?;
        let capacity = self.session.capacity();
        let vocab = self.session.vocab();
        let end = self.end_token();

        let most = request
            .max_tokens
            .unwrap_or(usize::MAX)
            .min(capacity.saturating_sub(prompt.len()));
        let mut sampler = Sampler::new(
            self.sampling_params(request, vocab)?,
            vocab,
            (begin * 1000.0) as u64,
        )?;
        let known: Vec<u32> = prompt
            .iter()
            .copied()
            .filter(|id| (*id as usize) < vocab)
            .collect();
        sampler.start(&known);
        self.session.clear();
        self.session
            .set_positions(&self.codec_vocab.positions(prompt.len(), capacity));
        self.session
            .prefill_reusing_prefix(&prompt, &|| abort.check("speaking"))
            .await?;
        let pipeline = self
            .session
            .prepare_sampling(&sampler, request.grammar)
            .await?;
        let mut grammar = FrameGrammar {
            codec_vocab: &self.codec_vocab,
            codes: 0,
        };
        let mut sink = SpeechSink {
            speech: SynthesisState::default(),
            codec: &mut self.codec,
            codec_vocab: &self.codec_vocab,
            gpu: self.session.gpu().clone(),
            any: request.ignore_end,
            ended: false,
            abort,
            on_sound: &mut on_sound,
        };
        let stops = [end];
        TokenLoop::new(&mut self.session, &mut sampler, pipeline, &stops, most)
            .constrained(if request.grammar {
                Some(&mut grammar)
            } else {
                None
            })
            .run(&mut sink)
            .await?;
        sink.emit_audio(true).await?;
        let SpeechSink { speech, ended, .. } = sink;
        Ok(SynthesisResult {
            frames: speech.emitted_frames,
            dropped: speech.dropped,
            seconds: (speech.emitted_frames * self.codec.hop) as f64 / f64::from(self.codec.rate),
            finish_reason: if ended { "stop" } else { "length" },
            first_ms: speech.first_ms.map(|at| at - begin),
            total_ms: now_ms() - begin,
            ids: speech.ids,
        })
    }

    /// Returns the end-of-speech token.
    fn end_token(&self) -> u32 {
        self.codec_vocab.special(SpeechToken::EndOfSpeech)
    }

    /// Returns the sampling parameters, which allow only codec tokens and the end token.
    fn sampling_params(&self, request: &SpeakRequest, vocab: usize) -> Result<SamplingParams> {
        let end = self.end_token();
        let banned = (0..self.codec_vocab.start.min(vocab as u32))
            .filter(|id| *id != end || request.ignore_end);
        let usual = SamplingParams {
            greedy: false,
            temperature: 1.0,
            top_k: 0,
            top_p: 0.95,
            repetition_penalty: 1.1,
            ..SamplingParams::default()
        };
        let mut params = usual.merge(&request.sampling)?;
        // With `grammar`, a mask does this instead.
        if !request.grammar {
            params
                .logit_bias
                .extend(banned.map(|id| (id, f64::NEG_INFINITY)));
        }
        Ok(params)
    }
}

/// Reads the projection of speaker embeddings, if the checkpoint has one.
async fn read_projection(source: &Source, files: &ModelFiles) -> Result<Option<(Vec<f32>, usize)>> {
    let Some(tensor) = files.checkpoint.tensors.get(SPEAKER_PROJECTION) else {
        return Ok(None);
    };
    let (Some(float), [_, numbers]) = (float_of(tensor.dtype), &tensor.shape[..]) else {
        return Ok(None);
    };
    let file = files
        .checkpoint
        .files
        .get(tensor.file)
        .map(|f| f.name.clone())
        .unwrap_or_default();
    let bytes = source.read_range(&file, tensor.range.clone()).await?;
    let values = (0..tensor.elements() as usize)
        .map(|at| float.get(&bytes, at).unwrap_or(0.0))
        .collect();
    Ok(Some((values, *numbers)))
}
