//! Transcription of audio of any length: voice activity detection, windows, and joining of
//! overlapping results. Memory use does not grow with the audio.

use super::Transcriber;
use super::decode::{WindowResult, WindowTask};
use super::events::{EventEmitter, WindowContext, seconds};
use super::request::{SegmentEvent, TimestampMode, TranscribeRequest};
use crate::arch::speech::AudioFrontend;
use crate::audio::subtitles::{Transcript, TranscriptSegment};
use crate::audio::vad::{Vad, VadState, VadThresholds, WINDOW, speech_segments};
use crate::audio::whisper::{TimedSpan, TranscribeTask};
use crate::audio::{SAMPLE_RATE, SampleReader, check_samples, mel, overlap, repetition};
use crate::hub::AbortFlag;
use crate::{Error, Result};
use std::ops::Range;

/// Overlap of consecutive windows of a speech segment, in samples.
const WINDOW_OVERLAP: usize = 4 * SAMPLE_RATE as usize;
/// Maximum window of longer audio in samples: the length that models were trained on.
const MAX_LONG_WINDOW: usize = 28 * SAMPLE_RATE as usize;
/// Samples between checks of the abort flag while speech is detected: two seconds, which are whole
/// detection windows.
const ABORT_CHECK_SAMPLES: usize = 64 * WINDOW;
/// Samples that are checked for NaN at a time: a minute.
const CHECKED_SAMPLES: usize = 60 * SAMPLE_RATE as usize;
/// Speech segments with a shorter pause between them are merged, in samples.
const MERGE_PAUSE: usize = 2 * SAMPLE_RATE as usize;
/// The prompt takes at most 1 / `PROMPT_DIVISOR` of the model's context.
const PROMPT_DIVISOR: usize = 2;

/// Minimum samples of detected speech without words that are decoded again; less is the end of a
/// word.
const MIN_MISSED_SPEECH: usize = SAMPLE_RATE as usize;
/// Minimum step from one window to the next, in samples.
const MIN_WINDOW_STEP: usize = SAMPLE_RATE as usize / 2;

/// Inputs shared by all windows of a transcription.
struct TranscriptionRun<'a> {
    samples: &'a dyn SampleReader,
    request: &'a TranscribeRequest,
    ask: &'a TranscribeTask,
    abort: &'a AbortFlag,
    emitter: &'a EventEmitter<'a>,
    /// Detected speech segments, if detection ran.
    detected: Option<&'a [Range<usize>]>,
}

/// How to continue after a window.
enum WindowAdvance {
    /// Continue at this sample.
    At(usize),
    /// Decode the same window without timestamp tokens: they covered none of the detected speech.
    Retry,
}

impl Transcriber {
    /// Transcribes samples at 16 kHz. Calls `on_heard` with each final segment, and with `partials`
    /// also with text as it is decoded.
    ///
    /// # Errors
    /// `Request` for unsupported options and for audio without samples; `Aborted`; errors of the
    /// device.
    pub async fn transcribe(
        &mut self,
        samples: &[f32],
        request: &TranscribeRequest,
        abort: &AbortFlag,
        on_heard: impl FnMut(&SegmentEvent),
    ) -> Result<Transcript> {
        self.transcribe_windows(&samples, request, abort, on_heard)
            .await
    }

