//! Lowers mixtures of experts: one GEMV per selected expert in decode; in prefill, tiled matmuls
//! over row-expert pairs sorted by expert.

use super::{Lower, Lowering, NodeViews, Slot, memory, unsupported};
use crate::ir::{
    ExpertDown, ExpertUp, GateRows, Op, TopKRouter, ValueId, WeightId, selected_expert_stride,
};
use crate::kernels::experts::{self as kernels, ExpertTiles, Experts};
use crate::kernels::matmul::{GemmTiling, Matmul, NormPrologue, QuantizedRows, View, WeightPlanes};
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::plan::{ExpertSelection, PlanBreak, PlanBreakKind};
use crate::{Error, Result};

/// A shard of an expert weight: first expert, expert count, planes.
type ExpertShard = (u32, u32, WeightPlanes<Slot>);

impl Lower for TopKRouter {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let kernel = kernels::RouterKernel {
            experts: self.experts as u32,
            top_k: self.top_k as u32,
            score: self.score,
            bias: self.bias.map(Slot::Vector),
            groups: self.groups,
            renormalize: self.renormalize,
            eps: self.eps,
            scale: self.scale,
            gain: self.gain.map(Slot::Vector),
        };
        lowering
            .launches
            .push(kernel.launch(&node.name, node.x(), &node.out));
        if self.prefetch {
            lowering.add_prediction(node.out.buffer);
            return Ok(());
        }
        if lowering.has_paged_readers(node.node.output) {
            lowering.break_for_experts(self.top_k, &node.out);
        }
        lowering.routers += 1;
        Ok(())
    }
}

