//! Shared code of encoder-decoder speech models: their graphs, cross-attention, and the layers
//! around it. Covers neither audio samples nor text.

use super::config::Config;
use super::encoder::{bidirectional, dense};
use crate::ir::{
    Activation, Attention, Dim, Embed, Graph, GraphBuilder, IdSource, LastRow, Linear, Mask, Norm,
    PadHeads, RopeSpec, RowFormula, StateSpec, ValueId, WeightKind,
};
use crate::{Error, Result};

/// Maximum head dimension of the kernels.
const MAX_SPEECH_HEAD_DIM: usize = 256;

/// How samples at 16 kHz become input rows of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AudioFrontend {
    /// Raw samples: `(samples + plus) / cols` rows, the last one padded with zeros.
    Samples {
        /// Samples per row.
        cols: usize,
        /// Added before the division.
        plus: usize,
        /// Whether the samples of an incomplete last row are used.
        use_partial_row: bool,
        /// Maximum number of samples.
        max_samples: usize,
    },
    /// A fixed number of log-mel frames of 160 samples; shorter audio is padded with silence.
    Mel {
        /// Mel bands.
        mels: usize,
        /// Frames.
        frames: usize,
    },
}

impl AudioFrontend {
    /// Returns the maximum number of samples of one encoder run.
    pub fn max_samples(self) -> usize {
        match self {
            Self::Samples {
                max_samples: longest,
                ..
            } => longest,
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
pub struct SpeechGraphs {
    /// Audio to encoder states; the family names its input.
    pub encoder: Graph,
    /// The input "states" to the cross-attention keys of all decoder layers, concatenated.
    pub keys: Graph,
    /// The input "states" to the cross-attention values.
    pub values: Graph,
    /// Tokens to logits, with the inputs "keys" and "values".
    pub decoder: Graph,
    /// Columns of the encoder states.
    pub state_cols: usize,
    /// Audio front end of the encoder.
    pub frontend: AudioFrontend,
    /// Maximum number of encoder state rows.
    pub max_states: usize,
}

/// Dimensions of a stack of layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerDims {
    pub layers: usize,
    pub hidden: usize,
    pub inner: usize,
    pub heads: usize,
    pub head_dim: usize,
}

impl LayerDims {
    /// Reads dimensions from config.json by field names.
    pub fn read(config: Config<'_>, [hidden, inner, layers, heads]: [&str; 4]) -> Result<Self> {
        let hidden = config.count(hidden)?;
        let heads = config.count(heads)?;

        let head_dim = config.count_or("head_dim", hidden / heads)?;
        if head_dim > MAX_SPEECH_HEAD_DIM {
            return Err(unsupported(
                config,
                &format!("head dimension {head_dim}"),
                "The kernels support up to 256.",
            ));
        }
        Ok(Self {
            layers: config.layers(layers)?,
            hidden,
            inner: config.count(inner)?,
            heads,
            head_dim,
        })
    }

    /// Returns the columns of all heads.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the head dimension padded to a multiple of 4, as the kernels need.
    fn padded_head_dim(&self) -> usize {
        self.head_dim.next_multiple_of(4)
    }

    /// Pads `count` heads to the kernels' head dimension.
    fn pad_heads(&self, b: &mut GraphBuilder, name: &str, x: ValueId, count: usize) -> ValueId {
        if self.padded_head_dim() == self.head_dim {
            return x;
        }
        b.node(
            &format!("{name}.wide"),
            PadHeads { count },
            &[x],
            count * self.padded_head_dim(),
        )
    }

    /// Removes the padding of heads after attention.
    fn unpad_heads(&self, b: &mut GraphBuilder, name: &str, x: ValueId) -> ValueId {
        if self.padded_head_dim() == self.head_dim {
            return x;
        }
        b.node(
            &format!("{name}.narrow"),
            PadHeads { count: self.heads },
            &[x],
            self.width(),
        )
    }

    /// Adds attention over padded projections; the scale is that of the unpadded head dimension.
    fn attend(
        &self,
        b: &mut GraphBuilder,
        path: &str,
        qkv: [ValueId; 3],
        attention: Attention,
    ) -> ValueId {
        let scale = (self.head_dim as f32).powf(-0.5);
        let attention = Attention { scale, ..attention };
        let out = b.node(
            &format!("{path}.attention"),
            attention,
            &qkv,
            self.heads * self.padded_head_dim(),
        );
        self.unpad_heads(b, path, out)
    }
}

/// Names and kind of a family's norms.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpeechNorms {
    /// Tensor name of the weight.
    pub gain: &'static str,
    pub bias: bool,
    pub offset: f32,
}

impl SpeechNorms {
    pub fn norm(self, b: &mut GraphBuilder, name: &str, x: ValueId) -> ValueId {
        let cols = b.cols(x);
        let gain = Some(b.vector(&format!("{name}.{}", self.gain), cols));
        let bias = self.bias.then(|| b.vector(&format!("{name}.bias"), cols));
        b.node(
            name,
            Norm {
                gain,
                bias,
                layer: true,
                offset: self.offset,
                eps: 1e-5,
            },
            &[x],
            cols,
        )
    }
}

/// Projections of attention: whether they have biases, and the name of the output projection.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpeechProjections {
    pub bias: bool,
    pub out: &'static str,
}

