//! Layers with a fixed-size state (short convolution, Gated DeltaNet, Mamba-2) and the decoder that
//! mixes them with attention. The order of operations follows transformers' models.

use super::blocks::experts::{ExpertsSpec, add_experts};
use super::blocks::{
    AttentionSpec, DecoderLayer, MlpSpec, NormSpec, attention, embed, linear_act, mlp, norm,
};
use crate::Result;
use crate::ir::{
    Activation, Concat, Gated, GatedNorm, Graph, GraphBuilder, IdSource, LastRow, Linear,
    LoadHidden, RecurrenceRule, Recurrent, ShortConv, StateSpec, StoreHidden, ValueId, WeightKind,
};

/// Adds a causal depthwise convolution with the tensors `{name}.weight` and `{name}.bias`. `gates`
/// multiply its input and its output; `scales` apply to the input from a column on.
fn causal_conv(
    b: &mut GraphBuilder,
    name: &str,
    (taps, bias, act): (usize, bool, Activation),
    x: ValueId,
    gates: &[ValueId],
    scales: [(usize, f32); 3],
) -> ValueId {
    let channels = b.cols(x);
    let weight = b.vector(&format!("{name}.weight"), channels * taps);
    let bias = bias.then(|| b.vector(&format!("{name}.bias"), channels));
    let state = b.state(StateSpec::Conv {
        channels,
        kernel_size: taps,
    });
    let inputs = [&[x], gates].concat();
    b.node(
        name,
        ShortConv {
            weight,
            bias,
            kernel_size: taps,
            act,
            scales,
            state,
        },
        &inputs,
        channels,
    )
}

/// Scales that leave the input of a convolution unchanged.
const UNSCALED: [(usize, f32); 3] = [(0, 1.0); 3];

/// Splits a value's columns into consecutive named views.
fn split_columns<const N: usize>(
    b: &mut GraphBuilder,
    path: &str,
    of: ValueId,
    parts: [(&str, usize); N],
) -> [ValueId; N] {
    let mut first = 0;
    parts.map(|(name, cols)| {
        first += cols;
        b.view(&format!("{path}.{name}"), of, first - cols, cols)
    })
}

/// Options of LFM2's gated short convolution; its channels are the columns of its input.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvSpec {
    /// Kernel size, in rows.
    pub kernel_size: usize,
    /// Whether the convolution and both projections have biases.
    pub bias: bool,
}

/// Adds a gated short convolution with tensors under `path`; input and output are `[rows, cols]`.
pub fn short_conv(b: &mut GraphBuilder, path: &str, spec: &ConvSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let cols = b.cols(x);

    let all = b.linear(&name("in_proj"), x, 3 * cols, spec.bias);
    let [before, after, inner] =
        split_columns(b, path, all, [("B", cols), ("C", cols), ("x", cols)]);
    let mixed = causal_conv(
        b,
        &name("conv"),
        (spec.kernel_size, spec.bias, Activation::None),
        inner,
        &[before, after],
        UNSCALED,
    );
    b.linear(&name("out_proj"), mixed, cols, spec.bias)
}

/// Options of a Gated DeltaNet.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaSpec {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub heads: usize,
    /// Columns of a key head.
    pub key_dim: usize,
    /// Columns of a value head.
    pub value_dim: usize,
    /// Kernel size of the convolution.
    pub kernel_size: usize,
    /// Whether `in_proj_qkvz` and `in_proj_ba` are one tensor each rather than two.
    pub fused: [bool; 2],
    /// Whether value heads are interleaved over key heads.
    pub interleaved: bool,
    /// Whether `A_log` stores the negative decay rates themselves, as in GGUF files.
    pub negative_rates: bool,
    /// Epsilon of the output norm.
    pub eps: f32,
}

