//! CPU twins of the kernels, plain and readable, in f64 where that costs nothing; for tests and diagnostics only.

pub mod dequant;
pub mod matmul;
pub mod sample;
