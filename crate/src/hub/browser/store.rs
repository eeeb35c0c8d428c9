//! Stored models: private files, or the Cache API.

use js_sys::{Array, Promise, Uint8Array, Uint32Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::Cache;

use super::super::cache::{KeyValueStore, StoreError};
use super::super::chunk::Chunk;
use super::{exception_message, get_property};
use crate::{Error, Result};

/// The cache's name, with a number for its layout.
const CACHE_NAME: &str = "jerboa-models-1";
/// Entries of at least this many bytes are read and written on separate threads.
const LARGE_ENTRY_BYTES: u64 = 256 << 10;
/// Prefix of entry URLs. The `.invalid` host cannot exist, so no entry collides with one of the
/// page's.
const ENTRY_URL_PREFIX: &str = "https://jerboa.invalid/";

#[wasm_bindgen(module = "/js/cache.js")]
extern "C" {
    /// Reads an entry of a cache, which is also given by name. Large entries are read in parallel
    /// with WebAssembly.
    #[wasm_bindgen(js_name = readEntry)]
    fn read_entry(cache: &Cache, name: &str, key: &str, large: bool) -> Promise;
    /// Writes an entry. Its bytes are copied at once; large ones are written in parallel with
    /// WebAssembly.
    #[wasm_bindgen(js_name = writeEntry)]
    fn write_entry(
        cache: &Cache,
        name: &str,
        key: &str,
        bytes: &Uint8Array,
        large: bool,
    ) -> Promise;
    /// Returns the eight words of a SHA-256 state after an entry of `size` bytes, the last of
    /// `end`; nothing if no such entry exists. Runs in parallel with WebAssembly.
    #[wasm_bindgen(js_name = hashEntry)]
    fn hash_entry(
        cache: &Cache,
        name: &str,
        key: &str,
        state: &[u32],
        size: f64,
        end: Option<f64>,
    ) -> Promise;
    /// Opens a folder of the origin private file system with the interface of a cache, or a cache.
    #[wasm_bindgen(js_name = openStore)]
    fn open_store(name: &str) -> Promise;
}

/// A store on the origin private file system, or on the Cache API where a browser or a window has
/// no private files. An entry appears once all its bytes are written.
#[derive(Clone, Debug)]
pub struct CacheStore {
    cache: Cache,
}

impl CacheStore {
    /// Opens this origin's store. Only secure contexts (HTTPS or localhost) have one.
    pub async fn open() -> Result<CacheStore> {
        let store = JsFuture::from(open_store(CACHE_NAME)).await;
        let store = store.map_err(|error| Error::Cache {
            reason: store_reason(&error),
        })?;
        if store.is_undefined() {
            let reason = "this page is not a secure context; serve it over HTTPS or from localhost"
                .to_string();
            return Err(Error::Cache { reason });
        }
        Ok(CacheStore {
            cache: store.unchecked_into(),
        })
    }
}

/// The message of a store's exception, for the middle of a sentence.
fn store_reason(error: &JsValue) -> String {
    exception_message(error).trim_end_matches('.').to_string()
}

fn store_error(error: &JsValue) -> StoreError {
    let name = get_property(error, "name")
        .and_then(|name| name.as_string())
        .unwrap_or_default();
    match name.as_str() {
        "QuotaExceededError" => StoreError::Quota(store_reason(error)),
        _ => StoreError::Other(store_reason(error)),
    }
}

impl KeyValueStore for CacheStore {
    async fn get(&self, key: &str, size: u64) -> Option<Chunk> {
        let read = read_entry(
            &self.cache,
            CACHE_NAME,
            &format!("{ENTRY_URL_PREFIX}{key}"),
            size >= LARGE_ENTRY_BYTES,
        );
        let bytes = JsFuture::from(read).await.ok()?;
        Some(Chunk::from_js(bytes.dyn_into().ok()?))
    }

    async fn put(&self, key: &str, value: &Chunk) -> Result<(), StoreError> {
        let key = format!("{ENTRY_URL_PREFIX}{key}");
        let put = write_entry(
            &self.cache,
            CACHE_NAME,
            &key,
            value.as_js(),
            value.len() as u64 >= LARGE_ENTRY_BYTES,
        );
        JsFuture::from(put)
            .await
            .map(|_| ())
            .map_err(|error| store_error(&error))
    }

    async fn hash(
        &self,
        key: &str,
        size: u64,
        state: [u32; 8],
        end: Option<u64>,
    ) -> Option<[u32; 8]> {
        let key = format!("{ENTRY_URL_PREFIX}{key}");
        let hashed = hash_entry(
            &self.cache,
            CACHE_NAME,
            &key,
            &state,
            size as f64,
            end.map(|end| end as f64),
        );
        let words = JsFuture::from(hashed)
            .await
            .ok()?
            .dyn_into::<Uint32Array>()
            .ok()?;
        words.to_vec().try_into().ok()
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let url = format!("{ENTRY_URL_PREFIX}{key}");
        let deleted = JsFuture::from(self.cache.delete_with_str(&url)).await;
        deleted.map(|_| ()).map_err(|error| store_error(&error))
    }

    async fn keys(&self) -> Result<Vec<String>, StoreError> {
        let listed = JsFuture::from(self.cache.keys()).await;
        let requests = listed.map_err(|error| store_error(&error))?;
        let url = |request: JsValue| get_property(&request, "url").and_then(|url| url.as_string());
        let requests: Array = requests.unchecked_into();
        Ok(requests
            .iter()
            .filter_map(url)
            .filter_map(|url| url.strip_prefix(ENTRY_URL_PREFIX).map(str::to_string))
            .collect())
    }
}
