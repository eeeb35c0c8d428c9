//! Linear recurrences with decay (gated delta rule, Mamba-2), row by row or in chunks, and the
//! gated norm of their output. Sources: arXiv 2412.06464, arXiv 2405.21060.

use super::attention::Kv;
use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Rows per chunk.
const CHUNK: u32 = 32;
/// Value columns per workgroup of the scan.
const BLOCK: u32 = 16;
/// Maximum key columns of a head per scan launch.
const SCAN_KEYS: u32 = 128;

/// State update of a row; the decay of a head is `exp(rate * dt)`.
#[derive(Debug, Clone)]
pub enum RuleBuffers<B> {
    /// `memory += key (beta (value - keyᵀ memory))ᵀ` with unit-length query and key, then the gated
    /// norm of the output.
    Delta {
        /// `[row][heads]`: beta before its sigmoid.
        b: View<B>,
        /// `[row][heads * value_dim]`: the gate of the norm.
        z: View<B>,
        /// Added to the mean square.
        eps: f32,
    },
    /// `memory += key (dt value)ᵀ`; the output adds a scaled value (skip connection).
    Ssm {
        /// Minimum and maximum dt.
        limits: [f32; 2],
        /// Multiplies dt before its bias.
        dt_scale: f32,
    },
}

/// One recurrence of many heads.
#[derive(Debug, Clone)]
pub struct RecurrentKernel<B> {
    /// Label for plan dumps and profiles.
    pub label: String,
    /// Value heads, each with its own memory.
    pub heads: u32,
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Consecutive heads that share a query and a key; 1 if they are interleaved.
    pub heads_per_key: u32,
    /// Columns of a query and a key, a multiple of 4.
    pub key_dim: u32,
    /// Value columns per head, a multiple of 4.
    pub value_dim: u32,
    /// First input columns of queries, keys and values.
    pub columns: [u32; 3],
    /// Rows of queries, keys and values.
    pub x: View<B>,
    /// `[row][heads]`: dt before its bias and softplus.
    pub a: View<B>,
    /// Update rule.
    pub rule: RuleBuffers<B>,
    /// Per head log(-rate), then per head the bias of dt, then either the norm gain `[value_dim]`
    /// or the skip scale per head.
    pub gains: B,
    /// Whether `gains` holds the rates rather than their logs.
    pub negative_rates: bool,
    /// Element type of the memory, f32 or packed.
    pub kv: Kv,
    /// `[heads][key_dim][value_dim]`. Read as zeros at position 0.
    pub memory: B,
    /// Step state.
    pub state: B,
    /// Whether each row belongs to another sequence, with a memory of its own.
    pub batch: bool,
}

impl<B: Clone> RecurrentKernel<B> {
    fn delta(&self) -> bool {
        matches!(self.rule, RuleBuffers::Delta { .. })
    }

    /// Key columns per thread of the step kernel, so that 256 threads hold a head.
    fn keys_per_thread(&self) -> u32 {
        self.key_dim
            .div_ceil((1024 / self.value_dim).max(1))
            .next_power_of_two()
    }

    /// Words per row and head that the scan reads.
    fn words_per_row(&self) -> u32 {
        if self.delta() {
            self.key_dim + self.value_dim + CHUNK + 4
        } else {
            CHUNK + 4
        }
    }

    /// Bytes of the scratch between the launches of [`Self::many`].
    pub fn scratch_bytes(&self, rows: u32) -> u64 {
        u64::from(rows.next_multiple_of(CHUNK))
            * u64::from(self.heads)
            * u64::from(self.words_per_row())
            * 4
    }

    /// Returns the decode launch: rows in sequence, with the gated norm if the rule has one.
    pub fn decode(&self, out: &View<B>) -> Launch<B> {
        let variant = self.step_variant().flag_if("BATCH", self.batch);
        let grid = match self.batch {
            true => GridSpec::Tiled {
                x: self.heads,
                per: 1,
                z: 1,
            },
            false => GridSpec::Fixed { units: self.heads },
        };
        let launch = self.launch("", variant, grid);
        let z = if let RuleBuffers::Delta { z, .. } = &self.rule {
            Some(z)
        } else {
            None
        };
        let eps = if let RuleBuffers::Delta { eps, .. } = &self.rule {
            *eps
        } else {
            0.0
        };
        self.bind_rates(launch)
            .bind("memory", self.memory.clone())
            .bind("out", out.buffer.clone())
            .bind_opt("z", z.map(|z| z.buffer.clone()))
            .set("z_offset", z.map_or(0, |z| z.offset))
            .set("z_stride", z.map_or(0, |z| z.stride))
            .set("out_offset", out.offset)
            .set("out_stride", out.stride)
            .set_f32("eps", eps)
    }

    /// Returns the launch of a verification, which leaves the memory as it was, and the one that
    /// updates the memory with the accepted rows.
    pub fn verify(&self, out: &View<B>) -> [Launch<B>; 2] {
        let mut verify = self.decode(out);
        verify.variant = verify.variant.flag("VERIFY");
        let grid = GridSpec::Fixed { units: self.heads };
        let update = self.launch(" memory", self.step_variant().flag("ACCEPTED"), grid);
        let update = self.bind_rates(update).bind("memory", self.memory.clone());
        [verify, update]
    }

    fn step_variant(&self) -> Variant {
        memory_flags(Variant::new(Kernel::RecurrentStep), self.kv)
            .set("EACH", self.keys_per_thread())
    }

