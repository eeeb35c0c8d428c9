//! Persistent cache of files in parts of a fixed size, keyed by source, file and content. Does not
//! depend on the network. It requires only that a store writes each entry completely or not at all.
//!
//! A part's key includes a fingerprint of the content, so an existing part always belongs to that
//! content. The manifest of a file is written after its parts: an interrupted load leaves parts for
//! the next one, never a partial file that looks complete. Integrity of the bytes is checked with
//! the SHA-256 that the Hub publishes for large files.

use crate::util::map::{SortedMap, SortedSet};
use std::cell::RefCell;

use serde::{Deserialize, Serialize};

use super::chunk::Chunk;
use super::model_ref::{percent_decode, percent_encode};
use super::read_ahead::ReadsAhead;
use super::remote::FileValidator;
use super::tensors::{INDEX_FILE_NAME, SINGLE_FILE_NAME};
use crate::error::{Error, Result};
use crate::format::gguf::{parse_split_name, split_file_name};
use crate::format::shard_index::ShardIndex;
use crate::util::sha256::{INITIAL_STATE, to_hex};

/// Why entries could not be listed, written or removed.
#[derive(Debug, Clone)]
pub enum StoreError {
    /// Storage quota exceeded.
    Quota(String),
    /// Any other cause: private mode, disk driver error, missing permission.
    Other(String),
}

impl StoreError {
    /// The error of an application that asked for the stored models.
    fn into_error(self, action: &'static str) -> Error {
        let (StoreError::Quota(reason) | StoreError::Other(reason)) = self;
        Error::CacheAccess { action, reason }
    }
}

/// Storage of named entries, each written completely or not at all. Keys are percent-encoded names
/// separated by `/`.
#[allow(async_fn_in_trait)] // single-threaded by design: no Send bound is wanted
pub trait KeyValueStore {
    /// Reads an entry if it exists. `size` is its expected number of bytes, 0 if unknown.
    async fn get(&self, key: &str, size: u64) -> Option<Chunk>;
    /// Writes an entry. On error, or when the future is dropped, the previous entry is unchanged.
    async fn put(&self, key: &str, value: &Chunk) -> Result<(), StoreError>;
    /// Removes an entry if it exists.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;
    /// Lists all keys.
    async fn keys(&self) -> Result<Vec<String>, StoreError>;
    /// Updates a SHA-256 state with an entry's bytes. `None` unless the entry exists with `size`
    /// bytes. `size` must be a multiple of 64, except for the last entry of a file of `end` bytes.
    async fn hash(
        &self,
        key: &str,
        size: u64,
        state: [u32; 8],
        end: Option<u64>,
    ) -> Option<[u32; 8]>;
}

/// Metadata of a cached file, valid without asking the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileManifest {
    version: u32,
    /// The repository's commit when the file was read.
    pub commit: Option<String>,
    /// `None`: the server did not have the file.
    pub content: Option<CachedFile>,
}

/// A file's content and which of its parts are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedFile {
    pub size: u64,
    pub validator: Option<String>,
    pub part_size: u64,
    pub parts: SortedSet<u64>,
    /// The SHA-256 published by the Hub, set after the stored parts were verified against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl FileManifest {
    pub fn new(commit: Option<String>, content: Option<CachedFile>) -> FileManifest {
        FileManifest {
            version: 1,
            commit,
            content,
        }
    }

    /// Whether the server did not have the file.
    pub fn is_absent(&self) -> bool {
        self.content.is_none()
    }

    fn parse(bytes: &[u8]) -> Option<FileManifest> {
        serde_json::from_slice::<FileManifest>(bytes)
            .ok()
            .filter(|m| m.version == 1)
    }
}

impl CachedFile {
    pub fn identity(&self) -> FileValidator {
        FileValidator {
            size: self.size,
            validator: self.validator.clone(),
        }
    }

    /// Number of parts of the complete file.
    fn part_count(&self) -> u64 {
        self.size.div_ceil(self.part_size.max(1))
    }
}

/// A model with cached files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// The name it was loaded by: `endpoint/org/name@revision`, or the folder's URL.
    pub source: String,
    /// Number of its files, complete or not.
    pub files: usize,
    /// Bytes stored.
    pub bytes: u64,
    /// Whether every started file is completely stored, weights with all their shards among them.
    pub complete: bool,
}

/// The entry with a file's [`FileManifest`], next to its parts.
const MANIFEST_ENTRY: &str = "manifest";

/// The cached files of one source.
pub(crate) struct SourceCache<S> {
    store: S,
    source: String,
    listing: RefCell<Listing>,
    ahead: ReadsAhead<Option<Chunk>>,
}

