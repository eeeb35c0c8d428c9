//! Word timestamps from the cross-attention weights of the alignment heads. Source: transformers'
//! `_extract_token_timestamps`, which uses the decoded tokens with timestamps; openai/whisper's
//! `timing.py` decodes once more without them.

use super::Transcriber;
use crate::Result;
use crate::audio::subtitles::Word;
use crate::audio::whisper::{FRAMES_PER_STEP, TIME_STEP, TimedSpan, group_words, has_spaces};
use crate::audio::{SAMPLE_RATE, dtw, mel};
use std::ops::Range;

/// Width of the median filter over attention weights, in frames.
const MEDIAN_FRAMES: usize = 7;

impl Transcriber {
    /// Returns the words of each segment of a window's tokens.
    ///
    /// A token starts at the frame aligned with the previous token and ends at its own aligned
    /// frame.
    pub(super) async fn word_times(
        &mut self,
        prompt: &[u32],
        ids: &[u32],
        window: &Range<usize>,
        stretches: &[TimedSpan],
        language: Option<&str>,
    ) -> Result<Vec<Vec<Word>>> {
        let first_time = self.rules.first_timestamp();
        let all = [prompt, ids].concat();
        if ids.iter().all(|id| *id >= first_time) || all.len() > self.session.capacity() {
            return Ok(vec![Vec::new(); stretches.len()]);
        }
        let frames = self
            .encoder
            .rows()
            .min(window.len().div_ceil(mel::HOP) / FRAMES_PER_STEP)
            .max(1);
        let rows = prompt.len()..all.len();
        let weights = self.attention_weights(&all, rows.clone(), frames).await?;
        let heads: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
        let found = dtw::token_starts(&heads, rows.len(), frames, MEDIAN_FRAMES);
        let begin = window.start as f64 / f64::from(SAMPLE_RATE);
        // The first token starts with the window.
        let time =
            |token: usize| begin + token.checked_sub(1).map_or(0, |i| found[i]) as f64 * TIME_STEP;
        let spaces = language.is_none_or(has_spaces);
        let decode = |ids: &[u32]| {
            self.text
                .tokenizer()
                .map_or_else(|_| String::new(), |t| t.decode(ids, false))
        };
        let of = |stretch: &TimedSpan| {
            let places: Vec<usize> = stretch
                .tokens
                .clone()
                .filter(|i| ids[*i] < first_time)
                .collect();
            let spoken: Vec<u32> = places.iter().map(|i| ids[*i]).collect();

            group_words(&spoken, spaces, &decode)
                .into_iter()
                .map(|(text, range): (String, Range<usize>)| {
                    let start = time(places[range.start]);
                    let end = time(places[range.end - 1] + 1);

                    Word {
                        text: text.trim().into(),
                        start,
                        end,
                    }
                })
                .collect()
        };
        Ok(stretches.iter().map(of).collect())
    }

    /// Computes the cross-attention weights of each alignment head over the first frames,
    /// `[rows][frames]`.
    async fn attention_weights(
        &mut self,
        ids: &[u32],
        rows: Range<usize>,
        frames: usize,
    ) -> Result<Vec<Vec<f32>>> {
        let heads = self.rules.alignment_heads.clone();
        let keys = self.encoder.keys(self.session.gpu()).await?;
        let seen = self.encoder.rows();
        let all = keys.len() / seen.max(1);
        let mut layers: Vec<usize> = heads.iter().map(|(layer, _)| *layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let mut out = Vec::with_capacity(heads.len());
        for layer in layers {
            let Some((look, queries)) = self.session.cross_attention_queries(ids, layer).await?
            else {
                continue;
            };
            let d = look.head_dim;
            let cols = look.heads * look.head_dim;

            for (_, head) in heads.iter().filter(|(l, h)| *l == layer && *h < look.heads) {
                let mut weights = Vec::with_capacity(rows.len() * frames);
                for row in rows.clone() {
                    let query = &queries[row * cols + head * d..][..d];
                    let key = |frame: usize| &keys[frame * all + layer * cols + head * d..][..d];
                    let scores: Vec<f32> = (0..seen)
                        .map(|f| {
                            query.iter().zip(key(f)).map(|(q, k)| q * k).sum::<f32>() * look.scale
                        })
                        .collect();
                    let best = scores.iter().copied().fold(f32::MIN, f32::max);
                    let sum: f32 = scores.iter().map(|s| (s - best).exp()).sum();
                    weights.extend(scores[..frames].iter().map(|s| (s - best).exp() / sum));
                }
                out.push(weights);
            }
        }
        Ok(out)
    }
}
