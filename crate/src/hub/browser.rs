//! Browser transport and cache, in a page or a worker: fetch, private files or the Cache API, and
//! selected files. Bytes stay in JavaScript memory.

use std::cell::RefCell;
use std::ops::Range;

use js_sys::{Array, Function, Object, Promise, Reflect, Uint8Array, Uint32Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortController, Blob, Cache, ReadableStreamDefaultReader};

use super::cache::{KeyValueStore, StoreError};
use super::chunk::Chunk;
use super::parts::{self, FileInfo, PartSource};
use super::progress::Progress;
use super::remote::ReadFault;
use super::transport::{
    HttpHeaders, HttpMethod, HttpRequest, HttpResponse, ResponseBody, Transport, TransportError,
};
use crate::util::host;
use crate::util::map::SortedMap;
use crate::{Error, Result};

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

/// HTTP through fetch. The browser follows redirects and drops the token when one leads to another
/// origin.
#[derive(Clone, Copy, Debug, Default)]
pub struct BrowserTransport {}

/// Aborts its request when dropped.
#[derive(Debug)]
struct AbortOnDrop(AbortController);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A response body, read through its stream.
#[derive(Debug)]
pub struct BrowserBody {
    /// `None` if the response has no body.
    reader: Option<ReadableStreamDefaultReader>,
    _cancel: AbortOnDrop,
}

impl Transport for BrowserTransport {
    type Body = BrowserBody;

    async fn send(
        &self,
        request: HttpRequest,
    ) -> Result<HttpResponse<BrowserBody>, TransportError> {
        let failure = |error: JsValue| TransportError(exception_message(&error));
        let cancel = AbortOnDrop(AbortController::new().map_err(failure)?);
        let headers = Object::new();
        let set = |object: &Object, name: &str, value: &JsValue| {
            Reflect::set(object, &name.into(), value)
                .map(|_| ())
                .map_err(|error| TransportError(exception_message(&error)))
        };
        if let Some(range) = &request.range {
            set(&headers, "range", &range.into())?;
        }
        if let Some(token) = &request.token {
            set(&headers, "authorization", &format!("Bearer {token}").into())?;
        }
        let init = Object::new();
        set(
            &init,
            "method",
            &if request.method == HttpMethod::Head {
                "HEAD"
            } else {
                "GET"
            }
            .into(),
        )?;
        set(&init, "headers", &headers)?;
        // Files are stored by `CacheStore`; a second copy in the HTTP cache would waste its space.
        set(&init, "cache", &"no-store".into())?;
        set(&init, "signal", &cancel.0.signal())?;
        let response = JsFuture::from(host::request(&request.url, &init))
            .await
            .map_err(|error| fetch_failure(&error))?;
        let response: web_sys::Response = response.dyn_into().map_err(failure)?;
        let visible = response.headers();
        let headers = HttpHeaders {
            filtered: get_property(&response, "type") != Some("basic".into()),
            ..HttpHeaders::read(|name| visible.get(name).ok().flatten())
        };
        let reader = match response.body() {
            Some(stream) => Some(ReadableStreamDefaultReader::new(&stream).map_err(failure)?),
            None => None,
        };
        Ok(HttpResponse {
            status: response.status(),
            headers,
            body: BrowserBody {
                reader,
                _cancel: cancel,
            },
        })
    }
}

/// Describes a failed fetch. Browsers report an unreachable server and a CORS refusal alike.
fn fetch_failure(error: &JsValue) -> TransportError {
    TransportError(match host::member("onLine").as_bool() {
        Some(false) => "this device is offline".to_string(),
        _ => format!(
            "{}: the server does not answer, or does not allow this page to read it (CORS)",
            exception_message(error)
        ),
    })
}

impl ResponseBody for BrowserBody {
    async fn next(&mut self) -> Result<Option<Chunk>, TransportError> {
        let Some(reader) = &self.reader else {
            return Ok(None);
        };
        let result = JsFuture::from(reader.read())
            .await
            .map_err(|error| TransportError(exception_message(&error)))?;
        if get_property(&result, "done").is_some_and(|done| done.is_truthy()) {
            return Ok(None);
        }
        let value =
            get_property(&result, "value").and_then(|value| value.dyn_into::<Uint8Array>().ok());
        value
            .map(|bytes| Some(Chunk::from_js(bytes)))
            .ok_or_else(|| TransportError("the response stream returned no bytes".to_string()))
    }
}

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

    async fn delete(&self, key: &str) {
        // An entry that cannot be removed is harmless: its key names the content it belongs to.
        let _ = JsFuture::from(
            self.cache
                .delete_with_str(&format!("{ENTRY_URL_PREFIX}{key}")),
        )
        .await;
    }

    async fn keys(&self) -> Vec<String> {
        let Ok(requests) = JsFuture::from(self.cache.keys()).await else {
            return Vec::new();
        };
        let url = |request: JsValue| get_property(&request, "url").and_then(|url| url.as_string());
        let requests: Array = requests.unchecked_into();
        requests
            .iter()
            .filter_map(url)
            .filter_map(|url| url.strip_prefix(ENTRY_URL_PREFIX).map(str::to_string))
            .collect()
    }
}

/// A file that the user selected or dropped.
#[derive(Clone, Debug)]
pub struct PickedFile {
    /// Its name, with folders if the user selected a folder (`webkitRelativePath`).
    pub name: String,
    /// The file.
    pub blob: Blob,
}

/// Where a file's bytes are stored.
#[derive(Debug)]
enum FileStorage {
    Blob(Blob),
    /// A function that reads the whole record, called as rarely as possible, and the record's
    /// length.
    Record(Function, u64),
}

