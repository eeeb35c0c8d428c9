//! Lowers attention: over a KV cache, to another sequence, or within packed sequences. Selects the
//! kernel by mask and row count.

use super::{Lower, Lowering, NodeViews, PlanOptions, Slot, unsupported};
use crate::format::layout::{Float, WeightLayout};
use crate::ir::{Attention, Mask, StateId, WeightKind};
use crate::kernels::attention::{
    AttentionKernel, HeadNormParams, Kv, PAGE_POSITIONS, PageTable, Rope, uses_f16_matrices,
};
use crate::kernels::kv_splits::DecodeTiling;
use crate::kernels::packed_attention::PackedAttention;
use crate::{Error, Result};

impl Lower for Attention {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        const ALL: (usize, usize) = (usize::MAX, usize::MAX);
        let few = lowering.options.rows.decodes();
        match (self.mask, self.state) {
            (Mask::Causal { window }, Some(id)) => {
                lowering.cached_attention(self, (window, false, id), node)
            }
            (Mask::BidirectionalImages { window }, Some(id)) => {
                lowering.cached_attention(self, (window, true, id), node)
            }
            (Mask::Causal { .. } | Mask::BidirectionalImages { .. }, None) => Err(Error::Internal(
                format!("{}: causal attention without a KV cache", node.name),
            )),
            (Mask::Packed { before, after }, _) => {
                lowering.packed_attention(self, (before, after), Slot::SequenceSpans, node)
            }
            (Mask::PackedWindow, _) => {
                lowering.packed_attention(self, ALL, Slot::WindowSpans, node)
            }
            (Mask::CrossAttention, _) if few => lowering.cross_attention(self, node),
            (Mask::CrossAttention, _) => {
                lowering.packed_attention(self, ALL, Slot::CrossSpans, node)
            }
        }
    }

    /// Packed attention takes f16 unless the whole model is f32, whose matmuls do not use subgroup
    /// matrices.
    fn can_write_f16(&self, options: &PlanOptions<'_>) -> bool {
        let cached = self.mask.causal().is_some();
        let exact = cached && options.kv == Kv::F32;
        let half = cached && options.kv == Kv::F16;
        uses_f16_matrices(options.caps, self.head_dim as u32, exact, half)
    }
}

