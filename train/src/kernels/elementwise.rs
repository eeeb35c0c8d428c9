//! Elementwise functions and their gradients.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::ir::Activation;
use jerboa::kernels::view::View;

/// A function of one to three inputs a, b, c.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    /// `a * factor`.
    Scale(f32),
    /// `a + b`.
    Sum,
    /// `a * b`.
    Product,
    /// `act(a)`.
    Activation(Activation),
    /// `act'(a) * b`.
    ActivationGradient(Activation),
    /// `act(a) * b`.
    Gate(Activation),
    /// `act'(a) * b * c`.
    GateGradient(Activation),
    /// `cap * tanh(a / cap)`.
    Softcap(f32),
    /// `(1 - tanh(a / cap)²) * b`.
    SoftcapGradient(f32),
    /// `a * b[column]`: b is a vector.
    ColumnScale,
    /// `a * b[0]`.
    ScalarScale,
}

impl Function {
    /// Code in elementwise.wgsl.
    fn code(self) -> u32 {
        match self {
            Self::Scale(_) => 0,
            Self::Sum => 1,
            Self::Product => 2,
            Self::Activation(_) => 3,
            Self::ActivationGradient(_) => 4,
            Self::Gate(_) => 5,
            Self::GateGradient(_) => 6,
            Self::Softcap(_) => 7,
            Self::SoftcapGradient(_) => 8,
            Self::ColumnScale | Self::ScalarScale => 9,
        }
    }

    /// Inputs that it reads.
    pub fn inputs(self) -> usize {
        match self {
            Self::Scale(_) | Self::Activation(_) | Self::Softcap(_) => 1,
            Self::GateGradient(_) => 3,
            _ => 2,
        }
    }

    fn factor(self) -> f32 {
        match self {
            Self::Scale(factor) | Self::Softcap(factor) | Self::SoftcapGradient(factor) => factor,
            _ => 1.0,
        }
    }

    fn activation(self) -> Activation {
        match self {
            Self::Activation(act)
            | Self::ActivationGradient(act)
            | Self::Gate(act)
            | Self::GateGradient(act) => act,
            _ => Activation::None,
        }
    }
}

/// Returns `out = function(inputs)` over `[rows, cols]`; adds to out if `add`.
pub fn elementwise<B: Clone>(
    function: Function,
    [rows, cols]: [usize; 2],
    inputs: &[&View<B>],
    out: &View<B>,
    add: bool,
) -> TrainLaunch<B> {
    debug_assert_eq!(inputs.len(), function.inputs());
    let variant = Variant::new(TrainKernel("elementwise"))
        .set("OP", function.code())
        .flag_if("B", inputs.len() > 1)
        .flag_if("C", inputs.len() > 2)
        .flag_if("ADD", add);
    let mut launch = TrainLaunch::threads(variant, rows * cols, 256)
        .set("rows", rows)
        .set("cols", cols)
        .set_f32("factor", function.factor())
        .set("act", function.activation() as usize)
        .set("step", usize::from(function != Function::ScalarScale))
        .view(["out", "out_offset", "out_stride"], out);
    const NAMES: [[&str; 3]; 3] = [
        ["a", "a_offset", "a_stride"],
        ["b", "b_offset", "b_stride"],
        ["c", "c_offset", "c_stride"],
    ];
    for (index, [name, offset, stride]) in NAMES.into_iter().enumerate() {
        let input = inputs.get(index);
        launch = launch
            .bind_opt(name, input.map(|view| view.buffer.clone()))
            .set(offset, input.map_or(0, |view| view.offset as usize))
            .set(stride, input.map_or(0, |view| view.stride as usize));
    }
    launch
}
