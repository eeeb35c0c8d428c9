//! Mixture of experts: routers, selected experts sorted by expert, and gated experts for few and
//! many rows.

use super::matmul::weights;
use super::op::tested_caps;
use jerboa::device::registry::Kernel;
use jerboa::device::{Caps, DeviceOptions, MatrixDialect, SubgroupMatrix, VariantOverride};
use jerboa::format::layout::{AffineForm, Float, PackedMatrix, WeightLayout};
use jerboa::gpu::{Backend, Gpu};
use jerboa::kernels::Launch;
use jerboa::kernels::experts::{
    ExpertGroups, ExpertTiles, Experts, RouterKernel, RouterScore, combine,
};
use jerboa::kernels::matmul::{
    GemmTiling, Matmul, NormPrologue, QuantizeInputs, View, WeightPlanes,
};
use jerboa::kernels::subgroup_matrix::MatrixTiling;
use jerboa::reference::experts::{GatedExperts, route};
use jerboa::reference::matmul::rms_norm;
use jerboa_tests::{bytes, floats, gpu, nmse, open, random, run, run_all};

fn routing(experts: u32, top_k: u32, score: RouterScore) -> RouterKernel<usize> {
    RouterKernel {
        experts,
        top_k,
        score,
        bias: None,
        groups: None,
        renormalize: false,
        eps: 0.0,
        scale: 1.0,
        gain: None,
    }
}

/// Routes rows of logits; ids must be equal and weights close.
fn check_route(what: &str, r: &RouterKernel<usize>, logits: &[f32], bias: &[f32]) {
    let experts = r.experts as usize;
    let top_k = r.top_k as usize;

    let rows = logits.len() / experts;
    let view = |buffer, stride: usize| View {
        buffer,
        offset: 0,
        stride: stride as u32,
    };
    let launch = r.launch(what, &view(0, experts), &view(1, 2 * top_k));
    let out = bytes(&vec![f32::NAN; rows * 2 * top_k]);
    let found = floats(
        &run(
            gpu(),
            &launch,
            rows as u32,
            &[bytes(logits), out, bytes(bias)],
        )[1],
    );
    for (row, found) in found.chunks(2 * top_k).enumerate() {
        let given = [r.bias.map(|_| bias), r.gain.map(|_| bias)];
        for (p, (expert, weight)) in route(&logits[row * experts..][..experts], given, r)
            .into_iter()
            .enumerate()
        {
            assert_eq!(found[p], expert as f32, "{what}, row {row}: {found:?}");
            let error = (f64::from(found[top_k + p]) - weight).abs();
            assert!(
                error < 1e-5 * weight.abs().max(1.0),
                "{what}, row {row}, pick {p}: {error:e}"
            );
        }
    }
}

#[test]
fn routers_match_reference() {
    for (experts, top_k) in [(4, 2), (6, 2), (60, 4), (128, 8), (512, 16), (16, 1)] {
        let mut logits: Vec<f32> = random(3, 5 * experts).iter().map(|v| v * 6.0).collect();
        // A row of equal logits, and one of equal pairs: of equal logits the lower id comes first.
        logits[..experts].fill(0.25);
        logits[experts..2 * experts]
            .iter_mut()
            .enumerate()
            .for_each(|(e, l)| *l = (e / 2 % 7) as f32);
        let bias: Vec<f32> = random(5, experts).iter().map(|v| v * 0.2).collect();
        let e = experts as u32;
        let k = top_k;

        check_route(
            "Qwen3 without norm",
            &routing(e, k, RouterScore::Softmax),
            &logits,
            &bias,
        );
        let gemma4 = RouterKernel {
            renormalize: true,
            gain: Some(2),
            ..routing(e, k, RouterScore::Softmax)
        };
        check_route("Gemma 4", &gemma4, &logits, &bias);
        check_route(
            "Mixtral",
            &RouterKernel {
                renormalize: true,
                ..routing(e, k, RouterScore::Softmax)
            },
            &logits,
            &bias,
        );
        let lfm2 = RouterKernel {
            renormalize: true,
            eps: 1e-6,
            scale: 1.5,
            bias: Some(2),
            ..routing(e, k, RouterScore::Sigmoid)
        };
        check_route("LFM2", &lfm2, &logits, &bias);
        if experts >= 60 {
            let groups = Some(ExpertGroups {
                count: 4,
                keep: 2,
                sum_two_best: true,
            });
            check_route(
                "DeepSeek-V3",
                &RouterKernel {
                    groups,
                    eps: 1e-20,
                    scale: 2.5,
                    ..lfm2
                },
                &logits,
                &bias,
            );
            let groups = Some(ExpertGroups {
                count: 4,
                keep: 3,
                sum_two_best: false,
            });
            let v2 = RouterKernel {
                groups,
                scale: 16.0,
                ..routing(e, k, RouterScore::Softmax)
            };
            check_route("DeepSeek-V2", &v2, &logits, &bias);
        }
        if top_k == 2 {
            check_route(
                "PhiMoE",
                &RouterKernel {
                    eps: 0.01,
                    ..routing(e, k, RouterScore::Mixer)
                },
                &logits,
                &bias,
            );
            let near: Vec<f32> = logits.iter().map(|l| 10.0 + l * 0.02).collect();
            check_route(
                "PhiMoE, near",
                &RouterKernel {
                    eps: 0.01,
                    ..routing(e, k, RouterScore::Mixer)
                },
                &near,
                &bias,
            );
        }
    }
}

