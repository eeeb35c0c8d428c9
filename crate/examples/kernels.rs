//! Benchmarks the matmul kernels on this machine's GPU over real shapes, weight layouts and tile
//! sizes:
//! `cargo run --release -p jerboa --example kernels [-- gemv|gemm|units|short|packed|norms|batch|recurrent|sample] [-- all]`.
//!
//! Weights are read from copies that together exceed any cache, and dispatches are dependent, as in
//! a decode step. Prints the median of five runs in microseconds, with GB/s (gemv) or Tflop/s
//! (gemm, units, short). For recurrent layers it prints the total time of all their kernels.

use jerboa::device::VariantOverride;
use jerboa::device::registry::Kernel;
use jerboa::format::layout::{AffineForm, Float, WeightLayout};
use jerboa::gpu::{Backend, Buffer, BufferUsage, Caps, Command, DeviceOptions, DispatchDesc, Gpu};
use jerboa::kernels::Launch;
use jerboa::kernels::attention::Kv;
use jerboa::kernels::conv::ShortConvKernel;
use jerboa::kernels::matmul::{
    GemmTiling, GemvBlocksTiling, GemvTiling, Matmul, NormPrologue, QuantizeInputs, View,
    WeightPlanes,
};
use jerboa::kernels::recurrent::{GatedNormKernel, RecurrentKernel, RuleBuffers};
use jerboa::kernels::sample::{SampleKernels, SampledRow, mask_words, settings, work_bytes};
use jerboa::sample::SamplingParams;
use std::error::Error;
use std::time::Instant;

/// Minimum bytes of all copies of a weight together.
const CACHE_BYTES: u64 = 160 << 20;

fn affine(bits: u8) -> WeightLayout {
    WeightLayout::Affine {
        bits,
        group: 32,
        form: AffineForm::Bias,
        scale: Float::F16,
    }
}

struct Bench {
    gpu: Gpu,
    out: Buffer,
    x: Buffer,
    state: Buffer,
    parts: Buffer,
}

