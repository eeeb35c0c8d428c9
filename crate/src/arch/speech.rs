//! Shared code of encoder-decoder speech models: their graphs, cross-attention, and the layers around it. Covers
//! neither audio samples nor text.

use super::config::Config;
use super::encoder::{both_ways, dense};
use crate::ir::{
    Activation, Attention, Builder, Dim, Graph, Ids, Linear, Mask, Norm, Op, RopeSpec, StateSpec, Stride, ValueId,
    WeightKind,
};
use crate::{Error, Result};

/// Maximum head dimension of the kernels.
const WIDEST_HEAD: usize = 256;

/// How samples at 16 kHz become input rows of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// Raw samples: `(samples + plus) / cols` rows, the last one padded with zeros.
    Samples {
        /// Samples per row.
        cols: usize,
        /// Added before the division.
        plus: usize,
        /// Whether the samples of an incomplete last row are used.
        partial: bool,
        /// Maximum number of samples.
        longest: usize,
    },
    /// A fixed number of log-mel frames of 160 samples; shorter audio is padded with silence.
    Mel {
        /// Mel bands.
        mels: usize,
        /// Frames.
        frames: usize,
    },
}

impl Intake {
    /// Returns the maximum number of samples of one encoder run.
    pub fn longest(self) -> usize {
        match self {
            Self::Samples { longest, .. } => longest,
            Self::Mel { frames, .. } => frames * crate::audio::mel::HOP,
        }
    }

    /// Returns the number of input rows for a number of samples.
    pub fn rows(self, samples: usize) -> usize {
        match self {
            Self::Samples { cols, plus, .. } => (samples + plus) / cols,
            Self::Mel { frames, .. } => frames,
        }
    }
}

/// An encoder and a decoder with cross-attention, as graphs over one set of weights.
#[derive(Debug, Clone)]
pub struct Speech {
    /// Audio to encoder states; the family names its input.
    pub encoder: Graph,
    /// The input "states" to the cross-attention keys of all decoder layers, concatenated.
    pub keys: Graph,
    /// The input "states" to the cross-attention values.
    pub values: Graph,
    /// Tokens to logits, with the inputs "keys" and "values".
    pub decoder: Graph,
    /// Columns of the encoder states.
    pub states: usize,
    /// Audio front end of the encoder.
    pub intake: Intake,
    /// Maximum number of encoder state rows.
    pub most: usize,
}

/// Dimensions of a stack of layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stack {
    pub layers: usize,
    pub hidden: usize,
    pub inner: usize,
    pub heads: usize,
    pub head_dim: usize,
}

impl Stack {
    /// Reads dimensions from config.json by field names.
    pub fn read(config: Config<'_>, [hidden, inner, layers, heads]: [&str; 4]) -> Result<Self> {
        let (hidden, heads) = (config.count(hidden)?, config.count(heads)?);
        let head_dim = config.count_or("head_dim", hidden / heads)?;
        if head_dim > WIDEST_HEAD {
            return Err(refuse(config, &format!("head dimension {head_dim}"), "The kernels support up to 256."));
        }
        Ok(Self { layers: config.layers(layers)?, hidden, inner: config.count(inner)?, heads, head_dim })
    }

    /// Returns the columns of all heads.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the head dimension padded to a multiple of 4, as the kernels need.
    fn wide(&self) -> usize {
        self.head_dim.next_multiple_of(4)
    }

    /// Pads `count` heads to the kernels' head dimension.
    fn widened(&self, b: &mut Builder, name: &str, x: ValueId, count: usize) -> ValueId {
        if self.wide() == self.head_dim {
            return x;
        }
        b.node(&format!("{name}.wide"), Op::Heads { count }, &[x], count * self.wide())
    }

    /// Removes the padding of heads after attention.
    fn narrowed(&self, b: &mut Builder, name: &str, x: ValueId) -> ValueId {
        if self.wide() == self.head_dim {
            return x;
        }
        b.node(&format!("{name}.narrow"), Op::Heads { count: self.heads }, &[x], self.width())
    }