/// A layer of experts and the routing of its rows.
#[derive(Clone, Copy)]
struct Case {
    layout: WeightLayout,
    experts: usize,
    each: usize,
    rows: usize,
    cols: usize,
    inner: usize,
    bias: bool,
    /// GPT-OSS: rows of gate and up alternate, and the gate is clamped.
    turns: bool,
    residual: bool,
    norm: bool,
    /// Number of buffers that hold the experts.
    runs: usize,
    /// Whether all rows select the same experts.
    same: bool,
    /// Squared ReLU without a gate, as in Nemotron 3.
    plain: bool,
    /// Elements that share a scale, if the inputs of many rows are quantized to 8 bits.
    packed: Option<u32>,
}

const CASE: Case = Case {
    layout: WeightLayout::Dense(Float::F32),
    experts: 6,
    each: 2,
    rows: 1,
    cols: 44,
    inner: 37,
    bias: false,
    turns: false,
    residual: false,
    norm: false,
    runs: 1,
    same: false,
    plain: false,
    packed: None,
};

const EPS: f32 = 1e-5;

/// Buffers of a case, by index.
struct Buffers {
    all: Vec<Vec<u8>>,
}

impl Buffers {
    fn add(&mut self, bytes: Vec<u8>) -> usize {
        self.all.push(bytes);
        self.all.len() - 1
    }

    fn poison(&mut self, floats: usize) -> usize {
        self.add(bytes(&vec![f32::NAN; floats]))
    }

    /// Planes of some rows of a matrix.
    fn planes(&mut self, packed: &PackedMatrix, from: usize, to: usize) -> WeightPlanes<usize> {
        let layout = packed.layout;
        let cols = packed.cols;

        let words =
            |plane: usize, rows: usize| (layout.plane_bytes(rows, cols)[plane] / 4) as usize;
        let cut = |p: usize| bytes(&packed.planes[p][words(p, from)..words(p, to)]);
        let q = cut(0);
        let s = cut(1);

        let s = (!s.is_empty()).then(|| self.add(s));
        WeightPlanes {
            layout,
            rows: (to - from) as u32,
            cols: cols as u32,
            q: self.add(q),
            s,
        }
    }
}

fn view(buffer: usize, stride: usize) -> View<usize> {
    View {
        buffer,
        offset: 0,
        stride: stride as u32,
    }
}

