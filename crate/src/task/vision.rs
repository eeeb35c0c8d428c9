//! Image and video input of a vision model: image processor, lazily loaded vision encoder, and
//! prompt expansion.

use crate::arch::{LoadConfig, vision::VisionEncoderGraph, vision_encoder};
use crate::exec::{
    ModelFiles, RunOptions, SoftTokenCache, VisionEncoder, content_hash, load_processors,
    strip_padding,
};
use crate::gpu::{Backend, Gpu};
use crate::hub::Source;
use crate::text::{RenderedPrompt, Tokenizer};
use crate::util::clock::now_ms;
use crate::util::map::SortedMap;
use crate::vision::{
    ImageLayout, ImageProcessor, ImageTokens, RgbImage, TileBuilder, VideoProcessor,
};
use crate::{Error, Result};
use futures_util::lock::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Default maximum soft tokens per image. Larger images are downscaled if the family supports
/// variable sizes.
const DEFAULT_MAX_IMAGE_TOKENS: usize = 1024;
/// Default maximum soft tokens per video.
const DEFAULT_MAX_VIDEO_TOKENS: usize = 4096;

/// An encoded image that messages can refer to.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageInfo {
    /// Image id: the id of its first soft token.
    pub id: u32,
    /// Number of soft tokens.
    pub tokens: usize,
    /// Rows and columns of soft tokens, per tile.
    pub grids: Vec<(usize, usize)>,
    /// Width and height of each tile in pixels, after resizing.
    pub tiles: Vec<(usize, usize)>,
    /// Encoding time in milliseconds; 0 if the image was cached.
    pub ms: f64,
}

/// Image and video input, shared by all conversations on a model.
pub struct VisionPipeline {
    gpu: Rc<Gpu>,
    /// The vision encoder's graph, for its loads.
    graph: VisionEncoderGraph,
    source: Rc<Source>,
    gguf: Option<String>,
    options: RunOptions,
    processor: ImageProcessor,
    video_processor: Option<VideoProcessor>,
    image_tokens: ImageTokens,
    /// Cache of the soft tokens of images.
    pub soft_token_cache: Rc<RefCell<SoftTokenCache>>,
    /// Layouts by image id; for videos also the frame times and the end, in seconds.
    layouts: RefCell<SortedMap<u32, (ImageLayout, Vec<f64>)>>,
    encoder: Mutex<Option<VisionEncoder>>,
    encode_count: Cell<usize>,
    /// Encoding time that no result has reported yet, in milliseconds.
    unreported_ms: Cell<f64>,
}

impl VisionPipeline {
    /// Opens the image input of a configuration; None without a vision encoder. An image takes at
    /// most half of `room` tokens.
    ///
    /// # Errors
    /// Unsupported image processors and missing settings; errors of the source.
    pub async fn open(
        gpu: &Rc<Gpu>,
        config: &LoadConfig,
        room: usize,
        source: Rc<Source>,
        gguf: Option<&str>,
        options: RunOptions,
    ) -> Result<Option<Self>> {
        let graph = match vision_encoder(config) {
            Err(_) if config.refused_projector.is_none() => return Ok(None),
            found => found?,
        };
        let (mut processor, mut videos) = load_processors(&source, config, &graph).await?;
        let side = graph.patch * graph.merge;
        videos
            .iter_mut()
            .for_each(|videos| videos.limit_tokens(DEFAULT_MAX_VIDEO_TOKENS.min(room / 2)));
        processor.limit(DEFAULT_MAX_IMAGE_TOKENS.min(room / 2).max(1) * side * side);
        let names = match source.read_optional("tokenizer_config.json").await? {
            Some(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            None => json!({}),
        };
        let marks = ImageTokens::for_processor(&processor, &names);
        Ok(Some(Self {
            gpu: gpu.clone(),
            graph,
            source,
            gguf: gguf.map(String::from),
            options,
            processor,
            video_processor: videos,
            image_tokens: marks,
            soft_token_cache: Rc::default(),
            layouts: RefCell::default(),
            encoder: Mutex::new(None),
            encode_count: Cell::new(0),
            unreported_ms: Cell::new(0.0),
        }))
    }

    /// Returns a tile builder for an image of this size.
    ///
    /// # Errors
    /// `Request` for sizes that the processor does not accept.
    pub fn image_intake(&self, width: usize, height: usize) -> Result<TileBuilder> {
        Ok(TileBuilder::new(
            &self.processor,
            self.processor.layout(width, height)?,
        ))
    }

    /// Returns the video processor.
    ///
    /// # Errors
    /// `UnsupportedOption` for families without video input.
    pub fn video_processor(&self) -> Result<&VideoProcessor> {
        self.video_processor.as_ref().ok_or_else(|| Error::UnsupportedOption {
            architecture: "this model".into(),
            option: "video input".into(),
            hint: "Pass some of its frames as images, or load Qwen3.5, Qwen3-VL, Qwen2.5-VL or SmolVLM.".into(),
        })
    }

    /// Returns a tile builder for a video with frames of this size, pushed one after another.
    ///
    /// # Errors
    /// `UnsupportedOption` without video input; `Request` for unsupported sizes and for too many
    /// frames.
    pub fn video_intake(&self, width: usize, height: usize, frames: usize) -> Result<TileBuilder> {
        let videos = self.video_processor()?;
        Ok(TileBuilder::new(
            &videos.processor,
            videos.layout(width, height, frames)?,
        ))
    }

    /// Returns a tile builder with all rows of an image.
    ///
    /// # Errors
    /// `Request` for sizes that the processor does not accept.
    pub fn image_from_pixels(&self, image: &RgbImage) -> Result<TileBuilder> {
        let mut intake = self.image_intake(image.width, image.height)?;
        intake.push(&image.rgb, 3)?;
        Ok(intake)
    }

    /// Decodes an image file and returns a tile builder with all its rows.
    ///
    /// # Errors
    /// `Request` for files that cannot be decoded and sizes that the processor does not accept.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn image_from_file(&self, bytes: &[u8]) -> Result<TileBuilder> {
        self.image_from_pixels(&crate::vision::decode::decode(
            bytes,
            self.processor.transparent_to_white,
        )?)
    }

