//! Images and videos: uploads, encoding, embeddings.

use super::Engine;
use crate::Error;
use crate::task::VisionPipeline;
use crate::vision::{TileBuilder, header::ImageHeader};
use crate::web::JsResult;
use crate::web::values::{to_js, to_plain_js};
use js_sys::Float32Array;
use serde_json::Value;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// An image or video being uploaded row by row.
#[wasm_bindgen]
pub struct ImageUpload(TileBuilder);

#[wasm_bindgen]
impl ImageUpload {
    /// Appends rows of RGBA pixels, 4 bytes a pixel; alpha is dropped.
    pub fn push(&mut self, rgba: &[u8]) -> JsResult<()> {
        self.0.push(rgba, 4).map_err(|e| to_js(&e))
    }
}

/// The upright width and height of an image file, from its first bytes. Rejects images that are too
/// large to decode safely.
#[wasm_bindgen(js_name = imageSize)]
pub fn image_size(head: &[u8]) -> JsResult<Vec<u32>> {
    let header = ImageHeader::read(head).map_err(|e| to_js(&e))?;
    Ok(match header.swaps_sides() {
        true => vec![header.height, header.width],
        false => vec![header.width, header.height],
    })
}

impl Engine {
    fn vision(&self) -> JsResult<&Rc<VisionPipeline>> {
        self.vision.as_ref().ok_or_else(|| {
            let architecture = self
                .info
                .get("architecture")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .into();
            let hint = "Load a model whose info.capabilities include 'image'.".into();
            to_js(&Error::UnsupportedOption {
                architecture,
                option: "image input".into(),
                hint,
            })
        })
    }
}

#[wasm_bindgen]
impl Engine {
    /// Starts the upload of an image of `width` x `height` pixels.
    #[wasm_bindgen(js_name = imageUpload)]
    pub fn image_upload(&self, width: u32, height: u32) -> JsResult<ImageUpload> {
        self.vision()?
            .image_intake(width as usize, height as usize)
            .map(ImageUpload)
            .map_err(|e| to_js(&e))
    }

    /// Starts the upload of a video: `frames` frames of `width` x `height` pixels, in order.
    #[wasm_bindgen(js_name = videoUpload)]
    pub fn video_upload(&self, width: u32, height: u32, frames: u32) -> JsResult<ImageUpload> {
        self.vision()?
            .video_intake(width as usize, height as usize, frames as usize)
            .map(ImageUpload)
            .map_err(|e| to_js(&e))
    }

    /// Timestamps in seconds of the frames to sample from a video of `seconds` length, followed by
    /// the video's end.
    #[wasm_bindgen(js_name = frameTimes)]
    pub fn frame_times(&self, seconds: f64, fps: Option<f64>) -> JsResult<Vec<f64>> {
        self.vision()?
            .video_processor()
            .map(|videos| videos.times(seconds, fps))
            .map_err(|e| to_js(&e))
    }

    /// Encodes an uploaded image or video; content that was encoded before is reused. `seconds` has
    /// a video's frame timestamps, followed by its end.
    #[wasm_bindgen(js_name = encodeImage)]
    pub async fn encode_image(&self, upload: ImageUpload, seconds: Vec<f64>) -> JsResult<JsValue> {
        self.vision()?
            .encode(upload.0, &seconds)
            .await
            .map(|encoded| to_plain_js(&encoded))
            .map_err(|e| to_js(&e))
    }

    /// Whether an image id is still valid.
    #[wasm_bindgen(js_name = hasImage)]
    pub fn has_image(&self, image_id: u32) -> bool {
        self.vision
            .as_ref()
            .is_some_and(|vision| vision.contains(image_id))
    }

    /// Image embeddings of an image: `[tokens, hidden_size]`.
    #[wasm_bindgen(js_name = imageEmbeddings)]
    pub async fn image_embeddings(&self, image_id: u32) -> JsResult<Float32Array> {
        let rows = self.vision()?.embeddings(image_id).await;
        rows.map(|values| Float32Array::from(&values[..]))
            .map_err(|e| to_js(&e))
    }

    /// Frees the vision encoder's memory until the next image.
    #[wasm_bindgen(js_name = unloadVision)]
    pub async fn unload_vision(&self) {
        if let Some(vision) = &self.vision {
            vision.unload_encoder().await;
        }
    }
}
