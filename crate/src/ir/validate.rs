//! Graph validation: node order, shapes and weight kinds.

use super::{
    Attention, Graph, HeadSlice, Linear, Node, Norm, Op, RecurrenceRule, Recurrent, SoftTokens,
    StateSpec, ValueId, WeightId, WeightKind, experts,
};
use crate::{Error, Result};

/// Ok, or a description of the mismatch.
type CheckResult = std::result::Result<(), String>;

impl Graph {
    /// Validates node order, shapes, and the weights, RoPE tables and states that nodes reference.
    ///
    /// # Errors
    /// `Error::Internal` with the node and the mismatch.
    pub fn validate(&self) -> Result<()> {
        let mut made = vec![false; self.values.len()];
        for node in &self.nodes {
            let name = &self.value(node.output).name;
            let fault =
                |what: String| Error::Internal(format!("graph {}: {name}: {what}", self.name));
            for input in &node.inputs {
                if !made[self.root(*input).0.0] {
                    return Err(fault(format!(
                        "reads {} before it is computed",
                        self.value(*input).name
                    )));
                }
            }
            self.check_node(node).map_err(fault)?;
            made[node.output.0] = true;
        }
        Ok(())
    }

    /// Validates one node.
    fn check_node(&self, node: &Node) -> CheckResult {
        if let Some(id) = node
            .op
            .weights()
            .into_iter()
            .find(|id| id.0 >= self.weights.len())
        {
            return Err(format!(
                "references weight {}, but the graph has {}",
                id.0,
                self.weights.len()
            ));
        }
        if let Some(id) = node.op.state().filter(|id| id.0 >= self.states.len()) {
            return Err(format!(
                "references state {}, but the graph has {}",
                id.0,
                self.states.len()
            ));
        }
        let wanted = match &node.op {
            Op::Embed { .. } | Op::Input(_) => 0,
            Op::Linear(l) => 1 + usize::from(l.residual),
            // A layer that shares another layer's KV cache has q only.
            Op::Attention(a) => {
                if a.state.is_some() && node.inputs.len() == 1 {
                    1
                } else {
                    3
                }
            }
            Op::ExpertDown(e) => 2 + usize::from(e.residual),
            Op::ConcatHeads { parts, .. } => parts.len(),
            Op::Add | Op::Mul | Op::Gated(_) | Op::ExpertUp(_) => 2,
            Op::Norm(_)
            | Op::Unary(_)
            | Op::Scale(_)
            | Op::LastRow
            | Op::Gather { .. }
            | Op::Pool(_) => 1,
            Op::TopKRouter(_) | Op::EmbeddingBag { .. } | Op::AddSoftTokens { .. } => 1,
            Op::NormPerGroup(..) | Op::MulVector(_) | Op::Clip(_) | Op::QuantizeActivations(_) => 1,
            Op::NormResidual(_) => node.inputs.len().clamp(2, 3),
            Op::Concat => node.inputs.len().max(1),
            Op::Im2Col(_) | Op::ConvTranspose1d(_) | Op::Snake { .. } | Op::GroupNorm { .. } => 1,
            Op::Asinh { .. } | Op::AddPositionEmbedding { .. } | Op::PadHeads { .. } => 1,
            Op::ShortConv(_) if node.inputs.len() == 1 => 1,
            Op::ShortConv(_) => 3,
            Op::Recurrent(r) if matches!(r.rule, RecurrenceRule::Delta { .. }) => 4,
            Op::Recurrent(_) => 2,
            Op::GatedNorm(_) => 2,
            Op::AltUp(a) => a.input_count(node.inputs.len()),
        };
        if node.inputs.len() != wanted {
            return Err(format!(
                "has {} inputs, expected {wanted}",
                node.inputs.len()
            ));
        }
        let cols = |i: usize| node.inputs.get(i).map_or(0, |v| self.value(*v).cols);
        let out = self.value(node.output).cols;
        let rows = |i: usize| node.inputs.get(i).map(|v| self.value(*v).rows);
        let fits = match &node.op {
            Op::ShortConv(c) => {
                self.check_vector(c.weight, out * c.kernel_size)?;
                c.bias.map_or(Ok(()), |bias| self.check_vector(bias, out))?;
                let kept = StateSpec::Conv {
                    channels: out,
                    kernel_size: c.kernel_size,
                };
                let gates = (1..node.inputs.len()).all(|i| cols(i) == out && rows(i) == rows(0));
                cols(0) == out && gates && self.states[c.state.0] == kept
            }
            Op::Recurrent(r) => self.check_recurrent(r, &node.inputs, out)?,
            Op::GatedNorm(n) => {
                self.check_vector(n.gain, out)?;
                let runs = n.groups > 0 && out.is_multiple_of(n.groups);
                cols(0) == out && cols(1) == out && rows(0) == rows(1) && runs
            }
            Op::AltUp(a) => {
                let all: Vec<usize> = (0..node.inputs.len()).map(cols).collect();
                let (fits, numbers) = a.fits(&all, out);
                a.weights()
                    .into_iter()
                    .flatten()
                    .try_for_each(|id| self.check_vector(id, numbers))?;
                fits && (1..all.len()).all(|i| rows(i) == rows(0))
            }
            Op::Linear(l) => {
                self.check_linear(l, cols(0), out)?;
                !l.residual || (cols(1) == out && rows(1) == rows(0))
            }
            Op::Attention(a) => {
                let alone = node.inputs.len() == 1;
                self.check_attention(a, alone)?;
                let own = alone || (cols(1) == a.kv_heads * a.head_dim && cols(2) == cols(1));
                cols(0) == a.heads * a.head_dim && own
            }
            Op::Add | Op::Mul => cols(0) == cols(1) && cols(0) == out && rows(0) == rows(1),
            // A single column broadcasts.
            Op::Gated(_) => [1, out].contains(&cols(0)) && cols(1) == out && rows(0) == rows(1),
            Op::ConcatHeads { head_dim, parts } => {
                let heads = out / (*head_dim).max(1);
                let last = |p: &HeadSlice| p.first + heads.saturating_sub(1) * p.step + p.cols;
                let inside = parts.iter().enumerate().all(|(i, p)| last(p) <= cols(i));
                let whole = parts.iter().map(|p| p.cols).sum::<usize>() <= *head_dim;
                inside && whole && heads * head_dim == out && matches!(parts.len(), 1 | 2)
            }
            Op::TopKRouter(r) => {
                r.gain
                    .map_or(Ok(()), |gain| self.check_vector(gain, r.experts))?;
                cols(0) == r.experts && out == 2 * r.top_k
            }
            Op::ExpertUp(e) => {
                let w = self.weight(e.weight);
                let fits = w.cols == cols(0) && w.rows() == e.count * e.rows();
                fits && cols(1) == 2 * e.top_k && out == e.top_k * e.span()
            }
            Op::ExpertDown(e) => {
                let w = self.weight(e.weight);
                let fits = w.cols == e.inner && w.rows() == e.count * out;
                fits && cols(1) == 2 * e.top_k && cols(0) == e.top_k * experts::span(e.inner)
            }
            Op::Embed { table, soft, .. } => {
                self.check_kind(*table, &[WeightKind::Table, WeightKind::Matrix])?;
                let table = self.weight(*table);
                let past = match soft {
                    Some(SoftTokens::Rows(id)) => {
                        self.inputs.get(id.0).is_some_and(|input| input.cols >= out)
                    }
                    Some(SoftTokens::Row(number)) => (*number as usize) < table.rows(),
                    None => true,
                };
                table.cols == out && past
            }
            Op::Input(id) => self.inputs.get(id.0).is_some_and(|input| input.cols == out),
            Op::EmbeddingBag { table, taps } => {
                self.check_kind(*table, &[WeightKind::Table])?;
                let wanted = if *taps == 0 {
                    self.weight(*table).rows()
                } else {
                    2 * taps
                };
                self.weight(*table).cols == out && wanted == cols(0)
            }
            Op::AddSoftTokens {
                rows: from, column, ..
            } => {
                cols(0) == out
                    && self
                        .inputs
                        .get(from.0)
                        .is_some_and(|input| column + out <= input.cols)
            }
            Op::Concat => {
                let all: usize = node.inputs.iter().map(|v| self.value(*v).cols).sum();
                all == out
                    && node
                        .inputs
                        .iter()
                        .all(|v| Some(self.value(*v).rows) == rows(0))
            }
            Op::Norm(n) => {
                self.check_norm(n, out)?;
                cols(0) == out
            }
            Op::NormResidual(n) => {
                self.check_norm(&n.norm, out)?;
                n.scale_weight
                    .map_or(Ok(()), |by| self.check_vector(by, 1))?;
                (0..node.inputs.len()).all(|i| cols(i) == out && rows(i) == rows(0))
            }
            Op::NormPerGroup(n, group) => {
                self.check_norm(n, *group)?;
                cols(0) == out && *group > 0 && out.is_multiple_of(*group)
            }
            Op::QuantizeActivations(n) => {
                n.as_ref().map_or(Ok(()), |n| self.check_norm(n, out))?;
                cols(0) == out
            }
            Op::MulVector(by) => {
                let len = self.weight(*by).rows();
                self.check_vector(*by, if len == 1 { 1 } else { out })?;
                cols(0) == out
            }
            Op::Clip(limits) => {
                self.check_vector(*limits, 2)?;
                cols(0) == out
            }
            Op::Gather { order } => {
                self.check_kind(*order, &[WeightKind::Order])?;
                cols(0) == out
            }
            Op::Im2Col(w) => cols(0) * w.kernel_size == out && w.kernel_size > 0 && w.stride > 0,
            Op::ConvTranspose1d(u) => {
                let own = out / u.groups.max(1);
                self.check_vector(u.weight, cols(0) * own * u.kernel_size)?;
                u.bias.map_or(Ok(()), |bias| self.check_vector(bias, out))?;
                u.groups > 0
                    && u.rate > 0
                    && out.is_multiple_of(u.groups)
                    && cols(0).is_multiple_of(u.groups)
            }
            Op::Snake { alpha } => {
                self.check_kind(*alpha, &[WeightKind::Vector])?;
                cols(0) == out && self.weight(*alpha).rows() <= out
            }
            Op::GroupNorm {
                groups, gain, bias, ..
            } => {
                [*gain, *bias]
                    .into_iter()
                    .try_for_each(|id| self.check_vector(id, out))?;
                cols(0) == out && *groups > 0 && out.is_multiple_of(*groups)
            }
            Op::Asinh { k } => {
                self.check_vector(*k, 1)?;
                cols(0) == out
            }
            Op::AddPositionEmbedding { table } => {
                self.check_kind(*table, &[WeightKind::Vector])?;
                cols(0) == out && self.weight(*table).rows().is_multiple_of(out)
            }
            Op::PadHeads { count } => {
                *count > 0 && cols(0).is_multiple_of(*count) && out.is_multiple_of(*count)
            }
            Op::Unary(_) | Op::Scale(_) | Op::LastRow | Op::Pool(_) => cols(0) == out,
        };
        if fits {
            return Ok(());
        }
        Err(format!(
            "input columns ({}, {}) do not match {out} output columns",
            cols(0),
            cols(1)
        ))
    }

