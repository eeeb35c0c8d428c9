//! Times kernel variants against each other in a few dozen milliseconds, even with a coarse clock.

use super::candidates::{BenchInputs, TuningCase};
use crate::Result;
use crate::exec::roofline::{CHAIN_DISPATCHES, build_dispatches, median, probe_program};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu, Grid, Program};
use crate::util::clock::now_ms;
use serde_json::{Map, Value, json};

/// Milliseconds for all measurements once the kernels are compiled.
const MAX_TUNING_MS: f64 = 50.0;
/// Minimum milliseconds of the longer of two runs whose difference counts, when two cases share the
/// time; a coarse clock needs more.
const MIN_RUN_MS: f64 = 2.0;
/// Minimum clock ticks of the longer run.
const MIN_CLOCK_TICKS: f64 = 6.0;
/// Coarsest usable clock resolution in milliseconds.
const MAX_CLOCK_TICK_MS: f64 = 2.0;
/// Maximum rounds.
const MAX_ROUNDS: usize = 5;
/// Maximum launches of a run.
const MAX_LAUNCHES: usize = 1024;
/// Repetitions of dispatch chains that measure dispatch cost: 5 ms each where dispatches are
/// expensive. During a load's uploads a readback may vary as much, so a high cost is measured again
/// with more repetitions.
const CHAIN_REPEATS: [usize; 2] = [2, 16];
const CHAIN_ROUNDS: [usize; 2] = [4, 2];
/// Microseconds by variant and round.
#[derive(Debug)]
pub struct Timings {
    /// Clock resolution in microseconds; smaller differences are noise.
    pub resolution: f64,
    /// Rounds of each variant.
    pub rounds: Vec<Vec<f64>>,
}

impl Timings {
    /// The median of a variant's times; `None` with too few rounds.
    pub fn median(&self, form: usize) -> Option<f64> {
        median_of_times(self.rounds.get(form)?.clone())
    }

    /// The ratio of a variant's time to that of `default`; `None` with too few rounds. It is the median
    /// over rounds, the larger of the two middle values if even. A transfer or a rising clock
    /// during one round then affects only that round.
    pub fn time_ratio(&self, form: usize, default: usize) -> Option<f64> {
        let rounds = self.rounds[form].iter().zip(&self.rounds[default]);
        // A delay in the shorter run can make a time negative; its ratio is not finite.
        median_of_times(rounds.map(|(us, default)| us / default.max(0.0)).collect())
    }

    /// Median times by variant name.
    pub fn medians(&self, contest: &TuningCase) -> Map<String, Value> {
        let named = contest.variants.iter().enumerate();
        named
            .filter_map(|(form, (name, _))| {
                Some((
                    (*name).into(),
                    json!(round_to_thousandths(self.median(form)?)),
                ))
            })
            .collect()
    }
}

/// The median of the finite values.
fn median_of_times(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite() && *value > 0.0);
    (values.len() >= super::MIN_ROUNDS).then(|| median(values))
}

