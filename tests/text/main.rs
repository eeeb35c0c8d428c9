//! Tokenizers and chat templates against what `tokenizers` and `transformers` recorded: the
//! committed files of tests/golden/text always, those of ../shared/refs when that folder is there.

mod files;
mod fim;
mod gguf;
mod limits;
mod malformed;
mod slow;
mod templates;
mod tokenizers;
