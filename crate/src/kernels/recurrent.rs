//! Linear recurrences with a decay, the gated delta rule and Mamba-2's: few rows one after another, many by chunks; and the
//! gated norm of what they give. Sources: arXiv 2412.06464, arXiv 2405.21060. It knows neither layers nor where buffers
//! come from.

use super::attention::Kv;
use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Rows of a chunk.
const CHUNK: u32 = 32;
/// Columns of values that a workgroup of the scan takes.
const BLOCK: u32 = 16;
/// The most keys of a head that a launch of the scan holds.
const SCAN_KEYS: u32 = 128;
/// The longest keys of the delta rule.
pub const MAX_DELTA_KEY: u32 = SCAN_KEYS;
/// The longest keys of Mamba-2.
pub const MAX_SSM_KEY: u32 = 256;

/// What a row does to the memory of a head, whose decay is `exp(rate * dt)`.
#[derive(Debug, Clone)]
pub enum Rule<B> {
    /// `memory += key (beta (value - keyᵀ memory))ᵀ` with query and key of length 1, then the gated norm of what is read.
    Delta {
        /// `[row][heads]`: beta before its sigmoid.
        b: View<B>,
        /// `[row][heads * value_dim]`: the gate of the norm.
        z: View<B>,
        /// Added to the mean square.
        eps: f32,
    },
    /// `memory += key (dt value)ᵀ`; a share of the value is added to what is read.
    Ssm {
        /// The least and the largest dt.
        limits: [f32; 2],
        /// Multiplies dt before its bias.
        dt_scale: f32,
    },
}

/// One recurrence of many heads.
#[derive(Debug, Clone)]
pub struct Recurrent<B> {
    /// For dumps and profiles.
    pub label: String,
    /// Heads of values, each with its memory.
    pub heads: u32,
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads in a row that share a query and a key; 1 where they take turns.
    pub per_key: u32,
    /// Columns of a query and of a key, a multiple of 4.
    pub key_dim: u32,
    /// Columns of a head's values, a multiple of 4.
    pub value_dim: u32,
    /// Columns of the input at which queries, keys and values begin.
    pub columns: [u32; 3],
    /// `[row]` of queries, keys and values.
    pub x: View<B>,
    /// `[row][heads]`: dt before its bias and softplus.
    pub a: View<B>,
    /// What a row does.
    pub rule: Rule<B>,
    /// Of each head the log of -rate, then of each the bias of dt, then: the gain of the norm `[value_dim]`, or of each head
    /// the share of its values.
    pub gains: B,
    /// Whether the gains have the rates themselves rather than their logs.
    pub raw: bool,
    /// Element type of the memory, f32 or packed.
    pub kv: Kv,
    /// `[heads][key_dim][value_dim]`; zeros at position 0 whatever is in it.
    pub memory: B,
    /// Where the step stands.
    pub state: B,
}

impl<B: Clone> Recurrent<B> {
    fn delta(&self) -> bool {
        matches!(self.rule, Rule::Delta { .. })
    }

    /// Keys that a thread of the step holds: so many that 256 threads hold a head.
    fn each(&self) -> u32 {
        self.key_dim.div_ceil((1024 / self.value_dim).max(1)).next_power_of_two()
    }

    /// Whether the kernels hold a head of these sizes, of a rule with keys of up to `max_key` columns.
    pub fn fits(max_key: u32, key_dim: u32, value_dim: u32) -> bool {
        let slices = 1024 / value_dim.max(1);
        let fours = key_dim.is_multiple_of(4) && value_dim.is_multiple_of(4);
        fours && (4..=max_key).contains(&key_dim) && slices > 0 && key_dim.div_ceil(slices) <= 32
    }

    /// Words that a row of a head leaves for the scan.
    fn width(&self) -> u32 {
        if self.delta() { self.key_dim + self.value_dim + CHUNK + 4 } else { CHUNK + 4 }
    }

    /// Bytes of what [`Self::many`] leaves between its launches.
    pub fn scratch(&self, rows: u32) -> u64 {
        u64::from(rows.next_multiple_of(CHUNK)) * u64::from(self.heads) * u64::from(self.width()) * 4
    }

