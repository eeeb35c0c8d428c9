//! Reuses models that WebLLM stored for this origin (Cache API, origin private file system,
//! IndexedDB), so that they are not downloaded again. Depends on WebLLM's scopes and keys
//! ([`WEBLLM_SCOPES`]), not on weight encodings.

use js_sys::{Array, Function, Promise, Uint8Array};
use std::ops::Range;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Blob, Cache, CacheStorage};

use super::HubOptions;
use super::browser::{BrowserTransport, CacheStore, PickedFile, PickedFiles};
use super::chunk::Chunk;
use super::http::{HttpSource, main_branch_url};
use super::model_ref::ModelRef;
use super::parts::{FileInfo, PartSource};
use super::progress::Progress;
use super::remote::{RangeReader, ReadFault};
use crate::Result;
use crate::format::mlc::{SHARD_LISTS, WEBLLM_SCOPES, parse_shards};
use crate::util::host;

/// Configuration file that WebLLM stores with the shards.
const MLC_CONFIG_FILE: &str = "mlc-chat-config.json";
/// Files that WebLLM stores for some models.
const OPTIONAL_FILES: [&str; 3] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
];

#[wasm_bindgen(module = "/js/webllm.js")]
extern "C" {
    /// Opens the stores of some scopes that are not caches.
    #[wasm_bindgen(js_name = open)]
    fn open_stores(scopes: &Array) -> Promise;
}

/// A file in one of WebLLM's stores; its bytes are read on demand.
enum WebLlmFile {
    Blob(Blob),
    /// A function that reads the whole file.
    Record(Function),
}

impl WebLlmFile {
    /// Reads the whole file at once: for all files except shards.
    async fn read_small(self) -> Option<Blob> {
        match self {
            WebLlmFile::Blob(blob) => Some(blob),
            WebLlmFile::Record(read) => {
                let bytes: Uint8Array =
                    await_promise(read.call0(&JsValue::NULL).ok()?.dyn_into().ok()?).await?;
                Blob::new_with_u8_array_sequence(&Array::of1(&bytes)).ok()
            }
        }
    }
}

/// WebLLM's stores in this origin.
struct WebLlmStores {
    caches: Vec<Cache>,
    other_stores: Option<Function>,
}

async fn await_promise<T: JsCast>(promise: Promise) -> Option<T> {
    JsFuture::from(promise).await.ok()?.dyn_into().ok()
}

impl WebLlmStores {
    async fn open() -> Option<WebLlmStores> {
        let mut caches: Vec<Cache> = Vec::new();
        let storage = host::member("store");
        if !storage.is_undefined() {
            let storage: CacheStorage = storage.unchecked_into();
            for name in WEBLLM_SCOPES {
                // Opening a missing cache would create it.
                if JsFuture::from(storage.has(name)).await.ok()?.is_truthy() {
                    caches.push(
                        JsFuture::from(storage.open(name))
                            .await
                            .ok()?
                            .unchecked_into(),
                    );
                }
            }
        }
        let others = await_promise(open_stores(
            &WEBLLM_SCOPES.map(JsValue::from).iter().collect(),
        ))
        .await;
        (others.is_some() || !caches.is_empty()).then_some(WebLlmStores {
            caches,
            other_stores: others,
        })
    }

    /// Finds the file with this URL in any of the stores.
    async fn file(&self, url: &str) -> Option<WebLlmFile> {
        for cache in &self.caches {
            if let Some(response) =
                await_promise::<web_sys::Response>(cache.match_with_str(url)).await
            {
                return await_promise(response.blob().ok()?)
                    .await
                    .map(WebLlmFile::Blob);
            }
        }
        let found: Promise = self
            .other_stores
            .as_ref()?
            .call1(&JsValue::NULL, &url.into())
            .ok()?
            .dyn_into()
            .ok()?;
        let found = JsFuture::from(found).await.ok()?;
        match found.dyn_into::<Function>() {
            Ok(read) => Some(WebLlmFile::Record(read)),
            Err(found) => found.dyn_into().ok().map(WebLlmFile::Blob),
        }
    }

    async fn read_small(&self, url: &str) -> Option<Blob> {
        self.file(url).await?.read_small().await
    }
}

async fn read_text(blob: &Blob) -> Option<String> {
    JsFuture::from(blob.text()).await.ok()?.as_string()
}