/// Times the variants of each case, in the same order; also returns the bytes of the device's
/// buffers meanwhile.
///
/// # Errors
/// Device errors, including `OutOfMemory` for the benchmark matrices.
pub async fn time_candidates(gpu: &Gpu, all: &[&TuningCase]) -> Result<(Vec<Timings>, u64)> {
    let tick = clock_tick_ms();
    let caps = gpu.caps();

    let scene = BenchInputs::of(caps);
    // All launches, grouped by variant within each case.
    let mut launches = Vec::new();
    let mut parts = Vec::new();
    let mut bytes = [16; 6];

    for contest in all {
        let slots = contest.target.matrix_count(caps, &scene);
        for (_, table) in &contest.variants {
            let before = launches.len();
            for slot in 0..slots {
                let (some, needs) = contest.target.launches(caps, table, (slots, slot));
                launches.extend(some);
                bytes
                    .iter_mut()
                    .zip(needs)
                    .for_each(|(most, needs)| *most = needs.max(*most));
            }
            parts.push((launches.len() - before, slots as usize));
        }
    }
    let buffers = bytes
        .iter()
        .map(|size| gpu.buffer("tune", *size, BufferUsage::Storage))
        .collect::<Result<Vec<_>>>()?;
    // Small values, none subnormal; scales are zero, so all results are zero.
    let x: Vec<f32> = (0..bytes[0] / 4)
        .map(|i| (i % 13) as f32 / 8.0 - 0.75)
        .collect();
    gpu.write(&buffers[0], 0, bytemuck::cast_slice(&x));
    let mut steps = build_dispatches(gpu, &launches, &buffers, 1)
        .await?
        .into_iter();
    let peak = gpu.resource_counts().bytes;
    let fill = probe_program(gpu, "FILL", &buffers[2], None).await?;
    gpu.submit(&[Command::Run {
        program: &fill,
        grids: None,
    }])?;
    let start = now_ms();
    let mut found = Vec::new();
    let mut parts = parts.into_iter();

    for (index, contest) in all.iter().enumerate() {
        gpu.write(&buffers[4], 0, bytemuck::cast_slice(&contest.target.step()));
        let mut forms = Vec::new();
        for (count, slots) in parts.by_ref().take(contest.variants.len()) {
            let steps: Vec<_> = steps.by_ref().take(count).collect();
            let grids = steps.iter().map(|step| step.grid).collect();
            forms.push(Candidate {
                program: gpu.program("tune", steps)?,
                grids,
                matrix_count: slots,
            });
        }
        // Time left over by one case passes to the next.
        let end = start + MAX_TUNING_MS * (index + 1) as f64 / all.len() as f64;
        let wanted = (2.0 * MIN_RUN_MS / all.len().max(2) as f64).max(MIN_CLOCK_TICKS * tick);
        found.push(
            time_variants(
                gpu,
                &forms,
                contest.default_variant,
                &buffers[1],
                (tick, wanted, end),
            )
            .await?,
        );
    }
    Ok((found, peak))
}

/// Microseconds of a dependent dispatch in one submission; meaningless on a software adapter. A cost
/// of `expensive` or more is confirmed.
///
/// # Errors
/// Device errors.
pub async fn dispatch_us(gpu: &Gpu, expensive: f64) -> Result<f64> {
    let out = gpu.buffer("tune", 1024, BufferUsage::Storage)?;
    let program = probe_program(gpu, "CHAIN", &out, None).await?;
    let chain = Candidate {
        program,
        grids: vec![[1; 3]; CHAIN_DISPATCHES],
        matrix_count: 1,
    };
    let us = chain_us(expensive, async |count| chain.run(gpu, count, &out).await).await?;
    Ok(round_to_thousandths(us))
}

/// Microseconds of a dispatch, from the milliseconds that `run` returns for a number of chains.
async fn chain_us(expensive: f64, mut run: impl AsyncFnMut(usize) -> Result<f64>) -> Result<f64> {
    run(1).await?;
    // Other load only adds time, so the minimum is the best estimate.
    let mut few = f64::MAX;
    let mut least = f64::MAX;
    for (repeats, rounds) in CHAIN_REPEATS.into_iter().zip(CHAIN_ROUNDS) {
        let mut many = f64::MAX;
        for _ in 0..rounds {
            few = run(1).await?.min(few);
            many = run(1 + repeats).await?.min(many);
        }
        let us = (many - few).max(0.0) * 1e3 / (repeats * CHAIN_DISPATCHES) as f64;
        least = us.min(least);
        if least < expensive {
            break;
        }
    }
    Ok(least)
}

/// Rounds to thousandths for storage: the JSON parser misreads the last digit of some long numbers.
fn round_to_thousandths(us: f64) -> f64 {
    (us * 1e3) as u64 as f64 / 1e3
}

/// A variant, ready to run.
struct Candidate {
    /// Its launches over each matrix.
    program: Program,
    grids: Vec<Grid>,
    matrix_count: usize,
}