    fn check_recurrent(
        &self,
        r: &Recurrent,
        inputs: &[ValueId],
        out: usize,
    ) -> std::result::Result<bool, String> {
        let delta = matches!(r.rule, RecurrenceRule::Delta { .. });
        self.check_vector(
            r.gains,
            2 * r.heads + if delta { r.value_dim } else { r.heads },
        )?;
        if r.key_heads == 0 || !r.heads.is_multiple_of(r.key_heads) {
            return Err(format!(
                "{} heads are not a multiple of {} key heads",
                r.heads, r.key_heads
            ));
        }
        let cols = |i: usize| inputs.get(i).map_or(0, |v| self.value(*v).cols);
        let [q, k, v] = r.columns;
        let given = q.max(k) + r.key_heads * r.key_dim <= cols(0)
            && v + out <= cols(0)
            && cols(1) == r.heads;
        let gates = !delta || (cols(2) == r.heads && cols(3) == out);
        let kept = StateSpec::Matrix {
            heads: r.heads,
            rows: r.key_dim,
            cols: r.value_dim,
        };
        Ok(out == r.heads * r.value_dim && given && gates && self.states[r.state.0] == kept)
    }

    fn check_linear(&self, l: &Linear, cols: usize, out: usize) -> CheckResult {
        self.check_kind(
            l.weight,
            &[WeightKind::Matrix, WeightKind::Table, WeightKind::Router],
        )?;
        let w = self.weight(l.weight);
        let rows = if l.gated { 2 * out } else { out };
        let part = !l.gated && l.bias.is_none() && l.row0 + rows <= w.rows();
        if w.cols != cols || !((l.row0 == 0 && w.rows() == rows) || part) {
            let n = w.rows();
            let k = w.cols;

            return Err(format!(
                "weight of {n} × {k} from row {} does not map {cols} columns to {out}",
                l.row0
            ));
        }
        if let Some(norm) = &l.norm {
            self.check_norm(norm, cols)?;
        }
        l.bias
            .map_or(Ok(()), |bias| self.check_vector(bias, w.rows()))
    }

