//! Voice activity detection: Silero VAD on the CPU, and speech segments from its probabilities, at
//! 16 kHz. A window of 32 ms takes 0.65 million multiplications and depends on the previous window:
//! a GPU round trip would take longer.
//!
//! Source: github.com/snakers4/silero-vad (MIT), version 6; the network is that of its ONNX file.

use super::SAMPLE_RATE;
use crate::format::Dtype;
use crate::format::safetensors::{PREFIX_BYTES, header_range, parse_header};
use crate::{Error, Result};
use half::f16;
use std::ops::Range;

/// Window length in samples.
pub const WINDOW: usize = 512;
/// Samples of the previous window that a window includes.
const CONTEXT: usize = 64;
/// Columns of the STFT: real parts, then imaginary parts.
const STFT_COLS: usize = 258;
const STFT_WINDOW: usize = 256;
const STFT_HOP: usize = 128;
const HIDDEN: usize = 128;

/// Convolution with kernel size 3 and zero padding, then ReLU.
#[derive(Debug)]
struct VadConv {
    inputs: usize,
    outputs: usize,
    stride: usize,
    /// `[3][inputs][outputs]`.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl VadConv {
    fn run(&self, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / self.inputs;
        let mut out = Vec::with_capacity(rows.div_ceil(self.stride) * self.outputs);
        for center in (0..rows).step_by(self.stride) {
            let start = out.len();
            out.extend(&self.bias);
            for tap in 0..3 {
                let Some(row) = (center + tap).checked_sub(1).filter(|r| *r < rows) else {
                    continue;
                };
                let weight = &self.weight[tap * self.inputs * self.outputs..];
                add_matvec(
                    &mut out[start..],
                    &x[row * self.inputs..][..self.inputs],
                    weight,
                );
            }
            out[start..].iter_mut().for_each(|v| *v = v.max(0.0));
        }
        out
    }
}

/// `out += x · w`, `w` as `[x][out]`.
fn add_matvec(out: &mut [f32], x: &[f32], w: &[f32]) {
    for (value, row) in x.iter().zip(w.chunks_exact(out.len())) {
        for (sum, weight) in out.iter_mut().zip(row) {
            *sum += value * weight;
        }
    }
}

/// Transposes `[rows][cols]` to `[cols][rows]`.
fn transposed(w: &[f32], rows: usize) -> Vec<f32> {
    let cols = w.len() / rows;
    (0..w.len())
        .map(|i| w[i % rows * cols + i / rows])
        .collect()
}

/// The network, which several streams can share.
#[derive(Debug)]
pub struct Vad {
    /// `[256][258]`.
    transform: Vec<f32>,
    convs: [VadConv; 4],
    /// `[256][512]`: rows of the input, then of the hidden state; gates input, forget, cell,
    /// output.
    gates: Vec<f32>,
    gates_bias: Vec<f32>,
    last: Vec<f32>,
    last_bias: f32,
}

/// Recurrent state of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct VadState {
    context: [f32; CONTEXT],
    /// Hidden and cell state.
    pub hidden: [Vec<f32>; 2],
}

impl Default for VadState {
    fn default() -> Self {
        Self {
            context: [0.0; CONTEXT],
            hidden: [vec![0.0; HIDDEN], vec![0.0; HIDDEN]],
        }
    }
}

