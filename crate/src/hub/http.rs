//! A repository of the Hub or a folder of any web server: what is cached, what is still true of it, what must be fetched.
//!
//! When a cached file is used without asking, and when the server is asked:
//! - the revision is a commit: it cannot have changed, nothing is asked;
//! - a repository at a branch or tag: one HEAD for config.json tells the commit. The same commit as last time: nothing
//!   else is asked. Another, or a server that names none: one HEAD per file compares ETag (or date) and length;
//! - a folder: one HEAD per file;
//! - `revalidate: false`, or a server that cannot be reached: the cache is believed (the latter leaves a warning).
//!
//! No answer to HEAD has a body, so an unchanged model is loaded again without a byte of content over the network.

use crate::util::map::SortedSet;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::abort::AbortFlag;
use super::cache::{Content, Manifest, Shelf, Store, StoreError};
use super::chunk::{Chunk, ChunkBuffer};
use super::model_ref::{DEFAULT_ENDPOINT, ModelRef, is_commit, is_inside, is_revision, percent_encode};
use super::parts::{FileInfo, PartSource, join};
use super::progress::Progress;
use super::remote::{Fault, Identity, RangeReader, Remote};
use super::transport::Transport;
use super::writes::Writes;
use super::{HubOptions, parts};
use crate::{Error, Result};

/// The first request for a file asks for so much: all of most configuration files, the header of most safetensors files.
const FIRST_BYTES: u64 = 256 << 10;
/// A list of files is not read beyond this.
const MAX_LIST: usize = 16 << 20;
/// What is known of a file that an earlier load did not find.
const REMEMBERED: &str = "the server had no such file when it was last asked";
/// A file of unknown length is not read beyond this.
const MAX_UNKNOWN: u64 = 256 << 20;
/// Parts on their way into the cache: the browser holds a copy of each.
const WRITES: usize = 4;

/// A file as it is during one load.
struct Entry<T: Transport> {
    url: String,
    identity: Identity,
    /// Parts that are in the cache.
    stored: RefCell<SortedSet<u64>>,
    /// The manifest does not yet say what `stored` says.
    unsealed: Cell<bool>,
    from_cache: bool,
    /// The first bytes, from the request that found out about the file.
    first: Option<Chunk>,
    /// The body that `first` came from, where the server ignores ranges and it holds the rest of the file.
    body: RefCell<Option<RangeReader<T>>>,
    ranges: Cell<bool>,
    /// Bytes reported as progress.
    counted: Cell<u64>,
    /// The SHA-256 that the stored parts were found to have.
    sha256: RefCell<Option<String>>,
    /// Whether some of it came over the network in this load.
    fetched: Cell<bool>,
}

/// What came of a part that was to go into the cache.
type Written<T> = (Rc<Entry<T>>, u64, Result<(), StoreError>);

/// Files of a web server, cached in `S`.
pub struct HttpSource<T: Transport, S: Store> {
    remote: Rc<Remote<T>>,
    /// As [`super::CachedModel::source`] and messages name it.
    name: String,
    /// Where the Hub's API lists the repository's files.
    api: Option<String>,
    /// The folder's address with a slash at its end; a branch is replaced by its commit once that is known.
    base: RefCell<String>,
    commit: RefCell<Option<String>>,
    shelf: Option<Rc<Shelf<S>>>,
    /// Parts on their way into the cache.
    writes: Writes<Written<T>>,
    /// Manifests are believed without asking.
    trust: Cell<bool>,
    part_size: u64,
    streams: usize,
    files: RefCell<HashMap<String, Option<Rc<Entry<T>>>>>,
    /// What the server said of the files that it does not have.
    absent: RefCell<HashMap<String, Error>>,
    /// What the Hub's API says of the repository's files, once it was asked.
    listed: RefCell<Option<Rc<serde_json::Value>>>,
    warnings: RefCell<Vec<Error>>,
}

