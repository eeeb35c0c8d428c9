//! Tokenizers and chat templates compared with recordings of `tokenizers` and `transformers`: the
//! committed files of tests/golden/text, and those of ../shared/refs if that folder exists.

mod class_settings;
mod files;
mod fim;
mod gguf;
mod limits;
mod malformed;
mod missing;
mod slow;
mod templates;
mod tokenizers;