/// Adds a Gated DeltaNet with tensors under `path`; input and output are `[rows, cols]`.
pub fn delta_net(b: &mut GraphBuilder, path: &str, spec: &DeltaSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let keys = spec.key_heads * spec.key_dim;
    let values = spec.heads * spec.value_dim;
    let heads = spec.heads;

    let mixed = 2 * keys + values;
    let parts = [
        [("qkv", mixed), ("z", values)],
        [("b", heads), ("a", heads)],
    ];
    let mut both = |whole: bool, [(first, rows), (second, more)]: [(&str, usize); 2]| {
        if whole {
            let all = b.linear(
                &name(&format!("in_proj_{first}{second}")),
                x,
                rows + more,
                false,
            );
            split_columns(b, path, all, [(first, rows), (second, more)])
        } else {
            [(first, rows), (second, more)]
                .map(|(part, rows)| b.linear(&name(&format!("in_proj_{part}")), x, rows, false))
        }
    };
    let [qkv, z] = both(spec.fused[0], parts[0]);
    let [beta, a] = both(spec.fused[1], parts[1]);

    let qkv = causal_conv(
        b,
        &name("conv1d"),
        (spec.kernel_size, false, Activation::Silu),
        qkv,
        &[],
        UNSCALED,
    );
    let gains = [
        ("A_log", heads),
        ("dt_bias", heads),
        ("norm.weight", spec.value_dim),
    ];
    let op = Recurrent {
        heads,
        key_heads: spec.key_heads,
        interleaved: spec.interleaved,
        key_dim: spec.key_dim,
        value_dim: spec.value_dim,
        columns: [0, keys, 2 * keys],
        rule: RecurrenceRule::Delta { eps: spec.eps },
        gains: b.concat_vectors(gains.map(|(part, len)| (name(part), len))),
        negative_rates: spec.negative_rates,
        state: b.state(StateSpec::Matrix {
            heads,
            rows: spec.key_dim,
            cols: spec.value_dim,
        }),
    };
    let read = b.node(&name("delta"), op, &[qkv, a, beta, z], values);
    let cols = b.cols(x);
    b.linear(&name("out_proj"), read, cols, false)
}

/// Options of a Mamba-2 mixer.
#[derive(Debug, Clone, PartialEq)]
pub struct SsmSpec {
    /// Heads.
    pub heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// Groups of heads that share B and C; also the groups of the output norm.
    pub groups: usize,
    /// Columns of B and of C (state size).
    pub state: usize,
    /// Kernel size of the convolution.
    pub kernel_size: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the input projection has a bias.
    pub bias: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Minimum and maximum of dt.
    pub dt_limits: [f32; 2],
    /// Whether `A_log` stores the negative decay rates themselves, as in GGUF files.
    pub negative_rates: bool,
    /// Epsilon of the output norm.
    pub eps: f32,
    /// Order of output norm and gate.
    pub gate: SsmGate,
    /// Scales of the gate, x, B, C and dt, the outputs of `in_proj`.
    pub scales: [f32; 5],
    /// Scale of the output.
    pub out_scale: f32,
}

/// How a Mamba-2 mixer applies its gate z before the output projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SsmGate {
    /// `norm(x * silu(z))`.
    BeforeNorm,
    /// `norm(x) * silu(z)`.
    AfterNorm,
    /// `x * silu(z)`.
    WithoutNorm,
}

