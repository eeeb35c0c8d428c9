//! Attention with head norms and RoPE. Its probabilities are recomputed in the backward pass.

use super::Differentiate;
use crate::kernel::TrainLaunch;
use crate::kernels::attention::{AttentionShape, QueryKeyValue};
use crate::kernels::elementwise::{Function, elementwise};
use crate::kernels::norm::NormShape;
use crate::kernels::rope::RopeShape;
use crate::tape::{Tape, TrainBuffer};
use jerboa::Result;
use jerboa::ir::{Attention, Mask, Node};
use jerboa::kernels::view::View;

/// Names of what the passes of q, k and v keep: statistics of the norm, outputs of both stages.
const KEPT: [[&str; 3]; 3] = [
    ["q stats", "q stage 0", "q stage 1"],
    ["k stats", "k stage 0", "k stage 1"],
    ["v stats", "v stage 0", "v stage 1"],
];

/// What happens to the heads of q, k or v before the scores.
enum Stage {
    Norm(NormShape<TrainBuffer>),
    Rope(RopeShape<TrainBuffer>),
}

impl Stage {
    fn forward(&self, x: &View<TrainBuffer>, out: &View<TrainBuffer>) -> TrainLaunch<TrainBuffer> {
        match self {
            Self::Norm(norm) => norm.forward(x, out),
            Self::Rope(rope) => rope.rotate(x, out, false, false),
        }
    }

    fn backward(
        &self,
        x: &View<TrainBuffer>,
        dy: &View<TrainBuffer>,
        dx: &View<TrainBuffer>,
        add: bool,
    ) -> TrainLaunch<TrainBuffer> {
        match self {
            Self::Norm(norm) => norm.input(x, dy, dx, add),
            Self::Rope(rope) => rope.rotate(dy, dx, true, add),
        }
    }
}

/// Maximum distances of a visible key before and after its query; `None` if unsupported.
fn reach(mask: Mask) -> Option<[usize; 2]> {
    match mask {
        Mask::Causal { window } | Mask::BidirectionalImages { window } => {
            let before = if window == 0 { usize::MAX } else { window - 1 };
            Some([before, 0])
        }
        Mask::Packed { before, after } => Some([before, after]),
        Mask::CrossAttention | Mask::PackedWindow => None,
    }
}

/// Heads of q, k and v.
fn heads(op: &Attention) -> [usize; 3] {
    [op.heads, op.kv_heads, op.kv_heads]
}

/// The stages of q (0), k (1) or v (2). `stats` is where their norm keeps its statistics.
fn stages(op: &Attention, tape: &Tape<'_>, part: usize, stats: Option<TrainBuffer>) -> Vec<Stage> {
    let heads = heads(op)[part];
    let mut stages = Vec::new();
    if let (Some(norm), Some(stats)) = (&op.head_norm, stats) {
        // One vector has the gains of q, then those of k; v has none.
        let gain = (part < 2).then(|| (TrainBuffer::Vector(norm.gains), part * op.head_dim));
        stages.push(Stage::Norm(NormShape {
            rows: tape.rows,
            groups: heads,
            cols: op.head_dim,
            layer: false,
            gain,
            bias: None,
            offset: norm.offset,
            eps: norm.eps,
            stats,
        }));
    }
    if let (Some(index), true) = (op.rope, part < 2) {
        let spec = &tape.graph.ropes[index];
        stages.push(Stage::Rope(RopeShape {
            rows: tape.rows,
            heads,
            head_dim: op.head_dim,
            dim: spec.dim,
            interleaved: spec.interleaved,
            table: TrainBuffer::Rope(index),
            positions: TrainBuffer::Positions,
        }));
    }
    if op.head_norm.as_ref().is_some_and(|norm| norm.after_rope) {
        stages.reverse();
    }
    stages
}

/// Whether a norm precedes the scores of q (0), k (1) or v (2).
fn is_normed(op: &Attention, part: usize) -> bool {
    let norm = op.head_norm.as_ref();
    norm.is_some_and(|norm| part < 2 || norm.values)
}

fn shape(op: &Attention, tape: &Tape<'_>, stats: TrainBuffer) -> AttentionShape<TrainBuffer> {
    let [before, after] = reach(op.mask).unwrap_or_default();
    AttentionShape {
        rows: tape.rows,
        heads: op.heads,
        kv_heads: op.kv_heads,
        head_dim: op.head_dim,
        before,
        after,
        scale: op.scale,
        softcap: op.softcap,
        sinks: op.sinks.map(TrainBuffer::Vector),
        spans: TrainBuffer::Spans,
        stats,
    }
}

