//! A tower on a device: tiles of pictures in, rows for the language model out, which stay on the device. It is loaded when the
//! first picture comes. It knows pixels as its processor gives them, and no prompt.

use super::decide::{fused, wanted};
use super::files::Files;
use super::load::{Compiled, Wanted, load_compiled};
use super::options::RunOptions;
use super::step::{Buffers, Pipelines, Prepared, STATE_BYTES, Step, compile, finite, rows_bytes, state, unpadded};
use crate::arch::tower;
use crate::arch::vision::{PATCHES, PLACES, PROBE, Tower, match_ends};
use crate::format::gguf::clip::PROCESSOR;
use crate::format::{Encoding, Float, Layout};
use crate::gpu::{Backend, Buffer, Gpu, Usage, Work};
use crate::hub::Source;
use crate::ir::{Counts, Dim, Graph};
use crate::kernels::attention::Kv;
use crate::plan::{Plan, PlanOptions, RowsMode, Slot, WeightPlans, lower};
use crate::util::map::SortedSet;
use crate::vision::{Films, Order, Picture, Places, Processor, places};
use crate::{Error, Result};
use serde_json::Value;

/// The fewest patches that a step is made for.
const LEAST: usize = 256;
/// The most patches that are encoded together; a tile is never cut.
const MOST: usize = 16_384;

/// A picture's rows on the device.
#[derive(Clone)]
pub struct Encoded {
    /// `[tokens, cols]`, rows at multiples of four.
    pub rows: Buffer,
    /// Rows of all tiles.
    pub tokens: usize,
    /// Columns of a row: those of the language model, as often as the tower has features.
    pub cols: usize,
    /// Where in `rows` the tokens lie, tile after tile, each row by row.
    pub order: Vec<u32>,
    /// Tokens down and across of each tile.
    pub grids: Vec<(usize, usize)>,
    /// How far the positions of two tiles are apart, which are groups of a video's frames; 0 where tiles are pictures.
    pub interval: f64,
}

/// A loaded tower.
pub struct Eye {
    /// What it computes.
    pub tower: Tower,
    /// Bytes of its weights on the device.
    pub bytes: u64,
    /// Pictures that were encoded so far.
    pub encodes: usize,
    graph: Graph,
    plans: WeightPlans,
    weights: Buffers,
    made: Option<Made>,
}

/// A step for up to so many patches.
struct Made {
    rows: usize,
    step: Step,
    own: Buffers,
}

impl Eye {
    /// Loads the tower of a model whose files are opened; its weights keep the encoding of the file.
    ///
    /// # Errors
    /// What the configuration, the checkpoint, the source or the device refuses.
    pub async fn load(gpu: &Gpu, source: &Source, files: Files, options: RunOptions) -> Result<Self> {
        let config = files.full_config();
        let Files { checkpoint, weights: mut stored, .. } = files;
        let mut tower = tower(&config)?;
        match_ends(&mut tower.graph, &stored.iter().map(|w| w.name.clone()).collect::<Vec<_>>());
        for (name, rows, cols) in tower.graph.weights.iter().flat_map(|w| w.parts.iter().map(|p| (&p.0, p.1, w.cols))) {
            let Some(weight) = stored.iter_mut().find(|w| w.name == *name) else { continue };
            // Convolutions over patches are products; tables may lie in several parts.
            if (weight.shape.len() > 2 || weight.shape.len() == 1 && cols > 1)
                && weight.shape.iter().product::<usize>() == rows * cols
                && matches!(weight.encoding, Encoding::Dense(_))
            {
                (weight.shape, weight.stored_rows) = (vec![rows, cols], rows);
            }
            if let Some((_, order)) = tower.rows.iter().find(|(end, _)| name.ends_with(end)) {
                weight.row_order = *order;
            }
        }
        let kept = options.overrides;
        let layout_of = |name: &str| {
            stored.get(name, "").map_or(Layout::Dense(Float::F32), |w| wanted(w, tower.graph.kind_of(name), kept))
        };
        let limit = gpu.caps().max_weight_buffer().min(options.max_weight_buffer.unwrap_or(u64::MAX));
        let (graph, plans, _) = fused(&tower.graph, options.fusions, &layout_of, &|_| None, limit)?;
        let rows = LEAST;
        let plan = planned(gpu, &graph, &plans, rows, tower.merge)?;
        let wanted = Wanted { gpu, graph: &graph, plans: &plans, source, checkpoint: &checkpoint, stored: &stored };
        let nothing = || Box::pin(async { Ok(()) });
        let Compiled { pipelines, buffers: weights, .. } =
            load_compiled(wanted, nothing(), &|| Ok(vec![plan.clone()]), nothing()).await?;
        let bytes = weights.values().map(Buffer::size).sum();
        let mut eye = Self { tower, bytes, encodes: 0, graph, plans, weights, made: None };
        eye.make(gpu, rows, &plan, &pipelines)?;
        gpu.check().await?;
        Ok(eye)
    }

