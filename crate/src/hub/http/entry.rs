//! State of a file during one load: from the cache if still valid, otherwise from the server. Reads no bytes beyond the
//! first request.

use crate::util::map::SortedSet;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::HttpSource;
use crate::hub::cache::{Manifest, Store};
use crate::hub::chunk::{Chunk, ChunkBuffer};
use crate::hub::model_ref::is_inside;
use crate::hub::parts::{RESTARTS, join};
use crate::hub::remote::{Fault, Identity, RangeReader};
use crate::hub::transport::Transport;
use crate::util::sha256::START;
use crate::{Error, Result};

/// Bytes of the first request for a file. Covers most configuration files and most safetensors headers.
const FIRST_BYTES: u64 = 256 << 10;
/// Maximum bytes read of a file of unknown length.
const MAX_UNKNOWN: u64 = 256 << 20;

/// State of a file during one load.
pub(super) struct Entry<T: Transport> {
    pub url: String,
    pub identity: Identity,
    /// Parts in the cache.
    pub stored: RefCell<SortedSet<u64>>,
    /// Whether `stored` has changes that the manifest lacks.
    pub unsealed: Cell<bool>,
    pub from_cache: bool,
    /// The first bytes, from the request that opened the file.
    pub first: Option<Chunk>,
    /// The rest of the body of `first`, if the server ignores ranges and sends the whole file.
    pub body: RefCell<Option<RangeReader<T>>>,
    pub ranges: Cell<bool>,
    /// Bytes reported to the progress.
    pub counted: Cell<u64>,
    /// Number of parts hashed in order, and the SHA-256 state after them.
    pub hashed: Cell<(u64, [u32; 8])>,
    /// The verified SHA-256 of the stored parts.
    pub sha256: RefCell<Option<String>>,
    /// Whether this load downloaded some of it.
    pub fetched: Cell<bool>,
}

impl<T: Transport + 'static, S: Store + 'static> HttpSource<T, S> {
    /// The file's state; asks cache and server on the first call.
    pub(super) async fn entry(&self, file: &str) -> Result<Option<Rc<Entry<T>>>> {
        if !is_inside(file) {
            let reason = "the path leads outside the model's folder".to_string();
            return Err(Error::ModelName { name: file.to_string(), reason });
        }
        if let Some(known) = self.files.borrow().get(file) {
            return Ok(known.clone());
        }
        self.remote.progress.file(file);
        let entry = match self.cached_entry(file).await? {
            Some(found) => found,
            None => self.served_entry(file).await?,
        };
        let entry = entry.map(Rc::new);
        self.files.borrow_mut().insert(file.to_string(), entry.clone());
        Ok(entry)
    }

    fn make_entry(&self, file: &str, identity: Identity, stored: SortedSet<u64>, from_cache: bool) -> Entry<T> {
        Entry {
            url: self.url(file),
            identity,
            stored: RefCell::new(stored),
            unsealed: Cell::new(false),
            from_cache,
            first: None,
            body: RefCell::new(None),
            ranges: Cell::new(true),
            counted: Cell::new(0),
            hashed: Cell::new((0, START)),
            sha256: RefCell::default(),
            fetched: Cell::new(false),
        }
    }