    /// Adds attention over padded projections; the scale is that of the unpadded head dimension.
    fn attend(&self, b: &mut Builder, path: &str, qkv: [ValueId; 3], attention: Attention) -> ValueId {
        let scale = (self.head_dim as f32).powf(-0.5);
        let attention = Op::Attention(Attention { scale, ..attention });
        let out = b.node(&format!("{path}.attention"), attention, &qkv, self.heads * self.wide());
        self.narrowed(b, path, out)
    }
}

/// Names and kind of a family's norms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norms {
    /// Tensor name of the weight.
    pub gain: &'static str,
    pub bias: bool,
    pub offset: f32,
}

impl Norms {
    pub fn norm(self, b: &mut Builder, name: &str, x: ValueId) -> ValueId {
        let cols = b.cols(x);
        let gain = Some(b.vector(&format!("{name}.{}", self.gain), cols));
        let bias = self.bias.then(|| b.vector(&format!("{name}.bias"), cols));
        b.node(name, Op::Norm(Norm { gain, bias, layer: true, offset: self.offset, eps: 1e-5 }), &[x], cols)
    }
}

/// Projections of attention: whether they have biases, and the name of the output projection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Projections {
    pub bias: bool,
    pub out: &'static str,
}

/// Adds a convolution as im2col and a matmul.
pub(super) fn conv(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    windows: crate::ir::Windows,
    outputs: usize,
    bias: bool,
    act: Activation,
) -> ValueId {
    let cols = b.cols(x) * windows.taps;
    let seen = b.node(&format!("{name}.windows"), Op::Windows(windows), &[x], cols);
    dense(b, name, seen, outputs, bias, act)
}

/// Adds the projections of q, k and v of the same input.
fn qkv(b: &mut Builder, path: &str, x: ValueId, stack: &Stack, p: Projections) -> [ValueId; 3] {
    let parts = [("q_proj", p.bias), ("k_proj", false), ("v_proj", p.bias)];
    let made = parts.map(|(name, bias)| b.linear(&format!("{path}.{name}"), x, stack.width(), bias));
    made.map(|v| stack.widened(b, path, v, stack.heads))
}

/// Adds self-attention of an encoder: rows attend to `before` and `after` neighbours, with optional RoPE.
pub(super) fn see(
    b: &mut Builder,
    path: &str,
    x: ValueId,
    stack: &Stack,
    p: Projections,
    [before, after]: [usize; 2],
    rope: Option<usize>,
) -> ValueId {
    let qkv = qkv(b, path, x, stack, p);
    let mask = Mask::Segment { before, after };
    let out = stack.attend(b, path, qkv, Attention { mask, rope, ..both_ways(stack.heads, stack.wide()) });
    b.linear(&format!("{path}.{}", p.out), out, stack.hidden, p.bias)
}

/// Adds causal self-attention of a decoder with a KV cache.
pub(super) fn remember(
    b: &mut Builder,
    path: &str,
    x: ValueId,
    stack: &Stack,
    p: Projections,
    rope: Option<usize>,
) -> ValueId {
    let qkv = qkv(b, path, x, stack, p);
    let state = Some(b.state(StateSpec::Kv { kv_heads: stack.heads, head_dim: stack.wide(), window: 0 }));
    let mask = Mask::Causal { window: 0 };
    let out = stack.attend(b, path, qkv, Attention { mask, rope, state, ..both_ways(stack.heads, stack.wide()) });
    b.linear(&format!("{path}.{}", p.out), out, stack.hidden, p.bias)
}

/// Adds cross-attention of a decoder; `memory` has the keys and values of all layers.
pub(super) fn look(
    b: &mut Builder,
    path: &str,
    x: ValueId,
    stack: &Stack,
    p: Projections,
    layer: usize,
    memory: [ValueId; 2],
) -> ValueId {
    let q = b.linear(&format!("{path}.q_proj"), x, stack.width(), p.bias);
    let q = stack.widened(b, path, q, stack.heads);
    let width = stack.heads * stack.wide();
    let [k, v] = memory.map(|all| b.view(&format!("{path}.memory"), all, layer * width, width));
    let attention = Attention { mask: Mask::Memory, ..both_ways(stack.heads, stack.wide()) };
    let out = stack.attend(b, path, [q, k, v], attention);
    b.linear(&format!("{path}.{}", p.out), out, stack.hidden, p.bias)
}

