//! Kernel variants to compare on a device, and the launches that time them.

use crate::device::registry::Kernel;
use crate::device::tuned::{GemvPick, Tuned};
use crate::format::Layout;
use crate::gpu::Caps;
use crate::kernels::attention::{Attention, Kv};
use crate::kernels::matmul::{Matmul, View, Weight};
use crate::kernels::runs::DecodeChoice;
use crate::kernels::{GridSpec, Launch};
use crate::plan::Slot;
use crate::util::fnv;
use std::cell::OnceCell;

/// Tokens of the prompt for timing matmuls: one tile of the largest variant.
const PROMPT: u32 = 128;
/// Keys visible to decode attention; the head counts are those of a model that fits in a browser.
const KEYS: u32 = 1024;
const HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 64;

/// Tuning constants to try: one or two of a kernel family per entry.
type Numbers = &'static [(&'static str, Kernel, &'static [(&'static str, u32)])];
/// Tile height of prefill matmuls, and whether workgroups share a tile. Defaults are 64 rows in f32, 128 or 64 with
/// subgroup matrices.
const GEMM: Numbers = &[
    ("BM=32", Kernel::Gemm, &[("BM", 32)]),
    ("BM=128", Kernel::Gemm, &[("BM", 128)]),
    ("FILL=1", Kernel::Gemm, &[("FILL", 1)]),
    ("units BM=32", Kernel::GemmMatrix, &[("BM", 32)]),
    ("units BM=64", Kernel::GemmMatrix, &[("BM", 64)]),
    ("units BM=128", Kernel::GemmMatrix, &[("BM", 128)]),
];
/// Maximum query heads of a workgroup, and keys at a time.
const DECODE: Numbers = &[
    ("HEADS=2", Kernel::Decode, &[("HEADS", 2)]),
    ("HEADS=8", Kernel::Decode, &[("HEADS", 8)]),
    ("TILE=64", Kernel::Decode, &[("TILE", 64)]),
    ("HEADS=2 TILE=64", Kernel::Decode, &[("HEADS", 2), ("TILE", 64)]),
    ("HEADS=8 TILE=64", Kernel::Decode, &[("HEADS", 8), ("TILE", 64)]),
];

/// Size of the benchmark matrix, and the bytes of all its copies: together they exceed most caches.
pub(super) struct Scene {
    rows: u32,
    cols: u32,
    bytes: u64,
}

impl Scene {
    /// A feed-forward layer of a model that fits in a browser. Small on software adapters, where the result is
    /// meaningless and only has to be fast.
    pub fn of(caps: &Caps) -> Self {
        match caps.software {
            true => Self { rows: 2048, cols: 512, bytes: 2 << 20 },
            false => Self { rows: 8192, cols: 2048, bytes: 80 << 20 },
        }
    }

    /// Number of matrices stored one after another in the planes.
    fn slots(&self, layout: Layout, limit: u64) -> u32 {
        let one = layout.plane_bytes(self.rows as usize, self.cols as usize);
        let fit = (limit / one[0].max(one[1]).max(1)).min(self.bytes / (one[0] + one[1]).max(1));
        fit.clamp(1, 64) as u32
    }
}

/// A kernel that has several variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// GEMV: one row of x, weights of a layout.
    Row(Layout),
    /// GEMM: many rows of x.
    Rows(Layout),
    /// Decode attention.
    Keys,
}

impl What {
    /// Its name in reports and records.
    pub fn name(self) -> String {
        match self {
            Self::Row(layout) => layout.name(),
            Self::Rows(_) => "prompt".into(),
            Self::Keys => "attention".into(),
        }
    }

