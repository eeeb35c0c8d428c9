//! State of a file during one load: from the cache if still valid, otherwise from the server. Reads
//! no bytes beyond the first request.

use crate::util::map::SortedSet;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::HttpSource;
use crate::hub::cache::{FileManifest, KeyValueStore};
use crate::hub::chunk::{Chunk, ChunkBuffer};
use crate::hub::model_ref::is_inside;
use crate::hub::parts::{MAX_RESTARTS, concat_chunks};
use crate::hub::remote::{FileValidator, RangeReader, ReadFault};
use crate::hub::transport::Transport;
use crate::util::sha256::INITIAL_STATE;
use crate::{Error, Result};

/// Bytes of the first request for a file. Covers most configuration files and most safetensors
/// headers.
const FIRST_REQUEST_BYTES: u64 = 256 << 10;
/// Maximum bytes read of a file of unknown length.
const MAX_UNKNOWN_LENGTH_BYTES: u64 = 256 << 20;

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
        Ok(Some(manifest.content.map(|content| {
            let sha256 = RefCell::new(content.sha256.clone());
            HttpFile {
                sha256,
                ..self.new_file(file, content.identity(), content.parts, true)
            }
        })))
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
                    self.not_found_errors
                        .borrow_mut()
                        .insert(file.to_string(), error);
                    if let Some(shelf) = &self.cache {
                        shelf.evict(file).await;
                        self.record_write(
                            shelf
                                .put_manifest(file, &FileManifest::new(self.commit(), None))
                                .await,
                        );
                    }
                    return Ok(None);
                }
                Err(ReadFault::Failed(error)) => return Err(error),
                Err(ReadFault::Changed) => {}
            }
        }
        Err(Error::Changed {
            file: self.url(file),
        })
    }

    async fn first_bytes(
        &self,
        file: &str,
    ) -> Result<(FileValidator, Chunk, RangeReader<T>), ReadFault> {
        let url = self.url(file);
        let wanted = FIRST_REQUEST_BYTES.min(self.part_size);
        let mut reader = RangeReader::new(self.remote.clone(), url.clone(), 0, Some(wanted), None);
        let mut buffer = ChunkBuffer::new(wanted as usize);
        reader.fill(&mut buffer, |_| ()).await?;
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
        if identity.validator.is_none() {
            // A commit has exactly one content, so the commit can stand in for a validator.
            identity.validator = self.commit().map(|commit| format!("commit {commit}"));
        }
        Ok((identity, first, reader))
    }

    fn unknown_length_error(&self, url: &str) -> Error {
        let reason = "the server sends neither Content-Length nor Content-Range, or does not expose them (CORS)";
        Error::Network {
            url: url.to_string(),
            reason: reason.to_string(),
        }
    }
}