/// Adds a convolution as im2col and a matmul.
pub(super) fn conv(
    b: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    windows: crate::ir::Im2Col,
    outputs: usize,
    bias: bool,
    act: Activation,
) -> ValueId {
    let cols = b.cols(x) * windows.kernel_size;
    let seen = b.node(&format!("{name}.windows"), windows, &[x], cols);
    dense(b, name, seen, outputs, bias, act)
}

/// Adds the projections of q, k and v of the same input.
fn qkv(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: SpeechProjections,
) -> [ValueId; 3] {
    let parts = [("q_proj", p.bias), ("k_proj", false), ("v_proj", p.bias)];
    let made =
        parts.map(|(name, bias)| b.linear(&format!("{path}.{name}"), x, stack.width(), bias));
    made.map(|v| stack.pad_heads(b, path, v, stack.heads))
}

/// Adds self-attention of an encoder: rows attend to `before` and `after` neighbours, with optional
/// RoPE.
pub(super) fn encoder_self_attention(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: SpeechProjections,
    [before, after]: [usize; 2],
    rope: Option<usize>,
) -> ValueId {
    let qkv = qkv(b, path, x, stack, p);
    let mask = Mask::Packed { before, after };
    let out = stack.attend(
        b,
        path,
        qkv,
        Attention {
            mask,
            rope,
            ..bidirectional(stack.heads, stack.padded_head_dim())
        },
    );
    b.linear(&format!("{path}.{}", p.out), out, stack.hidden, p.bias)
}

/// Adds causal self-attention of a decoder with a KV cache.
fn decoder_self_attention(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: SpeechProjections,
    rope: Option<usize>,
) -> ValueId {
    let qkv = qkv(b, path, x, stack, p);
    let state = Some(b.state(StateSpec::Kv {
        kv_heads: stack.heads,
        head_dim: stack.padded_head_dim(),
        window: 0,
    }));
    let mask = Mask::Causal { window: 0 };
    let out = stack.attend(
        b,
        path,
        qkv,
        Attention {
            mask,
            rope,
            state,
            ..bidirectional(stack.heads, stack.padded_head_dim())
        },
    );
    b.linear(&format!("{path}.{}", p.out), out, stack.hidden, p.bias)
}

/// Adds cross-attention of a decoder; `memory` has the keys and values of all layers.
fn cross_attention(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: SpeechProjections,
    layer: usize,
    memory: [ValueId; 2],
) -> ValueId {
    let q = b.linear(&format!("{path}.q_proj"), x, stack.width(), p.bias);
    let q = stack.pad_heads(b, path, q, stack.heads);
    let width = stack.heads * stack.padded_head_dim();
    let [k, v] = memory.map(|all| b.view(&format!("{path}.memory"), all, layer * width, width));
    let attention = Attention {
        mask: Mask::CrossAttention,
        ..bidirectional(stack.heads, stack.padded_head_dim())
    };
    let out = stack.attend(b, path, [q, k, v], attention);
    b.linear(&format!("{path}.{}", p.out), out, stack.hidden, p.bias)
}

/// Adds a decoder's inputs "keys" and "values", each `[most, layers × heads × head dimension]`.
pub(super) fn cross_kv_inputs(
    b: &mut GraphBuilder,
    stack: &LayerDims,
    most: usize,
) -> [ValueId; 2] {
    let rows = Dim::Rows(RowFormula {
        multiply: 0,
        add: most as i32,
        divide: 1,
    });
    ["keys", "values"].map(|name| {
        b.input(
            name,
            rows,
            stack.layers * stack.heads * stack.padded_head_dim(),
        )
    })
}

/// Attention of the decoder layers: self-attention and cross-attention behind a norm each.
pub(super) struct DecoderAttention<'a> {
    /// Sizes of the decoder.
    pub dims: &'a LayerDims,
    /// Names and biases of the projections.
    pub projections: SpeechProjections,
    /// The norms.
    pub norms: SpeechNorms,
    /// Names of the norms before self-attention and before cross-attention.
    pub norm_names: [&'a str; 2],
    /// RoPE of self-attention.
    pub rope: Option<usize>,
    /// Keys and values of the encoder's states, for all layers.
    pub memory: [ValueId; 2],
}

