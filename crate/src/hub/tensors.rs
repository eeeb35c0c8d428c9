//! Reads tensor headers, then streams tensor bytes over parallel ranges. Chunks are whole 4-byte
//! words, so that a sink can write them to GPU buffers directly. Does not depend on the GPU.

use crate::util::map::SortedMap;
use crate::util::sort::sort_by;
use std::collections::VecDeque;
use std::ops::Range;
use std::pin::pin;

use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::chunk::Chunk;
use super::parts::{MAX_RESTARTS, PartSource, expect_parts, read_file, read_range};
use super::remote::ReadFault;
use crate::format::safetensors::{PREFIX_BYTES, SafetensorsHeader, header_range, parse_header};
use crate::format::{Checkpoint, CheckpointFile, ShardIndex, TensorInfo};
use crate::util::clock;
use crate::{Error, Result};

/// File name of weights in a single file.
pub const SINGLE_FILE_NAME: &str = "model.safetensors";
/// File name of the index of sharded weights.
pub const INDEX_FILE_NAME: &str = "model.safetensors.index.json";

/// Bytes read before the header's length is known; covers most headers.
const HEADER_GUESS_BYTES: u64 = 64 << 10;
/// Parts per request.
const PARTS_PER_REQUEST: u64 = 4;
/// Maximum number of cached parts read in parallel; bounds a page's memory.
const MAX_CACHED_READS: usize = 12;
/// Maximum number of parts that are read, or wait for the sink: what 1 Gbit/s brings in a second.
const MAX_PARTS_IN_MEMORY: usize = 16;
/// Bytes per second of each active stream above which another stream is added.
const FAST_STREAM_BYTES_PER_S: f64 = 1.5e6;

/// Reads the header of a safetensors file. Returns the file's length with it.
pub(crate) async fn read_header<P: PartSource>(
    source: &P,
    file: &str,
) -> Result<(u64, SafetensorsHeader)> {
    let Some(info) = source.info(file).await? else {
        return Err(source.missing_error(file));
    };
    let start = read_range(source, file, 0..HEADER_GUESS_BYTES.min(source.part_size())).await?;
    let range = header_range(file, &start, info.size)?;
    let header = match start.get(PREFIX_BYTES as usize..range.end as usize) {
        Some(header) => header.to_vec(),
        None => read_range(source, file, range).await?,
    };
    Ok((info.size, parse_header(file, &header, info.size)?))
}

/// Finds the model's weights: a single file, or the shards of an index.
pub(crate) async fn open_checkpoint<P: PartSource>(source: &P) -> Result<Checkpoint> {
    if source.info(SINGLE_FILE_NAME).await?.is_some() {
        let (size, header) = read_header(source, SINGLE_FILE_NAME).await?;
        return Checkpoint::from_single(SINGLE_FILE_NAME, size, header);
    }
    let Some(index) = read_file(source, INDEX_FILE_NAME).await? else {
        return Err(Error::MissingFile {
            file: SINGLE_FILE_NAME.to_string(),
            location: source.source_name().to_string(),
            hint: format!(
                "{INDEX_FILE_NAME} is missing too. Choose a repository with safetensors weights."
            ),
        });
    };
    let index = ShardIndex::parse(INDEX_FILE_NAME, &index)?;
    let mut shards = Vec::new();
    for name in index.shards() {
        if source.info(&name).await?.is_none() {
            return Err(Error::MissingFile {
                file: name,
                location: source.source_name().to_string(),
                hint: format!(
                    "{INDEX_FILE_NAME} lists this shard, so the repository is incomplete. Choose another repository or revision."
                ),
            });
        }
        let (size, header) = read_header(source, &name).await?;
        shards.push((name, size, header));
    }
    Checkpoint::from_shards(&index, shards)
}

/// The parts of a file that contain these tensors, which are sorted by offset.
fn wanted_parts<P: PartSource>(source: &P, tensors: &[&TensorInfo]) -> Vec<u64> {
    let size = source.part_size();
    let mut parts: Vec<u64> = tensors
        .iter()
        .flat_map(|t| t.range.start / size..t.range.end.div_ceil(size))
        .collect();
    parts.dedup();
    parts
}

