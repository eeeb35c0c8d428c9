//! What a user asks for: a model that is loaded with its text parts, and text that it generates. It knows text and
//! token ids; how they are computed is the engine's business.

mod generate;
mod loaded;
mod request;

pub use generate::{Event, Finish, Outcome, TokenInfo};
pub use loaded::{Loaded, TextParts};
pub use request::{GenerateRequest, Overflow};
