//! A chain of dependent dispatches of a real step's size. Its result shows whether a device keeps
//! the writes of one dispatch for the next. Small chains do not show it: older WebKits lose writes
//! only if hundreds of dispatches, many pipelines and megabytes meet in one command buffer.

use crate::exec::build_dispatches;
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu};
use crate::kernels::Launch;
use crate::kernels::elementwise::{Elementwise, elementwise, gather, last_row};
use crate::kernels::matmul::View;
use crate::kernels::norm::{NormParams, norm};
use crate::plan::Slot;
use crate::{Error, Result};

/// Number of dispatches, as in a model of 30 layers.
const CHAIN_DISPATCHES: usize = 360;
const COLS: usize = 4096;
/// Rows of a 1 MiB buffer; fewer on a software adapter, which would take seconds.
const ROWS: usize = 64;
const ROWS_SOFTWARE: usize = 8;
/// Number of buffers that the chain cycles through. After them: gains, biases, an order, a state.
const RING_BUFFERS: usize = 6;
const GAIN: usize = RING_BUFFERS;
const BIAS: usize = RING_BUFFERS + 1;
const ORDER: usize = RING_BUFFERS + 2;
const STATE: usize = RING_BUFFERS + 3;

/// One dispatch of the chain: reads the previous buffer and an earlier one.
fn chain_dispatch(index: usize) -> Launch<Slot> {
    let view = |buffer: usize| View {
        buffer: Slot::Activation(buffer),
        offset: 0,
        stride: COLS as u32,
    };
    let [a, b, out] = [
        view((index + RING_BUFFERS - 1) % RING_BUFFERS),
        view((index + RING_BUFFERS - 3) % RING_BUFFERS),
        view(index % RING_BUFFERS),
    ];
    let cols = COLS as u32;
    let name = "chain";

    // Every third is a norm, so that values neither vanish nor grow.
    if index.is_multiple_of(3) {
        let kind = index / 3;
        let spec = NormParams {
            layer: kind & 1 != 0,
            gain: (kind & 2 != 0).then_some(Slot::Activation(GAIN)),
            bias: (kind & 4 != 0).then_some(Slot::Activation(BIAS)),
            offset: 0.5,
            eps: 1e-6,
        };
        return norm(name, &spec, &a, &out, cols, false);
    }
    match index % 7 {
        0 => elementwise(name, Elementwise::Mul, &[a, b], &out, cols, false),
        1 => elementwise(name, Elementwise::Gated(1), &[a, b], &out, cols, false),
        2 => elementwise(name, Elementwise::Unary(1), &[a], &out, cols, false),
        3 => elementwise(name, Elementwise::Scale(0.75), &[a], &out, cols, false),
        4 => gather(name, &a, Slot::Activation(ORDER), &out, cols, false),
        // Only the first row of its input changes.
        5 => last_row(name, &a, out.buffer, Slot::Activation(STATE), cols),
        _ => elementwise(name, Elementwise::Add, &[a, b], &out, cols, false),
    }
}

/// Runs the chain twice with the device's submit grouping and hashes the final buffers. A correct
/// device returns the same hash every time.
///
/// # Errors
/// Device errors; `NotFinite` if the result is all zeros or not finite.
pub async fn run_chain(gpu: &Gpu) -> Result<u64> {
    let rows = if gpu.caps().software {
        ROWS_SOFTWARE
    } else {
        ROWS
    };
    let values: Vec<f32> = (0..rows * COLS).map(pseudo_random).collect();
    let order: Vec<u32> = (0..COLS as u32)
        .map(|c| (c * 1021 + 7) % COLS as u32)
        .collect();
    let state = [0u32, rows as u32, 0, 0, 0, 0, 0, 0];
    let make = |bytes: &[u8]| -> Result<Buffer> {
        let buffer = gpu.buffer("chain", bytes.len() as u64, BufferUsage::Storage)?;
        gpu.write(&buffer, 0, bytes);
        Ok(buffer)
    };
    let mut buffers: Vec<Buffer> = (0..RING_BUFFERS)
        .map(|i| make(bytemuck::cast_slice(&rotate(&values, i * 997))))
        .collect::<Result<_>>()?;
    for line in [&values[..COLS], &rotate(&values, 31)[..COLS]] {
        buffers.push(make(bytemuck::cast_slice(line))?);
    }
    buffers.push(make(bytemuck::cast_slice(&order))?);
    buffers.push(make(bytemuck::cast_slice(&state))?);
    let launches: Vec<Launch<Slot>> = (0..CHAIN_DISPATCHES).map(chain_dispatch).collect();
    let program = gpu.program(
        "chain",
        build_dispatches(gpu, &launches, &buffers, rows as u32).await?,
    )?;
    for _ in 0..2 {
        gpu.submit(&[Command::Run {
            program: &program,
            grids: None,
        }])?;
    }
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for buffer in &buffers[..RING_BUFFERS] {
        let bytes = gpu.read(buffer, 0, (rows * COLS * 4) as u64).await?;
        let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        if numbers.iter().any(|v| !v.is_finite()) || numbers.iter().all(|v| *v == 0.0) {
            let hint =
                "The GPU or its driver loses data that kernels write. Update the browser and the GPU driver.".into();
            return Err(Error::NotFinite {
                step: "a chain of kernels".into(),
                hint,
            });
        }
        for number in numbers {
            hash = (hash ^ u64::from(number.to_bits())).wrapping_mul(0x100_0000_01b3);
        }
    }
    gpu.check().await?;
    Ok(hash)
}

/// Deterministic pseudo-random value between -1 and 1.
pub(super) fn pseudo_random(index: usize) -> f32 {
    let mut h = (index as u32 + 1).wrapping_mul(2_654_435_761);
    h ^= h >> 15;
    h = h.wrapping_mul(2_246_822_519);
    h ^= h >> 13;
    (h as f32 / u32::MAX as f32) * 2.0 - 1.0
}

fn rotate(values: &[f32], by: usize) -> Vec<f32> {
    let by = by % values.len();
    [&values[by..], &values[..by]].concat()
}
