//! Reading of parts: from the cache, from the first response, or from an open connection. Does not
//! depend on tensors.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use super::HttpSource;
use super::http_file::HttpFile;
use crate::format::CheckpointFile;
use crate::hub::cache::{CachedFile, FileManifest, KeyValueStore};
use crate::hub::chunk::{Chunk, ChunkBuffer};
use crate::hub::parts::{FileInfo, PartSource, concat_chunks, progress_key};
use crate::hub::progress::Progress;
use crate::hub::remote::{FileValidator, RangeReader, ReadFault};
use crate::hub::transport::Transport;
use crate::util::sha256::INITIAL_STATE;
use crate::{Error, Result};
use futures_util::future::{join, join_all};

/// Error text for a file that an earlier load did not find.
const CACHED_NOT_FOUND: &str = "the server did not have the file when last checked";

/// The name of a part among those that are downloaded ahead.
fn ahead_name(file: &str, part: u64) -> String {
    format!("{file} {part}")
}

impl<T: Transport + 'static, S: KeyValueStore + 'static> HttpSource<T, S> {
    /// Counts bytes of a part as they arrive.
    fn count_bytes(&self, entry: &HttpFile<T>, bytes: u64, from_cache: bool) {
        entry.reported_bytes.set(entry.reported_bytes.get() + bytes);
        self.remote.progress.add_bytes(bytes, from_cache);
    }

    /// Takes back bytes that were counted and will arrive again.
    fn uncount_bytes(&self, entry: &HttpFile<T>, bytes: u64) {
        entry.reported_bytes.set(entry.reported_bytes.get() - bytes);
        self.remote.progress.uncount_bytes(bytes);
    }

    /// Returns a reader for a part that starts at `pos`: the given one if its position matches,
    /// otherwise a new one.
    fn reader_at(
        &self,
        entry: &HttpFile<T>,
        pos: u64,
        end: u64,
        reader: &mut Option<RangeReader<T>>,
    ) {
        // A validator derived from the commit never appears in a response.
        let shown = entry
            .identity
            .validator
            .clone()
            .filter(|v| !v.starts_with("commit "));
        let identity = FileValidator {
            size: entry.identity.size,
            validator: shown,
        };
        // If the file changed and was restarted meanwhile, the reader still serves the old content.
        if reader
            .as_ref()
            .is_some_and(|r| r.pos == pos && r.matches_content(&identity))
        {
            return;
        }
        let body = entry
            .body
            .borrow_mut()
            .take()
            .filter(|body| body.pos == pos);
        *reader = Some(match body {
            Some(mut body) => {
                body.extend_to(end);
                body
            }
            None => RangeReader::new(
                self.remote.clone(),
                entry.url.clone(),
                pos,
                Some(end),
                Some(identity),
            ),
        });
    }

    async fn fetch(
        &self,
        entry: &HttpFile<T>,
        range: Range<u64>,
        run_end: u64,
        reader: &mut Option<RangeReader<T>>,
        count: &dyn Fn(u64),
    ) -> Result<Chunk, ReadFault> {
        let mut buffer = ChunkBuffer::new((range.end - range.start) as usize);
        if let Some(first) = entry
            .first_bytes
            .as_ref()
            .filter(|first| range.start < first.len() as u64)
        {
            let known =
                first.slice(range.start as usize..range.end.min(first.len() as u64) as usize);
            buffer.push(&known);
            count(known.len() as u64);
        }
        if buffer.missing() > 0 {
            let pos = range.end - buffer.missing() as u64;
            self.reader_at(entry, pos, run_end, reader);
            if let Some(reader) = reader.as_mut() {
                reader.fill(&mut buffer, count).await?;
                entry.supports_ranges.set(reader.supports_ranges);
            }
        }
        if buffer.missing() > 0 {
            let reason = format!("the response ended {} bytes early", buffer.missing());
            return Err(ReadFault::Failed(Error::Network {
                url: entry.url.clone(),
                reason,
            }));
        }
        Ok(buffer.finish())
    }

    /// Whether an earlier load has stored the file, or found that the server does not have it.
    /// Asks only the cache.
    pub async fn is_recorded(&self, file: &str) -> bool {
        match &self.cache {
            Some(shelf) => shelf.manifest(file).await.is_some(),
            None => false,
        }
    }

    /// Whether this load has found the file.
    pub fn has_opened(&self, file: &str) -> bool {
        self.opened_file(file).is_some()
    }

