//! Times the forms of a product of one row against each other, in a few dozen milliseconds. Knows buffers, dispatches and a
//! clock that may be coarse; no model.

use crate::device::registry::{Shader, Variant};
use crate::device::tuned::{GemvPick, Tuned};
use crate::exec::limits::{median, step};
use crate::format::Layout;
use crate::gpu::{Backend, Buffer, Caps, Gpu, Grid, Program, StepDesc, Usage, Work};
use crate::kernels::Launch;
use crate::kernels::matmul::{Matmul, View, Weight};
use crate::plan::Slot;
use crate::util::{clock::now_ms, fnv};
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::cell::OnceCell;

/// Milliseconds that all of it may take once the kernels are compiled.
const BUDGET_MS: f64 = 50.0;
/// Milliseconds of the longer of two runs of which the difference counts; a coarse clock wants more.
const RUN_MS: f64 = 2.0;
/// Ticks of the clock that the longer run has at least.
const TICKS: f64 = 6.0;
/// A clock that is coarser tells nothing in the time there is.
const COARSEST_MS: f64 = 2.0;
/// Rounds at the most.
const ROUNDS: usize = 5;
/// The most products of a run.
const MOST: usize = 1024;
/// Dispatches, and how often, that tell what one costs: 10 ms where they are dear.
const DISPATCHES: usize = 64;
const DISPATCH_ROUNDS: usize = 3;

/// The matrix that is multiplied, and the bytes of those beside it: all together exceed most caches.
struct Scene {
    rows: u32,
    cols: u32,
    bytes: u64,
}

impl Scene {
    /// That of a feed-forward layer of a model such as fits a page; on a software adapter the number means nothing, it
    /// shall only come soon.
    fn of(caps: &Caps) -> Self {
        match caps.software {
            true => Self { rows: 2048, cols: 512, bytes: 2 << 20 },
            false => Self { rows: 8192, cols: 2048, bytes: 80 << 20 },
        }
    }

    /// Matrices of a layout that lie one below the other in the planes.
    fn slots(&self, layout: Layout, limit: u64) -> u32 {
        let one = layout.plane_bytes(self.rows as usize, self.cols as usize);
        let fit = (limit / one[0].max(one[1]).max(1)).min(self.bytes / (one[0] + one[1]).max(1));
        fit.clamp(1, 64) as u32
    }
}

/// The forms of a layout's product that differ on a device.
pub struct Forms {
    pub layout: Layout,
    /// What the family takes by itself.
    pub own: GemvPick,
    /// Of the texts and grids of all of them.
    pub hash: u64,
    launches: Vec<(GemvPick, Variant)>,
}

impl Forms {
    /// The forms, where there are several.
    pub fn of(caps: &Caps, layout: Layout) -> Option<Self> {
        let scene = Scene::of(caps);
        let [q, s] = layout.plane_bytes(scene.rows as usize, scene.cols as usize);
        if q.max(s) > caps.max_weight_buffer() {
            return None;
        }
        let same =
            |a: &Launch<Slot>, b: &Launch<Slot>| (&a.variant, a.grid, &a.params) == (&b.variant, b.grid, &b.params);
        let product = |pick| product(caps, layout, &scene, pick, (1, 0));
        let mut found: Vec<(GemvPick, Launch<Slot>)> = Vec::new();
        for pick in GemvPick::ALL {
            let launch = product(Some(pick));
            if !found.iter().any(|(_, other)| same(other, &launch)) {
                found.push((pick, launch));
            }
        }
        let free = product(None);
        let own = found.iter().find(|(_, launch)| same(launch, &free))?.0;
        let text = |l: &Launch<Slot>| {
            let shader = l.variant.shader(cfg!(target_arch = "wasm32")).map_or_else(|_| String::new(), |s| s.text);
            format!("{shader}{:?}{:?}", l.grid, l.params)
        };
        let hash = fnv(&found.iter().map(|(_, launch)| text(launch)).collect::<String>());
        let launches: Vec<_> = found.into_iter().map(|(pick, launch)| (pick, launch.variant)).collect();
        (launches.len() > 1).then_some(Self { layout, own, hash, launches })
    }

