//! Token timestamps by dynamic time warping over smoothed cross-attention weights.

/// Attention weights of one head, `[tokens][frames]`.
pub type AttentionWeights<'a> = &'a [f32];

/// Returns the frame at which each token starts, for heads of `tokens * frames` weights each.
///
/// Each head is normalized over the tokens (mean 0, deviation 1) and smoothed over the frames by a
/// median of `filter` frames (odd), then the heads are averaged. The cheapest monotonic path
/// through the negated weights gives the starts.
pub fn token_starts(
    heads: &[AttentionWeights<'_>],
    tokens: usize,
    frames: usize,
    filter: usize,
) -> Vec<usize> {
    if tokens == 0 || frames == 0 || heads.is_empty() {
        return vec![0; tokens];
    }
    let mut cost = vec![0.0f64; tokens * frames];
    for head in heads {
        let normal = normalize_head(head, tokens, frames);
        for (row, sums) in normal
            .chunks_exact(frames)
            .zip(cost.chunks_exact_mut(frames))
        {
            for (sum, value) in sums.iter_mut().zip(median_filter(row, filter)) {
                *sum -= value / heads.len() as f64;
            }
        }
    }
    alignment_starts(&cost, tokens, frames)
}

/// Normalizes each frame over the tokens to mean 0 and deviation 1.
fn normalize_head(head: AttentionWeights<'_>, tokens: usize, frames: usize) -> Vec<f64> {
    let mut out: Vec<f64> = head.iter().map(|w| f64::from(*w)).collect();
    for frame in 0..frames {
        let column = || (0..tokens).map(|t| f64::from(head[t * frames + frame]));
        let mean = column().sum::<f64>() / tokens as f64;
        let deviation = (column().map(|w| (w - mean).powi(2)).sum::<f64>() / tokens as f64).sqrt();
        for t in 0..tokens {
            let value = &mut out[t * frames + frame];
            // A frame with equal weights for all tokens carries no information.
            *value = if deviation > 0.0 {
                (*value - mean) / deviation
            } else {
                0.0
            };
        }
    }
    out
}

/// Median filter with mirrored ends. Returns rows of at most half the filter's width unchanged.
fn median_filter(row: &[f64], filter: usize) -> Vec<f64> {
    let half = filter / 2;
    if row.len() <= half {
        return row.to_vec();
    }

    (0..row.len())
        .map(|at: usize| {
            let places = (0..filter)
                .map(|i| super::mel::mirror_index((at + i) as isize - half as isize, row.len()));
            let mut around: Vec<f64> = Vec::with_capacity(filter);
            for value in places.map(|i| row[i]) {
                let at = around.partition_point(|before| before.total_cmp(&value).is_le());
                around.insert(at, value);
            }
            around[half]
        })
        .collect()
}

/// Returns the frame at which the cheapest path first reaches each token.
fn alignment_starts(cost: &[f64], tokens: usize, frames: usize) -> Vec<usize> {
    let width = frames + 1;
    // f32 as in the reference: its rounding breaks ties between paths.
    let mut sums = vec![f32::INFINITY; (tokens + 1) * width];
    let mut from = vec![2u8; (tokens + 1) * width];
    sums[0] = 0.0;
    for j in 1..=frames {
        for i in 1..=tokens {
            let both = sums[(i - 1) * width + j - 1];
            let up = sums[(i - 1) * width + j];
            let left = sums[i * width + j - 1];

            let (best, way) = if both < up && both < left {
                (both, 0)
            } else if up < both && up < left {
                (up, 1)
            } else {
                (left, 2)
            };
            sums[i * width + j] = (cost[(i - 1) * frames + j - 1] + f64::from(best)) as f32;
            from[i * width + j] = way;
        }
    }
    let mut i = tokens;
    let mut j = frames;

    let mut first = vec![0; tokens];
    while i > 0 && j > 0 {
        first[i - 1] = j - 1;
        match from[i * width + j] {
            0 => (i, j) = (i - 1, j - 1),
            1 => i -= 1,
            _ => j -= 1,
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_start_at_their_attention() {
        let tokens = 4;
        let frames = 40;
        let begin = [0, 9, 17, 30];

        let mut head = vec![0.01f32; tokens * frames];
        for t in 0..tokens {
            let end = begin.get(t + 1).copied().unwrap_or(frames);
            head[t * frames + begin[t]..t * frames + end].fill(1.0);
        }
        let noise: Vec<f32> = head
            .iter()
            .enumerate()
            .map(|(i, w)| w + ((i * 7919) % 13) as f32 * 0.01)
            .collect();
        assert_eq!(token_starts(&[&head, &noise], tokens, frames, 7), begin);
        assert_eq!(token_starts(&[], 3, 10, 7), [0, 0, 0]);
        assert_eq!(token_starts(&[&[0.5; 3]], 3, 1, 7).len(), 3);
    }

    #[test]
    fn a_median_mirrors_its_ends() {
        assert_eq!(
            median_filter(&[5.0, 1.0, 4.0, 2.0], 3),
            [1.0, 4.0, 2.0, 4.0]
        );
        assert_eq!(median_filter(&[5.0, 1.0, 3.0], 7), [5.0, 1.0, 3.0]);
    }
}
