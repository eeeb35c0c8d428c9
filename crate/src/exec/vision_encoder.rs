//! Vision encoder: image tiles in, embeddings for the language model out, which stay on the device.
//! Loaded when the first image arrives.

use super::files::ModelFiles;
use super::options::RunOptions;
use super::roofline::build_dispatches;
use super::row_runner::{DEFAULT_RUNNER_ROWS, RowRunner};
use super::soft_tokens::{SoftEmbeddings, SoftTokenLayout};
use super::step::{Buffers, pad_rows, rows_bytes};
use crate::arch::vision::{
    FIRST_ENTRY, PATCHES, POSITION_PAIRS, VisionEncoderGraph, match_suffixes,
};
use crate::arch::{LoadConfig, vision_encoder};
use crate::format::{Encoding, RowOrder};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu, Program};
use crate::hub::Source;
use crate::ir::{InputId, StepSizes};
use crate::kernels::matmul::View;
use crate::kernels::patches::{PatchSpec, patches};
use crate::plan::Slot;
use crate::vision::{
    ImageProcessor, PatchLayout, PatchOrder, RgbImage, VideoProcessor, layout_patches,
    processor_class,
};
use crate::{Error, Result};
use serde_json::Value;

/// Maximum patches encoded together; a tile is never cut.
const MAX_BATCH_PATCHES: usize = 16_384;

/// A loaded vision encoder.
pub struct VisionEncoder {
    /// Its graph and settings.
    pub tower: VisionEncoderGraph,
    /// Number of images encoded so far.
    pub images_encoded: usize,
    runner: RowRunner,
    extractor: Option<PatchExtractor>,
    layout: Option<TileLayout>,
}

/// Patch layout of the last tiles, which is in the step's buffers; tiles of the same grids reuse
/// it.
struct TileLayout {
    order: PatchOrder,
    grids: Vec<(usize, usize)>,
    patches: PatchLayout,
}

impl VisionEncoder {
    /// Loads the vision encoder of a model from opened files; weights keep the encoding of the
    /// file.
    ///
    /// # Errors
    /// Errors of the configuration, the checkpoint, the source or the device.
    pub async fn load(
        gpu: &Gpu,
        source: &Source,
        files: ModelFiles,
        options: RunOptions,
    ) -> Result<Self> {
        let graph = vision_encoder(&files.config)?;
        Self::load_graph(gpu, source, files, graph, options).await
    }