/// Registers with the progress all tensors that a load will stream, for several graphs in turn.
pub(crate) fn expect_tensors<P: PartSource>(
    source: &P,
    checkpoint: &Checkpoint,
    tensors: &[&TensorInfo],
) {
    for (index, file) in checkpoint.files.iter().enumerate() {
        let mut within: Vec<&TensorInfo> = tensors
            .iter()
            .copied()
            .filter(|t| t.file == index && t.bytes() > 0)
            .collect();
        sort_by(&mut within, |a, b| a.range.start.cmp(&b.range.start));
        expect_parts(source, &file.name, file.size, wanted_parts(source, &within));
    }
}

/// Streams the bytes of `tensors` to `sink(tensor, offset, chunk)`. Every offset is a multiple of
/// 4, and so is every chunk's length, except at a tensor's last bytes. Chunks of one tensor may
/// arrive in any order. They arrive a second time if a file changes on the server with an unchanged
/// header. A tensor without bytes produces no call.
pub(crate) async fn stream_tensors<P: PartSource>(
    source: &P,
    checkpoint: &Checkpoint,
    tensors: &[&TensorInfo],
    sink: &mut impl AsyncFnMut(&TensorInfo, u64, Chunk) -> Result<()>,
) -> Result<()> {
    let mut plan = DownloadPlan::new(source, checkpoint, tensors)?;
    let mut pool = PartReads::new();
    // Parts that arrived while the sink handled another.
    let mut arrived = VecDeque::new();
    let mut allowed = 1;
    let begin = clock::now_ms();
    let mut fetched = 0.0;

    loop {
        plan.start_reads(source, &mut pool, arrived.len(), allowed);
        let next = match arrived.pop_front() {
            Some(part) => Some(part),
            None => pool.next().await,
        };
        let Some((mut job, result)) = next else {
            break;
        };
        if job.generation != plan.files[job.file].generation {
            continue;
        }
        let chunk = match result {
            Ok(chunk) => chunk,
            Err(ReadFault::Failed(error)) => return Err(error),
            Err(ReadFault::Changed) => {
                plan.restart(source, checkpoint, job.file).await?;
                continue;
            }
        };
        let file = job.file;
        let part = job.part;

        check_length(
            source,
            &checkpoint.files[plan.files[file].index],
            part,
            chunk.len() as u64,
        )
        .await?;
        fetched += chunk.len() as f64;
        allowed = next_stream_count(
            allowed,
            source.throttled(),
            plan.streams,
            fetched,
            clock::now_ms() - begin,
        );
        pool.extend(job.split_rest().map(|rest| read_next_part(source, rest)));
        plan.start_reads(source, &mut pool, arrived.len(), allowed);
        let pieces = plan.files[file].split_into_tensors(part * source.part_size(), &chunk);
        let deliver = async {
            for (tensor, offset, piece) in pieces {
                sink(tensor, offset, piece).await?;
            }
            Ok::<_, Error>(())
        };
        // Reads go on while the sink handles this part.
        let mut deliver = pin!(deliver);
        loop {
            match select(deliver.as_mut(), pool.next()).await {
                Either::Left((delivered, _)) => break delivered?,
                Either::Right((Some((mut job, result)), _)) => {
                    if result.is_ok() && pool.len() + arrived.len() < MAX_PARTS_IN_MEMORY {
                        pool.extend(job.split_rest().map(|rest| read_next_part(source, rest)));
                    }
                    arrived.push_back((job, result));
                    plan.start_reads(source, &mut pool, arrived.len(), allowed);
                }
                Either::Right((None, _)) => break deliver.await?,
            }
        }
        source.release_part(chunk);
        plan.files[file].parts_left -= 1;
        if plan.files[file].parts_left == 0 {
            let last = plan.files.iter().all(|file| file.parts_left == 0);
            source
                .finalize(&checkpoint.files[plan.files[file].index].name, last)
                .await;
        }
    }
    Ok(())
}