    /// Reads the first parts of these files before they are asked for, at most `bytes`: stored parts
    /// at the same time, and parts of the first file that has others in one request.
    pub async fn read_parts_ahead(&self, files: &[CheckpointFile], bytes: u64) {
        let mut reads = Vec::new();
        let mut missing: Option<(&CheckpointFile, Range<u64>)> = None;
        let all = files.iter().flat_map(|file| {
            let parts = 0..file.size.div_ceil(self.part_size);
            parts.map(move |part| (file, part))
        });
        for (file, part) in all.take((bytes / self.part_size) as usize) {
            if !self.is_stored(&file.name, part) {
                match &mut missing {
                    Some((first, parts)) if first.name == file.name && parts.end == part => {
                        parts.end += 1;
                    }
                    Some(_) => {}
                    None => missing = Some((file, part..part + 1)),
                }
            } else if let (Some(shelf), Some(entry)) = (&self.cache, self.opened_file(&file.name)) {
                reads.push(async move {
                    shelf
                        .read_part_ahead(&file.name, &entry.identity, self.part_size, part)
                        .await;
                });
            }
        }
        let download = async {
            if let Some((file, parts)) = missing {
                self.download_ahead(&file.name, parts).await;
            }
        };
        join(join_all(reads), download).await;
    }

    /// Downloads parts of a file before they are asked for. Parts after one that fails are read when
    /// they are asked for.
    async fn download_ahead(&self, file: &str, parts: Range<u64>) {
        let Some(entry) = self.opened_file(file) else {
            return;
        };
        // Other servers send the file once, from its beginning.
        if !entry.supports_ranges.get() {
            return;
        }
        let at = |index: u64| (index * self.part_size).min(entry.identity.size);
        let ends: Vec<_> = parts
            .clone()
            .map(|part| (part, self.ahead.begin(&ahead_name(file, part))))
            .collect();
        let mut reader = None;
        for (part, end) in ends {
            if !end.is_wanted() {
                return;
            }
            let range = at(part)..at(part + 1);
            let count = |bytes| end.arrive(bytes);
            let chunk = self
                .fetch(&entry, range, at(parts.end), &mut reader, &count)
                .await;
            let has_failed = chunk.is_err();
            end.finish(chunk);
            if has_failed {
                return;
            }
        }
    }

    /// Drops the parts that were read ahead and that nothing has asked for.
    pub fn drop_parts_ahead(&self) {
        self.ahead.clear();
        if let Some(shelf) = &self.cache {
            shelf.drop_parts_ahead();
        }
    }

    fn opened_file(&self, file: &str) -> Option<Rc<HttpFile<T>>> {
        self.files.borrow().get(file).cloned().flatten()
    }

    async fn require_file(&self, file: &str) -> Result<Rc<HttpFile<T>>, ReadFault> {
        let entry = self.open_file(file).await?;
        entry.ok_or_else(|| ReadFault::Failed(self.missing_error(file)))
    }
}

impl<T: Transport + 'static, S: KeyValueStore + 'static> PartSource for HttpSource<T, S> {
    type Reader = RangeReader<T>;

    fn source_name(&self) -> &str {
        &self.name
    }

    fn progress(&self) -> &Progress {
        &self.remote.progress
    }

    fn part_size(&self) -> u64 {
        self.part_size
    }

    fn streams(&self, file: &str) -> usize {
        if self
            .opened_file(file)
            .is_some_and(|e| e.supports_ranges.get())
        {
            self.streams
        } else {
            1
        }
    }

    fn throttled(&self) -> bool {
        self.remote.throttled.get()
    }

    fn is_stored(&self, file: &str, part: u64) -> bool {
        self.opened_file(file)
            .is_some_and(|e| e.stored.borrow().contains(&part))
    }

