//! Lowers mixtures of experts: one GEMV per selected expert in decode; in prefill, tiled matmuls over row-expert pairs
//! sorted by expert.

use super::{Lowering, Slot, memory};
use crate::ir::{ExpertsIn, ExpertsOut, Node, Routing, WeightId, experts};
use crate::kernels::experts::{self as kernels, Buckets, Experts};
use crate::kernels::matmul::{GemmChoice, Matmul, NormPrologue, View, Weight};
use crate::kernels::matrix::MatrixChoice;
use crate::{Error, Result};

/// A shard of an expert weight: first expert, expert count, planes.
type Run = (u32, u32, Weight<Slot>);

impl Lowering<'_> {
    pub(super) fn route(&mut self, name: &str, r: &Routing, node: &Node) -> Result<()> {
        if r.experts > kernels::MOST_EXPERTS || r.picks > kernels::MOST_PICKS || r.picks > r.experts {
            return Err(Error::Internal(format!("{name}: no kernel selects {} of {} experts", r.picks, r.experts)));
        }
        let routing = kernels::Routing {
            experts: r.experts as u32,
            picks: r.picks as u32,
            score: r.score,
            bias: r.bias.map(Slot::Vector),
            groups: r.groups,
            renormalize: r.renormalize,
            eps: r.eps,
            scale: r.scale,
            gain: r.gain.map(Slot::Vector),
        };
        self.launches.push(routing.launch(name, &self.view(node.inputs[0]), &self.view(node.output)));
        Ok(())
    }

    /// Lowers the up matmul; in prefill it first sorts the row-expert pairs.
    pub(super) fn experts(&mut self, name: &str, e: &ExpertsIn, node: &Node) -> Result<()> {
        let (x, picks) = (self.view(node.inputs[0]), self.view(node.inputs[1]));
        let mut out = self.view(node.output);
        let buckets = self.buckets(self.numbers(e.weight, e.rows(), e.count), e.each);
        if buckets.is_some() && e.norm.is_some() {
            return Err(Error::Internal(format!("{name}: no kernel fuses a norm into a prefill matmul of experts")));
        }
        if let Some(buckets) = &buckets {
            self.sorted = self.sorted.max(buckets.bytes());
            self.launches.push(buckets.launch(&format!("{name}, sorted"), &picks, self.cursor(node.output)));
            out.stride = e.span() as u32;
        }
        for (first, count, weight) in self.expert_runs(e.weight, e.rows())? {
            let mut product = Matmul::plain(name, weight, x.clone(), out.clone());
            product.n = e.inner as u32;
            product.bias = e.bias.map(|bias| self.expert_bias(e.weight, bias));
            product.gated = e.gated.then_some(if e.turns { 1 } else { e.inner as u32 });
            product.act = e.act as u32;
            product.norm = e.norm.as_ref().and_then(|n| {
                let gain = Slot::Vector(n.gain?);
                Some(NormPrologue { gain, offset: n.offset, eps: n.eps })
            });
            let taken = Experts {
                picks: picks.clone(),
                each: e.each as u32,
                first,
                count,
                rows: e.rows() as u32,
                step: if e.turns { 2 } else { 1 },
                span: e.span() as u32,
                mixed: false,
                later: false,
                clamp: e.clamp,
            };
            product.experts = Some(taken.clone());
            let choice = self.expert_product(e.weight, &product, &taken, buckets.as_ref(), false);
            if let (Some(buckets), Some(choice), true) = (&buckets, choice, (first + count) as usize == e.count) {
                self.launches.push(product.grouped_join(buckets, &taken, Slot::Scratch, choice));
            }
        }
        Ok(())
    }

    /// Lowers the down matmul, summed over a row's selected experts.
    pub(super) fn mix(&mut self, name: &str, e: &ExpertsOut, node: &Node) -> Result<()> {
        let (mut x, picks, out) = (self.view(node.inputs[0]), self.view(node.inputs[1]), self.view(node.output));
        let residual = e.residual.then(|| self.view(node.inputs[2]));
        let (cols, span) = (self.cols(node.output), experts::span(e.inner) as u32);
        let buckets = self.buckets(self.numbers(e.weight, cols as usize, e.count), e.each);
        let stride = memory::stride(self.graph, self.graph.root(node.output).0) as u32;
        let each_out = View { buffer: Slot::Scratch, offset: 0, stride };
        let taken = |first, count| Experts {
            picks: picks.clone(),
            each: e.each as u32,
            first,
            count,
            rows: cols,
            step: 1,
            span,
            mixed: buckets.is_none(),
            later: first > 0,
            clamp: None,
        };
        if buckets.is_some() {
            x.stride = span;
        }
        let mut left = None;
        let runs = self.expert_runs(e.weight, cols as usize)?;
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
                .expert_product(e.weight, &product, &taken, buckets.as_ref(), true)
                .map(|choice| (product.grouped_stride(choice), product.bias));
        }
        let Some(buckets) = buckets else { return Ok(()) };
        let name = format!("{name}, combined");
        let combine = |y: &View<Slot>| kernels::combine(&name, y, &all, residual.as_ref(), &out, cols);
        let sum = match left {
            Some((stride, bias)) => buckets.of_parts(combine(&View { stride, ..each_out }), bias),
            None => {
                self.scratch = self.scratch.max(u64::from(buckets.rows * buckets.each) * u64::from(stride) * 4);
                combine(&each_out)
            }
        };
        self.launches.push(sum);
        Ok(())
    }

    /// Lowers a matmul with the experts of a shard. On subgroup matrices its sums go to the scratch buffer. Paged
    /// experts cannot: their sums would not survive from one shard to the next.
    fn expert_product(
        &mut self,
        id: WeightId,
        product: &Matmul<Slot>,
        taken: &Experts<Slot>,
        buckets: Option<&Buckets<Slot>>,
        own: bool,
    ) -> Option<MatrixChoice> {
        let (caps, rows) = (self.options.caps, self.options.rows.tokens());
        let Some(buckets) = buckets else {
            self.launches.push(product.gemv(caps, rows, Slot::CURSOR));
            return None;
        };
        let choice = MatrixChoice::of_experts(caps, product, buckets).filter(|_| !self.paged(id));
        self.launches.push(match choice {
            Some(choice) => {
                self.scratch = self.scratch.max(product.grouped_bytes(buckets, choice));
                product.grouped_on_units(buckets, taken, own, Slot::Scratch, choice)
            }
            None => product.grouped(buckets, taken, own, GemmChoice::of(caps, product, rows)),
        });
        choice
    }

    /// Returns the number of distinct expert ids: all experts, or for paged experts the slots plus one for those not
    /// loaded.
    fn numbers(&self, id: WeightId, rows: usize, count: usize) -> usize {
        match self.options.weights.get(&id) {
            Some(plan) if plan.is_paged() => plan.rows / rows + 1,
            _ => count,
        }
    }

    /// Returns the biases in the order of the weights in their buffers.
    fn expert_bias(&self, weight: WeightId, bias: WeightId) -> Slot {
        if self.paged(weight) { Slot::WeightQ(bias, 0) } else { Slot::Vector(bias) }
    }

    /// Returns the sorted row-expert pairs of a prefill step.
    fn buckets(&self, count: usize, each: usize) -> Option<Buckets<Slot>> {
        if matches!(self.options.rows, super::RowsMode::Few(_)) {
            return None;
        }
        let (experts, each, rows) = (count as u32, each as u32, self.options.rows.tokens() as u32);
        let tile_rows = Buckets::<Slot>::tile_rows(rows, each, experts);
        Some(Buckets { buffer: Slot::Buckets, experts, each, rows, tile_rows })
    }

    fn expert_runs(&self, id: WeightId, rows: usize) -> Result<Vec<Run>> {
        let per = rows as u32;
        let runs = self.runs(id)?.into_iter();
        Ok(runs.map(|(start, weight)| (start / per, weight.rows / per, weight)).collect())
    }
}
