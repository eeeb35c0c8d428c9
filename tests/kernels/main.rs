//! Every kernel against its CPU twin, over shapes that no tile divides.

mod matmul;
mod sample;
mod transcode;
