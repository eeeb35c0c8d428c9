//! Device checks: small computations with known results, from a single kernel to a chain of
//! hundreds. The first failure shows what the device or its driver cannot do. Does not depend on a
//! model.

use super::chain::{pseudo_random, run_chain};
use crate::exec::build_dispatches;
use crate::format::quantize;
use crate::format::{Float, PackedMatrix, WeightLayout};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu};
use crate::kernels::Launch;
use crate::kernels::elementwise::{Elementwise, elementwise};
use crate::kernels::matmul::{Matmul, View, WeightPlanes};
use crate::kernels::norm::{NormParams, norm};
use crate::plan::Slot;
use crate::util::clock::now_ms;
use crate::{Error, Result};
use serde::Serialize;

/// Result of one check.
#[derive(Debug, Clone, Serialize)]
pub struct DiagnosticResult {
    /// Name of the check.
    pub name: &'static str,
    /// Whether the result was correct.
    pub ok: bool,
    /// Duration in milliseconds, including shader compilation.
    pub ms: f64,
    /// Why it failed: the first wrong value, or the device's error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// A computation: launches over buffers with these bytes, and the expected values of the last
/// buffer.
struct CheckCase {
    launches: Vec<Launch<Slot>>,
    buffers: Vec<Vec<u8>>,
    rows: u32,
    expected: Vec<f64>,
    /// Maximum error, relative to the expected value or to 1 if that is larger.
    tolerance: f64,
    /// Whether each launch gets a submit of its own.
    separate_submits: bool,
}

impl CheckCase {
    /// A computation with one row of inputs and one row of output.
    fn new(launches: Vec<Launch<Slot>>, inputs: &[&[f32]], expected: Vec<f64>) -> Self {
        let mut buffers: Vec<Vec<u8>> = inputs
            .iter()
            .map(|v| bytemuck::cast_slice(v).to_vec())
            .collect();
        // Prefill the output with NaN, which no result equals.
        buffers.push([0xffu8; 4].repeat(expected.len()));
        Self {
            launches,
            buffers,
            rows: 1,
            expected,
            tolerance: 1e-5,
            separate_submits: false,
        }
    }

    /// Runs the computation. Returns a description of the first wrong value, or an empty string.
    async fn run(self, gpu: &Gpu) -> Result<String> {
        let buffers = self
            .buffers
            .iter()
            .map(|bytes: &Vec<u8>| -> Result<Buffer> {
                let buffer = gpu.buffer("check", bytes.len() as u64, BufferUsage::Storage)?;
                gpu.write(&buffer, 0, bytes);
                Ok(buffer)
            })
            .collect::<Result<Vec<_>>>()?;
        let steps = build_dispatches(gpu, &self.launches, &buffers, self.rows).await?;
        let each = if self.separate_submits {
            1
        } else {
            steps.len().max(1)
        };
        for part in steps.chunks(each) {
            let program = gpu.program("check", part.to_vec())?;
            gpu.submit(&[Command::Run {
                program: &program,
                grids: None,
            }])?;
        }
        let last = buffers
            .last()
            .ok_or_else(|| Error::Internal("the check has no buffers".into()))?;
        let bytes = gpu.read(last, 0, 4 * self.expected.len() as u64).await?;
        gpu.check().await?;
        let found: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        let wrong = |(_, (found, wanted)): &(usize, (&f32, &f64))| {
            // A NaN is wrong as well.
            let error = (f64::from(**found) - **wanted).abs();
            error.is_nan() || error > self.tolerance * wanted.abs().max(1.0)
        };
        let first = found.iter().zip(&self.expected).enumerate().find(wrong);
        Ok(first.map_or(String::new(), |(at, (found, wanted))| {
            format!("value {at} is {found}, expected {wanted}")
        }))
    }
}

fn view(buffer: usize, cols: usize) -> View<Slot> {
    View {
        buffer: Slot::Activation(buffer),
        offset: 0,
        stride: cols as u32,
    }
}

fn test_vector(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| pseudo_random(i + seed)).collect()
}

fn one_kernel() -> CheckCase {
    let a = test_vector(1000, 0);
    let launch = elementwise(
        "check",
        Elementwise::Scale(0.5),
        &[view(0, 1000)],
        &view(1, 1000),
        1000,
        true,
    );
    CheckCase::new(
        vec![launch],
        &[&a],
        a.iter().map(|v| f64::from(*v) * 0.5).collect(),
    )
}

