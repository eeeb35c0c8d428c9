//! CPU reference of shaders/attention: head norm, RoPE, softmax over visible keys, in f64. Takes
//! all keys and values instead of a cache.

use super::norm::rms_norm;
use std::ops::Range;

/// Attention heads and score modifiers.
#[derive(Debug, Clone, Copy)]
pub struct AttentionReference<'a> {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// Attention sinks: one logit per query head that joins the softmax without a value.
    pub sinks: Option<&'a [f32]>,
    /// Relative position bias, `[32][heads]`, added to the scores by distance bucket.
    pub relative: Option<&'a [f32]>,
}

/// Rounds heads as an 8-bit cache stores them: multiples of 1/127 of the largest magnitude.
pub fn round_to_int8(x: &[f32], head_dim: usize) -> Vec<f32> {
    let head = |head: &[f32]| {
        let most = head.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let share = |v: &f32| (v / most.max(1e-30) * 127.0 + 0.5).floor() / 127.0 * most;
        head.iter().map(share).collect::<Vec<f32>>()
    };
    x.chunks(head_dim).flat_map(head).collect()
}

/// Returns T5's bidirectional distance bucket. Half of the 32 are for later keys; exact up to 8,
/// logarithmic up to 128.
pub fn t5_bucket(row: usize, key: usize) -> usize {
    let (side, far) = if key > row {
        (16, key - row)
    } else {
        (0, row - key)
    };
    let large = 8 + ((far.max(8) as f64 / 8.0).log2() / 4.0 * 8.0).floor() as usize;
    side + if far < 8 { far } else { large.min(15) }
}

impl AttentionReference<'_> {
    /// Computes attention of the rows of q over the `visible` rows of k and v. Not generic, to
    /// compile optimized.
    pub fn of(
        &self,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        visible: &dyn Fn(usize) -> Range<usize>,
    ) -> Vec<f32> {
        let d = self.head_dim;
        let mut out = Vec::with_capacity(q.len());
        for (row, heads) in q.chunks_exact(self.heads * d).enumerate() {
            for (h, query) in heads.chunks_exact(d).enumerate() {
                let kv_head = h / (self.heads / self.kv_heads);
                let at = |x: &[f32], key: usize, i: usize| {
                    f64::from(x[(key * self.kv_heads + kv_head) * d + i])
                };
                let keys: Vec<usize> = visible(row).collect();
                let score = |key: &usize| {
                    let dot: f64 = query
                        .iter()
                        .enumerate()
                        .map(|(i, q)| f64::from(*q) * at(k, *key, i))
                        .sum();
                    let score = dot * f64::from(self.scale);
                    let cap = f64::from(self.softcap);

                    let bias = self
                        .relative
                        .map_or(0.0, |r| f64::from(r[t5_bucket(row, *key) * self.heads + h]));
                    bias + if cap > 0.0 {
                        cap * (score / cap).tanh()
                    } else {
                        score
                    }
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let sink = self.sinks.map(|s| f64::from(s[h]));
                let best = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - best).exp()).collect();
                let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - best).exp());
                out.extend((0..d).map(|i| {
                    let mixed: f64 = keys
                        .iter()
                        .zip(&weights)
                        .map(|(key, w)| w * at(v, *key, i))
                        .sum();
                    (mixed / sum) as f32
                }));
            }
        }
        out
    }
}

/// Applies RoPE to the first `dim` columns of each head of `x`. `table` has dim / 2 (cos, sin)
/// pairs per row of `x`.
pub fn apply_rope(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    table: &[[f32; 2]],
    dim: usize,
    interleaved: bool,
) {
    for (row, pairs) in x
        .chunks_exact_mut(heads * head_dim)
        .zip(table.chunks_exact(dim / 2))
    {
        for head in row.chunks_exact_mut(head_dim) {
            for (i, [cos, sin]) in pairs.iter().enumerate() {
                let (a, b) = if interleaved {
                    (2 * i, 2 * i + 1)
                } else {
                    (i, i + dim / 2)
                };
                let x = f64::from(head[a]);
                let y = f64::from(head[b]);

                let cos = f64::from(*cos);
                let sin = f64::from(*sin);

                head[a] = (x * cos - y * sin) as f32;
                head[b] = (y * cos + x * sin) as f32;
            }
        }
    }
}

/// Applies RMSNorm to each head.
pub fn norm_heads(x: &[f32], gain: &[f32], offset: f32, eps: f32) -> Vec<f32> {
    rms_norm(x, gain, offset, eps)
}