    /// As [`Self::transcribe`], for samples that are read window by window.
    ///
    /// # Errors
    /// As [`Self::transcribe`].
    pub async fn transcribe_windows(
        &mut self,
        samples: &dyn SampleReader,
        request: &TranscribeRequest,
        abort: &AbortFlag,
        mut on_heard: impl FnMut(&SegmentEvent),
    ) -> Result<Transcript> {
        let length = samples.count();
        for start in (0..length.max(1)).step_by(CHECKED_SAMPLES) {
            abort.check("transcribing")?;
            let end = length.min(start + CHECKED_SAMPLES);
            check_samples(&samples.read(start..end), "audio")?;
        }
        let ask = TranscribeTask {
            language: request.language.clone(),
            translate: request.translate,
            timestamps: request.timestamps != TimestampMode::None,
        };
        if request.timestamps == TimestampMode::Word && self.rules.alignment_heads.is_empty() {
            let other = match self.rules.no_timestamps {
                Some(_) => "segment",
                None => "none",
            };
            return Err(Error::Request {
                parameter: "timestamps".into(),
                reason: format!(
                    "word timestamps need alignment heads, which this checkpoint does not name. Use '{other}'."
                ),
            });
        }
        let mut language = self.rules.language(&ask)?;
        // Reject unsupported requests before encoding any audio.
        self.rules.prompt(language, &ask)?;
        let mut out = Transcript {
            language: self
                .language_code(language)
                .or(self.rules.english_only.then(|| "en".into())),
            translated: request.translate,
            duration: seconds(length),
            ..Transcript::default()
        };
        let text = self.text.clone();
        let first_time = self.rules.first_timestamp();

        let how = (request.partials, ask.timestamps);
        let teller = EventEmitter::new(&mut on_heard, text, first_time, how, out.duration);
        let (ranges, detected) = self
            .sample_ranges(samples, request, abort, ask.timestamps)
            .await?;
        let run = TranscriptionRun {
            samples,
            request,
            ask: &ask,
            abort,
            emitter: &teller,
            detected: detected.as_deref(),
        };
        for (index, range) in ranges.iter().enumerate() {
            let follows = index
                .checked_sub(1)
                .is_some_and(|before| ranges[before].end > range.start);
            let precedes = ranges
                .get(index + 1)
                .is_some_and(|next| range.end > next.start);
            let mut at = range.start;
            while at < range.end {
                abort.check("transcribing")?;
                let window = at..range.end.min(at + self.max_window(length));
                let end = match self.encode_window(samples, range, &window).await {
                    // The rest of a range may be too short to encode.
                    Err(Error::Request { .. }) if at > 0 => range.end,
                    Err(error) => return Err(error),
                    Ok(_) => {
                        if language.is_none()
                            && request.ids.is_none()
                            && !self.rules.languages.is_empty()
                        {
                            language = self.detect_language(&mut out).await?;
                        }
                        let prompt = self.prompt(request, language, &ask)?;
                        let safe = !request.may_discard() && !follows && !precedes;
                        let under = WindowContext {
                            out: &out,
                            window: window.clone(),
                            is_final: safe,
                        };
                        let decoded = self.decode_window(&prompt, &ask, &run, &under).await?;
                        if ask.timestamps {
                            let next = self
                                .append_timed(&mut out, &decoded, &window, &prompt, &run)
                                .await?;
                            match next {
                                WindowAdvance::At(next) => next,
                                WindowAdvance::Retry => {
                                    self.retry_without_timestamps(&mut out, language, &window, &run)
                                        .await?
                                }
                            }
                        } else {
                            self.append_window(&mut out, &decoded, &window, &run);
                            window.end
                        }
                    }
                };
                at = end;
                // The last segment may still change if the next window overlaps.
                let open = usize::from(precedes && !ask.timestamps);
                teller.emit_final(&out, out.segments.len().saturating_sub(open), end);
            }
        }
        teller.emit_final(&out, out.segments.len(), length);
        Ok(out)
    }

    /// Returns the maximum window length in samples.
    fn max_window(&self, length: usize) -> usize {
        let longest = self.encoder.frontend.max_samples();
        if length <= longest {
            longest
        } else {
            MAX_LONG_WINDOW.min(longest)
        }
    }

    /// Encodes a window of a range. If the range fits in one window, the features are computed once
    /// for the whole range and a later window starts within them, as in transformers: the loudest
    /// frame of the range sets their floor, and zeros follow them.
    async fn encode_window(
        &mut self,
        samples: &dyn SampleReader,
        range: &Range<usize>,
        window: &Range<usize>,
    ) -> Result<usize> {
        let fits = range.len() <= self.max_window(samples.count());
        let start = if fits { range.start } else { window.start };
        let first = (window.start - start) / mel::HOP;
        let read = samples.read(start..window.end);
        self.encoder
            .encode_from(self.session.gpu(), &read, first)
            .await
    }

