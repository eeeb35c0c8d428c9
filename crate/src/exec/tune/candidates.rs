//! Kernel variants to compare on a device, and the launches that time them.

use crate::device::registry::Kernel;
use crate::device::tuning_table::{GemvVariant, TuningTable};
use crate::format::WeightLayout;
use crate::gpu::Caps;
use crate::kernels::attention::{AttentionKernel, Kv};
use crate::kernels::kv_splits::DecodeTiling;
use crate::kernels::matmul::{Matmul, View, WeightPlanes};
use crate::kernels::{GridSpec, Launch};
use crate::plan::Slot;
use crate::util::fnv1a;
use std::cell::OnceCell;

/// Tokens of the prompt for timing matmuls: one tile of the largest variant.
const BENCH_PROMPT_ROWS: u32 = 128;
/// Keys visible to decode attention; the head counts are those of a model that fits in a browser.
const BENCH_KEYS: u32 = 1024;
const BENCH_HEADS: u32 = 32;
const BENCH_KV_HEADS: u32 = 8;
const BENCH_HEAD_DIM: u32 = 64;

/// Tuning constants to try: one or two of a kernel family per entry.
type NumericChoices = &'static [(&'static str, Kernel, &'static [(&'static str, u32)])];
/// Tile height of prefill matmuls, and whether workgroups share a tile. Defaults are 64 rows in
/// f32, 128 or 64 with subgroup matrices.
const GEMM_CHOICES: NumericChoices = &[
    ("BM=32", Kernel::Gemm, &[("BM", 32)]),
    ("BM=128", Kernel::Gemm, &[("BM", 128)]),
    ("FILL=1", Kernel::Gemm, &[("FILL", 1)]),
    ("units BM=32", Kernel::GemmMatrix, &[("BM", 32)]),
    ("units BM=64", Kernel::GemmMatrix, &[("BM", 64)]),
    ("units BM=128", Kernel::GemmMatrix, &[("BM", 128)]),
];
/// Maximum query heads of a workgroup, and keys at a time.
const DECODE_CHOICES: NumericChoices = &[
    ("HEADS=2", Kernel::AttentionDecode, &[("HEADS", 2)]),
    ("HEADS=8", Kernel::AttentionDecode, &[("HEADS", 8)]),
    ("TILE=64", Kernel::AttentionDecode, &[("TILE", 64)]),
    (
        "HEADS=2 TILE=64",
        Kernel::AttentionDecode,
        &[("HEADS", 2), ("TILE", 64)],
    ),
    (
        "HEADS=8 TILE=64",
        Kernel::AttentionDecode,
        &[("HEADS", 8), ("TILE", 64)],
    ),
];

/// Size of the benchmark matrix, and the bytes of all its copies: together they exceed most caches.
pub(super) struct BenchInputs {
    rows: u32,
    cols: u32,
    bytes: u64,
}

impl BenchInputs {
    /// A feed-forward layer of a model that fits in a browser. Small on software adapters, where
    /// the result is meaningless and only has to be fast.
    pub fn of(caps: &Caps) -> Self {
        match caps.software {
            true => Self {
                rows: 2048,
                cols: 512,
                bytes: 2 << 20,
            },
            false => Self {
                rows: 8192,
                cols: 2048,
                bytes: 80 << 20,
            },
        }
    }

    /// Number of matrices stored one after another in the planes.
    fn matrix_count(&self, layout: WeightLayout, limit: u64) -> u32 {
        let one = layout.plane_bytes(self.rows as usize, self.cols as usize);
        let fit = (limit / one[0].max(one[1]).max(1)).min(self.bytes / (one[0] + one[1]).max(1));
        fit.clamp(1, 64) as u32
    }
}

/// A kernel that has several variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TuningTarget {
    /// GEMV: one row of x, weights of a layout.
    Gemv(WeightLayout),
    /// GEMM: many rows of x.
    Gemm(WeightLayout),
    /// Decode attention.
    DecodeAttention,
}

impl TuningTarget {
    /// Its name in reports and records.
    pub fn name(self) -> String {
        match self {
            Self::Gemv(layout) => layout.name(),
            Self::Gemm(_) => "prompt".into(),
            Self::DecodeAttention => "attention".into(),
        }
    }

