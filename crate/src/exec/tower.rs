//! Vision encoder: image tiles in, embeddings for the language model out, which stay on the device. Loaded when the
//! first image arrives.

use super::files::Files;
use super::limits::steps;
use super::options::RunOptions;
use super::side::{Side, USUAL};
use super::step::{Buffers, finite, padded, rows_bytes, unpadded};
use crate::arch::tower;
use crate::arch::vision::{PATCHES, PLACES, PROBE, Tower, match_ends};
use crate::format::Encoding;
use crate::format::gguf::clip::PROCESSOR;
use crate::gpu::{Backend, Buffer, Gpu, Program, Usage, Work};
use crate::hub::Source;
use crate::ir::{Counts, InputId};
use crate::kernels::matmul::View;
use crate::kernels::patches::{Cut, patches};
use crate::plan::Slot;
use crate::vision::{Films, Order, Picture, Places, Processor, places};
use crate::{Error, Result};
use serde_json::Value;

/// Maximum patches encoded together; a tile is never cut.
const MOST: usize = 16_384;

/// Embeddings of an image on the device.
#[derive(Clone)]
pub struct Encoded {
    /// `[tokens, cols]`, with row strides padded to multiples of four.
    pub rows: Buffer,
    /// Rows of all tiles.
    pub tokens: usize,
    /// Columns of a row: the width of the language model times the number of vision features.
    pub cols: usize,
    /// Index in `rows` of each token: tile by tile, row-major.
    pub order: Vec<u32>,
    /// Tokens of each tile as (height, width).
    pub grids: Vec<(usize, usize)>,
    /// Position distance of two tiles that are groups of a video's frames; 0 for images.
    pub interval: f64,
}

/// A loaded vision encoder.
pub struct Eye {
    /// Its graph and settings.
    pub tower: Tower,
    /// Number of images encoded so far.
    pub encodes: usize,
    side: Side,
    cutter: Option<Cutter>,
    laid: Option<Laid>,
}

/// Patch layout of the last tiles, which is in the step's buffers; tiles of the same grids reuse it.
struct Laid {
    order: Order,
    grids: Vec<(usize, usize)>,
    places: Places,
}

impl Eye {
    /// Loads the vision encoder of a model from opened files; weights keep the encoding of the file.
    ///
    /// # Errors
    /// Errors of the configuration, the checkpoint, the source or the device.
    pub async fn load(gpu: &Gpu, source: &Source, mut files: Files, options: RunOptions) -> Result<Self> {
        let config = files.full_config();
        let stored = &mut files.weights;
        let mut tower = tower(&config)?;
        match_ends(&mut tower.graph, &stored.iter().map(|w| w.name.clone()).collect::<Vec<_>>());
        for (name, rows, cols) in tower.graph.weights.iter().flat_map(|w| w.parts.iter().map(|p| (&p.0, p.1, w.cols))) {
            let Some(weight) = stored.iter_mut().find(|w| w.name == *name) else { continue };
            // Patch convolutions run as matmuls; tables may be stored in several parts.
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
        let block = Some(tower.merge * tower.merge);
        let mut side = Side::load(gpu, source, &files, (&tower.graph, block), options).await?;
        side.prepare(gpu, USUAL, &Buffers::new()).await?;
        gpu.check().await?;
        Ok(Self { tower, encodes: 0, side, cutter: None, laid: None })
    }

    /// Bytes of its weights on the device.
    pub fn bytes(&self) -> u64 {
        self.side.bytes
    }

    /// Width of the language model.
    pub fn cols(&self) -> usize {
        self.side.cols() / self.tower.features
    }

    /// The patch order that the encoder expects.
    pub fn order(&self, processor: &Processor) -> Order {
        let order = Order { merge: self.tower.merge, ..processor.order(self.tower.patch) };
        match self.tower.frames_first {
            true => Order { frames_first: true, color_last: false, ..order },
            false => order,
        }
    }

    /// Encodes the tiles of an image, or the frames of a video, of which `together` share a row of patches.
    ///
    /// # Errors
    /// Device errors; `UnsupportedOption` for tiles outside the encoder's position table.
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
        let cols = self.side.cols();
        let rows = gpu.buffer("picture", rows_bytes(tokens, cols), Usage::Storage)?;
        let mut places_of = Vec::with_capacity(tokens);
        let mut first = 0;
        while first < tiles.len() {
            let mut end = first + 1;
            let patches = |end: usize| grids[first..end].iter().map(|(h, w)| h * w).sum::<usize>();
            while end < tiles.len() && patches(end + 1) <= MOST {
                end += 1;
            }
            let grids = &grids[first..end];
            let laid = match self.laid.take().filter(|laid| laid.order == order && laid.grids == grids) {
                // The step of the same layout is large enough.
                Some(laid) => laid,
                None => {
                    let Tower { table, rope, window, .. } = self.tower;
                    let places = places(grids, &order, table, rope, window)?;
                    let places = if pooled { places.pooled() } else { places };
                    let step = (places.rows.next_power_of_two() / 8).max(USUAL);
                    self.side.prepare(gpu, places.rows.next_multiple_of(step), &Buffers::new()).await?;
                    Laid { order, grids: grids.to_vec(), places: self.lay(gpu, places)? }
                }
            };
            self.cut(gpu, &tiles[first..end], processor, &laid).await?;
            let Places { rows: count, blocks, order: numbers, .. } = &laid.places;
            let counts = Counts { rows: *count, sequences: blocks.len() };
            let done = places_of.len();
            self.side.launch(gpu, counts, Some((numbers.len(), (&rows, rows_bytes(done, cols)))))?;
            places_of.extend(numbers.iter().map(|at| at + done as u32));
            self.laid = Some(laid);
            first = end;
        }
        self.encodes += 1;
        let grid = |(h, w): &(usize, usize)| if pooled { (1, 1) } else { (h / order.merge, w / order.merge) };
        let grids = grids.iter().map(grid).collect();
        Ok(Encoded { rows, tokens, cols, order: places_of, grids, interval: 0.0 })
    }