/// Known keys of a source's entries.
#[derive(Default)]
struct Listing {
    /// Whether the store was listed.
    complete: bool,
    keys: SortedSet<String>,
}

impl<S: KeyValueStore> SourceCache<S> {
    pub fn new(store: S, source: &str) -> SourceCache<S> {
        SourceCache {
            store,
            source: percent_encode(source, false),
            listing: RefCell::default(),
            ahead: ReadsAhead::default(),
        }
    }

    /// Lists the source's keys that start with `prefix`, without it. The store is listed once: a
    /// browser takes milliseconds for each entry of all models. If that fails, only the entries
    /// written since are known.
    async fn keys_after(&self, prefix: &str) -> Vec<String> {
        let is_listed = self.listing.borrow().complete;
        if !is_listed && let Ok(keys) = self.store.keys().await {
            let source = format!("{}/", self.source);
            let ours = keys.into_iter().filter(|key| key.starts_with(&source));
            let mut listing = self.listing.borrow_mut();
            listing.keys.extend(ours);
            listing.complete = true;
        }
        let listing = self.listing.borrow();
        let names = listing.keys.iter().filter_map(|k| k.strip_prefix(prefix));
        names.map(str::to_string).collect()
    }

    async fn put(&self, key: String, value: &Chunk) -> Result<(), StoreError> {
        self.store.put(&key, value).await?;
        self.listing.borrow_mut().keys.insert(key);
        Ok(())
    }

    async fn delete(&self, key: &str) {
        self.listing.borrow_mut().keys.remove(key);
        // An entry that cannot be removed is harmless: its key names the content it belongs to.
        let _ = self.store.delete(key).await;
    }

    fn folder(&self, file: &str) -> String {
        format!("{}/{}/", self.source, percent_encode(file, false))
    }

    fn manifest_key(&self, file: &str) -> String {
        format!("{}{MANIFEST_ENTRY}", self.folder(file))
    }

    fn part_key(&self, file: &str, identity: &FileValidator, part_size: u64, index: u64) -> String {
        let length = part_size.min(identity.size.saturating_sub(index * part_size));
        format!(
            "{}/{}/{}-{index}-{length}",
            self.source,
            percent_encode(file, false),
            fingerprint(identity, part_size)
        )
    }

    pub async fn manifest(&self, file: &str) -> Option<FileManifest> {
        FileManifest::parse(&self.store.get(&self.manifest_key(file), 0).await?.to_vec())
    }

    pub async fn put_manifest(
        &self,
        file: &str,
        manifest: &FileManifest,
    ) -> Result<(), StoreError> {
        let json = serde_json::to_vec(manifest).map_err(|e| StoreError::Other(e.to_string()))?;
        self.put(self.manifest_key(file), &Chunk::from_vec(json))
            .await
    }

    /// Reads a part if it exists with the expected length.
    pub async fn part(
        &self,
        file: &str,
        identity: &FileValidator,
        part_size: u64,
        index: u64,
    ) -> Option<Chunk> {
        let key = self.part_key(file, identity, part_size, index);
        let size = part_size.min(identity.size.saturating_sub(index * part_size));
        let ahead = self.ahead.take(&key).await.flatten();
        let chunk = match ahead {
            Some(chunk) => chunk,
            None => self.store.get(&key, size).await?,
        };
        if chunk.len() as u64 == size {
            return Some(chunk);
        }
        self.delete(&key).await;
        None
    }

    /// Reads a part before it is asked for: [`Self::part`] waits for it, once.
    pub async fn read_part_ahead(
        &self,
        file: &str,
        identity: &FileValidator,
        part_size: u64,
        index: u64,
    ) {
        let key = self.part_key(file, identity, part_size, index);
        let size = part_size.min(identity.size.saturating_sub(index * part_size));
        let end = self.ahead.begin(&key);
        end.finish(self.store.get(&key, size).await);
    }

    /// Drops the parts that were read ahead and that nothing has asked for.
    pub fn drop_parts_ahead(&self) {
        self.ahead.clear();
    }

    pub async fn put_part(
        &self,
        file: &str,
        identity: &FileValidator,
        part_size: u64,
        index: u64,
        chunk: &Chunk,
    ) -> Result<(), StoreError> {
        self.put(self.part_key(file, identity, part_size, index), chunk)
            .await
    }

    /// Computes the SHA-256 of a file whose parts are all stored.
    pub async fn hash(
        &self,
        file: &str,
        identity: &FileValidator,
        part_size: u64,
    ) -> Option<String> {
        let mut state = INITIAL_STATE;
        for index in 0..identity.size.div_ceil(part_size.max(1)) {
            state = self
                .hash_part(file, identity, part_size, index, state)
                .await?;
        }
        Some(to_hex(state))
    }

