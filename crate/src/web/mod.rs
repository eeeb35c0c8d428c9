//! WebAssembly bindings used by the TypeScript facade in pkg-template. Converts requests and
//! results between JavaScript and the engine's types; contains no logic of its own.

mod cache;
mod constraint;
mod device;
mod engine;
mod logits_processor;
mod options;
mod values;

use crate::util::host;
use wasm_bindgen::prelude::*;

pub use engine::Engine;

/// A result whose error is a JavaScript value; see [`values::to_js`].
type JsResult<T> = Result<T, JsValue>;

/// Installs the panic hook, which logs panics with their location to the console.
#[wasm_bindgen(start)]
pub fn start() {
    console_error_panic_hook::set_once();
}

/// The engine's version.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").into()
}

/// Takes members of the platform from elsewhere than a browser: WebGPU, the cache, fetch; see
/// crate/js/host.js. Call it before the first load.
#[wasm_bindgen(js_name = setHost)]
pub fn set_host(given: &JsValue) {
    host::set(given);
}