/// Runs a layer and its CPU reference, with a plan for few rows or for many; returns the normalized
/// mean square error.
fn check(gpu: &Gpu, caps: &Caps, case: Case, many: bool) -> f64 {
    let Case {
        layout,
        experts,
        each,
        rows,
        cols,
        inner,
        ..
    } = case;
    let first_rows = if case.plain { inner } else { 2 * inner };
    let (gate_up, gate_up_values) = weights(layout, experts * first_rows, cols, 21);
    let (down, down_values) = weights(layout, experts * cols, inner, 22);
    let gate_up_bias = random(6, experts * first_rows);
    let down_bias = random(7, experts * cols);

    let x_stride = cols.next_multiple_of(4);
    let span = inner.next_multiple_of(4);

    let mut x = random(3, rows * x_stride);
    x.chunks_exact_mut(x_stride)
        .for_each(|row| row[cols..].fill(f32::NAN));
    let residual = random(8, rows * cols);
    let gain = random(9, x_stride);

    let mut logits: Vec<f32> = random(4, rows * experts).iter().map(|v| v * 3.0).collect();
    if case.same {
        let first = logits[..experts].to_vec();
        logits
            .chunks_mut(experts)
            .for_each(|row| row.copy_from_slice(&first));
    }
    let r = RouterKernel {
        renormalize: true,
        ..routing(experts as u32, each as u32, RouterScore::Softmax)
    };

    let mut b = Buffers { all: Vec::new() };
    let x_at = b.add(bytes(&x));
    let state = b.add(bytes(&[0u32, rows as u32, 0, 0, 0, 0, 0, 0]));
    let logits_at = b.add(bytes(&logits));
    let chosen = b.poison(rows * 2 * each);

    let hidden = b.poison(rows * each * span);
    let out = b.poison(rows * cols);

    let each_out = b.poison(rows * each * cols);
    let gate_up_bias_at = b.add(bytes(&gate_up_bias));
    let down_bias_at = b.add(bytes(&down_bias));

    let residual_at = b.add(bytes(&residual));
    let gain_at = b.add(bytes(&gain));

    let tile_rows = ExpertTiles::<usize>::tile_rows(rows as u32, each as u32, experts as u32);
    let e32 = experts as u32;
    let k32 = each as u32;

    let mut buckets = ExpertTiles {
        buffer: 0,
        experts: e32,
        top_k: k32,
        rows: rows as u32 + 3,
        tile_rows,
    };
    buckets.buffer = b.add(vec![0xff; buckets.bytes() as usize]);

    let mut launches: Vec<Launch<usize>> =
        vec![r.launch("route", &view(logits_at, experts), &view(chosen, 2 * each))];
    if many {
        launches.push(buckets.launch("sort", &view(chosen, 2 * each), state));
    }
    let clamp = case.turns.then_some([1.702, 0.7]);
    let act = if case.plain { 7 } else { 1 };
    let run = experts.div_ceil(case.runs);
    for second in [false, true] {
        let mut parts = None;
        for (index, first) in (0..experts).step_by(run).enumerate() {
            let count = run.min(experts - first);
            let of = |n: usize| (first * n, (first + count) * n);
            let (packed, rows_each) = if second {
                (&down, cols)
            } else {
                (&gate_up, first_rows)
            };
            let (from, to) = of(rows_each);
            let weight = b.planes(packed, from, to);
            let (input, output) = match (second, many) {
                (false, false) => (view(x_at, x_stride), view(hidden, each * span)),
                (false, true) => (view(x_at, x_stride), view(hidden, span)),
                (true, false) => (view(hidden, each * span), view(out, cols)),
                (true, true) => (view(hidden, span), view(each_out, cols)),
            };
            let mut m = Matmul::plain("product", weight, input, output);
            m.n = if second { cols } else { inner } as u32;
            m.bias = case.bias.then_some(if second {
                down_bias_at
            } else {
                gate_up_bias_at
            });
            let taken = Experts {
                selection: view(chosen, 2 * each),
                top_k: k32,
                first: first as u32,
                count: count as u32,
                rows: rows_each as u32,
                row_stride: if case.turns && !second { 2 } else { 1 },
                span: span as u32,
                sum_experts: second && !many,
                accumulate: index > 0,
                clamp: if second { None } else { clamp },
            };
            m.experts = Some(taken.clone());
            if !second {
                m.gated = (!case.plain).then_some(if case.turns { 1 } else { inner as u32 });
                m.act = if clamp.is_some() { 0 } else { act };
                m.norm = (case.norm && !many).then_some(NormPrologue {
                    gain: gain_at,
                    offset: 1.0,
                    eps: EPS,
                });
            } else if !many && index == 0 {
                m.residual = case.residual.then(|| view(residual_at, cols));
            }
            let choice = if many {
                MatrixTiling::of_experts(caps, &m, &buckets)
            } else {
                None
            };
            assert_eq!(
                choice.is_some(),
                many && caps.matrix.is_some(),
                "subgroup matrices"
            );
            let launch = match choice {
                Some(choice) => {
                    let floats = m.expert_partials_bytes(&buckets, choice) as usize / 4;
                    let parts = *parts.get_or_insert_with(|| b.poison(floats));
                    m.gemm_experts_subgroup_matrix(&buckets, &taken, second, parts, choice)
                }
                None if let Some(group) = case.packed => {
                    let form = m
                        .quantized_rows(caps, rows, QuantizeInputs::Always)
                        .expect("weights of 4 or 8 bits")
                        .with_group(group);
                    let times = if second { k32 } else { 1 };
                    let all = rows * times as usize;
                    let quantized = b.add(vec![0xa5; form.bytes(all) as usize]);
                    launches.push(form.launch_times(times, &m, state, quantized));
                    m.gemm_experts_packed(&buckets, &taken, second, (quantized, form))
                }
                None if many => {
                    m.gemm_experts(&buckets, &taken, second, GemmTiling::of(caps, &m, rows))
                }
                None => m.gemv(caps, rows, state),
            };
            launches.push(launch);
            let last = many && first + count == experts;
            if last && second {
                let residual = case.residual.then(|| view(residual_at, cols));
                let y = match (parts, choice) {
                    (Some(parts), Some(choice)) => {
                        view(parts, m.expert_partials_stride(choice) as usize)
                    }
                    _ => view(each_out, cols),
                };
                let sum = combine(
                    "combine",
                    &y,
                    &taken,
                    residual.as_ref(),
                    &view(out, cols),
                    cols as u32,
                );
                launches.push(if choice.is_some() {
                    buckets.combine_partials(sum, m.bias)
                } else {
                    sum
                });
            } else if let (Some(parts), Some(choice), true) = (parts, choice, last) {
                launches.push(m.gemm_experts_epilogue(&buckets, &taken, parts, choice));
            }
        }
    }
    let found = floats(&run_all(gpu, &launches, rows as u32, &b.all)[out]);

    let reference = GatedExperts {
        gate_up: &gate_up_values,
        gate_up_bias: case.bias.then_some(&gate_up_bias[..]),
        down: &down_values,
        down_bias: case.bias.then_some(&down_bias[..]),
        cols,
        inner,
        gated: !case.plain,
        interleaved: case.turns,
        act,
        clamp,
        round: case.packed.map(|group| group as usize),
    };
    let mut expected = Vec::new();
    for (row, input) in x.chunks_exact(x_stride).enumerate() {
        let input = &input[..cols];
        let normed = (case.norm && !many).then(|| rms_norm(input, &gain[..cols], 1.0, EPS));
        let chosen_rows = route(&logits[row * experts..][..experts], [None; 2], &r);
        let y = reference.of(normed.as_deref().unwrap_or(input), &chosen_rows);
        let rest = &residual[row * cols..][..cols];
        expected.extend(
            y.iter()
                .zip(rest)
                .map(|(y, r)| y + if case.residual { *r } else { 0.0 }),
        );
    }
    nmse(&found, &expected)
}

