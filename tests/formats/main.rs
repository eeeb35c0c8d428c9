//! Weight encodings and containers against independent decoders
//! (tests/golden/scripts/make_quant.py).

mod exact;
mod families;
mod gguf_files;
mod large;
mod malformed;
mod mlc;
mod models;
mod parts;
mod props;
mod quantized;
mod run;
mod seeds;
mod support;
