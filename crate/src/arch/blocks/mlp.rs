//! The MLP of a layer. The spec holds the differences between families.

use super::{NormSpec, linear_act, maybe_quantize, norm};
use crate::ir::{Activation, Gated, GraphBuilder, ValueId};

/// Structure of an MLP's input projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlpKind {
    /// `act(gate) * up`, from two tensors.
    Gated([&'static str; 2]),
    /// The same from one tensor, gate rows first.
    GatedFused(&'static str),
    /// `act(up)`.
    Ungated(&'static str),
}

/// Options of a layer's MLP.
#[derive(Debug, Clone, PartialEq)]
pub struct MlpSpec {
    /// Inner columns.
    pub size: usize,
    /// Activation.
    pub act: Activation,
    /// Input projections.
    pub kind: MlpKind,
    /// Name and kind of a norm of the inner columns.
    pub sub_norm: Option<(&'static str, NormSpec)>,
    /// Name of the output projection.
    pub down: &'static str,
    /// Whether all projections have biases.
    pub bias: bool,
    /// Scale of the gate before its activation; 1 for none.
    pub gate_scale: f32,
    /// Scale of the output.
    pub out_scale: f32,
    /// Whether activations are quantized to 8 bits before each matmul.
    pub quantize_activations: bool,
}

/// Adds an MLP over `x` `[rows, cols]` with tensors under `path`; returns `[rows, cols]`.
pub fn mlp(b: &mut GraphBuilder, path: &str, spec: &MlpSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let size = spec.size;
    let x = maybe_quantize(b, path, spec.quantize_activations, x);

    let gates = match spec.kind {
        MlpKind::Gated([gate, up]) => {
            // One scale for both keeps them a single matmul; the output scale compensates.
            let mut half = |part| {
                linear_act(
                    b,
                    &name(part),
                    x,
                    size,
                    spec.bias,
                    Activation::None,
                    spec.gate_scale,
                )
            };
            let gate = half(gate);
            Some((gate, half(up)))
        }
        MlpKind::GatedFused(both) => {
            let both = linear_act(
                b,
                &name(both),
                x,
                2 * size,
                spec.bias,
                Activation::None,
                spec.gate_scale,
            );
            Some((
                b.view(&name("gate"), both, 0, size),
                b.view(&name("up"), both, size, size),
            ))
        }
        MlpKind::Ungated(_) => None,
    };
    let mut inner = match (gates, spec.kind) {
        (Some((gate, up)), _) => b.node(&name("gated"), Gated(spec.act), &[gate, up], size),
        (None, MlpKind::Ungated(up) | MlpKind::GatedFused(up) | MlpKind::Gated([_, up])) => {
            linear_act(b, &name(up), x, size, spec.bias, spec.act, 1.0)
        }
    };
    if let Some((sub, norms)) = spec.sub_norm {
        inner = norm(b, &name(sub), norms, inner);
    }
    let cols = b.cols(x);
    let inner = maybe_quantize(b, &name(spec.down), spec.quantize_activations, inner);

    linear_act(
        b,
        &name(spec.down),
        inner,
        cols,
        spec.bias,
        Activation::None,
        spec.out_scale / spec.gate_scale,
    )
}
