//! The CPU sampler: against transformers' processors, against itself sampled many times, and
//! against its plain CPU reference.

mod distribution;
mod golden;
mod reference;
