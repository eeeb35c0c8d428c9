//! State of a file during one load: from the cache if still valid, otherwise from the server. Reads
//! no bytes beyond the first request.

use crate::util::map::SortedSet;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::HttpSource;
use crate::hub::cache::{CachedFile, FileManifest, KeyValueStore, SourceCache, is_weights};
use crate::hub::chunk::{Chunk, ChunkBuffer};
use crate::hub::model_ref::is_inside;
use crate::hub::parts::{MAX_RESTARTS, concat_chunks};
use crate::hub::remote::{
    FileValidator, HeadReply, NO_ENTRY_CODE, PAGE_ANSWER, RangeReader, ReadFault,
};
use crate::hub::tensors::{INDEX_FILE_NAME, SINGLE_FILE_NAME};
use crate::hub::transport::Transport;
use crate::util::sha256::INITIAL_STATE;
use crate::{Error, Result};

/// Bytes of the first request for a file. Covers most configuration files and most safetensors
/// headers.
const FIRST_REQUEST_BYTES: u64 = 256 << 10;
/// Maximum bytes read of a file of unknown length.
const MAX_UNKNOWN_LENGTH_BYTES: u64 = 256 << 20;

/// Maximum number of other files that are asked for when the server denies a cached one.
const MAX_PROBED_FILES: usize = 3;

/// Whether a model cannot be loaded without the file.
fn is_essential(file: &str) -> bool {
    file == "config.json" || is_weights(file)
}

/// State of a file during one load.
pub(super) struct HttpFile<T: Transport> {
    pub url: String,
    pub identity: FileValidator,
    /// Parts in the cache.
    pub stored: RefCell<SortedSet<u64>>,
    /// Whether `stored` has changes that the manifest lacks.
    pub manifest_stale: Cell<bool>,
    pub from_cache: bool,
    /// The first bytes, from the request that opened the file.
    pub first_bytes: Option<Chunk>,
    /// The rest of the body of `first`, if the server ignores ranges and sends the whole file.
    pub body: RefCell<Option<RangeReader<T>>>,
    pub supports_ranges: Cell<bool>,
    /// Bytes reported to the progress.
    pub reported_bytes: Cell<u64>,
    /// Number of parts hashed in order, and the SHA-256 state after them.
    pub hashed: Cell<(u64, [u32; 8])>,
    /// The verified SHA-256 of the stored parts.
    pub sha256: RefCell<Option<String>>,
    /// Whether this load downloaded some of it.
    pub fetched: Cell<bool>,
}

impl<T: Transport + 'static, S: KeyValueStore + 'static> HttpSource<T, S> {
    /// The file's state; asks cache and server on the first call.
    pub(super) async fn open_file(&self, file: &str) -> Result<Option<Rc<HttpFile<T>>>> {
        if !is_inside(file) {
            let reason = "the path leads outside the model's folder".to_string();
            return Err(Error::ModelName {
                name: file.to_string(),
                reason,
            });
        }
        if let Some(known) = self.files.borrow().get(file) {
            return Ok(known.clone());
        }
        self.remote.progress.file(file);
        let entry = match self.cached_file(file).await? {
            Some(found) => found,
            None => self.served_file(file).await?,
        };
        let entry = entry.map(Rc::new);
        self.files
            .borrow_mut()
            .insert(file.to_string(), entry.clone());
        Ok(entry)
    }

    fn new_file(
        &self,
        file: &str,
        identity: FileValidator,
        stored: SortedSet<u64>,
        from_cache: bool,
    ) -> HttpFile<T> {
        HttpFile {
            url: self.url(file),
            identity,
            stored: RefCell::new(stored),
            manifest_stale: Cell::new(false),
            from_cache,
            first_bytes: None,
            body: RefCell::new(None),
            supports_ranges: Cell::new(true),
            reported_bytes: Cell::new(0),
            hashed: Cell::new((0, INITIAL_STATE)),
            sha256: RefCell::default(),
            fetched: Cell::new(false),
        }
    }