impl Lowering<'_> {
    /// Adds the break after a router whose experts are paged.
    fn break_for_experts(&mut self, top_k: usize, selection: &View<Slot>) {
        self.breaks.push(PlanBreak {
            after: self.launches.len(),
            read: selection.buffer,
            write: selection.buffer,
            kind: PlanBreakKind::PagedExperts(ExpertSelection {
                router: self.routers,
                stride: selection.stride as usize,
                top_k,
                combine: None,
                predicted: None,
            }),
        });
    }

    /// Whether paged experts read a selection.
    fn has_paged_readers(&self, selection: ValueId) -> bool {
        self.graph.nodes.iter().any(|node| {
            matches!(&node.op, Op::ExpertUp(e) if self.is_paged(e.weight))
                && node.inputs[1] == selection
        })
    }

    /// Moves the break of the last router behind the prediction of the next layer's experts, which
    /// the host reads at the same time.
    fn add_prediction(&mut self, predicted: Slot) {
        let after = self.launches.len();
        let router = self.routers;
        if let Some((stop, experts)) = self.last_expert_break()
            && experts.router + 1 == router
        {
            experts.predicted = Some(predicted);
            *stop = after;
        }
    }

    /// Returns the launches before the last break for experts, and the selection.
    fn last_expert_break(&mut self) -> Option<(&mut usize, &mut ExpertSelection)> {
        let stop = self.breaks.last_mut()?;
        match &mut stop.kind {
            PlanBreakKind::PagedExperts(experts) => Some((&mut stop.after, experts)),
            PlanBreakKind::PagedRows { .. } => None,
        }
    }

    /// Lowers a matmul with the experts of a shard. On subgroup matrices its sums go to the scratch
    /// buffer. Paged experts cannot: their sums would not survive from one shard to the next.
    fn expert_matmul(
        &mut self,
        id: WeightId,
        node: &NodeViews<'_>,
        product: &Matmul<Slot>,
        taken: &Experts<Slot>,
        buckets: Option<&ExpertTiles<Slot>>,
        own: bool,
    ) -> Option<MatrixTiling> {
        let caps = self.options.caps;
        let rows = self.options.rows.tokens();

        let Some(buckets) = buckets else {
            self.launches.push(product.gemv(caps, rows, Slot::CURSOR));
            return None;
        };
        let choice =
            MatrixTiling::of_experts(caps, product, buckets).filter(|_| !self.is_paged(id));
        let launch = match choice {
            Some(choice) => {
                self.reserve_partials(product.expert_partials_bytes(buckets, choice));
                product.gemm_experts_subgroup_matrix(
                    buckets,
                    taken,
                    own,
                    Slot::AttentionPartials,
                    choice,
                )
            }
            None => match self.quantize_expert_input(node, product, own) {
                Some(quantized) => product.gemm_experts_packed(buckets, taken, own, quantized),
                None => {
                    product.gemm_experts(buckets, taken, own, GemmTiling::of(caps, product, rows))
                }
            },
        };
        self.launches.push(launch);
        choice
    }

    /// Quantizes the input of a matmul of experts if that is faster, unless it is there already. Its rows
    /// are row-expert pairs if `own`.
    fn quantize_expert_input(
        &mut self,
        node: &NodeViews<'_>,
        product: &Matmul<Slot>,
        own: bool,
    ) -> Option<(Slot, QuantizedRows)> {
        let options = self.options;
        let rows = options.rows.tokens();
        let form = product.quantized_rows(options.caps, rows, options.quantize_inputs)?;
        let times = match (&product.experts, own) {
            (Some(experts), true) => experts.top_k,
            _ => 1,
        };
        let x = Slot::QuantizedRows(self.quantized_at);
        let held = Some((node.node.inputs[0], form));
        if self.quantized != held {
            self.quantized = held;
            self.reserve_quantized(form.bytes(rows * times as usize));
            let state = self.cursor(node.node.output);
            self.launches
                .push(form.launch_times(times, product, state, x));
        }
        Some((x, form))
    }

    /// Returns the number of distinct expert ids: all experts, or for paged experts the slots plus
    /// one for those not loaded.
    fn expert_id_count(&self, id: WeightId, rows: usize, count: usize) -> usize {
        match self.options.weights.get(&id) {
            Some(plan) if plan.is_paged() => plan.rows / rows + 1,
            _ => count,
        }
    }

    /// Returns the biases in the order of the weights in their buffers.
    fn expert_bias(&self, weight: WeightId, bias: WeightId) -> Slot {
        if self.is_paged(weight) {
            Slot::WeightQ(bias, 0)
        } else {
            Slot::Vector(bias)
        }
    }

    /// Returns the sorted row-expert pairs of a prefill step.
    fn buckets(&self, count: usize, each: usize) -> Option<ExpertTiles<Slot>> {
        if self.options.rows.decodes() {
            return None;
        }
        let experts = count as u32;
        let each = each as u32;
        let rows = self.options.rows.tokens() as u32;

        let tile_rows = ExpertTiles::<Slot>::tile_rows(rows, each, experts);
        Some(ExpertTiles {
            buffer: Slot::ExpertTiles,
            experts,
            top_k: each,
            rows,
            tile_rows,
        })
    }

    fn expert_shards(&self, id: WeightId, rows: usize) -> Result<Vec<ExpertShard>> {
        let per = rows as u32;
        let runs = self.shards(id)?.into_iter();
        Ok(runs
            .map(|(start, weight)| (start / per, weight.rows / per, weight))
            .collect())
    }
}