    /// Returns the prefill launches: interactions within each chunk, the scan over chunks, then the
    /// norm of the delta rule.
    pub fn prefill(&self, parts: &B, out: &View<B>) -> Vec<Launch<B>> {
        let grid = GridSpec::Tiled {
            x: self.heads,
            per: CHUNK,
            z: 1,
        };
        let prepare = self
            .launch(" chunks", Variant::new(Kernel::RecurrentPrepare), grid)
            .bind("parts", parts.clone());
        let units = self.heads * self.value_dim.div_ceil(BLOCK);
        let variant = memory_flags(Variant::new(Kernel::RecurrentScan), self.kv);

        let mut launches = vec![self.bind_rates(prepare)];
        launches.extend(
            (0..self.key_dim)
                .step_by(SCAN_KEYS as usize)
                .map(|first: u32| {
                    self.launch("", variant.clone(), GridSpec::Fixed { units })
                        .bind_opt("gains", (!self.delta()).then(|| self.gains.clone()))
                        .bind("parts", parts.clone())
                        .bind("memory", self.memory.clone())
                        .bind("out", out.buffer.clone())
                        .set("out_offset", out.offset)
                        .set("out_stride", out.stride)
                        .set("first_key", first)
                        .set("keys", SCAN_KEYS.min(self.key_dim - first))
                }),
        );
        if let RuleBuffers::Delta { z, eps, .. } = &self.rule {
            let norm = GatedNormKernel {
                gain: self.gains.clone(),
                gain_offset: 2 * self.heads,
                gain_step: 0,
                gate_first: false,
                eps: *eps,
            };
            launches.push(norm.launch(
                &format!("{} norm", self.label),
                out,
                z,
                None,
                self.heads,
                self.value_dim,
            ));
        }
        launches
    }

    fn launch(&self, part: &str, variant: Variant, grid: GridSpec) -> Launch<B> {
        let variant = variant.flag_if("DELTA", self.delta());
        let [q, k, v] = self.columns.map(|c| c + self.x.offset);
        Launch::new(format!("{}{part}", self.label), variant, grid)
            .bind("x", self.x.buffer.clone())
            .bind("state", self.state.clone())
            .set("heads", self.heads)
            .set("key_heads", self.key_heads)
            .set("per_key", self.heads_per_key)
            .set("dk", self.key_dim)
            .set("dv", self.value_dim)
            .set("q_offset", q)
            .set("k_offset", k)
            .set("v_offset", v)
            .set("x_stride", self.x.stride)
    }

    /// Binds the inputs of the decay.
    fn bind_rates(&self, launch: Launch<B>) -> Launch<B> {
        let (b, limits, dt_scale) = match &self.rule {
            RuleBuffers::Delta { b, .. } => (Some(b), [0.0, 0.0], 1.0),
            RuleBuffers::Ssm { limits, dt_scale } => (None, *limits, *dt_scale),
        };
        launch
            .bind("a", self.a.buffer.clone())
            .bind("gains", self.gains.clone())
            .bind_opt("b", b.map(|b| b.buffer.clone()))
            .set("a_offset", self.a.offset)
            .set("a_stride", self.a.stride)
            .set("b_offset", b.map_or(0, |b| b.offset))
            .set("b_stride", b.map_or(0, |b| b.stride))
            .set("raw", u32::from(self.negative_rates))
            .set_f32("dt_scale", dt_scale)
            .set_f32("dt_low", limits[0])
            .set_f32("dt_high", limits[1].min(f32::MAX))
    }
}

fn memory_flags(variant: Variant, kv: Kv) -> Variant {
    variant.flag(if kv == Kv::F32 { "KV_F32" } else { "KV_PACKED" })
}

/// Gated RMSNorm of column groups.
#[derive(Debug, Clone)]
pub struct GatedNormKernel<B> {
    /// The gain.
    pub gain: B,
    /// First element of the gain.
    pub gain_offset: u32,
    /// Gain stride between groups; 0 if all groups share it.
    pub gain_step: u32,
    /// Whether the gate is applied before the norm.
    pub gate_first: bool,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B: Clone> GatedNormKernel<B> {
    /// Norms `runs` groups of `cols` columns of `x`, in place without `out`.
    pub fn launch(
        &self,
        label: &str,
        x: &View<B>,
        z: &View<B>,
        out: Option<&View<B>>,
        runs: u32,
        cols: u32,
    ) -> Launch<B> {
        let variant = Variant::new(Kernel::GatedNorm)
            .flag_if("GATE_FIRST", self.gate_first)
            .flag_if("APART", out.is_some())
            .set("WG", if cols > 256 { 256 } else { 64 });
        Launch::new(
            label,
            variant,
            GridSpec::Tiled {
                x: runs,
                per: 1,
                z: 1,
            },
        )
        .bind("x", x.buffer.clone())
        .bind("z", z.buffer.clone())
        .bind("gain", self.gain.clone())
        .bind_opt("out", out.map(|o| o.buffer.clone()))
        .set("cols", cols)
        .set("x_offset", x.offset)
        .set("x_stride", x.stride)
        .set("z_offset", z.offset)
        .set("z_stride", z.stride)
        .set("out_offset", out.map_or(0, |o| o.offset))
        .set("out_stride", out.map_or(0, |o| o.stride))
        .set("gain_offset", self.gain_offset)
        .set("gain_step", self.gain_step)
        .set_f32("eps", self.eps)
    }
}
