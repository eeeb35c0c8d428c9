//! Lowers norms of rows, alone or fused with a residual or with quantization.

use super::{Lower, Lowering, NodeViews, PlanOptions, Slot};
use crate::ir::{Norm, NormLastRow, NormPerGroup, NormResidual, QuantizeActivations};
use crate::kernels::{Launch, norm};
use crate::{Error, Result};

/// Returns the parameters of a kernel for rows or groups.
fn norm_params(n: &Norm) -> norm::NormParams<Slot> {
    norm::NormParams {
        layer: n.layer,
        gain: n.gain.map(Slot::Vector),
        bias: n.bias.map(Slot::Vector),
        offset: n.offset,
        eps: n.eps,
    }
}

/// Refuses rows that are too long for a workgroup.
fn check_columns(node: &NodeViews<'_>) -> Result<()> {
    if node.cols <= norm::MAX_COLUMNS {
        return Ok(());
    }
    Err(Error::Internal(format!(
        "{}: no kernel norms {} columns",
        node.name, node.cols
    )))
}

/// Adds a norm of rows or groups of `cols` columns.
fn push(lowering: &mut Lowering<'_>, launch: Launch<Slot>, cols: u32) {
    let launch = norm::for_device(launch, lowering.options.caps, cols);
    lowering.launches.push(launch);
}

impl Lower for Norm {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        check_columns(node)?;
        let launch = norm::norm(
            &node.name,
            &norm_params(self),
            node.x(),
            &node.out,
            node.cols,
            node.single,
        );
        // The norm of the last row then runs on the same kernel.
        let launch = match lowering.norms_last_row {
            true => norm::of_last_row(launch, lowering.cursor(node.node.output), false),
            false => launch,
        };
        push(lowering, launch, node.cols);
        Ok(())
    }

    fn can_write_f16(&self, _options: &PlanOptions<'_>) -> bool {
        true
    }
}

impl Lower for NormLastRow {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        check_columns(node)?;
        let params = norm_params(&self.0);
        let launch = norm::norm(&node.name, &params, node.x(), &node.out, node.cols, true);
        let launch = norm::of_last_row(launch, Slot::CURSOR, true);
        push(lowering, launch, node.cols);
        Ok(())
    }
}

impl Lower for NormPerGroup {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let launch = norm::norm_per_group(
            &node.name,
            &norm_params(&self.norm),
            node.cols / self.group as u32,
            node.x(),
            &node.out,
            node.cols,
            node.single,
        );
        push(lowering, launch, self.group as u32);
        Ok(())
    }
}

impl Lower for NormResidual {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        check_columns(node)?;
        let sum = norm::ResidualSum {
            residual: &node.inputs[1],
            residual2: node.inputs.get(2),
            scale: self.scale,
            scale_buffer: self.scale_weight.map(Slot::Vector),
        };
        let launch = norm::norm_residual(
            &node.name,
            &norm_params(&self.norm),
            node.x(),
            &sum,
            &node.out,
            node.cols,
            node.single,
        );
        push(lowering, launch, node.cols);
        Ok(())
    }
}

impl Lower for QuantizeActivations {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        check_columns(node)?;
        let norm = self.0.as_ref().map(norm_params);
        let launch = norm::quantized_norm(
            &node.name,
            norm.as_ref(),
            node.x(),
            &node.out,
            node.cols,
            node.single,
        );
        push(lowering, launch, node.cols);
        Ok(())
    }
}
