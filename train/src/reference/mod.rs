//! CPU references of the kernels of train/shaders, in f64 and one sum after another.

pub mod attention;
pub mod convolution;
pub mod elementwise;
pub mod embed;
pub mod gru;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod preference;
pub mod recurrent;
pub mod rope;
pub mod short_conv;
pub mod softmax;
pub mod update;