impl<T: Transport + 'static, S: Store + 'static> HttpSource<T, S> {
    /// Looks the model up: which commit its revision is, and whether the cache may be believed. `store`: `None` to keep
    /// nothing between visits.
    pub async fn open(
        model: &ModelRef,
        options: &HubOptions,
        transport: T,
        store: Option<S>,
        abort: AbortFlag,
        progress: Progress,
    ) -> Result<HttpSource<T, S>> {
        let address = Address::of(model, options)?;
        let pinned = address.revision.as_deref().is_some_and(is_commit);
        let source = HttpSource {
            remote: Rc::new(Remote {
                transport,
                token: options.token.clone().filter(|t| !t.is_empty()),
                retry: options.retry.clone(),
                abort,
                progress,
                not_before: Cell::new(0.0),
                throttled: Cell::new(false),
                reached: Cell::new(false),
            }),
            shelf: store.map(|store| Rc::new(Shelf::new(store, &address.name))),
            writes: Writes::new(WRITES),
            base: RefCell::new(address.base(address.revision.as_deref())),
            commit: RefCell::new(address.revision.clone().filter(|_| pinned)),
            name: address.name.clone(),
            api: address.api.clone(),
            trust: Cell::new(pinned || !options.revalidate),
            part_size: options.part_size.max(1),
            streams: options.streams.clamp(1, 8),
            files: RefCell::default(),
            absent: RefCell::default(),
            listed: RefCell::default(),
            warnings: RefCell::default(),
        };
        if address.revision.is_some() && !pinned {
            source.resolve_commit(&address).await?;
        }
        Ok(source)
    }

    /// Finds the commit of a branch or tag, so that all files of a load are of one state of the repository.
    async fn resolve_commit(&self, address: &Address) -> Result<()> {
        let known = match &self.shelf {
            Some(shelf) => shelf.manifest("config.json").await,
            None => None,
        };
        let commit = if let Some(known) = known.as_ref().filter(|_| self.trust.get()) {
            known.commit.clone()
        } else {
            let url = self.url("config.json");
            match self.remote.head(&url, known.is_none()).await {
                Ok(head) => head.commit,
                // The repository may have no config.json, or not exist: the first file that is needed will tell.
                Err(Error::NotFound { .. }) => None,
                Err(error @ Error::Aborted { .. }) => return Err(error),
                Err(error) => {
                    let Some(known) = known else { return Err(error) };
                    self.believe(&error);
                    known.commit
                }
            }
        };
        if let Some(commit) = commit.filter(|c| is_commit(c)) {
            *self.base.borrow_mut() = address.base(Some(&commit));
            *self.commit.borrow_mut() = Some(commit);
        }
        Ok(())
    }

    /// The names of the repository's files, as the Hub's API lists them; none for a folder, or where nobody answers.
    pub async fn list(&self) -> Result<Vec<String>> {
        let list = self.listed().await?;
        let files = list["siblings"].as_array().into_iter().flatten();
        Ok(files.filter_map(|file| file["rfilename"].as_str()).map(str::to_string).collect())
    }

    /// The SHA-256 of a file as the Hub names it: of those that are large.
    async fn oid(&self, file: &str) -> Result<Option<String>> {
        let list = self.listed().await?;
        let mut files = list["siblings"].as_array().into_iter().flatten();
        let found = files.find(|each| each["rfilename"].as_str() == Some(file));
        Ok(found.and_then(|found| found["lfs"]["sha256"].as_str()).map(str::to_ascii_lowercase))
    }

    /// What the Hub's API says of the commit's files; null where nobody answers.
    async fn listed(&self) -> Result<Rc<serde_json::Value>> {
        if let Some(known) = &*self.listed.borrow() {
            return Ok(known.clone());
        }
        let list = Rc::new(self.ask_for_list().await?);
        *self.listed.borrow_mut() = Some(list.clone());
        Ok(list)
    }