fn affine(bits: u8, group: u16) -> WeightLayout {
    WeightLayout::Affine {
        bits,
        group,
        form: AffineForm::Bias,
        scale: Float::F16,
    }
}

#[test]
fn experts_of_few_rows() {
    let plain = open(&DeviceOptions {
        subgroups: false,
        ..Default::default()
    });
    let layouts = [
        WeightLayout::Dense(Float::BF16),
        affine(4, 32),
        WeightLayout::Q4K,
        WeightLayout::Mxfp4,
        WeightLayout::Q6K,
    ];
    for (index, layout) in layouts.into_iter().enumerate() {
        let case = Case {
            layout,
            // Scales that share words need whole words per expert.
            inner: if layout == WeightLayout::Mxfp4 {
                38
            } else {
                37
            },
            bias: index % 2 == 0,
            turns: index % 3 == 0,
            residual: index != 1,
            norm: index != 3,
            runs: 1 + index % 3,
            rows: 1 + index % 2 * 2,
            ..CASE
        };
        for gpu in [gpu(), &plain] {
            for caps in tested_caps(gpu) {
                let error = check(gpu, &caps, case, false);
                assert!(
                    error < 1e-9,
                    "{layout}, software {}: {error:e}",
                    caps.software
                );
            }
        }
    }
}

