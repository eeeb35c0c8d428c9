//! Cache of weights quantized on load: the next load reads them instead of the larger source files.

use super::write::write_chunk;
use crate::exec::step::Buffers;
use crate::format::{Checkpoint, Encoding, WeightLayout, Weights};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::{Chunk, Source};
use crate::ir::{Graph, WeightId};
use crate::plan::{Slot, WeightPlan, WeightPlans};
use crate::util::map::{SortedMap, SortedSet};
use crate::{Result, util};
use futures_util::stream::{self, StreamExt};

/// Bytes of a cache entry.
const CACHE_CHUNK_BYTES: u64 = 4 << 20;
/// Entries read concurrently.
const MAX_CONCURRENT_ENTRIES: usize = 4;
/// Maximum bytes queued for writing.
const MAX_QUEUED_BYTES: u64 = 32 << 20;
/// Increase when quantization produces different bytes for the same weights.
const QUANTIZATION_VERSION: u32 = 3;

/// The weights of a load that are quantized on the device.
#[derive(Default)]
pub(super) struct QuantizedSet {
    ids: SortedSet<WeightId>,
    /// Name of the graph: a source may have a vision encoder in addition to the decoder.
    graph: String,
    /// Text key of their sources and layouts.
    key: String,
}

impl QuantizedSet {
    /// Number of weights.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// Collects the weights of a graph that are unquantized in the files and quantized on the
    /// device.
    pub fn of(graph: &Graph, plans: &WeightPlans, weights: &Weights) -> Self {
        let mut found = Self {
            graph: graph.name.clone(),
            ..Self::default()
        };
        for (id, plan) in plans {
            let parts = &graph.weight(*id).parts;
            let plain = |name: &str| {
                weights
                    .get(name, "")
                    .is_ok_and(|w| matches!(w.encoding, Encoding::Dense(_)))
            };
            if !plan.is_paged()
                && matches!(plan.layout, WeightLayout::Affine { .. })
                && parts.iter().all(|(name, _)| plain(name))
            {
                let WeightPlan {
                    layout,
                    rows,
                    cols,
                    shards: runs,
                    ..
                } = plan;
                found.key += &format!("{} {layout} {rows} {cols} {runs:?};", parts[0].0);
                found.ids.insert(*id);
            }
        }
        found
    }
}

fn set_prefix(graph: &str) -> String {
    format!("{:08x}", util::fnv1a(graph) as u32)
}

/// A range of a buffer.
struct CacheChunk {
    weight: WeightId,
    buffer: Buffer,
    at: u64,
    size: u64,
}

/// The cached set of quantized weights.
pub(super) struct QuantizedCache<'a> {
    source: &'a Source,
    /// Key of the set; it depends on files, layouts and version.
    set: String,
    /// Prefix of all sets of this graph.
    set_prefix: String,
    chunks: Vec<CacheChunk>,
}

impl<'a> QuantizedCache<'a> {
    /// Opens the cache. `None` if nothing is quantized or file changes cannot be detected.
    pub async fn of(
        source: &'a Source,
        checkpoint: &Checkpoint,
        quantized: &QuantizedSet,
        buffers: &Buffers,
    ) -> Option<QuantizedCache<'a>> {
        if quantized.ids.is_empty() || !source.is_persistent() {
            return None;
        }
        let mut text = format!("{QUANTIZATION_VERSION} {}", quantized.key);
        for file in &checkpoint.files {
            let info = source.info(&file.name).await.ok()??;
            text += &format!("{} {} {};", file.name, info.size, info.etag?);
        }
        let mut pieces = Vec::new();
        let sorted: SortedMap<&Slot, &Buffer> = buffers.iter().collect();
        for (slot, buffer) in sorted {
            let (Slot::WeightQ(weight, _) | Slot::WeightS(weight, _)) = *slot else {
                continue;
            };
            if quantized.ids.contains(&weight) {
                let size = buffer.size();

                pieces.extend(
                    (0..size)
                        .step_by(CACHE_CHUNK_BYTES as usize)
                        .map(|at: u64| CacheChunk {
                            weight,
                            buffer: buffer.clone(),
                            at,
                            size: CACHE_CHUNK_BYTES.min(size - at),
                        }),
                );
            }
        }
        Some(QuantizedCache {
            source,
            set: format!(
                "{}{:016x}",
                set_prefix(&quantized.graph),
                util::fnv1a(&text)
            ),
            set_prefix: set_prefix(&quantized.graph),
            chunks: pieces,
        })
    }

    /// Fills the buffers of completely cached weights; returns their ids and the bytes read.
    pub async fn restore(&self, gpu: &Gpu) -> Result<(SortedSet<WeightId>, u64)> {
        let mut whole: SortedSet<WeightId> = self.chunks.iter().map(|piece| piece.weight).collect();
        let mut bytes = 0;
        if !self.source.has_derived_set(&self.set).await {
            return Ok((SortedSet::new(), 0));
        }
        let progress = self.source.progress();
        let abort = self.source.abort();

        progress.expect(self.chunks.iter().map(|piece| piece.size).sum());
        let read = |index: usize| async move {
            (
                &self.chunks[index],
                self.source
                    .read_derived_chunk(&self.set, index, self.chunks[index].size)
                    .await,
            )
        };
        let mut read = stream::iter(0..self.chunks.len())
            .map(read)
            .buffered(MAX_CONCURRENT_ENTRIES);
        let mut pending = 0;
        while let Some((piece, chunk)) = read.next().await {
            abort.check("loading the model")?;
            progress.add_bytes(piece.size, true);
            let Some(chunk) = chunk else {
                whole.remove(&piece.weight);
                continue;
            };
            write_chunk(gpu, &piece.buffer, piece.at, &chunk);
            chunk.release();
            bytes += piece.size;
            pending += piece.size;
            if pending > MAX_QUEUED_BYTES {
                pending = 0;
                gpu.submit(&[])?;
                gpu.wait_idle().await?;
            }
        }
        Ok((whole, bytes))
    }

    /// Stores the current buffers, replacing earlier sets of this source. Stores nothing if space
    /// is insufficient.
    pub async fn store(&self, gpu: &Gpu) -> Result<()> {
        self.source.clear_derived_sets(&self.set_prefix).await;
        for (index, piece) in self.chunks.iter().enumerate() {
            self.source.abort().check("loading the model")?;
            #[cfg(target_arch = "wasm32")]
            let chunk = Chunk::from_js(gpu.read_js(&piece.buffer, piece.at, piece.size).await?);
            #[cfg(not(target_arch = "wasm32"))]
            let chunk = Chunk::from_vec(gpu.read(&piece.buffer, piece.at, piece.size).await?);
            if !self
                .source
                .write_derived_chunk(&self.set, index, &chunk)
                .await
            {
                self.source.clear_derived_sets(&self.set_prefix).await;
                return Ok(());
            }
        }
        self.source.complete_derived_set(&self.set, "whole").await;
        Ok(())
    }
}