    /// All possible variants, as tuning tables that select them.
    fn tuning_tables(self) -> Vec<(&'static str, TuningTable)> {
        let numbers = |all: NumericChoices| {
            let table = |kernel, set: &[(&'static str, u32)]| {
                set.iter()
                    .fold(TuningTable::default(), |table, (name, value)| {
                        table.with_constant(kernel, name, *value)
                    })
            };
            let default = std::iter::once(("default", TuningTable::default()));
            default
                .chain(
                    all.iter()
                        .map(|(name, kernel, set)| (*name, table(*kernel, set))),
                )
                .collect()
        };
        match self {
            Self::Gemv(layout) => GemvVariant::ALL
                .map(|pick| (pick.name(), TuningTable::default().with_gemv(layout, pick)))
                .into(),
            Self::Gemm(_) => numbers(GEMM_CHOICES),
            Self::DecodeAttention => numbers(DECODE_CHOICES),
        }
    }

    /// Number of benchmark matrices that it cycles through.
    pub(super) fn matrix_count(self, caps: &Caps, scene: &BenchInputs) -> u32 {
        match self {
            Self::Gemv(layout) => scene.matrix_count(layout, caps.max_weight_buffer()),
            _ => 1,
        }
    }

    /// Position and rows of a step.
    pub(super) fn step(self) -> [u32; 2] {
        match self {
            Self::Gemv(_) => [0, 1],
            Self::Gemm(_) => [0, BENCH_PROMPT_ROWS],
            Self::DecodeAttention => [BENCH_KEYS - 1, 1],
        }
    }

    /// Returns the launches over each of `slots` matrices and the bytes of their buffers.
    /// Activation slots: x, out, both planes, the state and partial results. For attention, keys
    /// and values replace the planes.
    pub(super) fn launches(
        self,
        caps: &Caps,
        table: &TuningTable,
        (slots, slot): (u32, u32),
    ) -> (Vec<Launch<Slot>>, [u64; 6]) {
        let caps = &Caps {
            tuned: OnceCell::from(table.clone()),
            ..caps.clone()
        };
        let [x, out, q, s, state, parts] = [0, 1, 2, 3, 4, 5].map(Slot::Activation);
        let view = |buffer: Slot, stride: u32| View {
            buffer,
            offset: 0,
            stride,
        };
        let scene = BenchInputs::of(caps);
        let product = |layout: WeightLayout, rows: u32, cols: u32, of: u32, tokens: u32| {
            let [a, b] = layout.plane_bytes((rows * of) as usize, cols as usize);
            let weight = WeightPlanes {
                layout,
                rows: rows * of,
                cols,
                q,
                s: (b > 0).then_some(s),
            };
            let mut product = Matmul::plain("tune", weight, view(x, cols), view(out, rows));
            (product.n, product.row0) = (rows, rows * slot);
            (
                product,
                [
                    u64::from(cols * tokens) * 4,
                    u64::from(rows * tokens) * 4,
                    a,
                    b,
                    32,
                    16,
                ],
            )
        };
        let (mut launches, bytes) = match self {
            Self::Gemv(layout) => {
                let (product, bytes) = product(layout, scene.rows, scene.cols, slots, 1);
                (vec![product.gemv(caps, 1, state)], bytes)
            }
            Self::Gemm(layout) => {
                // Enough rows of W to fill a device of its size, and few enough to finish soon.
                let (product, mut bytes) = product(
                    layout,
                    caps.target_workgroups() * 4,
                    scene.cols / 2,
                    1,
                    BENCH_PROMPT_ROWS,
                );
                let (left, launches) =
                    product.prefill(caps, BENCH_PROMPT_ROWS as usize, state, parts, None);
                bytes[5] = left.max(16);
                (launches, bytes)
            }
            Self::DecodeAttention => {
                let attention = AttentionKernel {
                    label: "tune".into(),
                    heads: BENCH_HEADS,
                    kv_heads: BENCH_KV_HEADS,
                    head_dim: BENCH_HEAD_DIM,
                    scale: 0.125,
                    window: 0,
                    softcap: 0.0,
                    sinks: None,
                    head_norm: None,
                    rope: None,
                    kv: if caps.f16 { Kv::F16 } else { Kv::Packed },
                    capacity: BENCH_KEYS,
                    ring: None,
                    k_cache: q,
                    v_cache: s,
                    state,
                    ends: None,
                    decode: DecodeTiling::of(caps, BENCH_HEADS, BENCH_KV_HEADS, BENCH_HEAD_DIM),
                    batch: None,
                };
                let row = u64::from(BENCH_HEADS * BENCH_HEAD_DIM) * 4;
                let cache = u64::from(BENCH_KEYS * BENCH_KV_HEADS * BENCH_HEAD_DIM) * 2;
                let bytes = [row, row, cache, cache, 32, attention.scratch(1)];
                (
                    attention.decode_rows(x, parts, &view(out, BENCH_HEADS * BENCH_HEAD_DIM)),
                    bytes,
                )
            }
        };
        for launch in &mut launches {
            launch.grid = GridSpec::Exact(launch.grid.at(self.step()[1]));
        }
        (launches, bytes)
    }
}

/// The distinct variants of a kernel on a device.
#[derive(Debug)]
pub struct TuningCase {
    /// The tuned kernel.
    pub target: TuningTarget,
    /// Index of the default variant.
    pub default_variant: usize,
    /// Hash of the shader sources and grids of all variants.
    pub hash: u64,
    /// Names of the variants, and the tuning tables that select them.
    pub variants: Vec<(&'static str, TuningTable)>,
}

impl TuningCase {
    /// Returns the variants if there are several.
    pub fn of(caps: &Caps, what: TuningTarget) -> Option<Self> {
        let texts = |table: &TuningTable| -> Option<String> {
            let (launches, bytes) = what.launches(caps, table, (1, 0));
            let large = bytes.iter().any(|bytes| *bytes > caps.max_weight_buffer());
            let text = |l: &Launch<Slot>| {
                let shader = l
                    .variant
                    .shader(cfg!(target_arch = "wasm32"))
                    .map_or_else(|_| String::new(), |s| s.text);
                format!("{shader}{:?}{:?}", l.grid.at(1), l.params)
            };
            (!large).then(|| launches.iter().map(text).collect())
        };
        let mut forms = Vec::new();
        let mut found: Vec<String> = Vec::new();
        for (name, table) in what.tuning_tables() {
            let text = texts(&table)?;
            if !found.contains(&text) {
                found.push(text);
                forms.push((name, table));
            }
        }
        let free = texts(&TuningTable::default())?;
        let default = found.iter().position(|text| *text == free)?;
        (forms.len() > 1).then(|| Self {
            target: what,
            default_variant: default,
            hash: fnv1a(&found.concat()),
            variants: forms,
        })
    }