/// The selected files, presented as a model folder.
#[derive(Debug)]
pub struct PickedFiles {
    files: SortedMap<String, FileStorage>,
    /// The last record read: parts of a file are requested in order.
    last_record: RefCell<Option<(String, Chunk)>>,
    /// Whether the files come from a cache (WebLLM's).
    pub(super) from_cache: bool,
    part_size: u64,
    progress: Progress,
}

impl PickedFiles {
    /// Creates the folder. Its root is the folder that holds config.json, or the topmost one.
    pub fn new(files: Vec<PickedFile>, part_size: u64, progress: Progress) -> Result<PickedFiles> {
        if files.is_empty() {
            return Err(Error::ModelName {
                name: String::new(),
                reason: "no file was selected".to_string(),
            });
        }
        let folder = |name: &str| name.rfind('/').map_or(0, |slash| slash + 1);
        let config = files
            .iter()
            .filter(|f| f.name.ends_with("config.json"))
            .map(|f| f.name.as_str());
        let config = config
            .filter(|name| &name[folder(name)..] == "config.json")
            .min_by_key(|name| name.len());
        let root = match config {
            Some(name) => name[..folder(name)].to_string(),
            None => files
                .iter()
                .map(|f| &f.name[..folder(&f.name)])
                .min_by_key(|f| f.len())
                .unwrap_or("")
                .to_string(),
        };

        let files = files
            .into_iter()
            .filter_map(|f: PickedFile| {
                f.name
                    .strip_prefix(&root)
                    .map(|name| (name.to_string(), FileStorage::Blob(f.blob.clone())))
            })
            .collect();
        Ok(PickedFiles {
            files,
            last_record: RefCell::default(),
            from_cache: false,
            part_size: part_size.max(1),
            progress,
        })
    }

    /// Adds a file of `size` bytes. `read` returns all of it: a promise of a Uint8Array, or of
    /// null.
    pub(super) fn add_record(&mut self, name: String, read: Function, size: u64) {
        self.files.insert(name, FileStorage::Record(read, size));
    }

    async fn read(&self, file: &str, range: Range<u64>) -> Result<Chunk> {
        let unreadable = |error: JsValue| Error::MissingFile {
            file: file.to_string(),
            location: self.source_name().to_string(),
            hint: format!(
                "The browser reports: {}. Pick the files again.",
                exception_message(&error)
            ),
        };
        let blob = match self
            .files
            .get(file)
            .ok_or_else(|| self.missing_error(file))?
        {
            FileStorage::Blob(blob) => blob,
            FileStorage::Record(read, size) => {
                let whole = self.read_record(file, read, *size).await?;
                return Ok(whole.slice(range.start as usize..range.end as usize));
            }
        };
        let slice = blob
            .slice_with_f64_and_f64(range.start as f64, range.end as f64)
            .map_err(unreadable)?;
        let bytes = JsFuture::from(slice.array_buffer())
            .await
            .map_err(unreadable)?;
        Ok(Chunk::from_js(Uint8Array::new(&bytes)))
    }

    async fn read_record(&self, file: &str, read: &Function, size: u64) -> Result<Chunk> {
        let last = self
            .last_record
            .borrow()
            .as_ref()
            .filter(|last| last.0 == file)
            .map(|last| last.1.clone());
        if let Some(last) = last {
            return Ok(last);
        }
        // Never hold two records in memory.
        self.last_record.replace(None);
        let read = read
            .call0(&JsValue::NULL)
            .and_then(|promise| promise.dyn_into::<Promise>());
        let bytes = match read {
            Ok(promise) => JsFuture::from(promise)
                .await
                .ok()
                .and_then(|bytes| bytes.dyn_into::<Uint8Array>().ok()),
            Err(_) => None,
        };
        let whole = bytes
            .map(Chunk::from_js)
            .filter(|whole| whole.len() as u64 == size);
        let whole = whole.ok_or_else(|| Error::Changed {
            file: format!("{}/{file}", self.source_name()),
        })?;
        self.last_record
            .replace(Some((file.to_string(), whole.clone())));
        Ok(whole)
    }

    /// The names of the files.
    pub(super) fn list(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    /// Whether a file exists.
    pub(super) fn contains(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }

    fn size(&self, file: &str) -> Option<u64> {
        self.files.get(file).map(|held| match held {
            FileStorage::Blob(blob) => blob.size() as u64,
            FileStorage::Record(_, size) => *size,
        })
    }
}

impl PartSource for PickedFiles {
    type Reader = ();

    fn source_name(&self) -> &str {
        if self.from_cache {
            "WebLLM's cache"
        } else {
            "the selected files"
        }
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn part_size(&self) -> u64 {
        self.part_size
    }

    async fn info(&self, file: &str) -> Result<Option<FileInfo>> {
        self.progress.file(file);
        Ok(self.size(file).map(|size| FileInfo {
            size,
            etag: None,
            from_cache: self.from_cache,
        }))
    }

    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, ReadFault> {
        Ok(self.read(file, range).await?)
    }

    async fn part(
        &self,
        file: &str,
        part: u64,
        _run_end: u64,
        _reader: &mut Option<()>,
    ) -> Result<Chunk, ReadFault> {
        let size = self.size(file).ok_or_else(|| self.missing_error(file))?;
        let range = (part * self.part_size).min(size)..((part + 1) * self.part_size).min(size);
        let chunk = self.read(file, range).await?;
        parts::count_part(self, file, part, chunk.len(), self.from_cache);
        Ok(chunk)
    }

    fn missing_error(&self, file: &str) -> Error {
        Error::MissingFile {
            file: file.to_string(),
            location: self.source_name().to_string(),
            hint: "Pick the model's complete folder.".to_string(),
        }
    }
}