impl Lowering<'_> {
    /// Lowers attention over a KV cache.
    fn cached_attention(
        &mut self,
        a: &Attention,
        (window, images, id): (usize, bool, StateId),
        node: &NodeViews<'_>,
    ) -> Result<()> {
        let name = node.name.as_str();
        if a.relative.is_some() {
            return Err(unsupported(
                name,
                "relative position bias, except in packed attention",
            ));
        }
        if images && a.sinks.is_some() {
            return Err(unsupported(
                name,
                "attention sinks with bidirectional images",
            ));
        }
        let decode = DecodeTiling::of(
            self.options.caps,
            a.heads as u32,
            a.kv_heads as u32,
            a.head_dim as u32,
        );
        let kept = self.state(name, id)?;
        let many = !self.options.rows.decodes();
        let ring = if kept.ring {
            Some(kept.positions as u32)
        } else {
            // The layers of a prompt share kernels. Where no position exceeds it, a ring changes nothing.
            let some_wrap = self.options.states.iter().any(|state| state.ring);
            (many && some_wrap).then_some(u32::MAX)
        };
        let kernel = AttentionKernel {
            label: name.to_string(),
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            scale: a.scale,
            window: window as u32,
            softcap: a.softcap,
            sinks: a.sinks.map(Slot::Vector),
            head_norm: head_norm(a),
            rope: self.rope(a),
            kv: self.options.kv,
            capacity: self.options.capacity as u32,
            ring,
            k_cache: Slot::State(id, 0),
            v_cache: Slot::State(id, 1),
            state: Slot::CURSOR,
            ends: images.then_some(Slot::VisibleEnds),
            decode,
            batch: self.options.rows.is_batch().then_some(PageTable {
                pages: Slot::Pages,
                pages_per_slot: kept.positions.div_ceil(PAGE_POSITIONS) as u32,
                rows: self.options.rows.tokens() as u32,
            }),
        };
        let q = node.x();
        // Without k and v, the layer reads another layer's cache.
        let kv = match &node.inputs[..] {
            [_, k, v] => Some((k, v)),
            _ => None,
        };
        let out = &node.out;
        let rows = self.options.rows.tokens() as u64;
        if !many {
            self.reserve_partials(kernel.scratch(rows as u32));
        }
        // A row of its own sequence prepares its own keys, so head norm and RoPE are fused into attention.
        let batched = kernel.batch.is_some();
        let alone = !many && (rows == 1 || batched) && self.options.fuse_heads;
        if let Some((k, v)) = kv.filter(|(k, v)| alone && kernel.can_fuse(q, k, v)) {
            self.launches
                .extend(kernel.decode(q, k, v, Slot::AttentionPartials, out));
            self.pending_splits = kernel
                .kv_splits()
                .filter(|_| !batched)
                .map(|splits| (node.node.output, self.launches.len(), splits));
        } else {
            self.roped_queries = self
                .roped_queries
                .max(rows * (a.heads * a.head_dim * 4) as u64);
            self.launches.extend(match kv {
                Some((k, v)) => kernel.rope_kv(q, k, v, &Slot::RopedQueries),
                None => vec![kernel.rope_queries(q, &Slot::RopedQueries)],
            });
            self.launches.extend(if many {
                vec![kernel.prefill(self.options.caps, Slot::RopedQueries, out)]
            } else {
                kernel.decode_rows(Slot::RopedQueries, Slot::AttentionPartials, out)
            });
        }
        Ok(())
    }

    /// Lowers cross attention of few rows, with KV splits.
    fn cross_attention(&mut self, a: &Attention, node: &NodeViews<'_>) -> Result<()> {
        let name = node.name.as_str();
        if a.sinks.is_some()
            || a.relative.is_some()
            || a.head_norm.is_some()
            || a.rope.is_some()
            || a.state.is_some()
        {
            return Err(unsupported(
                name,
                "norm, RoPE, sinks, bias or a KV cache in cross attention",
            ));
        }
        let [q, k, v] = &node.inputs[..] else {
            return Err(unsupported(name, "cross attention without keys and values"));
        };
        let key_rows = self.graph.value(node.node.inputs[1]).rows;
        let kernel = AttentionKernel {
            label: name.to_string(),
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            scale: a.scale,
            window: 0,
            softcap: a.softcap,
            sinks: None,
            ends: None,
            head_norm: None,
            rope: None,
            kv: Kv::F32,
            capacity: self.options.rows.of(key_rows) as u32,
            ring: None,
            k_cache: k.buffer,
            v_cache: v.buffer,
            state: Slot::CURSOR,
            decode: DecodeTiling::of(
                self.options.caps,
                a.heads as u32,
                a.kv_heads as u32,
                a.head_dim as u32,
            ),
            batch: None,
        };
        self.reserve_partials(kernel.scratch(self.options.rows.tokens() as u32));
        self.launches.extend(kernel.cross_attend(
            q,
            [k, v],
            Slot::CrossSpans,
            Slot::AttentionPartials,
            &node.out,
        ));
        Ok(())
    }

    fn rope(&self, a: &Attention) -> Option<Rope<Slot>> {
        let index = a.rope?;
        let spec = &self.graph.ropes[index];
        Some(Rope {
            table: Slot::Rope(index),
            dim: spec.dim as u32,
            interleaved: spec.interleaved,
        })
    }

    /// Whether all matrices are f32; then attention also computes in f32.
    fn is_all_f32(&self) -> bool {
        let matrices = self
            .options
            .weights
            .values()
            .filter(|w| w.kind == WeightKind::Matrix);
        let mut exact = matrices.map(|w| w.layout == WeightLayout::Dense(Float::F32));
        exact
            .next()
            .is_some_and(|first| first && exact.all(|f32| f32))
    }

    /// Lowers attention within packed sequences.
    fn packed_attention(
        &mut self,
        a: &Attention,
        (before, after): (usize, usize),
        spans: Slot,
        node: &NodeViews<'_>,
    ) -> Result<()> {
        let name = node.name.as_str();
        if a.sinks.is_some() {
            return Err(unsupported(name, "attention sinks in packed attention"));
        }
        if a.head_norm.as_ref().is_some_and(|n| n.values) {
            return Err(unsupported(name, "a norm of values without a KV cache"));
        }
        if a.state.is_some() {
            return Err(unsupported(name, "a KV cache in packed attention"));
        }
        let limit = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
        let kernel = PackedAttention {
            label: name.to_string(),
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            scale: a.scale,
            softcap: a.softcap,
            max_before: limit(before),
            max_after: limit(after),
            relative: a.relative.map(Slot::Vector),
            head_norm: head_norm(a),
            rope: self.rope(a),
            sequence_spans: spans,
            state: self.cursor(node.node.inputs[0]),
        };
        let [q, k, v] = &node.inputs[..] else {
            return Err(unsupported(
                name,
                "packed attention without keys and values",
            ));
        };
        let exact = self.is_all_f32();
        let caps = self.options.caps;
        if kernel.needs_prepare() {
            let rows = self
                .options
                .rows
                .of(self.graph.value(node.node.inputs[0]).rows) as u64;
            let bytes = rows * u64::from(kernel.prepared_cols()) * 4;
            self.roped_queries = self.roped_queries.max(bytes);
            self.launches
                .push(kernel.prepare(q, k, Slot::Positions, Slot::RopedQueries));
            let (q, k) = kernel.prepared(&Slot::RopedQueries);
            self.launches
                .push(kernel.attend(caps, exact, &q, &k, v, &node.out));
        } else {
            self.launches
                .push(kernel.attend(caps, exact, q, k, v, &node.out));
        }
        Ok(())
    }
}

fn head_norm(a: &Attention) -> Option<HeadNormParams<Slot>> {
    let h = a.head_norm.as_ref()?;
    let gains = Slot::Vector(h.gains);
    let values = h.values;

    Some(HeadNormParams {
        gains,
        offset: h.offset,
        eps: h.eps,
        after_rope: h.after_rope,
        values,
    })
}