impl Vad {
    /// Reads the weights from a safetensors file (F32 or F16).
    ///
    /// # Errors
    /// `Malformed`, `MissingTensor`, `Shape` or `UnsupportedEncoding`.
    pub fn new(file: &[u8]) -> Result<Self> {
        let size = file.len() as u64;
        let range = header_range(
            "silero_vad",
            &file[..file.len().min(PREFIX_BYTES as usize)],
            size,
        )?;
        let header = parse_header(
            "silero_vad",
            &file[range.start as usize..range.end as usize],
            size,
        )?;
        let tensor = |name: &str, expected: usize| -> Result<Vec<f32>> {
            let found = header.tensors.iter().find(|t| t.name == name);
            let info = found.ok_or_else(|| Error::MissingTensor {
                tensor: name.into(),
                architecture: "Silero VAD".into(),
            })?;
            let bytes = &file[info.range.start as usize..info.range.end as usize];
            let values: Vec<f32> = match info.dtype {
                Dtype::F32 => bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect(),
                Dtype::F16 => bytes
                    .chunks_exact(2)
                    .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
                    .collect(),
                other => {
                    let hint = "Use F32 or F16.".into();
                    return Err(Error::UnsupportedEncoding {
                        tensor: name.into(),
                        encoding: format!("{other:?}"),
                        hint,
                    });
                }
            };
            if values.len() != expected {
                return Err(Error::Shape {
                    tensor: name.into(),
                    found: info.shape.clone(),
                    expected: vec![expected],
                });
            }
            Ok(values)
        };
        let conv = |name: &str, inputs: usize, outputs: usize, stride: usize| -> Result<VadConv> {
            let stored = tensor(&format!("{name}.weight"), outputs * inputs * 3)?;
            let taps = (0..3 * inputs * outputs).map(|i| {
                let tap = i / (inputs * outputs);
                let input = i / outputs % inputs;
                let output = i % outputs;

                stored[(output * inputs + input) * 3 + tap]
            });
            Ok(VadConv {
                inputs,
                outputs,
                stride,
                weight: taps.collect(),
                bias: tensor(&format!("{name}.bias"), outputs)?,
            })
        };
        let mut gates = transposed(
            &tensor("lstm_cell.weight_ih", 4 * HIDDEN * HIDDEN)?,
            4 * HIDDEN,
        );
        gates.extend(transposed(
            &tensor("lstm_cell.weight_hh", 4 * HIDDEN * HIDDEN)?,
            4 * HIDDEN,
        ));
        let bias = [
            tensor("lstm_cell.bias_ih", 4 * HIDDEN)?,
            tensor("lstm_cell.bias_hh", 4 * HIDDEN)?,
        ];
        Ok(Self {
            transform: transposed(
                &tensor("stft_conv.weight", STFT_COLS * STFT_WINDOW)?,
                STFT_COLS,
            ),
            convs: [
                conv("conv1", 129, 128, 1)?,
                conv("conv2", 128, 64, 2)?,
                conv("conv3", 64, 64, 2)?,
                conv("conv4", 64, 128, 1)?,
            ],
            gates,
            gates_bias: bias[0].iter().zip(&bias[1]).map(|(a, b)| a + b).collect(),
            last: tensor("final_conv.weight", HIDDEN)?,
            last_bias: tensor("final_conv.bias", 1)?[0],
        })
    }

    /// Returns the speech probability of the next window. Pads a shorter window with zeros.
    pub fn next(&self, state: &mut VadState, window: &[f32]) -> f32 {
        let mut x = [0.0; CONTEXT + WINDOW + CONTEXT];
        let count = window.len().min(WINDOW);
        x[..CONTEXT].copy_from_slice(&state.context);
        x[CONTEXT..CONTEXT + count].copy_from_slice(&window[..count]);
        // Mirrored at the end.
        let end = CONTEXT + WINDOW;
        for i in 0..CONTEXT {
            x[end + i] = x[end - 2 - i];
        }
        state.context.copy_from_slice(&x[end - CONTEXT..end]);
        let mut rows = Vec::with_capacity(4 * STFT_COLS / 2);
        for start in (0..=x.len() - STFT_WINDOW).step_by(STFT_HOP) {
            let mut parts = [0.0; STFT_COLS];
            add_matvec(&mut parts, &x[start..start + STFT_WINDOW], &self.transform);
            let (re, im) = parts.split_at(STFT_COLS / 2);
            rows.extend(re.iter().zip(im).map(|(a, b)| (a * a + b * b).sqrt()));
        }
        let features = self.convs.iter().fold(rows, |x, conv| conv.run(&x));
        self.lstm_cell(state, &features)
    }

