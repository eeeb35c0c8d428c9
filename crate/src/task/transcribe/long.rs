//! Sound of any length: where somebody speaks, in windows that the model hears at once, whose texts are joined again.
//! Memory does not grow with the sound: a window is heard, told and left.

use super::Transcriber;
use super::decode::{Decoded, Text};
use super::request::{Heard, Times, TranscribeRequest};
use crate::arch::speech::Intake;
use crate::audio::formats::{Segment, Transcript};
use crate::audio::vad::{Thresholds, WINDOW, stretches};
use crate::audio::whisper::Ask;
use crate::audio::{RATE, check, guard, mel, seams};
use crate::hub::AbortFlag;
use crate::{Error, Result};
use std::ops::Range;

/// Samples that windows of one stretch of speech share.
const OVERLAP: usize = 4 * RATE as usize;
/// The most samples of a window of longer sound: what the models were trained on.
const USUAL: usize = 28 * RATE as usize;
/// Windows of detection between looks at the abort flag: two seconds.
const LOOK: usize = 64;
/// Speech with less silence between is heard as one.
const PAUSE: usize = 2 * RATE as usize;
/// Tokens of text before the sound at the most, as a share of the model's context.
const BEFORE: usize = 2;

fn seconds(samples: usize) -> f64 {
    samples as f64 / f64::from(RATE)
}