    fn check_norm(&self, norm: &Norm, cols: usize) -> CheckResult {
        [norm.gain, norm.bias]
            .into_iter()
            .flatten()
            .try_for_each(|id| self.check_vector(id, cols))
    }

    /// Validates attention. `alone`: q only, without keys and values.
    fn check_attention(&self, a: &Attention, alone: bool) -> CheckResult {
        let vectors = [
            (a.sinks, a.heads),
            (a.relative, 32 * a.heads),
            (
                a.head_norm.as_ref().map(|norm| norm.gains),
                if alone { a.head_dim } else { 2 * a.head_dim },
            ),
        ];
        for (id, len) in vectors {
            id.map_or(Ok(()), |id| self.check_vector(id, len))?;
        }
        if a.kv_heads == 0 || !a.heads.is_multiple_of(a.kv_heads) {
            return Err(format!(
                "{} heads are not a multiple of {} key heads",
                a.heads, a.kv_heads
            ));
        }
        if let Some(rope) = a.rope
            && self
                .ropes
                .get(rope)
                .is_none_or(|spec| spec.dim > a.head_dim)
        {
            return Err(format!(
                "RoPE table {rope} is missing or wider than a head of {}",
                a.head_dim
            ));
        }
        let Some(id) = a.state else { return Ok(()) };
        let window = a.mask.causal().map_or(0, |(window, _)| window);
        match self.states[id.0] {
            StateSpec::Kv {
                kv_heads, head_dim, ..
            } if (kv_heads, head_dim) != (a.kv_heads, a.head_dim) => Err(format!(
                "state {} stores {kv_heads} heads of {head_dim}, unlike the attention",
                id.0
            )),
            StateSpec::Kv { window: kept, .. } if kept > 0 && (window == 0 || window > kept) => {
                Err(format!(
                    "state {} stores {kept} positions, {window} are needed (0 for all)",
                    id.0
                ))
            }
            StateSpec::Kv { .. } => Ok(()),
            StateSpec::Conv { .. } | StateSpec::Matrix { .. } => {
                Err(format!("state {} is not a KV cache", id.0))
            }
        }
    }

    fn check_kind(&self, id: WeightId, kinds: &[WeightKind]) -> CheckResult {
        let weight = self.weight(id);
        let named = || {
            weight
                .parts
                .first()
                .map_or("a weight without parts", |part| part.0.as_str())
        };
        if kinds.contains(&weight.kind) && !weight.parts.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} is a {:?}, expected one of {kinds:?}",
            named(),
            weight.kind
        ))
    }

    fn check_vector(&self, id: WeightId, len: usize) -> CheckResult {
        self.check_kind(id, &[WeightKind::Vector])?;
        let weight = self.weight(id);
        let found = weight.rows() * weight.cols;
        if found == len {
            Ok(())
        } else {
            Err(format!(
                "{} has {found} elements, expected {len}",
                weight.parts[0].0
            ))
        }
    }
}