    /// The file's state from the cache, if still valid. The inner `None` means that the server does not have the file.
    async fn cached_entry(&self, file: &str) -> Result<Option<Option<Entry<T>>>> {
        let Some(shelf) = &self.shelf else { return Ok(None) };
        let Some(manifest) = shelf.manifest(file).await else { return Ok(None) };
        let same_commit = manifest.commit.is_some() && manifest.commit == *self.commit.borrow();
        let usable = match &manifest.content {
            _ if self.trust.get() || same_commit => true,
            Some(content) => match self.remote.head(&self.url(file), false).await {
                Ok(head) => {
                    let same = head.validator.is_some()
                        && head.validator == content.validator
                        && head.size.is_none_or(|size| size == content.size);
                    if same && manifest.commit != *self.commit.borrow() {
                        let renewed = Manifest::new(self.commit(), Some(content.clone()));
                        self.note(shelf.put_manifest(file, &renewed).await);
                    }
                    same
                }
                Err(error @ Error::Aborted { .. }) => return Err(error),
                Err(Error::NotFound { .. }) => false,
                Err(error) => {
                    self.believe(&error);
                    true
                }
            },
            None => false,
        };
        // Parts of another size, from another engine version, cannot be used.
        if !usable || manifest.content.as_ref().is_some_and(|c| c.part_size != self.part_size) {
            return Ok(None);
        }
        Ok(Some(manifest.content.map(|content| {
            let sha256 = RefCell::new(content.sha256.clone());
            Entry { sha256, ..self.make_entry(file, content.identity(), content.parts, true) }
        })))
    }

    /// Requests the file's first bytes, and takes length, validator and commit from the response.
    async fn served_entry(&self, file: &str) -> Result<Option<Entry<T>>> {
        for _ in 0..RESTARTS {
            match self.first_bytes(file).await {
                Ok((identity, first, reader)) => {
                    let ranges = reader.ranges;
                    let mut entry = self.make_entry(file, identity, SortedSet::new(), false);
                    if let (Some(shelf), true) = (&self.shelf, entry.identity.validator.is_some()) {
                        let stored = shelf.left_over(file, &entry.identity, self.part_size).await;
                        entry.from_cache = !stored.is_empty();
                        entry.stored = RefCell::new(stored);
                    }
                    entry.first = Some(first);
                    entry.unsealed.set(true);
                    entry.ranges.set(ranges);
                    entry.body = RefCell::new((!ranges).then_some(reader));
                    return Ok(Some(entry));
                }
                Err(Fault::Failed(error @ Error::NotFound { .. })) => {
                    self.absent.borrow_mut().insert(file.to_string(), error);
                    if let Some(shelf) = &self.shelf {
                        shelf.forget(file).await;
                        self.note(shelf.put_manifest(file, &Manifest::new(self.commit(), None)).await);
                    }
                    return Ok(None);
                }
                Err(Fault::Failed(error)) => return Err(error),
                Err(Fault::Changed) => {}
            }
        }
        Err(Error::Changed { file: self.url(file) })
    }

    async fn first_bytes(&self, file: &str) -> Result<(Identity, Chunk, RangeReader<T>), Fault> {
        let url = self.url(file);
        let wanted = FIRST_BYTES.min(self.part_size);
        let mut reader = RangeReader::new(self.remote.clone(), url.clone(), 0, Some(wanted), None);
        let mut buffer = ChunkBuffer::new(wanted as usize);
        reader.fill(&mut buffer, |_| ()).await?;
        let mut first = buffer.finish();
        if reader.identity.is_none() && !reader.ranges {
            // The response is the whole file, and only its end gives the length.
            let mut chunks = vec![first];
            reader.unbound();
            while let Some(chunk) = reader.next(usize::MAX).await? {
                chunks.push(chunk);
                if reader.pos > MAX_UNKNOWN {
                    return Err(Fault::Failed(self.no_length(&url)));
                }
            }
            first = join(&chunks);
        }
        let mut identity = match reader.identity.clone() {
            Some(identity) => identity,
            None => {
                let head = self.remote.head(&url, true).await?;
                let size = head.size.ok_or_else(|| self.no_length(&url))?;
                Identity { size, validator: reader.validator.clone() }
            }
        };
        if identity.validator.is_none() {
            // A commit has exactly one content, so the commit can stand in for a validator.
            identity.validator = self.commit().map(|commit| format!("commit {commit}"));
        }
        Ok((identity, first, reader))
    }

    fn no_length(&self, url: &str) -> Error {
        let reason = "the server sends neither Content-Length nor Content-Range, or does not expose them (CORS)";
        Error::Network { url: url.to_string(), reason: reason.to_string() }
    }
}