    /// Uploads patch positions to the step's buffers.
    fn lay(&self, gpu: &Gpu, places: Places) -> Result<Places> {
        let write = |slot: Slot, bytes: &[u8]| self.side.put(gpu, slot, 0, bytes);
        for (index, input) in self.side.graph.inputs.iter().enumerate() {
            let slot = Slot::Input(InputId(index));
            match input.name.as_str() {
                PATCHES => {}
                PLACES => {
                    let words: &[u32] = places.table.as_flattened();
                    write(slot, bytemuck::cast_slice(&padded(words, input.cols, input.cols.next_multiple_of(4))))?;
                }
                PROBE => write(slot, bytemuck::cast_slice(&[0, 1.0f32.to_bits(), 0, 0].repeat(places.rows)))?,
                other => return Err(Error::Internal(format!("the vision encoder has an unknown input {other}"))),
            }
        }
        write(Slot::Rope(0), bytemuck::cast_slice(&places.rope))?;
        write(Slot::Segments, bytemuck::cast_slice(&places.segments))?;
        write(Slot::Windows, bytemuck::cast_slice(&places.windows))?;
        write(Slot::Spans, bytemuck::cast_slice(&places.blocks))?;
        // The step's buffers hold them now.
        Ok(Places { table: Vec::new(), rope: Vec::new(), ..places })
    }
}

/// Extracts patches from pixels on the device.
struct Cutter {
    order: Order,
    /// Pixels, offsets of the patches, normalization constants, and output rows.
    buffers: [Buffer; 4],
    program: Program,
}

