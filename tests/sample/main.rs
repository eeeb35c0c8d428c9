//! The CPU sampler against transformers' processors, against its own distribution, and against its
//! unoptimized reference implementation.

mod certain;
mod distribution;
mod golden;
mod reference;
