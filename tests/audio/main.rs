//! Audio features of real recordings, and speech recognition and synthesis models against their
//! references.

mod codec;
mod features;
mod kani;
mod models;
mod run;
mod transcription;
mod vad;
