//! Reading of files in parts of a fixed size or by small ranges, shared by all source kinds. Does
//! not depend on tensors.

use std::ops::Range;

use super::chunk::{Chunk, ChunkBuffer};
use super::progress::Progress;
use super::remote::ReadFault;
use crate::format::lfs::refuse_pointer;
use crate::util::json;
use crate::util::limits::{MAX_CONFIG_BYTES, MAX_TOKENIZER_CONFIG_BYTES, MAX_WHOLE_FILE_BYTES};
use crate::{Error, Result};

/// A file's length and what identifies its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// Bytes.
    pub size: u64,
    /// ETag or `Last-Modified` date, if the server exposes one.
    pub etag: Option<String>,
    /// Whether at least one part is cached.
    pub from_cache: bool,
}

/// A source of files: HTTP, local folder, selected files or WebLLM's cache. The default methods are
/// those of files on this machine.
pub(crate) trait PartSource {
    /// An open connection that reads consecutive parts.
    type Reader;

    /// The source's name, for messages.
    fn source_name(&self) -> &str;
    fn progress(&self) -> &Progress;
    /// Bytes of every part except a file's last.
    fn part_size(&self) -> u64;
    /// Maximum number of parts of this file read in parallel.
    fn streams(&self, _file: &str) -> usize {
        1
    }
    /// Whether the server asked for less parallelism.
    fn throttled(&self) -> bool {
        false
    }
    /// Whether a part can be read without the network.
    fn is_stored(&self, _file: &str, _part: u64) -> bool {
        true
    }
    /// Length and validator of a file; `None` if the file does not exist.
    async fn info(&self, file: &str) -> Result<Option<FileInfo>>;
    /// Reads a small range, such as a header.
    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, ReadFault>;
    /// Reads one part. `run_end` is the index after the last part that will be read through
    /// `reader`.
    async fn part(
        &self,
        file: &str,
        part: u64,
        run_end: u64,
        reader: &mut Option<Self::Reader>,
    ) -> Result<Chunk, ReadFault>;
    /// Releases a consumed part's memory if no other owner exists.
    fn release_part(&self, _part: Chunk) {}
    /// Finalizes a file whose reads are complete: records which parts are stored. For the `last`
    /// file of a load's weights this may finish after the load.
    async fn finalize(&self, _file: &str, _last: bool) {}
    /// Drops everything read of a file, because it changed.
    async fn evict(&self, _file: &str) {}
    /// The error for a required file that does not exist.
    fn missing_error(&self, file: &str) -> Error;
}

/// Maximum number of attempts to read a file that changes during the read.
pub(crate) const MAX_RESTARTS: usize = 3;

/// Maximum bytes of a file that is read as a whole. Parsed JSON takes several times its bytes.
fn max_bytes(file: &str) -> u64 {
    let name = file.rsplit('/').next().unwrap_or(file);
    let listed = ["tokenizer.json", "vocab.json"].contains(&name);
    if !name.ends_with(".json") || name.ends_with(".index.json") || listed {
        return MAX_WHOLE_FILE_BYTES;
    }
    match name {
        "tokenizer_config.json" | "added_tokens.json" | "special_tokens_map.json" => {
            MAX_TOKENIZER_CONFIG_BYTES
        }
        _ => MAX_CONFIG_BYTES,
    }
}

fn changed_error(source: &impl PartSource, file: &str) -> Error {
    Error::Changed {
        file: format!("{}/{file}", source.source_name()),
    }
}

/// Registers with the progress which parts of a file will be read.
pub(crate) fn expect_parts<P: PartSource>(
    source: &P,
    file: &str,
    size: u64,
    parts: impl IntoIterator<Item = u64>,
) {
    let at = |index: u64| (index * source.part_size()).min(size);
    let key = progress_key(source, file);
    for part in parts {
        source
            .progress()
            .expect_part(&key, part, at(part + 1) - at(part));
    }
    source.progress().report();
}

/// The key under which the progress tracks a file's parts.
pub(crate) fn progress_key<P: PartSource>(source: &P, file: &str) -> String {
    format!("{}/{file}", source.source_name())
}

/// Counts a part that arrived at once, unless it was counted before.
pub(crate) fn count_part<P: PartSource>(
    source: &P,
    file: &str,
    part: u64,
    bytes: usize,
    from_cache: bool,
) {
    let progress = source.progress();
    let key = progress_key(source, file);

    if progress.is_uncounted(&key, part) {
        progress.add_bytes(
            bytes as u64,
            from_cache && !progress.was_fetched(&key, part),
        );
        progress.mark_read(&key, part, from_cache);
    }
}

