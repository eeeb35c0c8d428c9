//! The CPU sampler: against transformers' processors, against itself drawn many times, and against
//! its plain twin.

mod draw;
mod golden;
mod twin;
