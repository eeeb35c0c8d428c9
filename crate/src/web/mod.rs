//! WebAssembly bindings used by the TypeScript facade in pkg-template. Converts requests and
//! results between JavaScript and the engine's types; contains no logic of its own.
//! `options` and `values` also serve modules with an interface of their own.

#[cfg(feature = "engine-api")]
mod arguments;
#[cfg(feature = "engine-api")]
mod background;
#[cfg(feature = "engine-api")]
mod cache;
#[cfg(feature = "engine-api")]
mod constraint;
#[cfg(feature = "engine-api")]
mod device;
#[cfg(feature = "engine-api")]
mod engine;
#[cfg(feature = "engine-api")]
mod logits_processor;
pub mod options;
pub mod values;

use wasm_bindgen::prelude::*;

#[cfg(feature = "engine-api")]
pub use engine::Engine;

/// A result whose error is a JavaScript value; see [`values::to_js`].
pub type JsResult<T> = Result<T, JsValue>;

/// Installs the panic hook, which logs panics with their location to the console.
#[wasm_bindgen(start)]
pub fn start() {
    console_error_panic_hook::set_once();
}

/// The engine's version.
#[cfg(feature = "engine-api")]
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").into()
}

/// Takes members of the platform from elsewhere than a browser: WebGPU, the cache, fetch; see
/// crate/js/host.js. Call it before the first load.
#[cfg(feature = "engine-api")]
#[wasm_bindgen(js_name = setHost)]
pub fn set_host(given: &JsValue) {
    crate::util::host::set(given);
}
