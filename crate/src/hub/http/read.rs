//! Reading of parts: from the cache, from the first response, or from an open connection. Does not depend on tensors.

use std::ops::Range;
use std::rc::Rc;

use super::HttpSource;
use super::entry::Entry;
use crate::hub::cache::{Content, Manifest, Store};
use crate::hub::chunk::{Chunk, ChunkBuffer};
use crate::hub::parts::{FileInfo, PartSource, join, key};
use crate::hub::progress::Progress;
use crate::hub::remote::{Fault, Identity, RangeReader};
use crate::hub::transport::Transport;
use crate::util::sha256::START;
use crate::{Error, Result};

/// Error text for a file that an earlier load did not find.
const REMEMBERED: &str = "the server did not have the file when last checked";

impl<T: Transport + 'static, S: Store + 'static> HttpSource<T, S> {
    /// Counts bytes of a part as they arrive.
    fn count(&self, entry: &Entry<T>, bytes: u64, from_cache: bool) {
        entry.counted.set(entry.counted.get() + bytes);
        self.remote.progress.add(bytes, from_cache);
    }

    /// Returns a reader for a part that starts at `pos`: the given one if its position matches, otherwise a new one.
    fn reader_at(&self, entry: &Entry<T>, pos: u64, end: u64, reader: &mut Option<RangeReader<T>>) {
        // A validator derived from the commit never appears in a response.
        let shown = entry.identity.validator.clone().filter(|v| !v.starts_with("commit "));
        let identity = Identity { size: entry.identity.size, validator: shown };
        // If the file changed and was restarted meanwhile, the reader still serves the old content.
        if reader.as_ref().is_some_and(|r| r.pos == pos && r.reads(&identity)) {
            return;
        }
        let body = entry.body.borrow_mut().take().filter(|body| body.pos == pos);
        *reader = Some(match body {
            Some(mut body) => {
                body.extend(end);
                body
            }
            None => RangeReader::new(self.remote.clone(), entry.url.clone(), pos, Some(end), Some(identity)),
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
            let reason = format!("the response ended {} bytes early", buffer.missing());
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
        // A body with the whole file continues where the first bytes ended.
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
        let key = key(self, file);
        let counts = self.remote.progress.counts(&key, part);
        if let (Some(shelf), true) = (&self.shelf, self.is_stored(file, part)) {
            if let Some(chunk) = shelf.part(file, &entry.identity, self.part_size, part).await {
                if counts {
                    self.count(&entry, chunk.len() as u64, !self.remote.progress.was_fetched(&key, part));
                    self.remote.progress.came(&key, part, true);
                }
                return Ok(chunk);
            }
            entry.stored.borrow_mut().remove(&part);
            entry.sha256.borrow_mut().take();
            entry.hashed.set((0, START));
            entry.unsealed.set(true);
        }
        entry.fetched.set(true);
        let chunk = self.fetch(&entry, at(part)..at(part + 1), at(run_end), reader, counts).await?;
        self.remote.progress.came(&key, part, false);
        if let (Some(shelf), true, true) = (&self.shelf, self.may_store(), entry.identity.validator.is_some()) {
            self.store(shelf.clone(), entry, file, part, &chunk).await;
        }
        Ok(chunk)
    }

    fn spend(&self, part: Chunk) {
        part.release();
    }

    async fn seal(&self, file: &str, last: bool) {
        if last && self.defers.get() {
            self.later.borrow_mut().push(file.to_string());
            return;
        }
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
            self.remote.progress.forget(&key(self, file));
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
