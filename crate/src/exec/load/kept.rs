//! Cache of weights quantized on load: the next load reads them instead of the larger source files.

use super::write::write_chunk;
use crate::exec::step::Buffers;
use crate::format::{Checkpoint, Encoding, Layout, Weights};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::{Chunk, Source};
use crate::ir::{Graph, WeightId};
use crate::plan::{Slot, WeightPlan, WeightPlans};
use crate::util::map::{SortedMap, SortedSet};
use crate::{Result, util};
use futures_util::stream::{self, StreamExt};

/// Bytes of a cache entry.
const PIECE: u64 = 4 << 20;
/// Entries read concurrently.
const AHEAD: usize = 4;
/// Maximum bytes queued for writing.
const IN_FLIGHT: u64 = 32 << 20;
/// Increase when quantization produces different bytes for the same weights.
const VERSION: u32 = 2;

/// The weights of a load that are quantized on the device.
#[derive(Default)]
pub(super) struct Quantized {
    ids: SortedSet<WeightId>,
    /// Name of the graph: a source may have a vision encoder in addition to the decoder.
    graph: String,
    /// Text key of their sources and layouts.
    text: String,
}

impl Quantized {
    /// Number of weights.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// Collects the weights of a graph that are unquantized in the files and quantized on the device.
    pub fn of(graph: &Graph, plans: &WeightPlans, weights: &Weights) -> Self {
        let mut found = Self { graph: graph.name.clone(), ..Self::default() };
        for (id, plan) in plans {
            let parts = &graph.weight(*id).parts;
            let plain = |name: &str| weights.get(name, "").is_ok_and(|w| matches!(w.encoding, Encoding::Dense(_)));
            if !plan.is_paged()
                && matches!(plan.layout, Layout::Affine { .. })
                && parts.iter().all(|(name, _)| plain(name))
            {
                let WeightPlan { layout, rows, cols, runs, .. } = plan;
                found.text += &format!("{} {layout} {rows} {cols} {runs:?};", parts[0].0);
                found.ids.insert(*id);
            }
        }
        found
    }
}

fn group(graph: &str) -> String {
    format!("{:08x}", util::fnv(graph) as u32)
}

/// A range of a buffer.
struct Piece {
    weight: WeightId,
    buffer: Buffer,
    at: u64,
    size: u64,
}

/// The cached set of quantized weights.
pub(super) struct Kept<'a> {
    source: &'a Source,
    /// Key of the set; it depends on files, layouts and version.
    set: String,
    /// Prefix of all sets of this graph.
    group: String,
    pieces: Vec<Piece>,
}

impl<'a> Kept<'a> {
    /// Opens the cache. `None` if nothing is quantized or file changes cannot be detected.
    pub async fn of(
        source: &'a Source,
        checkpoint: &Checkpoint,
        quantized: &Quantized,
        buffers: &Buffers,
    ) -> Option<Kept<'a>> {
        if quantized.ids.is_empty() || !source.keeps() {
            return None;
        }
        let mut text = format!("{VERSION} {}", quantized.text);
        for file in &checkpoint.files {
            let info = source.info(&file.name).await.ok()??;
            text += &format!("{} {} {};", file.name, info.size, info.etag?);
        }
        let mut pieces = Vec::new();
        let sorted: SortedMap<&Slot, &Buffer> = buffers.iter().collect();
        for (slot, buffer) in sorted {
            let (Slot::WeightQ(weight, _) | Slot::WeightS(weight, _)) = *slot else { continue };
            if quantized.ids.contains(&weight) {
                let size = buffer.size();
                let piece = |at: u64| Piece { weight, buffer: buffer.clone(), at, size: PIECE.min(size - at) };
                pieces.extend((0..size).step_by(PIECE as usize).map(piece));
            }
        }
        Some(Kept {
            source,
            set: format!("{}{:016x}", group(&quantized.graph), util::fnv(&text)),
            group: group(&quantized.graph),
            pieces,
        })
    }

    /// Fills the buffers of completely cached weights; returns their ids and the bytes read.
    pub async fn restore(&self, gpu: &Gpu) -> Result<(SortedSet<WeightId>, u64)> {
        let mut whole: SortedSet<WeightId> = self.pieces.iter().map(|piece| piece.weight).collect();
        let mut bytes = 0;
        if !self.source.has_set(&self.set).await {
            return Ok((SortedSet::new(), 0));
        }
        let (progress, abort) = (self.source.progress(), self.source.abort());
        progress.expect(self.pieces.iter().map(|piece| piece.size).sum());
        let read = |index: usize| async move {
            (&self.pieces[index], self.source.kept_piece(&self.set, index, self.pieces[index].size).await)
        };
        let mut read = stream::iter(0..self.pieces.len()).map(read).buffered(AHEAD);
        let mut pending = 0;
        while let Some((piece, chunk)) = read.next().await {
            abort.check("loading the model")?;
            progress.add(piece.size, true);
            let Some(chunk) = chunk else {
                whole.remove(&piece.weight);
                continue;
            };
            write_chunk(gpu, &piece.buffer, piece.at, &chunk);
            chunk.release();
            bytes += piece.size;
            pending += piece.size;
            if pending > IN_FLIGHT {
                pending = 0;
                gpu.submit(&[])?;
                gpu.wait_idle().await?;
            }
        }
        Ok((whole, bytes))
    }

    /// Stores the current buffers, replacing earlier sets of this source. Stores nothing if space is insufficient.
    pub async fn keep(&self, gpu: &Gpu) -> Result<()> {
        self.source.clear_pieces(&self.group).await;
        for (index, piece) in self.pieces.iter().enumerate() {
            self.source.abort().check("loading the model")?;
            #[cfg(target_arch = "wasm32")]
            let chunk = Chunk::from_js(gpu.read_js(&piece.buffer, piece.at, piece.size).await?);
            #[cfg(not(target_arch = "wasm32"))]
            let chunk = Chunk::from_vec(gpu.read(&piece.buffer, piece.at, piece.size).await?);
            if !self.source.keep_piece(&self.set, index, &chunk).await {
                self.source.clear_pieces(&self.group).await;
                return Ok(());
            }
        }
        self.source.close_set(&self.set).await;
        Ok(())
    }
}