    /// Rows one after another, each normed and gated where the rule does.
    pub fn few(&self, out: &View<B>) -> Launch<B> {
        let variant = stored(Variant::new(Kernel::RecurrentStep), self.kv).set("EACH", self.each());
        let launch = self.launch("", variant, GridSpec::Fixed { units: self.heads });
        let z = if let Rule::Delta { z, .. } = &self.rule { Some(z) } else { None };
        let eps = if let Rule::Delta { eps, .. } = &self.rule { *eps } else { 0.0 };
        self.rates(launch)
            .bind("memory", self.memory.clone())
            .bind("out", out.buffer.clone())
            .bind_opt("z", z.map(|z| z.buffer.clone()))
            .set("z_offset", z.map_or(0, |z| z.offset))
            .set("z_stride", z.map_or(0, |z| z.stride))
            .set("out_offset", out.offset)
            .set("out_stride", out.stride)
            .set_f32("eps", eps)
    }

    /// Chunks of rows: what their rows are to each other, then one chunk after another, then the norm of the delta rule.
    pub fn many(&self, parts: &B, out: &View<B>) -> Vec<Launch<B>> {
        let grid = GridSpec::Tiled { x: self.heads, per: CHUNK, z: 1 };
        let prepare = self.launch(" chunks", Variant::new(Kernel::RecurrentPrepare), grid).bind("parts", parts.clone());
        let units = self.heads * self.value_dim.div_ceil(BLOCK);
        let variant = stored(Variant::new(Kernel::RecurrentScan), self.kv);
        let scan = |first: u32| {
            self.launch("", variant.clone(), GridSpec::Fixed { units })
                .bind_opt("gains", (!self.delta()).then(|| self.gains.clone()))
                .bind("parts", parts.clone())
                .bind("memory", self.memory.clone())
                .bind("out", out.buffer.clone())
                .set("out_offset", out.offset)
                .set("out_stride", out.stride)
                .set("first_key", first)
                .set("keys", SCAN_KEYS.min(self.key_dim - first))
        };
        let mut launches = vec![self.rates(prepare)];
        launches.extend((0..self.key_dim).step_by(SCAN_KEYS as usize).map(scan));
        if let Rule::Delta { z, eps, .. } = &self.rule {
            let norm = GatedNorm {
                gain: self.gains.clone(),
                gain_offset: 2 * self.heads,
                gain_step: 0,
                first: false,
                eps: *eps,
            };
            launches.push(norm.launch(&format!("{} norm", self.label), out, z, None, self.heads, self.value_dim));
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
            .set("per_key", self.per_key)
            .set("dk", self.key_dim)
            .set("dv", self.value_dim)
            .set("q_offset", q)
            .set("k_offset", k)
            .set("v_offset", v)
            .set("x_stride", self.x.stride)
    }

    /// Gives a launch what its decays come from.
    fn rates(&self, launch: Launch<B>) -> Launch<B> {
        let (b, limits, dt_scale) = match &self.rule {
            Rule::Delta { b, .. } => (Some(b), [0.0, 0.0], 1.0),
            Rule::Ssm { limits, dt_scale } => (None, *limits, *dt_scale),
        };
        launch
            .bind("a", self.a.buffer.clone())
            .bind("gains", self.gains.clone())
            .bind_opt("b", b.map(|b| b.buffer.clone()))
            .set("a_offset", self.a.offset)
            .set("a_stride", self.a.stride)
            .set("b_offset", b.map_or(0, |b| b.offset))
            .set("b_stride", b.map_or(0, |b| b.stride))
            .set("raw", u32::from(self.raw))
            .set_f32("dt_scale", dt_scale)
            .set_f32("dt_low", limits[0])
            .set_f32("dt_high", limits[1].min(f32::MAX))
    }
}

fn stored(variant: Variant, kv: Kv) -> Variant {
    variant.flag(if kv == Kv::F32 { "KV_F32" } else { "KV_PACKED" })
}

/// RMSNorm of runs of columns with a gate.
#[derive(Debug, Clone)]
pub struct GatedNorm<B> {
    /// The gain.
    pub gain: B,
    /// Where it begins.
    pub gain_offset: u32,
    /// Columns of the gain from one run's to the next one's; 0 where all runs share them.
    pub gain_step: u32,
    /// The gate comes before the norm.
    pub first: bool,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B: Clone> GatedNorm<B> {
    /// Norms `runs` runs of `cols` columns of `x`, in place where there is no `out`.
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
            .flag_if("GATE_FIRST", self.first)
            .flag_if("APART", out.is_some())
            .set("WG", if cols > 256 { 256 } else { 64 });
        Launch::new(label, variant, GridSpec::Tiled { x: runs, per: 1, z: 1 })
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
