//! Attention against its CPU reference: heads of every width, every element type of the cache,
//! tiled, KV split and segmented.

use super::matmul::weights;
use super::op::{Case, Cut, Setting, few, many, worst};
use half::f16;
use jerboa::device::registry::Kernel;
use jerboa::format::quantize;
use jerboa::gpu::{Backend, Caps, DeviceOptions, Gpu, VariantOverride};
use jerboa::ir::{
    Attention, Combine, HeadNorm, Linear, Mask, RopeScaling, RopeSpec, StateSpec, ValueId,
};
use jerboa::kernels::attention::Kv;
use jerboa::reference::attention::{self as reference, apply_rope};
use jerboa::reference::matmul::matmul;
use jerboa_tests::{gpu, nmse, open, random};
use std::ops::Range;

/// Parameters of one layer.
#[derive(Debug, Clone, Copy)]
struct Layer {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: usize,
    softcap: f32,
    sinks: bool,
    /// Whether scores have a bias by distance.
    relative: bool,
    /// Whether the norm of heads follows RoPE; `None` without a norm.
    norm: Option<bool>,
    /// Whether heads of v are normalized too.
    values: bool,
    /// Rotated columns, and whether pairs are adjacent columns.
    rope: Option<(usize, bool)>,
    /// Whether q, k and v are columns of one value.
    together: bool,
    kv: Kv,
}

const PLAIN: Layer = Layer {
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    window: 0,
    softcap: 0.0,
    sinks: false,
    relative: false,
    norm: None,
    values: false,
    rope: Some((32, false)),
    together: true,
    kv: Kv::F32,
};

/// Inputs of the CPU reference.
struct Given {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gains: Vec<f32>,
    sinks: Vec<f32>,
    relative: Vec<f32>,
}

impl Layer {
    fn given(&self, rows: usize) -> Given {
        let q_cols = self.heads * self.head_dim;
        let kv_cols = self.kv_heads * self.head_dim;

        // Scores of about three, so that the softmax is not uniform.
        let scaled =
            |seed: u64, count: usize| random(seed, count).iter().map(|v| v * 2.0).collect();
        Given {
            q: scaled(1, rows * q_cols),
            k: scaled(2, rows * kv_cols),
            v: scaled(3, rows * kv_cols),
            gains: random(4, 2 * self.head_dim),
            sinks: scaled(5, self.heads),
            relative: scaled(6, 32 * self.heads),
        }
    }

    fn spec(&self) -> Option<RopeSpec> {
        self.rope.map(|(dim, interleaved)| RopeSpec {
            dim,
            base: 100.0,
            scaling: RopeScaling::Default,
            interleaved,
        })
    }

    /// Heads after norm and RoPE; `first` is the row of position 0.
    fn turned(
        &self,
        x: &[f32],
        heads: usize,
        gain: &[f32],
        first: &dyn Fn(usize) -> usize,
    ) -> Vec<f32> {
        let d = self.head_dim;
        let rows = x.len() / heads / self.head_dim;

        let mut x = match self.norm {
            None => x.to_vec(),
            Some(false) => reference::norm_heads(x, gain, 0.5, 1e-5),
            Some(true) => reference::norm_heads(x, &vec![1.0; d], 0.0, 1e-5),
        };
        if let Some(spec) = self.spec() {
            let table: Vec<[f32; 2]> = (0..rows)
                .flat_map(|row| spec.table(row - first(row), 1, 0))
                .collect();
            apply_rope(&mut x, heads, d, &table, spec.dim, spec.interleaved);
        }
        if self.norm == Some(true) {
            x.iter_mut()
                .enumerate()
                .for_each(|(i, v)| *v *= gain[i % d] + 0.5);
        }
        x
    }

    fn expected(
        &self,
        given: &Given,
        first: &dyn Fn(usize) -> usize,
        visible: impl Fn(usize) -> Range<usize>,
    ) -> Vec<f32> {
        let (q_gain, k_gain) = given.gains.split_at(self.head_dim);
        let stored = |x: Vec<f32>| -> Vec<f32> {
            match self.kv {
                Kv::F32 => x,
                Kv::F16 | Kv::Packed => x.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
                Kv::Int8 => reference::round_to_int8(&x, self.head_dim),
            }
        };
        let q = self.turned(&given.q, self.heads, q_gain, first);
        let k = self.turned(&given.k, self.kv_heads, k_gain, first);

        let sinks = self.sinks.then_some(&given.sinks[..]);
        let Layer {
            heads,
            kv_heads,
            head_dim,
            softcap,
            ..
        } = *self;
        let relative = self.relative.then_some(&given.relative[..]);
        let spec = reference::AttentionReference {
            heads,
            kv_heads,
            head_dim,
            scale: self.scale(),
            softcap,
            sinks,
            relative,
        };
        let bare = |v: &[f32]| reference::norm_heads(v, &vec![1.0; head_dim], 0.0, 1e-5);
        let v = if self.values {
            bare(&given.v)
        } else {
            given.v.clone()
        };
        spec.of(&q, &stored(k), &stored(v), &visible)
    }

