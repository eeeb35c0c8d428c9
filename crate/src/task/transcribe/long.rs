//! Transcription of audio of any length: voice activity detection, windows, and joining of overlapping results. Memory
//! use does not grow with the audio.

use super::Transcriber;
use super::decode::{Decoded, Text};
use super::request::{Heard, Times, TranscribeRequest};
use super::told::{Teller, Under, seconds};
use crate::arch::speech::Intake;
use crate::audio::formats::{Segment, Transcript};
use crate::audio::vad::{State, Thresholds, Vad, WINDOW, stretches};
use crate::audio::whisper::{Ask, Stretch};
use crate::audio::{RATE, check, guard, mel, seams};
use crate::hub::AbortFlag;
use crate::{Error, Result};
use std::ops::Range;

/// Overlap of consecutive windows of a speech segment, in samples.
const OVERLAP: usize = 4 * RATE as usize;
/// Maximum window of longer audio in samples: the length that models were trained on.
const USUAL: usize = 28 * RATE as usize;
/// Detection windows between checks of the abort flag: two seconds.
const LOOK: usize = 64;
/// Speech segments with a shorter pause between them are merged, in samples.
const PAUSE: usize = 2 * RATE as usize;
/// The prompt takes at most 1 / `BEFORE` of the model's context.
const BEFORE: usize = 2;

/// Minimum samples of detected speech without words that are decoded again; less is the end of a word.
const MISSED: usize = RATE as usize;
/// Minimum step from one window to the next, in samples.
const STEP: usize = RATE as usize / 2;

/// Inputs shared by all windows of a transcription.
struct Run<'a> {
    samples: &'a [f32],
    request: &'a TranscribeRequest,
    ask: &'a Ask,
    abort: &'a AbortFlag,
    teller: &'a Teller<'a>,
    /// Detected speech segments, if detection ran.
    detected: Option<&'a [Range<usize>]>,
}

/// How to continue after a window.
enum Next {
    /// Continue at this sample.
    At(usize),
    /// Decode the same window without timestamp tokens: they covered none of the detected speech.
    Again,
}

impl Transcriber {
    /// Transcribes samples at 16 kHz. Calls `on_heard` with each final segment, and with `partials` also with text as
    /// it is decoded.
    ///
    /// # Errors
    /// `Request` for unsupported options and for audio without samples; `Aborted`; errors of the device.
    pub async fn transcribe(
        &mut self,
        samples: &[f32],
        request: &TranscribeRequest,
        abort: &AbortFlag,
        mut on_heard: impl FnMut(&Heard),
    ) -> Result<Transcript> {
        check(samples, "audio")?;
        let ask = Ask {
            language: request.language.clone(),
            translate: request.translate,
            timestamps: request.timestamps != Times::None,
        };
        if request.timestamps == Times::Word && self.rules.alignment_heads.is_empty() {
            let reason =
                "word timestamps need alignment heads, which this checkpoint does not name. Use 'segment'.".into();
            return Err(Error::Request { parameter: "timestamps".into(), reason });
        }
        let mut language = self.rules.language(&ask)?;
        // Reject unsupported requests before encoding any audio.
        self.rules.prompt(language, &ask)?;
        let mut out = Transcript {
            language: self.code_of(language).or(self.rules.english_only.then(|| "en".into())),
            translated: request.translate,
            duration: seconds(samples.len()),
            ..Transcript::default()
        };
        let (text, first_time) = (self.text.clone(), self.rules.first_time());
        let how = (request.partials, ask.timestamps);
        let teller = Teller::new(&mut on_heard, text, first_time, how, out.duration);
        let (ranges, detected) = self.ranges(samples, request, abort, ask.timestamps).await?;
        let run = Run { samples, request, ask: &ask, abort, teller: &teller, detected: detected.as_deref() };
        for (index, range) in ranges.iter().enumerate() {
            let follows = index.checked_sub(1).is_some_and(|before| ranges[before].end > range.start);
            let precedes = ranges.get(index + 1).is_some_and(|next| range.end > next.start);
            let mut at = range.start;
            while at < range.end {
                abort.check("transcribing")?;
                let window = at..range.end.min(at + self.longest(samples));
                let end = match self.ear.hear(&self.session.gpu, &samples[window.clone()]).await {
                    // The rest of a range may be too short to encode.
                    Err(Error::Request { .. }) if at > 0 => range.end,
                    Err(error) => return Err(error),
                    Ok(_) => {
                        if language.is_none() && request.ids.is_none() && !self.rules.languages.is_empty() {
                            language = self.spoken(&mut out).await?;
                        }
                        let prompt = self.prompt(request, language, &ask)?;
                        let safe = !request.retries() && !follows && !precedes;
                        let under = Under { out: &out, window: window.clone(), safe };
                        let decoded = self.window(&prompt, &ask, &run, &under).await?;
                        if ask.timestamps {
                            let next = self.timed(&mut out, &decoded, &window, &prompt, &run).await?;
                            match next {
                                Next::At(next) => next,
                                Next::Again => self.again(&mut out, language, &window, &run).await?,
                            }
                        } else {
                            self.append(&mut out, &decoded, &window, &run);
                            window.end
                        }
                    }
                };
                at = end;
                // The last segment may still change if the next window overlaps.
                let open = usize::from(precedes && !ask.timestamps);
                teller.settle(&out, out.segments.len().saturating_sub(open), end);
            }
        }
        teller.settle(&out, out.segments.len(), samples.len());
        Ok(out)
    }

