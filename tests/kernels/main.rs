//! Every kernel against its CPU reference, with shapes that no tile divides.

mod altup;
mod argmax;
mod attention;
mod audio_conv;
mod batched_attention;
mod batched_layer;
mod conv;
mod cross_attention;
mod drafts;
mod elementwise;
mod embed;
mod embedding_bag;
mod experts;
mod f16_activations;
mod matmul;
mod norm;
mod op;
mod patches;
mod pool;
mod readback;
mod recurrent;
mod sample;
mod self_check;
mod transcode;