    /// Returns the sample ranges to transcribe, and the detected speech if detection ran. With
    /// timestamp tokens the ranges have any length; without them they are windows that may overlap.
    async fn sample_ranges(
        &self,
        samples: &dyn SampleReader,
        request: &TranscribeRequest,
        abort: &AbortFlag,
        timed: bool,
    ) -> Result<(Vec<Range<usize>>, Option<Vec<Range<usize>>>)> {
        let length = samples.count();
        let fits = length <= self.encoder.frontend.max_samples();
        let detected = match (&self.vad, request.vad.unwrap_or(!fits)) {
            (None, true) if request.vad == Some(true) => {
                let reason =
                    "no voice activity detector is loaded. Set 'vad' when loading the model."
                        .into();
                return Err(Error::Request {
                    parameter: "vad".into(),
                    reason,
                });
            }
            (Some(vad), true) => Some(detect_speech(vad, samples, 0..length, abort).await?),
            _ => None,
        };
        let whole: Vec<_> = std::iter::once(0..length).collect();
        let speech = detected.clone().unwrap_or(whole);
        if timed {
            let mut merged: Vec<Range<usize>> = Vec::new();
            for stretch in speech {
                match merged
                    .last_mut()
                    .filter(|last| stretch.start < last.end + MERGE_PAUSE)
                {
                    Some(last) => last.end = stretch.end,
                    None => merged.push(stretch),
                }
            }
            return Ok((merged, detected));
        }
        Ok((
            overlap::windows(&speech, self.max_window(length), WINDOW_OVERLAP),
            detected,
        ))
    }

    /// Returns the first sample of detected speech in a range, if there is enough of it to decode
    /// again.
    ///
    /// # Errors
    /// `Aborted`.
    async fn first_missed_speech(
        &self,
        run: &TranscriptionRun<'_>,
        range: Range<usize>,
    ) -> Result<Option<usize>> {
        if range.len() < MIN_MISSED_SPEECH {
            return Ok(None);
        }
        let found = match (run.detected, &self.vad) {
            (Some(found), _) => found.to_vec(),
            (None, Some(vad)) if run.request.vad != Some(false) => {
                let found = detect_speech(vad, run.samples, range.clone(), run.abort).await?;
                found
                    .into_iter()
                    .map(|s| s.start + range.start..s.end + range.start)
                    .collect()
            }
            _ => return Ok(None),
        };
        let within = found
            .iter()
            .map(|s| s.start.max(range.start)..s.end.min(range.end))
            .filter(|s| !s.is_empty());
        let enough = within.clone().map(|s| s.len()).sum::<usize>() >= MIN_MISSED_SPEECH;
        Ok(within.map(|s| s.start).next().filter(|_| enough))
    }

    /// Decodes a window again without timestamp tokens, after they covered none of its detected
    /// speech. Adds the window to `untranscribed` if this gives no words either. Returns the next sample.
    async fn retry_without_timestamps(
        &mut self,
        out: &mut Transcript,
        language: Option<u32>,
        window: &Range<usize>,
        run: &TranscriptionRun<'_>,
    ) -> Result<usize> {
        let ask = TranscribeTask {
            timestamps: false,
            ..run.ask.clone()
        };
        let prompt = self.prompt(run.request, language, &ask)?;
        let under = WindowContext {
            out,
            window: window.clone(),
            is_final: false,
        };
        let decoded = self.decode_window(&prompt, &ask, run, &under).await?;
        if decoded.ids.is_empty() || decoded.is_silent() {
            out.untranscribed
                .push(seconds(window.start)..seconds(window.end));
            return Ok(window.end);
        }
        let span = TimedSpan {
            start: seconds(window.start),
            end: seconds(window.end),
            tokens: 0..decoded.ids.len(),
        };
        let mut segment = self.segment(&decoded, &decoded.ids, span.start, span.end);
        if run.request.timestamps == TimestampMode::Word {
            let language = out.language.as_deref();
            let words = self
                .word_times(&prompt, &decoded.ids, window, &[span], language)
                .await?;
            segment.words = words.into_iter().next().unwrap_or_default();
        }
        out.segments.push(segment);
        Ok(window.end)
    }