    async fn info(&self, file: &str) -> Result<Option<FileInfo>> {
        Ok(self.open_file(file).await?.map(|entry| FileInfo {
            size: entry.identity.size,
            etag: entry.identity.validator.clone(),
            from_cache: entry.from_cache,
        }))
    }

    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, ReadFault> {
        let entry = self.require_file(file).await?;
        let first = range.start / self.part_size;
        let last = range.end.div_ceil(self.part_size);

        if let Some(shelf) = &self.cache
            && (first..last).all(|part| self.is_stored(file, part))
        {
            let mut found = Vec::new();
            for part in first..last {
                found.extend(
                    shelf
                        .part(file, &entry.identity, self.part_size, part)
                        .await,
                );
            }
            if found.len() as u64 == last - first {
                let begin = first * self.part_size;
                return Ok(concat_chunks(&found)
                    .slice((range.start - begin) as usize..(range.end - begin) as usize));
            }
        }
        let mut reader = None;
        let chunk = self
            .fetch(&entry, range.clone(), range.end, &mut reader, &|_| ())
            .await?;
        // A body with the whole file continues where the first bytes ended.
        if let Some(reader) = reader.filter(|r| !r.supports_ranges) {
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
    ) -> Result<Chunk, ReadFault> {
        self.remote.abort.check(&format!("loading {}", self.name))?;
        let entry = self.require_file(file).await?;
        self.remote.progress.file(file);
        let size = entry.identity.size;
        let at = |index: u64| (index * self.part_size).min(size);
        let key = progress_key(self, file);
        let counts = self.remote.progress.is_uncounted(&key, part);
        if let (Some(shelf), true) = (&self.cache, self.is_stored(file, part)) {
            if let Some(chunk) = shelf
                .part(file, &entry.identity, self.part_size, part)
                .await
            {
                if counts {
                    self.count_bytes(
                        &entry,
                        chunk.len() as u64,
                        !self.remote.progress.was_fetched(&key, part),
                    );
                    self.remote.progress.mark_read(&key, part, true);
                }
                return Ok(chunk);
            }
            entry.stored.borrow_mut().remove(&part);
            entry.sha256.borrow_mut().take();
            entry.hashed.set((0, INITIAL_STATE));
            entry.manifest_stale.set(true);
        }
        entry.fetched.set(true);
        let counted = Cell::new(0);
        let count = |bytes| {
            if counts {
                counted.set(counted.get() + bytes);
                self.count_bytes(&entry, bytes, false);
            }
        };
        let ahead = ahead_name(file, part);
        let chunk = match self.ahead.take_counting(&ahead, &count).await {
            Some(chunk) => chunk?,
            None => {
                self.uncount_bytes(&entry, counted.take());
                self.fetch(&entry, at(part)..at(part + 1), at(run_end), reader, &count)
                    .await?
            }
        };
        self.remote.progress.mark_read(&key, part, false);
        if let (Some(shelf), true, true) = (
            &self.cache,
            self.can_store(),
            entry.identity.validator.is_some(),
        ) {
            self.start_write(shelf.clone(), entry, file, part, &chunk)
                .await;
        }
        Ok(chunk)
    }

    fn release_part(&self, part: Chunk) {
        part.release();
    }

    async fn finalize(&self, file: &str, last: bool) {
        if last && self.defer_finalize.get() {
            self.unfinalized.borrow_mut().push(file.to_string());
            return;
        }
        let (Some(shelf), Some(entry)) = (&self.cache, self.opened_file(file)) else {
            return;
        };
        self.handle_writes(self.writes.wait_all().await);
        if entry.identity.validator.is_none() || !entry.manifest_stale.replace(false) {
            return;
        }
        let content = CachedFile {
            size: entry.identity.size,
            validator: entry.identity.validator.clone(),
            part_size: self.part_size,
            parts: entry.stored.borrow().clone(),
            sha256: entry.sha256.borrow().clone(),
        };
        if content.size == 0 || !content.parts.is_empty() {
            self.record_write(
                shelf
                    .put_manifest(file, &FileManifest::new(self.commit(), Some(content)))
                    .await,
            );
        }
    }

    async fn evict(&self, file: &str) {
        self.ahead.clear();
        self.handle_writes(self.writes.wait_all().await);
        let entry = self.files.borrow_mut().remove(file).flatten();
        if let Some(entry) = entry {
            self.remote
                .progress
                .uncount_bytes(entry.reported_bytes.get());
            self.remote.progress.reset_parts(&progress_key(self, file));
        }
        if let Some(shelf) = &self.cache {
            shelf.evict(file).await;
        }
    }

    fn missing_error(&self, file: &str) -> Error {
        let recorded = self.not_found_errors.borrow().get(file).cloned();
        recorded.unwrap_or_else(|| Error::NotFound {
            url: self.url(file),
            answer: CACHED_NOT_FOUND.to_string(),
        })
    }
}