    fn scale(&self) -> f32 {
        (self.head_dim as f32).powf(-0.5)
    }

    /// Adds the layer's node and its inputs to a graph.
    fn node(&self, case: &mut Case, given: &Given, rows: usize, mask: Mask) -> ValueId {
        let q_cols = self.heads * self.head_dim;
        let kv_cols = self.kv_heads * self.head_dim;

        let [q, k, v] = if self.together {
            let mut all = Vec::new();
            for row in 0..rows {
                all.extend(&given.q[row * q_cols..(row + 1) * q_cols]);
                all.extend(&given.k[row * kv_cols..(row + 1) * kv_cols]);
                all.extend(&given.v[row * kv_cols..(row + 1) * kv_cols]);
            }
            let all = case.input(&all, q_cols + 2 * kv_cols);
            let b = &mut case.b;
            [
                b.view("q", all, 0, q_cols),
                b.view("k", all, q_cols, kv_cols),
                b.view("v", all, q_cols + kv_cols, kv_cols),
            ]
        } else {
            [
                case.input(&given.q, q_cols),
                case.input(&given.k, kv_cols),
                case.input(&given.v, kv_cols),
            ]
        };
        let values = self.values;
        let gains = self
            .norm
            .map(|after_rope| (case.vector(&given.gains), after_rope));
        let sinks = self.sinks.then(|| case.vector(&given.sinks));
        let relative = self.relative.then(|| case.vector(&given.relative));
        let op = Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale(),
            mask,
            softcap: self.softcap,
            sinks,
            relative,
            head_norm: gains.map(|(gains, after_rope)| HeadNorm {
                gains,
                offset: 0.5,
                eps: 1e-5,
                after_rope,
                values,
            }),
            rope: self.spec().map(|spec| case.b.rope(spec)),
            state: match mask {
                Mask::Causal { window } | Mask::BidirectionalImages { window } => {
                    let kv_heads = self.kv_heads;
                    let head_dim = self.head_dim;

                    Some(case.b.state(StateSpec::Kv {
                        kv_heads,
                        head_dim,
                        window,
                    }))
                }
                Mask::Packed { .. } | Mask::PackedWindow | Mask::CrossAttention => None,
            },
        };
        case.b.node("attention", op, &[q, k, v], q_cols)
    }

    /// Runs the layer with the kernels of each tested device; returns the largest error against the
    /// CPU reference.
    fn error(&self, gpu: &Gpu, rows: usize, cuts: &[Cut], mask: Mask, setting: &Setting) -> f64 {
        let mut devices: Vec<Setting> = setting.clone().for_devices(gpu).collect();
        if self.head_dim > 128 {
            // The same kernels without a GPU, but for the specialization.
            devices.drain(..devices.len() - 1);
        }
        let errors = devices
            .iter()
            .map(|setting| self.error_with(gpu, rows, cuts, mask, setting));
        worst(errors)
    }

    /// Runs the layer and returns the error against the CPU reference.
    fn error_with(
        &self,
        gpu: &Gpu,
        rows: usize,
        cuts: &[Cut],
        mask: Mask,
        setting: &Setting,
    ) -> f64 {
        let given = self.given(rows);
        let mut case = Case::new();

        let out = self.node(&mut case, &given, rows, mask);
        let found = case.run(gpu, out, setting, cuts);
        let visible = |row: usize| match mask {
            Mask::Causal { window } => first_seen(window, row)..row + 1,
            Mask::BidirectionalImages { window } => {
                first_seen(window, row)..setting.segments[row][1] as usize
            }
            Mask::Packed { before, after } => {
                let [first, end] = setting.segments[row].map(|x| x as usize);
                first.max(row.saturating_sub(before))
                    ..end.min(row.saturating_add(after).saturating_add(1))
            }
            Mask::PackedWindow => row..row + 1,
            // Keys of another sequence; tests/audio covers them.
            Mask::CrossAttention => 0..0,
        };
        let packed = matches!(mask, Mask::Packed { .. });
        let first = |row: usize| {
            setting
                .segments
                .get(row)
                .filter(|_| packed)
                .map_or(0, |s| s[0] as usize)
        };
        nmse(&found, &self.expected(&given, &first, visible))
    }

    /// The layer and a matmul with 4-bit weights, fused for single rows.
    fn check_matmul(&self, gpu: &Gpu, packed_dot: bool, capacity: usize, cuts: &[Cut]) {
        // The minimum number of outputs for which GEMV uses whole blocks.
        let n = if packed_dot { 520 } else { 2056 };
        let rows = cuts.iter().map(|c| c.rows).sum();
        let k = self.heads * self.head_dim;
        let (packed, w) = weights(quantize::layout(4), n, k, 17);
        let bias = random(7, n);
        let residual = random(8, rows * n);

        let given = self.given(rows);
        let mut case = Case::new();

        let rest = case.input(&residual, n);
        let attended = self.node(
            &mut case,
            &given,
            rows,
            Mask::Causal {
                window: self.window,
            },
        );
        let weight = case.table(packed);
        let bias_id = case.vector(&bias);

        let linear = Linear {
            combine: Combine::Add,
            ..Linear::new(weight, Some(bias_id))
        };
        let out = case.b.node("product", linear, &[attended, rest], n);
        // The choices of a large GPU, where whole blocks are spread over threads.
        let caps = Caps {
            vendor: "nvidia".into(),
            packed_dot,
            ..gpu.caps().clone()
        };
        let setting = Setting {
            kv: self.kv,
            capacity,
            caps: Some(caps),
            without: Some(Kernel::AttentionReduce),
            ..Setting::default()
        };
        let found = case.run(gpu, out, &setting, cuts);
        let attended = self.expected(&given, &|_| 0, |row| first_seen(self.window, row)..row + 1);
        let matmul = matmul(&attended, &w, rows, n, k);
        let expected: Vec<f32> = matmul
            .iter()
            .zip(&residual)
            .enumerate()
            .map(|(i, (y, r))| y + bias[i % n] + r)
            .collect();
        let error = nmse(&found, &expected);
        assert!(
            error < if self.kv == Kv::F32 { 1e-9 } else { 1e-5 },
            "{self:?} packed {packed_dot} {cuts:?}: {error:e}"
        );
    }

    /// Causal attention with a cache, over steps of any sizes.
    fn check(&self, gpu: &Gpu, cuts: &[Cut]) {
        let rows = cuts.iter().map(|c| c.rows).sum();
        let setting = Setting {
            kv: self.kv,
            capacity: 150,
            ..Setting::default()
        };
        let mask = Mask::Causal {
            window: self.window,
        };
        let error = self.error(gpu, rows, cuts, mask, &setting);
        // Rounding to f16 differs between the reference's f64 and the kernel's f32, and f16 devices
        // multiply in f16.
        let limit = if self.kv == Kv::Int8 {
            // One rounding step is a 127th of the largest value.
            1e-5
        } else if gpu.caps().f16 {
            3e-6
        } else if self.kv == Kv::F32 {
            1e-10
        } else {
            1e-7
        };
        assert!(
            error < limit,
            "{self:?} {cuts:?} f16 {}: {error:e}",
            gpu.caps().f16
        );
    }
}

