//! Lowers Gemma 3n AltUp operations.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::AltUp;
use crate::kernels::altup::{AltUpStreams, RowScale};

impl Lower for AltUp {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let first = [&node.inputs[0], &node.inputs[1]];
        let more = node.inputs.get(2);
        let other = lowering.cols(node.node.inputs[1]);
        let launch = match self {
            AltUp::Predict { coefs, count } | AltUp::Correct { coefs, count } => {
                let streams = AltUpStreams {
                    correct: matches!(self, AltUp::Correct { .. }),
                    count: *count as u32,
                    cols: node.cols / *count as u32,
                    coefs: Slot::Vector(*coefs),
                };
                streams.launch(&node.name, first, more, &node.out, node.single)
            }
            AltUp::MatchMagnitude => {
                let rows = RowScale::MatchMagnitude {
                    runs: node.cols / other,
                    added: more.cloned(),
                };
                rows.launch(&node.name, first, &node.out, other, node.single)
            }
            AltUp::Sparse { act, factor } => {
                let rows = RowScale::Sparse {
                    act: *act as u32,
                    factor: *factor,
                };
                rows.launch(&node.name, first, &node.out, node.cols, node.single)
            }
        };
        lowering.launches.push(launch);
        Ok(())
    }
}