    /// Returns the maximum window length in samples.
    fn longest(&self, samples: &[f32]) -> usize {
        let longest = self.ear.intake.longest();
        if samples.len() <= longest { longest } else { USUAL.min(longest) }
    }

    /// Returns the sample ranges to transcribe, and the detected speech if detection ran. With timestamp tokens the
    /// ranges have any length; without them they are windows that may overlap.
    async fn ranges(
        &self,
        samples: &[f32],
        request: &TranscribeRequest,
        abort: &AbortFlag,
        timed: bool,
    ) -> Result<(Vec<Range<usize>>, Option<Vec<Range<usize>>>)> {
        let fits = samples.len() <= self.ear.intake.longest();
        let detected = match (&self.vad, request.vad.unwrap_or(!fits)) {
            (None, true) if request.vad == Some(true) => {
                let reason = "no voice activity detector is loaded. Set 'vad' when loading the model.".into();
                return Err(Error::Request { parameter: "vad".into(), reason });
            }
            (Some(vad), true) => Some(detect_speech(vad, samples, abort).await?),
            _ => None,
        };
        let whole: Vec<_> = std::iter::once(0..samples.len()).collect();
        let speech = detected.clone().unwrap_or(whole);
        if timed {
            let mut merged: Vec<Range<usize>> = Vec::new();
            for stretch in speech {
                match merged.last_mut().filter(|last| stretch.start < last.end + PAUSE) {
                    Some(last) => last.end = stretch.end,
                    None => merged.push(stretch),
                }
            }
            return Ok((merged, detected));
        }
        Ok((seams::windows(&speech, self.longest(samples), OVERLAP), detected))
    }

    /// Returns the first sample of detected speech in a range, if there is enough of it to decode again.
    ///
    /// # Errors
    /// `Aborted`.
    async fn unheard(&self, run: &Run<'_>, range: Range<usize>) -> Result<Option<usize>> {
        if range.len() < MISSED {
            return Ok(None);
        }
        let found = match (run.detected, &self.vad) {
            (Some(found), _) => found.to_vec(),
            (None, Some(vad)) if run.request.vad != Some(false) => {
                let found = detect_speech(vad, &run.samples[range.clone()], run.abort).await?;
                found.into_iter().map(|s| s.start + range.start..s.end + range.start).collect()
            }
            _ => return Ok(None),
        };
        let within = found.iter().map(|s| s.start.max(range.start)..s.end.min(range.end)).filter(|s| !s.is_empty());
        let enough = within.clone().map(|s| s.len()).sum::<usize>() >= MISSED;
        Ok(within.map(|s| s.start).next().filter(|_| enough))
    }