/// First row within the window; 0 without a window.
fn first_seen(window: usize, row: usize) -> usize {
    if window > 0 {
        (row + 1).saturating_sub(window)
    } else {
        0
    }
}

/// Decode on a large GPU makes few KV splits, which the next matmul reduces, with its bias and
/// addend. Covers present and empty splits up to sixteen, windows, odd numbers of heads, every kind
/// of cache, packed int8 and f32 arithmetic.
#[test]
fn a_matmul_reduces_the_kv_splits_before_it() {
    let gpu = plain();
    for packed_dot in [false, true] {
        for (heads, kv_heads, head_dim, window) in [(17, 1, 32, 0), (10, 2, 64, 65), (6, 6, 96, 7)]
        {
            let layer = Layer {
                heads,
                kv_heads,
                head_dim,
                window,
                rope: Some((8, false)),
                ..PLAIN
            };
            let cuts = [few(1), few(1), many(66), few(1), many(30), few(1)];
            layer.check_matmul(&gpu, packed_dot, 150, &cuts);
        }
        let ends = [many(510), few(1), few(1)];
        let layer = Layer { heads: 16, ..PLAIN };
        Layer {
            kv: Kv::Packed,
            softcap: 5.0,
            ..layer
        }
        .check_matmul(&gpu, packed_dot, 512, &ends);
        let layer = Layer {
            kv: Kv::Int8,
            norm: Some(false),
            values: true,
            ..layer
        };
        layer.check_matmul(&gpu, packed_dot, 150, &[many(67), few(1)]);
    }
}