impl Bench {
    /// Median microseconds per launch, over its copies.
    fn time(&self, launches: &[Launch<Buffer>], rows: u32) -> Result<f64, Box<dyn Error>> {
        let mut variants: Vec<_> = launches.iter().map(|l| l.variant.clone()).collect();
        variants.sort();
        variants.dedup();
        let shaders = variants
            .iter()
            .map(|v| v.shader(false))
            .collect::<Result<Vec<_>, _>>()?;
        let pipelines = pollster::block_on(self.gpu.pipelines(&shaders))?;
        let step = |l: &Launch<Buffer>| -> Result<DispatchDesc, jerboa::Error> {
            let index = variants.iter().position(|v| *v == l.variant).unwrap_or(0);
            let r = l.resolve(&shaders[index])?;
            let label = l.label.clone();
            let grid = l.grid.at(rows);
            let pipeline = pipelines[index].clone();

            Ok(DispatchDesc {
                label,
                pipeline,
                buffers: r.buffers,
                params: r.params,
                grid,
            })
        };
        let program = self.gpu.program(
            "bench",
            launches.iter().map(step).collect::<Result<_, _>>()?,
        )?;
        // Prefill matmuls take long enough to need few repetitions.
        let repeat = if rows > 8 {
            3
        } else {
            (200 / launches.len()).max(2)
        };
        let run = |count: usize| -> Result<f64, jerboa::Error> {
            let start = Instant::now();
            let work: Vec<Command<'_>> = (0..count)
                .map(|_| Command::Run {
                    program: &program,
                    grids: None,
                })
                .collect();
            self.gpu.submit(&work)?;
            pollster::block_on(self.gpu.read(&self.out, 0, 16))?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        run(1)?;
        let mut times = Vec::new();
        for _ in 0..5 {
            let one = run(1)?;
            let many = run(1 + repeat)?;

            times.push((many - one) / (repeat * launches.len()) as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[2])
    }

    /// Sets the rows of x that kernels with a state compute.
    fn set_rows(&self, rows: u32) {
        let state = [0u32, rows, 0, 0, 0, 0, 0, 0];
        self.gpu.write(&self.state, 0, bytemuck::cast_slice(&state));
    }

    fn launches(
        &self,
        layout: WeightLayout,
        n: usize,
        k: usize,
        gated: bool,
        make: impl Fn(&Matmul<Buffer>) -> Vec<Launch<Buffer>>,
    ) -> Result<(Vec<Launch<Buffer>>, u64), jerboa::Error> {
        let planes = layout.plane_bytes(n, k);
        let bytes = planes[0] + planes[1];
        let copies = (CACHE_BYTES / bytes + 1).min(24);
        let view = |b: &Buffer, stride: usize| View {
            buffer: b.clone(),
            offset: 0,
            stride: stride as u32,
        };
        let launch = |_| {
            let q = self.gpu.buffer("w", planes[0], BufferUsage::Storage)?;
            let s = match planes[1] {
                0 => None,
                size => Some(self.gpu.buffer("s", size, BufferUsage::Storage)?),
            };
            let weight = WeightPlanes {
                layout,
                rows: n as u32,
                cols: k as u32,
                q,
                s,
            };
            let mut m = Matmul::plain("m", weight, view(&self.x, k), view(&self.out, n));
            if gated {
                (m.n, m.gated, m.act) = (n as u32 / 2, Some(n as u32 / 2), 1);
            }
            Ok(make(&m))
        };
        let launches = (0..copies)
            .map(launch)
            .collect::<Result<Vec<_>, jerboa::Error>>()?;
        Ok((launches.into_iter().flatten().collect(), bytes))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|a| a == name);
    let gpu = pollster::block_on(Gpu::open(&DeviceOptions::default()))?;
    println!("{}", gpu.caps().description);
    let buffer = |size: u64| gpu.buffer("data", size, BufferUsage::Storage);
    let out = buffer(1 << 28)?;
    let x = buffer(1 << 26)?;
    let state = buffer(64)?;
    let parts = buffer(1 << 28)?;

    let bench = Bench {
        gpu,
        out,
        x,
        state,
        parts,
    };
    // n, k: q+k+v, o, gate+up, down of Qwen2-0.5B and Llama-3.1-8B, an lm_head.
    let shapes = [
        (1152, 896, false),
        (896, 896, false),
        (9728, 896, true),
        (896, 4864, false),
        (6144, 4096, false),
        (4096, 4096, false),
        (28672, 4096, true),
        (4096, 14336, false),
        (151_936, 896, false),
    ];
    let layouts = [
        ("f16", WeightLayout::Dense(Float::F16)),
        ("q8", affine(8)),
        ("q4", affine(4)),
    ];
    if has("recurrent") {
        return recurrent(&bench);
    }
    if has("sample") {
        return sample(&bench);
    }
    if has("units") {
        return subgroup_matrix(&bench);
    }
    if has("short") {
        return short_prompts(&bench);
    }
    if has("packed") {
        return packed_gemm(&bench);
    }
    if has("norms") {
        return fused_norms(&bench);
    }
    if has("batch") {
        return batched_gemv(&bench);
    }
    if !has("gemm") {
        for (n, k, gated) in shapes {
            for (name, layout) in layouts {
                gemv(&bench, name, layout, (n, k, gated), has("all"))?;
            }
        }
        // The four selected experts of GPT-OSS-20B as one matrix; gate+up, down, o of BitNet-2B.
        for (name, layout, shape) in [
            ("mxfp4", WeightLayout::Mxfp4, (23_040, 2880, true)),
            ("mxfp4", WeightLayout::Mxfp4, (2880, 11_520, false)),
            ("ternary", WeightLayout::Ternary, (13_824, 2560, true)),
            ("ternary", WeightLayout::Ternary, (2560, 6912, false)),
            ("ternary", WeightLayout::Ternary, (2560, 2560, false)),
        ] {
            gemv(&bench, name, layout, shape, has("all"))?;
        }
    }
    if !has("gemv") {
        for rows in [128u32, 512] {
            bench.set_rows(rows);
            for (n, k, gated) in &shapes[..8] {
                for (name, layout) in layouts {
                    gemm(&bench, name, layout, (*n, *k, *gated), rows, has("all"))?;
                }
            }
        }
    }
    Ok(())
}

/// Subgroup-matrix matmuls of the vision encoder of Qwen3.5-0.8B at 768x768, and of a prompt.
/// Prints the matmul, then its split-K reduction.
fn subgroup_matrix(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let f16 = WeightLayout::Dense(Float::F16);
    let encoder =
        [(2304, 768), (768, 768), (3072, 768), (768, 3072)].map(|(n, k)| ("f16", f16, n, k, 2304));
    let merger = [(3072, 3072), (1024, 3072)].map(|(n, k)| ("f16", f16, n, k, 576));
    let prompt =
        [(6144, 4096), (4096, 4096), (4096, 14336)].map(|(n, k)| ("q4", affine(4), n, k, 1024));
    for (name, layout, n, k, rows) in encoder.into_iter().chain(merger).chain(prompt) {
        bench.set_rows(rows);
        for height in [256, 128, 64] {
            prefill_matmul(bench, (name, layout), (n, k, false), rows, height)?;
        }
    }
    Ok(())
}

/// Subgroup-matrix matmuls of short prompts of Llama-3.1-8B.
fn short_prompts(bench: &Bench) -> Result<(), Box<dyn Error>> {
    for rows in [16, 32, 64] {
        bench.set_rows(rows);
        for (n, k, gated) in LLAMA_SHAPES {
            for height in [32, 64, 128] {
                prefill_matmul(bench, ("q4", affine(4)), (n, k, gated), rows, height)?;
            }
        }
    }
    Ok(())
}

/// n, k and whether it is gated, of matmuls of Qwen2-0.5B.
const QWEN2_SHAPES: [(usize, usize, bool); 3] =
    [(1152, 896, false), (9728, 896, true), (896, 4864, false)];

/// The same of Llama-3.1-8B.
const LLAMA_SHAPES: [(usize, usize, bool); 4] = [
    (6144, 4096, false),
    (4096, 4096, false),
    (28672, 4096, true),
    (4096, 14336, false),
];

/// GEMVs of batched decode: rows of x in 16 bits, in 8, and in 8 that were quantized before, with
/// the time of that.
fn batched_gemv(bench: &Bench) -> Result<(), Box<dyn Error>> {
    for rows in [2u32, 4, 8] {
        bench.set_rows(rows);
        for (n, k, gated) in QWEN2_SHAPES.into_iter().chain(LLAMA_SHAPES) {
            let mut times = Vec::new();
            for batch in [false, true] {
                let (launches, _) = bench.launches(affine(4), n, k, gated, |m| {
                    let m = Matmul { batch, ..m.clone() };
                    vec![m.gemv(bench.gpu.caps(), rows as usize, bench.state.clone())]
                })?;
                times.push(bench.time(&launches, rows)?);
            }
            print!(
                "batch {rows} q4 {n}x{k}: {:.2} us in 16 bits, {:.2} in 8",
                times[0], times[1]
            );
            for parts in [4, 8] {
                let caps = Caps {
                    force: Some(VariantOverride {
                        kernel: Kernel::GemvPacked,
                        name: "PARTS",
                        value: parts,
                    }),
                    ..bench.gpu.caps().clone()
                };
                let packed = |quantizes: bool| {
                    bench.launches(affine(4), n, k, gated, |m| {
                        let m = Matmul {
                            batch: true,
                            ..m.clone()
                        };
                        let state = bench.state.clone();
                        let form = m.quantized_batch(&caps, rows as usize);
                        form.map_or(Vec::new(), |form| match quantizes {
                            true => vec![form.launch(&m, state, bench.parts.clone())],
                            false => {
                                let x = bench.parts.clone();
                                vec![m.gemv_packed(&caps, rows as usize, state, x)]
                            }
                        })
                    })
                };
                let [product, input] = [packed(false)?.0, packed(true)?.0];
                if !product.is_empty() {
                    let [product, input] = [bench.time(&product, rows)?, bench.time(&input, rows)?];
                    print!(", {product:.2} and {input:.2} in advance, {parts} parts");
                }
            }
            println!();
        }
    }
    Ok(())
}

/// GEMMs on packed dot products of batches and short prompts, and their reduction, with three numbers
/// of workgroups.
fn packed_gemm(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let caps = Caps {
        matrix: None,
        ..bench.gpu.caps().clone()
    };
    for rows in [16u32, 32, 128] {
        bench.set_rows(rows);
        for (n, k, gated) in QWEN2_SHAPES.into_iter().chain(LLAMA_SHAPES) {
            print!("packed {rows} q4 {n}x{k}:");
            for target in [528, 1056, 2112] {
                let times = [0, 1].map(|which| {
                    let (launches, _) = bench.launches(affine(4), n, k, gated, |m| {
                        let form = m.quantized_rows(&caps, rows as usize, QuantizeInputs::Always);
                        let x = form.map(|form| (bench.x.clone(), form));
                        let choice = GemmTiling {
                            target,
                            ..GemmTiling::packed(&caps, m, rows as usize)
                        };
                        let made = x.map(|x| {
                            m.gemm_packed(bench.state.clone(), x, bench.parts.clone(), choice)
                        });
                        made.map_or(Vec::new(), |made| vec![made[which].clone()])
                    })?;
                    bench.time(&launches, rows)
                });
                let [product, reduction] = times;
                print!(" {target}: {:.1} + {:.1}", product?, reduction?);
            }
            println!();
        }
    }
    Ok(())
}

/// GEMVs with and without a fused norm, alternating. The difference is the most that could be saved
/// if the previous matmul computed the norm's sum of squares.
fn fused_norms(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let gain = bench.gpu.buffer("gain", 4096 * 4, BufferUsage::Storage)?;
    for (n, k, gated) in [
        (1152, 896, false),
        (9728, 896, true),
        (6144, 4096, false),
        (28672, 4096, true),
    ] {
        let mut times = [Vec::new(), Vec::new()];
        for turn in 0..10 {
            let norm = (turn % 2 == 0).then(|| NormPrologue {
                gain: gain.clone(),
                offset: 0.0,
                eps: 1e-6,
            });
            let (launches, _) = bench.launches(affine(4), n, k, gated, |m| {
                let m = Matmul {
                    norm: norm.clone(),
                    ..m.clone()
                };
                vec![m.gemv(bench.gpu.caps(), 1, bench.state.clone())]
            })?;
            times[turn % 2].push(bench.time(&launches, 1)?);
        }
        let [with, without] = times.map(|mut all| {
            all.sort_by(f64::total_cmp);
            all
        });
        println!(
            "norm q4 {n}x{k}: {:.2} us with ({with:.2?}), {:.2} without ({without:.2?})",
            with[2], without[2]
        );
    }
    Ok(())
}

/// Benchmarks one prefill matmul with tiles of `height` rows, and its split-K reduction.
fn prefill_matmul(
    bench: &Bench,
    (name, layout): (&str, WeightLayout),
    (n, k, gated): (usize, usize, bool),
    rows: u32,
    height: u32,
) -> Result<(), Box<dyn Error>> {
    let mut caps = bench.gpu.caps().clone();
    caps.force = Some(VariantOverride {
        kernel: Kernel::GemmMatrix,
        name: "BM",
        value: height,
    });
    let mut us = [0.0; 2];
    for (part, us) in us.iter_mut().enumerate() {
        let make = |m: &Matmul<Buffer>| {
            let launches = m
                .prefill(
                    &caps,
                    rows as usize,
                    bench.state.clone(),
                    bench.parts.clone(),
                    None,
                )
                .1;
            launches.into_iter().skip(part).take(1).collect()
        };
        let (launches, _) = bench.launches(layout, n, k, gated, make)?;
        *us = bench.time(&launches[..launches.len().min(8)], rows)?;
    }
    let flops = 2.0 * f64::from(rows) * (n * k) as f64;
    let [matmul, reduce] = us;
    println!(
        "units {name} {rows}x{n}x{k}, tiles of {height} rows: {matmul:.1} us and {reduce:.1} to reduce, {:.1} Tflop/s, {:.1} with both",
        flops / matmul / 1e6,
        flops / (matmul + reduce) / 1e6
    );
    Ok(())
}

fn gemm(
    bench: &Bench,
    name: &str,
    layout: WeightLayout,
    (n, k, gated): (usize, usize, bool),
    rows: u32,
    all: bool,
) -> Result<(), Box<dyn Error>> {
    let choices = [(64, 128), (128, 128), (64, 64)]
        .map(|(bm, bn)| [(bm, bn, 264), (bm, bn, 528), (bm, bn, 1)]);
    let mut choices: Vec<_> = choices.into_iter().flatten().map(Some).collect();
    choices.truncate(if all { choices.len() } else { 0 });
    choices.insert(0, None);
    for choice in choices {
        let make = |m: &Matmul<Buffer>| {
            let mut as_is = GemmTiling::of(bench.gpu.caps(), m, rows as usize);
            if let Some((bm, bn, target)) = choice {
                as_is = GemmTiling {
                    bm,
                    bn,
                    target,
                    ..as_is
                };
            }
            m.gemm(bench.state.clone(), bench.parts.clone(), as_is)
                .to_vec()
        };
        let (launches, _) = bench.launches(layout, n, k, gated, make)?;
        let us = bench.time(&launches[..launches.len().min(8)], rows)? * 2.0;
        let flops = 2.0 * f64::from(rows) * (n * k) as f64;
        println!(
            "gemm {name} {rows}x{n}x{k} {choice:?}: {us:.1} us, {:.2} Tflop/s",
            flops / us / 1e6
        );
    }
    Ok(())
}

fn gemv(
    bench: &Bench,
    name: &str,
    layout: WeightLayout,
    (n, k, gated): (usize, usize, bool),
    all: bool,
) -> Result<(), Box<dyn Error>> {
    let caps = bench.gpu.caps();
    let state = || bench.state.clone();
    let (launches, bytes) =
        bench.launches(layout, n, k, gated, |m| vec![m.gemv(caps, 1, state())])?;
    let us = bench.time(&launches, 1)?;
    println!(
        "gemv {name} {n}x{k}: {us:.2} us, {:.0} GB/s ({})",
        bytes as f64 / us / 1e3,
        launches[0].variant
    );
    if !all {
        return Ok(());
    }
    let mut found = Vec::new();
    for wg in [32, 64, 128, 256] {
        for rows in [2, 4, 8] {
            for unroll in [1, 2, 4] {
                let choice = GemvTiling {
                    wg,
                    rows,
                    cols: 1,
                    unroll,
                };
                let (launches, _) = bench.launches(layout, n, k, gated, |m| {
                    vec![m.gemv_with(caps, 1, state(), choice)]
                })?;
                found.push((bench.time(&launches, 1)?, wg, rows, unroll));
            }
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (us, wg, rows, unroll) in found.iter().take(5) {
        println!(
            "    wg {wg} rows {rows} unroll {unroll}: {us:.2} us, {:.0} GB/s",
            bytes as f64 / us / 1e3
        );
    }
    blocks(bench, layout, (n, k, gated))
}

/// Benchmarks the whole-block GEMV, where the engine would select it, with other tile sizes and
/// packed dot products.
fn blocks(
    bench: &Bench,
    layout: WeightLayout,
    (n, k, gated): (usize, usize, bool),
) -> Result<(), Box<dyn Error>> {
    for i in 0..4u32 {
        let half = 1 + (i & 1);
        let dot = i >> 1;

        let other = |m: &Matmul<Buffer>| {
            let choice = GemvBlocksTiling::of(bench.gpu.caps(), m, 1)?;
            let least = GemvBlocksTiling::ROWS_IN_FLIGHT / if gated { 2 } else { 1 };
            let share = (choice.outputs / half).next_multiple_of(least);
            Some(GemvBlocksTiling {
                outputs: share,
                packed_dot: dot,
                ..choice
            })
        };
        let (launches, bytes) = bench.launches(layout, n, k, gated, |m| {
            other(m)
                .map(|c| m.gemv_blocks_with(1, bench.state.clone(), c))
                .into_iter()
                .collect()
        })?;
        if !launches.is_empty() {
            let us = bench.time(&launches, 1)?;
            let share = if half == 1 {
                ""
            } else {
                ", half the outputs per group"
            };
            println!(
                "    dot {dot}{share}: {us:.2} us, {:.0} GB/s",
                bytes as f64 / us / 1e3
            );
        }
    }
    Ok(())
}

/// Benchmarks convolution and recurrence of a layer: one row as in decode, then many as in prefill.
fn recurrent(bench: &Bench) -> Result<(), Box<dyn Error>> {
    // Value heads, key heads, key columns, value columns, kernel size of the convolution.
    for (name, delta, [heads, key_heads, key_dim, value_dim, taps]) in [
        ("Qwen3.5-0.8B", true, [16, 16, 128, 128, 4]),
        ("Qwen3.5-9B", true, [32, 16, 128, 128, 4]),
        ("Granite-4.0-h-1B", false, [48, 1, 128, 64, 4]),
    ] {
        let keys = key_heads * key_dim;
        let values = heads * value_dim;

        let channels = 2 * keys + values;
        let layer = |few: bool| -> Result<Vec<Launch<Buffer>>, jerboa::Error> {
            let view = |b: &Buffer, offset: u32, stride: u32| View {
                buffer: b.clone(),
                offset,
                stride,
            };
            let buffer = |words: u32| {
                bench
                    .gpu
                    .buffer("kept", u64::from(words) * 4, BufferUsage::Storage)
            };
            let given = view(&bench.x, 0, channels + values + 128);
            let mixed = view(&buffer(channels * 512)?, 0, channels);
            let out = view(&bench.out, 0, values);

            let conv = ShortConvKernel {
                label: "conv".into(),
                channels,
                kernel_size: taps,
                weight: buffer(channels * taps)?,
                bias: None,
                act: 1,
                scales: [(0, 1.0); 3],
                gates: None,
                memory: buffer(channels * taps)?,
                state: bench.state.clone(),
                batch: false,
            };
            let rest = |offset: u32| View {
                offset: channels + offset,
                ..given.clone()
            };
            let z = rest(128);
            let rule = if delta {
                RuleBuffers::Delta {
                    b: rest(64),
                    z: z.clone(),
                    eps: 1e-6,
                }
            } else {
                RuleBuffers::Ssm {
                    limits: [0.0, f32::MAX],
                    dt_scale: 1.0,
                }
            };
            let gains = buffer(3 * heads + value_dim)?;
            let kernel = RecurrentKernel {
                label: "recurrent".into(),
                heads,
                key_heads,
                heads_per_key: heads / key_heads,
                key_dim,
                value_dim,
                columns: [0, keys, 2 * keys],
                x: mixed.clone(),
                a: rest(0),
                rule,
                gains,
                negative_rates: false,
                kv: Kv::F32,
                memory: buffer(heads * key_dim * value_dim)?,
                state: bench.state.clone(),
                batch: false,
            };
            let mut launches = if few {
                vec![conv.decode(&given, &mixed)]
            } else {
                conv.prefill(&given, &mixed).to_vec()
            };
            if few {
                launches.push(kernel.decode(&out));
            } else {
                launches.extend(kernel.prefill(&bench.parts, &out));
            }
            if !delta {
                let norm = GatedNormKernel {
                    gain: buffer(values)?,
                    gain_offset: 0,
                    gain_step: 0,
                    gate_first: true,
                    eps: 1e-6,
                };
                launches.push(norm.launch("norm", &out, &z, None, 1, values));
            }
            Ok(launches)
        };
        for rows in [1u32, 128, 512] {
            bench.gpu.write(
                &bench.state,
                0,
                bytemuck::cast_slice(&[8u32, rows, 0, 0, 0, 0, 0, 0]),
            );
            let layers = (0..8)
                .map(|_| layer(rows == 1))
                .collect::<Result<Vec<_>, _>>()?;
            let each = layers[0].len();
            let mut parts = Vec::new();
            for kernel in 0..each {
                let alone: Vec<_> = layers.iter().map(|l| l[kernel].clone()).collect();
                parts.push(format!(
                    "{} {:.1}",
                    alone[0].variant.kernel.name(),
                    bench.time(&alone, rows)?
                ));
            }
            let all: Vec<_> = layers.into_iter().flatten().collect();
            let us = bench.time(&all, rows)? * each as f64;
            println!("{name}, {rows} rows: {us:.1} us ({})", parts.join(", "));
        }
    }
    Ok(())
}

/// Prints the microseconds of each kernel that samples a token, for logits of several shapes.
fn sample(bench: &Bench) -> Result<(), Box<dyn Error>> {
    const VOCABULARY: u32 = 151_936;
    let buffer = |name: &str, bytes: u64| bench.gpu.buffer(name, bytes, BufferUsage::Storage);
    let row = u64::from(VOCABULARY) * 4;
    let [logits, scores] = [buffer("logits", row)?, buffer("scores", row)?];
    let mask = buffer("mask", mask_words(VOCABULARY) as u64 * 4)?;
    let sampling = buffer("sampling", 48)?;
    let sampled = buffer("sampled", 16)?;
    let work = buffer("work", work_bytes(VOCABULARY))?;
    // Sums of sines are distributed much like a model's logits.
    let usual: Vec<f32> = (0..VOCABULARY)
        .map(|id| (1..6).map(|k| ((id * k) as f32 * 0.7).sin()).sum::<f32>() * 2.0)
        .collect();
    let mut few = usual.clone();
    few.iter_mut().take(26).for_each(|logit| *logit += 100.0);
    let shapes = [
        ("usual logits", &usual, u32::MAX),
        ("26 tokens are likely", &few, u32::MAX),
        ("an eighth is allowed", &usual, 0x0101_0101),
    ];
    let filters = [
        ("all", 0, 1.0),
        ("top-k 50", 50, 1.0),
        ("top-p 0.95", 0, 0.95),
    ];
    for (shape, logits_now, allowed) in shapes {
        bench
            .gpu
            .write(&logits, 0, bytemuck::cast_slice(logits_now));
        let words = vec![allowed; mask_words(VOCABULARY)];
        bench.gpu.write(&mask, 0, bytemuck::cast_slice(&words));
        for (filter, top_k, top_p) in filters {
            let params = SamplingParams {
                greedy: false,
                top_k,
                top_p,
                ..SamplingParams::default()
            };
            let words = settings(&params, 7, VOCABULARY);
            bench.gpu.write(&sampling, 0, bytemuck::cast_slice(&words));
            let kernels = SampleKernels {
                label: "sample".into(),
                vocabulary: VOCABULARY,
                logits: logits.clone(),
                offset: 0,
                sampling: sampling.clone(),
                work: work.clone(),
                state: bench.state.clone(),
                sampled: sampled.clone(),
                adjust: None,
                mask: Some(mask.clone()),
                adjusted: scores.clone(),
                row: SampledRow::Single,
                candidates: None,
            };
            let [histogram, gather] = kernels.filters();
            let all = [kernels.adjustment(), histogram, gather, kernels.select()];
            let us = bench.time(&all, 1)? * all.len() as f64;
            println!("{shape}, {filter}: {us:.1} us a token");
        }
    }
    Ok(())
}
