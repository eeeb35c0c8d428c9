//! Tests that need no device: WebKitGTK, which has no WebGPU, runs these.

mod cache;
mod files;
mod text;
