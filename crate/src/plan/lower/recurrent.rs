//! Lowers operations with a state of constant size. Selects the kernel by row count.

use super::{Lowering, StepKind};
use crate::ir::{self, Node, StateId};
use crate::kernels::attention::Kv;
use crate::kernels::conv::ShortConvKernel;
use crate::kernels::matmul::View;
use crate::kernels::recurrent::{GatedNormKernel, RecurrentKernel, RuleBuffers};
use crate::plan::Slot;
use crate::{Error, Result};

impl Lowering<'_> {
    /// Whether the step has few rows; packed sequences have no state.
    fn is_few_rows(&self, name: &str, id: StateId) -> Result<bool> {
        self.state(name, id)?;
        match self.options.rows {
            StepKind::Decode(_) => Ok(true),
            StepKind::Prefill(_) => Ok(false),
            StepKind::Packed { .. } => Err(Error::Internal(format!(
                "{name}: packed sequences have no state"
            ))),
        }
    }

    pub(super) fn short_conv(
        &mut self,
        name: &str,
        conv: &ir::ShortConv,
        node: &Node,
    ) -> Result<()> {
        let few = self.is_few_rows(name, conv.state)?;
        let inputs: Vec<View<Slot>> = node.inputs.iter().map(|i| self.view(*i)).collect();
        let out = self.view(node.output);
        let gates = if let [_, before, after] = &inputs[..] {
            Some([before.clone(), after.clone()])
        } else {
            None
        };
        let kernel = ShortConvKernel {
            label: name.to_string(),
            channels: self.cols(node.output),
            kernel_size: conv.kernel_size as u32,
            weight: Slot::Vector(conv.weight),
            bias: conv.bias.map(Slot::Vector),
            act: conv.act as u32,
            scales: conv.scales.map(|(first, scale)| (first as u32, scale)),
            gates,
            memory: Slot::State(conv.state, 0),
            state: Slot::CURSOR,
        };
        if few {
            self.launches.push(kernel.decode(&inputs[0], &out));
        } else {
            self.launches.extend(kernel.prefill(&inputs[0], &out));
        }
        Ok(())
    }

    pub(super) fn recurrent(&mut self, name: &str, r: &ir::Recurrent, node: &Node) -> Result<()> {
        let few = self.is_few_rows(name, r.state)?;
        let inputs: Vec<View<Slot>> = node.inputs.iter().map(|i| self.view(*i)).collect();
        let out = self.view(node.output);
        let rule = match (r.rule, &inputs[..]) {
            (ir::RecurrenceRule::Delta { eps }, [_, _, b, z]) => RuleBuffers::Delta {
                b: b.clone(),
                z: z.clone(),
                eps,
            },
            (ir::RecurrenceRule::Ssm { limits, dt_scale }, [_, _]) => {
                RuleBuffers::Ssm { limits, dt_scale }
            }
            _ => {
                return Err(Error::Internal(format!(
                    "{name}: {} inputs do not match its rule",
                    inputs.len()
                )));
            }
        };
        let kernel = RecurrentKernel {
            label: name.to_string(),
            heads: r.heads as u32,
            key_heads: r.key_heads as u32,
            heads_per_key: if r.interleaved {
                1
            } else {
                (r.heads / r.key_heads) as u32
            },
            key_dim: r.key_dim as u32,
            value_dim: r.value_dim as u32,
            columns: r.columns.map(|c| c as u32),
            x: inputs[0].clone(),
            a: inputs[1].clone(),
            rule,
            gains: Slot::Vector(r.gains),
            negative_rates: r.negative_rates,
            kv: Kv::F32,
            memory: Slot::State(r.state, 0),
            state: Slot::CURSOR,
        };
        if few {
            self.launches.push(kernel.decode(&out));
        } else {
            self.attention_partials = self
                .attention_partials
                .max(kernel.scratch_bytes(self.options.rows.tokens() as u32));
            self.launches
                .extend(kernel.prefill(&Slot::AttentionPartials, &out));
        }
        Ok(())
    }

    pub(super) fn gated_norm(&mut self, name: &str, norm: &ir::GatedNorm, node: &Node) {
        let x = self.view(node.inputs[0]);
        let z = self.view(node.inputs[1]);
        let out = self.view(node.output);

        let runs = norm.groups as u32;
        let cols = self.cols(node.output) / norm.groups as u32;

        let kernel = GatedNormKernel {
            gain: Slot::Vector(norm.gain),
            gain_offset: 0,
            gain_step: cols,
            gate_first: norm.gate_first,
            eps: norm.eps,
        };
        self.launches
            .push(kernel.launch(name, &x, &z, Some(&out), runs, cols));
    }
}