/// Reads a whole file as parts in order; `None` if it does not exist.
async fn read_parts<P: PartSource>(source: &P, file: &str) -> Result<Option<Vec<Chunk>>> {
    for _ in 0..MAX_RESTARTS {
        let Some(info) = source.info(file).await? else {
            return Ok(None);
        };
        let limit = max_bytes(file);
        if info.size > limit {
            let reason = format!(
                "the file has {} bytes, the limit for this kind of file is {limit}",
                info.size
            );
            return Err(Error::Config {
                file: file.to_string(),
                reason,
            });
        }
        let count = info.size.div_ceil(source.part_size());
        expect_parts(source, file, info.size, 0..count);
        let mut reader = None;
        let mut parts = Vec::new();
        let mut fault = None;
        for part in 0..count {
            match source.part(file, part, count, &mut reader).await {
                Ok(chunk) => parts.push(chunk),
                Err(ReadFault::Failed(error)) => return Err(error),
                Err(ReadFault::Changed) => {
                    fault = Some(());
                    break;
                }
            }
        }
        if fault.is_none() {
            source.finalize(file, false).await;
            return Ok(Some(parts));
        }
        drop(reader);
        source.evict(file).await;
    }
    Err(changed_error(source, file))
}

/// Whether Python may have written a file with bare words (`NaN`, `Infinity`). The library that reads
/// tokenizer.json elsewhere, which is large, refuses them.
fn may_have_bare_words(file: &str) -> bool {
    file.ends_with(".json") && file.rsplit('/').next() != Some("tokenizer.json")
}

/// Reads a whole small file into this program's memory; `None` if it does not exist. Bare words in
/// JSON files are replaced by values that JSON parsers accept; Git LFS pointers are refused.
pub(crate) async fn read_file<P: PartSource>(source: &P, file: &str) -> Result<Option<Vec<u8>>> {
    let Some(parts) = read_parts(source, file).await? else {
        return Ok(None);
    };
    let mut bytes = Vec::with_capacity(parts.iter().map(Chunk::len).sum());
    for part in &parts {
        #[cfg(target_arch = "wasm32")]
        bytes.append(&mut part.to_vec());
        #[cfg(not(target_arch = "wasm32"))]
        bytes.extend_from_slice(part.as_slice());
    }
    refuse_pointer(file, &bytes)?;
    Ok(Some(if may_have_bare_words(file) {
        json::to_standard_json_owned(bytes)
    } else {
        bytes
    }))
}

/// Reads a small range of a file that must exist.
pub(crate) async fn read_range<P: PartSource>(
    source: &P,
    file: &str,
    range: Range<u64>,
) -> Result<Vec<u8>> {
    Ok(read_small_range(source, file, range).await?.to_vec())
}

/// Reads a range of a file that must exist. Parts that are not stored are downloaded whole and
/// cached.
pub(crate) async fn read_cached_range<P: PartSource>(
    source: &P,
    file: &str,
    range: Range<u64>,
) -> Result<Chunk> {
    let size = source.part_size();
    if (range.start / size..range.end.div_ceil(size)).all(|part| source.is_stored(file, part)) {
        return read_small_range(source, file, range).await;
    }
    let mut found = Vec::new();
    let mut sink = async |_: u64, chunk: Chunk| {
        found.push(chunk);
        Ok(())
    };
    stream_range(source, file, range, &mut sink).await?;
    Ok(concat_chunks(&found))
}

async fn read_small_range<P: PartSource>(
    source: &P,
    file: &str,
    range: Range<u64>,
) -> Result<Chunk> {
    for _ in 0..MAX_RESTARTS {
        let Some(info) = source.info(file).await? else {
            return Err(source.missing_error(file));
        };
        match source
            .range(file, range.start.min(info.size)..range.end.min(info.size))
            .await
        {
            Ok(chunk) => return Ok(chunk),
            Err(ReadFault::Failed(error)) => return Err(error),
            Err(ReadFault::Changed) => source.evict(file).await,
        }
    }
    Err(changed_error(source, file))
}

/// Streams a range of a file in order, part by part. A file that changes midway is an error,
/// because the sink already has bytes of the old one.
pub(crate) async fn stream_range<P: PartSource>(
    source: &P,
    file: &str,
    range: Range<u64>,
    sink: &mut impl AsyncFnMut(u64, Chunk) -> Result<()>,
) -> Result<()> {
    let Some(info) = source.info(file).await? else {
        return Err(source.missing_error(file));
    };
    let size = source.part_size();
    let end = range.end.min(info.size);
    if range.start >= end {
        return Ok(());
    }
    let first = range.start / size;
    let last = end.div_ceil(size);

    expect_parts(source, file, info.size, first..last);
    let mut reader = None;
    for part in first..last {
        let chunk = match source.part(file, part, last, &mut reader).await {
            Ok(chunk) => chunk,
            Err(ReadFault::Failed(error)) => return Err(error),
            Err(ReadFault::Changed) => {
                source.evict(file).await;
                return Err(changed_error(source, file));
            }
        };
        let begin = part * size;
        let from = range.start.saturating_sub(begin);
        let to = (end - begin).min(chunk.len() as u64);
        sink(begin + from, chunk.slice(from as usize..to as usize)).await?;
    }
    source.finalize(file, false).await;
    Ok(())
}

/// Concatenates chunks.
pub(crate) fn concat_chunks(chunks: &[Chunk]) -> Chunk {
    let mut buffer = ChunkBuffer::new(chunks.iter().map(Chunk::len).sum());
    chunks.iter().for_each(|chunk| buffer.push(chunk));
    buffer.finish()
}