fn two_inputs() -> CheckCase {
    let a = test_vector(1000, 0);
    let b = test_vector(1000, 1000);

    let launch = elementwise(
        "check",
        Elementwise::Add,
        &[view(0, 1000), view(1, 1000)],
        &view(2, 1000),
        1000,
        true,
    );
    let sum = a.iter().zip(&b).map(|(a, b)| f64::from(*a) + f64::from(*b));
    CheckCase::new(vec![launch], &[&a, &b], sum.collect())
}

fn many_workgroups() -> CheckCase {
    let rows = 300;
    let cols = 517;

    let a = test_vector(rows * cols, 0);
    let launch = elementwise(
        "check",
        Elementwise::Scale(2.0),
        &[view(0, cols)],
        &view(1, cols),
        cols as u32,
        false,
    );
    let expected = a.iter().map(|v| f64::from(*v) * 2.0).collect();
    CheckCase {
        rows: rows as u32,
        ..CheckCase::new(vec![launch], &[&a], expected)
    }
}

/// Dependent launches, in one pass or each in a submit of its own.
fn dependent_launches(apart: bool) -> CheckCase {
    let a = test_vector(1000, 0);
    let step = |from: usize, to: usize, factor| {
        elementwise(
            "check",
            Elementwise::Scale(factor),
            &[view(from, 1000)],
            &view(to, 1000),
            1000,
            true,
        )
    };
    let launches = vec![step(0, 1, 2.0), step(1, 0, 2.0), step(0, 2, 2.0)];
    let expected = a.iter().map(|v| f64::from(*v) * 8.0).collect();
    CheckCase {
        separate_submits: apart,
        ..CheckCase::new(launches, &[&a, &a], expected)
    }
}

/// Activation functions at arguments where a naive exp or tanh overflows.
fn extreme_activations() -> CheckCase {
    let a: Vec<f32> = [
        0.0, 1.0, -1.0, 20.0, -20.0, 88.0, -88.0, 1e4, -1e4, 1e30, -1e30,
    ]
    .into();
    let cols = a.len();
    let launch = elementwise(
        "check",
        Elementwise::Unary(1),
        &[view(0, cols)],
        &view(1, cols),
        cols as u32,
        true,
    );
    let silu = a
        .iter()
        .map(|v| f64::from(*v) / (1.0 + (-f64::from(*v)).exp()));
    // exp is clamped at -80, which leaves a small remainder of very large values.
    CheckCase {
        tolerance: 1e-4,
        ..CheckCase::new(vec![launch], &[&a], silu.collect())
    }
}

/// A reduction over the 256 threads of a workgroup: LayerNorm or RMSNorm.
fn reduction(layer: bool) -> CheckCase {
    let cols = 1024;
    let x = test_vector(cols, 0);
    let gain = test_vector(cols, cols);

    let spec = NormParams {
        layer,
        gain: Some(Slot::Activation(1)),
        bias: None,
        offset: 0.0,
        eps: 1e-6,
    };
    let launch = norm(
        "check",
        &spec,
        &view(0, cols),
        &view(2, cols),
        cols as u32,
        true,
    );
    let mean = if layer {
        x.iter().map(|v| f64::from(*v)).sum::<f64>() / cols as f64
    } else {
        0.0
    };
    let square = x
        .iter()
        .map(|v| (f64::from(*v) - mean).powi(2))
        .sum::<f64>()
        / cols as f64;
    let factor = 1.0 / (square + 1e-6).sqrt();
    let expected = x
        .iter()
        .zip(&gain)
        .map(|(x, g)| (f64::from(*x) - mean) * factor * f64::from(*g));
    CheckCase {
        tolerance: 1e-4,
        ..CheckCase::new(vec![launch], &[&x, &gain], expected.collect())
    }
}