    async fn ask_for_list(&self) -> Result<serde_json::Value> {
        let Some(api) = &self.api else { return Ok(serde_json::Value::Null) };
        let revision = self.commit();
        let url = match (&revision, api.rsplit_once('/')) {
            (Some(commit), Some((front, _))) => format!("{front}/{commit}?blobs=true"),
            _ => format!("{api}?blobs=true"),
        };
        let mut reader = RangeReader::new(self.remote.clone(), url, 0, None, None);
        reader.unbound();
        let mut text = Vec::new();
        loop {
            match reader.next(usize::MAX).await {
                Ok(Some(chunk)) if text.len() + chunk.len() <= MAX_LIST => text.extend(chunk.to_vec()),
                Ok(None) => break,
                Err(Fault::Failed(error @ Error::Aborted { .. })) => return Err(error),
                // The list is a help, not a file of the model.
                Ok(_) | Err(_) => return Ok(serde_json::Value::Null),
            }
        }
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// Compares what this load fetched with the SHA-256 that the Hub names. What differs is forgotten.
    ///
    /// # Errors
    /// `Network` when a file is not what the Hub says.
    pub async fn verify(&self) -> Result<()> {
        let Some(shelf) = &self.shelf else { return Ok(()) };
        if self.api.is_none() {
            return Ok(());
        }
        let entries: Vec<_> = self.files.borrow().iter().filter_map(|(f, e)| Some((f.clone(), e.clone()?))).collect();
        for (file, entry) in entries {
            if !entry.fetched.get() || entry.sha256.borrow().is_some() || !self.is_whole(&entry) {
                continue;
            }
            let Some(wanted) = self.oid(&file).await? else { continue };
            let Some(found) = shelf.hash(&file, &entry.identity, self.part_size).await else { continue };
            if found == wanted {
                *entry.sha256.borrow_mut() = Some(wanted);
                entry.unsealed.set(true);
                self.seal(&file).await;
                continue;
            }
            self.forget(&file).await;
            let reason = format!("what came has the SHA-256 {found}, and the Hub says {wanted}");
            return Err(Error::Network { url: self.url(&file), reason });
        }
        Ok(())
    }

    /// Forgets what in the cache is wrong, or may be for all that is known, of what this load took from there, files and that there
    /// are none: whether there was any.
    pub async fn heal(&self) -> bool {
        let Some(shelf) = &self.shelf else { return false };
        let entries: Vec<_> = self.files.borrow().iter().filter_map(|(f, e)| Some((f.clone(), e.clone()?))).collect();
        let absent: Vec<_> = self.files.borrow().iter().filter(|(_, e)| e.is_none()).map(|(f, _)| f.clone()).collect();
        let mut healed = false;
        for file in absent.iter().filter(|file| !self.absent.borrow().contains_key(*file)) {
            shelf.forget(file).await;
            healed = true;
        }
        for (file, entry) in entries.into_iter().filter(|(_, entry)| entry.from_cache) {
            let known = entry.sha256.borrow().clone();
            if known.is_some() && shelf.hash(&file, &entry.identity, self.part_size).await == known {
                continue;
            }
            self.forget(&file).await;
            healed = true;
        }
        healed
    }

    fn is_whole(&self, entry: &Entry<T>) -> bool {
        let parts = entry.identity.size.div_ceil(self.part_size);
        parts > 0 && entry.stored.borrow().len() as u64 == parts
    }

    /// The server cannot be asked: the cache is used as it is, for the rest of this load.
    fn believe(&self, error: &Error) {
        if !self.trust.replace(true) {
            self.warn(Error::Unverified { place: self.name.clone(), reason: error.to_string() });
        }
    }

    pub(crate) fn warn(&self, warning: Error) {
        self.warnings.borrow_mut().push(warning);
    }

    /// What went wrong without stopping the load: a full cache, a server that could not be asked.
    pub fn warnings(&self) -> Vec<Error> {
        self.warnings.borrow().clone()
    }

    /// The commit that is being read, where the server named one.
    pub fn commit(&self) -> Option<String> {
        self.commit.borrow().clone()
    }

    fn url(&self, file: &str) -> String {
        format!("{}{}", self.base.borrow(), percent_encode(file, true))
    }

    /// The file's state; asks cache and server on the first call.
    async fn entry(&self, file: &str) -> Result<Option<Rc<Entry<T>>>> {
        if !is_inside(file) {
            let reason = "it points out of the model's folder".to_string();
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
            sha256: RefCell::default(),
            fetched: Cell::new(false),
        }
    }

    /// The file as the cache knows it, if that is still true. The inner `None`: the server has no such file.
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
        // Parts of another size, from another version of the engine, are of no use.
        if !usable || manifest.content.as_ref().is_some_and(|c| c.part_size != self.part_size) {
            return Ok(None);
        }
        Ok(Some(manifest.content.map(|content| {
            let sha256 = RefCell::new(content.sha256.clone());
            Entry { sha256, ..self.make_entry(file, content.identity(), content.parts, true) }
        })))
    }

