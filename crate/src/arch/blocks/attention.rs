//! Attention of a layer, from the q, k, v projections to the output projection. The spec holds the
//! differences between families.

use super::{NormSpec, linear_act, maybe_quantize, norm};
use crate::ir::{
    Activation, Attention, Gated, GraphBuilder, HeadNorm, Mask, Norm, NormPerGroup, RopeSpec,
    StateId, StateSpec, ValueId,
};

/// Names of the q, k and v projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkvProjections {
    /// One tensor each.
    Separate([&'static str; 3]),
    /// One tensor for q, and one for k, whose keys are also the values.
    KeysAsValues([&'static str; 2]),
    /// One tensor for all three.
    Fused(&'static str),
}

/// Columns that a norm of q and k covers, and its order with RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormScope {
    /// Each head, before RoPE.
    Head,
    /// Each head, after RoPE.
    HeadAfterRope,
    /// The whole projection.
    Projection,
}

/// Norms of q and k between projections and attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    /// Tensor names.
    pub names: [&'static str; 2],
    /// The kind of norm.
    pub spec: NormSpec,
    /// Columns of a norm.
    pub scope: QkNormScope,
}

/// Head counts and head dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionHeads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads.
    pub kv: usize,
    /// Columns per head.
    pub dim: usize,
}

/// The q, k and v projections and what follows them before attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkvSpec {
    /// Tensor names.
    pub projections: QkvProjections,
    /// Whether the projections have biases.
    pub bias: bool,
    /// Whether the q projection also yields a gate of the same size, whose sigmoid multiplies the
    /// attention output.
    pub gated: bool,
    /// Norms of q and k.
    pub norm: Option<QkNorm>,
    /// RMSNorm of each head of v, without a weight: its epsilon.
    pub value_norm: Option<f32>,
}

impl Default for QkvSpec {
    fn default() -> Self {
        Self {
            projections: QkvProjections::Separate(["q_proj", "k_proj", "v_proj"]),
            bias: false,
            gated: false,
            norm: None,
            value_norm: None,
        }
    }
}

/// The scores of queries and keys, before the softmax.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreSpec {
    /// Scale of the scores.
    pub scale: f32,
    /// Softcap of the scores: `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// Name of the relative position bias shared by all layers, `[32][heads]`; only for packed
    /// sequences.
    pub relative_bias: Option<&'static str>,
    /// Name of the attention sinks: one logit per head that joins the softmax and is dropped.
    pub sinks: Option<&'static str>,
}

/// The output projection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionOutputSpec {
    /// A norm before the projection: tensor name and kind.
    pub norm: Option<(&'static str, NormSpec)>,
    /// Tensor name of the projection.
    pub projection: &'static str,
    /// Whether it has a bias.
    pub bias: bool,
    /// Scale of the output.
    pub scale: f32,
}

impl Default for AttentionOutputSpec {
    fn default() -> Self {
        Self {
            norm: None,
            projection: "o_proj",
            bias: false,
            scale: 1.0,
        }
    }
}

/// Attention of a layer. [`AttentionSpec::new`] gives Llama's; families change what differs.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Head counts and head dimension.
    pub heads: AttentionHeads,
    /// The q, k and v projections.
    pub qkv: QkvSpec,
    /// RoPE; `None` for layers without.
    pub rope: Option<RopeSpec>,
    /// The attention mask. Causal attention uses a KV cache.
    pub mask: Mask,
    /// The KV cache of another layer that this one reads instead of its own.
    pub shared_kv: Option<StateId>,
    /// The scores.
    pub scores: ScoreSpec,
    /// The output projection.
    pub output: AttentionOutputSpec,
    /// Whether activations are quantized to 8 bits before each matmul.
    pub quantize_activations: bool,
}

impl AttentionSpec {
    /// Causal attention with a KV cache of its own, scores scaled by `1 / sqrt(heads.dim)`, and
    /// projections without biases.
    pub fn new(heads: AttentionHeads, rope: Option<RopeSpec>) -> Self {
        Self {
            heads,
            qkv: QkvSpec::default(),
            rope,
            mask: Mask::Causal { window: 0 },
            shared_kv: None,
            scores: ScoreSpec {
                scale: (heads.dim as f32).powf(-0.5),
                softcap: 0.0,
                relative_bias: None,
                sinks: None,
            },
            output: AttentionOutputSpec::default(),
            quantize_activations: false,
        }
    }

    /// Sets whether all four projections have biases.
    pub fn set_bias(&mut self, bias: bool) {
        self.qkv.bias = bias;
        self.output.bias = bias;
    }
}