    /// Columns of the language model.
    pub fn cols(&self) -> usize {
        self.graph.value(self.graph.hidden).cols / self.tower.features
    }

    /// The order in which patches go in.
    pub fn order(&self, processor: &Processor) -> Order {
        let order = Order { merge: self.tower.merge, ..processor.order(self.tower.patch) };
        match self.tower.frames_first {
            true => Order { frames_first: true, color_last: false, ..order },
            false => order,
        }
    }

    fn make(&mut self, gpu: &Gpu, rows: usize, plan: &Plan, pipelines: &Pipelines) -> Result<()> {
        let mut own = Buffers::new();
        let bytes = |cols: usize| (rows * cols.next_multiple_of(4) * 4) as u64;
        let sizes = [(Slot::Positions, 1), (Slot::Segments, 2), (Slot::Windows, 2), (Slot::Spans, 2)];
        for (slot, words) in sizes {
            own.insert(slot, gpu.buffer("patches", (rows * words * 4) as u64, Usage::Storage)?);
        }
        for (index, input) in self.graph.inputs.iter().enumerate() {
            let slot = Slot::Input(crate::ir::InputId(index));
            own.insert(slot, gpu.buffer("patches", bytes(input.cols), Usage::Storage)?);
        }
        for (index, spec) in self.graph.ropes.iter().enumerate() {
            own.insert(Slot::Rope(index), gpu.buffer("rope", (rows * spec.dim * 4) as u64, Usage::Storage)?);
        }
        for dim in self.dims() {
            own.insert(Slot::Cursor(dim), gpu.buffer("cursor", STATE_BYTES, Usage::Storage)?);
        }
        let positions: Vec<u32> = (0..rows as u32).collect();
        gpu.write(&own[&Slot::Positions], 0, bytemuck::cast_slice(&positions));
        let prepared = Prepared::new(gpu, "encode picture", plan.clone(), true)?;
        let step = Step::new(gpu, "encode picture", &prepared, &[&own, &self.weights], pipelines, 1)?;
        self.made = Some(Made { rows, step, own });
        Ok(())
    }

    fn dims(&self) -> SortedSet<Dim> {
        self.graph.values.iter().map(|v| v.rows).collect()
    }