    fn lstm_cell(&self, state: &mut VadState, x: &[f32]) -> f32 {
        let mut gates = self.gates_bias.clone();
        add_matvec(&mut gates, x, &self.gates);
        add_matvec(
            &mut gates,
            &state.hidden[0],
            &self.gates[HIDDEN * 4 * HIDDEN..],
        );
        let mut sum = self.last_bias;
        for i in 0..HIDDEN {
            let gate = |n: usize| gates[n * HIDDEN + i];
            let cell = sigmoid(gate(1)) * state.hidden[1][i] + sigmoid(gate(0)) * gate(2).tanh();
            let hidden = sigmoid(gate(3)) * cell.tanh();
            (state.hidden[0][i], state.hidden[1][i]) = (hidden, cell);
            sum += hidden.max(0.0) * self.last[i];
        }
        sigmoid(sum)
    }

    /// Returns the speech probabilities of all windows.
    pub fn probabilities(&self, samples: &[f32]) -> Vec<f32> {
        let mut state = VadState::default();
        samples
            .chunks(WINDOW)
            .map(|window| self.next(&mut state, window))
            .collect()
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Thresholds for speech segments; durations in samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VadThresholds {
    /// Probability from which speech starts.
    pub start_probability: f32,
    /// Probability below which speech ends.
    pub end_probability: f32,
    /// Minimum speech duration.
    pub min_speech: usize,
    /// Minimum silence duration.
    pub min_silence: usize,
    /// Padding before and after speech.
    pub padding: usize,
}

impl Default for VadThresholds {
    fn default() -> Self {
        let ms = |n: usize| n * SAMPLE_RATE as usize / 1000;
        Self {
            start_probability: 0.5,
            end_probability: 0.35,
            min_speech: ms(250),
            min_silence: ms(100),
            padding: ms(30),
        }
    }
}

/// Returns the speech segments of `count` samples, as sample ranges.
pub fn speech_segments(probabilities: &[f32], count: usize, t: VadThresholds) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut start = None;
    let mut quiet = None;

    for (index, p) in probabilities.iter().enumerate() {
        let at = index * WINDOW;
        if *p >= t.start_probability {
            quiet = None;
            start.get_or_insert(at);
        }
        if let Some(begin) = start
            && *p < t.end_probability
        {
            let end = *quiet.get_or_insert(at);
            if at - end >= t.min_silence {
                found.push(begin..end);
                (start, quiet) = (None, None);
            }
        }
    }
    found.extend(start.map(|begin| begin..count));
    found.retain(|s| s.len() > t.min_speech);
    pad_segments(&mut found, count, t.padding);
    found
}

/// Pads both sides of each segment without overlap.
fn pad_segments(found: &mut [Range<usize>], count: usize, padding: usize) {
    for i in 0..found.len() {
        if i == 0 {
            found[0].start = found[0].start.saturating_sub(padding);
        }
        let Some(next) = found.get(i + 1).map(|n| n.start) else {
            found[i].end = (found[i].end + padding).min(count);
            continue;
        };
        let gap = next - found[i].end;
        let share = if gap < 2 * padding { gap / 2 } else { padding };
        found[i].end += share;
        found[i + 1].start -= share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speech_has_a_minimum_length_and_bridges_short_pauses() {
        let t = VadThresholds {
            padding: 100,
            ..VadThresholds::default()
        };
        let spoken = |windows: &[(f32, usize)]| {
            let p: Vec<f32> = windows.iter().flat_map(|(p, n)| vec![*p; *n]).collect();
            speech_segments(&p, p.len() * WINDOW, t)
        };
        assert_eq!(
            spoken(&[(0.1, 10), (0.9, 20), (0.1, 10)]),
            vec![10 * WINDOW - 100..30 * WINDOW + 100]
        );
        assert_eq!(spoken(&[(0.9, 5), (0.1, 10)]), [], "too short");
        assert_eq!(
            spoken(&[(0.9, 10), (0.1, 2), (0.9, 10)]),
            vec![0..22 * WINDOW],
            "a breath"
        );
        assert_eq!(
            spoken(&[(0.9, 10), (0.4, 50), (0.9, 10)]),
            vec![0..70 * WINDOW],
            "between the thresholds"
        );
        assert_eq!(spoken(&[(0.9, 10), (0.1, 6), (0.9, 10)]).len(), 2);
        assert_eq!(spoken(&[]), []);
    }
}