    /// Decodes a window again without timestamp tokens, after they covered none of its detected speech. Adds the window
    /// to `unheard` if this gives no words either. Returns the next sample.
    async fn again(
        &mut self,
        out: &mut Transcript,
        language: Option<u32>,
        window: &Range<usize>,
        run: &Run<'_>,
    ) -> Result<usize> {
        let ask = Ask { timestamps: false, ..run.ask.clone() };
        let prompt = self.prompt(run.request, language, &ask)?;
        let under = Under { out, window: window.clone(), safe: false };
        let decoded = self.window(&prompt, &ask, run, &under).await?;
        if decoded.ids.is_empty() || decoded.silent() {
            out.unheard.push(seconds(window.start)..seconds(window.end));
            return Ok(window.end);
        }
        let span = Stretch { start: seconds(window.start), end: seconds(window.end), tokens: 0..decoded.ids.len() };
        let mut segment = self.segment(&decoded, &decoded.ids, span.start, span.end);
        if run.request.timestamps == Times::Word {
            let language = out.language.as_deref();
            let words = self.word_times(&prompt, &decoded.ids, window, &[span], language).await?;
            segment.words = words.into_iter().next().unwrap_or_default();
        }
        out.segments.push(segment);
        Ok(window.end)
    }

    /// Detects the language of the audio that was encoded last.
    async fn spoken(&mut self, out: &mut Transcript) -> Result<Option<u32>> {
        let (languages, _) = self.detect().await?;
        let code = languages.first().map(|(code, _)| code.clone());
        out.language.clone_from(&code);
        Ok(code.and_then(|code| self.rules.languages.get(&code).copied()))
    }

    fn code_of(&self, language: Option<u32>) -> Option<String> {
        self.rules.languages.iter().find(|(_, id)| Some(**id) == language).map(|(code, _)| code.clone())
    }

    /// Returns the decoder's first tokens.
    fn prompt(&self, request: &TranscribeRequest, language: Option<u32>, ask: &Ask) -> Result<Vec<u32>> {
        if let Some(ids) = request.ids.as_ref().filter(|ids| !ids.is_empty()) {
            return Ok(ids.clone());
        }
        let own = self.rules.prompt(language, ask)?;
        let Some(text) = request.prompt.as_ref().filter(|text| !text.trim().is_empty()) else { return Ok(own) };
        let previous = self.rules.previous.ok_or_else(|| Error::Request {
            parameter: "prompt".into(),
            reason: "this model does not support prompts. Leave it out.".into(),
        })?;
        let before = self.text.tokenizer()?.encode(&format!(" {}", text.trim()), false)?;
        let most = (self.session.capacity / BEFORE).saturating_sub(1).min(before.len());
        Ok([&[previous], &before[before.len() - most..], &own].concat())
    }

    /// Decodes the window that was encoded last.
    async fn window(&mut self, prompt: &[u32], ask: &Ask, run: &Run<'_>, under: &Under<'_>) -> Result<Decoded> {
        let Run { request, abort, teller, .. } = run;
        let room = self.session.capacity.saturating_sub(prompt.len());
        let by_length = match self.ear.intake {
            Intake::Samples { .. } => guard::token_limit(under.window.len()).saturating_sub(prompt.len()).max(1),
            Intake::Mel { .. } => room,
        };
        let limit = request.max_tokens.unwrap_or(by_length).min(room);
        // The no-speech probability comes from the first step.
        let asks = request.retries() && self.rules.no_timestamps.is_some();
        let no_speech = if asks { self.detect().await?.1 } else { None };
        let told = |ids: &[u32]| teller.decoding(under, ids);
        let text = Text { prompt, limit, times: ask.timestamps, request, abort, told: Some(&told) };
        let mut found = self.decode(&text).await?;
        found.no_speech = no_speech;
        Ok(found)
    }