    /// Encodes an image or a video unless its content is cached. For a video, `seconds` holds the
    /// time of each frame and the end. Loads the vision encoder on first use.
    ///
    /// # Errors
    /// `Request` for missing pixel rows or frame times; errors of loading the encoder and of the
    /// device.
    pub async fn encode(&self, intake: TileBuilder, seconds: &[f64]) -> Result<ImageInfo> {
        let layout = intake.layout().clone();
        let tiles = intake.finish()?;
        let content = content_hash(&tiles, seconds);
        let (processor, together, interval) = match seconds {
            [] => (&self.processor, 1, 0.0),
            _ => self.video_processor().map(|videos| {
                (
                    &videos.processor,
                    videos.temporal_patch(),
                    videos.interval(seconds),
                )
            })?,
        };

        if !seconds.is_empty()
            && Some(seconds)
                .filter(|s: &&[f64]| {
                    s.len() == tiles.len() + 1
                        && s.is_sorted()
                        && s[0] >= 0.0
                        && s[tiles.len()].is_finite()
                })
                .is_none()
        {
            let reason = format!(
                "{} frames need increasing times in seconds, one per frame, and the end.",
                tiles.len()
            );
            return Err(Error::Request {
                parameter: "video".into(),
                reason,
            });
        }
        let start = now_ms();
        let mut loaded = self.encoder.lock().await;
        let known = self.soft_token_cache.borrow_mut().find(content);
        let id = match known {
            Some(id) => id,
            None => {
                let loaded = match &mut *loaded {
                    Some(loaded) => loaded,
                    none => none.insert(self.load_encoder().await?),
                };
                let encoded = loaded
                    .encode(&self.gpu, &tiles, together, processor)
                    .await?
                    .at_interval(interval);
                // Wait, so that `ms` includes the GPU's work.
                self.gpu.wait_idle().await?;
                self.encode_count.set(self.encode_count.get() + 1);
                self.soft_token_cache.borrow_mut().add(content, encoded)
            }
        };
        let ms = if known.is_some() {
            0.0
        } else {
            now_ms() - start
        };
        self.unreported_ms.set(self.unreported_ms.get() + ms);
        let tiles = layout.tile_sizes().map(|(h, w)| (w, h)).collect();
        self.layouts
            .borrow_mut()
            .insert(id, (layout, seconds.to_vec()));
        let images = self.soft_token_cache.borrow();
        self.layouts
            .borrow_mut()
            .retain(|id, _| images.tokens(*id) > 0);
        Ok(ImageInfo {
            id,
            tokens: images.tokens(id),
            grids: images.grids(id),
            tiles,
            ms,
        })
    }

    async fn load_encoder(&self) -> Result<VisionEncoder> {
        let files = ModelFiles::open_vision(&self.source, self.gguf.as_deref()).await?;
        let graph = self.graph.clone();
        VisionEncoder::load_graph(&self.gpu, &self.source, files, graph, self.options).await
    }

    /// Whether an image is still cached; marks it as recently used.
    pub fn contains(&self, id: u32) -> bool {
        self.soft_token_cache.borrow_mut().touch(id)
    }