    /// Returns all tuning cases for weights of some layouts, the most frequent first. Prefill
    /// matmuls and attention are included only on devices without built-in tuning data, and never
    /// on software adapters, whose timings are meaningless.
    pub fn all_for(caps: &Caps, layouts: &[WeightLayout]) -> Vec<Self> {
        let rows = layouts.iter().map(|layout| TuningTarget::Gemv(*layout));
        let known = caps.software || caps.vendor == "nvidia";
        let first = layouts.first().filter(|_| !known);
        let many = first
            .into_iter()
            .flat_map(|layout| [TuningTarget::Gemm(*layout), TuningTarget::DecodeAttention]);
        rows.chain(many)
            .filter_map(|what| Self::of(caps, what))
            .collect()
    }

    /// The index of a variant by name.
    pub fn variant_index(&self, name: &str) -> Option<usize> {
        self.variants.iter().position(|(known, _)| *known == name)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::{MatrixDialect, SubgroupMatrix};
    use crate::format::{Float, quantize};

    /// Capabilities that allow every variant.
    pub fn caps() -> Caps {
        Caps {
            vendor: "nvidia".into(),
            architecture: "some".into(),
            description: "driver 1".into(),
            f16: true,
            subgroups: true,
            subgroup_size: (32, 32),
            max_buffer_size: 1 << 30,
            max_binding_size: 1 << 30,
            max_workgroup_storage: 32768,
            max_invocations: 1024,
            packed_dot: true,
            ..Caps::default()
        }
    }

    fn names(caps: &Caps, what: TuningTarget) -> Vec<&'static str> {
        TuningCase::of(caps, what).map_or_else(Vec::new, |contest| {
            contest.variants.iter().map(|(name, _)| *name).collect()
        })
    }