    fn segment(&self, decoded: &Decoded, ids: &[u32], start: f64, end: f64) -> Segment {
        Segment {
            start,
            end,
            text: self.words_of(ids),
            ids: ids.to_vec(),
            words: Vec::new(),
            mean_logprob: decoded.mean_logprob,
            compression: decoded.compression,
            no_speech: decoded.no_speech.map(f64::from),
        }
    }

    /// Appends the result of a window without timestamp tokens, joined to the previous one where they overlap.
    fn append(&self, out: &mut Transcript, decoded: &Decoded, window: &Range<usize>, run: &Run<'_>) {
        if decoded.silent() || decoded.ids.is_empty() {
            if run.detected.is_some() {
                out.unheard.push(seconds(window.start)..seconds(window.end));
            }
            return;
        }
        let mut added = self.segment(decoded, &decoded.ids, seconds(window.start), seconds(window.end));
        if let Some(last) = out.segments.last_mut().filter(|last| last.end > added.start) {
            let (keep, skip) = seams::join(&last.ids, &added.ids);
            last.ids.truncate(keep);
            added.ids.drain(..skip);
            (last.text, added.text) = (self.words_of(&last.ids), self.words_of(&added.ids));
            let seam = last.end.midpoint(added.start);
            (last.end, added.start) = (seam, seam);
        }
        out.segments.push(added);
    }

    /// Appends the segments of a window's timestamp tokens; returns where to continue.
    async fn timed(
        &mut self,
        out: &mut Transcript,
        decoded: &Decoded,
        window: &Range<usize>,
        prompt: &[u32],
        run: &Run<'_>,
    ) -> Result<Next> {
        let frames = window.len().div_ceil(mel::HOP);
        let (mut found, go_on) = self.rules.stretches(&decoded.ids, seconds(window.start), frames);
        let go_on = if go_on == 0 { window.len() } else { (go_on * mel::HOP).min(window.len()) };
        // Where the model stopped before the end of the window.
        let mut stopped = self.rules.closes_at(&decoded.ids).map(|frames| (frames * mel::HOP).min(window.len()));
        if decoded.silent() || decoded.ids.iter().all(|id| *id >= self.rules.first_time()) {
            found.clear();
            stopped = Some(0);
        }
        let words = match run.request.timestamps {
            Times::Word => self.word_times(prompt, &decoded.ids, window, &found, out.language.as_deref()).await?,
            _ => vec![Vec::new(); found.len()],
        };
        let before = out.segments.len();
        for (stretch, words) in found.into_iter().zip(words) {
            let ids = &decoded.ids[stretch.tokens.clone()];
            let end = stretch.end.min(seconds(window.end)).max(stretch.start);
            let mut segment = self.segment(decoded, ids, stretch.start, end);
            segment.words = words;
            if !segment.text.trim().is_empty() || segment.ids.iter().any(|id| *id < self.rules.first_time()) {
                out.segments.push(segment);
            }
        }
        let Some(stopped) = stopped else { return Ok(Next::At(window.start + go_on)) };
        match self.unheard(run, window.start + stopped..window.end).await? {
            None => Ok(Next::At(window.end)),
            Some(_) if out.segments.len() == before && run.request.ids.is_none() => Ok(Next::Again),
            Some(next) => Ok(Next::At(next.max(window.start + STEP).min(window.end))),
        }
    }
}

/// Detects speech segments, as sample ranges.
async fn detect_speech(vad: &Vad, samples: &[f32], abort: &AbortFlag) -> Result<Vec<Range<usize>>> {
    let mut state = State::default();
    let mut probabilities = Vec::with_capacity(samples.len() / WINDOW + 1);
    for (index, window) in samples.chunks(WINDOW).enumerate() {
        probabilities.push(vad.next(&mut state, window));
        if index % LOOK == LOOK - 1 {
            abort.check("finding speech")?;
            crate::util::clock::sleep(0.0).await;
        }
    }
    Ok(stretches(&probabilities, samples.len(), Thresholds::default()))
}
