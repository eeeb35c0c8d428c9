//! What the three places that files come from have in common: a file is read in parts of a fixed size or by small ranges.
//! Knows no tensors.

use std::ops::Range;

use super::chunk::{Chunk, ChunkBuffer};
use super::progress::Progress;
use super::remote::Fault;
use crate::util::json;
use crate::{Error, Result};

/// A file's length and what is known of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// Bytes.
    pub size: u64,
    /// ETag or date of the last change, where the server shows one.
    pub etag: Option<String>,
    /// Whether some of it is in the cache.
    pub from_cache: bool,
}

/// A place that files come from.
pub(crate) trait PartSource {
    /// An open connection that reads consecutive parts.
    type Reader;

    /// The place's name, for messages.
    fn place(&self) -> &str;
    fn progress(&self) -> &Progress;
    /// Bytes of every part but a file's last.
    fn part_size(&self) -> u64;
    /// How many parts of this file may be read at once.
    fn streams(&self, file: &str) -> usize;
    /// Whether the place asks for less at once.
    fn throttled(&self) -> bool {
        false
    }
    /// Whether a part is at hand without the network.
    fn is_stored(&self, file: &str, part: u64) -> bool;
    /// `None`: there is no such file.
    async fn info(&self, file: &str) -> Result<Option<FileInfo>>;
    /// A small range: headers.
    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, Fault>;
    /// One part; `run_end` is the part after the last that will be read through `reader`.
    async fn part(
        &self,
        file: &str,
        part: u64,
        run_end: u64,
        reader: &mut Option<Self::Reader>,
    ) -> Result<Chunk, Fault>;
    /// A part has been used up: where its bytes are nobody else's, their memory may go.
    fn spend(&self, _part: Chunk) {}
    /// All that will be read of the file has been read: note what is stored. A load may end before that is done of the `last` of its
    /// weights.
    async fn seal(&self, file: &str, last: bool);
    /// The file changed: forget what was read of it.
    async fn forget(&self, file: &str);
    /// The error for a file that is needed and not there.
    fn missing(&self, file: &str) -> Error;
}

/// How often a file that changes while it is read is begun again.
pub(crate) const RESTARTS: usize = 3;

/// The largest file that is read as a whole: the largest tokenizers have 35 MB.
const MAX_WHOLE: u64 = 256 << 20;

fn changed(source: &impl PartSource, file: &str) -> Error {
    Error::Changed { file: format!("{}/{file}", source.place()) }
}

/// Tells the progress which parts of a file will be read.
pub(crate) fn expect<P: PartSource>(source: &P, file: &str, size: u64, parts: impl IntoIterator<Item = u64>) {
    let at = |index: u64| (index * source.part_size()).min(size);
    let key = key(source, file);
    for part in parts {
        source.progress().expect_part(&key, part, at(part + 1) - at(part));
    }
    source.progress().report();
}

/// The name of a file that the progress knows its parts by.
pub(crate) fn key<P: PartSource>(source: &P, file: &str) -> String {
    format!("{}/{file}", source.place())
}

/// Counts a part that came at once, unless it has been counted.
pub(crate) fn count<P: PartSource>(source: &P, file: &str, part: u64, bytes: usize, from_cache: bool) {
    let (progress, key) = (source.progress(), key(source, file));
    if progress.counts(&key, part) {
        progress.add(bytes as u64, from_cache && !progress.was_fetched(&key, part));
        progress.came(&key, part, from_cache);
    }
}

/// A whole file as parts in order; `None` where there is no such file.
async fn read_parts<P: PartSource>(source: &P, file: &str) -> Result<Option<Vec<Chunk>>> {
    for _ in 0..RESTARTS {
        let Some(info) = source.info(file).await? else { return Ok(None) };
        if info.size > MAX_WHOLE {
            let reason = format!("it has {} bytes, the limit for a file of this kind is {MAX_WHOLE}", info.size);
            return Err(Error::Config { file: file.to_string(), reason });
        }
        let count = info.size.div_ceil(source.part_size());
        expect(source, file, info.size, 0..count);
        let mut reader = None;
        let mut parts = Vec::new();
        let mut fault = None;
        for part in 0..count {
            match source.part(file, part, count, &mut reader).await {
                Ok(chunk) => parts.push(chunk),
                Err(Fault::Failed(error)) => return Err(error),
                Err(Fault::Changed) => {
                    fault = Some(());
                    break;
                }
            }
        }
        if fault.is_none() {
            source.seal(file, false).await;
            return Ok(Some(parts));
        }
        drop(reader);
        source.forget(file).await;
    }
    Err(changed(source, file))
}