    /// Their names.
    pub fn picks(&self) -> impl Iterator<Item = GemvPick> {
        self.launches.iter().map(|(pick, _)| *pick)
    }
}

/// The product with one of `slots` matrices that lie one below the other. Its buffers are x, out, both planes and the
/// state, as activations of those numbers.
fn product(
    caps: &Caps,
    layout: Layout,
    scene: &Scene,
    pick: Option<GemvPick>,
    (slots, slot): (u32, u32),
) -> Launch<Slot> {
    let tuned = pick.map_or_else(OnceCell::new, |pick| OnceCell::from(Tuned::default().with(layout, pick)));
    let caps = Caps { tuned, ..caps.clone() };
    let [x, out, q, s, state] = [0, 1, 2, 3, 4].map(Slot::Activation);
    let &Scene { rows, cols, .. } = scene;
    let view = |buffer: Slot, stride: u32| View { buffer, offset: 0, stride };
    let s = (layout.plane_bytes(1, cols as usize)[1] > 0).then_some(s);
    let weight = Weight { layout, rows: rows * slots, cols, q, s };
    let mut product = Matmul::plain("tune", weight, view(x, cols), view(out, rows));
    (product.n, product.row0) = (rows, rows * slot);
    product.gemv(&caps, 1, state)
}

/// Microseconds of a product, by its form and round.
pub struct Times {
    /// Differences below this are the clock's.
    pub resolution: f64,
    pub rounds: Vec<(GemvPick, Vec<f64>)>,
}

impl Times {
    /// The middle of a form's times, where there are enough to believe it.
    pub fn median(&self, pick: GemvPick) -> Option<f64> {
        let rounds = &self.rounds.iter().find(|(p, _)| *p == pick)?.1;
        let good: Vec<f64> = rounds.iter().copied().filter(|us| us.is_finite() && *us > 0.0).collect();
        (good.len() >= super::LEAST).then(|| median(good))
    }

    /// All medians, by the forms' names.
    pub fn medians(&self) -> Map<String, Value> {
        let median = |(pick, _): &(GemvPick, _)| Some((pick.name().into(), json!(self.median(*pick)?)));
        self.rounds.iter().filter_map(median).collect()
    }
}

/// Times the forms of some layouts, in the same order; with the bytes of the device's buffers meanwhile.
///
/// # Errors
/// What the device reports, also that it has no room for the matrices.
pub async fn measure(gpu: &Gpu, all: &[&Forms]) -> Result<(Vec<Times>, u64)> {
    let tick = tick();
    let scene = Scene::of(gpu.caps());
    let limit = gpu.caps().max_weight_buffer();
    let bytes = |forms: &&Forms| {
        let slots = scene.slots(forms.layout, limit) as usize;
        forms.layout.plane_bytes(scene.rows as usize * slots, scene.cols as usize)
    };
    let most = all.iter().map(bytes).fold([0; 2], |[q, s], [a, b]| [q.max(a), s.max(b)]);
    let buffer = |size: u64| gpu.buffer("tune", size, Usage::Storage);
    let [x, out, q, s, state] =
        [u64::from(scene.cols) * 4, u64::from(scene.rows) * 4, most[0], most[1], 32].map(buffer);
    let buffers = [x?, out?, q?, s?, state?];
    // Small numbers, none of them subnormal; the scales are zero, and so is all that comes out.
    let x: Vec<f32> = (0..scene.cols).map(|i| (i % 13) as f32 / 8.0 - 0.75).collect();
    gpu.write(&buffers[0], 0, bytemuck::cast_slice(&x));
    let variants = all.iter().flat_map(|forms| forms.launches.iter().map(|(_, variant)| variant));
    let shaders: Vec<Shader> =
        variants.map(|variant| variant.shader(cfg!(target_arch = "wasm32"))).collect::<Result<_>>()?;
    let mut pipelines = gpu.pipelines(&shaders).await?.into_iter().zip(&shaders);
    let peak = gpu.created().bytes;
    let fill = step(gpu, "FILL", &buffers[2], None).await?;
    gpu.submit(&[Work::Run { program: &fill, grids: None }])?;
    let (start, mut found) = (now_ms(), Vec::new());
    for (index, forms) in all.iter().enumerate() {
        let slots = scene.slots(forms.layout, limit);
        let mut contest = Vec::new();
        for (pick, _) in &forms.launches {
            let missing = || Error::Internal("a form has no pipeline".into());
            let (pipeline, shader) = pipelines.next().ok_or_else(missing)?;
            let mut steps = Vec::new();
            for slot in 0..slots {
                let launch = product(gpu.caps(), forms.layout, &scene, Some(*pick), (slots, slot));
                let resolved = launch.resolve(shader)?;
                let buffer = |(binding, slot)| match slot {
                    Slot::Activation(index) => Some((binding, buffers.get(index)?.clone())),
                    _ => None,
                };
                let buffers = resolved.buffers.into_iter().filter_map(buffer).collect();
                let (label, grid, pipeline) = (launch.label, launch.grid.at(1), pipeline.clone());
                steps.push(StepDesc { label, pipeline, buffers, params: resolved.params, grid });
            }
            let grid = steps.first().map_or([0; 3], |step| step.grid);
            contest.push(Contestant { pick: *pick, program: gpu.program("tune", steps)?, grid, slots });
        }
        // What one layout leaves of its time is the next one's.
        let end = start + BUDGET_MS * (index + 1) as f64 / all.len() as f64;
        found.push(timed(gpu, &contest, forms.own, &buffers[1], tick, end).await?);
    }
    Ok((found, peak))
}

