//! Image and video preprocessing: file headers, resizing, tiles and patches as the checkpoint's
//! image processor makes them, video frames, prompt text and M-RoPE positions. Does not depend on
//! the GPU.

#[cfg(not(target_arch = "wasm32"))]
pub mod decode;
pub mod header;
mod image_layout;
mod image_prompt;
mod mrope;
mod patch_layout;
mod patches;
mod processor;
mod resize;
mod rgb_image;
mod tile_builder;
mod video;

pub use image_layout::{ImageLayout, ResizeStep};
pub use image_prompt::ImageTokens;
pub use mrope::{MropePositions, MropeSections, MropeSpan, mrope_positions};
pub use patch_layout::{AxialRope, PatchLayout, PositionTable, layout_patches};
pub use patches::PatchOrder;
pub use processor::{ImageProcessor, PanAndScan, ProcessorKind, TileGrid};
pub use resize::{FilterTaps, ResizeFilter, resize};
pub use rgb_image::{Rect, RgbImage};
pub use tile_builder::TileBuilder;
pub use video::{TimestampStyle, VideoProcessor};