/// The inputs of the scores: outputs of the last stages.
fn inputs(op: &Attention, tape: &Tape<'_>, node: &Node) -> Result<QueryKeyValue<TrainBuffer>> {
    let mut last = Vec::with_capacity(3);
    for part in 0..3 {
        last.push(
            stage_values(op, tape, node, part)?
                .pop()
                .unwrap_or_else(|| tape.view(node.inputs[part])),
        );
    }
    let [q, k, v] = [0, 1, 2].map(|part: usize| last[part].clone());
    Ok(QueryKeyValue { q, k, v })
}

/// The input of q, k or v and the output of each of its stages.
fn stage_values(
    op: &Attention,
    tape: &Tape<'_>,
    node: &Node,
    part: usize,
) -> Result<Vec<View<TrainBuffer>>> {
    let rotated = op.rope.is_some() && part < 2;
    let count = usize::from(is_normed(op, part)) + usize::from(rotated);
    let mut values = vec![tape.view(node.inputs[part])];
    for stage in 0..count {
        values.push(tape.kept(KEPT[part][1 + stage])?);
    }
    Ok(values)
}

impl Differentiate for Attention {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let is_supported = node.inputs.len() == 3
            && self.relative.is_none()
            && reach(self.mask).is_some()
            && self.head_dim <= 512;
        if !is_supported || self.sinks.is_some_and(|sinks| tape.is_trained(sinks)) {
            return Err(tape.refuse(node));
        }
        for (part, [stats_name, stage_names @ ..]) in KEPT.into_iter().enumerate() {
            let heads = heads(self)[part];
            let stats = is_normed(self, part).then(|| tape.keep(stats_name, 2 * heads).buffer);
            let mut x = tape.view(node.inputs[part]);
            for (index, stage) in stages(self, tape, part, stats).iter().enumerate() {
                let out = tape.keep(stage_names[index], heads * self.head_dim);
                tape.push(stage.forward(&x, &out));
                x = out;
            }
        }
        let stats = tape.keep("stats", 2 * self.heads).buffer;
        let inputs = inputs(self, tape, node)?;
        let launch = shape(self, tape, stats).forward(&inputs, &tape.view(node.output));
        tape.push(launch);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let shape = shape(self, tape, tape.kept("stats")?.buffer);
        let inputs = inputs(self, tape, node)?;
        let dy = tape.gradient(node.output)?;
        tape.push(shape.dots(&tape.view(node.output), &dy));
        // Gradients of the last stages' outputs. Views may share a buffer that a kernel cannot
        // write twice, so these are buffers of their own.
        let above = heads(self).map(|heads| tape.temporary(heads * self.head_dim));
        tape.push(shape.queries(&inputs, &dy, &above[0], false));
        tape.push(shape.keys(&inputs, &dy, &above[1], &above[2]));
        for (part, last) in above.into_iter().enumerate() {
            let values = stage_values(self, tape, node, part)?;
            let stats = match is_normed(self, part) {
                true => Some(tape.kept(KEPT[part][0])?.buffer),
                false => None,
            };
            let stages = stages(self, tape, part, stats);
            let mut dy = last;
            for (index, stage) in stages.iter().enumerate().rev() {
                let x = &values[index];
                if let (Stage::Norm(norm), Some(op)) = (stage, &self.head_norm)
                    && let (Some((_, first)), Some(gains)) =
                        (&norm.gain, tape.weight_gradient(op.gains))
                {
                    tape.push(norm.gain(x, &dy, gains.buffer, *first));
                }
                if index > 0 {
                    let dx = tape.temporary(heads(self)[part] * self.head_dim);
                    tape.push(stage.backward(x, &dy, &dx, false));
                    dy = dx;
                } else if let Some((dx, add)) = tape.target(node.inputs[part]) {
                    tape.push(stage.backward(x, &dy, &dx, add));
                }
            }
            if stages.is_empty()
                && let Some((dx, add)) = tape.target(node.inputs[part])
            {
                let size = [tape.rows, tape.cols_of(node.inputs[part])];
                tape.push(elementwise(Function::Scale(1.0), size, &[&dy], &dx, add));
            }
        }
        Ok(())
    }
}
