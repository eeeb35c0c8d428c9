//! config.json and its companion files, read like transformers and sentence-transformers: published
//! configurations, RoPE fields in all spellings, and contradictory files.

mod files;
mod published;
mod rope;
