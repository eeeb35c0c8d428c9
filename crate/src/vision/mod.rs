//! Image and video preprocessing: file headers, resizing, tiles and patches as the checkpoint's
//! image processor makes them, video frames, prompt text and M-RoPE positions. Does not depend on
//! the GPU.

#[cfg(not(target_arch = "wasm32"))]
pub mod decode;
pub mod header;
mod mrope;
mod patch_layout;
mod processor;
mod resize;
mod rgb_image;
mod video;

pub use mrope::{MropePositions, MropeSections, MropeSpan, mrope_positions};
pub use patch_layout::{AxialRope, PatchLayout, PositionTable, layout_patches};
pub(crate) use processor::processor_class;
pub use processor::{
    ImageLayout, ImageProcessor, ImageTokens, PanAndScan, PatchOrder, ProcessorKind, ResizeStep,
    TileBuilder, TileGrid,
};
pub use resize::{FilterTaps, ResizeFilter, resize};
pub use rgb_image::{Rect, RgbImage};
pub use video::{TimestampStyle, VideoProcessor};