/// Adds a Mamba-2 mixer with tensors under `path`; input and output are `[rows, cols]`.
pub fn ssm(b: &mut GraphBuilder, path: &str, spec: &SsmSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let SsmSpec {
        heads,
        groups,
        state,
        ..
    } = *spec;
    let inner = heads * spec.head_dim;
    let shared = groups * state;

    let mixed = inner + 2 * shared;
    // The gate's scale is folded into the projection; the other scales are divided by it where they
    // are applied.
    let [z_scale, x_scale, b_scale, c_scale, dt_scale] = spec.scales;
    let all = linear_act(
        b,
        &name("in_proj"),
        x,
        inner + mixed + heads,
        spec.bias,
        Activation::None,
        z_scale,
    );
    let scales = [(0, x_scale), (inner, b_scale), (inner + shared, c_scale)]
        .map(|(first, s)| (first, s / z_scale));
    let [z, given, dt] = split_columns(b, path, all, [("z", inner), ("xBC", mixed), ("dt", heads)]);
    let given = causal_conv(
        b,
        &name("conv1d"),
        (spec.kernel_size, spec.conv_bias, Activation::Silu),
        given,
        &[],
        scales,
    );
    let op = Recurrent {
        heads,
        key_heads: groups,
        interleaved: false,
        key_dim: state,
        value_dim: spec.head_dim,
        columns: [inner + shared, inner, 0],
        rule: RecurrenceRule::Ssm {
            limits: spec.dt_limits,
            dt_scale: dt_scale / z_scale,
        },
        gains: b.concat_vectors(["A_log", "dt_bias", "D"].map(|part| (name(part), heads))),
        negative_rates: spec.negative_rates,
        state: b.state(StateSpec::Matrix {
            heads,
            rows: state,
            cols: spec.head_dim,
        }),
    };
    let read = b.node(&name("ssm"), op, &[given, dt], inner);
    let gated = if spec.gate == SsmGate::WithoutNorm {
        b.node(&name("gated"), Gated(Activation::Silu), &[z, read], inner)
    } else {
        let gain = b.vector(&name("norm.weight"), inner);
        let first = spec.gate == SsmGate::BeforeNorm;

        let op = GatedNorm {
            gain,
            groups,
            gate_first: first,
            eps: spec.eps,
        };
        b.node(&name("norm"), op, &[read, z], inner)
    };
    let cols = b.cols(x);
    linear_act(
        b,
        &name("out_proj"),
        gated,
        cols,
        spec.out_bias,
        Activation::None,
        spec.out_scale,
    )
}

/// The operation of a sublayer.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // a few dozen per model
pub enum Mixer {
    /// Attention.
    Attention(AttentionSpec),
    /// A gated short convolution.
    Conv(ConvSpec),
    /// A Gated DeltaNet.
    Delta(DeltaSpec),
    /// A Mamba-2 mixer.
    Ssm(SsmSpec),
    /// An MLP.
    Mlp(MlpSpec),
    /// Experts.
    Experts(ExpertsSpec),
    /// Several mixers on the same input, by the paths of their tensors under the layer; their
    /// outputs are summed.
    Parallel(Vec<(&'static str, Mixer)>),
}

impl Mixer {
    /// Returns a layer's experts, or else its MLP.
    pub fn from_layer(layer: &DecoderLayer) -> Self {
        layer
            .experts
            .clone()
            .map_or_else(|| Self::Mlp(layer.mlp.clone()), Self::Experts)
    }
}

/// A pre-norm sublayer: `x + mixer(norm(x))`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sublayer {
    /// Name of the norm within the layer.
    pub norm: &'static str,
    /// Path of its tensors within the layer.
    pub path: &'static str,
    /// The operation.
    pub mixer: Mixer,
}

/// A decoder whose layers are sequences of sublayers.
#[derive(Debug, Clone)]
pub struct HybridDecoder {
    /// Architecture name.
    pub name: String,
    /// Name of the token embedding table.
    pub embed: &'static str,
    /// Path of the layers.
    pub path: &'static str,
    /// Name of the final norm.
    pub final_norm: &'static str,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Scale of the embeddings.
    pub embed_scale: f32,
    /// Scale of the logits.
    pub logits_scale: f32,
    /// The norm used throughout.
    pub norm: NormSpec,
    /// Whether the output head is the embedding table.
    pub tied: bool,
    /// The layers.
    pub layers: Vec<Vec<Sublayer>>,
}

impl HybridDecoder {
    /// Builds the whole decoder, from token ids to logits.
    ///
    /// # Errors
    /// `Internal` if shapes do not match.
    pub fn graph(&self) -> Result<Graph> {
        let mut b = GraphBuilder::new(&self.name);
        let mut x = self.embed_tokens(&mut b);
        for (index, layer) in self.layers.iter().enumerate() {
            for part in layer {
                x = self.sublayer(&mut b, &format!("{}.{index}", self.path), part, x);
            }
        }
        self.finish(b, self.final_norm, x)
    }

