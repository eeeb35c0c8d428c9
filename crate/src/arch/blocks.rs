//! Building blocks shared by families: norms, attention, MLPs, and the decoder that most families
//! use. The specs hold the differences between families. The order of operations follows
//! transformers' models.

mod attention;
pub mod cross_attention;
mod dense;
pub mod experts;
pub mod latent;
mod mlp;

use crate::ir::{
    Activation, Embed, Epilogue, GraphBuilder, IdSource, Linear, Norm, NormPerGroup,
    QuantizeActivations, Scale, ValueId, WeightKind,
};
pub use attention::{
    AttentionHeads, AttentionOutputSpec, AttentionSpec, QkNorm, QkNormScope, QkvProjections,
    QkvSpec, ScoreSpec, attention,
};
pub use dense::{DecoderLayer, DenseDecoder, MAX_HEAD_DIM, TensorNames};
pub use mlp::{MlpKind, MlpSpec, mlp};

/// A row norm: RMSNorm or LayerNorm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Whether the mean is subtracted (LayerNorm).
    pub layer: bool,
    /// Whether it has a bias.
    pub bias: bool,
    /// Added to the weight.
    pub offset: f32,
    /// Epsilon, added to the mean square.
    pub eps: f32,
}

impl NormSpec {
    /// Returns an RMSNorm with a weight.
    pub fn rms(eps: f64) -> Self {
        Self {
            layer: false,
            bias: false,
            offset: 0.0,
            eps: eps as f32,
        }
    }

    /// Returns a LayerNorm with weight and bias.
    pub fn layer(eps: f64) -> Self {
        Self {
            layer: true,
            bias: true,
            offset: 0.0,
            eps: eps as f32,
        }
    }
}

/// Adds a norm with the tensors `{name}.weight` and `{name}.bias`.
pub fn norm(b: &mut GraphBuilder, name: &str, spec: NormSpec, x: ValueId) -> ValueId {
    let cols = b.cols(x);
    let gain = Some(b.vector(&format!("{name}.weight"), cols));
    let bias = spec.bias.then(|| b.vector(&format!("{name}.bias"), cols));
    let NormSpec {
        layer, offset, eps, ..
    } = spec;
    b.node(
        name,
        Norm {
            gain,
            bias,
            layer,
            offset,
            eps,
        },
        &[x],
        cols,
    )
}

/// Adds a norm of each group of `group` columns; `{name}.weight` is shared by the groups.
pub fn norm_per_group(
    b: &mut GraphBuilder,
    name: &str,
    spec: NormSpec,
    group: usize,
    x: ValueId,
) -> ValueId {
    let gain = Some(b.vector(&format!("{name}.weight"), group));
    let NormSpec {
        layer, offset, eps, ..
    } = spec;
    let norm = Norm {
        gain,
        bias: None,
        layer,
        offset,
        eps,
    };
    let cols = b.cols(x);

    b.node(name, NormPerGroup { norm, group }, &[x], cols)
}

/// Adds `y = act(x Wᵀ (+ bias)) * scale` with the tensors `{name}.weight` and `{name}.bias`.
pub fn linear_act(
    b: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    rows: usize,
    bias: bool,
    act: Activation,
    scale: f32,
) -> ValueId {
    let cols = b.cols(x);
    let weight = b.matrix(&format!("{name}.weight"), rows, cols);
    let bias = bias.then(|| b.vector(&format!("{name}.bias"), rows));
    // The scale of `Op::Linear` applies before bias and activation.
    let within = bias.is_none() && act == Activation::None;
    let linear = Linear {
        epilogue: Epilogue::Activation(act),
        scale: if within { scale } else { 1.0 },
        ..Linear::new(weight, bias)
    };
    let y = b.node(name, linear, &[x], rows);
    if within || scale == 1.0 {
        y
    } else {
        b.node(&format!("{name}.scaled"), Scale(scale), &[y], rows)
    }
}

/// Looks up rows of the table `{name}.weight` `[rows, cols]`.
pub fn embed(
    b: &mut GraphBuilder,
    name: &str,
    rows: usize,
    cols: usize,
    scale: f32,
    ids: IdSource,
) -> ValueId {
    let table = b.weight(&format!("{name}.weight"), rows, cols, WeightKind::Table);
    b.node(
        name,
        Embed {
            table,
            scale,
            ids,
            soft: None,
        },
        &[],
        cols,
    )
}

/// Adds activation quantization to 8 bits if `round` is set.
fn maybe_quantize(b: &mut GraphBuilder, path: &str, round: bool, x: ValueId) -> ValueId {
    let cols = b.cols(x);
    if round {
        b.node(
            &format!("{path}.rounded"),
            QuantizeActivations(None),
            &[x],
            cols,
        )
    } else {
        x
    }
}
