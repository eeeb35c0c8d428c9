//! Lowers Gemma 3n AltUp operations.

use super::{Lowering, Slot};
use crate::ir::{AltUp, Node};
use crate::kernels::altup::{AltUpStreams, RowScale};
use crate::kernels::matmul::View;

impl Lowering<'_> {
    pub(super) fn altup(&mut self, name: &str, op: &AltUp, node: &Node) {
        let inputs: Vec<View<Slot>> = node.inputs.iter().map(|i| self.view(*i)).collect();
        let first = [&inputs[0], &inputs[1]];
        let more = inputs.get(2);

        let out = self.view(node.output);
        let cols = self.cols(node.output);
        let single = self.is_last_row(node.output);

        let other = self.cols(node.inputs[1]);
        self.launches.push(match op {
            AltUp::Predict { coefs, count } | AltUp::Correct { coefs, count } => {
                let count = *count as u32;
                let coefs = Slot::Vector(*coefs);

                let correct = matches!(op, AltUp::Correct { .. });
                AltUpStreams {
                    correct,
                    count,
                    cols: cols / count,
                    coefs,
                }
                .launch(name, first, more, &out, single)
            }
            AltUp::MatchMagnitude => {
                let rows = RowScale::MatchMagnitude {
                    runs: cols / other,
                    added: more.cloned(),
                };
                rows.launch(name, first, &out, other, single)
            }
            AltUp::Sparse { act, factor } => RowScale::Sparse {
                act: *act as u32,
                factor: *factor,
            }
            .launch(name, first, &out, cols, single),
        });
    }
}
