//! Attention of packed sequences and its gradients, whose probabilities are recomputed.

use crate::kernel::{TrainKernel, TrainLaunch, TrainVariant};
use jerboa::device::registry::Variant;
use jerboa::kernels::fold;
use jerboa::kernels::view::View;

/// The output.
pub(crate) const OUTPUT: TrainKernel = TrainKernel("attention");
/// The gradient of the queries.
pub(crate) const QUERY: TrainKernel = TrainKernel("attention_query");
/// The gradients of keys and values.
pub(crate) const KEYS: TrainKernel = TrainKernel("attention_keys");

/// Attention over rows of q, k and v.
#[derive(Debug, Clone)]
pub struct AttentionShape<B> {
    /// Rows.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// Maximum distance of a key before its query.
    pub before: usize,
    /// Maximum distance of a key after its query.
    pub after: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// Attention sinks: one logit per head.
    pub sinks: Option<B>,
    /// First and end row of each row's sequence.
    pub spans: B,
    /// Two numbers per row and head, written by the forward and read by the gradients.
    pub stats: B,
}

/// The inputs of attention.
#[derive(Debug, Clone)]
pub struct QueryKeyValue<B> {
    /// Queries, `[rows, heads * head_dim]`.
    pub q: View<B>,
    /// Keys, `[rows, kv_heads * head_dim]`.
    pub k: View<B>,
    /// Values, `[rows, kv_heads * head_dim]`.
    pub v: View<B>,
}

impl<B: Clone> AttentionShape<B> {
    fn launch(
        &self,
        variant: TrainVariant,
        groups: usize,
        inputs: &QueryKeyValue<B>,
    ) -> TrainLaunch<B> {
        let head = self.head_dim.next_multiple_of(64) as u32;
        let limited = |distance: usize| distance.min(u32::MAX as usize);
        TrainLaunch::new(
            variant.set("HEAD", head),
            [groups as u32, self.rows as u32, 1],
        )
        .set("rows", self.rows)
        .set("heads", self.heads)
        .set("kv_heads", self.kv_heads)
        .set("head_dim", self.head_dim)
        .set("before", limited(self.before))
        .set("after", limited(self.after))
        .set_f32("scale", self.scale)
        .set_f32("softcap", self.softcap)
        .bind("spans", self.spans.clone())
        .bind("stats", self.stats.clone())
        .view(["q", "q_offset", "q_stride"], &inputs.q)
        .view(["k", "k_offset", "k_stride"], &inputs.k)
        .view(["v", "v_offset", "v_stride"], &inputs.v)
    }

    /// Returns the forward.
    pub fn forward(&self, inputs: &QueryKeyValue<B>, out: &View<B>) -> TrainLaunch<B> {
        let variant = Variant::new(OUTPUT).flag_if("SINKS", self.sinks.is_some());
        self.launch(variant, self.heads, inputs)
            .bind_opt("sinks", self.sinks.clone())
            .view(["out", "out_offset", "out_stride"], out)
    }

    /// Returns the dot products of the output and its gradient. Both gradients need them.
    pub fn dots(&self, out: &View<B>, dy: &View<B>) -> TrainLaunch<B> {
        let parts = self.rows * self.heads;
        TrainLaunch::new(
            Variant::new(TrainKernel("attention_dots")),
            fold((parts as u64).div_ceil(64)),
        )
        .set("parts", parts)
        .set("heads", self.heads)
        .set("head_dim", self.head_dim)
        .view(["out", "out_offset", "out_stride"], out)
        .view(["dy", "dy_offset", "dy_stride"], dy)
        .bind("stats", self.stats.clone())
    }

    /// Returns the gradient of the queries; adds to dq if `add`.
    pub fn queries(
        &self,
        inputs: &QueryKeyValue<B>,
        dy: &View<B>,
        dq: &View<B>,
        add: bool,
    ) -> TrainLaunch<B> {
        let variant = Variant::new(QUERY).flag_if("ADD", add);
        self.launch(variant, self.heads, inputs)
            .view(["dy", "dy_offset", "dy_stride"], dy)
            .view(["out", "out_offset", "out_stride"], dq)
    }

    /// Returns the gradients of keys and values, into two different buffers whose rows start at 0.
    pub fn keys(
        &self,
        inputs: &QueryKeyValue<B>,
        dy: &View<B>,
        dk: &View<B>,
        dv: &View<B>,
    ) -> TrainLaunch<B> {
        debug_assert_eq!((dk.offset, dv.offset), (0, 0));
        self.launch(Variant::new(KEYS), self.kv_heads, inputs)
            .view(["dy", "dy_offset", "dy_stride"], dy)
            .bind("dk", dk.buffer.clone())
            .set("dk_stride", dk.stride as usize)
            .bind("dv", dv.buffer.clone())
            .set("dv_stride", dv.stride as usize)
    }
}