    fn candidate_names(caps: &Caps, layout: WeightLayout) -> Vec<&'static str> {
        names(caps, TuningTarget::Gemv(layout))
    }

    #[test]
    fn only_distinct_variants_are_timed() {
        let all = GemvVariant::ALL.map(GemvVariant::name);
        let four = [quantize::layout(4), WeightLayout::Q4K, WeightLayout::Mxfp4];
        for layout in four
            .into_iter()
            .chain([quantize::layout(8), WeightLayout::Ternary])
        {
            assert_eq!(candidate_names(&caps(), layout), all);
            assert_eq!(
                candidate_names(
                    &Caps {
                        packed_dot: false,
                        ..caps()
                    },
                    layout
                ),
                all[..2]
            );
            assert_eq!(
                candidate_names(
                    &Caps {
                        software: true,
                        ..caps()
                    },
                    layout
                ),
                all
            );
            // Without subgroups there are no block variants.
            assert!(
                candidate_names(
                    &Caps {
                        subgroups: false,
                        ..caps()
                    },
                    layout
                )
                .is_empty()
            );
        }
        for layout in [WeightLayout::Dense(Float::F16), WeightLayout::Q6K] {
            assert!(candidate_names(&caps(), layout).is_empty(), "{layout}");
        }
    }

    #[test]
    fn the_default_variant_follows_the_vendor() {
        let own = |vendor: &str| {
            let contest = TuningCase::of(
                &Caps {
                    vendor: vendor.into(),
                    ..caps()
                },
                TuningTarget::Gemv(WeightLayout::Q4K),
            )?;
            Some(contest.variants[contest.default_variant].0)
        };
        assert_eq!(own("nvidia"), Some("packedBlocks"));
        assert_eq!(own("apple"), Some("blocks"));
    }

    #[test]
    fn bench_matrices_fit_budget_and_buffer_limit() {
        let scene = BenchInputs::of(&caps());
        for layout in [quantize::layout(4), quantize::layout(8), WeightLayout::Q4K] {
            for limit in [16 << 20, 128 << 20, u64::MAX] {
                let rows = (scene.matrix_count(layout, limit) * scene.rows) as usize;
                let [q, s] = layout.plane_bytes(rows, scene.cols as usize);
                assert!(
                    q.max(s) <= limit && q + s <= scene.bytes,
                    "{layout} {limit}: {q} and {s}"
                );
            }
        }
    }

    #[test]
    fn unknown_devices_try_tiles_and_heads() {
        let apple = Caps {
            vendor: "apple".into(),
            ..caps()
        };
        let prompt = TuningTarget::Gemm(quantize::layout(4));
        assert_eq!(
            names(&apple, prompt),
            ["default", "BM=32", "BM=128", "FILL=1"]
        );
        // A device of this size allows eight heads a workgroup; the benchmark has four.
        assert_eq!(
            names(&apple, TuningTarget::DecodeAttention),
            ["default", "HEADS=2", "TILE=64", "HEADS=2 TILE=64"]
        );
        let units = SubgroupMatrix {
            side: 8,
            half: true,
            lanes: 32,
            words: MatrixDialect::Chromium,
        };
        let units = Caps {
            matrix: Some(units),
            ..apple.clone()
        };
        assert_eq!(
            names(&units, prompt),
            ["default", "units BM=32", "units BM=128"]
        );
        let whats = |caps: &Caps| {
            let all = TuningCase::all_for(caps, &[quantize::layout(4), WeightLayout::Q6K]);
            all.iter().map(|contest| contest.target).collect::<Vec<_>>()
        };
        let row = TuningTarget::Gemv(quantize::layout(4));
        assert_eq!(whats(&apple), [row, prompt, TuningTarget::DecodeAttention]);
        assert_eq!(
            whats(&Caps {
                subgroups: false,
                ..apple.clone()
            }),
            [prompt, TuningTarget::DecodeAttention]
        );
        // Devices with built-in tuning data, or without meaningful timings.
        assert_eq!(whats(&caps()), [row]);
        assert_eq!(
            whats(&Caps {
                software: true,
                ..apple
            }),
            [row]
        );
    }
}
