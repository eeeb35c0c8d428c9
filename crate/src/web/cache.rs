//! The models in the browser's cache.

use super::JsResult;
use super::values::{to_js, to_plain_js};
use crate::hub::{self, CacheStore};
use js_sys::Array;
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

/// Lists the cached models.
#[wasm_bindgen(js_name = cachedModels)]
pub async fn cached_models() -> JsResult<JsValue> {
    let Ok(store) = CacheStore::open().await else {
        return Ok(Array::new().into());
    };
    let models = hub::cached_models(&store).await.map_err(|e| to_js(&e))?;
    let list: Vec<Value> = models
        .iter()
        .map(|m| json!({ "source": m.source, "files": m.files, "bytes": m.bytes, "complete": m.complete }))
        .collect();
    Ok(to_plain_js(&list))
}

/// Removes a model from the cache; `source` as returned by `cachedModels`.
#[wasm_bindgen(js_name = deleteModel)]
pub async fn delete_model(source: String) -> JsResult<()> {
    let store = CacheStore::open().await.map_err(|e| to_js(&e))?;
    hub::delete_cached(&store, &source)
        .await
        .map_err(|e| to_js(&e))
}
