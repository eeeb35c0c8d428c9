//! Every kernel against its CPU twin, over shapes that no tile divides.

mod altup;
mod argmax;
mod attention;
mod blend;
mod chain;
mod conv;
mod drafts;
mod elementwise;
mod embed;
mod experts;
mod halves;
mod look;
mod matmul;
mod norm;
mod op;
mod patches;
mod pool;
mod readback;
mod recurrent;
mod sample;
mod sound;
mod transcode;
