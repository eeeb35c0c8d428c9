//! Lowers short causal convolutions. Selects the kernel by row count.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::ShortConv;
use crate::kernels::conv::ShortConvKernel;

impl Lower for ShortConv {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let few = lowering.is_few_rows(&node.name, self.state)?;
        let gates = if let [_, before, after] = &node.inputs[..] {
            Some([before.clone(), after.clone()])
        } else {
            None
        };
        let kernel = ShortConvKernel {
            label: node.name.clone(),
            channels: node.cols,
            kernel_size: self.kernel_size as u32,
            weight: Slot::Vector(self.weight),
            bias: self.bias.map(Slot::Vector),
            act: self.act as u32,
            scales: self.scales.map(|(first, scale)| (first as u32, scale)),
            gates,
            memory: Slot::State(self.state, 0),
            state: Slot::CURSOR,
            batch: lowering.options.rows.is_batch(),
        };
        if lowering.options.rows.verifies() {
            let [verify, update] = kernel.verify(node.x(), &node.out);
            lowering.launches.push(verify);
            lowering.state_updates.push(update);
        } else if few {
            lowering.launches.push(kernel.decode(node.x(), &node.out));
        } else {
            lowering
                .launches
                .extend(kernel.prefill(node.x(), &node.out));
        }
        Ok(())
    }
}
