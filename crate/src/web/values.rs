//! Conversions between the engine's values and JavaScript.

use crate::error::Advice;
use crate::{Error, Result};
use js_sys::{Object, Reflect};
use serde::{Serialize, de::DeserializeOwned};
use serde_wasm_bindgen::Serializer;
use wasm_bindgen::prelude::*;

/// An error as the facade expects it: `{ name, code, message, advice }`.
pub fn to_js(error: &Error) -> JsValue {
    let object = js_sys::Error::new(&error.to_string());
    object.set_name("JerboaError");
    // Setting a property of a fresh object cannot fail.
    let _ = Reflect::set(&object, &"code".into(), &error.code().into());
    if let Some(Advice { about, text }) = error.advice() {
        let advice = Object::new();
        let _ = Reflect::set(&advice, &"about".into(), &about.into());
        let _ = Reflect::set(&advice, &"text".into(), &text.into());
        let _ = Reflect::set(&object, &"advice".into(), &advice);
    }
    object.into()
}

/// A property of an object; undefined if it has none.
pub fn property(object: &JsValue, name: &str) -> JsValue {
    Reflect::get(object, &name.into()).unwrap_or(JsValue::UNDEFINED)
}

/// A property that is a string.
pub fn string_property(object: &JsValue, name: &str) -> Option<String> {
    property(object, name).as_string()
}

/// Deserializes a JavaScript value: objects or Maps, arrays or typed arrays, numbers or bigints.
///
/// # Errors
/// `Request` that names `parameter`, for a value of another type.
pub fn from_js<T: DeserializeOwned>(parameter: &str, value: JsValue) -> Result<T> {
    serde_wasm_bindgen::from_value(value).map_err(|e: serde_wasm_bindgen::Error| Error::Request {
        parameter: parameter.into(),
        reason: e.to_string(),
    })
}

/// Serializes an engine value to plain JavaScript: objects, arrays, numbers; null for none.
pub fn to_plain_js(value: &impl Serialize) -> JsValue {
    // The engine's values always fit into JavaScript's.
    value
        .serialize(&Serializer::json_compatible())
        .unwrap_or(JsValue::NULL)
}
