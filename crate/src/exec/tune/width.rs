//! How wide a device is: the workgroups that keep it busy, which WebGPU does not tell. Knows arithmetic and a clock.

use crate::Result;
use crate::exec::limits::{counted, median};
use crate::gpu::{Backend, Buffer, Gpu, Program, Usage, Work};
use crate::util::clock::now_ms;

/// Milliseconds of a run whose length counts.
const RUN_MS: f64 = 1.0;
/// Rounds of which the median counts.
const ROUNDS: usize = 3;
/// Widths that are believed, in workgroups of 64.
const BELIEVED: [f64; 2] = [32.0, 4096.0];
/// How much longer than one workgroup a wide dispatch takes that is believed to fill the device.
const FULL: f64 = 4.0;

/// Workgroups of 64 threads that keep the device busy: as many as do their work in the time that one of them takes. A
/// product waits for the one before it, so a core is full when its units have one in each of their stages.
///
/// # Errors
/// What the device reports.
pub async fn measure(gpu: &Gpu) -> Result<Option<u32>> {
    // On a software adapter the number means nothing, it shall only come soon.
    let (count, sizes) = if gpu.caps().software { (8, [4, 8]) } else { (1024, [256, 2048]) };
    let scratch = gpu.buffer("tune", 4096, Usage::Storage)?;
    let program = counted(gpu, "BUSY", &scratch, None, 1, count).await?;
    let probe = Probe { gpu, program, scratch };
    probe.run(1, 1).await?;
    let alone = probe.ms(1, 8).await?;
    let (mut groups, mut all) = (0, 0.0);
    for size in sizes {
        (groups, all) = (size, probe.ms(size, 1).await?);
        if all >= alone * FULL {
            break;
        }
    }
    let times = |ms: f64| ((RUN_MS / ms.max(1e-3)).ceil() as usize).clamp(1, 64);
    let mut widths = Vec::new();
    // In turns, since a clock that rises under load would favour the later one.
    for _ in 0..ROUNDS {
        let one = probe.ms(1, times(alone)).await?;
        widths.push(width(one, probe.ms(groups, times(all)).await?, groups));
    }
    let found = median(widths);
    Ok(found.is_finite().then(|| found.clamp(BELIEVED[0], BELIEVED[1]).round() as u32 / 8 * 8))
}

/// Workgroups of 64 that take the time of one, from the times of one of 256 and of so many.
fn width(one: f64, all: f64, groups: u32) -> f64 {
    if one > 0.0 && all > 0.0 { f64::from(groups * 4) * one / all } else { f64::NAN }
}

/// The kernel that keeps units busy.
struct Probe<'a> {
    gpu: &'a Gpu,
    program: Program,
    scratch: Buffer,
}

impl Probe<'_> {
    /// Milliseconds of a dispatch of so many workgroups, from so many of them one after another.
    async fn ms(&self, groups: u32, times: usize) -> Result<f64> {
        let one = self.run(groups, 1).await?;
        Ok((self.run(groups, 1 + times).await? - one) / times as f64)
    }

    /// Milliseconds until all of them are done and a word is read back.
    async fn run(&self, groups: u32, times: usize) -> Result<f64> {
        let grids = [[groups, 1, 1]];
        let work: Vec<_> = (0..times).map(|_| Work::Run { program: &self.program, grids: Some(&grids) }).collect();
        let start = now_ms();
        self.gpu.submit(&work)?;
        self.gpu.read(&self.scratch, 0, 16).await?;
        Ok(now_ms() - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_as_wide_as_what_takes_the_time_of_one() {
        // 132 cores, each of which has room for two workgroups of 256 in the time of one.
        assert!((width(0.2, 0.2 * 2048.0 / 264.0, 2048) - 1056.0).abs() < 1e-9);
        assert!(width(0.0, 1.0, 256).is_nan());
        assert!(width(0.1, -0.1, 256).is_nan());
    }
}
