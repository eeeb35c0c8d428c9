//! The MLP of a layer. What sets families apart is data of the spec.

use super::{NormSpec, norm, product, read};
use crate::ir::{Activation, Builder, Op, ValueId};

/// What goes into an MLP's inner columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inner {
    /// `act(gate) * up`, from two tensors.
    Gated([&'static str; 2]),
    /// The same from one tensor, the gate first.
    GatedFused(&'static str),
    /// `act(up)`.
    Plain(&'static str),
}

/// The MLP of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct MlpSpec {
    /// Inner columns.
    pub size: usize,
    /// The activation.
    pub act: Activation,
    /// What comes in.
    pub inner: Inner,
    /// A norm of the inner columns.
    pub sub_norm: Option<(&'static str, NormSpec)>,
    /// The name of the product that goes out.
    pub down: &'static str,
    /// Biases of all products.
    pub bias: bool,
    /// Multiplies the gate before its activation; 1 where there is none.
    pub gate_scale: f32,
    /// Multiplies what comes out.
    pub out_scale: f32,
    /// Whether what products read is rounded to 8 bits.
    pub round: bool,
}

/// An MLP over `x` with tensors under `path`; gives columns of `x`.
pub fn mlp(b: &mut Builder, path: &str, spec: &MlpSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let (size, x) = (spec.size, read(b, path, spec.round, x));
    let gates = match spec.inner {
        Inner::Gated([gate, up]) => {
            // With one multiplier for both they still are one product; what comes out makes up for it.
            let mut half = |part| product(b, &name(part), x, size, spec.bias, Activation::None, spec.gate_scale);
            let gate = half(gate);
            Some((gate, half(up)))
        }
        Inner::GatedFused(both) => {
            let both = product(b, &name(both), x, 2 * size, spec.bias, Activation::None, spec.gate_scale);
            Some((b.view(&name("gate"), both, 0, size), b.view(&name("up"), both, size, size)))
        }
        Inner::Plain(_) => None,
    };
    let mut inner = match (gates, spec.inner) {
        (Some((gate, up)), _) => b.node(&name("gated"), Op::Gated(spec.act), &[gate, up], size),
        (None, Inner::Plain(up) | Inner::GatedFused(up) | Inner::Gated([_, up])) => {
            product(b, &name(up), x, size, spec.bias, spec.act, 1.0)
        }
    };
    if let Some((sub, norms)) = spec.sub_norm {
        inner = norm(b, &name(sub), norms, inner);
    }
    let (cols, inner) = (b.cols(x), read(b, &name(spec.down), spec.round, inner));
    product(b, &name(spec.down), inner, cols, spec.bias, Activation::None, spec.out_scale / spec.gate_scale)
}
