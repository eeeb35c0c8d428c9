//! Lowers matmuls whose weight rows may be sharded over several buffers. Selects the kernel by row
//! count and the operations to fuse.

use super::{Lower, Lowering, NodeViews, Slot, unsupported};
use crate::ir::{Activation, Addend, Combine, Dim, Linear, Node, Norm, Prologue, ValueId};
use crate::kernels::kv_splits::KvSplits;
use crate::kernels::matmul::{
    Matmul, NormPrologue, OutputBuffers, QuantizeInputs, QuantizedRows, View, divide_by_rms,
};
use crate::{Error, Result};

impl Lower for Linear {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let name = &node.name;
        let options = lowering.options;
        let shards = lowering.shards(self.weight)?;
        let split = shards.len() > 1;
        if split {
            check_split(self, lowering, name)?;
        }
        let many = !options.rows.uses_gemv() && !node.single;
        let norm = self.prologue.norm();
        let norm = norm.map(|norm| norm_prologue(name, norm)).transpose()?;
        let quantize = matches!(self.prologue, Prologue::QuantizedNorm(_));
        let addend = addend_input(self, name)?;
        let state = lowering.cursor(node.node.output);
        let (root, _) = lowering.graph.root(node.node.inputs[0]);
        let splits = lowering
            .pending_splits
            .take()
            .filter(|splits| !split && lowering.consumes_splits(splits, node.node));
        let rows = options.rows.of(lowering.graph.value(node.node.output).rows);
        let low = self.row0 as u32;
        let high = low + self.weight_rows(node.cols as usize) as u32;

        for (start, weight) in shards {
            // The rows of this shard that are used, and their output columns.
            let from = low.max(start);
            let to = high.min(start + weight.rows);
            if from >= to {
                continue;
            }
            let first = from - low;
            let shifted = |view: &View<Slot>| View {
                offset: view.offset + first,
                ..view.clone()
            };
            let mut matmul =
                Matmul::plain(name.as_str(), weight, node.x().clone(), shifted(&node.out));
            (matmul.row0, matmul.n) = (from - start, to - from);
            if self.is_gated() {
                matmul.n /= 2;
                matmul.gated = Some(matmul.n);
            }
            matmul.bias = self.bias().map(Slot::Vector);
            matmul.residual = addend.map(|input| shifted(&node.inputs[input]));
            matmul.multiply = self.combine == Combine::Mul;
            matmul.f16_input = lowering.f16_values.contains(&node.node.inputs[0]);
            matmul.norm = norm.clone();
            matmul.quantize = quantize;
            matmul.batch =
                options.rows.is_batch() && options.quantize_inputs != QuantizeInputs::Never;
            matmul.act = self.activation() as u32;
            matmul.scale = self.scale;
            matmul.softcap = self.softcap;
            if quantize && (many || !matmul.quantizes_input(options.caps, rows)) {
                return Err(unsupported(name, "8-bit rounding fused into this matmul"));
            }
            if let Some((.., splits)) = splits.filter(|_| matmul.reduces_kv_splits(options.caps)) {
                lowering.launches.pop();
                matmul.x = View {
                    buffer: Slot::AttentionPartials,
                    offset: 0,
                    stride: 0,
                };
                matmul.kv_splits = Some(splits);
            }
            // Nothing else reads the f32 rows.
            let is_only_reader = !split && lowering.uses[root.0] == 1;
            if many {
                let form = matmul.quantized_rows(options.caps, rows, options.quantize_inputs);
                let is_shared = form.is_some() && !options.rows.is_batch();
                matmul.shared_act = is_shared.then_some(lowering.shared_act);
                if norm.is_some() && !(options.rows.is_batch() && form.is_some()) {
                    return Err(unsupported(name, "a norm fused into a tiled matmul"));
                }
                let can_fuse = match norm {
                    Some(_) => matmul.splits_packed(options.caps, rows),
                    None => is_only_reader,
                };
                let is_divided =
                    form.map(|form| lowering.quantize(&matmul, node, form, can_fuse, rows, state));
                let (bytes, mut launches) = matmul.prefill(
                    options.caps,
                    rows,
                    state,
                    Slot::AttentionPartials,
                    form.map(|form| (Slot::QuantizedRows(lowering.quantized_at), form)),
                );
                lowering.reserve_partials(bytes.max(16));
                if let (Some(false), Some(norm)) = (is_divided, &norm) {
                    let (cols, squares) = (matmul.weight.cols, Slot::SquareSums);
                    let bytes = divide_by_rms(&mut launches, norm, cols, rows, squares);
                    let fault = || Error::Internal(format!("{name}: no reduction divides by RMS"));
                    lowering.reserve_partials(bytes.ok_or_else(fault)?);
                }
                lowering.launches.extend(launches);
            } else if let Some(form) = matmul.quantized_batch(options.caps, rows) {
                let can_fuse = norm.is_some() || is_only_reader;
                let is_divided = lowering.quantize(&matmul, node, form, can_fuse, rows, state);
                matmul.norm = None;
                let x = Slot::QuantizedRows(lowering.quantized_at);
                let mut launch = matmul.gemv_packed(options.caps, rows, state, x);
                if let (false, Some(norm)) = (is_divided, &norm) {
                    form.divide_product(&mut launch, norm, matmul.weight.cols, rows);
                }
                lowering.launches.push(launch);
            } else {
                lowering
                    .launches
                    .push(matmul.gemv(options.caps, rows, state));
            }
        }
        Ok(())
    }
}