/// Finds the model's files; `None` unless configuration, tensor list and every shard are stored.
pub(super) async fn find_model(
    model: &ModelRef,
    options: &HubOptions,
    progress: &Progress,
) -> Option<PickedFiles> {
    let base = main_branch_url(model, options)?;
    let stores = WebLlmStores::open().await?;
    let mut files = vec![(
        MLC_CONFIG_FILE.to_string(),
        stores
            .read_small(&format!("{base}/{MLC_CONFIG_FILE}"))
            .await?,
    )];
    let mut records = Vec::new();
    let mut shards = None;
    for list in SHARD_LISTS {
        if let Some(blob) = stores.read_small(&format!("{base}/{list}")).await {
            shards = Some(parse_shards(list, &read_text(&blob).await?).ok()?);
            files.push((list.to_string(), blob));
            break;
        }
    }
    for shard in shards?.files {
        match stores.file(&format!("{base}/{}", shard.name)).await? {
            // A shard of another version than the list's would be read at wrong offsets.
            WebLlmFile::Blob(blob) if blob.size() as u64 != shard.size => return None,
            WebLlmFile::Blob(blob) => files.push((shard.name, blob)),
            // The length of a record is checked when it is read.
            WebLlmFile::Record(read) => records.push((shard.name, read, shard.size)),
        }
    }
    for name in OPTIONAL_FILES {
        if let Some(blob) = stores.read_small(&format!("{base}/{name}")).await {
            files.push((name.to_string(), blob));
        }
    }
    let files = files
        .into_iter()
        .map(|(name, blob)| PickedFile { name, blob })
        .collect();
    let mut found = PickedFiles::new(files, options.part_size, progress.clone()).ok()?;
    found.name = "WebLLM's cache".to_string();
    found.from_cache = true;
    for (name, read, size) in records {
        found.add_record(name, read, size);
    }
    Some(found)
}

/// WebLLM's files, with the repository as the fallback for missing ones.
pub(super) struct WebLlm {
    pub(super) local: PickedFiles,
    pub(super) remote: Option<HttpSource<BrowserTransport, CacheStore>>,
}

impl WebLlm {
    fn remote(&self, file: &str) -> Option<&HttpSource<BrowserTransport, CacheStore>> {
        self.remote.as_ref().filter(|_| !self.local.contains(file))
    }
}

impl PartSource for WebLlm {
    type Reader = RangeReader<BrowserTransport>;

    fn source_name(&self) -> &str {
        self.remote
            .as_ref()
            .map_or("WebLLM's cache", |remote| remote.source_name())
    }

    fn progress(&self) -> &Progress {
        self.local.progress()
    }

    fn part_size(&self) -> u64 {
        self.local.part_size()
    }

    fn streams(&self, file: &str) -> usize {
        self.remote(file).map_or(1, |remote| remote.streams(file))
    }

    fn is_stored(&self, file: &str, part: u64) -> bool {
        self.remote(file)
            .is_none_or(|remote| remote.is_stored(file, part))
    }

    async fn info(&self, file: &str) -> Result<Option<FileInfo>> {
        match self.remote(file) {
            // Offline, the model runs without the files that WebLLM does not store.
            Some(remote) => Ok(remote.info(file).await.unwrap_or(None)),
            None => self.local.info(file).await,
        }
    }

    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, ReadFault> {
        match self.remote(file) {
            Some(remote) => remote.range(file, range).await,
            None => self.local.range(file, range).await,
        }
    }

    async fn part(
        &self,
        file: &str,
        part: u64,
        run_end: u64,
        reader: &mut Option<RangeReader<BrowserTransport>>,
    ) -> Result<Chunk, ReadFault> {
        match self.remote(file) {
            Some(remote) => remote.part(file, part, run_end, reader).await,
            None => self.local.part(file, part, run_end, &mut None).await,
        }
    }

    async fn finalize(&self, file: &str, last: bool) {
        if let Some(remote) = self.remote(file) {
            remote.finalize(file, last).await;
        }
    }

    async fn evict(&self, file: &str) {
        if let Some(remote) = self.remote(file) {
            remote.evict(file).await;
        }
    }

    fn missing_error(&self, file: &str) -> crate::Error {
        match self.remote(file) {
            Some(remote) => remote.missing_error(file),
            None => self.local.missing_error(file),
        }
    }
}
