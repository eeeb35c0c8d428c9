//! Linear layers with bias, activation or soft cap, through weights of any layout.

use super::Differentiate;
use crate::kernels::elementwise::{Function, elementwise};
use crate::kernels::matmul::{WeightRows, linear, linear_input, linear_weight, row_scales};
use crate::kernels::norm::column_sums;
use crate::tape::{Tape, TrainBuffer};
use jerboa::Result;
use jerboa::ir::{Activation, Linear, Node};
use jerboa::kernels::view::View;

/// The function of a layer's sums and its derivative; `None` if there is none.
fn function_of(op: &Linear) -> Option<[Function; 2]> {
    match op.activation() {
        Activation::None if op.softcap > 0.0 => Some([
            Function::Softcap(op.softcap),
            Function::SoftcapGradient(op.softcap),
        ]),
        Activation::None => None,
        act => Some([Function::Activation(act), Function::ActivationGradient(act)]),
    }
}

/// The parts of the used weight rows by shard, with the first output column of each.
fn parts(
    op: &Linear,
    tape: &Tape<'_>,
    node: &Node,
) -> Result<Vec<(usize, WeightRows<TrainBuffer>)>> {
    let used = op.row0..op.row0 + tape.cols_of(node.output);
    let mut parts = Vec::new();
    for (start, planes) in tape.shards(op.weight)? {
        let end = start + planes.rows as usize;
        let first = used.start.max(start);
        let last = used.end.min(end);
        if first < last {
            let rows = WeightRows {
                planes,
                first: first - start,
                count: last - first,
            };
            parts.push((first - used.start, rows));
        }
    }
    Ok(parts)
}

fn columns_from(view: &View<TrainBuffer>, first: usize) -> View<TrainBuffer> {
    View {
        offset: view.offset + first as u32,
        ..view.clone()
    }
}

impl Differentiate for Linear {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let is_capped = self.softcap > 0.0 && self.activation().is_some();
        let unfused = Self {
            softcap: 0.0,
            ..self.clone()
        };
        let parts = parts(self, tape, node)?;
        let is_split = parts.len() > 1;
        if !unfused.is_plain()
            || is_capped
            || is_split && (self.bias().is_some() || tape.is_trained(self.weight))
        {
            return Err(tape.refuse(node));
        }
        let cols = tape.cols_of(node.output);
        let function = function_of(self);
        let out = tape.view(node.output);
        let sums = match function {
            Some(_) => tape.keep("sums", cols),
            None => out.clone(),
        };
        let x = tape.view(node.inputs[0]);
        let bias = self.bias().map(TrainBuffer::Vector);
        let rows = tape.rows;
        for (first, weight) in parts {
            let y = columns_from(&sums, first);
            tape.push(linear(&weight, rows, self.scale, &x, bias, &y));
        }
        if let Some([function, _]) = function {
            tape.push(elementwise(function, [rows, cols], &[&sums], &out, false));
        }
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let [rows, cols] = [tape.rows, tape.cols_of(node.output)];
        let mut dy = tape.gradient(node.output)?;
        if let Some([_, derivative]) = function_of(self) {
            let sums = tape.kept("sums")?;
            let own = tape.temporary(cols);
            tape.push(elementwise(
                derivative,
                [rows, cols],
                &[&sums, &dy],
                &own,
                false,
            ));
            dy = own;
        }
        if let Some(bias) = self.bias().and_then(|bias| tape.weight_gradient(bias)) {
            tape.push(column_sums([rows, 1, cols], &dy, bias.buffer, 0));
        }
        if let Some(dw) = tape.weight_gradient(self.weight) {
            let x = tape.view(node.inputs[0]);
            let dw = columns_from(&dw, self.row0 * dw.stride as usize);
            let size = [rows, cols, tape.cols_of(node.inputs[0])];
            tape.push(linear_weight(size, self.scale, &dy, &x, &dw));
        }
        let parts = parts(self, tape, node)?;
        if let Some((dx, mut add)) = tape.target(node.inputs[0]) {
            let takes_matrices = parts.iter().any(|(_, weight)| weight.takes_matrices());
            let scales = takes_matrices.then(|| tape.temporary(1).buffer);
            if let Some(scales) = scales {
                tape.push(row_scales([rows, cols], &dy, scales));
            }
            for (first, weight) in parts {
                let above = columns_from(&dy, first);
                let mut launch = linear_input(&weight, rows, self.scale, &above, &dx, add);
                if let Some(scales) = scales {
                    launch = launch.with_scales(scales);
                }
                tape.push(launch);
                add = true;
            }
        }
        Ok(())
    }
}