    /// Updates a SHA-256 state with one more part, if it is stored.
    pub async fn hash_part(
        &self,
        file: &str,
        identity: &FileValidator,
        part_size: u64,
        index: u64,
        state: [u32; 8],
    ) -> Option<[u32; 8]> {
        let key = self.part_key(file, identity, part_size, index);
        let size = part_size.min(identity.size.saturating_sub(index * part_size));
        let end = Some(identity.size).filter(|end| index * part_size + size == *end);
        self.store.hash(&key, size, state, end).await
    }

    /// Finds the parts of this content left by an earlier load. Removes parts of any other content
    /// of the file.
    pub async fn find_stored_parts(
        &self,
        file: &str,
        identity: &FileValidator,
        part_size: u64,
    ) -> SortedSet<u64> {
        let ours = format!("{}-", fingerprint(identity, part_size));
        let mut found = SortedSet::new();
        for name in self.keys_after(&self.folder(file)).await {
            match name
                .strip_prefix(&ours)
                .and_then(|rest| rest.split_once('-'))
                .map(|(index, _)| index.parse())
            {
                Some(Ok(index)) => {
                    found.insert(index);
                }
                _ => self.delete(&format!("{}{name}", self.folder(file))).await,
            }
        }
        found
    }

    /// Whether any part of a file is stored, of whatever content.
    pub async fn has_parts(&self, file: &str) -> bool {
        let entries = self.keys_after(&self.folder(file)).await;
        entries.iter().any(|name| name != MANIFEST_ENTRY)
    }

    /// Names of the source's files with entries.
    pub async fn files(&self) -> SortedSet<String> {
        let mut files = SortedSet::new();
        for key in self.keys_after(&format!("{}/", self.source)).await {
            let file = key
                .split_once('/')
                .filter(|(file, _)| *file != DERIVED_FOLDER)
                .and_then(|(file, _)| percent_decode(file));
            if let Some(file) = file {
                files.insert(file);
            }
        }
        files
    }

    /// Removes all entries of a file. The manifest goes first, so that an interruption leaves
    /// nothing that looks complete.
    pub async fn evict(&self, file: &str) {
        self.delete(&self.manifest_key(file)).await;
        for name in self.keys_after(&self.folder(file)).await {
            self.delete(&format!("{}{name}", self.folder(file))).await;
        }
    }
}

/// A short fingerprint of a content: FNV-1a of its identity. It distinguishes versions of a file
/// and is not meant to resist attacks.
fn fingerprint(identity: &FileValidator, part_size: u64) -> String {
    let text = format!(
        "{}/{}/{part_size}",
        identity.validator.as_deref().unwrap_or(""),
        identity.size
    );
    format!("{:016x}", crate::util::fnv1a(&text))
}

/// Whether a file holds weights, by its name.
pub(crate) fn is_weights(file: &str) -> bool {
    const SUFFIXES: [&str; 6] = [".safetensors", ".gguf", ".bin", ".onnx", ".pt", ".pth"];
    SUFFIXES.iter().any(|suffix| file.ends_with(suffix))
}

/// Lists all models with cached files.
///
/// # Errors
/// `Error::CacheAccess` if the store cannot be listed.
pub async fn cached_models(store: &impl KeyValueStore) -> Result<Vec<CachedModel>> {
    let listed = store.keys().await.map_err(|e| e.into_error("listed"))?;
    let keys: SortedSet<String> = listed.into_iter().collect();
    let mut models: SortedMap<String, (SortedSet<String>, u64)> = SortedMap::new();
    for key in &keys {
        let mut names = key.splitn(3, '/');
        let (Some(source), Some(file), Some(entry)) = (names.next(), names.next(), names.next())
        else {
            continue;
        };
        let Some(source) = percent_decode(source) else {
            continue;
        };
        let model = models.get_or_insert_with(source, Default::default);
        if let Some(name) = percent_decode(file).filter(|_| file != DERIVED_FOLDER) {
            model.0.insert(name);
        }
        let mut fields = entry.split('-').skip(1).map(str::parse::<u64>);
        if let (Some(Ok(_)), Some(Ok(length))) = (fields.next(), fields.next()) {
            model.1 += length;
        }
    }
    let mut found = Vec::new();
    for (source, (files, bytes)) in models {
        let shelf = SourceCache::new(store, &source);
        let mut whole = SortedSet::new();
        let mut started = 0;
        for file in files {
            match shelf.completeness(&file, &keys).await {
                None => continue,
                Some(true) => _ = whole.insert(file),
                Some(false) => {}
            }
            started += 1;
        }
        if started > 0 {
            let complete = whole.len() == started && shelf.has_all_weights(&whole).await;
            found.push(CachedModel {
                source,
                files: started,
                bytes,
                complete,
            });
        }
    }
    Ok(found)
}

