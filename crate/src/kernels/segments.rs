//! Attention of packed texts without a cache: heads normed and rotated by each row's position, then softmax over the rows of
//! the row's own text, by the kernels that attention of a prompt has. It knows neither layers nor where buffers come from.

use super::attention::{HeadNorm, Kv, Rope, many, with_heads};
use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::Caps;
use crate::device::registry::{Kernel, Variant};

/// One attention layer over packed texts.
#[derive(Debug, Clone)]
pub struct Segments<B> {
    /// For dumps and profiles.
    pub label: String,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Columns of a head, a multiple of 4 up to 512.
    pub head_dim: u32,
    /// Multiplies the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// The most rows that a key may come before the query.
    pub before: u32,
    /// The most rows that it may come after it.
    pub after: u32,
    /// `[32][heads]`, added to the scores by distance.
    pub relative: Option<B>,
    /// Norm of the heads of q and k.
    pub head_norm: Option<HeadNorm<B>>,
    /// Rotation.
    pub rope: Option<Rope<B>>,
    /// First and end row of each row's text.
    pub segments: B,
    /// Where the step stands.
    pub state: B,
}

impl<B: Clone> Segments<B> {
    /// Whether q and k have to be prepared.
    pub fn prepares(&self) -> bool {
        self.rope.is_some() || self.head_norm.is_some()
    }

    /// Elements of a prepared row: all queries, then all keys.
    pub fn prepared_cols(&self) -> u32 {
        (self.heads + self.kv_heads) * self.head_dim
    }

    /// Norms and rotates q and k into `out`.
    pub fn prepare(&self, q: &View<B>, k: &View<B>, positions: B, out: B) -> Launch<B> {
        let grid = GridSpec::Tiled { x: self.heads + self.kv_heads, per: 1, z: 1 };
        let launch = Launch::new(format!("{} rope", self.label), Variant::new(Kernel::RopeRows), grid)
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

    /// The views of q and k in what [`Self::prepare`] wrote.
    pub fn prepared(&self, buffer: &B) -> (View<B>, View<B>) {
        let view = |offset| View { buffer: buffer.clone(), offset, stride: self.prepared_cols() };
        (view(0), view(self.heads * self.head_dim))
    }

    /// The attention itself. `exact`: factors keep f32's precision, so that no units of halves are used.
    pub fn attend(&self, caps: &Caps, exact: bool, q: &View<B>, k: &View<B>, v: &View<B>, out: &View<B>) -> Launch<B> {
        let (variant, per) = many(caps, self.head_dim, exact, false);
        let variant = Kv::F32
            .flags(variant)
            .flag("VIEWS")
            .flag_if("SOFTCAP", self.softcap > 0.0)
            .flag_if("BIAS", self.relative.is_some());
        Launch::new(self.label.clone(), variant, GridSpec::Tiled { x: 1, per, z: self.heads })
            .bind("q", q.buffer.clone())
            .bind("k_cache", k.buffer.clone())
            .bind("v_cache", v.buffer.clone())
            .bind("out", out.buffer.clone())
            .bind("state", self.state.clone())
            .bind("segments", self.segments.clone())
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
            .set("before", self.before)
            .set("after", self.after)
            .set_f32("scale", self.scale)
            .set_f32("softcap", self.softcap)
    }
}