/// Microseconds of a dispatch that waits for the one before, in one submit; on a software adapter the number means nothing.
///
/// # Errors
/// What the device reports.
pub async fn dispatch_us(gpu: &Gpu) -> Result<f64> {
    let out = gpu.buffer("tune", 1024, Usage::Storage)?;
    let program = step(gpu, "CHAIN", &out, None).await?;
    let chain = Contestant { pick: GemvPick::Rows, program, grid: [1; 3], slots: 1 };
    chain.run(gpu, 1, &out).await?;
    let mut found = Vec::new();
    for _ in 0..DISPATCH_ROUNDS {
        let few = chain.run(gpu, 1, &out).await?;
        found.push((chain.run(gpu, 1 + DISPATCHES, &out).await? - few) * 1e3 / DISPATCHES as f64);
    }
    Ok(median(found).max(0.0))
}

/// One form, ready to run.
struct Contestant {
    pick: GemvPick,
    /// A product with each of the matrices.
    program: Program,
    grid: Grid,
    slots: u32,
}

impl Contestant {
    /// Milliseconds until so many products are done and a word is read back.
    async fn run(&self, gpu: &Gpu, count: usize, out: &Buffer) -> Result<f64> {
        let slots = self.slots as usize;
        let part: Vec<Grid> = (0..slots).map(|slot| if slot < count % slots { self.grid } else { [0; 3] }).collect();
        let program = &self.program;
        let mut work: Vec<Work<'_>> = (0..count / slots).map(|_| Work::Run { program, grids: None }).collect();
        if !count.is_multiple_of(slots) {
            work.push(Work::Run { program, grids: Some(&part) });
        }
        let start = now_ms();
        gpu.submit(&work)?;
        gpu.read(out, 0, 16).await?;
        Ok(now_ms() - start)
    }