/// Adds the projections of q, k and v; of q alone if the layer reads another layer's KV cache.
fn project(b: &mut GraphBuilder, path: &str, spec: &AttentionSpec, x: ValueId) -> Vec<ValueId> {
    let name = |part: &str| format!("{path}.{part}");
    let q_cols = spec.heads.query * spec.heads.dim;
    let kv_cols = spec.heads.kv * spec.heads.dim;

    match spec.qkv.projections {
        QkvProjections::Fused(qkv) => {
            let qkv = b.linear(&name(qkv), x, q_cols + 2 * kv_cols, spec.qkv.bias);
            let view = |b: &mut GraphBuilder, part: &str, first, cols| {
                b.view(&name(part), qkv, first, cols)
            };
            vec![
                view(b, "q", 0, q_cols),
                view(b, "k", q_cols, kv_cols),
                view(b, "v", q_cols + kv_cols, kv_cols),
            ]
        }
        QkvProjections::Separate([q, k, _]) | QkvProjections::KeysAsValues([q, k]) => {
            let project = |b: &mut GraphBuilder, part: &str, cols| {
                b.linear(&name(part), x, cols, spec.qkv.bias)
            };
            let q = project(b, q, if spec.qkv.gated { 2 * q_cols } else { q_cols });
            if spec.shared_kv.is_some() {
                return vec![q];
            }
            let k = project(b, k, kv_cols);
            let v = match spec.qkv.projections {
                QkvProjections::Separate([.., v]) => project(b, v, kv_cols),
                _ => k,
            };
            vec![q, k, v]
        }
    }
}

/// Adds attention over `x` `[rows, cols]` with tensors under `path`; returns `[rows, cols]`.
pub fn attention(b: &mut GraphBuilder, path: &str, spec: &AttentionSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let AttentionSpec {
        heads,
        scores,
        output,
        ..
    } = spec;
    let q_cols = heads.query * heads.dim;
    let x = maybe_quantize(b, path, spec.quantize_activations, x);

    let mut qkv = project(b, path, spec, x);
    let mut gate = None;
    if spec.qkv.gated {
        gate = Some(b.view(&name("gate"), qkv[0], q_cols, q_cols));
        qkv[0] = b.view(&name("q"), qkv[0], 0, q_cols);
    }
    let mut head_norm = None;
    if let Some(QkNorm {
        names,
        spec: norms,
        scope,
    }) = spec.qkv.norm
    {
        let own = &names[..qkv.len().min(2)];
        if scope == QkNormScope::Projection {
            for (x, part) in qkv.iter_mut().zip(own) {
                *x = norm(b, &name(part), norms, *x);
            }
        } else {
            let gains: Vec<String> = own.iter().map(|n| format!("{path}.{n}.weight")).collect();
            let gains = b.vectors(&gains, heads.dim);
            head_norm = Some(HeadNorm {
                gains,
                offset: norms.offset,
                eps: norms.eps,
                after_rope: scope == QkNormScope::HeadAfterRope,
                values: false,
            });
        }
    }
    if let (Some(eps), Some(v)) = (spec.qkv.value_norm, qkv.get_mut(2)) {
        let norm = Norm {
            gain: None,
            bias: None,
            layer: false,
            offset: 0.0,
            eps,
        };
        let cols = b.cols(*v);

        *v = b.node(
            &name("v_norm"),
            NormPerGroup {
                norm,
                group: heads.dim,
            },
            &[*v],
            cols,
        );
    }
    let state = match spec.mask {
        mask if mask.causal().is_some() && spec.shared_kv.is_some() => spec.shared_kv,
        Mask::Causal { window } | Mask::BidirectionalImages { window } => {
            Some(b.state(StateSpec::Kv {
                kv_heads: heads.kv,
                head_dim: heads.dim,
                window,
            }))
        }
        Mask::Packed { .. } | Mask::PackedWindow | Mask::CrossAttention => None,
    };
    let attention = Attention {
        heads: heads.query,
        kv_heads: heads.kv,
        head_dim: heads.dim,
        scale: scores.scale,
        mask: spec.mask,
        softcap: scores.softcap,
        relative: scores
            .relative_bias
            .map(|name| b.vector(name, 32 * heads.query)),
        sinks: scores.sinks.map(|n| b.vector(&name(n), heads.query)),
        head_norm,
        rope: spec.rope.clone().map(|r| b.rope(r)),
        state,
    };
    let mut mixed = b.node(&name("attention"), attention, &qkv, q_cols);
    if let Some(gate) = gate {
        mixed = b.node(
            &name("gated"),
            Gated(Activation::Sigmoid),
            &[gate, mixed],
            q_cols,
        );
    }
    if let Some((sub, norms)) = output.norm {
        mixed = norm(b, &name(sub), norms, mixed);
    }
    let cols = b.cols(x);
    let mixed = maybe_quantize(
        b,
        &name(output.projection),
        spec.quantize_activations,
        mixed,
    );

    linear_act(
        b,
        &name(output.projection),
        mixed,
        cols,
        output.bias,
        Activation::None,
        output.scale,
    )
}
