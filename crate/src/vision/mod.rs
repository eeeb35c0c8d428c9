//! Image and video preprocessing: file headers, resizing, tiles and patches as the checkpoint's image processor makes
//! them, video frames, prompt text and M-RoPE positions. Does not depend on the GPU.

#[cfg(not(target_arch = "wasm32"))]
pub mod decode;
mod film;
pub mod header;
mod intake;
mod layout;
mod patches;
mod picture;
mod places;
mod positions;
mod prompt;
mod resize;
mod settings;

pub use film::{Films, Told};
pub use intake::Intake;
pub use layout::{Layout, Stage};
pub use patches::Order;
pub use picture::{Picture, Rect};
pub use places::{Axial, Places, Table, places};
pub use positions::{Positions, Sections, Span, positions};
pub use prompt::Marks;
pub use resize::{Filter, Taps, resize};
pub use settings::{Kind, PanAndScan, Processor, TileGrid};
