//! Lowers linear recurrences and their gated norm. Selects the kernel by row count.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::ir::{GatedNorm, RecurrenceRule, Recurrent};
use crate::kernels::attention::Kv;
use crate::kernels::recurrent::{GatedNormKernel, RecurrentKernel, RuleBuffers};
use crate::{Error, Result};

impl Lower for Recurrent {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let few = lowering.is_few_rows(&node.name, self.state)?;
        let rule = match (self.rule, &node.inputs[..]) {
            (RecurrenceRule::Delta { eps }, [_, _, b, z]) => RuleBuffers::Delta {
                b: b.clone(),
                z: z.clone(),
                eps,
            },
            (RecurrenceRule::Ssm { limits, dt_scale }, [_, _]) => {
                RuleBuffers::Ssm { limits, dt_scale }
            }
            _ => {
                return Err(Error::Internal(format!(
                    "{}: {} inputs do not match its rule",
                    node.name,
                    node.inputs.len()
                )));
            }
        };
        let kernel = RecurrentKernel {
            label: node.name.clone(),
            heads: self.heads as u32,
            key_heads: self.key_heads as u32,
            heads_per_key: if self.interleaved {
                1
            } else {
                (self.heads / self.key_heads) as u32
            },
            key_dim: self.key_dim as u32,
            value_dim: self.value_dim as u32,
            columns: self.columns.map(|c| c as u32),
            x: node.inputs[0].clone(),
            a: node.inputs[1].clone(),
            rule,
            gains: Slot::Vector(self.gains),
            negative_rates: self.negative_rates,
            kv: Kv::F32,
            memory: Slot::State(self.state, 0),
            state: Slot::CURSOR,
            batch: lowering.options.rows.is_batch(),
        };
        if lowering.options.rows.verifies() {
            let [verify, update] = kernel.verify(&node.out);
            lowering.launches.push(verify);
            lowering.state_updates.push(update);
        } else if few {
            lowering.launches.push(kernel.decode(&node.out));
        } else {
            let rows = lowering.options.rows.tokens() as u32;
            lowering.reserve_partials(kernel.scratch_bytes(rows));
            lowering
                .launches
                .extend(kernel.prefill(&Slot::AttentionPartials, &node.out));
        }
        Ok(())
    }
}

impl Lower for GatedNorm {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let groups = self.groups as u32;
        let cols = node.cols / groups;
        let kernel = GatedNormKernel {
            gain: Slot::Vector(self.gain),
            gain_offset: 0,
            gain_step: cols,
            gate_first: self.gate_first,
            eps: self.eps,
        };
        lowering.launches.push(kernel.launch(
            &node.name,
            &node.inputs[0],
            &node.inputs[1],
            Some(&node.out),
            groups,
            cols,
        ));
        Ok(())
    }
}