    /// The rows of a picture's tiles, or of a video's frames, `together` of which share a row of patches.
    ///
    /// # Errors
    /// What the device refuses; `UnsupportedOption` for tiles that the tower has no positions for.
    pub async fn encode(
        &mut self,
        gpu: &Gpu,
        tiles: &[Picture],
        together: usize,
        processor: &Processor,
    ) -> Result<Encoded> {
        let order = self.order(processor);
        let tiles: Vec<Vec<&Picture>> = tiles.chunks(together.max(1)).map(|group| group.iter().collect()).collect();
        let grids: Vec<(usize, usize)> = tiles.iter().map(|t| order.grid(t[0])).collect();
        let block = order.merge * order.merge;
        let pooled = self.tower.pooled;
        let tokens = if pooled { grids.len() } else { grids.iter().map(|(h, w)| h * w / block).sum() };
        let cols = self.graph.value(self.graph.hidden).cols;
        let rows = gpu.buffer("picture", rows_bytes(tokens, cols), Usage::Storage)?;
        let mut places_of = Vec::with_capacity(tokens);
        let mut first = 0;
        while first < tiles.len() {
            let mut end = first + 1;
            let patches = |end: usize| grids[first..end].iter().map(|(h, w)| h * w).sum::<usize>();
            while end < tiles.len() && patches(end + 1) <= MOST {
                end += 1;
            }
            let tower = &self.tower;
            let places = places(&grids[first..end], &order, tower.table, tower.rope, tower.window)?;
            let places = if pooled { places.pooled() } else { places };
            let done = places_of.len();
            self.run(gpu, &tiles[first..end], processor, &order, &places, (&rows, rows_bytes(done, cols))).await?;
            places_of.extend(places.order.iter().map(|at| at + done as u32));
            first = end;
        }
        self.encodes += 1;
        let grid = |(h, w): &(usize, usize)| if pooled { (1, 1) } else { (h / order.merge, w / order.merge) };
        let grids = grids.iter().map(grid).collect();
        Ok(Encoded { rows, tokens, cols, order: places_of, grids, interval: 0.0 })
    }

    async fn run(
        &mut self,
        gpu: &Gpu,
        tiles: &[Vec<&Picture>],
        processor: &Processor,
        order: &Order,
        places: &Places,
        out: (&Buffer, u64),
    ) -> Result<()> {
        if self.made.as_ref().is_none_or(|made| made.rows < places.rows) {
            let rows = places.rows.next_power_of_two().max(LEAST);
            let plan = planned(gpu, &self.graph, &self.plans, rows, self.tower.merge)?;
            let pipelines = compile(gpu, &[&plan], &Pipelines::new()).await?;
            self.made = None;
            self.make(gpu, rows, &plan, &pipelines)?;
        }
        let Some(made) = &self.made else { return Err(Error::Internal("the tower has no step".into())) };
        let write = |slot: Slot, at: u64, bytes: &[u8]| {
            if let (Some(buffer), false) = (made.own.get(&slot), bytes.is_empty()) {
                gpu.write(buffer, at, bytes);
            }
        };
        let [scale, shift] = self.tower.affine;
        for (index, input) in self.graph.inputs.iter().enumerate() {
            let slot = Slot::Input(crate::ir::InputId(index));
            let stride = input.cols.next_multiple_of(4);
            match input.name.as_str() {
                PATCHES => {
                    let mut at = 0;
                    // A tile at a time: patches take many times the bytes of pixels.
                    for (tile, patches) in tiles.iter().zip(&places.patches) {
                        let before = vec![0.0f32; self.tower.table.before() * stride];
                        write(slot, at, bytemuck::cast_slice(&before));
                        at += (before.len() * 4) as u64;
                        for part in patches.chunks(1024) {
                            let mut rows = processor.rows(tile, order, part);
                            rows.iter_mut().for_each(|v| *v = *v * scale + shift);
                            write(slot, at, bytemuck::cast_slice(&padded(&rows, input.cols, stride)));
                            at += (part.len() * stride * 4) as u64;
                        }
                    }
                }
                PLACES => {
                    let words: &[u32] = places.table.as_flattened();
                    write(slot, 0, bytemuck::cast_slice(&padded(words, input.cols, stride)));
                }
                PROBE => {
                    let words = [0, 1.0f32.to_bits(), 0, 0].repeat(places.rows);
                    write(slot, 0, bytemuck::cast_slice(&words));
                }
                other => return Err(Error::Internal(format!("the tower has an input {other}"))),
            }
        }
        write(Slot::Rope(0), 0, bytemuck::cast_slice(&places.rope));
        write(Slot::Segments, 0, bytemuck::cast_slice(&places.segments));
        write(Slot::Windows, 0, bytemuck::cast_slice(&places.windows));
        write(Slot::Spans, 0, bytemuck::cast_slice(&places.blocks));
        let counts = Counts { rows: places.rows, sequences: places.blocks.len() };
        for dim in self.dims() {
            write(Slot::Cursor(dim), 0, bytemuck::cast_slice(&state(0, dim.of(counts), 0, 0)));
        }
        let grids = made.step.grids_for(counts);
        let size = rows_bytes(places.order.len(), made.step.output_cols);
        let copy = Work::Copy { from: (&made.step.output, 0), to: out, size };
        gpu.submit(&[made.step.with_grids(&grids), copy])
    }
}

