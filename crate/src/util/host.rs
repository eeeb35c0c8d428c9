//! What WebAssembly takes from where it runs: a browser by default; see crate/js/host.js.

use js_sys::{Object, Promise};
use wasm_bindgen::prelude::*;

#[wasm_bindgen(module = "/js/host.js")]
extern "C" {
    /// Takes members from elsewhere than a browser.
    #[wasm_bindgen(js_name = setHost)]
    pub(crate) fn set(given: &JsValue);
    /// A member; undefined if the host lacks it.
    pub(crate) fn member(name: &str) -> JsValue;
    /// Requests a URL.
    pub(crate) fn request(url: &str, init: &Object) -> Promise;
}

/// Names the WebGPU implementation.
pub(crate) fn user_agent() -> String {
    member("userAgent").as_string().unwrap_or_default()
}