    /// All possible variants, as tuning tables that select them.
    fn tables(self) -> Vec<(&'static str, Tuned)> {
        let numbers = |all: Numbers| {
            let table = |kernel, set: &[(&'static str, u32)]| {
                set.iter().fold(Tuned::default(), |table, (name, value)| table.set(kernel, name, *value))
            };
            let own = std::iter::once(("own", Tuned::default()));
            own.chain(all.iter().map(|(name, kernel, set)| (*name, table(*kernel, set)))).collect()
        };
        match self {
            Self::Row(layout) => GemvPick::ALL.map(|pick| (pick.name(), Tuned::default().with(layout, pick))).into(),
            Self::Rows(_) => numbers(GEMM),
            Self::Keys => numbers(DECODE),
        }
    }

    /// Number of benchmark matrices that it cycles through.
    pub(super) fn slots(self, caps: &Caps, scene: &Scene) -> u32 {
        match self {
            Self::Row(layout) => scene.slots(layout, caps.max_weight_buffer()),
            _ => 1,
        }
    }

    /// Position and rows of a step.
    pub(super) fn step(self) -> [u32; 2] {
        match self {
            Self::Row(_) => [0, 1],
            Self::Rows(_) => [0, PROMPT],
            Self::Keys => [KEYS - 1, 1],
        }
    }

    /// Returns the launches over each of `slots` matrices and the bytes of their buffers. Activation slots: x, out,
    /// both planes, the state and partial results. For attention, keys and values replace the planes.
    pub(super) fn launches(
        self,
        caps: &Caps,
        table: &Tuned,
        (slots, slot): (u32, u32),
    ) -> (Vec<Launch<Slot>>, [u64; 6]) {
        let caps = &Caps { tuned: OnceCell::from(table.clone()), ..caps.clone() };
        let [x, out, q, s, state, parts] = [0, 1, 2, 3, 4, 5].map(Slot::Activation);
        let view = |buffer: Slot, stride: u32| View { buffer, offset: 0, stride };
        let scene = Scene::of(caps);
        let product = |layout: Layout, rows: u32, cols: u32, of: u32, tokens: u32| {
            let [a, b] = layout.plane_bytes((rows * of) as usize, cols as usize);
            let weight = Weight { layout, rows: rows * of, cols, q, s: (b > 0).then_some(s) };
            let mut product = Matmul::plain("tune", weight, view(x, cols), view(out, rows));
            (product.n, product.row0) = (rows, rows * slot);
            (product, [u64::from(cols * tokens) * 4, u64::from(rows * tokens) * 4, a, b, 32, 16])
        };
        let (mut launches, bytes) = match self {
            Self::Row(layout) => {
                let (product, bytes) = product(layout, scene.rows, scene.cols, slots, 1);
                (vec![product.gemv(caps, 1, state)], bytes)
            }
            Self::Rows(layout) => {
                // Enough rows of W to fill a device of its size, and few enough to finish soon.
                let (product, mut bytes) = product(layout, caps.full_load() * 4, scene.cols / 2, 1, PROMPT);
                let (left, launches) = product.many(caps, PROMPT as usize, state, parts);
                bytes[5] = left.max(16);
                (launches.into(), bytes)
            }
            Self::Keys => {
                let attention = Attention {
                    label: "tune".into(),
                    heads: HEADS,
                    kv_heads: KV_HEADS,
                    head_dim: HEAD_DIM,
                    scale: 0.125,
                    window: 0,
                    softcap: 0.0,
                    sinks: None,
                    head_norm: None,
                    rope: None,
                    kv: if caps.f16 { Kv::F16 } else { Kv::Packed },
                    capacity: KEYS,
                    ring: None,
                    k_cache: q,
                    v_cache: s,
                    state,
                    ends: None,
                    decode: DecodeChoice::of(caps, HEADS, KV_HEADS, HEAD_DIM),
                };
                let row = u64::from(HEADS * HEAD_DIM) * 4;
                let cache = u64::from(KEYS * KV_HEADS * HEAD_DIM) * 2;
                let bytes = [row, row, cache, cache, 32, attention.scratch(1)];
                (attention.few(x, parts, &view(out, HEADS * HEAD_DIM)), bytes)
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
pub struct Contest {
    /// The tuned kernel.
    pub what: What,
    /// Index of the default variant.
    pub own: usize,
    /// Hash of the shader sources and grids of all variants.
    pub hash: u64,
    /// Names of the variants, and the tuning tables that select them.
    pub forms: Vec<(&'static str, Tuned)>,
}

impl Contest {
    /// Returns the variants if there are several.
    pub fn of(caps: &Caps, what: What) -> Option<Self> {
        let texts = |table: &Tuned| -> Option<String> {
            let (launches, bytes) = what.launches(caps, table, (1, 0));
            let large = bytes.iter().any(|bytes| *bytes > caps.max_weight_buffer());
            let text = |l: &Launch<Slot>| {
                let shader = l.variant.shader(cfg!(target_arch = "wasm32")).map_or_else(|_| String::new(), |s| s.text);
                format!("{shader}{:?}{:?}", l.grid.at(1), l.params)
            };
            (!large).then(|| launches.iter().map(text).collect())
        };
        let mut forms = Vec::new();
        let mut found: Vec<String> = Vec::new();
        for (name, table) in what.tables() {
            let text = texts(&table)?;
            if !found.contains(&text) {
                found.push(text);
                forms.push((name, table));
            }
        }
        let free = texts(&Tuned::default())?;
        let own = found.iter().position(|text| *text == free)?;
        (forms.len() > 1).then(|| Self { what, own, hash: fnv(&found.concat()), forms })
    }

    /// Returns all tuning cases for weights of some layouts, the most frequent first. Prefill matmuls and attention are
    /// included only on devices without built-in tuning data, and never on software adapters, whose timings are
    /// meaningless.
    pub fn all(caps: &Caps, layouts: &[Layout]) -> Vec<Self> {
        let rows = layouts.iter().map(|layout| What::Row(*layout));
        let known = caps.software || caps.vendor == "nvidia";
        let first = layouts.first().filter(|_| !known);
        let many = first.into_iter().flat_map(|layout| [What::Rows(*layout), What::Keys]);
        rows.chain(many).filter_map(|what| Self::of(caps, what)).collect()
    }

    /// The index of a variant by name.
    pub fn form(&self, name: &str) -> Option<usize> {
        self.forms.iter().position(|(known, _)| *known == name)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::{MatrixUnits, MatrixWords};
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

    fn names(caps: &Caps, what: What) -> Vec<&'static str> {
        Contest::of(caps, what).map_or_else(Vec::new, |contest| contest.forms.iter().map(|(name, _)| *name).collect())
    }

    fn picks(caps: &Caps, layout: Layout) -> Vec<&'static str> {
        names(caps, What::Row(layout))
    }

    #[test]
    fn only_forms_that_differ_are_timed() {
        let all = GemvPick::ALL.map(GemvPick::name);
        let four = [quantize::layout(4), Layout::Q4K, Layout::Mxfp4];
        for layout in four.into_iter().chain([quantize::layout(8), Layout::Ternary]) {
            assert_eq!(picks(&caps(), layout), all);
            assert_eq!(picks(&Caps { packed_dot: false, ..caps() }, layout), all[..2]);
            assert_eq!(picks(&Caps { software: true, ..caps() }, layout), all);
            // Without subgroups there are no block variants.
            assert!(picks(&Caps { subgroups: false, ..caps() }, layout).is_empty());
        }
        for layout in [Layout::Dense(Float::F16), Layout::Q6K] {
            assert!(picks(&caps(), layout).is_empty(), "{layout}");
        }
    }

    #[test]
    fn the_own_form_is_the_vendors() {
        let own = |vendor: &str| {
            let contest = Contest::of(&Caps { vendor: vendor.into(), ..caps() }, What::Row(Layout::Q4K))?;
            Some(contest.forms[contest.own].0)
        };
        assert_eq!(own("nvidia"), Some("packedBlocks"));
        assert_eq!(own("apple"), Some("blocks"));
    }

    #[test]
    fn the_matrices_fit_their_room_and_the_devices_limit() {
        let scene = Scene::of(&caps());
        for layout in [quantize::layout(4), quantize::layout(8), Layout::Q4K] {
            for limit in [16 << 20, 128 << 20, u64::MAX] {
                let rows = (scene.slots(layout, limit) * scene.rows) as usize;
                let [q, s] = layout.plane_bytes(rows, scene.cols as usize);
                assert!(q.max(s) <= limit && q + s <= scene.bytes, "{layout} {limit}: {q} and {s}");
            }
        }
    }

    #[test]
    fn a_device_that_is_not_well_known_tries_tiles_and_heads() {
        let apple = Caps { vendor: "apple".into(), ..caps() };
        let prompt = What::Rows(quantize::layout(4));
        assert_eq!(names(&apple, prompt), ["own", "BM=32", "BM=128", "FILL=1"]);
        // A device of this size allows eight heads a workgroup; the benchmark has four.
        assert_eq!(names(&apple, What::Keys), ["own", "HEADS=2", "TILE=64", "HEADS=2 TILE=64"]);
        let units = MatrixUnits { side: 8, half: true, lanes: 32, words: MatrixWords::Chromium };
        let units = Caps { matrix: Some(units), ..apple.clone() };
        assert_eq!(names(&units, prompt), ["own", "units BM=32", "units BM=128"]);
        let whats = |caps: &Caps| {
            let all = Contest::all(caps, &[quantize::layout(4), Layout::Q6K]);
            all.iter().map(|contest| contest.what).collect::<Vec<_>>()
        };
        let row = What::Row(quantize::layout(4));
        assert_eq!(whats(&apple), [row, prompt, What::Keys]);
        assert_eq!(whats(&Caps { subgroups: false, ..apple.clone() }), [prompt, What::Keys]);
        // Devices with built-in tuning data, or without meaningful timings.
        assert_eq!(whats(&caps()), [row]);
        assert_eq!(whats(&Caps { software: true, ..apple }), [row]);
    }
}