impl Encoded {
    /// The rows as numbers, `[tokens, cols]`, tile after tile, each row by row.
    ///
    /// # Errors
    /// `NotFinite` when they are not numbers.
    pub async fn read(&self, gpu: &Gpu) -> Result<Vec<f32>> {
        let bytes = gpu.read(&self.rows, 0, rows_bytes(self.tokens, self.cols)).await?;
        let rows = unpadded(&bytes, self.cols);
        finite(&rows)?;
        let row = |at: &u32| &rows[*at as usize * self.cols..(*at as usize + 1) * self.cols];
        Ok(self.order.iter().flat_map(|at| row(at).iter().copied()).collect())
    }
}

/// The image processor of a model's files, for its tower, and how it takes videos, where it does; its configuration has the
/// settings where the tower comes of a file beside a GGUF model.
///
/// # Errors
/// `MissingFile` without settings; what they ask for that is not built.
pub async fn processors(source: &Source, config: &Value, tower: &Tower) -> Result<(Processor, Option<Films>)> {
    let mut files = Vec::new();
    for file in ["preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"] {
        let wanted = tower.told.is_some() || !file.starts_with("video");
        if wanted
            && config.get(PROCESSOR).is_none()
            && let Some(bytes) = source.read_optional(file).await?
        {
            let fault = |e: serde_json::Error| Error::Config { file: file.into(), reason: e.to_string() };
            files.push(serde_json::from_slice(&bytes).map_err(fault)?);
        }
    }
    let named = |kind: &str| {
        let class = format!("{kind}_type");
        files.iter().find_map(|file: &Value| file.get(kind).or_else(|| file.get(&class).map(|_| file)))
    };
    let found = config.get(PROCESSOR).or_else(|| named("image_processor"));
    let missing = || Error::MissingFile {
        file: "preprocessor_config.json".into(),
        place: "the model's files".into(),
        hint: "It says how pictures are resized; without it the model takes text alone.".into(),
    };
    let found = found.ok_or_else(missing)?;
    let mut processor = Processor::from_config(found)?;
    let tokens = || files.iter().find_map(|file| Processor::tile_tokens(file));
    processor.tile_tokens = tower.tile_tokens.or(processor.tile_tokens).or_else(tokens);
    let films = |told| Films::new(named("video_processor").unwrap_or(found), &processor, told);
    let films = tower.told.map(films).transpose()?;
    Ok((processor, films))
}

/// What tells pictures apart: their tiles' sizes and bytes, and when they show (FNV-1a).
pub fn content(tiles: &[Picture], seconds: &[f64]) -> u64 {
    let mix = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    let shown = seconds.iter().fold(0xcbf2_9ce4_8422_2325, |h, second| second.to_le_bytes().iter().fold(h, mix));
    tiles.iter().fold(shown, |h, tile| {
        let h = [tile.width, tile.height].iter().fold(h, |h, side| (*side as u64).to_le_bytes().iter().fold(h, mix));
        tile.rgb.iter().fold(h, mix)
    })
}

fn planned(gpu: &Gpu, graph: &Graph, weights: &WeightPlans, rows: usize, merge: usize) -> Result<Plan> {
    let sequences = rows.div_ceil(merge * merge);
    lower(
        graph,
        PlanOptions {
            rows: RowsMode::Packed { tokens: rows, sequences },
            caps: gpu.caps(),
            weights,
            kv: Kv::F32,
            capacity: rows,
            states: &[],
            fuse_heads: false,
        },
    )
}

/// Rows with zeros up to the stride.
fn padded<T: Copy + Default>(rows: &[T], cols: usize, stride: usize) -> Vec<T> {
    if cols == stride {
        return rows.to_vec();
    }
    rows.chunks_exact(cols).flat_map(|row| row.iter().copied().chain((cols..stride).map(|_| T::default()))).collect()
}
