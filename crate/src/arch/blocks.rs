//! What families share, as functions over specs: norms, attention, MLPs, and the decoder that most families are. What sets
//! families apart is data of the specs; knows no family. The order of operations is that of transformers' models.

mod attention;
mod dense;
pub mod experts;
pub mod latent;
mod mlp;

use crate::ir::{Activation, Builder, Ids, Linear, Norm, Op, ValueId, WeightKind};
pub use attention::{AttentionSpec, Projections, QkNorm, attention};
pub use dense::{Dense, Layer, Names, WIDEST_HEAD};
pub use mlp::{Inner, MlpSpec, mlp};

/// A norm of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Whether the mean is subtracted (layer norm).
    pub layer: bool,
    /// Whether it has a bias.
    pub bias: bool,
    /// Added to the gain.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

impl NormSpec {
    /// RMSNorm with a gain.
    pub fn rms(eps: f64) -> Self {
        Self { layer: false, bias: false, offset: 0.0, eps: eps as f32 }
    }

    /// LayerNorm with gain and bias.
    pub fn layer(eps: f64) -> Self {
        Self { layer: true, bias: true, offset: 0.0, eps: eps as f32 }
    }
}

/// A norm with the tensors `{name}.weight` and `{name}.bias`.
pub fn norm(b: &mut Builder, name: &str, spec: NormSpec, x: ValueId) -> ValueId {
    let cols = b.cols(x);
    let gain = Some(b.vector(&format!("{name}.weight"), cols));
    let bias = spec.bias.then(|| b.vector(&format!("{name}.bias"), cols));
    let NormSpec { layer, offset, eps, .. } = spec;
    b.node(name, Op::Norm(Norm { gain, bias, layer, offset, eps }), &[x], cols)
}

/// A norm of each `group` columns, with one gain for all groups, `{name}.weight`.
pub fn norm_each(b: &mut Builder, name: &str, spec: NormSpec, group: usize, x: ValueId) -> ValueId {
    let gain = Some(b.vector(&format!("{name}.weight"), group));
    let NormSpec { layer, offset, eps, .. } = spec;
    let (norm, cols) = (Norm { gain, bias: None, layer, offset, eps }, b.cols(x));
    b.node(name, Op::NormEach(norm, group), &[x], cols)
}

/// `y = act(x Wᵀ (+ bias)) * scale` with the tensors `{name}.weight` and `{name}.bias`.
pub fn product(
    b: &mut Builder,
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
    // The product's own scale comes before bias and activation.
    let within = bias.is_none() && act == Activation::None;
    let linear = Linear { act, scale: if within { scale } else { 1.0 }, ..Linear::new(weight, bias) };
    let y = b.node(name, Op::Linear(linear), &[x], rows);
    if within || scale == 1.0 { y } else { b.node(&format!("{name}.scaled"), Op::Scale(scale), &[y], rows) }
}

/// Rows of the table `{name}.weight` by number.
pub fn embed(b: &mut Builder, name: &str, rows: usize, cols: usize, scale: f32, ids: Ids) -> ValueId {
    let table = b.weight(&format!("{name}.weight"), rows, cols, WeightKind::Table);
    b.node(name, Op::Embed { table, scale, ids, soft: None }, &[], cols)
}

/// What a product reads, rounded to 8 bits where asked for.
fn read(b: &mut Builder, path: &str, round: bool, x: ValueId) -> ValueId {
    let cols = b.cols(x);
    if round { b.node(&format!("{path}.rounded"), Op::Round(None), &[x], cols) } else { x }
}