impl DecoderAttention<'_> {
    /// Adds both attentions of a layer with their residuals.
    pub fn add(&self, b: &mut GraphBuilder, path: &str, x: ValueId, layer: usize) -> ValueId {
        let [before_self, before_cross] = self.norm_names;
        let normed = self.norms.norm(b, &format!("{path}.{before_self}"), x);
        let own = decoder_self_attention(
            b,
            &format!("{path}.self_attn"),
            normed,
            self.dims,
            self.projections,
            self.rope,
        );
        let x = b.add(&format!("{path}.remembered"), x, own);
        let normed = self.norms.norm(b, &format!("{path}.{before_cross}"), x);
        let cross = cross_attention(
            b,
            &format!("{path}.encoder_attn"),
            normed,
            self.dims,
            self.projections,
            layer,
            self.memory,
        );
        b.add(&format!("{path}.heard"), x, cross)
    }
}

/// Builds the graph from "states" to the keys or values of all layers of a decoder; `before` is
/// applied to the states first.
pub(super) fn cross_kv_graph(
    name: &str,
    part: &str,
    bias: bool,
    states: usize,
    stack: &LayerDims,
    before: &dyn Fn(&mut GraphBuilder, ValueId) -> ValueId,
) -> Result<Graph> {
    let mut b = GraphBuilder::new(name);
    let input = b.input("states", Dim::TOKENS, states);
    let x = before(&mut b, input);
    let names = |what: &str| -> Vec<String> {
        (0..stack.layers)
            .map(|i| format!("model.decoder.layers.{i}.encoder_attn.{part}.{what}"))
            .collect()
    };
    let parts = names("weight")
        .into_iter()
        .map(|n| (n, stack.width()))
        .collect();
    let cols = b.cols(x);
    b.graph_mut().weights.push(crate::ir::Weight {
        parts,
        cols,
        kind: WeightKind::Matrix,
    });
    let weight = crate::ir::WeightId(b.graph().weights.len() - 1);
    let bias = bias.then(|| b.vectors(&names("bias"), stack.width()));
    let out = b.node(
        part,
        Linear::new(weight, bias),
        &[x],
        stack.layers * stack.width(),
    );
    let out = stack.pad_heads(&mut b, part, out, stack.layers * stack.heads);
    b.finish(out, None)
}

/// Adds the token embedding table `{name}.weight` `[vocab, cols]`; returns the table and the
/// embeddings.
pub(super) fn token_embeddings(
    b: &mut GraphBuilder,
    name: &str,
    vocab: usize,
    cols: usize,
) -> (crate::ir::WeightId, ValueId) {
    let table = b.weight(&format!("{name}.weight"), vocab, cols, WeightKind::Table);
    (
        table,
        b.node(
            name,
            Embed {
                table,
                scale: 1.0,
                ids: IdSource::Tokens,
                soft: None,
            },
            &[],
            cols,
        ),
    )
}

/// Adds a decoder's final norm and output head over the last row.
pub(super) fn output_head(
    mut b: GraphBuilder,
    x: ValueId,
    norm: &str,
    norms: SpeechNorms,
    weight: crate::ir::WeightId,
) -> Result<Graph> {
    let cols = b.cols(x);
    let last = b.node("last", LastRow, &[x], cols);
    let hidden = norms.norm(&mut b, norm, last);
    let vocab = b.graph().weight(weight).rows();
    let logits = b.node("logits", Linear::new(weight, None), &[hidden], vocab);
    b.finish(hidden, Some(logits))
}

/// Reads the RoPE of a family with interleaved columns; it covers `share` of a head unless the
/// configuration sets it.
///
/// # Errors
/// `Config`, also for an odd number of rotated columns.
pub(super) fn interleaved_rope(
    config: Config<'_>,
    head_dim: usize,
    share: f64,
) -> Result<RopeSpec> {
    let mut spec = RopeSpec {
        interleaved: true,
        ..config.rope(head_dim, 10_000.0)?
    };
    let inner = config
        .get("rope_parameters")
        .and_then(|p| p.get("partial_rotary_factor"));
    if inner
        .or_else(|| config.get("partial_rotary_factor"))
        .is_none()
    {
        spec.dim = (head_dim as f64 * share) as usize / 2 * 2;
    }
    Ok(spec)
}

/// Builds the error for an unsupported option.
pub(super) fn unsupported(config: Config<'_>, option: &str, hint: &str) -> Error {
    Error::UnsupportedOption {
        architecture: config.architecture(),
        option: option.into(),
        hint: hint.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::LoadConfig;
    use serde_json::json;

    #[test]
    fn partial_rotary_factor_sets_the_rope_dim() {
        let spec = |config: serde_json::Value, share| {
            interleaved_rope(LoadConfig::from(config).fields(), 12, share).map(|s| (s.dim, s.base))
        };
        assert_eq!(spec(json!({}), 0.9).unwrap(), (10, 10_000.0));
        assert_eq!(
            spec(json!({ "partial_rotary_factor": 0.5 }), 0.9).unwrap(),
            (6, 10_000.0)
        );
        let newer = json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 500.0 } });
        assert_eq!(spec(newer, 1.0).unwrap(), (12, 500.0));
    }
}
