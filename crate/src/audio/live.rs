//! Streaming voice activity detection at 16 kHz: start and end of utterances. Uses Silero VAD if loaded, else loudness.

use super::RATE;
use super::vad::{State, Vad, WINDOW};
use std::ops::Range;

/// Probability from which speech starts, and below which it ends.
const ENTER: f32 = 0.5;
const LEAVE: f32 = 0.35;
/// Without Silero VAD: level relative to noise from which speech starts, and above which it continues.
const LOUD: f32 = 4.0;
const FAINT: f32 = 2.0;
/// Minimum noise level.
const QUIET: f32 = 1e-3;
/// Silence that ends an utterance, and minimum and maximum length of an utterance, in samples.
const PAUSE: usize = 6 * RATE as usize / 10;
const LEAST: usize = RATE as usize / 4;
const MOST: usize = 28 * RATE as usize;
/// Padding before and after an utterance, in samples.
const MARGIN: usize = RATE as usize / 5;

/// Result of adding samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// RMS level of the loudest window.
    pub level: f32,
    /// First sample of the current utterance, counted from the start of the stream.
    pub start: Option<usize>,
    /// Finished utterances, as sample ranges.
    pub ended: Vec<Range<usize>>,
}

/// State of a stream.
#[derive(Debug, Default)]
pub struct Live {
    state: State,
    /// Samples of an incomplete window.
    rest: Vec<f32>,
    /// Samples of complete windows so far.
    at: usize,
    noise: f32,
    start: Option<usize>,
    /// First sample with detected speech, without padding.
    heard: usize,
    quiet: Option<usize>,
    /// The end of the last utterance.
    last: usize,
}

impl Live {
    /// Adds samples.
    pub fn push(&mut self, vad: Option<&Vad>, samples: &[f32]) -> Turn {
        let mut turn = Turn::default();
        self.rest.extend_from_slice(samples);
        let all = std::mem::take(&mut self.rest);
        let windows = all.chunks_exact(WINDOW);
        self.rest = windows.remainder().to_vec();
        for window in windows {
            let level = (window.iter().map(|s| s * s).sum::<f32>() / WINDOW as f32).sqrt();
            turn.level = turn.level.max(level);
            let (enters, stays) = match vad {
                Some(vad) => {
                    let p = vad.next(&mut self.state, window);
                    (p >= ENTER, p >= LEAVE)
                }
                None => self.loud(level),
            };
            turn.ended.extend(self.window(enters, stays));
        }
        turn.start = self.start;
        turn
    }

    /// Returns whether a window's level starts and continues speech. Adapts the noise level.
    fn loud(&mut self, level: f32) -> (bool, bool) {
        let noise = self.noise.max(QUIET);
        // Adapt down fast and up slowly; within an utterance so slowly that it takes minutes without a pause.
        let pace = match self.start {
            _ if level < self.noise || self.at == 0 => 0.5,
            None => 0.005,
            Some(_) => 0.0002,
        };
        self.noise += (level - self.noise) * pace;
        (level > LOUD * noise, level > FAINT * noise)
    }

    fn window(&mut self, enters: bool, stays: bool) -> Option<Range<usize>> {
        let at = self.at;
        self.at += WINDOW;
        let Some(start) = self.start else {
            if enters {
                self.start = Some(at.saturating_sub(MARGIN).max(self.last));
                (self.heard, self.quiet) = (at, None);
            }
            return None;
        };
        if stays {
            self.quiet = None;
        } else {
            self.quiet.get_or_insert(at);
        }
        let paused = self.quiet.is_some_and(|quiet| self.at - quiet >= PAUSE);
        let full = self.at - start >= MOST;
        if !paused && !full {
            return None;
        }
        let silent = self.quiet.filter(|_| paused);
        let end = silent.map_or(self.at, |quiet| (quiet + MARGIN).min(self.at));
        let enough = silent.unwrap_or(self.at) - self.heard >= LEAST;
        // Without a pause, the next utterance starts at once.
        self.start = if paused { None } else { Some(self.at) };
        (self.heard, self.quiet, self.last) = (self.at, None, end);
        enough.then_some(start..end)
    }

    /// Ends the current utterance.
    pub fn finish(&mut self) -> Option<Range<usize>> {
        let end = self.at + self.rest.len();
        let enough = self.quiet.unwrap_or(end) - self.heard >= LEAST;
        self.start.take().map(|start| start..end).filter(|_| enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(seconds: f64, loud: f32) -> Vec<f32> {
        (0..(seconds * 16_000.0) as usize).map(|i| loud * (i as f32 * 0.3).sin()).collect()
    }

    #[test]
    fn an_utterance_ends_with_a_pause() {
        let sound = [tone(1.0, 0.002), tone(1.5, 0.3), tone(2.0, 0.002), tone(0.05, 0.3), tone(1.0, 0.002)].concat();
        for piece in [160, 512, 4096, sound.len()] {
            let mut live = Live::default();
            let turns: Vec<Turn> = sound.chunks(piece).map(|samples| live.push(None, samples)).collect();
            let ended: Vec<Range<usize>> = turns.iter().flat_map(|t| t.ended.clone()).collect();
            assert_eq!(ended.len(), 1, "{piece}: a click is no utterance: {ended:?}");
            assert!(ended[0].start.abs_diff(12_800) < 1600 && ended[0].end.abs_diff(43_200) < 1600, "{ended:?}");
            assert_eq!(live.finish(), None);
        }
    }

    #[test]
    fn who_does_not_pause_is_cut() {
        let mut live = Live::default();
        live.push(None, &tone(1.0, 0.001));
        let ended = live.push(None, &tone(60.0, 0.3)).ended;
        assert_eq!(ended.len(), 2);
        assert_eq!(ended[0].end, ended[1].start);
        assert!(live.finish().is_some());
    }
}