    /// How many products take so many milliseconds.
    async fn count(&self, gpu: &Gpu, wanted: f64, out: &Buffer) -> Result<usize> {
        let few = self.run(gpu, 1, out).await?;
        let mut count = self.slots as usize;
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

/// Runs the forms in turns until the time is over.
async fn timed(gpu: &Gpu, contest: &[Contestant], own: GemvPick, out: &Buffer, tick: f64, end: f64) -> Result<Times> {
    let mut rounds: Vec<(GemvPick, Vec<f64>)> = contest.iter().map(|c| (c.pick, Vec::new())).collect();
    let mut times = Times { resolution: f64::MAX, rounds: Vec::new() };
    let Some(first) = contest.iter().find(|c| c.pick == own).filter(|_| tick <= COARSEST_MS) else {
        return Ok(times);
    };
    // The first run of each also makes it ready.
    for contestant in contest {
        contestant.run(gpu, 1, out).await?;
    }
    // A software adapter is measured to see that all of this runs: as little as makes a decision, however long it takes.
    let (count, most, end) = match gpu.caps().software {
        true => (2, super::LEAST, f64::MAX),
        false => (first.count(gpu, RUN_MS.max(TICKS * tick), out).await?, ROUNDS, end),
    };
    'rounds: for round in 0..most {
        for turn in 0..contest.len() {
            // Every other round runs backwards: a clock that rises under load favours nobody.
            let index = if round % 2 == 0 { turn } else { contest.len() - 1 - turn };
            if now_ms() > end {
                break 'rounds;
            }
            let few = contest[index].run(gpu, 1, out).await?;
            let many = contest[index].run(gpu, 1 + count, out).await?;
            rounds[index].1.push((many - few) * 1e3 / count as f64);
        }
    }
    (times.resolution, times.rounds) = (tick * 1e3 / count as f64, rounds);
    Ok(times)
}

/// The step of the clock in milliseconds: 5 µs in some pages, 100 in most, a millisecond in some browsers.
fn tick() -> f64 {
    let mut least = f64::MAX;
    for _ in 0..3 {
        let start = now_ms();
        // A clock that hardly moves is told by the number of looks at it.
        let moved = (0..50_000).map(|_| now_ms() - start).find(|ms| *ms > 0.0);
        least = least.min(moved.unwrap_or(f64::MAX));
    }
    least
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::format::{Float, quantize};

    /// A device that has every form.
    pub fn caps() -> Caps {
        Caps {
            vendor: "nvidia".into(),
            architecture: "some".into(),
            description: "driver 1".into(),
            f16: true,
            subgroups: true,
            subgroup_size: (32, 32),
            max_buffer_size: 1 << 30,
            max_binding_size: 1 << 30,
            max_workgroup_storage: 32768,
            max_invocations: 1024,
            packed_dot: true,
            ..Caps::default()
        }
    }

    fn picks(caps: &Caps, layout: Layout) -> Vec<GemvPick> {
        Forms::of(caps, layout).map_or_else(Vec::new, |forms| forms.picks().collect())
    }

    #[test]
    fn only_forms_that_differ_are_timed() {
        let all = GemvPick::ALL;
        for layout in [quantize::layout(4), quantize::layout(8), Layout::Q4K] {
            assert_eq!(picks(&caps(), layout), all);
            assert_eq!(picks(&Caps { packed_dot: false, ..caps() }, layout), all[..2]);
            assert_eq!(picks(&Caps { software: true, ..caps() }, layout), all);
            // Without subgroups there are no blocks.
            assert!(picks(&Caps { subgroups: false, ..caps() }, layout).is_empty());
        }
        for layout in [Layout::Dense(Float::F16), Layout::Q6K, Layout::Mxfp4, Layout::Ternary] {
            assert!(picks(&caps(), layout).is_empty(), "{layout}");
        }
    }

    #[test]
    fn the_own_form_is_the_vendors() {
        let own = |vendor: &str| Forms::of(&Caps { vendor: vendor.into(), ..caps() }, Layout::Q4K).map(|f| f.own);
        assert_eq!(own("nvidia"), Some(GemvPick::PackedBlocks));
        assert_eq!(own("apple"), Some(GemvPick::Blocks));
    }

    #[test]
    fn the_matrices_fit_their_room_and_the_devices_limit() {
        let scene = Scene::of(&caps());
        for layout in [quantize::layout(4), quantize::layout(8), Layout::Q4K] {
            for limit in [16 << 20, 128 << 20, u64::MAX] {
                let rows = (scene.slots(layout, limit) * scene.rows) as usize;
                let [q, s] = layout.plane_bytes(rows, scene.cols as usize);
                assert!(q.max(s) <= limit && q + s <= scene.bytes, "{layout} {limit}: {q} and {s}");
            }
        }
    }
}