/// A matmul with weights that every layout represents exactly.
fn matmul_case(gpu: &Gpu, layout: WeightLayout) -> CheckCase {
    let rows = 70;
    let cols = 1056;

    let weight = |row: usize, col: usize| ((row * 7 + col * 3) % 16) as f32 - 8.0;
    let packed = match layout {
        WeightLayout::Affine { bits, .. } => quantize::quantize(bits, rows, cols, weight),
        dense => {
            let mut packed = PackedMatrix::zeros(dense, rows, cols);
            (0..rows * cols)
                .for_each(|i| packed.set_dense(i / cols, i % cols, weight(i / cols, i % cols)));
            packed
        }
    };
    let x = test_vector(cols, 0);

    let expected: Vec<f64> = (0..rows)
        .map(|row| {
            (0..cols)
                .map(|col| f64::from(weight(row, col)) * f64::from(x[col]))
                .sum()
        })
        .collect();
    let scales = (!packed.planes[1].is_empty()).then_some(Slot::Activation(2));
    let weight = WeightPlanes {
        layout,
        rows: rows as u32,
        cols: cols as u32,
        q: Slot::Activation(1),
        s: scales,
    };
    let launch = Matmul::plain("check", weight, view(0, cols), view(4, rows)).gemv(
        gpu.caps(),
        1,
        Slot::Activation(3),
    );
    let mut case = CheckCase {
        tolerance: 1e-3,
        ..CheckCase::new(vec![launch], &[&x], expected)
    };
    let [codes, scales] = packed
        .planes
        .map(|plane| bytemuck::cast_slice::<u32, u8>(&plane).to_vec());
    let spare = |plane: Vec<u8>| if plane.is_empty() { vec![0; 16] } else { plane };
    // The state of a step: position 0, one row.
    let state = bytemuck::cast_slice::<u32, u8>(&[0, 1, 0, 0, 0, 0, 0, 0]).to_vec();
    case.buffers.splice(1..1, [codes, spare(scales), state]);
    case
}

/// Writes 1 MiB at unaligned offsets and reads it back.
async fn transfers(gpu: &Gpu) -> Result<String> {
    let data: Vec<f32> = test_vector(1 << 18, 0);
    let bytes: &[u8] = bytemuck::cast_slice(&data);
    let buffer = gpu.buffer("check", 2 << 20, BufferUsage::Storage)?;
    let (first, rest) = bytes.split_at(300_004);
    gpu.write(&buffer, 1028, first);
    gpu.write(&buffer, 1028 + first.len() as u64, rest);
    let back = gpu.read(&buffer, 1028, bytes.len() as u64).await?;
    let at = back.iter().zip(bytes).position(|(a, b)| a != b);
    Ok(at.map_or(String::new(), |at| {
        format!("byte {at} of {} was read back wrong", bytes.len())
    }))
}

/// Runs a step's worth of dispatches twice and compares the results.
async fn long_chain(gpu: &Gpu) -> Result<String> {
    let same = run_chain(gpu).await? == run_chain(gpu).await?;
    Ok(if same {
        String::new()
    } else {
        "two runs of the same kernels gave different results".into()
    })
}

/// Runs all checks, simplest first.
///
/// # Errors
/// `DeviceLost`; any other error is the result of a check.
pub async fn run_device_checks(gpu: &Gpu) -> Result<Vec<DiagnosticResult>> {
    let mut done = Vec::new();
    let cases: [(&'static str, CheckCase); 11] = [
        ("one kernel", one_kernel()),
        ("two inputs", two_inputs()),
        ("many workgroups", many_workgroups()),
        ("kernels in one pass", dependent_launches(false)),
        ("kernels in separate submits", dependent_launches(true)),
        ("functions at extreme values", extreme_activations()),
        ("LayerNorm over 256 threads", reduction(true)),
        ("RMSNorm over 256 threads", reduction(false)),
        (
            "matmul with f32 weights",
            matmul_case(gpu, WeightLayout::Dense(Float::F32)),
        ),
        (
            "matmul with f16 weights",
            matmul_case(gpu, WeightLayout::Dense(Float::F16)),
        ),
        (
            "matmul with 4-bit weights",
            matmul_case(gpu, quantize::layout(4)),
        ),
    ];
    for (name, case) in cases {
        let start = now_ms();
        done.push(check_result(name, start, case.run(gpu).await)?);
    }
    let start = now_ms();
    done.push(check_result(
        "1 MiB written and read back",
        start,
        transfers(gpu).await,
    )?);
    let start = now_ms();
    done.push(check_result(
        "720 dependent dispatches",
        start,
        long_chain(gpu).await,
    )?);
    Ok(done)
}

/// The result of a check that started at `start`.
pub(super) fn check_result(
    name: &'static str,
    start: f64,
    result: Result<String>,
) -> Result<DiagnosticResult> {
    let problem = match result {
        Err(error @ Error::DeviceLost { .. }) => return Err(error),
        Err(error) => error.to_string(),
        Ok(problem) => problem,
    };
    Ok(DiagnosticResult {
        name,
        ok: problem.is_empty(),
        ms: now_ms() - start,
        problem,
    })
}
