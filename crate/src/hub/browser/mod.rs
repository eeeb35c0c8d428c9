//! The hub in a page or a worker. Bytes stay in JavaScript memory.

mod files;
mod store;
mod transport;

use js_sys::Reflect;
use wasm_bindgen::prelude::*;

pub use files::{PickedFile, PickedFiles};
pub use store::CacheStore;
pub use transport::BrowserTransport;

/// The message of a JavaScript exception.
fn exception_message(error: &JsValue) -> String {
    let text = Reflect::get(error, &"message".into())
        .ok()
        .and_then(|m| m.as_string())
        .filter(|m| !m.is_empty());
    text.or_else(|| error.as_string())
        .unwrap_or_else(|| format!("{error:?}"))
}

fn get_property(object: &JsValue, name: &str) -> Option<JsValue> {
    Reflect::get(object, &name.into())
        .ok()
        .filter(|v| !v.is_undefined() && !v.is_null())
}
