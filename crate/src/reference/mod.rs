//! CPU references of the kernels, written for clarity, in f64 where it is cheap. Tests and
//! diagnostics only.

pub mod altup;
pub mod attention;
pub mod audio_conv;
pub mod conv;
pub mod dequant;
pub mod elementwise;
pub mod embed;
pub mod embedding_bag;
pub mod experts;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod recurrent;
pub mod sample;