    /// Detects the language of the audio that was encoded last.
    async fn detect_language(&mut self, out: &mut Transcript) -> Result<Option<u32>> {
        let (languages, _) = self.detect().await?;
        let code = languages.first().map(|(code, _)| code.clone());
        out.language.clone_from(&code);
        Ok(code.and_then(|code| self.rules.languages.get(&code).copied()))
    }

    fn language_code(&self, language: Option<u32>) -> Option<String> {
        self.rules
            .languages
            .iter()
            .find(|(_, id)| Some(**id) == language)
            .map(|(code, _)| code.clone())
    }

    /// Returns the decoder's first tokens.
    fn prompt(
        &self,
        request: &TranscribeRequest,
        language: Option<u32>,
        ask: &TranscribeTask,
    ) -> Result<Vec<u32>> {
        if let Some(ids) = request.ids.as_ref().filter(|ids| !ids.is_empty()) {
            return Ok(ids.clone());
        }
        let own = self.rules.prompt(language, ask)?;
        let Some(text) = request
            .prompt
            .as_ref()
            .filter(|text| !text.trim().is_empty())
        else {
            return Ok(own);
        };
        let previous = self.rules.previous_text.ok_or_else(|| Error::Request {
            parameter: "prompt".into(),
            reason: "this model does not support prompts. Leave it out.".into(),
        })?;
        let before = self
            .text
            .tokenizer()?
            .encode(&format!(" {}", text.trim()), false)?;
        let most = (self.session.capacity() / PROMPT_DIVISOR)
            .saturating_sub(1)
            .min(before.len());
        Ok([&[previous], &before[before.len() - most..], &own].concat())
    }

    /// Decodes the window that was encoded last.
    async fn decode_window(
        &mut self,
        prompt: &[u32],
        ask: &TranscribeTask,
        run: &TranscriptionRun<'_>,
        under: &WindowContext<'_>,
    ) -> Result<WindowResult> {
        let TranscriptionRun {
            request,
            abort,
            emitter: teller,
            ..
        } = run;
        let room = self.session.capacity().saturating_sub(prompt.len());
        let by_length = match self.encoder.frontend {
            AudioFrontend::Samples { .. } => repetition::token_limit(under.window.len())
                .saturating_sub(prompt.len())
                .max(1),
            AudioFrontend::Mel { .. } => room,
        };
        let limit = request.max_tokens.unwrap_or(by_length).min(room);
        // The no-speech probability comes from the first step.
        let asks = request.may_discard() && self.rules.no_timestamps.is_some();
        let no_speech = if asks { self.detect().await?.1 } else { None };
        let on_tokens = |ids: &[u32]| teller.emit_partial(under, ids);
        let text = WindowTask {
            prompt,
            max_tokens: limit,
            times: ask.timestamps,
            request,
            abort,
            on_tokens: Some(&on_tokens),
        };
        let mut found = self.decode(&text).await?;
        found.no_speech = no_speech;
        Ok(found)
    }

    fn segment(
        &self,
        decoded: &WindowResult,
        ids: &[u32],
        start: f64,
        end: f64,
    ) -> TranscriptSegment {
        TranscriptSegment {
            start,
            end,
            text: self.decode_text(ids),
            ids: ids.to_vec(),
            words: Vec::new(),
            mean_logprob: decoded.mean_logprob,
            compression: decoded.compression,
            no_speech: decoded.no_speech.map(f64::from),
        }
    }

