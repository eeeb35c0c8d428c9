//! Attention over packed sequences without a cache: head norm and RoPE by row position, then
//! softmax over the row's own sequence. Uses the prefill attention kernels.

use super::attention::{HeadNormParams, Kv, Rope, prefill_variant, with_heads};
use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::Caps;
use crate::device::registry::{Kernel, Variant};

/// One attention layer over packed sequences.
#[derive(Debug, Clone)]
pub struct PackedAttention<B> {
    /// Label for plan dumps and profiles.
    pub label: String,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Columns per head, a multiple of 4 up to 512.
    pub head_dim: u32,
    /// Multiplies the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// Maximum distance of a key before the query, in rows.
    pub max_before: u32,
    /// Maximum distance of a key after the query, in rows.
    pub max_after: u32,
    /// Relative position bias by distance, `[32][heads]`, added to the scores.
    pub relative: Option<B>,
    /// Norm of the q and k heads.
    pub head_norm: Option<HeadNormParams<B>>,
    /// RoPE.
    pub rope: Option<Rope<B>>,
    /// First and end row of each row's sequence.
    pub sequence_spans: B,
    /// Step state.
    pub state: B,
}

impl<B: Clone> PackedAttention<B> {
    /// Whether q and k need [`Self::prepare`].
    pub fn needs_prepare(&self) -> bool {
        self.rope.is_some() || self.head_norm.is_some()
    }

    /// Elements of a prepared row: all queries, then all keys.
    pub fn prepared_cols(&self) -> u32 {
        (self.heads + self.kv_heads) * self.head_dim
    }

    /// Applies head norm and RoPE to q and k into `out`.
    pub fn prepare(&self, q: &View<B>, k: &View<B>, positions: B, out: B) -> Launch<B> {
        let grid = GridSpec::Tiled {
            x: self.heads + self.kv_heads,
            per: 1,
            z: 1,
        };
        let launch = Launch::new(
            format!("{} rope", self.label),
            Variant::new(Kernel::RopeRows),
            grid,
        )
        .bind("q", q.buffer.clone())
        .bind("k", k.buffer.clone())
        .bind("out", out)
        .bind("positions", positions)
        .set("heads", self.heads)
        .set("kv_heads", self.kv_heads)
        .set("head_dim", self.head_dim)
        .set("q_offset", q.offset)
        .set("q_stride", q.stride)
        .set("k_offset", k.offset)
        .set("k_stride", k.stride);
        with_heads(launch, self.head_norm.as_ref(), self.rope.as_ref())
    }

    /// Returns the views of q and k in the output of [`Self::prepare`].
    pub fn prepared(&self, buffer: &B) -> (View<B>, View<B>) {
        let view = |offset| View {
            buffer: buffer.clone(),
            offset,
            stride: self.prepared_cols(),
        };
        (view(0), view(self.heads * self.head_dim))
    }

    /// Returns the attention launch. `exact`: factors keep f32 precision, so no f16 subgroup
    /// matrices are used.
    pub fn attend(
        &self,
        caps: &Caps,
        exact: bool,
        q: &View<B>,
        k: &View<B>,
        v: &View<B>,
        out: &View<B>,
    ) -> Launch<B> {
        let (variant, per) = prefill_variant(caps, self.head_dim, exact, false);
        let variant = Kv::F32
            .flags(variant)
            .flag("VIEWS")
            .flag_if("SOFTCAP", self.softcap > 0.0)
            .flag_if("BIAS", self.relative.is_some());
        Launch::new(
            self.label.clone(),
            variant,
            GridSpec::Tiled {
                x: 1,
                per,
                z: self.heads,
            },
        )
        .bind("q", q.buffer.clone())
        .bind("k_cache", k.buffer.clone())
        .bind("v_cache", v.buffer.clone())
        .bind("out", out.buffer.clone())
        .bind("state", self.state.clone())
        .bind("segments", self.sequence_spans.clone())
        .bind_opt("relative", self.relative.clone())
        .set("heads", self.heads)
        .set("kv_heads", self.kv_heads)
        .set("head_dim", self.head_dim)
        .set("q_offset", q.offset)
        .set("q_stride", q.stride)
        .set("k_offset", k.offset)
        .set("k_stride", k.stride)
        .set("v_offset", v.offset)
        .set("v_stride", v.stride)
        .set("out_offset", out.offset)
        .set("out_stride", out.stride)
        .set("before", self.max_before)
        .set("after", self.max_after)
        .set_f32("scale", self.scale)
        .set_f32("softcap", self.softcap)
    }
}
