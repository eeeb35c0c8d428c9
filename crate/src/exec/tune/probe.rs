//! Times kernel variants against each other in a few dozen milliseconds, even with a coarse clock.

use super::contest::{Contest, Scene};
use crate::Result;
use crate::exec::limits::{CHAIN, median, step, steps};
use crate::gpu::{Backend, Buffer, Gpu, Grid, Program, Usage, Work};
use crate::util::clock::now_ms;
use serde_json::{Map, Value, json};

/// Milliseconds for all measurements once the kernels are compiled.
const BUDGET_MS: f64 = 50.0;
/// Minimum milliseconds of the longer of two runs whose difference counts, when two cases share the time; a coarse
/// clock needs more.
const RUN_MS: f64 = 2.0;
/// Minimum clock ticks of the longer run.
const TICKS: f64 = 6.0;
/// Coarsest usable clock resolution in milliseconds.
const COARSEST_MS: f64 = 2.0;
/// Maximum rounds.
const ROUNDS: usize = 5;
/// Maximum launches of a run.
const MOST: usize = 1024;
/// Repetitions of dispatch chains that measure dispatch cost: 5 ms each where dispatches are expensive, more than a
/// readback varies.
const CHAINS: usize = 2;
const CHAIN_ROUNDS: usize = 4;
/// Microseconds by variant and round.
#[derive(Debug)]
pub struct Times {
    /// Clock resolution in microseconds; smaller differences are noise.
    pub resolution: f64,
    /// Rounds of each variant.
    pub rounds: Vec<Vec<f64>>,
}

impl Times {
    /// The median of a variant's times; `None` with too few rounds.
    pub fn median(&self, form: usize) -> Option<f64> {
        middle(self.rounds.get(form)?.clone())
    }

    /// The ratio of a variant's time to that of `own`; `None` with too few rounds. It is the median over rounds, the
    /// larger of the two middle values if even. A transfer or a rising clock during one round then affects only that
    /// round.
    pub fn share(&self, form: usize, own: usize) -> Option<f64> {
        let rounds = self.rounds[form].iter().zip(&self.rounds[own]);
        // A delay in the shorter run can make a time negative; its ratio is not finite.
        middle(rounds.map(|(us, own)| us / own.max(0.0)).collect())
    }

    /// Median times by variant name.
    pub fn medians(&self, contest: &Contest) -> Map<String, Value> {
        let named = contest.forms.iter().enumerate();
        named.filter_map(|(form, (name, _))| Some(((*name).into(), json!(thousandths(self.median(form)?))))).collect()
    }
}

/// The median of the finite values.
fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite() && *value > 0.0);
    (values.len() >= super::LEAST).then(|| median(values))
}

/// Times the variants of each case, in the same order; also returns the bytes of the device's buffers meanwhile.
///
/// # Errors
/// Device errors, including `OutOfMemory` for the benchmark matrices.
pub async fn measure_forms(gpu: &Gpu, all: &[&Contest]) -> Result<(Vec<Times>, u64)> {
    let (tick, caps) = (tick(), gpu.caps());
    let scene = Scene::of(caps);
    // All launches, grouped by variant within each case.
    let (mut launches, mut parts, mut bytes) = (Vec::new(), Vec::new(), [16; 6]);
    for contest in all {
        let slots = contest.what.slots(caps, &scene);
        for (_, table) in &contest.forms {
            let before = launches.len();
            for slot in 0..slots {
                let (some, needs) = contest.what.launches(caps, table, (slots, slot));
                launches.extend(some);
                bytes.iter_mut().zip(needs).for_each(|(most, needs)| *most = needs.max(*most));
            }
            parts.push((launches.len() - before, slots as usize));
        }
    }
    let buffers = bytes.iter().map(|size| gpu.buffer("tune", *size, Usage::Storage)).collect::<Result<Vec<_>>>()?;
    // Small values, none subnormal; scales are zero, so all results are zero.
    let x: Vec<f32> = (0..bytes[0] / 4).map(|i| (i % 13) as f32 / 8.0 - 0.75).collect();
    gpu.write(&buffers[0], 0, bytemuck::cast_slice(&x));
    let mut steps = steps(gpu, &launches, &buffers, 1).await?.into_iter();
    let peak = gpu.created().bytes;
    let fill = step(gpu, "FILL", &buffers[2], None).await?;
    gpu.submit(&[Work::Run { program: &fill, grids: None }])?;
    let (start, mut found, mut parts) = (now_ms(), Vec::new(), parts.into_iter());
    for (index, contest) in all.iter().enumerate() {
        gpu.write(&buffers[4], 0, bytemuck::cast_slice(&contest.what.step()));
        let mut forms = Vec::new();
        for (count, slots) in parts.by_ref().take(contest.forms.len()) {
            let steps: Vec<_> = steps.by_ref().take(count).collect();
            let grids = steps.iter().map(|step| step.grid).collect();
            forms.push(Form { program: gpu.program("tune", steps)?, grids, slots });
        }
        // Time left over by one case passes to the next.
        let end = start + BUDGET_MS * (index + 1) as f64 / all.len() as f64;
        let wanted = (2.0 * RUN_MS / all.len().max(2) as f64).max(TICKS * tick);
        found.push(timed(gpu, &forms, contest.own, &buffers[1], (tick, wanted, end)).await?);
    }
    Ok((found, peak))
}

