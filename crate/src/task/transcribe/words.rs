//! When words were spoken: what some heads of the decoder looked at while each token came.
//! Source: openai/whisper's `timing.py`.

use super::Transcriber;
use crate::Result;
use crate::audio::formats::Word;
use crate::audio::whisper::{TIME_STEP, has_spaces, words};
use crate::audio::{RATE, dtw};
use std::ops::Range;

/// Frames of the median that smooths weights.
const FILTER: usize = 7;

impl Transcriber {
    /// The words of a window's tokens, each with the place of its first token.
    pub(super) async fn word_times(
        &mut self,
        prompt: &[u32],
        ids: &[u32],
        window: &Range<usize>,
        language: Option<&str>,
    ) -> Result<Vec<(Word, usize)>> {
        let first_time = self.rules.first_time();
        let places: Vec<usize> = (0..ids.len()).filter(|i| ids[*i] < first_time).collect();
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let spoken: Vec<u32> = places.iter().map(|i| ids[*i]).collect();
        // As the model reads a text without times, up to its end.
        let begin: Vec<u32> = prompt.iter().copied().chain(self.rules.no_timestamps).collect();
        let all = [&begin[..], &spoken, &[self.rules.end]].concat();
        if all.len() > self.session.capacity {
            return Ok(Vec::new());
        }
        let frames = self.ear.rows().min((window.len() as f64 / f64::from(RATE) / TIME_STEP).ceil() as usize).max(1);
        let rows = begin.len() - 1..all.len() - 1;
        let weights = self.weights(&all, rows.clone(), frames).await?;
        let heads: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
        let starts = dtw::starts(&heads, rows.len(), frames, FILTER);
        let time = |token: usize| {
            let frame = starts.get(token).copied().unwrap_or(frames);
            window.start as f64 / f64::from(RATE) + frame as f64 * TIME_STEP
        };
        let spaces = language.is_none_or(has_spaces);
        let decode = |ids: &[u32]| self.text.tokenizer().map_or_else(|_| String::new(), |t| t.decode(ids, false));
        let made = words(&spoken, spaces, &decode).into_iter().map(|(text, range)| {
            let (start, end) = (time(range.start), time(range.end));
            (Word { text: text.trim().into(), start, end }, places[range.start])
        });
        Ok(made.collect())
    }

    /// Of each alignment head: how some rows of a text looked at the frames, `[rows][frames]`.
    async fn weights(&mut self, ids: &[u32], rows: Range<usize>, frames: usize) -> Result<Vec<Vec<f32>>> {
        let heads = self.rules.alignment_heads.clone();
        let keys = self.ear.keys(&self.session.gpu).await?;
        let all = keys.len() / self.ear.rows().max(1);
        let mut layers: Vec<usize> = heads.iter().map(|(layer, _)| *layer).collect();
        layers.dedup();
        let mut out = Vec::with_capacity(heads.len());
        for layer in layers {
            let Some((look, queries)) = self.session.queries(ids, layer).await? else { continue };
            let (d, cols) = (look.head_dim, look.heads * look.head_dim);
            for (_, head) in heads.iter().filter(|(l, h)| *l == layer && *h < look.heads) {
                let mut weights = Vec::with_capacity(rows.len() * frames);
                for row in rows.clone() {
                    let query = &queries[row * cols + head * d..][..d];
                    let key = |frame: usize| &keys[frame * all + layer * cols + head * d..][..d];
                    let scores: Vec<f32> = (0..frames)
                        .map(|f| query.iter().zip(key(f)).map(|(q, k)| q * k).sum::<f32>() * look.scale)
                        .collect();
                    let best = scores.iter().copied().fold(f32::MIN, f32::max);
                    let sum: f32 = scores.iter().map(|s| (s - best).exp()).sum();
                    weights.extend(scores.iter().map(|s| (s - best).exp() / sum));
                }
                out.push(weights);
            }
        }
        Ok(out)
    }
}