    /// Loads the weights of a vision encoder whose graph is built.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub async fn load_graph(
        gpu: &Gpu,
        source: &Source,
        mut files: ModelFiles,
        mut tower: VisionEncoderGraph,
        options: RunOptions,
    ) -> Result<Self> {
        let stored = &mut files.weights;
        match_suffixes(
            &mut tower.graph,
            &stored.iter().map(|w| w.name.clone()).collect::<Vec<_>>(),
        );
        for (name, rows, cols) in tower
            .graph
            .weights
            .iter()
            .flat_map(|w| w.parts.iter().map(|p| (&p.0, p.1, w.cols)))
        {
            let Some(weight) = stored.iter_mut().find(|w| w.name == *name) else {
                continue;
            };
            if let Some(channels) = channels_last(&weight.shape) {
                weight.row_order = RowOrder::ChannelsLast { channels };
            }
            // Patch convolutions run as matmuls; tables may be stored in several parts.
            if (weight.shape.len() > 2 || weight.shape.len() == 1 && cols > 1)
                && weight.shape.iter().product::<usize>() == rows * cols
                && matches!(weight.encoding, Encoding::Dense(_))
            {
                (weight.shape, weight.stored_rows) = (vec![rows, cols], rows);
            }
            if let Some((_, order)) = tower.row_orders.iter().find(|(end, _)| name.ends_with(end)) {
                weight.row_order = *order;
            }
        }
        let block = Some(tower.merge * tower.merge);
        let mut side = RowRunner::load(gpu, source, &files, (&tower.graph, block), options).await?;
        side.prepare(gpu, DEFAULT_RUNNER_ROWS, &Buffers::new())
            .await?;
        gpu.check().await?;
        Ok(Self {
            tower,
            images_encoded: 0,
            runner: side,
            extractor: None,
            layout: None,
        })
    }

    /// Bytes of its weights on the device.
    pub fn bytes(&self) -> u64 {
        self.runner.bytes()
    }

    /// Width of the language model.
    pub fn cols(&self) -> usize {
        self.runner.cols() / self.tower.features
    }

    /// The patch order that the encoder expects.
    pub fn patch_order(&self, processor: &ImageProcessor) -> PatchOrder {
        let order = PatchOrder {
            merge: self.tower.merge,
            ..processor.order(self.tower.patch)
        };
        match self.tower.frames_first {
            true => PatchOrder {
                frames_first: true,
                color_last: false,
                ..order
            },
            false => order,
        }
    }

    /// Encodes the tiles of an image, or the frames of a video, of which `together` share a row of
    /// patches.
    ///
    /// # Errors
    /// Device errors; `UnsupportedOption` for tiles outside the encoder's position table.
    pub async fn encode(
        &mut self,
        gpu: &Gpu,
        tiles: &[RgbImage],
        together: usize,
        processor: &ImageProcessor,
    ) -> Result<SoftEmbeddings> {
        let order = self.patch_order(processor);
        let tiles: Vec<Vec<&RgbImage>> = tiles
            .chunks(together.max(1))
            .map(|group| group.iter().collect())
            .collect();
        let grids: Vec<(usize, usize)> = tiles.iter().map(|t| order.grid(t[0])).collect();
        let block = order.merge * order.merge;
        let pooled = self.tower.pooled;
        let tokens = if pooled {
            grids.len()
        } else {
            grids.iter().map(|(h, w)| h * w / block).sum()
        };
        let cols = self.runner.cols();
        let rows = gpu.buffer("picture", rows_bytes(tokens, cols), BufferUsage::Storage)?;
        let mut places_of = Vec::with_capacity(tokens);
        let mut first = 0;
        while first < tiles.len() {
            let mut end = first + 1;
            let patches = |end: usize| grids[first..end].iter().map(|(h, w)| h * w).sum::<usize>();
            while end < tiles.len() && patches(end + 1) <= MAX_BATCH_PATCHES {
                end += 1;
            }
            let grids = &grids[first..end];
            let laid = match self
                .layout
                .take()
                .filter(|laid| laid.order == order && laid.grids == grids)
            {
                // The step of the same layout is large enough.
                Some(laid) => laid,
                None => {
                    let VisionEncoderGraph {
                        table,
                        rope,
                        window,
                        ..
                    } = self.tower;
                    let places = layout_patches(grids, &order, table, rope, window)?;
                    let places = if pooled { places.pooled() } else { places };
                    let step = (places.rows.next_power_of_two() / 8).max(DEFAULT_RUNNER_ROWS);
                    self.runner
                        .prepare(gpu, places.rows.next_multiple_of(step), &Buffers::new())
                        .await?;
                    TileLayout {
                        order,
                        grids: grids.to_vec(),
                        patches: self.upload_layout(gpu, places)?,
                    }
                }
            };
            self.extract_patches(gpu, &tiles[first..end], processor, &laid)
                .await?;
            let PatchLayout {
                rows: count,
                blocks,
                order: numbers,
                ..
            } = &laid.patches;
            let counts = StepSizes {
                rows: *count,
                sequences: blocks.len(),
            };
            let done = places_of.len();
            self.runner.submit(
                gpu,
                counts,
                Some((numbers.len(), (&rows, rows_bytes(done, cols)))),
            )?;
            places_of.extend(numbers.iter().map(|at| at + done as u32));
            self.layout = Some(laid);
            first = end;
        }
        self.images_encoded += 1;

        let grids = grids
            .iter()
            .map(|(h, w): &(usize, usize)| {
                if pooled {
                    (1, 1)
                } else {
                    (h / order.merge, w / order.merge)
                }
            })
            .collect();
        Ok(SoftEmbeddings {
            rows,
            tokens,
            cols,
            token_rows: places_of,
            layout: SoftTokenLayout::Tiles {
                grids,
                position_interval: 0.0,
            },
        })
    }

    /// Uploads patch positions to the step's buffers.
    fn upload_layout(&self, gpu: &Gpu, places: PatchLayout) -> Result<PatchLayout> {
        let write = |slot: Slot, bytes: &[u8]| self.runner.write_slot(gpu, slot, 0, bytes);
        for (index, input) in self.runner.graph().inputs.iter().enumerate() {
            let slot = Slot::Input(InputId(index));
            match input.name.as_str() {
                PATCHES => {}
                POSITION_PAIRS => {
                    let words: &[u32] = places.table.as_flattened();
                    write(
                        slot,
                        bytemuck::cast_slice(&pad_rows(
                            words,
                            input.cols,
                            input.cols.next_multiple_of(4),
                        )),
                    )?;
                }
                FIRST_ENTRY => write(
                    slot,
                    bytemuck::cast_slice(&[0, 1.0f32.to_bits(), 0, 0].repeat(places.rows)),
                )?,
                other => {
                    return Err(Error::Internal(format!(
                        "the vision encoder has an unknown input {other}"
                    )));
                }
            }
        }
        write(Slot::Rope(0), bytemuck::cast_slice(&places.rope))?;
        write(Slot::SequenceSpans, bytemuck::cast_slice(&places.segments))?;
        write(Slot::WindowSpans, bytemuck::cast_slice(&places.windows))?;
        write(Slot::PoolSpans, bytemuck::cast_slice(&places.blocks))?;
        // The step's buffers hold them now.
        Ok(PatchLayout {
            table: Vec::new(),
            rope: Vec::new(),
            ..places
        })
    }
}