    /// The file's state from the cache, if still valid. The inner `None` means that the server does
    /// not have the file.
    async fn cached_file(&self, file: &str) -> Result<Option<Option<HttpFile<T>>>> {
        let Some(shelf) = &self.cache else {
            return Ok(None);
        };
        let Some(manifest) = shelf.manifest(file).await else {
            return Ok(None);
        };
        let same_commit = manifest.commit.is_some() && manifest.commit == *self.commit.borrow();
        let usable = match &manifest.content {
            _ if self.trust_cache.get() || same_commit => true,
            Some(content) => match self.remote.head(&self.url(file), false).await {
                Ok(head) => {
                    let same = head.validator.is_some()
                        && head.validator == content.validator
                        && head.size.is_none_or(|size| size == content.size);
                    if same && manifest.commit != *self.commit.borrow() {
                        let renewed = FileManifest::new(self.commit(), Some(content.clone()));
                        self.record_write(shelf.put_manifest(file, &renewed).await);
                    }
                    same
                }
                Err(error @ Error::Aborted { .. }) => return Err(error),
                Err(Error::NotFound { .. }) => false,
                Err(error) => {
                    self.trust_cached_commit(&error);
                    true
                }
            },
            None => false,
        };
        // Parts of another size, from another engine version, cannot be used.
        if !usable
            || manifest
                .content
                .as_ref()
                .is_some_and(|c| c.part_size != self.part_size)
        {
            return Ok(None);
        }
        let content = manifest.content;
        Ok(Some(content.map(|content| self.stored_file(file, content))))
    }

    /// The state of a file whose cached content is used.
    fn stored_file(&self, file: &str, content: CachedFile) -> HttpFile<T> {
        let sha256 = RefCell::new(content.sha256.clone());
        HttpFile {
            sha256,
            ..self.new_file(file, content.identity(), content.parts, true)
        }
    }

    /// Handles a file that the server denies twice. A captive portal or a deployment answers 404 or
    /// a page for files that exist, so the cached content stays, and is used with a warning unless
    /// the server is known to serve the model without the file.
    async fn denied_file(&self, file: &str, error: Error) -> Result<Option<HttpFile<T>>> {
        if let Some(shelf) = &self.cache {
            let recorded = shelf.manifest(file).await;
            let absent = FileManifest::new(self.commit(), None);
            let is_news = recorded.as_ref() != Some(&absent);
            let was_absent = recorded.as_ref().is_some_and(FileManifest::is_absent);
            let content = recorded.and_then(|m| m.content);
            if let Some(content) = content.filter(|c| c.part_size == self.part_size)
                && !self.is_gone(file, &error, shelf).await?
            {
                self.trust_cached_commit(&error);
                return Ok(Some(self.stored_file(file, content)));
            }
            // No parts are stored of a file that was absent.
            if is_news && (was_absent || !shelf.has_parts(file).await) {
                self.record_write(shelf.put_manifest(file, &absent).await);
            }
        }
        self.not_found_errors
            .borrow_mut()
            .insert(file.to_string(), error);
        Ok(None)
    }