/// Experts without gates, for few and many rows.
#[test]
fn experts_without_gates() {
    for (index, layout) in [
        WeightLayout::Dense(Float::BF16),
        affine(4, 32),
        WeightLayout::Q4K,
        WeightLayout::Q6K,
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            layout,
            plain: true,
            bias: index == 2,
            residual: index != 1,
            runs: 1 + index % 2,
            ..CASE
        };
        for (rows, many) in [(1, false), (3, false), (70, true)] {
            let error = check(
                gpu(),
                gpu().caps(),
                Case {
                    rows,
                    norm: index == 3 && !many,
                    ..case
                },
                many,
            );
            assert!(error < 1e-9, "{layout}, {rows} rows: {error:e}");
        }
        // Whole blocks.
        let error = check(
            gpu(),
            gpu().caps(),
            Case {
                cols: 172,
                inner: 204,
                rows: 2,
                ..case
            },
            false,
        );
        assert!(error < 1e-7, "{layout} by blocks: {error:e}");
    }
}

/// Whole blocks of weights; K is longer than a team in one case.
#[test]
fn experts_by_blocks() {
    for (index, layout) in [affine(4, 32), affine(8, 64), WeightLayout::Q4K]
        .into_iter()
        .enumerate()
    {
        for (name, value) in [("DOT", 0), ("DOT", 1), ("ROW_GROUPS", 2)] {
            let force = Some(VariantOverride {
                kernel: Kernel::GemvBlocks,
                name,
                value,
            });
            let long = value + index as u32 == 2;
            let caps = Caps {
                force,
                max_invocations: if long { 64 } else { 1024 },
                ..gpu().caps().clone()
            };
            let (cols, inner) = if long { (1030, 76) } else { (172, 204) };
            let bias = value == 0;
            let norm = index != 1;
            let residual = index == 2;

            let case = Case {
                layout,
                cols,
                inner,
                bias,
                norm,
                residual,
                runs: 1 + index % 2,
                rows: 2,
                ..CASE
            };
            let error = check(gpu(), &caps, case, false);
            let limit = if caps.constant_or_forced(Kernel::GemvBlocks, "DOT", 0) == 1 {
                1e-7
            } else {
                1e-8
            };
            assert!(error < limit, "{name} = {value}, {layout}: {error:e}");
        }
    }
}

/// GPT-OSS's MXFP4 in whole blocks, with biases and clamped gates: one expert, rows with equal
/// experts, and experts in several buffers with K longer than a team.
#[test]
fn mxfp4_experts_by_blocks() {
    let all = Case {
        layout: WeightLayout::Mxfp4,
        bias: true,
        turns: true,
        residual: true,
        norm: true,
        ..CASE
    };
    let cases = [
        (
            0,
            1024,
            Case {
                cols: 2880,
                inner: 76,
                experts: 1,
                each: 1,
                ..all
            },
        ),
        (
            1,
            1024,
            Case {
                cols: 172,
                inner: 204,
                experts: 5,
                each: 4,
                rows: 3,
                same: true,
                ..all
            },
        ),
        (
            1,
            64,
            Case {
                cols: 2880,
                inner: 38,
                experts: 3,
                rows: 2,
                runs: 3,
                norm: false,
                ..all
            },
        ),
    ];
    for (value, max_invocations, case) in cases {
        let force = Some(VariantOverride {
            kernel: Kernel::GemvBlocks,
            name: "DOT",
            value,
        });
        let caps = Caps {
            force,
            max_invocations,
            ..gpu().caps().clone()
        };
        let error = check(gpu(), &caps, case, false);
        let limit = if value == 1 { 1e-7 } else { 1e-8 };
        assert!(
            error < limit,
            "DOT = {value}, {} experts: {error:e}",
            case.experts
        );
    }
}

