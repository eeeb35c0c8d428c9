//! Lowers mixtures of experts: one GEMV per selected expert in decode; in prefill, tiled matmuls
//! over row-expert pairs sorted by expert.

use super::{Lowering, Slot, memory};
use crate::ir::{ExpertDown, ExpertUp, Node, Op, Routing, ValueId, WeightId, experts};
use crate::kernels::experts::{self as kernels, ExpertTiles, Experts};
use crate::kernels::matmul::{GemmTiling, Matmul, NormPrologue, View, WeightPlanes};
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::plan::{ExpertSelection, PlanBreak, PlanBreakKind};
use crate::{Error, Result};

/// A shard of an expert weight: first expert, expert count, planes.
type ExpertShard = (u32, u32, WeightPlanes<Slot>);

impl Lowering<'_> {
    pub(super) fn route(&mut self, name: &str, r: &Routing, node: &Node) -> Result<()> {
        if r.experts > kernels::MAX_EXPERTS || r.top_k > kernels::MAX_TOP_K || r.top_k > r.experts {
            return Err(Error::Internal(format!(
                "{name}: no kernel selects {} of {} experts",
                r.top_k, r.experts
            )));
        }
        let routing = kernels::RouterKernel {
            experts: r.experts as u32,
            top_k: r.top_k as u32,
            score: r.score,
            bias: r.bias.map(Slot::Vector),
            groups: r.groups,
            renormalize: r.renormalize,
            eps: r.eps,
            scale: r.scale,
            gain: r.gain.map(Slot::Vector),
        };
        let out = self.view(node.output);
        self.launches
            .push(routing.launch(name, &self.view(node.inputs[0]), &out));
        if r.prefetch {
            self.add_prediction(out.buffer);
            return Ok(());
        }
        if self.has_paged_readers(node.output) {
            self.breaks.push(PlanBreak {
                after: self.launches.len(),
                read: out.buffer,
                write: out.buffer,
                kind: PlanBreakKind::PagedExperts(ExpertSelection {
                    router: self.routers,
                    stride: out.stride as usize,
                    top_k: r.top_k,
                    combine: None,
                    predicted: None,
                }),
            });
        }
        self.routers += 1;
        Ok(())
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

    /// Lowers the up matmul; in prefill it first sorts the row-expert pairs.
    pub(super) fn expert_up(&mut self, name: &str, e: &ExpertUp, node: &Node) -> Result<()> {
        let x = self.view(node.inputs[0]);
        let picks = self.view(node.inputs[1]);

        let mut out = self.view(node.output);
        let buckets = self.buckets(self.expert_id_count(e.weight, e.rows(), e.count), e.top_k);
        if buckets.is_some() && e.norm.is_some() {
            return Err(Error::Internal(format!(
                "{name}: no kernel fuses a norm into a prefill matmul of experts"
            )));
        }
        if let Some(buckets) = &buckets {
            self.sorted = self.sorted.max(buckets.bytes());
            self.launches.push(buckets.launch(
                &format!("{name}, sorted"),
                &picks,
                self.cursor(node.output),
            ));
            out.stride = e.span() as u32;
        }
        for (first, count, weight) in self.expert_shards(e.weight, e.rows())? {
            let mut product = Matmul::plain(name, weight, x.clone(), out.clone());
            product.n = e.inner as u32;
            product.bias = e.bias.map(|bias| self.expert_bias(e.weight, bias));
            product.gated = e
                .gated
                .then_some(if e.interleaved { 1 } else { e.inner as u32 });
            product.act = e.act as u32;
            product.norm = e.norm.as_ref().and_then(|n| {
                let gain = Slot::Vector(n.gain?);
                Some(NormPrologue {
                    gain,
                    offset: n.offset,
                    eps: n.eps,
                })
            });
            let taken = Experts {
                selection: picks.clone(),
                top_k: e.top_k as u32,
                first,
                count,
                rows: e.rows() as u32,
                row_stride: if e.interleaved { 2 } else { 1 },
                span: e.span() as u32,
                sum_experts: false,
                accumulate: false,
                clamp: e.clamp,
            };
            product.experts = Some(taken.clone());
            let choice = self.expert_matmul(e.weight, &product, &taken, buckets.as_ref(), false);
            if let (Some(buckets), Some(choice), true) =
                (&buckets, choice, (first + count) as usize == e.count)
            {
                self.launches.push(product.gemm_experts_epilogue(
                    buckets,
                    &taken,
                    Slot::AttentionPartials,
                    choice,
                ));
            }
        }
        Ok(())
    }

    /// Lowers the down matmul, summed over a row's selected experts.
    pub(super) fn expert_down(&mut self, name: &str, e: &ExpertDown, node: &Node) -> Result<()> {
        let mut x = self.view(node.inputs[0]);
        let picks = self.view(node.inputs[1]);
        let out = self.view(node.output);

        let residual = e.residual.then(|| self.view(node.inputs[2]));
        let cols = self.cols(node.output);
        let span = experts::span(e.inner) as u32;

        let buckets = self.buckets(
            self.expert_id_count(e.weight, cols as usize, e.count),
            e.top_k,
        );
        let stride = memory::row_stride(self.graph, self.graph.root(node.output).0) as u32;
        let each_out = View {
            buffer: Slot::AttentionPartials,
            offset: 0,
            stride,
        };
        let taken = |first, count| Experts {
            selection: picks.clone(),
            top_k: e.top_k as u32,
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
        let runs = self.expert_shards(e.weight, cols as usize)?;
        let all = taken(0, e.count as u32);
        for (first, count, weight) in runs {
            let to = if buckets.is_some() { &each_out } else { &out };
            let mut product = Matmul::plain(name, weight, x.clone(), to.clone());
            product.n = cols;
            product.bias = e.bias.map(|bias| self.expert_bias(e.weight, bias));
            product.residual = residual.clone().filter(|_| buckets.is_none() && first == 0);
            let taken = taken(first, count);
            product.experts = Some(taken.clone());
            left = self
                .expert_matmul(e.weight, &product, &taken, buckets.as_ref(), true)
                .map(|choice| (product.expert_partials_stride(choice), product.bias));
        }
        let Some(buckets) = buckets else {
            return Ok(());
        };
        let name = format!("{name}, combined");
        let combine =
            |y: &View<Slot>| kernels::combine(&name, y, &all, residual.as_ref(), &out, cols);
        let sum = match left {
            Some((stride, bias)) => {
                buckets.combine_partials(combine(&View { stride, ..each_out }), bias)
            }
            None => {
                self.attention_partials = self
                    .attention_partials
                    .max(u64::from(buckets.rows * buckets.top_k) * u64::from(stride) * 4);
                combine(&each_out)
            }
        };
        let before = self.launches.len();
        self.launches.push(sum);
        if self.is_paged(e.weight)
            && let Some((_, experts)) = self.last_expert_break()
        {
            experts.combine = Some(before);
        }
        Ok(())
    }

    /// Lowers a matmul with the experts of a shard. On subgroup matrices its sums go to the scratch
    /// buffer. Paged experts cannot: their sums would not survive from one shard to the next.
    fn expert_matmul(
        &mut self,
        id: WeightId,
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
        self.launches.push(match choice {
            Some(choice) => {
                self.attention_partials = self
                    .attention_partials
                    .max(product.expert_partials_bytes(buckets, choice));
                product.gemm_experts_subgroup_matrix(
                    buckets,
                    taken,
                    own,
                    Slot::AttentionPartials,
                    choice,
                )
            }
            None => product.gemm_experts(buckets, taken, own, GemmTiling::of(caps, product, rows)),
        });
        choice
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
        if matches!(self.options.rows, super::StepKind::Decode(_)) {
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
