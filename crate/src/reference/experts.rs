//! CPU reference of shaders/experts and the expert matmuls: top-k routing and gated experts, in
//! f64.

use super::elementwise::activate;
use super::matmul::round_groups_to_int8;
use crate::kernels::experts::{RouterKernel, RouterScore};

/// Returns a row's selected experts with weights, best first; ties go to the lower id.
pub fn route<B>(
    logits: &[f32],
    [bias, gain]: [Option<&[f32]>; 2],
    r: &RouterKernel<B>,
) -> Vec<(usize, f64)> {
    let logits: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
    if r.score == RouterScore::Mixer {
        return mixer(&logits, r);
    }
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|l| (l - top).exp()).sum();
    let score = |l: &f64| {
        if r.score == RouterScore::Softmax {
            (l - top).exp() / sum
        } else {
            1.0 / (1.0 + (-l).exp())
        }
    };
    // Rounded to f32 like the kernel, so that ties agree.
    let scores: Vec<f32> = logits.iter().map(|l| score(l) as f32).collect();
    let mut order: Vec<f32> = scores
        .iter()
        .enumerate()
        .map(|(e, s)| s + bias.map_or(0.0, |b| b[e]))
        .collect();
    if let Some(groups) = r.groups {
        let size = order.len() / groups.count as usize;
        let worth: Vec<f32> = order
            .chunks(size)
            .map(|group| {
                let best = largest_indices(group, if groups.sum_two_best { 2 } else { 1 });
                best.iter().map(|e| group[*e]).sum()
            })
            .collect();
        let kept = largest_indices(&worth, groups.keep as usize);
        let dropped = order
            .iter_mut()
            .enumerate()
            .filter(|(e, _)| !kept.contains(&(e / size)));
        dropped.for_each(|(_, by)| *by = f32::NEG_INFINITY);
    }
    let chosen = largest_indices(&order, r.top_k as usize);
    let all: f64 = chosen.iter().map(|e| f64::from(scores[*e])).sum();
    let divisor = if r.renormalize {
        all + f64::from(r.eps)
    } else {
        1.0
    };
    let gain = |e: usize| gain.map_or(1.0, |g| f64::from(g[e]));
    chosen
        .into_iter()
        .map(|e| {
            (
                e,
                f64::from(scores[e]) * f64::from(r.scale) * gain(e) / divisor,
            )
        })
        .collect()
}

/// Returns the indices of the `count` largest values.
fn largest_indices(values: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    places.truncate(count);
    places
}

fn mixer<B>(logits: &[f64], r: &RouterKernel<B>) -> Vec<(usize, f64)> {
    let mut left: Vec<(usize, f64)> = logits.iter().copied().enumerate().collect();
    let mut chosen = Vec::new();
    for _ in 0..r.top_k {
        let (best, most) = left
            .iter()
            .copied()
            .fold((0, f64::MIN), |a, b| if b.1 > a.1 { b } else { a });
        let near = |l: f64| most - l <= 2.0 * f64::from(r.eps) * l.abs().max(most);
        let sum: f64 = left
            .iter()
            .filter(|(_, l)| near(*l))
            .map(|(_, l)| (l - most).exp())
            .sum();
        chosen.push((best, f64::from(r.scale) / sum));
        // Only the previously selected expert is excluded.
        left = logits
            .iter()
            .copied()
            .enumerate()
            .filter(|(e, _)| *e != best)
            .collect();
    }
    chosen
}

/// Dense expert weights.
#[derive(Debug, Clone)]
pub struct GatedExperts<'a> {
    /// `[experts][2 * inner][cols]`; without gates `[experts][inner][cols]`.
    pub gate_up: &'a [f32],
    /// One value per row of `gate_up`.
    pub gate_up_bias: Option<&'a [f32]>,
    /// `[experts][cols][inner]`.
    pub down: &'a [f32],
    /// `[experts][cols]`.
    pub down_bias: Option<&'a [f32]>,
    /// Columns of x and of the result.
    pub cols: usize,
    /// Hidden columns of an expert.
    pub inner: usize,
    /// `act(gate) * up` rather than `act(up)`.
    pub gated: bool,
    /// Whether gate and up rows are interleaved.
    pub interleaved: bool,
    /// Activation code.
    pub act: u32,
    /// GPT-OSS gate instead: its sigmoid factor and limit.
    pub clamp: Option<[f32; 2]>,
    /// Elements that share a scale, if the inputs of both matmuls are rounded to 8 bits.
    pub round: Option<usize>,
}

impl GatedExperts<'_> {
    /// Returns the weighted sum of one row's selected experts.
    pub fn of(&self, x: &[f32], chosen: &[(usize, f64)]) -> Vec<f32> {
        let mut y = vec![0.0f64; self.cols];
        let x = self.rounded(x);
        for &(expert, weight) in chosen {
            let hidden = self.rounded(&self.hidden(&x, expert));
            for (c, y) in y.iter_mut().enumerate() {
                let row = expert * self.cols + c;
                let w = &self.down[row * self.inner..(row + 1) * self.inner];
                let bias = self.down_bias.map_or(0.0, |b| f64::from(b[row]));
                *y += weight * (dot(&hidden, w) + bias);
            }
        }
        y.into_iter().map(|v| v as f32).collect()
    }

    fn rounded(&self, x: &[f32]) -> Vec<f32> {
        match self.round {
            Some(size) => round_groups_to_int8(x, x.len(), size),
            None => x.to_vec(),
        }
    }

    fn hidden(&self, x: &[f32], expert: usize) -> Vec<f32> {
        let project = |row: usize| {
            let row = expert
                * if self.gated {
                    2 * self.inner
                } else {
                    self.inner
                }
                + row;
            dot(x, &self.gate_up[row * self.cols..(row + 1) * self.cols])
                + self.gate_up_bias.map_or(0.0, |b| f64::from(b[row]))
        };
        let pair = |i: usize| {
            if self.interleaved {
                (2 * i, 2 * i + 1)
            } else {
                (i, i + self.inner)
            }
        };
        let one = |i: usize| {
            if !self.gated {
                return activate(self.act, project(i) as f32);
            }
            let gate = project(pair(i).0) as f32;
            let up = project(pair(i).1) as f32;

            match self.clamp {
                Some([alpha, limit]) => {
                    let gate = gate.min(limit);
                    (up.clamp(-limit, limit) + 1.0) * gate * activate(5, alpha * gate)
                }
                None => activate(self.act, gate) * up,
            }
        };
        (0..self.inner).map(one).collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}