    /// Builds the multi-token-prediction head `mtp` with one layer: from the hidden state of a token
    /// and the id of the next token to the logits of the token after it. Embedding and output head
    /// are the decoder's. Reference: vLLM `qwen3_next_mtp.py`.
    ///
    /// # Errors
    /// `Internal` if shapes do not match.
    pub fn mtp_graph(&self, layer: &[Sublayer]) -> Result<Graph> {
        let mut b = GraphBuilder::new(&self.name);
        let tokens = self.embed_tokens(&mut b);
        let hidden = b.node("hidden", LoadHidden, &[], self.hidden);
        let parts = [("embedding", tokens), ("hidden", hidden)]
            .map(|(part, x)| norm(&mut b, &format!("mtp.pre_fc_norm_{part}"), self.norm, x));
        let both = b.node("mtp.both", Concat, &parts, 2 * self.hidden);
        let mut x = b.linear("mtp.fc", both, self.hidden, false);
        for part in layer {
            x = self.sublayer(&mut b, "mtp.layers.0", part, x);
        }
        let graph = self.finish(b, "mtp.norm", x)?;
        graph.with_stored_hidden(StoreHidden::Last)
    }

    fn embed_tokens(&self, b: &mut GraphBuilder) -> ValueId {
        embed(
            b,
            self.embed,
            self.vocab,
            self.hidden,
            self.embed_scale,
            IdSource::Tokens,
        )
    }

    /// Adds the final norm and the output head.
    fn finish(&self, mut b: GraphBuilder, final_norm: &str, x: ValueId) -> Result<Graph> {
        let last = b.node("last_row", LastRow, &[x], self.hidden);
        let hidden = norm(&mut b, final_norm, self.norm, last);
        let weight = if self.tied {
            b.weight(
                &format!("{}.weight", self.embed),
                self.vocab,
                self.hidden,
                WeightKind::Table,
            )
        } else {
            b.matrix("lm_head.weight", self.vocab, self.hidden)
        };
        let head = Linear {
            scale: self.logits_scale,
            ..Linear::new(weight, None)
        };
        let logits = b.node("logits", head, &[hidden], self.vocab);
        b.finish(hidden, Some(logits))
    }

    fn sublayer(&self, b: &mut GraphBuilder, layer: &str, part: &Sublayer, x: ValueId) -> ValueId {
        let read = norm(b, &format!("{layer}.{}", part.norm), self.norm, x);
        self.add_mixer(b, layer, (part.path, &part.mixer), read, x)
    }

    /// Adds a mixer; returns `x` plus its output for `read`.
    fn add_mixer(
        &self,
        b: &mut GraphBuilder,
        layer: &str,
        part: (&str, &Mixer),
        read: ValueId,
        x: ValueId,
    ) -> ValueId {
        let path = format!("{layer}.{}", part.0);
        let made = match part.1 {
            Mixer::Attention(spec) => attention(b, &path, spec, read),
            Mixer::Conv(spec) => short_conv(b, &path, spec, read),
            Mixer::Delta(spec) => delta_net(b, &path, spec, read),
            Mixer::Ssm(spec) => ssm(b, &path, spec, read),
            Mixer::Mlp(spec) => mlp(b, &path, spec, read),
            Mixer::Experts(spec) => return add_experts(b, &path, spec, read, x),
            Mixer::Parallel(all) => {
                return all.iter().fold(x, |x, (path, mixer)| {
                    self.add_mixer(b, layer, (path, mixer), read, x)
                });
            }
        };
        b.add(&format!("{path}.residual"), x, made)
    }
}