/// A small file as a whole, in this program's memory; `None` where there is no such file. In JSON the bare words that
/// Python writes (`NaN`, `Infinity`) become what other readers take.
pub(crate) async fn read<P: PartSource>(source: &P, file: &str) -> Result<Option<Vec<u8>>> {
    let Some(parts) = read_parts(source, file).await? else { return Ok(None) };
    let mut bytes = Vec::with_capacity(parts.iter().map(Chunk::len).sum());
    for part in &parts {
        #[cfg(target_arch = "wasm32")]
        bytes.append(&mut part.to_vec());
        #[cfg(not(target_arch = "wasm32"))]
        bytes.extend_from_slice(part.as_slice());
    }
    Ok(Some(if file.ends_with(".json") { json::owned(bytes) } else { bytes }))
}

/// A small range of a file that must be there.
pub(crate) async fn read_range<P: PartSource>(source: &P, file: &str, range: Range<u64>) -> Result<Vec<u8>> {
    Ok(small(source, file, range).await?.to_vec())
}

/// A range of a file that must be there. What is not at hand comes by whole parts, which are kept.
pub(crate) async fn slice<P: PartSource>(source: &P, file: &str, range: Range<u64>) -> Result<Chunk> {
    let size = source.part_size();
    if (range.start / size..range.end.div_ceil(size)).all(|part| source.is_stored(file, part)) {
        return small(source, file, range).await;
    }
    let mut found = Vec::new();
    let mut sink = async |_: u64, chunk: Chunk| {
        found.push(chunk);
        Ok(())
    };
    stream(source, file, range, &mut sink).await?;
    Ok(join(&found))
}

async fn small<P: PartSource>(source: &P, file: &str, range: Range<u64>) -> Result<Chunk> {
    for _ in 0..RESTARTS {
        let Some(info) = source.info(file).await? else { return Err(source.missing(file)) };
        match source.range(file, range.start.min(info.size)..range.end.min(info.size)).await {
            Ok(chunk) => return Ok(chunk),
            Err(Fault::Failed(error)) => return Err(error),
            Err(Fault::Changed) => source.forget(file).await,
        }
    }
    Err(changed(source, file))
}

/// A range of a file in order, part by part. A file that changes midway is an error: what the sink got is of the old one.
pub(crate) async fn stream<P: PartSource>(
    source: &P,
    file: &str,
    range: Range<u64>,
    sink: &mut impl AsyncFnMut(u64, Chunk) -> Result<()>,
) -> Result<()> {
    let Some(info) = source.info(file).await? else { return Err(source.missing(file)) };
    let size = source.part_size();
    let end = range.end.min(info.size);
    if range.start >= end {
        return Ok(());
    }
    let (first, last) = (range.start / size, end.div_ceil(size));
    expect(source, file, info.size, first..last);
    let mut reader = None;
    for part in first..last {
        let chunk = match source.part(file, part, last, &mut reader).await {
            Ok(chunk) => chunk,
            Err(Fault::Failed(error)) => return Err(error),
            Err(Fault::Changed) => {
                source.forget(file).await;
                return Err(changed(source, file));
            }
        };
        let begin = part * size;
        let from = range.start.saturating_sub(begin);
        let to = (end - begin).min(chunk.len() as u64);
        sink(begin + from, chunk.slice(from as usize..to as usize)).await?;
    }
    source.seal(file, false).await;
    Ok(())
}

/// Chunks in a row as one.
pub(crate) fn join(chunks: &[Chunk]) -> Chunk {
    let mut buffer = ChunkBuffer::new(chunks.iter().map(Chunk::len).sum());
    chunks.iter().for_each(|chunk| buffer.push(chunk));
    buffer.finish()
}
