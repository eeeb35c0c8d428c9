//! Lowers attention: over a KV cache, to another sequence, or within packed sequences. Selects the kernel by mask and
//! row count.

use super::{Lowering, RowsMode, Slot, dropped};
use crate::format::layout::{Float, Layout};
use crate::ir::{self, Mask, Node, WeightKind};
use crate::kernels::attention::{Attention, HeadNorm, Kv, Rope};
use crate::kernels::runs::DecodeChoice;
use crate::kernels::segments::Segments;
use crate::{Error, Result};

impl Lowering<'_> {
    pub(super) fn attention(&mut self, name: &str, a: &ir::Attention, node: &Node) -> Result<()> {
        let (window, pictures, id) = match (a.mask, a.state) {
            (Mask::Causal { window }, Some(id)) => (window, false, id),
            (Mask::Pictures { window }, Some(id)) => (window, true, id),
            (Mask::Segment { before, after }, _) => {
                return self.segments(name, a, (before, after), Slot::Segments, node);
            }
            (Mask::Window, _) => {
                return self.segments(name, a, (usize::MAX, usize::MAX), Slot::Windows, node);
            }
            (Mask::Memory, _) if matches!(self.options.rows, RowsMode::Few(_)) => return self.look(name, a, node),
            (Mask::Memory, _) => {
                return self.segments(name, a, (usize::MAX, usize::MAX), Slot::Memory, node);
            }
            _ => return Err(Error::Internal(format!("{name}: causal attention without a KV cache"))),
        };
        if a.relative.is_some() {
            return Err(dropped(name, "relative position bias, except in packed attention"));
        }
        if pictures && a.sinks.is_some() {
            return Err(dropped(name, "attention sinks with bidirectional images"));
        }
        let decode = DecodeChoice::of(self.options.caps, a.heads as u32, a.kv_heads as u32, a.head_dim as u32);
        let kept = self.state(name, id)?;
        let kernel = Attention {
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
            ring: kept.ring.then_some(kept.positions as u32),
            k_cache: Slot::Sequence(id, 0),
            v_cache: Slot::Sequence(id, 1),
            state: Slot::CURSOR,
            ends: pictures.then_some(Slot::Ends),
            decode,
        };
        let q = self.view(node.inputs[0]);
        // Without k and v, the layer reads another layer's cache.
        let kv = (node.inputs.len() == 3).then(|| (self.view(node.inputs[1]), self.view(node.inputs[2])));
        let out = self.view(node.output);
        let rows = self.options.rows.tokens() as u64;
        let many = !matches!(self.options.rows, RowsMode::Few(_));
        if !many {
            self.scratch = self.scratch.max(kernel.scratch(rows as u32));
        }
        // A single row prepares its own keys, so head norm and RoPE are fused into attention.
        let alone = !many && rows == 1 && self.options.fuse_heads;
        if let Some((k, v)) = kv.as_ref().filter(|(k, v)| alone && kernel.fuses(&q, k, v)) {
            self.launches.extend(kernel.decode(&q, k, v, Slot::Scratch, &out));
            self.left = kernel.runs().map(|runs| (node.output, self.launches.len(), runs));
        } else {
            self.rotated = self.rotated.max(rows * (a.heads * a.head_dim * 4) as u64);
            self.launches.extend(match &kv {
                Some((k, v)) => kernel.rope_kv(&q, k, v, &Slot::Rotated),
                None => vec![kernel.rope_queries(&q, &Slot::Rotated)],
            });
            // The kernel for few rows also serves many.
            let few = !many || (self.options.caps.frugal() && kernel.is_alone() && kernel.ends.is_none());
            self.launches.extend(if few {
                kernel.few(Slot::Rotated, Slot::Scratch, &out)
            } else {
                vec![kernel.prefill(self.options.caps, Slot::Rotated, &out)]
            });
        }
        Ok(())
    }

    /// Lowers cross attention of few rows, with KV splits.
    fn look(&mut self, name: &str, a: &ir::Attention, node: &Node) -> Result<()> {
        if a.sinks.is_some() || a.relative.is_some() || a.head_norm.is_some() || a.rope.is_some() || a.state.is_some() {
            return Err(dropped(name, "norm, RoPE, sinks, bias or a KV cache in cross attention"));
        }
        let (q, k, v) = (self.view(node.inputs[0]), self.view(node.inputs[1]), self.view(node.inputs[2]));
        let kernel = Attention {
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
            capacity: self.options.rows.of(self.graph.value(node.inputs[1]).rows) as u32,
            ring: None,
            k_cache: k.buffer,
            v_cache: v.buffer,
            state: Slot::CURSOR,
            decode: DecodeChoice::of(self.options.caps, a.heads as u32, a.kv_heads as u32, a.head_dim as u32),
        };
        self.scratch = self.scratch.max(kernel.scratch(self.options.rows.tokens() as u32));
        let out = self.view(node.output);
        self.launches.extend(kernel.look(&q, [&k, &v], Slot::Memory, Slot::Scratch, &out));
        Ok(())
    }

    fn rope(&self, a: &ir::Attention) -> Option<Rope<Slot>> {
        let index = a.rope?;
        let spec = &self.graph.ropes[index];
        Some(Rope { table: Slot::Rope(index), dim: spec.dim as u32, interleaved: spec.interleaved })
    }

    /// Whether all matrices are f32; then attention also computes in f32.
    fn exact(&self) -> bool {
        let matrices = self.options.weights.values().filter(|w| w.kind == WeightKind::Matrix);
        let mut exact = matrices.map(|w| w.layout == Layout::Dense(Float::F32));
        exact.next().is_some_and(|first| first && exact.all(|f32| f32))
    }

    /// Lowers attention within packed sequences.
    fn segments(
        &mut self,
        name: &str,
        a: &ir::Attention,
        (before, after): (usize, usize),
        seen: Slot,
        node: &Node,
    ) -> Result<()> {
        if a.sinks.is_some() {
            return Err(dropped(name, "attention sinks in packed attention"));
        }
        if a.head_norm.as_ref().is_some_and(|n| n.values) {
            return Err(dropped(name, "a norm of values without a KV cache"));
        }
        if a.state.is_some() {
            return Err(dropped(name, "a KV cache in packed attention"));
        }
        let most = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
        let kernel = Segments {
            label: name.to_string(),
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            scale: a.scale,
            softcap: a.softcap,
            before: most(before),
            after: most(after),
            relative: a.relative.map(Slot::Vector),
            head_norm: head_norm(a),
            rope: self.rope(a),
            segments: seen,
            state: self.cursor(node.inputs[0]),
        };
        let (mut q, mut k, v) = (self.view(node.inputs[0]), self.view(node.inputs[1]), self.view(node.inputs[2]));
        let out = self.view(node.output);
        if kernel.prepares() {
            let rows = self.options.rows.of(self.graph.value(node.inputs[0]).rows) as u64;
            let bytes = rows * u64::from(kernel.prepared_cols()) * 4;
            self.rotated = self.rotated.max(bytes);
            self.launches.push(kernel.prepare(&q, &k, Slot::Positions, Slot::Rotated));
            (q, k) = kernel.prepared(&Slot::Rotated);
        }
        let attend = kernel.attend(self.options.caps, self.exact(), &q, &k, &v, &out);
        self.launches.push(attend);
        Ok(())
    }
}

fn head_norm(a: &ir::Attention) -> Option<HeadNorm<Slot>> {
    let h = a.head_norm.as_ref()?;
    let (gains, values) = (Slot::Vector(h.gains), h.values);
    Some(HeadNorm { gains, offset: h.offset, eps: h.eps, after_rope: h.after_rope, values })
}
