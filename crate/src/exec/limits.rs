//! Device roofline: bandwidth of a plain read and latency of a dependent dispatch. Utilization is reported against
//! these.

use crate::device::registry::{Kernel, Variant};
use crate::gpu::{Backend, Buffer, Gpu, Program, StepDesc, Usage, Work};
use crate::kernels::{GridSpec, Launch};
use crate::plan::Slot;
use crate::util::clock::now_ms;
use crate::util::lists;
use crate::{Error, Result};
use serde::Serialize;

/// Maximum bytes to read: far beyond any cache.
const MOST: u64 = 1 << 30;
/// Maximum bytes on a software adapter, where the result is meaningless and only has to be fast.
const MOST_SOFTWARE: u64 = 1 << 22;
/// Workgroups of 256 threads that read.
const GROUPS: u32 = 2112;
/// Rounds; the median counts.
const ROUNDS: usize = 5;
/// Dependent dispatches of one pass, about as many as one token of a small model: a pass has a cost of its own.
pub(super) const CHAIN: usize = 128;

/// Peak performance of the device.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
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
pub async fn limits(gpu: &Gpu) -> Result<Limits> {
    let most = if gpu.caps().software { MOST_SOFTWARE } else { MOST };
    let bytes = most.min(gpu.caps().max_weight_buffer()) / 4096 * 4096;
    let (big, out) = (gpu.buffer("probe", bytes, Usage::Storage)?, gpu.buffer("probe", 1 << 20, Usage::Storage)?);
    let (fill, read) = (step(gpu, "FILL", &big, None).await?, step(gpu, "READ", &big, Some(&out)).await?);
    let chain = step(gpu, "CHAIN", &out, None).await?;
    timed(gpu, &[(&fill, 1)], &out).await?;
    timed(gpu, &[(&read, 2), (&chain, 2)], &out).await?;
    let (reads, chains) = if gpu.caps().software { (4, 1) } else { (48, 16) };
    let (mut read_ms, mut chain_ms, mut readback) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let [one, many] = [timed(gpu, &[(&read, 1)], &out).await?, timed(gpu, &[(&read, 1 + reads)], &out).await?];
        read_ms.push((many - one) / reads as f64);
        let [one, many] = [timed(gpu, &[(&chain, 1)], &out).await?, timed(gpu, &[(&chain, 1 + chains)], &out).await?];
        chain_ms.push((many - one) / (chains * CHAIN) as f64);
        readback.push(timed(gpu, &[(&fill, 0)], &out).await?);
    }
    Ok(Limits {
        read_gbs: bytes as f64 / median(read_ms).max(1e-6) / 1e6,
        read_bytes: bytes,
        dispatch_us: median(chain_ms).max(0.0) * 1e3,
        readback_ms: median(readback),
    })
}

/// The median.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    lists::sort_by(&mut values, f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Builds a program of one dispatch, or of a chain of [`CHAIN`] in one pass.
pub(super) async fn step(gpu: &Gpu, what: &'static str, x: &Buffer, out: Option<&Buffer>) -> Result<Program> {
    let chain = what == "CHAIN";
    let groups = if chain { 1 } else { GROUPS };
    let count = if chain { 64 } else { (x.size() / 16) as u32 };
    let launch = Launch::new(what, Variant::new(Kernel::Probe).flag(what), GridSpec::Exact([groups, 1, 1]))
        .bind("x", Slot::Activation(0))
        .bind_opt("out", out.map(|_| Slot::Activation(1)))
        .set("count", count)
        .set("stride", groups * 256);
    let buffers: Vec<Buffer> = [Some(x), out].into_iter().flatten().cloned().collect();
    let launches = vec![launch; if chain { CHAIN } else { 1 }];
    gpu.program("probe", steps(gpu, &launches, &buffers, 1).await?)
}

/// Builds dispatches from launches whose activation slots index `buffers`; each variant is compiled once.
///
/// # Errors
/// Device errors.
pub async fn steps(gpu: &Gpu, launches: &[Launch<Slot>], buffers: &[Buffer], rows: u32) -> Result<Vec<StepDesc>> {
    let mut variants: Vec<_> = launches.iter().map(|l| l.variant.clone()).collect();
    lists::sort_by(&mut variants, Ord::cmp);
    variants.dedup();
    let shaders = variants.iter().map(|v| v.shader(cfg!(target_arch = "wasm32"))).collect::<Result<Vec<_>>>()?;
    let pipelines = gpu.pipelines(&shaders).await?;
    let step = |launch: &Launch<Slot>| {
        let at = variants.binary_search(&launch.variant);
        let at = at.map_err(|_| Error::Internal("probe: a launch has no compiled kernel".into()))?;
        let resolved = launch.resolve(&shaders[at])?;
        let bound = |(binding, slot)| match slot {
            Slot::Activation(index) => Some((binding, buffers.get(index)?.clone())),
            _ => None,
        };
        Ok(StepDesc {
            label: launch.label.clone(),
            pipeline: pipelines[at].clone(),
            buffers: resolved.buffers.into_iter().filter_map(bound).collect(),
            params: resolved.params,
            grid: launch.grid.at(rows),
        })
    };
    launches.iter().map(step).collect()
}

/// Milliseconds to run each program the given number of times and read back one word.
async fn timed(gpu: &Gpu, parts: &[(&Program, usize)], result: &Buffer) -> Result<f64> {
    let programs: Vec<&Program> = parts.iter().flat_map(|(p, times)| std::iter::repeat_n(*p, *times)).collect();
    let start = now_ms();
    for part in programs.chunks(64) {
        let work: Vec<Work<'_>> = part.iter().map(|program| Work::Run { program, grids: None }).collect();
        gpu.submit(&work)?;
    }
    gpu.read(result, 0, 16).await?;
    Ok(now_ms() - start)
}