fn plain() -> Gpu {
    open(&DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    })
}

/// A prompt longer than a tile and a KV split, single tokens, a short chunk, and tokens again.
const TURNS: [fn(usize) -> Cut; 6] = [many, few, few, many, few, few];

fn turns(prompt: usize) -> Vec<Cut> {
    TURNS
        .iter()
        .zip([prompt, 1, 1, 11, 1, 3])
        .map(|(cut, rows)| cut(rows))
        .collect()
}

#[test]
fn heads_of_every_width_in_every_cache() {
    let plain = plain();
    for head_dim in [12, 20, 64, 80, 96, 128, 192, 256, 320, 512] {
        for kv in [Kv::F32, Kv::Packed, Kv::Int8] {
            let layer = Layer {
                head_dim,
                kv,
                rope: Some((head_dim / 8 * 4, false)),
                heads: 2,
                kv_heads: 1,
                ..PLAIN
            };
            layer.check(&plain, &turns(70));
        }
        let layer = Layer {
            head_dim,
            kv: Kv::F16,
            rope: Some((head_dim, false)),
            heads: 2,
            kv_heads: 1,
            ..PLAIN
        };
        layer.check(gpu(), &turns(70));
    }
}

#[test]
fn groups_of_query_heads() {
    let gpu = plain();
    for (heads, kv_heads) in [(1, 1), (3, 3), (9, 3), (8, 1), (14, 2), (20, 2), (17, 1)] {
        Layer {
            heads,
            kv_heads,
            ..PLAIN
        }
        .check(&gpu, &[many(9), few(1), few(2)]);
    }
}

#[test]
fn windows_softcaps_and_sinks() {
    let gpu = plain();
    for window in [0, 1, 7, 64, 65, 100] {
        for (softcap, sinks) in [(0.0, false), (5.0, true)] {
            Layer {
                window,
                softcap,
                sinks,
                ..PLAIN
            }
            .check(&gpu, &turns(70));
        }
    }
    Layer {
        sinks: true,
        ..PLAIN
    }
    .check(&gpu, &[few(1), few(1), many(1)]);
    Layer {
        softcap: 30.0,
        ..PLAIN
    }
    .check(&gpu, &[many(66), few(1)]);
}

/// Where dispatches are expensive, one dispatch handles all keys of few rows: tiles of keys,
/// windows, groups and every cache. Sinks need the second dispatch.
#[test]
fn short_contexts_use_one_split_when_dispatches_are_expensive() {
    let force = Some(VariantOverride {
        kernel: Kernel::AttentionDecode,
        name: "SINGLE_PASS",
        value: 1,
    });
    let gpu = open(&DeviceOptions {
        f16: false,
        variant_override: force,
        ..DeviceOptions::default()
    });
    for (head_dim, kv) in [
        (20, Kv::F32),
        (64, Kv::Packed),
        (80, Kv::Int8),
        (320, Kv::F32),
    ] {
        Layer {
            head_dim,
            kv,
            heads: 3,
            kv_heads: 1,
            rope: Some((8, false)),
            ..PLAIN
        }
        .check(&gpu, &turns(70));
    }
    Layer {
        window: 65,
        softcap: 5.0,
        ..PLAIN
    }
    .check(&gpu, &turns(70));
    Layer {
        heads: 17,
        kv_heads: 1,
        norm: Some(false),
        values: true,
        ..PLAIN
    }
    .check(&gpu, &turns(70));
    Layer {
        together: false,
        ..PLAIN
    }
    .check(&gpu, &turns(70));
    Layer {
        sinks: true,
        ..PLAIN
    }
    .check(&gpu, &turns(70));
}