/// Rejects a file whose length differs from the container's. Shard lists give their shards' sizes
/// in advance.
async fn check_length<P: PartSource>(
    source: &P,
    file: &CheckpointFile,
    part: u64,
    length: u64,
) -> Result<()> {
    let at = |index: u64| (index * source.part_size()).min(file.size);
    if length == at(part + 1) - at(part) {
        return Ok(());
    }
    let found = source.info(&file.name).await?.map_or(0, |info| info.size);
    let reason = format!(
        "the file has {found} bytes, its tensor list requires {}",
        file.size
    );
    Err(Error::Malformed {
        file: file.name.clone(),
        format: "weights",
        reason,
    })
}

/// The number of streams to run: one more while the active ones are fast, one for a server that
/// throttles.
fn next_stream_count(now: usize, throttled: bool, most: usize, bytes: f64, ms: f64) -> usize {
    let rate = bytes * 1000.0 / ms.max(1.0);
    if throttled {
        1
    } else if rate > FAST_STREAM_BYTES_PER_S * now as f64 {
        (now + 1).min(most)
    } else {
        now
    }
}

/// Consecutive parts of one file that one request reads.
struct RangeRequest<R> {
    name: String,
    file: usize,
    generation: usize,
    part: u64,
    end: u64,
    reader: Option<R>,
}

impl<R> RangeRequest<R> {
    /// Splits off the parts after the current one, which continue on the same connection.
    fn split_rest(&mut self) -> Option<RangeRequest<R>> {
        let part = self.part + 1;
        if part >= self.end {
            return None;
        }
        let end = std::mem::replace(&mut self.end, part);
        Some(RangeRequest {
            name: self.name.clone(),
            file: self.file,
            generation: self.generation,
            part,
            end,
            reader: self.reader.take(),
        })
    }
}

/// A part that was read, or why not, and its request.
type PartRead<R> = (RangeRequest<R>, Result<Chunk, ReadFault>);

/// Parts that are being read.
type PartReads<'s, R> = FuturesUnordered<LocalBoxFuture<'s, PartRead<R>>>;

fn read_next_part<P: PartSource>(
    source: &P,
    mut job: RangeRequest<P::Reader>,
) -> LocalBoxFuture<'_, PartRead<P::Reader>> {
    Box::pin(async move {
        let result = source
            .part(&job.name, job.part, job.end, &mut job.reader)
            .await;
        (job, result)
    })
}

/// Download state of one file.
struct FileDownload<'a> {
    /// Index into the checkpoint's files.
    index: usize,
    /// Number of times the file was restarted.
    generation: usize,
    /// Requested tensors, by offset.
    tensors: Vec<&'a TensorInfo>,
    /// Parts to read.
    parts: Vec<u64>,
    /// Parts not yet delivered.
    parts_left: usize,
    /// Words of which only some bytes have arrived, by tensor and word index.
    split_words: SortedMap<(usize, u64), SplitWord>,
}

#[derive(Default)]
struct SplitWord {
    bytes: [u8; 4],
    filled: usize,
}

struct DownloadPlan<'a, R> {
    files: Vec<FileDownload<'a>>,
    queue: VecDeque<RangeRequest<R>>,
    streams: usize,
}

