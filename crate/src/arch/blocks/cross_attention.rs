//! Layers of encoder-decoder models: self-attention, cross-attention over the encoder's states, and
//! the graphs of its keys and values.

use crate::arch::config::Config;
use crate::arch::encoder::bidirectional;
use crate::ir::{
    Attention, Dim, Graph, GraphBuilder, Linear, Mask, Norm, PadHeads, RowFormula, StateSpec,
    ValueId, WeightKind,
};
use crate::{Error, Result};

/// Maximum head dimension of the kernels.
const MAX_CROSS_HEAD_DIM: usize = 256;

/// Dimensions of a stack of layers.
#[derive(Debug, Clone, Copy)]
pub struct LayerDims {
    /// Number of layers.
    pub layers: usize,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Inner columns of the MLP.
    pub inner: usize,
    /// Attention heads.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
}

impl LayerDims {
    /// Reads dimensions from config.json by field names.
    pub fn read(config: Config<'_>, [hidden, inner, layers, heads]: [&str; 4]) -> Result<Self> {
        let hidden = config.count(hidden)?;
        let heads = config.count(heads)?;

        let head_dim = config.count_or("head_dim", hidden / heads)?;
        if head_dim > MAX_CROSS_HEAD_DIM {
            return Err(Error::UnsupportedOption {
                architecture: config.architecture(),
                option: format!("head dimension {head_dim}"),
                hint: format!("The kernels support up to {MAX_CROSS_HEAD_DIM}."),
            });
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
pub struct CrossNorms {
    /// Tensor name of the weight.
    pub gain: &'static str,
    /// Whether they have biases.
    pub bias: bool,
    /// Added to the weight.
    pub offset: f32,
}

impl CrossNorms {
    /// Adds a norm.
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
pub struct CrossProjections {
    /// Whether queries, values and the output have biases.
    pub bias: bool,
    /// Name of the output projection.
    pub out: &'static str,
}

/// Adds the projections of q, k and v of the same input.
fn qkv(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: CrossProjections,
) -> [ValueId; 3] {
    let parts = [("q_proj", p.bias), ("k_proj", false), ("v_proj", p.bias)];
    let made =
        parts.map(|(name, bias)| b.linear(&format!("{path}.{name}"), x, stack.width(), bias));
    made.map(|v| stack.pad_heads(b, path, v, stack.heads))
}

/// Adds self-attention of an encoder: rows attend to `before` and `after` neighbours, with optional
/// RoPE.
pub fn encoder_self_attention(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: CrossProjections,
    [before, after]: [usize; 2],
    rope: Option<usize>,
) -> ValueId {
    let attention = Attention {
        mask: Mask::Packed { before, after },
        rope,
        ..bidirectional(stack.heads, stack.padded_head_dim())
    };
    self_attention(b, path, x, stack, p, attention)
}

/// Adds causal self-attention of a decoder with a KV cache.
fn decoder_self_attention(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: CrossProjections,
    rope: Option<usize>,
) -> ValueId {
    let attention = Attention {
        mask: Mask::Causal { window: 0 },
        rope,
        state: Some(b.state(StateSpec::Kv {
            kv_heads: stack.heads,
            head_dim: stack.padded_head_dim(),
            window: 0,
        })),
        ..bidirectional(stack.heads, stack.padded_head_dim())
    };
    self_attention(b, path, x, stack, p, attention)
}

/// Adds the projections around an attention of `x` to itself.
fn self_attention(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: CrossProjections,
    attention: Attention,
) -> ValueId {
    let qkv = qkv(b, path, x, stack, p);
    let out = stack.attend(b, path, qkv, attention);
    b.linear(&format!("{path}.{}", p.out), out, stack.hidden, p.bias)
}

/// Adds cross-attention of a decoder; `memory` has the keys and values of all layers.
fn cross_attention(
    b: &mut GraphBuilder,
    path: &str,
    x: ValueId,
    stack: &LayerDims,
    p: CrossProjections,
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
pub fn cross_kv_inputs(b: &mut GraphBuilder, stack: &LayerDims, most: usize) -> [ValueId; 2] {
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
#[derive(Debug, Clone, Copy)]
pub struct DecoderAttention<'a> {
    /// Sizes of the decoder.
    pub dims: &'a LayerDims,
    /// Names and biases of the projections.
    pub projections: CrossProjections,
    /// The norms.
    pub norms: CrossNorms,
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
pub fn cross_kv_graph(
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
