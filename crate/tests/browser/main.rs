//! The engine inside a browser: Chromium and Firefox with WebGPU, WebKitGTK without it.
#![cfg(target_arch = "wasm32")]

mod device;
mod models;
mod server;
mod without_gpu;

use wasm_bindgen_test::wasm_bindgen_test_configure;

wasm_bindgen_test_configure!(run_in_browser);