/// Rows of an image attend to all of it; other rows attend to earlier rows, with and without a
/// window.
#[test]
fn attention_within_images_is_bidirectional() {
    let gpu = plain();
    // Text, an image longer than a tile of rows, text, an image, text; each image in one step.
    let mut segments: Vec<[u32; 2]> = (0..11).map(|i| [i, i + 1]).collect();
    for (length, image) in [(45, true), (3, false), (9, true), (14, false)] {
        let first = segments.len() as u32;

        segments.extend((0..length).map(|i: u32| {
            if image {
                [first, first + length]
            } else {
                [first + i, first + i + 1]
            }
        }));
    }
    let whole = vec![many(82)];
    for (window, cuts) in [
        (0, whole.clone()),
        (7, whole),
        (7, vec![many(11), many(46), many(11), many(12), few(2)]),
    ] {
        let setting = Setting {
            capacity: 150,
            segments: segments.clone(),
            ..Setting::default()
        };
        let error = PLAIN.error(
            &gpu,
            82,
            &cuts,
            Mask::BidirectionalImages { window },
            &setting,
        );
        assert!(error < 1e-10, "window {window}, {cuts:?}: {error:e}");
    }
}

/// Subgroup matrices, emulated on devices without them: head widths for each cache, windows,
/// softcaps, sinks and images; prompts over several tiles of rows and keys, then a chunk.
#[test]
fn subgroup_matrices_match_reference() {
    // Heads use four subgroups if workgroup memory allows, else two.
    let force = Some(VariantOverride {
        kernel: Kernel::GemmMatrix,
        name: "BM",
        value: 64,
    });
    let gpu = open(&DeviceOptions {
        variant_override: force,
        ..DeviceOptions::default()
    });
    let prompt = [many(100), few(1), many(37)];
    // Emulated kernels of wide heads take minutes to compile.
    let wider = [
        (80, Kv::F16),
        (128, Kv::Int8),
        (128, Kv::F16),
        (256, Kv::F16),
    ];
    let widths = [
        (32, Kv::F32),
        (20, Kv::Packed),
        (64, Kv::F16),
        (48, Kv::Int8),
    ]
    .into_iter();
    let wider = wider.into_iter().filter(|_| gpu.caps().matrix.is_some());
    for (head_dim, kv) in widths.chain(wider) {
        let layer = Layer {
            head_dim,
            kv,
            heads: 2,
            kv_heads: 1,
            rope: None,
            ..PLAIN
        };
        layer.check(&gpu, &prompt);
    }
    Layer {
        window: 7,
        softcap: 5.0,
        sinks: true,
        kv: Kv::F16,
        ..PLAIN
    }
    .check(&gpu, &prompt);
    let mut segments: Vec<[u32; 2]> = (0..11).map(|i| [i, i + 1]).collect();
    segments.extend((0..45).map(|_| [11, 56]));
    let setting = Setting {
        kv: Kv::F16,
        capacity: 150,
        segments,
        ..Setting::default()
    };
    let layer = Layer {
        kv: Kv::F16,
        ..PLAIN
    };
    let error = layer.error(
        &gpu,
        56,
        &[many(56)],
        Mask::BidirectionalImages { window: 20 },
        &setting,
    );
    assert!(error < 3e-6, "images: {error:e}");
    for (head_dim, relative, before, after) in [
        (64, false, ALL, ALL),
        (32, false, 5, 9),
        (20, true, ALL, ALL),
    ] {
        let kv_heads = if relative { 4 } else { 1 };
        let layer = Layer {
            head_dim,
            kv_heads,
            relative,
            rope: None,
            together: head_dim != 32,
            ..PLAIN
        };
        check_packed(&gpu, layer, &[30, 1, 72, 2], before, after);
    }
}

#[test]
fn norms_of_heads_and_rope() {
    let gpu = plain();
    for norm in [None, Some(false), Some(true)] {
        for rope in [
            None,
            Some((32, false)),
            Some((16, false)),
            Some((32, true)),
            Some((12, true)),
        ] {
            for together in [true, false] {
                Layer {
                    norm,
                    rope,
                    together,
                    ..PLAIN
                }
                .check(&gpu, &[many(5), few(1)]);
            }
        }
    }
}

/// Heads of v normalized without a gain before they enter every kind of cache.
#[test]
fn norms_of_values() {
    let gpu = plain();
    for (heads, kv_heads, head_dim, kv, together) in [
        (8, 1, 64, Kv::F32, true),
        (2, 1, 20, Kv::Int8, true),
        (3, 3, 12, Kv::Packed, false),
    ] {
        let norm = Some(false);
        let rope = Some((head_dim, false));

        let layer = Layer {
            heads,
            kv_heads,
            head_dim,
            norm,
            values: true,
            rope,
            together,
            kv,
            ..PLAIN
        };
        layer.check(&gpu, &[many(9), few(1), few(1)]);
    }
}