    /// Asks the server for the file's first bytes and with them for all that there is to know.
    async fn served_entry(&self, file: &str) -> Result<Option<Entry<T>>> {
        for _ in 0..parts::RESTARTS {
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
            // The whole file is coming and only its end tells how long it is.
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
            // Of one commit there is one content; the server need not say so.
            identity.validator = self.commit().map(|commit| format!("commit {commit}"));
        }
        Ok((identity, first, reader))
    }

    fn no_length(&self, url: &str) -> Error {
        let reason = "the server tells neither Content-Length nor Content-Range, or does not expose them to the page";
        Error::Network { url: url.to_string(), reason: reason.to_string() }
    }

    /// A failed write ends the caching of this load, not the load.
    fn note(&self, written: Result<(), StoreError>) -> bool {
        let warning = match written {
            Ok(()) => return true,
            Err(StoreError::Quota(reason)) => Error::Quota { reason },
            Err(StoreError::Other(reason)) => Error::Cache { reason },
        };
        if !self.warnings.borrow().iter().any(|w| w.code() == warning.code()) {
            self.warn(warning);
        }
        false
    }

    /// Begins to write a part; waits where too many are on their way.
    async fn store(&self, shelf: Rc<Shelf<S>>, entry: Rc<Entry<T>>, file: &str, part: u64, chunk: &Chunk) {
        let (file, chunk, part_size) = (file.to_string(), chunk.clone(), self.part_size);
        let write = async move {
            let written = shelf.put_part(&file, &entry.identity, part_size, part, &chunk).await;
            (entry, part, written)
        };
        self.written(self.writes.begin(write).await);
    }

    fn written(&self, parts: Vec<Written<T>>) {
        for (entry, part, written) in parts {
            if self.note(written) {
                entry.stored.borrow_mut().insert(part);
                entry.unsealed.set(true);
            }
        }
    }

    fn may_store(&self) -> bool {
        !self.warnings.borrow().iter().any(|w| matches!(w, Error::Quota { .. } | Error::Cache { .. }))
    }

    fn count(&self, entry: &Entry<T>, bytes: u64, from_cache: bool) {
        entry.counted.set(entry.counted.get() + bytes);
        self.remote.progress.add(bytes, from_cache);
    }

    /// The reader for a part that begins at `pos`: the one that has just arrived there, or a new one.
    fn reader_at(&self, entry: &Entry<T>, pos: u64, end: u64, reader: &mut Option<RangeReader<T>>) {
        if reader.as_ref().is_some_and(|r| r.pos == pos) {
            return;
        }
        let body = entry.body.borrow_mut().take().filter(|body| body.pos == pos);
        *reader = Some(match body {
            Some(mut body) => {
                body.extend(end);
                body
            }
            None => {
                // A validator that was derived from the commit is not one that an answer can show.
                let shown = entry.identity.validator.clone().filter(|v| !v.starts_with("commit "));
                let identity = Identity { size: entry.identity.size, validator: shown };
                RangeReader::new(self.remote.clone(), entry.url.clone(), pos, Some(end), Some(identity))
            }
        });
    }

