//! A model's files by name, independent of the source kind.

mod derived;

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

use super::abort::AbortFlag;
use super::model_ref::ModelRef;
use super::parts::{FileInfo, PartSource};
use super::progress::Progress;
use super::read_ahead::ReadsAhead;
#[cfg(not(target_arch = "wasm32"))]
use super::source_kind::LocalDir;
#[cfg(target_arch = "wasm32")]
use super::source_kind::PickedFiles;
use super::source_kind::{DefaultHttpSource, DefaultStore, DefaultTransport, SourceKind};
use super::tensors::{INDEX_FILE_NAME, SINGLE_FILE_NAME};
use super::{CachedModel, Chunk, HubOptions, KeyValueStore, cache, parts, tensors};
use crate::format::gguf::model_files;
use crate::format::safetensors::SafetensorsHeader;
use crate::format::{Checkpoint, TensorInfo};
use crate::{Error, Result};
pub use derived::FileForm;
use derived::StoredForms;
use futures_util::future::{FutureExt, LocalBoxFuture, join_all};

#[cfg(target_arch = "wasm32")]
use super::browser::PickedFile;
#[cfg(target_arch = "wasm32")]
use super::webllm::{self, WebLlm};

/// What is read before a load asks for it.
#[derive(Default)]
struct Ahead {
    files: ReadsAhead<Result<Option<Vec<u8>>>>,
    checkpoint: ReadsAhead<Result<Checkpoint>>,
}

/// Bytes of weights that are read ahead: what the threads of a fast device read from the cache while
/// it opens, and twice what a network of 1 Gbit/s brings meanwhile.
const WEIGHT_BYTES_AHEAD: u64 = 96 << 20;

/// The files of one model. Clones share caches and state.
#[derive(Clone)]
pub struct Source {
    kind: Rc<SourceKind>,
    /// The GGUF file named by the caller.
    gguf: Option<String>,
    abort: AbortFlag,
    /// Persistent storage, if enabled.
    store: Option<DefaultStore>,
    ahead: Rc<Ahead>,
    forms: Rc<RefCell<StoredForms>>,
}

impl Source {
    /// Opens a model's source. Network: one HEAD request for a repository at a branch or tag,
    /// otherwise none.
    pub async fn open(
        model: &ModelRef,
        options: &HubOptions,
        abort: AbortFlag,
        progress: Progress,
    ) -> Result<Source> {
        let (model, gguf) = match model {
            ModelRef::File { location, file } => (location.as_ref(), Some(file.clone())),
            other => (other, None),
        };
        #[cfg(not(target_arch = "wasm32"))]
        let store = options
            .cache_dir
            .as_ref()
            .map(DefaultStore::new)
            .filter(|_| options.cache);
        #[cfg(not(target_arch = "wasm32"))]
        if let ModelRef::Path { path } = model {
            let local = LocalDir::open(std::path::Path::new(path), options.part_size, progress)?;
            let gguf = gguf.or_else(|| only_gguf(&local.list()));
            return Ok(Source {
                kind: Rc::new(SourceKind::Local(local)),
                gguf,
                abort,
                store,
                ahead: Rc::default(),
                forms: Rc::default(),
            });
        }
        #[cfg(target_arch = "wasm32")]
        let found = match gguf {
            None if options.cache => webllm::find_model(model, options, &progress).await,
            _ => None,
        };
        #[cfg(target_arch = "wasm32")]
        let (store, problem) = match DefaultStore::open().await {
            Ok(store) => (Some(store).filter(|_| options.cache), None),
            Err(error) => (None, Some(error)),
        };
        let transport = DefaultTransport::default();
        let http = DefaultHttpSource::open(
            model,
            options,
            transport,
            store.clone(),
            abort.clone(),
            progress,
        )
        .await;
        #[cfg(target_arch = "wasm32")]
        if let Some(local) = found {
            // Files missing from WebLLM's cache come from the network, or are optional.
            let model = WebLlm {
                local,
                remote: http.ok(),
            };
            return Ok(Source {
                kind: Rc::new(SourceKind::WebLlm(Box::new(model))),
                gguf,
                abort,
                store,
                ahead: Rc::default(),
                forms: Rc::default(),
            });
        }
        let http = http?;
        #[cfg(target_arch = "wasm32")]
        if let (Some(problem), true) = (problem, options.cache) {
            http.warn(problem);
        }
        Ok(Source {
            kind: Rc::new(SourceKind::Http(Box::new(http))),
            gguf,
            abort,
            store,
            ahead: Rc::default(),
            forms: Rc::default(),
        })
    }

