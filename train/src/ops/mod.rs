//! The gradient of each operation of the IR that training supports, next to its forward. One file
//! has the operations of a file of `ir::ops`.

mod attention;
mod elementwise;
mod embed;
mod linear;
mod norm;
mod pool;
mod short_conv;

use crate::tape::Tape;
use jerboa::Result;
use jerboa::ir::{Node, Op};

/// Forward and backward launches of an operation.
pub trait Differentiate {
    /// Appends the launches that compute the output.
    ///
    /// # Errors
    /// `UnsupportedOption` for options without a gradient.
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()>;

    /// Appends the launches that add to the gradients of inputs and weights.
    ///
    /// # Errors
    /// As [`Self::forward`].
    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()>;
}

/// Returns the gradient of a node's operation.
///
/// # Errors
/// `UnsupportedOption` for operations without one.
pub fn gradient_of<'a>(tape: &Tape<'_>, node: &'a Node) -> Result<&'a dyn Differentiate> {
    Ok(match &node.op {
        Op::Embed(op) => op,
        Op::Linear(op) => op,
        Op::Norm(op) => op,
        Op::NormPerGroup(op) => op,
        Op::Attention(op) => op,
        Op::Pool(op) => op,
        Op::ShortConv(op) => op,
        Op::Add(op) => op,
        Op::Mul(op) => op,
        Op::Gated(op) => op,
        Op::Unary(op) => op,
        Op::Scale(op) => op,
        Op::MulVector(op) => op,
        _ => return Err(tape.refuse(node)),
    })
}
