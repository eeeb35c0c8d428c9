//! Attention of a layer, from projections to output. What sets families apart is data of the spec.

use super::{NormSpec, norm, product, read};
use crate::ir::{Activation, Attention, Builder, HeadNorm, Mask, Norm, Op, RopeSpec, StateId, StateSpec, ValueId};

/// The names of the projections of q, k and v.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// One tensor each; the values are the keys where their names are the same.
    Apart([&'static str; 3]),
    /// One tensor that holds all three.
    Fused(&'static str),
}

/// Norms of q and k between projection and attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    /// The tensors' names.
    pub names: [&'static str; 2],
    /// The norm.
    pub spec: NormSpec,
    /// Over the whole projection rather than each head.
    pub whole: bool,
    /// After the rotation rather than before it.
    pub after_rope: bool,
}

/// Attention of a layer, from projections to output.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// Which keys a query sees; causal attention keeps keys and values.
    pub mask: Mask,
    /// The rotation; none for layers without.
    pub rope: Option<RopeSpec>,
    /// The projections of q, k and v.
    pub projections: Projections,
    /// Their biases.
    pub qkv_bias: bool,
    /// Norms of q and k.
    pub qk_norm: Option<QkNorm>,
    /// RMSNorm of each head of v, without a gain: what is added to the mean square.
    pub value_norm: Option<f32>,
    /// The tensor of the biases that all layers add to scores by distance, `[32][heads]`; only within packed texts.
    pub relative: Option<&'static str>,
    /// Keys and values of another layer, which this one reads and has none of its own.
    pub shared: Option<StateId>,
    /// Whether the projection of q has as many rows again for a gate, whose sigmoid multiplies what attention gives.
    pub gated: bool,
    /// The vector of logits, one a head, that join the softmax and are dropped.
    pub sinks: Option<&'static str>,
    /// A norm between attention and the output projection.
    pub sub_norm: Option<(&'static str, NormSpec)>,
    /// The name of the output projection.
    pub out: &'static str,
    /// Its bias.
    pub out_bias: bool,
    /// Multiplies what comes out.
    pub out_scale: f32,
    /// Whether what products read is rounded to 8 bits.
    pub round: bool,
}

/// q, k and v of a layer; q alone where it reads another one's keys and values.
fn project(b: &mut Builder, path: &str, spec: &AttentionSpec, x: ValueId) -> Vec<ValueId> {
    let name = |part: &str| format!("{path}.{part}");
    let (q_cols, kv_cols) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    match spec.projections {
        Projections::Fused(qkv) => {
            let qkv = b.linear(&name(qkv), x, q_cols + 2 * kv_cols, spec.qkv_bias);
            let view = |b: &mut Builder, part: &str, first, cols| b.view(&name(part), qkv, first, cols);
            vec![view(b, "q", 0, q_cols), view(b, "k", q_cols, kv_cols), view(b, "v", q_cols + kv_cols, kv_cols)]
        }
        Projections::Apart(names) => {
            let project = |b: &mut Builder, part: &str, cols| b.linear(&name(part), x, cols, spec.qkv_bias);
            let q = project(b, names[0], if spec.gated { 2 * q_cols } else { q_cols });
            if spec.shared.is_some() {
                return vec![q];
            }
            let k = project(b, names[1], kv_cols);
            let v = if names[2] == names[1] { k } else { project(b, names[2], kv_cols) };
            vec![q, k, v]
        }
    }
}

/// Attention over `x` with tensors under `path`; gives columns of `x`.
pub fn attention(b: &mut Builder, path: &str, spec: &AttentionSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let (q_cols, x) = (spec.heads * spec.head_dim, read(b, path, spec.round, x));
    let mut qkv = project(b, path, spec, x);
    let mut gate = None;
    if spec.gated {
        gate = Some(b.view(&name("gate"), qkv[0], q_cols, q_cols));
        qkv[0] = b.view(&name("q"), qkv[0], 0, q_cols);
    }
    let mut head_norm = None;
    if let Some(QkNorm { names, spec: norms, whole, after_rope }) = spec.qk_norm {
        let own = &names[..qkv.len().min(2)];
        if whole {
            for (x, part) in qkv.iter_mut().zip(own) {
                *x = norm(b, &name(part), norms, *x);
            }
        } else {
            let gains: Vec<String> = own.iter().map(|n| format!("{path}.{n}.weight")).collect();
            let gains = b.vectors(&gains, spec.head_dim);
            head_norm = Some(HeadNorm { gains, offset: norms.offset, eps: norms.eps, after_rope, values: false });
        }
    }
    if let (Some(eps), Some(v)) = (spec.value_norm, qkv.get_mut(2)) {
        let (norm, cols) = (Norm { gain: None, bias: None, layer: false, offset: 0.0, eps }, b.cols(*v));
        *v = b.node(&name("v_norm"), Op::NormEach(norm, spec.head_dim), &[*v], cols);
    }
    let (kv_heads, head_dim) = (spec.kv_heads, spec.head_dim);
    let state = match spec.mask {
        mask if mask.causal().is_some() && spec.shared.is_some() => spec.shared,
        Mask::Causal { window } | Mask::Pictures { window } => {
            Some(b.state(StateSpec::Kv { kv_heads, head_dim, window }))
        }
        Mask::Segment { .. } | Mask::Window | Mask::Memory => None,
    };
    let attention = Attention {
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        scale: spec.scale,
        mask: spec.mask,
        softcap: spec.softcap,
        relative: spec.relative.map(|name| b.vector(name, 32 * spec.heads)),
        sinks: spec.sinks.map(|n| b.vector(&name(n), spec.heads)),
        head_norm,
        rope: spec.rope.clone().map(|r| b.rope(r)),
        state,
    };
    let mut mixed = b.node(&name("attention"), Op::Attention(attention), &qkv, q_cols);
    if let Some(gate) = gate {
        mixed = b.node(&name("gated"), Op::Gated(Activation::Sigmoid), &[gate, mixed], q_cols);
    }
    if let Some((sub, norms)) = spec.sub_norm {
        mixed = norm(b, &name(sub), norms, mixed);
    }
    let (cols, mixed) = (b.cols(x), read(b, &name(spec.out), spec.round, mixed));
    product(b, &name(spec.out), mixed, cols, spec.out_bias, Activation::None, spec.out_scale)
}