/// In prefill the up matmul first sorts the row-expert pairs.
impl Lower for ExpertUp {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let name = node.name.as_str();
        let [x, picks, ..] = &node.inputs[..] else {
            return Err(unsupported(name, "experts without a selection"));
        };
        let mut out = node.out.clone();
        let ids = lowering.expert_id_count(self.weight, self.rows(), self.count);
        let buckets = lowering.buckets(ids, self.top_k);
        if buckets.is_some() && self.norm.is_some() {
            return Err(Error::Internal(format!(
                "{name}: no kernel fuses a norm into a prefill matmul of experts"
            )));
        }
        if let Some(buckets) = &buckets {
            lowering.sorted = lowering.sorted.max(buckets.bytes());
            lowering.launches.push(buckets.launch(
                &format!("{name}, sorted"),
                picks,
                lowering.cursor(node.node.output),
            ));
            out.stride = self.span() as u32;
        }
        if lowering.is_paged(self.weight) {
            // Launches of paged experts may run several times, and quantize other rows in between.
            lowering.quantized = None;
        }
        for (first, count, weight) in lowering.expert_shards(self.weight, self.rows())? {
            let mut product = Matmul::plain(name, weight, x.clone(), out.clone());
            product.n = self.inner as u32;
            product.bias = self
                .bias
                .map(|bias| lowering.expert_bias(self.weight, bias));
            product.gated = match self.gate {
                GateRows::None => None,
                GateRows::First => Some(self.inner as u32),
                GateRows::Interleaved => Some(1),
            };
            product.act = self.act as u32;
            product.norm = self.norm.as_ref().and_then(|n| {
                let gain = Slot::Vector(n.gain?);
                Some(NormPrologue {
                    gain,
                    offset: n.offset,
                    eps: n.eps,
                })
            });
            let taken = Experts {
                selection: picks.clone(),
                top_k: self.top_k as u32,
                first,
                count,
                rows: self.rows() as u32,
                row_stride: if self.gate == GateRows::Interleaved {
                    2
                } else {
                    1
                },
                span: self.span() as u32,
                sum_experts: false,
                accumulate: false,
                clamp: self.clamp,
            };
            product.experts = Some(taken.clone());
            let choice = lowering.expert_matmul(
                self.weight,
                node,
                &product,
                &taken,
                buckets.as_ref(),
                false,
            );
            if let (Some(buckets), Some(choice), true) =
                (&buckets, choice, (first + count) as usize == self.count)
            {
                lowering.launches.push(product.gemm_experts_epilogue(
                    buckets,
                    &taken,
                    Slot::AttentionPartials,
                    choice,
                ));
            }
        }
        Ok(())
    }
}

impl Lower for ExpertDown {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let name = node.name.as_str();
        let [x, picks, ..] = &node.inputs[..] else {
            return Err(unsupported(name, "experts without a selection"));
        };
        let mut x = x.clone();
        let out = &node.out;
        let residual = node.inputs.get(2).filter(|_| self.residual);
        let cols = node.cols;
        let span = selected_expert_stride(self.inner) as u32;
        let ids = lowering.expert_id_count(self.weight, cols as usize, self.count);
        let buckets = lowering.buckets(ids, self.top_k);
        let root = lowering.graph.root(node.node.output).0;
        let stride = memory::row_stride(lowering.graph, root) as u32;
        let each_out = View {
            buffer: Slot::AttentionPartials,
            offset: 0,
            stride,
        };
        let taken = |first, count| Experts {
            selection: picks.clone(),
            top_k: self.top_k as u32,
            first,
            count,
            rows: cols,
            row_stride: 1,
            span,
            sum_experts: buckets.is_none(),
            accumulate: first > 0,
            clamp: None,
        };
        if buckets.is_some() {
            x.stride = span;
        }
        let mut left = None;
        let runs = lowering.expert_shards(self.weight, cols as usize)?;
        let all = taken(0, self.count as u32);
        for (first, count, weight) in runs {
            let to = if buckets.is_some() { &each_out } else { out };
            let mut product = Matmul::plain(name, weight, x.clone(), to.clone());
            product.n = cols;
            product.bias = self
                .bias
                .map(|bias| lowering.expert_bias(self.weight, bias));
            let adds = buckets.is_none() && first == 0;
            product.residual = residual.filter(|_| adds).cloned();
            let taken = taken(first, count);
            product.experts = Some(taken.clone());
            left = lowering
                .expert_matmul(self.weight, node, &product, &taken, buckets.as_ref(), true)
                .map(|choice| (product.expert_partials_stride(choice), product.bias));
        }
        let Some(buckets) = buckets else {
            return Ok(());
        };
        let name = format!("{name}, combined");
        let combine = |y: &View<Slot>| kernels::combine(&name, y, &all, residual, out, cols);
        let sum = match left {
            Some((stride, bias)) => {
                buckets.combine_partials(combine(&View { stride, ..each_out }), bias)
            }
            None => {
                let pairs = u64::from(buckets.rows * buckets.top_k);
                lowering.reserve_partials(pairs * u64::from(stride) * 4);
                combine(&each_out)
            }
        };
        let before = lowering.launches.len();
        lowering.launches.push(sum);
        if lowering.is_paged(self.weight)
            && let Some((_, experts)) = lowering.last_expert_break()
        {
            experts.combine = Some(before);
        }
        Ok(())
    }
}
