//! Arguments of the engine's calls: lists, and the parts of saved sessions.

use super::JsResult;
use crate::task::EmbedInput;
use crate::{Error, Result};
use futures_util::future::LocalBoxFuture;
use js_sys::{Array, Function, Uint8Array, Uint32Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

/// The call that reads a saved session.
const RESTORE: &str = "session.restore";

/// Passes a part of a saved session to the page's side.
pub(super) fn write_part(write: &Function, part: &[u8]) -> LocalBoxFuture<'static, Result<()>> {
    let written = write.call1(&JsValue::NULL, &Uint8Array::from(part).into());
    Box::pin(async move { settled("session.save", written).await.map(drop) })
}

/// Reads a part of a saved session from the page's side.
pub(super) fn read_part(
    read: &Function,
    at: u64,
    length: u64,
) -> LocalBoxFuture<'static, Result<Vec<u8>>> {
    let part = read.call2(&JsValue::NULL, &(at as f64).into(), &(length as f64).into());
    Box::pin(async move {
        let part = settled(RESTORE, part).await?.dyn_into::<Uint8Array>();
        let part = part.map_or_else(|_| Vec::new(), |part| part.to_vec());
        match part.len() as u64 == length {
            true => Ok(part),
            false => Err(storage_error(RESTORE, "it is shorter than it was")),
        }
    })
}

async fn settled(parameter: &str, called: JsResult<JsValue>) -> Result<JsValue> {
    let thrown = |thrown: JsValue| {
        let error = thrown.dyn_ref::<js_sys::Error>();
        let reason = error.map_or_else(|| format!("{thrown:?}"), |e| e.message().into());
        storage_error(parameter, &reason)
    };
    let promise = js_sys::Promise::resolve(&called.map_err(thrown)?);
    JsFuture::from(promise).await.map_err(thrown)
}

fn storage_error(parameter: &str, reason: &str) -> Error {
    Error::Request {
        parameter: parameter.into(),
        reason: format!("the saved session cannot be read or written: {reason}"),
    }
}

/// Reads a list of strings.
pub(super) fn string_list(parameter: &str, list: &JsValue) -> Result<Vec<String>> {
    let refuse = || Error::Request {
        parameter: parameter.into(),
        reason: "must be an array of strings".into(),
    };
    Array::from(list)
        .iter()
        .map(|text| text.as_string().ok_or_else(refuse))
        .collect()
}

/// Reads a list of texts and token ids; token ids are typed arrays.
pub(super) fn embed_inputs(list: &JsValue) -> Result<Vec<EmbedInput>> {
    let input = |value: JsValue| match value.as_string() {
        Some(text) => Ok(EmbedInput::Text(text)),
        None => {
            let reason = "must be an array of strings or token ids".into();

            value
                .dyn_into::<Uint32Array>()
                .map(|ids| EmbedInput::Ids(ids.to_vec()))
                .map_err(|_| Error::Request {
                    parameter: "input".into(),
                    reason,
                })
        }
    };
    Array::from(list).iter().map(input).collect()
}
