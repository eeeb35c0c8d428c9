//! CPU twins of the kernels, plain and readable, in f64 where that costs nothing; for tests and diagnostics only.

pub mod altup;
pub mod attention;
pub mod blend;
pub mod conv;
pub mod dequant;
pub mod elementwise;
pub mod embed;
pub mod experts;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod recurrent;
pub mod sample;
pub mod sound;