impl Candidate {
    /// Milliseconds to run it `count` times and read back one word.
    async fn run(&self, gpu: &Gpu, count: usize, out: &Buffer) -> Result<f64> {
        let program = &self.program;
        let slots = self.matrix_count;

        let mut part = self.grids.clone();
        part[self.grids.len() / slots * (count % slots)..].fill([0; 3]);
        let mut work: Vec<Command<'_>> = (0..count / slots)
            .map(|_| Command::Run {
                program,
                grids: None,
            })
            .collect();
        if !count.is_multiple_of(slots) {
            work.push(Command::Run {
                program,
                grids: Some(&part),
            });
        }
        let start = now_ms();
        gpu.submit(&work)?;
        gpu.read(out, 0, 16).await?;
        Ok(now_ms() - start)
    }

    /// The number of runs that takes `wanted` milliseconds.
    async fn runs_within(&self, gpu: &Gpu, wanted: f64, out: &Buffer) -> Result<usize> {
        let few = self.run(gpu, 1, out).await?;
        let mut count = self.matrix_count;
        loop {
            let ms = self.run(gpu, 1 + count, out).await? - few;
            if ms * 2.0 >= wanted {
                return Ok(((count as f64 * wanted / ms).ceil() as usize).clamp(2, MAX_LAUNCHES));
            }
            if count >= MAX_LAUNCHES {
                return Ok(MAX_LAUNCHES);
            }
            count *= 4;
        }
    }
}

/// Runs the variants in turns until time is up.
async fn time_variants(
    gpu: &Gpu,
    forms: &[Candidate],
    default: usize,
    out: &Buffer,
    (tick, wanted, end): (f64, f64, f64),
) -> Result<Timings> {
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); forms.len()];
    let Some(first) = forms.get(default).filter(|_| tick <= MAX_CLOCK_TICK_MS) else {
        return Ok(Timings {
            resolution: f64::MAX,
            rounds,
        });
    };
    // The first run also warms up each variant.
    for form in forms {
        form.run(gpu, 1, out).await?;
    }
    // On a software adapter only the code path matters: run the minimum for a decision, however
    // long it takes.
    let (count, most, end) = match gpu.caps().software {
        true => (2, super::MIN_ROUNDS, f64::MAX),
        false => (first.runs_within(gpu, wanted, out).await?, MAX_ROUNDS, end),
    };
    'rounds: for round in 0..most {
        for turn in 0..forms.len() {
            // Alternate the order, so that a rising clock favours no variant.
            let index = if round % 2 == 0 {
                turn
            } else {
                forms.len() - 1 - turn
            };
            if now_ms() > end {
                break 'rounds;
            }
            let few = forms[index].run(gpu, 1, out).await?;
            let many = forms[index].run(gpu, 1 + count, out).await?;
            rounds[index].push((many - few) * 1e3 / count as f64);
        }
    }
    Ok(Timings {
        resolution: tick * 1e3 / count as f64,
        rounds,
    })
}

/// The clock's resolution in milliseconds: 5 µs in some pages, 100 in most, a millisecond in some
/// browsers.
fn clock_tick_ms() -> f64 {
    let mut least = f64::MAX;
    for _ in 0..3 {
        let start = now_ms();
        // Bound the number of polls: the clock may hardly advance.
        let moved = (0..50_000).map(|_| now_ms() - start).find(|ms| *ms > 0.0);
        least = least.min(moved.unwrap_or(f64::MAX));
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost that is found where a dispatch takes `us`, and the first readbacks after several
    /// chains take `delay_ms` longer.
    fn found(us: f64, delay_ms: f64) -> f64 {
        let mut delayed = CHAIN_ROUNDS[0];
        let run = async |count: usize| {
            let mut ms = (count * CHAIN_DISPATCHES) as f64 * us / 1e3;
            if count > 1 && delayed > 0 {
                delayed -= 1;
                ms += delay_ms;
            }
            Ok(ms)
        };
        pollster::block_on(chain_us(20.0, run)).expect("a cost")
    }

    #[test]
    fn late_readbacks_do_not_make_dispatches_expensive() {
        assert!(found(4.0, 6.0) < 5.0);
        assert!((found(4.0, 0.0) - 4.0).abs() < 1e-9);
        assert!((found(40.0, 0.0) - 40.0).abs() < 1e-9);
        assert!((found(40.0, 6.0) - 40.0).abs() < 1e-9);
    }
}