impl Eye {
    /// Extracts patches on the device: pixels have far fewer bytes to upload than patches.
    async fn cut(
        &mut self,
        gpu: &Gpu,
        tiles: &[Vec<&Picture>],
        processor: &Processor,
        Laid { order, places, .. }: &Laid,
    ) -> Result<()> {
        let (starts, bytes) = order.starts(tiles, self.tower.table.before(), &places.patches);
        let input = self.side.graph.inputs.iter().position(|input| input.name == PATCHES).unwrap_or_default();
        let out = self.side.buffer(Slot::Input(InputId(input)))?;
        let serves = |c: &Cutter| c.order == *order && c.buffers[0].size() >= bytes && c.buffers[3].same(out);
        if !self.cutter.as_ref().is_some_and(serves) {
            let stride = order.cols().next_multiple_of(4) as u32;
            let buffer = |bytes| gpu.buffer("pixels", bytes, Usage::Storage);
            let at_starts = buffer(out.size() / u64::from(stride) * 2 * order.frames as u64)?;
            let buffers = [buffer(bytes)?, at_starts, buffer(3 * 256 * 4)?, out.clone()];
            let cut = Cut { steps: order.steps(), patch: order.patch as u32, frames: order.frames as u32 };
            let rows = View { buffer: Slot::Activation(3), offset: 0, stride };
            let launch = patches(cut, [0, 1, 2].map(Slot::Activation), rows);
            let program = gpu.program("patches", steps(gpu, &[launch], &buffers, 1).await?)?;
            self.cutter = Some(Cutter { order: *order, buffers, program });
        }
        let Some(Cutter { buffers: [pixels, at_starts, at_levels, _], program, .. }) = &self.cutter else {
            return Ok(());
        };
        let [scale, shift] = self.tower.affine;
        let levels: Vec<f32> = processor.levels.as_flattened().iter().map(|v| v * scale + shift).collect();
        gpu.write(at_levels, 0, bytemuck::cast_slice(&levels));
        gpu.write(at_starts, 0, bytemuck::cast_slice(&starts));
        let mut at = 0;
        for Picture { rgb, .. } in tiles.iter().flatten() {
            let (words, rest) = rgb.split_at(rgb.len() / 4 * 4);
            gpu.write(pixels, at, words);
            at += words.len() as u64;
            if !rest.is_empty() {
                let mut last = [0; 4];
                last[..rest.len()].copy_from_slice(rest);
                gpu.write(pixels, at, &last);
                at += 4;
            }
        }
        let grid = [order.cols().div_ceil(256) as u32, places.rows as u32, 1];
        gpu.submit(&[Work::Run { program, grids: Some(&[grid]) }])
    }
}

impl Encoded {
    /// Reads the embeddings, `[tokens, cols]`: tile by tile, row-major.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity.
    pub async fn read(&self, gpu: &Gpu) -> Result<Vec<f32>> {
        let bytes = gpu.read(&self.rows, 0, rows_bytes(self.tokens, self.cols)).await?;
        let rows = unpadded(&bytes, self.cols);
        finite(&rows)?;
        let row = |at: &u32| &rows[*at as usize * self.cols..(*at as usize + 1) * self.cols];
        let mut all = Vec::with_capacity(rows.len());
        self.order.iter().for_each(|at| all.extend_from_slice(row(at)));
        Ok(all)
    }
}

/// Reads the image processor of a model and, if supported, its video processor. With an mmproj file, the configuration
/// contains the settings.
///
/// # Errors
/// `MissingFile` without settings; settings that are not supported.
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
        hint: "It defines how images are resized. Add it, or use the model with text only.".into(),
    };
    let found = found.ok_or_else(missing)?;
    let mut processor = Processor::from_config(found)?;
    let tokens = || files.iter().find_map(Processor::tile_tokens);
    processor.tile_tokens = tower.tile_tokens.or(processor.tile_tokens).or_else(tokens);
    let films = |told| Films::new(named("video_processor").unwrap_or(found), &processor, told);
    let films = tower.told.map(films).transpose()?;
    Ok((processor, films))
}

/// Hashes the content of an image: sizes and bytes of its tiles, and timestamps. FNV-1a over eight bytes at a time,
/// with high bits folded down after each multiplication.
pub fn content(tiles: &[Picture], seconds: &[f64]) -> u64 {
    let mix = |h: u64, word: u64| {
        let h = (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h ^ h >> 32
    };
    let shown = seconds.iter().fold(0xcbf2_9ce4_8422_2325, |h, second| mix(h, second.to_bits()));
    tiles.iter().fold(shown, |h, tile| {
        let h = mix(mix(h, tile.width as u64), tile.height as u64);
        let (words, rest) = tile.rgb.as_chunks::<8>();
        let h = words.iter().fold(h, |h, word| mix(h, u64::from_le_bytes(*word)));
        rest.iter().fold(h, |h, byte| mix(h, u64::from(*byte)))
    })
}