    async fn fetch(
        &self,
        entry: &Entry<T>,
        range: Range<u64>,
        run_end: u64,
        reader: &mut Option<RangeReader<T>>,
        counts: bool,
    ) -> Result<Chunk, Fault> {
        let count = |bytes| {
            if counts {
                self.count(entry, bytes, false);
            }
        };
        let mut buffer = ChunkBuffer::new((range.end - range.start) as usize);
        if let Some(first) = entry.first.as_ref().filter(|first| range.start < first.len() as u64) {
            let known = first.slice(range.start as usize..range.end.min(first.len() as u64) as usize);
            buffer.push(&known);
            count(known.len() as u64);
        }
        if buffer.missing() > 0 {
            let pos = range.end - buffer.missing() as u64;
            self.reader_at(entry, pos, run_end, reader);
            if let Some(reader) = reader.as_mut() {
                reader.fill(&mut buffer, count).await?;
                entry.ranges.set(reader.ranges);
            }
        }
        if buffer.missing() > 0 {
            let reason = format!("{} bytes are missing at its end", buffer.missing());
            return Err(Fault::Failed(Error::Network { url: entry.url.clone(), reason }));
        }
        Ok(buffer.finish())
    }

    fn known(&self, file: &str) -> Option<Rc<Entry<T>>> {
        self.files.borrow().get(file).cloned().flatten()
    }

    async fn required(&self, file: &str) -> Result<Rc<Entry<T>>, Fault> {
        let entry = self.entry(file).await?;
        entry.ok_or_else(|| Fault::Failed(self.missing(file)))
    }
}

impl<T: Transport + 'static, S: Store + 'static> PartSource for HttpSource<T, S> {
    type Reader = RangeReader<T>;

    fn place(&self) -> &str {
        &self.name
    }

    fn progress(&self) -> &Progress {
        &self.remote.progress
    }

    fn part_size(&self) -> u64 {
        self.part_size
    }

    fn streams(&self, file: &str) -> usize {
        if self.known(file).is_some_and(|e| e.ranges.get()) { self.streams } else { 1 }
    }

    fn throttled(&self) -> bool {
        self.remote.throttled.get()
    }

    fn is_stored(&self, file: &str, part: u64) -> bool {
        self.known(file).is_some_and(|e| e.stored.borrow().contains(&part))
    }

    async fn info(&self, file: &str) -> Result<Option<FileInfo>> {
        Ok(self.entry(file).await?.map(|entry| FileInfo {
            size: entry.identity.size,
            etag: entry.identity.validator.clone(),
            from_cache: entry.from_cache,
        }))
    }

    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, Fault> {
        let entry = self.required(file).await?;
        let (first, last) = (range.start / self.part_size, range.end.div_ceil(self.part_size));
        if let Some(shelf) = &self.shelf
            && (first..last).all(|part| self.is_stored(file, part))
        {
            let mut found = Vec::new();
            for part in first..last {
                found.extend(shelf.part(file, &entry.identity, self.part_size, part).await);
            }
            if found.len() as u64 == last - first {
                let begin = first * self.part_size;
                return Ok(join(&found).slice((range.start - begin) as usize..(range.end - begin) as usize));
            }
        }
        let mut reader = None;
        let chunk = self.fetch(&entry, range.clone(), range.end, &mut reader, false).await?;
        // A body that holds the whole file goes on where this ended.
        if let Some(reader) = reader.filter(|r| !r.ranges) {
            *entry.body.borrow_mut() = Some(reader);
        }
        Ok(chunk)
    }

