//! Sound before the models on real recordings, and models that hear and speak against their
//! references.

mod codec;
mod features;
mod kani;
mod models;
mod run;
mod transcription;
mod vad;