/// The cache is the same for all step sizes, up to its last position.
#[test]
fn rows_may_be_cut_anywhere() {
    let gpu = plain();
    for cuts in [
        vec![many(150)],
        vec![many(1), many(149)],
        vec![many(64), many(64), few(1), few(4), many(17)],
    ] {
        Layer {
            head_dim: 20,
            rope: Some((20, false)),
            ..PLAIN
        }
        .check(&gpu, &cuts);
    }
    Layer { window: 9, ..PLAIN }.check(&gpu, &vec![few(1); 20]);
}

#[test]
fn without_subgroups_it_matches_reference() {
    let gpu = open(&DeviceOptions {
        subgroups: false,
        f16: false,
        ..DeviceOptions::default()
    });
    for head_dim in [20, 64, 128] {
        let rope = Some((head_dim / 8 * 8, false));
        Layer {
            head_dim,
            rope,
            norm: Some(false),
            ..PLAIN
        }
        .check(&gpu, &turns(67));
    }
}

const ALL: usize = usize::MAX;

fn packed(lengths: &[usize]) -> Vec<[u32; 2]> {
    let mut segments = Vec::new();
    for length in lengths {
        let first = segments.len() as u32;
        segments.extend((0..*length).map(|_| [first, first + *length as u32]));
    }
    segments
}

fn check_packed(gpu: &Gpu, layer: Layer, lengths: &[usize], before: usize, after: usize) {
    let segments = packed(lengths);
    let rows = segments.len();
    let mask = Mask::Packed { before, after };

    let setting = Setting {
        segments,
        ..Setting::default()
    };
    // More rows than tokens: the padding must not matter.
    let mode = jerboa::plan::StepKind::Packed {
        tokens: rows + 9,
        sequences: lengths.len(),
    };
    let error = layer.error(gpu, rows, &[Cut { rows, mode }], mask, &setting);
    let limit = if gpu.caps().f16 { 3e-6 } else { 1e-10 };
    assert!(
        error < limit,
        "{layer:?} {lengths:?}, {before} before, {after} after: {error:e}"
    );
}

/// Packed sequences: rows attend to their own sequence, bidirectional or within a window, for every
/// split of a head over threads.
#[test]
fn segments() {
    let gpu = plain();
    let plain = Layer {
        rope: None,
        ..PLAIN
    };
    for (lengths, before, after) in [
        (&[1, 70, 3, 9][..], ALL, ALL),
        (&[83], ALL, ALL),
        (&[83], 5, 5),
        (&[30, 1, 52], 64, 0),
        (&[8, 8, 8], 1, 1),
        (&[1; 70], ALL, ALL),
        (&[70, 66], ALL, 0),
    ] {
        check_packed(&gpu, plain, lengths, before, after);
        check_packed(
            &gpu,
            Layer {
                head_dim: 80,
                kv_heads: 1,
                together: false,
                ..plain
            },
            lengths,
            before,
            after,
        );
    }
    for head_dim in [4, 12, 20, 60, 64, 68, 96, 128, 256, 512] {
        check_packed(&gpu, Layer { head_dim, ..plain }, &[3, 37, 65], ALL, ALL);
    }
}

/// Heads of packed sequences get their norm and RoPE by the position in their own sequence; scores
/// have a softcap or a bias.
#[test]
fn segments_with_norm_rope_softcap_and_bias() {
    let gpu = plain();
    let lengths = [5, 1, 140, 17];
    for (rope, norm) in [
        (Some((32, false)), None),
        (Some((16, true)), Some(false)),
        (None, Some(false)),
        (Some((32, false)), Some(true)),
    ] {
        check_packed(
            &gpu,
            Layer {
                rope,
                norm,
                ..PLAIN
            },
            &lengths,
            ALL,
            ALL,
        );
        check_packed(
            &gpu,
            Layer {
                rope,
                norm,
                together: false,
                kv_heads: 4,
                ..PLAIN
            },
            &lengths,
            7,
            0,
        );
    }
    check_packed(
        &gpu,
        Layer {
            rope: None,
            softcap: 3.0,
            ..PLAIN
        },
        &lengths,
        ALL,
        ALL,
    );
    check_packed(
        &gpu,
        Layer {
            rope: None,
            relative: true,
            kv_heads: 4,
            ..PLAIN
        },
        &lengths,
        ALL,
        ALL,
    );
}