impl<'a, R> DownloadPlan<'a, R> {
    fn new<P: PartSource<Reader = R>>(
        source: &P,
        checkpoint: &Checkpoint,
        tensors: &[&'a TensorInfo],
    ) -> Result<Self> {
        let mut by_file: SortedMap<usize, Vec<&'a TensorInfo>> = SortedMap::new();
        for tensor in tensors.iter().filter(|t| t.bytes() > 0) {
            by_file
                .get_or_insert_with(tensor.file, Vec::new)
                .push(tensor);
        }
        let mut plan = DownloadPlan {
            files: Vec::new(),
            queue: VecDeque::new(),
            streams: 1,
        };
        for (index, mut tensors) in by_file {
            let Some(file) = checkpoint.files.get(index) else {
                return Err(Error::Internal(format!(
                    "a tensor refers to file {index}, which is not in the checkpoint"
                )));
            };
            sort_by(&mut tensors, |a, b| a.range.start.cmp(&b.range.start));
            // A tensor requested twice, such as a tied weight, is read once.
            tensors.dedup_by_key(|t| t.range.start);
            let parts = wanted_parts(source, &tensors);
            expect_parts(source, &file.name, file.size, parts.iter().copied());
            plan.streams = plan.streams.max(source.streams(&file.name));
            let left = parts.len();
            let broken = SortedMap::new();
            plan.files.push(FileDownload {
                index,
                generation: 0,
                tensors,
                parts,
                parts_left: left,
                split_words: broken,
            });
            plan.enqueue(source, checkpoint, plan.files.len() - 1);
        }
        Ok(plan)
    }

    /// Queues all parts of a file as requests for consecutive parts, all cached or all remote.
    fn enqueue<P: PartSource<Reader = R>>(
        &mut self,
        source: &P,
        checkpoint: &Checkpoint,
        file: usize,
    ) {
        let plan = &self.files[file];
        let name = &checkpoint.files[plan.index].name;
        let run = if source.streams(name) > 1 {
            PARTS_PER_REQUEST
        } else {
            u64::MAX
        };
        let mut last: Option<(Range<u64>, bool)> = None;
        for part in &plan.parts {
            let stored = source.is_stored(name, *part);
            match &mut last {
                Some((range, kind))
                    if range.end == *part && *kind == stored && range.end - range.start < run =>
                {
                    range.end += 1;
                }
                _ => {
                    let done = last.replace((*part..part + 1, stored));
                    self.queue
                        .extend(done.map(|(range, _)| plan.range_request(name, file, range)));
                }
            }
        }
        self.queue
            .extend(last.map(|(range, _)| plan.range_request(name, file, range)));
    }

    /// Starts queued reads: cached parts, and requests while fewer than `allowed` are active and
    /// memory holds few parts, `arrived` ones included.
    fn start_reads<'s, P: PartSource<Reader = R>>(
        &mut self,
        source: &'s P,
        pool: &mut PartReads<'s, R>,
        arrived: usize,
        allowed: usize,
    ) where
        R: 's,
    {
        while let Some(job) = self.queue.front() {
            let is_stored = self.streams > 1 && source.is_stored(&job.name, job.part);
            let limit = if is_stored { MAX_CACHED_READS } else { allowed };
            if pool.len() >= limit || pool.len() + arrived >= MAX_PARTS_IN_MEMORY {
                break;
            }
            let job = self.queue.pop_front();
            pool.extend(job.map(|job| read_next_part(source, job)));
        }
    }

    /// Restarts a file that changed while it was read, if its header is unchanged. Otherwise the
    /// whole load fails.
    async fn restart<P: PartSource<Reader = R>>(
        &mut self,
        source: &P,
        checkpoint: &Checkpoint,
        file: usize,
    ) -> Result<()> {
        let plan = &mut self.files[file];
        let name = checkpoint.files[plan.index].name.clone();
        plan.generation += 1;
        plan.parts_left = plan.parts.len();
        plan.split_words = SortedMap::new();
        self.queue.retain(|job| job.file != file);
        source.evict(&name).await;
        let changed = || Error::Changed {
            file: format!("{}/{name}", source.source_name()),
        };
        if !name.ends_with(".safetensors") {
            // Tensor offsets of other containers cannot be checked again here.
            return Err(changed());
        }
        let (size, header) = read_header(source, &name).await?;
        let plan = &self.files[file];

        let alike = plan
            .tensors
            .iter()
            .filter(|t: &&&TensorInfo| {
                let found = header.tensors.iter().find(|new| new.name == t.name);
                found.is_some_and(|new| {
                    new.range == t.range && new.dtype == t.dtype && new.shape == t.shape
                })
            })
            .count()
            == plan.tensors.len();
        if plan.generation >= MAX_RESTARTS || size != checkpoint.files[plan.index].size || !alike {
            source.evict(&name).await;
            return Err(changed());
        }
        self.enqueue(source, checkpoint, file);
        Ok(())
    }
}