/// Adds a decoder's inputs "keys" and "values", each `[most, layers × heads × head dimension]`.
pub(super) fn memory(b: &mut Builder, stack: &Stack, most: usize) -> [ValueId; 2] {
    let rows = Dim::Rows(Stride { times: 0, plus: most as i32, per: 1 });
    ["keys", "values"].map(|name| b.input(name, rows, stack.layers * stack.heads * stack.wide()))
}

/// Builds the graph from "states" to the keys or values of all layers of a decoder; `before` is applied to the states
/// first.
pub(super) fn project(
    name: &str,
    part: &str,
    bias: bool,
    states: usize,
    stack: &Stack,
    before: &dyn Fn(&mut Builder, ValueId) -> ValueId,
) -> Result<Graph> {
    let mut b = Builder::new(name);
    let input = b.input("states", Dim::TOKENS, states);
    let x = before(&mut b, input);
    let names = |what: &str| -> Vec<String> {
        (0..stack.layers).map(|i| format!("model.decoder.layers.{i}.encoder_attn.{part}.{what}")).collect()
    };
    let parts = names("weight").into_iter().map(|n| (n, stack.width())).collect();
    let cols = b.cols(x);
    b.graph_mut().weights.push(crate::ir::Weight { parts, cols, kind: WeightKind::Matrix });
    let weight = crate::ir::WeightId(b.graph().weights.len() - 1);
    let bias = bias.then(|| b.vectors(&names("bias"), stack.width()));
    let out = b.node(part, Op::Linear(Linear::new(weight, bias)), &[x], stack.layers * stack.width());
    let out = stack.widened(&mut b, part, out, stack.layers * stack.heads);
    b.finish(out, None)
}

/// Adds the token embedding table `{name}.weight` `[vocab, cols]`; returns the table and the embeddings.
pub(super) fn tokens(b: &mut Builder, name: &str, vocab: usize, cols: usize) -> (crate::ir::WeightId, ValueId) {
    let table = b.weight(&format!("{name}.weight"), vocab, cols, WeightKind::Table);
    (table, b.node(name, Op::Embed { table, scale: 1.0, ids: Ids::Tokens, soft: None }, &[], cols))
}

/// Adds a decoder's final norm and output head over the last row.
pub(super) fn head(mut b: Builder, x: ValueId, norm: &str, norms: Norms, weight: crate::ir::WeightId) -> Result<Graph> {
    let cols = b.cols(x);
    let last = b.node("last", Op::LastRow, &[x], cols);
    let hidden = norms.norm(&mut b, norm, last);
    let vocab = b.graph().weight(weight).rows();
    let logits = b.node("logits", Op::Linear(Linear::new(weight, None)), &[hidden], vocab);
    b.finish(hidden, Some(logits))
}

/// Reads the RoPE of a family with interleaved columns; it covers `share` of a head unless the configuration sets it.
///
/// # Errors
/// `Config`, also for an odd number of rotated columns.
pub(super) fn rope(config: Config<'_>, head_dim: usize, share: f64) -> Result<RopeSpec> {
    let mut spec = RopeSpec { interleaved: true, ..config.rope(head_dim, 10_000.0)? };
    let inner = config.get("rope_parameters").and_then(|p| p.get("partial_rotary_factor"));
    if inner.or_else(|| config.get("partial_rotary_factor")).is_none() {
        spec.dim = (head_dim as f64 * share) as usize / 2 * 2;
    }
    Ok(spec)
}

/// Builds the error for an unsupported option.
pub(super) fn refuse(config: Config<'_>, option: &str, hint: &str) -> Error {
    Error::UnsupportedOption { architecture: config.architecture(), option: option.into(), hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_share_of_a_head_turns() {
        let spec = |config: serde_json::Value, share| rope(Config(&config), 12, share).map(|s| (s.dim, s.base));
        assert_eq!(spec(json!({}), 0.9).unwrap(), (10, 10_000.0));
        assert_eq!(spec(json!({ "partial_rotary_factor": 0.5 }), 0.9).unwrap(), (6, 10_000.0));
        let newer = json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 500.0 } });
        assert_eq!(spec(newer, 1.0).unwrap(), (12, 500.0));
    }
}
