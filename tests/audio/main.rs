//! Sound before the models on real recordings, and models that hear and speak against their
//! references.

mod codec;
mod features;
mod hearing;
mod kani;
mod models;
mod run;
mod voice;