impl<S: KeyValueStore> SourceCache<S> {
    /// Whether all parts of a file's content are among the `keys` of the store; `None` for a file
    /// that the server does not have.
    async fn completeness(&self, file: &str, keys: &SortedSet<String>) -> Option<bool> {
        match self.manifest(file).await.map(|manifest| manifest.content) {
            // A load may be about to replace the record.
            Some(None) => None,
            Some(Some(content)) => {
                let identity = content.identity();
                let key = |part| self.part_key(file, &identity, content.part_size, part);
                Some((0..content.part_count()).all(|part| keys.contains(&key(part))))
            }
            None => {
                let folder = self.folder(file);
                let mut entries = keys.iter().filter_map(|key| key.strip_prefix(&folder));
                entries.any(|name| name != MANIFEST_ENTRY).then_some(false)
            }
        }
    }

    /// Whether these files include weights, and all shards of weights that are split.
    async fn has_all_weights(&self, files: &SortedSet<String>) -> bool {
        let single = SINGLE_FILE_NAME.to_string();
        let index = INDEX_FILE_NAME.to_string();
        if files.contains(&index) && !files.contains(&single) {
            let shards = match self.whole_file(&index).await {
                Some(bytes) => ShardIndex::parse(&index, &bytes).map(|index| index.shards()),
                None => return false,
            };
            return shards.is_ok_and(|shards| shards.iter().all(|shard| files.contains(shard)));
        }
        let mut weights = files.iter().filter(|file| is_weights(file)).peekable();
        weights.peek().is_some()
            && weights.all(|file| match parse_split_name(file) {
                Some((.., count)) => (1..=count).all(|number| {
                    split_file_name(file, number).is_some_and(|shard| files.contains(&shard))
                }),
                None => true,
            })
    }

    /// Reads a small file whose parts are all stored.
    async fn whole_file(&self, file: &str) -> Option<Vec<u8>> {
        let content = self.manifest(file).await?.content?;
        let mut bytes = Vec::new();
        for part in 0..content.part_count() {
            let identity = content.identity();
            let chunk = self.part(file, &identity, content.part_size, part).await?;
            bytes.extend(chunk.to_vec());
        }
        Some(bytes)
    }
}

/// Folder of data derived from a source's files; no model file has this name.
const DERIVED_FOLDER: &str = "~made";

/// The key of an entry derived from a source's files.
pub(crate) fn derived_key(source: &str, entry: &str) -> String {
    format!("{}/{DERIVED_FOLDER}/{entry}", percent_encode(source, false))
}

/// Removes derived entries whose names start with `group`. Completion marks go first.
pub(crate) async fn clear_derived(store: &impl KeyValueStore, source: &str, group: &str) {
    let prefix = derived_key(source, group);
    let keys = store.keys().await.unwrap_or_default();
    let (whole, pieces): (Vec<_>, Vec<_>) = keys
        .iter()
        .filter(|key| key.starts_with(&prefix))
        .partition(|key| key.ends_with("-whole"));
    for key in whole.into_iter().chain(pieces) {
        // What remains is overwritten by the next set.
        let _ = store.delete(key).await;
    }
}

/// Removes everything cached of a source, named as in [`CachedModel::source`].
///
/// # Errors
/// `Error::CacheAccess` if the store cannot be listed, or an entry cannot be removed.
pub async fn delete_cached(store: &impl KeyValueStore, source: &str) -> Result<()> {
    let prefix = format!("{}/", percent_encode(source, false));
    let keys = store.keys().await.map_err(|e| e.into_error("listed"))?;
    let (manifests, parts): (Vec<String>, Vec<String>) = keys
        .into_iter()
        .filter(|key| key.starts_with(&prefix))
        .partition(|k| k.ends_with("/manifest"));
    for key in manifests.iter().chain(&parts) {
        let deleted = store.delete(key).await;
        deleted.map_err(|e| e.into_error("changed"))?;
    }
    Ok(())
}

impl<S: KeyValueStore> KeyValueStore for &S {
    async fn get(&self, key: &str, size: u64) -> Option<Chunk> {
        (**self).get(key, size).await
    }
    async fn put(&self, key: &str, value: &Chunk) -> Result<(), StoreError> {
        (**self).put(key, value).await
    }
    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        (**self).delete(key).await
    }
    async fn keys(&self) -> Result<Vec<String>, StoreError> {
        (**self).keys().await
    }
    async fn hash(
        &self,
        key: &str,
        size: u64,
        state: [u32; 8],
        end: Option<u64>,
    ) -> Option<[u32; 8]> {
        (**self).hash(key, size, state, end).await
    }
}