    /// Opens files that the user selected, or that have a path on this machine.
    #[cfg(target_arch = "wasm32")]
    pub async fn from_picked_files(
        files: Vec<PickedFile>,
        path: Option<String>,
        options: &HubOptions,
        abort: AbortFlag,
        progress: Progress,
    ) -> Result<Source> {
        let mut picked = PickedFiles::new(files, options.part_size, progress)?;
        if let Some(path) = path {
            picked.name = path;
        }
        let gguf = only_gguf(&picked.list());
        let store = if options.cache {
            DefaultStore::open().await.ok()
        } else {
            None
        };
        Ok(Source {
            kind: Rc::new(SourceKind::Picked(picked)),
            gguf,
            abort,
            store,
            ahead: Rc::default(),
            forms: Rc::default(),
        })
    }

    /// Reads a persisted value by name. Names consist of two path segments, which no model file
    /// has.
    pub async fn read_persisted(&self, name: &str) -> Option<Vec<u8>> {
        match self.ahead.files.take(name).await {
            Some(bytes) => bytes.ok()?,
            None => self.read_persisted_now(name).await,
        }
    }

    /// Starts to read a persisted value, as [`Self::read_ahead`] does files.
    pub fn read_persisted_ahead(&self, name: &str) -> impl Future<Output = ()> + 'static {
        let end = self.ahead.files.begin(name);
        let (source, name) = (self.clone(), name.to_owned());
        async move { end.finish(Ok(source.read_persisted_now(&name).await)) }
    }

    async fn read_persisted_now(&self, name: &str) -> Option<Vec<u8>> {
        Some(self.store.as_ref()?.get(name, 0).await?.to_vec())
    }

    /// Persists a small value. If that fails, or nothing is persisted, the value is computed again
    /// next time.
    pub async fn persist(&self, name: &str, fact: Vec<u8>) {
        if let Some(store) = &self.store {
            let _ = store.put(name, &Chunk::from_vec(fact)).await;
        }
    }

    /// Whether anything is persisted between visits.
    pub(crate) fn is_persistent(&self) -> bool {
        self.store.is_some()
    }

    /// The source's name in messages: URL with revision, or folder.
    pub fn name(&self) -> &str {
        self.kind.source_name()
    }

    /// The GGUF file to load: the one named by the caller, or the only one selected.
    pub fn gguf(&self) -> Option<&str> {
        self.gguf.as_deref()
    }

    /// Names of all files of a local folder, of selected files, or of a repository whose Hub lists
    /// them; otherwise empty.
    pub async fn list(&self) -> Result<Vec<String>> {
        self.guard_load(self.kind.list()).await
    }

    /// Runs `load` and compares downloaded files with the SHA-256 sums that the Hub publishes.
    /// Hashing runs in parallel with the download. Files that differ are evicted from the cache.
    ///
    /// # Errors
    /// The error of `load`; `Network` when a file differs from the Hub's checksum.
    pub async fn load_verified<T>(&self, load: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(http) = self.kind.http() else {
            return load.await;
        };
        let loaded = {
            let mut load = pin!(load);
            let mut beside = pin!(http.hash_while_loading());

            poll_fn(|context| {
                let loaded = load.as_mut().poll(context);
                if loaded.is_pending() {
                    let _ = beside.as_mut().poll(context);
                }
                loaded
            })
            .await?
        };
        self.guard_load(http.verify()).await?;
        Ok(loaded)
    }

    /// Waits until everything this load downloaded or kept is cached. Needed with
    /// [`HubOptions::defer_finalize`].
    pub async fn flush(&self) {
        self.store_forms().await;
        if let Some(http) = self.kind.http() {
            http.flush().await;
        }
    }

    /// Evicts cached files that may be corrupt. Returns whether there were any.
    async fn evict_corrupt(&self, error: &Error) -> bool {
        let has_evicted = self.evict_forms().await;
        match self.kind.http() {
            Some(http) => http.evict_corrupt(error).await || has_evicted,
            None => has_evicted,
        }
    }

    /// Opens a source and runs `load` with it. If the load fails because of file contents or the
    /// network, and cached files may be at fault, evicts them and tries once more.
    ///
    /// # Errors
    /// The error of the second attempt, or of the first if the cache was not at fault.
    pub async fn load<T>(
        open: impl AsyncFn() -> Result<Source>,
        load: impl AsyncFn(&Rc<Source>) -> Result<T>,
    ) -> Result<T> {
        let source = Rc::new(open().await?);
        match load(&source).await {
            Err(error) if error.implicates_file() && source.evict_corrupt(&error).await => {}
            // A download that differs from the Hub's checksum has been evicted already.
            Err(Error::Network { reason, .. }) if reason.contains("SHA-256") => {}
            outcome => {
                source.drop_unusable(outcome.as_ref().err()).await;
                return outcome;
            }
        }
        let source = Rc::new(open().await?);
        let outcome = load(&source).await;
        source.drop_unusable(outcome.as_ref().err()).await;
        outcome
    }

    /// Evicts the files that no checksum vouches for, after an error that shows that the model's
    /// content is wrong: the next load downloads them again.
    pub async fn drop_unusable(&self, error: Option<&Error>) {
        if let (Some(error), Some(http)) = (error, self.kind.http())
            && error.implicates_content()
        {
            http.evict_unverified().await;
        }
    }

    /// The commit being read, if the server named one.
    pub fn commit(&self) -> Option<String> {
        self.kind.http()?.commit()
    }

    /// Problems that did not stop the load: a full cache, a server that could not be reached.
    pub fn warnings(&self) -> Vec<Error> {
        self.kind
            .http()
            .map_or_else(Vec::new, DefaultHttpSource::warnings)
    }

    /// The progress that receives byte counts.
    pub fn progress(&self) -> &Progress {
        self.kind.progress()
    }

    /// The flag that aborts this load.
    pub fn abort(&self) -> &AbortFlag {
        &self.abort
    }

    async fn guard_load<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let what = format!("loading {}", self.name());
        self.progress()
            .report_while(self.abort.guard(&what, work))
            .await?
    }

    /// Length and ETag of a file; `None` if it does not exist.
    pub async fn info(&self, file: &str) -> Result<Option<FileInfo>> {
        self.guard_load(self.kind.info(file)).await
    }

    /// Whether a file exists.
    pub async fn exists(&self, file: &str) -> Result<bool> {
        Ok(self.info(file).await?.is_some())
    }

    /// Reads a whole small file that must exist.
    pub async fn read(&self, file: &str) -> Result<Vec<u8>> {
        let bytes = self.read_optional(file).await?;
        bytes.ok_or_else(|| self.kind.missing_error(file))
    }

    /// Reads a whole small file; `None` if it does not exist.
    pub async fn read_optional(&self, file: &str) -> Result<Option<Vec<u8>>> {
        match self.ahead.files.take(file).await {
            Some(bytes) => bytes,
            None => self.read_now(file).await,
        }
    }

    async fn read_now(&self, file: &str) -> Result<Option<Vec<u8>>> {
        self.guard_load(parts::read_file(&*self.kind, file)).await
    }

    /// Starts to read these small files: [`Self::read_optional`] waits for their bytes, once. The
    /// returned future reads them; if it is dropped, they are read when they are asked for.
    pub fn read_ahead(&self, files: &[&str]) -> LocalBoxFuture<'static, ()> {
        let reads: Vec<_> = files
            .iter()
            .map(|file| {
                let end = self.ahead.files.begin(file);
                let (source, file) = (self.clone(), (*file).to_owned());
                async move { end.finish(source.read_now(&file).await) }.boxed_local()
            })
            .collect();
        Box::pin(join_all(reads).map(|_| ()))
    }

    /// Reads a small range of a file, clamped to the file's end.
    pub async fn read_range(&self, file: &str, range: Range<u64>) -> Result<Vec<u8>> {
        self.guard_load(parts::read_range(&*self.kind, file, range))
            .await
    }

    /// Reads a range of a file as one chunk. Parts that are downloaded for it are cached.
    pub async fn slice(&self, file: &str, range: Range<u64>) -> Result<Chunk> {
        self.guard_load(parts::read_cached_range(&*self.kind, file, range))
            .await
    }

    /// Streams a range of a file in order, as `sink(offset in the file, chunk)`.
    pub async fn stream(
        &self,
        file: &str,
        range: Range<u64>,
        mut sink: impl AsyncFnMut(u64, Chunk) -> Result<()>,
    ) -> Result<()> {
        self.guard_load(parts::stream_range(&*self.kind, file, range, &mut sink))
            .await
    }

    /// Reads the headers of the model's safetensors: of `model.safetensors`, or of the shards in
    /// its index.
    pub async fn checkpoint(&self) -> Result<Checkpoint> {
        match self.ahead.checkpoint.take(SINGLE_FILE_NAME).await {
            Some(checkpoint) => checkpoint,
            None => self.checkpoint_now().await,
        }
    }

    async fn checkpoint_now(&self) -> Result<Checkpoint> {
        self.guard_load(tensors::open_checkpoint(&*self.kind)).await
    }

    /// Starts to read the headers of the model's safetensors and their first parts:
    /// [`Self::checkpoint`] and [`Self::stream_tensors`] wait for them, once. Files that no earlier
    /// load has stored are asked for after `config`, if that has found config.json. The returned
    /// future reads them; if it is dropped, they are read when they are asked for.
    pub fn read_weights_ahead(
        &self,
        config: impl Future<Output = ()> + 'static,
    ) -> LocalBoxFuture<'static, ()> {
        let end = self.ahead.checkpoint.begin(SINGLE_FILE_NAME);
        let source = self.clone();
        Box::pin(async move {
            let Some(http) = source.kind.http() else {
                return;
            };
            if !http.is_recorded(SINGLE_FILE_NAME).await && !http.is_recorded(INDEX_FILE_NAME).await
            {
                config.await;
                if !http.has_opened("config.json") {
                    return;
                }
            }
            let checkpoint = source.checkpoint_now().await;
            let files = checkpoint.as_ref().ok().map(|found| found.files.clone());
            end.finish(checkpoint);
            if let Some(files) = files {
                http.read_parts_ahead(&files, WEIGHT_BYTES_AHEAD).await;
            }
        })
    }

    /// Drops what was read ahead and nothing has asked for.
    pub fn drop_reads_ahead(&self) {
        self.ahead.files.clear();
        self.ahead.checkpoint.clear();
        if let Some(http) = self.kind.http() {
            http.drop_parts_ahead();
        }
    }

    /// Reads the header of one safetensors file. Returns the file's length with it.
    pub async fn header(&self, file: &str) -> Result<(u64, SafetensorsHeader)> {
        self.guard_load(tensors::read_header(&*self.kind, file))
            .await
    }

    /// Adds tensors to the progress total, before several graphs stream theirs in turn.
    pub fn expect_tensors(&self, checkpoint: &Checkpoint, tensors: &[&TensorInfo]) {
        tensors::expect_tensors(&*self.kind, checkpoint, tensors);
    }

    /// Streams tensors as `sink(tensor, offset in the tensor, chunk)`, over parallel ranges while
    /// the server is fast.
    ///
    /// Every offset is a multiple of 4, and so is every chunk's length, except at a tensor's last
    /// bytes ([`Chunk::padded`]). Chunks of one tensor may arrive in any order. They arrive a
    /// second time if a file changes on the server with an unchanged header. A tensor without bytes
    /// produces no call; one requested twice arrives once.
    pub async fn stream_tensors(
        &self,
        checkpoint: &Checkpoint,
        wanted: &[&TensorInfo],
        mut sink: impl AsyncFnMut(&TensorInfo, u64, Chunk) -> Result<()>,
    ) -> Result<()> {
        self.guard_load(tensors::stream_tensors(
            &*self.kind,
            checkpoint,
            wanted,
            &mut sink,
        ))
        .await
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({})", self.name())
    }
}

/// The only GGUF file that holds a model, if nothing suggests another format.
fn only_gguf(names: &[String]) -> Option<String> {
    let has_config = names.iter().any(|name| name == "config.json");
    match model_files(names)[..] {
        [only] if !has_config => Some(only.clone()),
        _ => None,
    }
}

/// Lists all models with cached files.
///
/// # Errors
/// `Error::CacheAccess` if the store cannot be listed.
pub async fn cached_models(store: &DefaultStore) -> Result<Vec<CachedModel>> {
    cache::cached_models(store).await
}

/// Removes a model from the cache. `source` is a [`CachedModel::source`] or [`Source::name`].
///
/// # Errors
/// `Error::CacheAccess` if the store cannot be listed, or an entry cannot be removed.
pub async fn delete_cached(store: &DefaultStore, source: &str) -> Result<()> {
    cache::delete_cached(store, source).await
}
