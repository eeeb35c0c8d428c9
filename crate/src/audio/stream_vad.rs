//! Streaming voice activity detection at 16 kHz: start and end of utterances. Uses Silero VAD if
//! loaded, else loudness.

use super::SAMPLE_RATE;
use super::vad::{Vad, VadState, WINDOW};
use std::ops::Range;

/// Probability from which speech starts, and below which it ends.
const START_PROBABILITY: f32 = 0.5;
const END_PROBABILITY: f32 = 0.35;
/// Without Silero VAD: level relative to noise from which speech starts, and above which it
/// continues.
const START_LEVEL: f32 = 4.0;
const END_LEVEL: f32 = 2.0;
/// Minimum noise level.
const MIN_NOISE: f32 = 1e-3;
/// Silence that ends an utterance, and minimum and maximum length of an utterance, in samples.
const END_SILENCE: usize = 6 * SAMPLE_RATE as usize / 10;
const MIN_UTTERANCE: usize = SAMPLE_RATE as usize / 4;
const MAX_UTTERANCE: usize = 28 * SAMPLE_RATE as usize;
/// Padding before and after an utterance, in samples.
const PADDING: usize = SAMPLE_RATE as usize / 5;

/// Result of adding samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VadEvent {
    /// RMS level of the loudest window.
    pub level: f32,
    /// First sample of the current utterance, counted from the start of the stream.
    pub start: Option<usize>,
    /// Finished utterances, as sample ranges.
    pub ended: Vec<Range<usize>>,
}

/// State of a stream.
#[derive(Debug, Default)]
pub struct VadStream {
    state: VadState,
    /// Samples of an incomplete window.
    pending: Vec<f32>,
    /// Samples of complete windows so far.
    position: usize,
    noise: f32,
    start: Option<usize>,
    /// First sample with detected speech, without padding.
    speech_start: usize,
    silence_start: Option<usize>,
    /// The end of the last utterance.
    last_end: usize,
}

impl VadStream {
    /// Adds samples.
    pub fn push(&mut self, vad: Option<&Vad>, samples: &[f32]) -> VadEvent {
        let mut turn = VadEvent::default();
        self.pending.extend_from_slice(samples);
        let all = std::mem::take(&mut self.pending);
        let windows = all.chunks_exact(WINDOW);
        self.pending = windows.remainder().to_vec();
        for window in windows {
            let level = (window.iter().map(|s| s * s).sum::<f32>() / WINDOW as f32).sqrt();
            turn.level = turn.level.max(level);
            let (enters, stays) = match vad {
                Some(vad) => {
                    let p = vad.next(&mut self.state, window);
                    (p >= START_PROBABILITY, p >= END_PROBABILITY)
                }
                None => self.level_activity(level),
            };
            turn.ended.extend(self.advance(enters, stays));
        }
        turn.start = self.start;
        turn
    }

    /// Returns whether a window's level starts and continues speech. Adapts the noise level.
    fn level_activity(&mut self, level: f32) -> (bool, bool) {
        let noise = self.noise.max(MIN_NOISE);
        // Adapt down fast and up slowly; within an utterance so slowly that it takes minutes
        // without a pause.
        let pace = match self.start {
            _ if level < self.noise || self.position == 0 => 0.5,
            None => 0.005,
            Some(_) => 0.0002,
        };
        self.noise += (level - self.noise) * pace;
        (level > START_LEVEL * noise, level > END_LEVEL * noise)
    }

    fn advance(&mut self, enters: bool, stays: bool) -> Option<Range<usize>> {
        let at = self.position;
        self.position += WINDOW;
        let Some(start) = self.start else {
            if enters {
                self.start = Some(at.saturating_sub(PADDING).max(self.last_end));
                (self.speech_start, self.silence_start) = (at, None);
            }
            return None;
        };
        if stays {
            self.silence_start = None;
        } else {
            self.silence_start.get_or_insert(at);
        }
        let paused = self
            .silence_start
            .is_some_and(|quiet| self.position - quiet >= END_SILENCE);
        let full = self.position - start >= MAX_UTTERANCE;
        if !paused && !full {
            return None;
        }
        let silent = self.silence_start.filter(|_| paused);
        let end = silent.map_or(self.position, |quiet| (quiet + PADDING).min(self.position));
        let enough = silent.unwrap_or(self.position) - self.speech_start >= MIN_UTTERANCE;
        // Without a pause, the next utterance starts at once.
        self.start = if paused { None } else { Some(self.position) };
        (self.speech_start, self.silence_start, self.last_end) = (self.position, None, end);
        enough.then_some(start..end)
    }

    /// Ends the current utterance.
    pub fn finish(&mut self) -> Option<Range<usize>> {
        let end = self.position + self.pending.len();
        let enough = self.silence_start.unwrap_or(end) - self.speech_start >= MIN_UTTERANCE;
        self.start.take().map(|start| start..end).filter(|_| enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(seconds: f64, loud: f32) -> Vec<f32> {
        (0..(seconds * 16_000.0) as usize)
            .map(|i| loud * (i as f32 * 0.3).sin())
            .collect()
    }

    #[test]
    fn an_utterance_ends_with_a_pause() {
        let signal = [
            tone(1.0, 0.002),
            tone(1.5, 0.3),
            tone(2.0, 0.002),
            tone(0.05, 0.3),
            tone(1.0, 0.002),
        ]
        .concat();
        for piece in [160, 512, 4096, signal.len()] {
            let mut live = VadStream::default();
            let turns: Vec<VadEvent> = signal
                .chunks(piece)
                .map(|samples| live.push(None, samples))
                .collect();
            let ended: Vec<Range<usize>> = turns.iter().flat_map(|t| t.ended.clone()).collect();
            assert_eq!(
                ended.len(),
                1,
                "{piece}: a click is not an utterance: {ended:?}"
            );
            assert!(
                ended[0].start.abs_diff(12_800) < 1600 && ended[0].end.abs_diff(43_200) < 1600,
                "{ended:?}"
            );
            assert_eq!(live.finish(), None);
        }
    }

    #[test]
    fn speech_without_a_pause_is_split() {
        let mut live = VadStream::default();
        live.push(None, &tone(1.0, 0.001));
        let ended = live.push(None, &tone(60.0, 0.3)).ended;
        assert_eq!(ended.len(), 2);
        assert_eq!(ended[0].end, ended[1].start);
        assert!(live.finish().is_some());
    }
}