/// Extracts patches from pixels on the device.
struct PatchExtractor {
    order: PatchOrder,
    /// Pixels, offsets of the patches, normalization constants, and output rows.
    buffers: [Buffer; 4],
    program: Program,
}

impl VisionEncoder {
    /// Extracts patches on the device: pixels have far fewer bytes to upload than patches.
    async fn extract_patches(
        &mut self,
        gpu: &Gpu,
        tiles: &[Vec<&RgbImage>],
        processor: &ImageProcessor,
        TileLayout {
            order,
            patches: places,
            ..
        }: &TileLayout,
    ) -> Result<()> {
        let (starts, bytes) =
            order.pixel_offsets(tiles, self.tower.table.leading_rows(), &places.patches);
        let input = self
            .runner
            .graph()
            .inputs
            .iter()
            .position(|input| input.name == PATCHES)
            .unwrap_or_default();
        let out = self.runner.buffer(Slot::Input(InputId(input)))?;
        let serves = |c: &PatchExtractor| {
            c.order == *order && c.buffers[0].size() >= bytes && c.buffers[3].is_same_buffer(out)
        };
        if !self.extractor.as_ref().is_some_and(serves) {
            let stride = order.cols().next_multiple_of(4) as u32;
            let buffer = |bytes| gpu.buffer("pixels", bytes, BufferUsage::Storage);
            let at_starts = buffer(out.size() / u64::from(stride) * 2 * order.frames as u64)?;
            let buffers = [buffer(bytes)?, at_starts, buffer(3 * 256 * 4)?, out.clone()];
            let cut = PatchSpec {
                strides: order.strides(),
                patch: order.patch as u32,
                frames: order.frames as u32,
            };
            let rows = View {
                buffer: Slot::Activation(3),
                offset: 0,
                stride,
            };
            let launch = patches(cut, [0, 1, 2].map(Slot::Activation), rows);
            let program = gpu.program(
                "patches",
                build_dispatches(gpu, &[launch], &buffers, 1).await?,
            )?;
            self.extractor = Some(PatchExtractor {
                order: *order,
                buffers,
                program,
            });
        }
        let Some(PatchExtractor {
            buffers: [pixels, at_starts, at_levels, _],
            program,
            ..
        }) = &self.extractor
        else {
            return Ok(());
        };
        let [scale, shift] = self.tower.affine;
        let levels: Vec<f32> = processor
            .pixel_values
            .as_flattened()
            .iter()
            .map(|v| v * scale + shift)
            .collect();
        gpu.write(at_levels, 0, bytemuck::cast_slice(&levels));
        gpu.write(at_starts, 0, bytemuck::cast_slice(&starts));
        let mut at = 0;
        for RgbImage { rgb, .. } in tiles.iter().flatten() {
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
        gpu.submit(&[Command::Run {
            program,
            grids: Some(&[grid]),
        }])
    }
}

/// Reads the image processor of a model and, if supported, its video processor. With an mmproj
/// file, the configuration contains the settings.
///
/// # Errors
/// `MissingFile` without settings; settings that are not supported.
pub async fn load_processors(
    source: &Source,
    config: &LoadConfig,
    tower: &VisionEncoderGraph,
) -> Result<(ImageProcessor, Option<VideoProcessor>)> {
    let mut files = Vec::new();
    for file in [
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
    ] {
        let wanted = tower.timestamps.is_some() || !file.starts_with("video");
        if wanted
            && config.image_processor.is_none()
            && let Some(bytes) = source.read_optional(file).await?
        {
            files.push(
                serde_json::from_slice(&bytes).map_err(|e: serde_json::Error| Error::Config {
                    file: file.into(),
                    reason: e.to_string(),
                })?,
            );
        }
    }
    let named = |kind: &str| {
        let class = format!("{kind}_type");
        files
            .iter()
            .find_map(|file: &Value| file.get(kind).or_else(|| file.get(&class).map(|_| file)))
    };
    let renamed = || files.iter().find(|file| processor_class(file).is_some());
    let found = config
        .image_processor
        .as_ref()
        .or_else(|| named("image_processor"))
        .or_else(renamed);

    let found = found.ok_or_else(|| Error::MissingFile {
        file: "preprocessor_config.json".into(),
        location: "the model's files".into(),
        hint: "It defines how images are resized. Add it, or use the model with text only.".into(),
    })?;
    let mut processor = ImageProcessor::from_config(found)?;

    processor.tile_tokens = tower
        .tile_tokens
        .or(processor.tile_tokens)
        .or_else(|| files.iter().find_map(ImageProcessor::tile_tokens));
    let videos =
        |style| VideoProcessor::new(named("video_processor").unwrap_or(found), &processor, style);
    let videos = tower.timestamps.map(videos).transpose()?;
    Ok((processor, videos))
}

/// Hashes the content of an image: sizes and bytes of its tiles, and timestamps. FNV-1a over eight
/// bytes at a time, with high bits folded down after each multiplication.
pub fn content_hash(tiles: &[RgbImage], seconds: &[f64]) -> u64 {
    let mix = |h: u64, word: u64| {
        let h = (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h ^ h >> 32
    };
    let shown = seconds
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, second| mix(h, second.to_bits()));
    tiles.iter().fold(shown, |h, tile| {
        let h = mix(mix(h, tile.width as u64), tile.height as u64);
        let (words, rest) = tile.rgb.as_chunks::<8>();
        let h = words
            .iter()
            .fold(h, |h, word| mix(h, u64::from_le_bytes(*word)));
        rest.iter().fold(h, |h, byte| mix(h, u64::from(*byte)))
    })
}

/// The channels of a patch convolution that stores them last, as MLX does: [outputs, height, width,
/// channels], with the frames before the height for videos.
fn channels_last(shape: &[usize]) -> Option<usize> {
    const COLORS: usize = 3;
    match shape {
        [_, first, .., last] if shape.len() >= 4 && *first != COLORS && *last == COLORS => {
            Some(COLORS)
        }
        _ => None,
    }
}