    async fn part(
        &self,
        file: &str,
        part: u64,
        run_end: u64,
        reader: &mut Option<RangeReader<T>>,
    ) -> Result<Chunk, Fault> {
        self.remote.abort.check(&format!("loading {}", self.name))?;
        let entry = self.required(file).await?;
        self.remote.progress.file(file);
        let size = entry.identity.size;
        let at = |index: u64| (index * self.part_size).min(size);
        if let (Some(shelf), true) = (&self.shelf, self.is_stored(file, part)) {
            if let Some(chunk) = shelf.part(file, &entry.identity, self.part_size, part).await {
                self.count(&entry, chunk.len() as u64, true);
                return Ok(chunk);
            }
            entry.stored.borrow_mut().remove(&part);
            entry.sha256.borrow_mut().take();
            entry.unsealed.set(true);
        }
        entry.fetched.set(true);
        let chunk = self.fetch(&entry, at(part)..at(part + 1), at(run_end), reader, true).await?;
        if let (Some(shelf), true, true) = (&self.shelf, self.may_store(), entry.identity.validator.is_some()) {
            self.store(shelf.clone(), entry, file, part, &chunk).await;
        }
        Ok(chunk)
    }

    fn spend(&self, part: Chunk) {
        part.release();
    }

    async fn seal(&self, file: &str) {
        let (Some(shelf), Some(entry)) = (&self.shelf, self.known(file)) else { return };
        self.written(self.writes.all().await);
        if entry.identity.validator.is_none() || !entry.unsealed.replace(false) {
            return;
        }
        let content = Content {
            size: entry.identity.size,
            validator: entry.identity.validator.clone(),
            part_size: self.part_size,
            parts: entry.stored.borrow().clone(),
            sha256: entry.sha256.borrow().clone(),
        };
        if content.size == 0 || !content.parts.is_empty() {
            self.note(shelf.put_manifest(file, &Manifest::new(self.commit(), Some(content))).await);
        }
    }

    async fn forget(&self, file: &str) {
        self.written(self.writes.all().await);
        let entry = self.files.borrow_mut().remove(file).flatten();
        if let Some(entry) = entry {
            self.remote.progress.take_back(entry.counted.get());
        }
        if let Some(shelf) = &self.shelf {
            shelf.forget(file).await;
        }
    }

    fn missing(&self, file: &str) -> Error {
        let told = self.absent.borrow().get(file).cloned();
        told.unwrap_or_else(|| Error::NotFound { url: self.url(file), answer: REMEMBERED.to_string() })
    }
}

/// The address of the files of a repository's main branch, without a slash at its end; none for another revision.
#[cfg(target_arch = "wasm32")]
pub(super) fn main_branch(model: &ModelRef, options: &HubOptions) -> Option<String> {
    let address = Address::of(model, options).ok()?;
    (address.revision.as_deref() == Some("main")).then(|| format!("{}/resolve/main", address.prefix))
}

/// Where a model's files are.
struct Address {
    name: String,
    /// Everything before the revision, or the folder.
    prefix: String,
    revision: Option<String>,
    api: Option<String>,
}

impl Address {
    fn of(model: &ModelRef, options: &HubOptions) -> Result<Address> {
        match model {
            ModelRef::Repo { id, revision } => {
                let revision = options.revision.clone().or_else(|| revision.clone());
                let revision = revision.unwrap_or_else(|| "main".to_string());
                if !is_revision(&revision) {
                    let reason = format!("'{revision}' is not the name of a branch, tag or commit");
                    return Err(Error::ModelName { name: id.clone(), reason });
                }
                let endpoint = options.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT).trim_end_matches('/');
                let prefix = format!("{endpoint}/{id}");
                let api = format!("{endpoint}/api/models/{id}/revision/{}", percent_encode(&revision, false));
                let name = format!("{prefix}@{revision}");
                Ok(Address { name, prefix, revision: Some(revision), api: Some(api) })
            }
            ModelRef::Folder { url } => {
                Ok(Address { name: url.clone(), prefix: url.clone(), revision: None, api: None })
            }
            ModelRef::File { place, .. } => Address::of(place, options),
            ModelRef::Path { path } => {
                let reason = "a path on this machine is not an address".to_string();
                Err(Error::ModelName { name: path.clone(), reason })
            }
        }
    }

    fn base(&self, revision: Option<&str>) -> String {
        match revision {
            Some(revision) => format!("{}/resolve/{}/", self.prefix, percent_encode(revision, false)),
            None => format!("{}/", self.prefix),
        }
    }
}
