//! Lowers operations with a state of constant size. Selects the kernel by row count.

use super::{Lowering, RowsMode};
use crate::ir::{self, Node, StateId};
use crate::kernels::attention::Kv;
use crate::kernels::conv::Conv;
use crate::kernels::matmul::View;
use crate::kernels::recurrent::{GatedNorm, Recurrent, Rule};
use crate::plan::Slot;
use crate::{Error, Result};

impl Lowering<'_> {
    /// Whether the step has few rows; packed sequences have no state.
    fn stateful(&self, name: &str, id: StateId) -> Result<bool> {
        self.state(name, id)?;
        match self.options.rows {
            RowsMode::Few(_) => Ok(true),
            RowsMode::Many(_) => Ok(false),
            RowsMode::Packed { .. } => Err(Error::Internal(format!("{name}: packed sequences have no state"))),
        }
    }

    pub(super) fn short_conv(&mut self, name: &str, conv: &ir::ShortConv, node: &Node) -> Result<()> {
        let few = self.stateful(name, conv.state)?;
        let inputs: Vec<View<Slot>> = node.inputs.iter().map(|i| self.view(*i)).collect();
        let out = self.view(node.output);
        let gates = if let [_, before, after] = &inputs[..] { Some([before.clone(), after.clone()]) } else { None };
        let kernel = Conv {
            label: name.to_string(),
            channels: self.cols(node.output),
            taps: conv.taps as u32,
            weight: Slot::Vector(conv.weight),
            bias: conv.bias.map(Slot::Vector),
            act: conv.act as u32,
            scales: conv.scales.map(|(first, scale)| (first as u32, scale)),
            gates,
            memory: Slot::Sequence(conv.state, 0),
            state: Slot::CURSOR,
        };
        if few {
            self.launches.push(kernel.few(&inputs[0], &out));
        } else {
            self.launches.extend(kernel.many(&inputs[0], &out));
        }
        Ok(())
    }

    pub(super) fn recurrent(&mut self, name: &str, r: &ir::Recurrent, node: &Node) -> Result<()> {
        let few = self.stateful(name, r.state)?;
        let inputs: Vec<View<Slot>> = node.inputs.iter().map(|i| self.view(*i)).collect();
        let out = self.view(node.output);
        let rule = match (r.rule, &inputs[..]) {
            (ir::Rule::Delta { eps }, [_, _, b, z]) => Rule::Delta { b: b.clone(), z: z.clone(), eps },
            (ir::Rule::Ssm { limits, dt_scale }, [_, _]) => Rule::Ssm { limits, dt_scale },
            _ => return Err(Error::Internal(format!("{name}: {} inputs do not match its rule", inputs.len()))),
        };
        let kernel = Recurrent {
            label: name.to_string(),
            heads: r.heads as u32,
            key_heads: r.key_heads as u32,
            per_key: if r.turns { 1 } else { (r.heads / r.key_heads) as u32 },
            key_dim: r.key_dim as u32,
            value_dim: r.value_dim as u32,
            columns: r.columns.map(|c| c as u32),
            x: inputs[0].clone(),
            a: inputs[1].clone(),
            rule,
            gains: Slot::Vector(r.gains),
            raw: r.raw,
            kv: Kv::F32,
            memory: Slot::Sequence(r.state, 0),
            state: Slot::CURSOR,
        };
        if few {
            self.launches.push(kernel.few(&out));
        } else {
            self.scratch = self.scratch.max(kernel.scratch(self.options.rows.tokens() as u32));
            self.launches.extend(kernel.many(&Slot::Scratch, &out));
        }
        Ok(())
    }

    pub(super) fn gated_norm(&mut self, name: &str, norm: &ir::GatedNorm, node: &Node) {
        let (x, z, out) = (self.view(node.inputs[0]), self.view(node.inputs[1]), self.view(node.output));
        let (runs, cols) = (norm.runs as u32, self.cols(node.output) / norm.runs as u32);
        let kernel = GatedNorm {
            gain: Slot::Vector(norm.gain),
            gain_offset: 0,
            gain_step: cols,
            first: norm.first,
            eps: norm.eps,
        };
        self.launches.push(kernel.launch(name, &x, &z, Some(&out), runs, cols));
    }
}