    /// Reads an image's embeddings back: `[tokens, cols]` with the language model's columns, tile
    /// by tile in row order.
    ///
    /// # Errors
    /// `Request` for an unknown image id; `NotFinite` for NaN or infinite values.
    pub async fn embeddings(&self, id: u32) -> Result<Vec<f32>> {
        let encoded = self.soft_token_cache.borrow().encoded(id)?;
        let rows = encoded.read(&self.gpu).await?;
        // Further columns hold the features of deeper layers.
        let cols = encoded.cols / self.graph.features;
        Ok(strip_padding(rows, encoded.cols, cols))
    }

    /// Frees the vision encoder; the next image loads it again. Encoded images stay cached.
    pub async fn unload_encoder(&self) {
        self.encoder.lock().await.take();
    }

    /// Number of images encoded so far.
    pub fn encode_count(&self) -> usize {
        self.encode_count.get()
    }

    /// GPU bytes of the vision encoder; 0 while it is not loaded.
    pub fn encoder_bytes(&self) -> u64 {
        self.encoder
            .try_lock()
            .and_then(|loaded| loaded.as_ref().map(VisionEncoder::bytes))
            .unwrap_or(0)
    }

    /// Returns and resets the unreported encoding time, in milliseconds.
    pub(super) fn take_encode_ms(&self) -> f64 {
        self.unreported_ms.take()
    }

    /// Expands the template's image and video placeholders, in order.
    ///
    /// # Errors
    /// `Request` for an unknown image id; `ChatTemplate` if the template does not write one
    /// placeholder per image.
    pub(super) fn expand_placeholders(
        &self,
        prompt: &mut RenderedPrompt,
        image_ids: &[u32],
    ) -> Result<()> {
        let layouts = self.layouts.borrow();
        let mut images = Vec::new();
        let mut videos = Vec::new();

        for id in image_ids {
            let (layout, seconds) = layouts
                .get(id)
                .ok_or_else(|| SoftTokenCache::unknown_image(*id))?;
            match seconds[..] {
                [] => images.push(
                    self.processor
                        .placeholder_text(layout, &self.image_tokens)?,
                ),
                _ => videos.push(self.video_processor()?.prompt_text(
                    layout,
                    seconds,
                    &self.image_tokens,
                )),
            }
        }
        for (mark, texts, kind) in [
            (&self.image_tokens.placeholder, images, "images"),
            (&self.image_tokens.video, videos, "videos"),
        ] {
            let found = if texts.is_empty() {
                0
            } else {
                prompt.replace(mark, &texts)
            };
            if found != texts.len() {
                let count = texts.len();
                let reason = format!(
                    "it wrote {found} placeholders {mark} for {count} {kind}. Use a template that supports {kind}."
                );
                return Err(Error::ChatTemplate { reason });
            }
        }
        Ok(())
    }

    /// Returns the placeholder token id and the image id of each image.
    ///
    /// # Errors
    /// `Tokenizer` when there is none.
    pub(super) fn placeholder_ids(
        &self,
        tokenizer: &Tokenizer,
        image_ids: &[u32],
    ) -> Result<Vec<(u32, u32)>> {
        let layouts = self.layouts.borrow();
        let mark = |id: &u32| match &self.video_processor {
            Some(videos)
                if layouts
                    .get(id)
                    .is_some_and(|(_, seconds)| !seconds.is_empty()) =>
            {
                videos.placeholder_token(&self.image_tokens)
            }
            _ => self.image_tokens.image.as_str(),
        };
        let missing = |mark| Error::Tokenizer {
            reason: format!("it lacks the image token {mark}. Use the original one."),
        };

        image_ids
            .iter()
            .map(|id| {
                let mark = mark(id);
                Ok((
                    tokenizer.token_to_id(mark).ok_or_else(|| missing(mark))?,
                    *id,
                ))
            })
            .collect()
    }
}

/// Returns the image ids in a conversation, in order.
pub(super) fn image_ids_of(messages: &[Value]) -> Vec<u32> {
    let parts = messages
        .iter()
        .filter_map(|m| m.get("content")?.as_array())
        .flatten();
    parts
        .filter_map(|part| part.get("imageId")?.as_u64())
        .map(|n| n as u32)
        .collect()
}

/// Converts string contents to lists of parts, for templates that accept nothing else.
pub(super) fn strings_to_parts(messages: &mut [Value]) {
    for content in messages.iter_mut().filter_map(|m| m.get_mut("content")) {
        if let Some(text) = content.as_str() {
            *content = json!([{ "type": "text", "text": text }]);
        }
    }
}
