//! Device roofline: bandwidth of a plain read and latency of a dependent dispatch. Utilization is
//! reported against these.

use crate::device::registry::{Kernel, Variant};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, DispatchDesc, Gpu, Program};
use crate::kernels::{GridSpec, Launch};
use crate::plan::Slot;
use crate::util::clock::now_ms;
use crate::util::sort;
use crate::{Error, Result};
use serde::Serialize;

/// Maximum bytes to read: far beyond any cache.
const MAX_READ_BYTES: u64 = 1 << 30;
/// Maximum bytes on a software adapter, where the result is meaningless and only has to be fast.
const MAX_READ_BYTES_SOFTWARE: u64 = 1 << 22;
/// Workgroups of 256 threads that read.
const READ_WORKGROUPS: u32 = 2112;
/// Rounds; the median counts.
const ROOFLINE_ROUNDS: usize = 5;
/// Dependent dispatches of one pass, about as many as one token of a small model: a pass has a cost
/// of its own.
pub(super) const CHAIN_DISPATCHES: usize = 128;

/// Peak performance of the device.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Roofline {
    /// Bandwidth of a plain read in GB/s (10^9).
    pub read_gbs: f64,
    /// Bytes read per round.
    pub read_bytes: u64,
    /// Microseconds of a one-workgroup dispatch that depends on the one before, in one pass.
    pub dispatch_us: f64,
    /// Milliseconds to read back one word when the device is idle.
    pub readback_ms: f64,
}

/// Measures the roofline of a device.
///
/// # Errors
/// Device errors.
pub async fn measure_roofline(gpu: &Gpu) -> Result<Roofline> {
    let most = if gpu.caps().software {
        MAX_READ_BYTES_SOFTWARE
    } else {
        MAX_READ_BYTES
    };
    let bytes = most.min(gpu.caps().max_weight_buffer()) / 4096 * 4096;
    let big = gpu.buffer("probe", bytes, BufferUsage::Storage)?;
    let out = gpu.buffer("probe", 1 << 20, BufferUsage::Storage)?;

    let fill = probe_program(gpu, "FILL", &big, None).await?;
    let read = probe_program(gpu, "READ", &big, Some(&out)).await?;

    let chain = probe_program(gpu, "CHAIN", &out, None).await?;
    time_programs(gpu, &[(&fill, 1)], &out).await?;
    time_programs(gpu, &[(&read, 2), (&chain, 2)], &out).await?;
    let (reads, chains) = if gpu.caps().software {
        (4, 1)
    } else {
        (48, 16)
    };
    let mut read_ms = Vec::new();
    let mut chain_ms = Vec::new();
    let mut readback = Vec::new();

    for _ in 0..ROOFLINE_ROUNDS {
        let [one, many] = [
            time_programs(gpu, &[(&read, 1)], &out).await?,
            time_programs(gpu, &[(&read, 1 + reads)], &out).await?,
        ];
        read_ms.push((many - one) / reads as f64);
        let [one, many] = [
            time_programs(gpu, &[(&chain, 1)], &out).await?,
            time_programs(gpu, &[(&chain, 1 + chains)], &out).await?,
        ];
        chain_ms.push((many - one) / (chains * CHAIN_DISPATCHES) as f64);
        readback.push(time_programs(gpu, &[(&fill, 0)], &out).await?);
    }
    Ok(Roofline {
        read_gbs: bytes as f64 / median(read_ms).max(1e-6) / 1e6,
        read_bytes: bytes,
        dispatch_us: median(chain_ms).max(0.0) * 1e3,
        readback_ms: median(readback),
    })
}

/// The median.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    sort::sort_by(&mut values, f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Builds a program of one dispatch, or of a chain of [`CHAIN`] in one pass.
pub(super) async fn probe_program(
    gpu: &Gpu,
    what: &'static str,
    x: &Buffer,
    out: Option<&Buffer>,
) -> Result<Program> {
    let chain = what == "CHAIN";
    let groups = if chain { 1 } else { READ_WORKGROUPS };
    let count = if chain { 64 } else { (x.size() / 16) as u32 };
    let launch = Launch::new(
        what,
        Variant::new(Kernel::Probe).flag(what),
        GridSpec::Exact([groups, 1, 1]),
    )
    .bind("x", Slot::Activation(0))
    .bind_opt("out", out.map(|_| Slot::Activation(1)))
    .set("count", count)
    .set("stride", groups * 256);
    let buffers: Vec<Buffer> = [Some(x), out].into_iter().flatten().cloned().collect();
    let launches = vec![launch; if chain { CHAIN_DISPATCHES } else { 1 }];
    gpu.program(
        "probe",
        build_dispatches(gpu, &launches, &buffers, 1).await?,
    )
}

/// Builds dispatches from launches whose activation slots index `buffers`; each variant is compiled
/// once.
///
/// # Errors
/// Device errors.
pub async fn build_dispatches(
    gpu: &Gpu,
    launches: &[Launch<Slot>],
    buffers: &[Buffer],
    rows: u32,
) -> Result<Vec<DispatchDesc>> {
    let mut variants: Vec<_> = launches.iter().map(|l| l.variant.clone()).collect();
    sort::sort_by(&mut variants, Ord::cmp);
    variants.dedup();
    let shaders = variants
        .iter()
        .map(|v| v.shader(cfg!(target_arch = "wasm32")))
        .collect::<Result<Vec<_>>>()?;
    let pipelines = gpu.pipelines(&shaders).await?;
    let step = |launch: &Launch<Slot>| {
        let at = variants.binary_search(&launch.variant);
        let at =
            at.map_err(|_| Error::Internal("probe: a launch has no compiled kernel".into()))?;
        let resolved = launch.resolve(&shaders[at])?;

        Ok(DispatchDesc {
            label: launch.label.clone(),
            pipeline: pipelines[at].clone(),
            buffers: resolved
                .buffers
                .into_iter()
                .filter_map(|(binding, slot)| match slot {
                    Slot::Activation(index) => Some((binding, buffers.get(index)?.clone())),
                    _ => None,
                })
                .collect(),
            params: resolved.params,
            grid: launch.grid.at(rows),
        })
    };
    launches.iter().map(step).collect()
}

/// Milliseconds to run each program the given number of times and read back one word.
async fn time_programs(gpu: &Gpu, parts: &[(&Program, usize)], result: &Buffer) -> Result<f64> {
    let programs: Vec<&Program> = parts
        .iter()
        .flat_map(|(p, times)| std::iter::repeat_n(*p, *times))
        .collect();
    let start = now_ms();
    for part in programs.chunks(64) {
        let work: Vec<Command<'_>> = part
            .iter()
            .map(|program| Command::Run {
                program,
                grids: None,
            })
            .collect();
        gpu.submit(&work)?;
    }
    gpu.read(result, 0, 16).await?;
    Ok(now_ms() - start)
}