    /// Appends the result of a window without timestamp tokens, joined to the previous one where
    /// they overlap.
    fn append_window(
        &self,
        out: &mut Transcript,
        decoded: &WindowResult,
        window: &Range<usize>,
        run: &TranscriptionRun<'_>,
    ) {
        if decoded.is_silent() || decoded.ids.is_empty() {
            if run.detected.is_some() {
                out.untranscribed
                    .push(seconds(window.start)..seconds(window.end));
            }
            return;
        }
        let mut added = self.segment(
            decoded,
            &decoded.ids,
            seconds(window.start),
            seconds(window.end),
        );
        if let Some(last) = out
            .segments
            .last_mut()
            .filter(|last| last.end > added.start)
        {
            let (keep, skip) = overlap::join_overlap(&last.ids, &added.ids);
            last.ids.truncate(keep);
            added.ids.drain(..skip);
            (last.text, added.text) = (self.decode_text(&last.ids), self.decode_text(&added.ids));
            let seam = last.end.midpoint(added.start);
            (last.end, added.start) = (seam, seam);
        }
        out.segments.push(added);
    }

    /// Appends the segments of a window's timestamp tokens; returns where to continue.
    async fn append_timed(
        &mut self,
        out: &mut Transcript,
        decoded: &WindowResult,
        window: &Range<usize>,
        prompt: &[u32],
        run: &TranscriptionRun<'_>,
    ) -> Result<WindowAdvance> {
        let frames = window.len().div_ceil(mel::HOP);
        let (mut found, go_on) =
            self.rules
                .timed_spans(&decoded.ids, seconds(window.start), frames);
        let go_on = if go_on == 0 {
            window.len()
        } else {
            (go_on * mel::HOP).min(window.len())
        };
        // Where the model stopped before the end of the window.
        let mut stopped = self
            .rules
            .closing_frame(&decoded.ids)
            .map(|frames| (frames * mel::HOP).min(window.len()));
        if decoded.is_silent()
            || decoded
                .ids
                .iter()
                .all(|id| *id >= self.rules.first_timestamp())
        {
            found.clear();
            stopped = Some(0);
        }
        let words = match run.request.timestamps {
            TimestampMode::Word => {
                self.word_times(
                    prompt,
                    &decoded.ids,
                    window,
                    &found,
                    out.language.as_deref(),
                )
                .await?
            }
            _ => vec![Vec::new(); found.len()],
        };
        let before = out.segments.len();
        for (stretch, words) in found.into_iter().zip(words) {
            let ids = &decoded.ids[stretch.tokens.clone()];
            let end = stretch.end.min(seconds(window.end)).max(stretch.start);
            let mut segment = self.segment(decoded, ids, stretch.start, end);
            segment.words = words;
            if !segment.text.trim().is_empty()
                || segment
                    .ids
                    .iter()
                    .any(|id| *id < self.rules.first_timestamp())
            {
                out.segments.push(segment);
            }
        }
        let Some(stopped) = stopped else {
            return Ok(WindowAdvance::At(window.start + go_on));
        };
        match self
            .first_missed_speech(run, window.start + stopped..window.end)
            .await?
        {
            None => Ok(WindowAdvance::At(window.end)),
            Some(_) if out.segments.len() == before && run.request.ids.is_none() => {
                Ok(WindowAdvance::Retry)
            }
            Some(next) => {
                // Windows start at a feature frame.
                let step = (next - window.start).max(MIN_WINDOW_STEP) / mel::HOP * mel::HOP;
                Ok(WindowAdvance::At((window.start + step).min(window.end)))
            }
        }
    }
}

/// Detects speech segments, as sample ranges.
async fn detect_speech(
    vad: &Vad,
    samples: &dyn SampleReader,
    range: Range<usize>,
    abort: &AbortFlag,
) -> Result<Vec<Range<usize>>> {
    let mut state = VadState::default();
    let mut probabilities = Vec::with_capacity(range.len() / WINDOW + 1);
    for start in range.clone().step_by(ABORT_CHECK_SAMPLES) {
        let part = samples.read(start..range.end.min(start + ABORT_CHECK_SAMPLES));
        probabilities.extend(part.chunks(WINDOW).map(|w| vad.next(&mut state, w)));
        abort.check("finding speech")?;
        // Other calls are served meanwhile.
        crate::util::clock::sleep(0.0).await;
    }
    Ok(speech_segments(
        &probabilities,
        range.len(),
        VadThresholds::default(),
    ))
}
