//! Encoders and rerankers against transformers and sentence-transformers.

mod families;
mod folder;
mod gguf;
mod minilm;
mod rerank;
mod retrieval;
mod sentence;