    /// Whether a cached file that the server denies is really gone. The Hub says so by its error
    /// code. Of other servers, a 404 for configuration or weights is not believed; of other files,
    /// it is if the server still serves another cached file of the model.
    async fn is_gone(&self, file: &str, error: &Error, shelf: &SourceCache<S>) -> Result<bool> {
        let Error::NotFound { answer, .. } = error else {
            return Ok(false);
        };
        if answer.ends_with(NO_ENTRY_CODE) {
            return Ok(true);
        }
        if answer != PAGE_ANSWER && is_essential(file) {
            // The weights may have been split into shards.
            return Ok(file == SINGLE_FILE_NAME
                && self.is_served(&self.url(INDEX_FILE_NAME)).await?.is_some());
        }
        let files = shelf.files().await;
        let others = files.into_iter().filter(|other| other != file);
        for other in others.take(MAX_PROBED_FILES) {
            let Some(content) = shelf.manifest(&other).await.and_then(|m| m.content) else {
                continue;
            };
            let served = self.is_served(&self.url(&other)).await?;
            if served.is_some_and(|head| head.size.is_none_or(|size| size == content.size)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Asks for a file's metadata once; `None` if the server does not answer with a file.
    async fn is_served(&self, url: &str) -> Result<Option<HeadReply>> {
        match self.remote.head(url, false).await {
            Ok(head) => Ok(Some(head)),
            Err(error @ Error::Aborted { .. }) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Requests the file's first bytes, and takes length, validator and commit from the response.
    async fn served_file(&self, file: &str) -> Result<Option<HttpFile<T>>> {
        for _ in 0..MAX_RESTARTS {
            match self.first_bytes(file).await {
                Ok((identity, first, reader)) => {
                    let ranges = reader.supports_ranges;
                    let mut entry = self.new_file(file, identity, SortedSet::new(), false);
                    if let (Some(shelf), true) = (&self.cache, entry.identity.validator.is_some()) {
                        let stored = shelf
                            .find_stored_parts(file, &entry.identity, self.part_size)
                            .await;
                        entry.from_cache = !stored.is_empty();
                        entry.stored = RefCell::new(stored);
                    }
                    entry.first_bytes = Some(first);
                    entry.manifest_stale.set(true);
                    entry.supports_ranges.set(ranges);
                    entry.body = RefCell::new((!ranges).then_some(reader));
                    return Ok(Some(entry));
                }
                Err(ReadFault::Failed(error @ Error::NotFound { .. })) => {
                    return self.denied_file(file, error).await;
                }
                Err(ReadFault::Failed(error)) => {
                    let offline =
                        matches!(error, Error::Network { .. } | Error::Unreachable { .. });
                    if offline && self.was_absent(file).await {
                        self.trust_cached_commit(&error);
                        return Ok(None);
                    }
                    return Err(error);
                }
                Err(ReadFault::Changed) => {}
            }
        }
        Err(Error::Changed {
            file: self.url(file),
        })
    }

    /// Whether an earlier load found that the server has no such file.
    async fn was_absent(&self, file: &str) -> bool {
        let Some(shelf) = &self.cache else {
            return false;
        };
        shelf
            .manifest(file)
            .await
            .as_ref()
            .is_some_and(FileManifest::is_absent)
    }

    async fn first_bytes(
        &self,
        file: &str,
    ) -> Result<(FileValidator, Chunk, RangeReader<T>), ReadFault> {
        let url = self.url(file);
        let wanted = FIRST_REQUEST_BYTES.min(self.part_size);
        let mut reader = RangeReader::new(self.remote.clone(), url.clone(), 0, Some(wanted), None);
        let mut buffer = ChunkBuffer::new(wanted as usize);
        reader.fill(&mut buffer, &|_| ()).await?;
        let mut first = buffer.finish();
        if reader.identity.is_none() && !reader.supports_ranges {
            // The response is the whole file, and only its end gives the length.
            let mut chunks = vec![first];
            reader.clear_end();
            while let Some(chunk) = reader.next(usize::MAX).await? {
                chunks.push(chunk);
                if reader.pos > MAX_UNKNOWN_LENGTH_BYTES {
                    return Err(ReadFault::Failed(self.unknown_length_error(&url)));
                }
            }
            first = concat_chunks(&chunks);
        }
        let mut identity = match reader.identity.clone() {
            Some(identity) => identity,
            None => {
                let head = self.remote.head(&url, true).await?;
                let size = head.size.ok_or_else(|| self.unknown_length_error(&url))?;
                FileValidator {
                    size,
                    validator: reader.validator.clone(),
                }
            }
        };
        if !reader.range_confirmed {
            self.confirm_ranges(&reader, &identity, &first).await?;
        }
        if identity.validator.is_none() {
            // A commit has exactly one content, so the commit can stand in for a validator.
            identity.validator = self.commit().map(|commit| format!("commit {commit}"));
        }
        Ok((identity, first, reader))
    }

    /// Requests a few of the known bytes again, where the browser hides Content-Range: a proxy may
    /// send another range than the requested one.
    async fn confirm_ranges(
        &self,
        reader: &RangeReader<T>,
        identity: &FileValidator,
        first: &Chunk,
    ) -> Result<(), ReadFault> {
        let known = first.to_vec();
        let (start, end) = (known.len() / 2, known.len() / 2 + known.len().min(64) / 2);
        if identity.size <= known.len() as u64 || start == 0 {
            return Ok(());
        }
        let server = self.remote.clone();
        let url = reader.url().to_string();
        let (from, to) = (start as u64, Some(end as u64));
        let mut probe = RangeReader::new(server, url, from, to, Some(identity.clone()));
        let mut buffer = ChunkBuffer::new(end - start);
        probe.fill(&mut buffer, &|_| ()).await?;
        if known.get(start..end) == Some(buffer.finish().to_vec().as_slice()) {
            return Ok(());
        }
        Err(probe.range_error("the server sent other bytes than the requested range"))
    }

    fn unknown_length_error(&self, url: &str) -> Error {
        let reason = "the server sends neither Content-Length nor Content-Range, or does not expose them (CORS)";
        Error::Network {
            url: url.to_string(),
            reason: reason.to_string(),
        }
    }
}