impl Lowering<'_> {
    /// Quantizes the input of a matmul to the buffer `quantized_at` of [`Slot::QuantizedRows`], unless
    /// it is there already: in the previous launch if that `can_fuse` and is possible, else in a
    /// launch of its own. Returns whether the rows of a norm are divided by their RMS; those of a
    /// fused one are not.
    fn quantize(
        &mut self,
        matmul: &Matmul<Slot>,
        node: &NodeViews<'_>,
        form: QuantizedRows,
        can_fuse: bool,
        rows: usize,
        state: Slot,
    ) -> bool {
        // Matmuls of one normed value have their own norms, so the next one may need another.
        let is_normed = matmul.norm.is_some();
        let cached = (!is_normed).then_some((node.node.inputs[0], form));
        if cached.is_some() && self.quantized == cached {
            return true;
        }
        self.quantized = cached;
        if can_fuse && self.fuse_quantization(matmul, form, rows) {
            return !is_normed;
        }
        self.reserve_quantized(form.bytes(rows));
        let launch = form.launch(matmul, state, Slot::QuantizedRows(self.quantized_at));
        self.launches.push(launch);
        true
    }

    /// Makes the previous launch quantize the input of a matmul, if it can. Only in batches: many
    /// rows of a prompt would leave large partial sums.
    fn fuse_quantization(
        &mut self,
        matmul: &Matmul<Slot>,
        form: QuantizedRows,
        rows: usize,
    ) -> bool {
        if !self.options.rows.is_batch() {
            return false;
        }
        // A product reads its own input in 8 bits.
        let input = Slot::QuantizedRows(self.quantized_at);
        let last = self.launches.last();
        let reads = last.is_some_and(|last| last.binds.iter().any(|(_, slot)| *slot == input));
        let at = self.quantized_at ^ usize::from(reads);
        let buffers = OutputBuffers {
            quantized: Slot::QuantizedRows(at),
            squares: Slot::SquareSums,
        };
        let caps = self.options.caps;
        let Some(bytes) = form.quantize_output(caps, &mut self.launches, matmul, rows, buffers)
        else {
            return false;
        };
        self.quantized_at = at;
        self.reserve_quantized(form.bytes(rows) + bytes.quantized);
        self.reserve_partials(bytes.partials);
        self.square_sums = self.square_sums.max(bytes.squares);
        true
    }

    pub(super) fn reserve_quantized(&mut self, bytes: u64) {
        let reserved = &mut self.quantized_rows[self.quantized_at];
        *reserved = (*reserved).max(bytes);
    }
}

/// Refuses what needs the whole weight in one buffer.
fn check_split(linear: &Linear, lowering: &Lowering<'_>, name: &str) -> Result<()> {
    if linear.is_gated() {
        return Err(Error::Internal(format!(
            "{name}: a sharded weight cannot be gated"
        )));
    }
    if linear.bias().is_some() {
        return Err(Error::OutOfMemory {
            what: format!("{name} (a matmul with bias must fit one buffer)"),
            needed: lowering.weight_bytes(linear.weight),
            limit: lowering.options.caps.max_weight_buffer(),
            hint:
                "Load the model with weights: 'q4', or choose a more strongly quantized checkpoint."
                    .into(),
        });
    }
    Ok(())
}

/// Returns the input that the kernel adds to, or multiplies with, the finished result. Rows
/// added before the activation are the same where there is none.
fn addend_input(linear: &Linear, name: &str) -> Result<Option<usize>> {
    if linear.addend != Addend::Rows {
        return Ok(linear.combined_input());
    }
    let last = !linear.is_gated()
        && linear.activation() == Activation::None
        && linear.softcap == 0.0
        && linear.combine == Combine::None;
    if last {
        Ok(Some(1))
    } else {
        Err(unsupported(
            name,
            "rows added before other fused operations",
        ))
    }
}

/// Returns the norm that the kernel applies to the input.
fn norm_prologue(name: &str, norm: &Norm) -> Result<NormPrologue<Slot>> {
    if norm.layer || norm.bias.is_some() {
        return Err(unsupported(name, "the mean or the bias of a fused norm"));
    }
    let Some(gain) = norm.gain else {
        return Err(unsupported(name, "a norm without a gain in a matmul"));
    };
    Ok(NormPrologue {
        gain: Slot::Vector(gain),
        offset: norm.offset,
        eps: norm.eps,
    })
}

impl Lowering<'_> {
    /// Whether a matmul directly follows the attention output and is its only reader.
    fn consumes_splits(
        &self,
        (value, launches, _): &(ValueId, usize, KvSplits),
        matmul: &Node,
    ) -> bool {
        *launches == self.launches.len()
            && matmul.inputs.first() == Some(value)
            && self.uses[value.0] == 1
            && self.graph.value(matmul.output).rows == Dim::TOKENS
    }
}
