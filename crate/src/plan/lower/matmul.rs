//! Lowers matmuls whose weight rows may be sharded over several buffers. Selects the kernel by row
//! count and the operations to fuse.

use super::{Lowering, Slot, StepKind, unsupported};
use crate::ir::{Dim, Linear, Node, ValueId};
use crate::kernels::kv_splits::KvSplits;
use crate::kernels::matmul::{Matmul, NormPrologue, View};
use crate::{Error, Result};

/// Elements of a matrix that is large for a software device.
const LARGE_MATRIX: u32 = 1 << 17;

impl Lowering<'_> {
    pub(super) fn linear(&mut self, name: &str, linear: &Linear, node: &Node) -> Result<()> {
        let runs = self.shards(linear.weight)?;
        let split = runs.len() > 1;
        if split && linear.gated {
            return Err(Error::Internal(format!(
                "{name}: a sharded weight cannot be gated"
            )));
        }
        if split && linear.bias.is_some() {
            return Err(Error::OutOfMemory {
                what: format!("{name} (a matmul with bias must fit one buffer)"),
                needed: self.options.weights.get(&linear.weight).map_or(0, |w| w.bytes()),
                limit: self.options.caps.max_weight_buffer(),
                hint: "Load the model with weights: 'q4', or choose a more strongly quantized checkpoint.".into(),
            });
        }
        let single = self.is_last_row(node.output);
        let many = !matches!(self.options.rows, StepKind::Decode(_)) && !single;
        // Large matrices soon repay the compilation of tiled kernels.
        let large = runs
            .iter()
            .any(|(_, weight)| weight.rows * weight.cols >= LARGE_MATRIX);
        let tiled = many && (large || !self.options.caps.prefers_fast_compile());
        let norm = linear.norm.as_ref().map(|n| match n.gain {
            _ if many => Err(unsupported(name, "a norm fused into a tiled matmul")),
            _ if n.layer || n.bias.is_some() => {
                Err(unsupported(name, "the mean or the bias of a fused norm"))
            }
            None => Err(unsupported(name, "a norm without a gain in a matmul")),
            Some(gain) => Ok(NormPrologue {
                gain: Slot::Vector(gain),
                offset: n.offset,
                eps: n.eps,
            }),
        });
        let norm = norm.transpose()?;
        let state = self.cursor(node.output);
        let left = self
            .pending_splits
            .take()
            .filter(|left| !split && self.consumes_splits(left, node));
        let wanted = self.cols(node.output) * if linear.gated { 2 } else { 1 };
        let low = linear.row0 as u32;
        let high = linear.row0 as u32 + wanted;

        for (start, weight) in runs {
            // The rows of this shard that are used, and their output columns.
            let from = low.max(start);
            let to = high.min(start + weight.rows);

            if from >= to {
                continue;
            }
            let first = from - low;
            let mut out = self.view(node.output);
            out.offset += first;
            let mut product = Matmul::plain(name, weight, self.view(node.inputs[0]), out);
            (product.row0, product.n) = (from - start, to - from);
            if linear.gated {
                product.n /= 2;
                product.gated = Some(product.n);
            }
            product.bias = linear.bias.map(Slot::Vector);
            product.residual = linear.residual.then(|| {
                let mut residual = self.view(node.inputs[1]);
                residual.offset += first;
                residual
            });
            product.multiply = linear.multiply;
            product.f16_input = self.f16_values.contains(&node.inputs[0]);
            product.norm = norm.clone();
            product.quantize = linear.quantize;
            product.act = linear.act as u32;
            product.scale = linear.scale;
            product.softcap = linear.softcap;
            let rows = self.options.rows.of(self.graph.value(node.output).rows);
            if linear.quantize && (tiled || !product.quantizes_input(self.options.caps, rows)) {
                return Err(unsupported(name, "8-bit rounding fused into this matmul"));
            }
            if let Some((.., runs)) = left.filter(|_| product.reduces_kv_splits(self.options.caps))
            {
                self.launches.pop();
                (product.x, product.kv_splits) = (
                    View {
                        buffer: Slot::AttentionPartials,
                        offset: 0,
                        stride: 0,
                    },
                    Some(runs),
                );
            }
            if tiled {
                let (bytes, launches) =
                    product.prefill(self.options.caps, rows, state, Slot::AttentionPartials);
                self.attention_partials = self.attention_partials.max(bytes).max(16);
                self.launches.extend(launches);
            } else {
                self.launches
                    .push(product.gemv(self.options.caps, rows, state));
            }
        }
        Ok(())
    }

    /// Whether a matmul directly follows the attention output and is its only reader.
    fn consumes_splits(
        &self,
        (value, launches, _): &(ValueId, usize, KvSplits),
        product: &Node,
    ) -> bool {
        *launches == self.launches.len()
            && product.inputs.first() == Some(value)
            && self.uses[value.0] == 1
            && self.graph.value(product.output).rows == Dim::TOKENS
    }
}