impl Transcriber {
    /// Transcribes samples at 16 kHz; `on_heard` gets each stretch as soon as it will not change any more.
    ///
    /// # Errors
    /// `Request` for what the model cannot do and for sound without samples; `Aborted`; what the device reports.
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
            let reason = "this checkpoint does not name the heads that tell when words are spoken.".into();
            return Err(Error::Request { parameter: "timestamps".into(), reason });
        }
        let mut language = self.rules.language(&ask)?;
        // What cannot be is refused before anything is heard.
        self.rules.prompt(language, &ask)?;
        let mut out = Transcript {
            language: ask.language.as_ref().and_then(|_| self.code_of(language)),
            translated: request.translate,
            duration: seconds(samples.len()),
            segments: Vec::new(),
        };
        let fits = samples.len() <= self.ear.intake.longest();
        let ranges = self.ranges(samples, request, abort, ask.timestamps).await?;
        let mut told = 0;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                abort.check("transcribing")?;
                let longest = if fits { self.ear.intake.longest() } else { USUAL.min(self.ear.intake.longest()) };
                let window = at..range.end.min(at + longest);
                let heard = self.ear.hear(&self.session.gpu, &samples[window.clone()]).await;
                let (heard, end) = match heard {
                    // The rest of a range may be too short to be anything.
                    Err(Error::Request { .. }) if at > 0 => (Decoded::default(), range.end),
                    Err(error) => return Err(error),
                    Ok(_) => {
                        if language.is_none() && request.ids.is_none() && !self.rules.languages.is_empty() {
                            language = self.spoken(&mut out).await?;
                        }
                        let prompt = self.prompt(request, language, &ask)?;
                        let decoded = self.window(&prompt, window.len(), &ask, request, abort).await?;
                        if ask.timestamps {
                            let go_on = self.timed(&mut out, &decoded, &window, &prompt, request).await?;
                            (Decoded::default(), at + go_on)
                        } else {
                            (decoded, window.end)
                        }
                    }
                };
                if !ask.timestamps && !heard.silent() && !heard.ids.is_empty() {
                    self.append(&mut out, &heard, &window);
                }
                at = end;
                // What is followed by more that overlaps may still change.
                let settled = if ask.timestamps { out.segments.len() } else { out.segments.len().saturating_sub(1) };
                self.tell(&out, &mut told, settled, end, &mut on_heard);
            }
        }
        let all = out.segments.len();
        self.tell(&out, &mut told, all, samples.len(), &mut on_heard);
        Ok(out)
    }

    /// Where to listen, in ranges: windows that may overlap, or with time tokens ranges of any length.
    async fn ranges(
        &self,
        samples: &[f32],
        request: &TranscribeRequest,
        abort: &AbortFlag,
        timed: bool,
    ) -> Result<Vec<Range<usize>>> {
        let longest = self.ear.intake.longest();
        let fits = samples.len() <= longest;
        let whole: Vec<_> = std::iter::once(0..samples.len()).collect();
        let speech = match (&self.vad, request.vad.unwrap_or(!fits)) {
            (None, true) if request.vad == Some(true) => {
                let reason = "no voice detection was given; name its weights when the model is loaded.".into();
                return Err(Error::Request { parameter: "vad".into(), reason });
            }
            (Some(vad), true) => {
                let mut state = crate::audio::vad::State::default();
                let mut probabilities = Vec::with_capacity(samples.len() / WINDOW + 1);
                for (index, window) in samples.chunks(WINDOW).enumerate() {
                    probabilities.push(vad.next(&mut state, window));
                    if index % LOOK == LOOK - 1 {
                        abort.check("finding speech")?;
                        crate::util::clock::sleep(0.0).await;
                    }
                }
                stretches(&probabilities, samples.len(), Thresholds::default())
            }
            _ => whole,
        };
        if timed {
            let mut merged: Vec<Range<usize>> = Vec::new();
            for stretch in speech {
                match merged.last_mut().filter(|last| stretch.start < last.end + PAUSE) {
                    Some(last) => last.end = stretch.end,
                    None => merged.push(stretch),
                }
            }
            return Ok(merged);
        }
        Ok(seams::windows(&speech, if fits { longest } else { USUAL.min(longest) }, OVERLAP))
    }

    /// The language of what was heard last.
    async fn spoken(&mut self, out: &mut Transcript) -> Result<Option<u32>> {
        let (languages, _) = self.detect().await?;
        let code = languages.first().map(|(code, _)| code.clone());
        out.language.clone_from(&code);
        Ok(code.and_then(|code| self.rules.languages.get(&code).copied()))
    }

    fn code_of(&self, language: Option<u32>) -> Option<String> {
        self.rules.languages.iter().find(|(_, id)| Some(**id) == language).map(|(code, _)| code.clone())
    }

    /// The decoder's first tokens.
    fn prompt(&self, request: &TranscribeRequest, language: Option<u32>, ask: &Ask) -> Result<Vec<u32>> {
        if let Some(ids) = request.ids.as_ref().filter(|ids| !ids.is_empty()) {
            return Ok(ids.clone());
        }
        let own = self.rules.prompt(language, ask)?;
        let Some(text) = request.prompt.as_ref().filter(|text| !text.trim().is_empty()) else { return Ok(own) };
        let previous = self.rules.previous.ok_or_else(|| Error::Request {
            parameter: "prompt".into(),
            reason: "this model takes no text before the sound.".into(),
        })?;
        let before = self.text.tokenizer()?.encode(&format!(" {}", text.trim()), false)?;
        let most = (self.session.capacity / BEFORE).saturating_sub(1).min(before.len());
        Ok([&[previous], &before[before.len() - most..], &own].concat())
    }

    /// The tokens of a window that was heard.
    async fn window(
        &mut self,
        prompt: &[u32],
        samples: usize,
        ask: &Ask,
        request: &TranscribeRequest,
        abort: &AbortFlag,
    ) -> Result<Decoded> {
        let room = self.session.capacity.saturating_sub(prompt.len());
        let by_length = match self.ear.intake {
            Intake::Samples { .. } => guard::token_limit(samples).saturating_sub(prompt.len()).max(1),
            Intake::Mel { .. } => room,
        };
        let limit = request.max_tokens.unwrap_or(by_length).min(room);
        // The model tells silence where it begins.
        let asks = request.temperatures().len() > 1 || request.logprobs;
        let no_speech = if asks && self.rules.no_timestamps.is_some() { self.detect().await?.1 } else { None };
        let text = Text { prompt, limit, times: ask.timestamps, request, abort };
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

    /// Adds a window without time tokens, joined to the one before where both heard the same.
    fn append(&self, out: &mut Transcript, decoded: &Decoded, window: &Range<usize>) {
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

    /// Adds the stretches that a window's time tokens tell; answers by how many samples to go on.
    async fn timed(
        &mut self,
        out: &mut Transcript,
        decoded: &Decoded,
        window: &Range<usize>,
        prompt: &[u32],
        request: &TranscribeRequest,
    ) -> Result<usize> {
        let frames = window.len().div_ceil(mel::HOP);
        let (found, go_on) = self.rules.stretches(&decoded.ids, seconds(window.start), frames);
        let go_on = if go_on == 0 { window.len() } else { (go_on * mel::HOP).min(window.len()) };
        if decoded.silent() {
            return Ok(window.len());
        }
        let words = match request.timestamps {
            Times::Word => self.word_times(prompt, &decoded.ids, window, &found, out.language.as_deref()).await?,
            _ => vec![Vec::new(); found.len()],
        };
        for (stretch, words) in found.into_iter().zip(words) {
            let ids = &decoded.ids[stretch.tokens.clone()];
            let end = stretch.end.min(seconds(window.end)).max(stretch.start);
            let mut segment = self.segment(decoded, ids, stretch.start, end);
            segment.words = words;
            if !segment.text.trim().is_empty() || segment.ids.iter().any(|id| *id < self.rules.first_time()) {
                out.segments.push(segment);
            }
        }
        Ok(go_on)
    }

    /// Tells the segments that came since, up to `settled`.
    fn tell(&self, out: &Transcript, told: &mut usize, settled: usize, done: usize, on_heard: &mut impl FnMut(&Heard)) {
        for segment in &out.segments[*told..settled.max(*told)] {
            on_heard(&Heard {
                text: segment.text.clone(),
                start: segment.start,
                end: segment.end,
                done: seconds(done).min(out.duration),
                total: out.duration,
            });
        }
        *told = settled.max(*told);
    }
}