/// Microseconds of a dependent dispatch in one submission; meaningless on a software adapter.
///
/// # Errors
/// Device errors.
pub async fn dispatch_us(gpu: &Gpu) -> Result<f64> {
    let out = gpu.buffer("tune", 1024, Usage::Storage)?;
    let program = step(gpu, "CHAIN", &out, None).await?;
    let chain = Form { program, grids: vec![[1; 3]; CHAIN], slots: 1 };
    chain.run(gpu, 1, &out).await?;
    // Other load only adds time, so the minimum is the best estimate.
    let (mut few, mut many) = (f64::MAX, f64::MAX);
    for _ in 0..CHAIN_ROUNDS {
        few = chain.run(gpu, 1, &out).await?.min(few);
        many = chain.run(gpu, 1 + CHAINS, &out).await?.min(many);
    }
    Ok(thousandths((many - few).max(0.0) * 1e3 / (CHAINS * CHAIN) as f64))
}

/// Rounds to thousandths for storage: the JSON parser misreads the last digit of some long numbers.
fn thousandths(us: f64) -> f64 {
    (us * 1e3) as u64 as f64 / 1e3
}

/// A variant, ready to run.
struct Form {
    /// Its launches over each matrix.
    program: Program,
    grids: Vec<Grid>,
    slots: usize,
}

impl Form {
    /// Milliseconds to run it `count` times and read back one word.
    async fn run(&self, gpu: &Gpu, count: usize, out: &Buffer) -> Result<f64> {
        let (program, slots) = (&self.program, self.slots);
        let mut part = self.grids.clone();
        part[self.grids.len() / slots * (count % slots)..].fill([0; 3]);
        let mut work: Vec<Work<'_>> = (0..count / slots).map(|_| Work::Run { program, grids: None }).collect();
        if !count.is_multiple_of(slots) {
            work.push(Work::Run { program, grids: Some(&part) });
        }
        let start = now_ms();
        gpu.submit(&work)?;
        gpu.read(out, 0, 16).await?;
        Ok(now_ms() - start)
    }

    /// The number of runs that takes `wanted` milliseconds.
    async fn count(&self, gpu: &Gpu, wanted: f64, out: &Buffer) -> Result<usize> {
        let few = self.run(gpu, 1, out).await?;
        let mut count = self.slots;
        loop {
            let ms = self.run(gpu, 1 + count, out).await? - few;
            if ms * 2.0 >= wanted {
                return Ok(((count as f64 * wanted / ms).ceil() as usize).clamp(2, MOST));
            }
            if count >= MOST {
                return Ok(MOST);
            }
            count *= 4;
        }
    }
}

/// Runs the variants in turns until time is up.
async fn timed(
    gpu: &Gpu,
    forms: &[Form],
    own: usize,
    out: &Buffer,
    (tick, wanted, end): (f64, f64, f64),
) -> Result<Times> {
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); forms.len()];
    let Some(first) = forms.get(own).filter(|_| tick <= COARSEST_MS) else {
        return Ok(Times { resolution: f64::MAX, rounds });
    };
    // The first run also warms up each variant.
    for form in forms {
        form.run(gpu, 1, out).await?;
    }
    // On a software adapter only the code path matters: run the minimum for a decision, however long it takes.
    let (count, most, end) = match gpu.caps().software {
        true => (2, super::LEAST, f64::MAX),
        false => (first.count(gpu, wanted, out).await?, ROUNDS, end),
    };
    'rounds: for round in 0..most {
        for turn in 0..forms.len() {
            // Alternate the order, so that a rising clock favours no variant.
            let index = if round % 2 == 0 { turn } else { forms.len() - 1 - turn };
            if now_ms() > end {
                break 'rounds;
            }
            let few = forms[index].run(gpu, 1, out).await?;
            let many = forms[index].run(gpu, 1 + count, out).await?;
            rounds[index].push((many - few) * 1e3 / count as f64);
        }
    }
    Ok(Times { resolution: tick * 1e3 / count as f64, rounds })
}

/// The clock's resolution in milliseconds: 5 µs in some pages, 100 in most, a millisecond in some browsers.
fn tick() -> f64 {
    let mut least = f64::MAX;
    for _ in 0..3 {
        let start = now_ms();
        // Bound the number of polls: the clock may hardly advance.
        let moved = (0..50_000).map(|_| now_ms() - start).find(|ms| *ms > 0.0);
        least = least.min(moved.unwrap_or(f64::MAX));
    }
    least
}