impl<'a> FileDownload<'a> {
    fn range_request<R>(&self, name: &str, file: usize, parts: Range<u64>) -> RangeRequest<R> {
        let generation = self.generation;
        RangeRequest {
            name: name.to_string(),
            file,
            generation,
            part: parts.start,
            end: parts.end,
            reader: None,
        }
    }

    /// Splits a chunk at `begin` into pieces of tensors. Words cut by the chunk's ends wait for
    /// their other half.
    fn split_into_tensors(
        &mut self,
        begin: u64,
        chunk: &Chunk,
    ) -> Vec<(&'a TensorInfo, u64, Chunk)> {
        let end = begin + chunk.len() as u64;
        let mut pieces = Vec::new();
        let first = self.tensors.partition_point(|t| t.range.end <= begin);
        for (index, tensor) in self
            .tensors
            .iter()
            .enumerate()
            .skip(first)
            .take_while(|(_, t)| t.range.start < end)
        {
            let origin = tensor.range.start;
            let length = tensor.bytes();

            // From here on, offsets are relative to the tensor.
            let mut from = begin.max(origin) - origin;
            let mut to = end.min(tensor.range.end) - origin;
            let slice = |a: u64, b: u64| {
                chunk.slice((origin + a - begin) as usize..(origin + b - begin) as usize)
            };
            let mut word = |at: u64, bytes: &[u8]| {
                let key = (index, at / 4);
                let broken = self.split_words.get_or_insert_with(key, Default::default);
                let place = (at % 4) as usize;
                for (to, from) in broken.bytes.iter_mut().skip(place).zip(bytes) {
                    *to = *from;
                }
                broken.filled += bytes.len();
                let whole = (length - key.1 * 4).min(4) as usize;
                if broken.filled == whole {
                    let bytes = broken.bytes.iter().copied().take(whole).collect();
                    self.split_words.remove(&key);
                    return Some((*tensor, key.1 * 4, Chunk::from_vec(bytes)));
                }
                None
            };
            if from % 4 != 0 {
                let stop = from.next_multiple_of(4).min(to);
                pieces.extend(word(from, &slice(from, stop).to_vec()));
                from = stop;
            }
            if to % 4 != 0 && to != length && to > from {
                let stop = to / 4 * 4;
                pieces.extend(word(stop, &slice(stop, to).to_vec()));
                to = stop;
            }
            if to > from {
                pieces.push((*tensor, from, slice(from, to)));
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Dtype;
    use crate::hub::parts::FileInfo;
    use crate::hub::progress::Progress;
    use pollster::block_on;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::task::Poll;

    const PARTS: u64 = 6;

    /// A file whose parts are there at once, and the number that were read.
    struct FastServer(Progress, Cell<u64>);

    impl PartSource for FastServer {
        type Reader = ();

        fn source_name(&self) -> &str {
            "test"
        }

        fn progress(&self) -> &Progress {
            &self.0
        }

        fn part_size(&self) -> u64 {
            4
        }

        fn streams(&self, _file: &str) -> usize {
            3
        }

        fn is_stored(&self, _file: &str, _part: u64) -> bool {
            false
        }

        async fn info(&self, _file: &str) -> Result<Option<FileInfo>> {
            Ok(None)
        }

        async fn range(&self, _file: &str, _range: Range<u64>) -> Result<Chunk, ReadFault> {
            Err(self.missing_error("x").into())
        }

        async fn part(
            &self,
            _file: &str,
            part: u64,
            _run_end: u64,
            _reader: &mut Option<()>,
        ) -> Result<Chunk, ReadFault> {
            self.1.set(self.1.get() + 1);
            Ok(Chunk::from_vec(vec![part as u8; 4]))
        }

        fn missing_error(&self, file: &str) -> Error {
            Error::Internal(file.to_string())
        }
    }

    #[test]
    fn reads_go_on_while_the_sink_waits() {
        let source = FastServer(Progress::silent(), Cell::new(0));
        let tensor = TensorInfo {
            name: "a".into(),
            dtype: Dtype::U8,
            shape: vec![4 * PARTS as usize],
            file: 0,
            range: 0..4 * PARTS,
        };
        let checkpoint = Checkpoint {
            files: vec![CheckpointFile {
                name: "x.safetensors".into(),
                size: 4 * PARTS,
            }],
            ..Checkpoint::default()
        };
        let mut found = Vec::new();
        let mut ahead = Vec::new();
        let mut sink = async |_: &TensorInfo, offset: u64, chunk: Chunk| {
            let mut polls = 0;
            poll_fn(|context| {
                context.waker().wake_by_ref();
                polls += 1;
                if polls < 100 {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            })
            .await;
            found.push((offset, chunk.to_vec()[0]));
            ahead.push(source.1.get() - found.len() as u64);
            Ok(())
        };
        block_on(stream_tensors(&source, &checkpoint, &[&tensor], &mut sink)).expect("a load");
        found.sort_unstable();
        let expected: Vec<_> = (0..PARTS).map(|part| (4 * part, part as u8)).collect();
        assert_eq!(found, expected);
        assert_eq!(ahead[0], PARTS - 1, "{ahead:?}");
    }

    /// Splits a file at every offset, in both orders, and reassembles it from whole words.
    #[test]
    fn pieces_are_whole_words_wherever_the_file_is_cut() {
        let bytes: Vec<u8> = (0..40).collect();
        let tensor = |name: &str, range: Range<u64>| TensorInfo {
            name: name.to_string(),
            dtype: Dtype::U8,
            shape: vec![(range.end - range.start) as usize],
            file: 0,
            range,
        };
        let tensors = [tensor("a", 3..10), tensor("b", 10..11), tensor("c", 13..40)];
        for size in 1..=40usize {
            for reverse in [false, true] {
                let mut plan = FileDownload {
                    index: 0,
                    generation: 0,
                    tensors: tensors.iter().collect(),
                    parts: Vec::new(),
                    parts_left: 0,
                    split_words: SortedMap::new(),
                };
                let mut chunks: Vec<(usize, &[u8])> = bytes.chunks(size).enumerate().collect();
                if reverse {
                    chunks.reverse();
                }
                let mut found: SortedMap<String, Vec<Option<u8>>> = SortedMap::new();
                for (index, part) in chunks {
                    for (t, offset, piece) in plan
                        .split_into_tensors((index * size) as u64, &Chunk::from_vec(part.to_vec()))
                    {
                        let last = offset + piece.len() as u64 == t.bytes();
                        assert!(
                            offset % 4 == 0 && (piece.len() % 4 == 0 || last),
                            "{} {offset}",
                            t.name
                        );
                        let to = found
                            .get_or_insert_with(t.name.clone(), || vec![None; t.bytes() as usize]);
                        for (slot, byte) in to[offset as usize..].iter_mut().zip(piece.to_vec()) {
                            assert!(slot.replace(byte).is_none(), "a byte arrived twice");
                        }
                    }
                }
                assert!(plan.split_words.is_empty());
                for t in &tensors {
                    let expected: Vec<Option<u8>> = bytes
                        [t.range.start as usize..t.range.end as usize]
                        .iter()
                        .copied()
                        .map(Some)
                        .collect();
                    assert_eq!(found[&t.name], expected, "{} in parts of {size}", t.name);
                }
            }
        }
    }

    #[test]
    fn streams_follow_the_rate() {
        assert_eq!(next_stream_count(1, false, 3, 8e6, 1000.0), 2);
        assert_eq!(next_stream_count(2, false, 3, 8e6, 1000.0), 3);
        assert_eq!(next_stream_count(3, false, 3, 8e6, 1000.0), 3);
        assert_eq!(next_stream_count(1, false, 3, 1e6, 1000.0), 1);
        assert_eq!(next_stream_count(3, true, 3, 8e6, 1000.0), 1);
    }
}
