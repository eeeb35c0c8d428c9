//! Lowers elementwise operations.

use super::{Lower, Lowering, NodeViews, vector};
use crate::Result;
use crate::ir::{Add, Asinh, Clip, Gated, Mul, MulVector, Scale, Unary, WeightId};
use crate::kernels::elementwise::{Elementwise, elementwise};

impl Lowering<'_> {
    fn elementwise(&mut self, op: Elementwise, node: &NodeViews<'_>) -> Result<()> {
        self.launches.push(elementwise(
            &node.name,
            op,
            &node.inputs,
            &node.out,
            node.cols,
            node.single,
        ));
        Ok(())
    }

    /// Lowers an operation whose second operand is a vector.
    fn elementwise_vector(
        &mut self,
        op: Elementwise,
        weight: WeightId,
        node: &NodeViews<'_>,
    ) -> Result<()> {
        self.launches.push(elementwise(
            &node.name,
            op,
            &[node.x().clone(), vector(weight)],
            &node.out,
            node.cols,
            node.single,
        ));
        Ok(())
    }
}

impl Lower for Add {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.elementwise(Elementwise::Add, node)
    }
}

impl Lower for Mul {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.elementwise(Elementwise::Mul, node)
    }
}

impl Lower for Gated {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let act = self.0 as u32;
        let broadcast = lowering.cols(node.node.inputs[0]) == 1;
        let op = if broadcast {
            Elementwise::GatedByOne(act)
        } else {
            Elementwise::Gated(act)
        };
        lowering.elementwise(op, node)
    }
}

impl Lower for Unary {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.elementwise(Elementwise::Unary(self.0 as u32), node)
    }
}

impl Lower for Scale {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.elementwise(Elementwise::Scale(self.0), node)
    }
}

impl Lower for MulVector {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let scalar = lowering.graph.weight(self.0).rows() == 1;
        let op = if scalar {
            Elementwise::MulScalar
        } else {
            Elementwise::Mul
        };
        lowering.elementwise_vector(op, self.0, node)
    }
}

impl Lower for Clip {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.elementwise_vector(Elementwise::Clip, self.0, node)
    }
}

impl Lower for Asinh {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.elementwise_vector(Elementwise::Asinh, self.k, node)
    }
}