/// Experts with no rows, with few, with several tiles, and one that all rows select.
#[test]
fn experts_of_many_rows() {
    let layouts = [
        WeightLayout::Dense(Float::F16),
        affine(4, 64),
        WeightLayout::Mxfp4,
        WeightLayout::Q4K,
    ];
    for (index, layout) in layouts.into_iter().enumerate() {
        for same in [false, true] {
            let turns = layout == WeightLayout::Mxfp4;
            let case = Case {
                layout,
                experts: [6, 40, 6, 3][index],
                each: [2, 4, 2, 1][index],
                rows: [1, 37, 150, 33][index],
                inner: if turns { 38 } else { 37 },
                bias: index != 1,
                turns,
                residual: index != 2,
                runs: 1 + index % 3,
                same,
                ..CASE
            };
            let caps = Caps {
                matrix: None,
                ..gpu().caps().clone()
            };
            let error = check(gpu(), &caps, case, true);
            assert!(error < 1e-9, "{layout}, same {same}: {error:e}");
        }
    }
}

/// Inputs in 8 bits: experts with no rows, with few, with several tiles of both heights, and one that
/// all rows select; in every layout that the kernel reads.
#[test]
fn experts_on_packed_dot_products() {
    let cases = [
        (WeightLayout::Mxfp4, [6, 2, 150], [70, 102]),
        (affine(4, 64), [40, 4, 37], [100, 37]),
        (affine(8, 32), [3, 1, 33], [44, 130]),
        (WeightLayout::Q4K, [4, 3, 130], [300, 45]),
    ];
    for (index, (layout, [experts, each, rows], [cols, inner])) in cases.into_iter().enumerate() {
        for same in [false, true] {
            let turns = layout == WeightLayout::Mxfp4;
            let case = Case {
                layout,
                experts,
                each,
                rows,
                cols,
                inner,
                bias: index != 1,
                turns,
                residual: index != 2,
                runs: 1 + index % 3,
                same,
                plain: index == 3,
                packed: Some(if index == 1 && same { 64 } else { 32 }),
                ..CASE
            };
            let caps = Caps {
                matrix: None,
                ..gpu().caps().clone()
            };
            let error = check(gpu(), &caps, case, true);
            assert!(error < 1e-7, "{layout}, same {same}: {error:e}");
        }
    }
}

/// Subgroup matrices, emulated on devices without them: experts with no rows, with few, with
/// several tiles, and one that all rows select; both tile heights, f16 and f32, matrices of 16x16
/// and 8x8.
#[test]
fn experts_on_subgroup_matrices() {
    let device = gpu().caps();
    let cases = [
        (WeightLayout::Dense(Float::F16), 16, [40, 4, 37], 1),
        (affine(4, 64), 16, [6, 2, 150], 2),
        (WeightLayout::Mxfp4, 8, [6, 2, 145], 3),
    ];
    for (index, (layout, side, [experts, each, rows], runs)) in cases.into_iter().enumerate() {
        let units = SubgroupMatrix {
            side,
            half: side == 16 && device.f16,
            lanes: 32,
            words: MatrixDialect::Emulated,
        };
        let caps = Caps {
            matrix: device.matrix.or(Some(units)),
            max_invocations: 256,
            ..device.clone()
        };
        let limit = if caps.subgroup_matrix().is_some_and(|units| units.half) {
            1e-6
        } else {
            1e-9
        };
        for same in [false, true] {
            let turns = layout == WeightLayout::Mxfp4;
            let inner = if turns { 38 } else { 37 };
            let bias = index != 1;
            let residual = index != 2;

            let case = Case {
                layout,
                experts,
                each,
                rows,
                inner,
                bias,
                turns,
                residual,
                runs,
                same,
                ..CASE
            };
            let error = check(gpu(), &caps, case, true);
            assert!(error < limit, "{layout}, same {same}: {error:e}");
        }
    }
}
