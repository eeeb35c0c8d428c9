//! A load unit: rows of a weight with their sources, received bytes, and the path into the weight's
//! buffers.

use crate::device::registry::Variant;
use crate::format::{Encoding, Float, PartRole, RowOrder, WeightLayout, WeightSource};
use crate::gpu::Buffer;
use crate::ir::{WeightId, WeightKind};
use crate::kernels::transcode::{self, StoredRows, TranscodeTarget};
use crate::plan::WeightPlan;
use crate::util::map::SortedSet;
use crate::{Error, Result};

/// Rows of a weight with the file parts that they are made of.
pub(super) struct LoadUnit {
    pub weight: WeightId,
    /// First row in the weight.
    pub row: usize,
    pub source: WeightSource,
    pub path: LoadPath,
    pub parts: Vec<StagedPart>,
}

/// The path of a unit's bytes to its buffers.
#[derive(Clone, PartialEq)]
pub(super) enum LoadPath {
    /// Written as they are: file and device layouts match.
    Direct,
    /// Transcoded by this kernel.
    Gpu(Variant),
    Cpu,
}

/// Received bytes of a part.
pub(super) struct StagedPart {
    pub role: PartRole,
    pub bytes: u64,
    pub received: u64,
    pub received_offsets: SortedSet<u64>,
    pub cpu: Vec<u8>,
    pub gpu: Option<transcode::BufferOffset<Buffer>>,
}

impl LoadPath {
    /// Creates a unit. The path is direct if layouts match, the GPU if a kernel exists, else the
    /// CPU. `room` is the maximum buffer size in bytes.
    pub fn of(source: &WeightSource, plan: &WeightPlan, row: usize, room: u64) -> Self {
        if is_direct(source, plan) {
            return Self::Direct;
        }
        let (rows, _) = source.rows_cols();
        let one_run = plan
            .shards
            .iter()
            .any(|r| r.start <= row && row + rows <= r.end);
        let largest = source
            .parts
            .iter()
            .map(|p| p.info.bytes())
            .max()
            .unwrap_or(0);
        let staged = source.encoding.has_contiguous_rows() && source.row_order == RowOrder::Stored;
        let fits = staged || largest <= room;
        if plan.kind == WeightKind::Vector
            || source.offset != 0.0
            || (source.is_scattered() && source.column_order.is_none())
            || !fits
            || (source.row_order != RowOrder::Stored && !one_run)
        {
            return Self::Cpu;
        }
        let made =
            |role: PartRole| source.encoding == Encoding::Nvfp4 && role == PartRole::QuantMap;

        let from = stored_rows(
            source,
            0,
            rows,
            |role: PartRole| {
                (made(role) || source.part(role).is_some())
                    .then_some(transcode::BufferOffset { buffer: (), at: 0 })
            },
            source.column_order.is_some().then_some(()),
            1.0,
        );
        let from = from.as_ref().and_then(|f| {
            let to = TranscodeTarget {
                layout: plan.layout,
                cols: plan.cols as u32,
                q: (),
                s: Some(()),
                first_row: 0,
            };
            transcode::transcode("probe", f, &to)
        });
        from.map_or(Self::Cpu, |launch| Self::Gpu(launch.variant))
    }
}

/// Returns the source with the shape that the graph expects; `Shape` if element counts differ.
pub(super) fn with_graph_shape(
    source: &WeightSource,
    rows: usize,
    plan: &WeightPlan,
) -> Result<WeightSource> {
    let wrong = |expected: Vec<usize>| Error::Shape {
        tensor: source.name.clone(),
        found: source.shape.clone(),
        expected,
    };
    if plan.kind == WeightKind::Vector {
        // Some files store a vector as [n, 1] or [1, n].
        let found: usize = source.shape.iter().product();
        return if found == rows {
            Ok(source.clone())
        } else {
            Err(wrong(vec![rows]))
        };
    }
    // Convolution weights `[outputs, channels, taps]` are the rows of an im2col matmul.
    let flat = source.shape.first() == Some(&rows)
        && source.shape.iter().product::<usize>() == rows * plan.cols;
    if source.shape != [rows, plan.cols] && !(flat && source.shape.len() > 2) {
        return Err(wrong(vec![rows, plan.cols]));
    }
    let mut source = source.clone();
    source.shape = vec![rows, plan.cols];
    Ok(source)
}

/// Whether file and device layouts match.
fn is_direct(source: &WeightSource, plan: &WeightPlan) -> bool {
    let float = match (source.encoding, source.encoding.layout(plan.cols)) {
        (Encoding::Dense(float), _) | (Encoding::Ggml(_), Some(WeightLayout::Dense(float))) => {
            float
        }
        _ => return false,
    };
    source.row_order == RowOrder::Stored
        && source.offset == 0.0
        && match plan.kind {
            WeightKind::Vector => float == Float::F32,
            _ => plan.layout == WeightLayout::Dense(float) && plan.cols.is_multiple_of(32),
        }
}

/// Whether a part of a GPU-transcoded weight is needed on the CPU: small parts that require
/// division, which is inexact on the GPU.
pub(super) fn is_needed_on_cpu(source: &WeightSource, role: PartRole) -> bool {
    matches!(
        (source.encoding, role),
        (Encoding::BitNet { .. } | Encoding::Bnb8, PartRole::Scales)
            | (
                Encoding::Nvfp4,
                PartRole::GlobalScale | PartRole::GlobalFactor
            )
    )
}

/// Whether signed 8-bit values have a scale for each row.
fn has_row_scales(source: &WeightSource) -> bool {
    source
        .part(PartRole::Scales)
        .is_some_and(|scales| scales.elements() >= source.stored_rows as u64)
}

/// Describes stored rows for the transcoding kernels; `part` provides the bytes of each part.
pub(super) fn stored_rows<B: Clone>(
    source: &WeightSource,
    first: usize,
    rows: usize,
    part: impl Fn(PartRole) -> Option<transcode::BufferOffset<B>>,
    order: Option<B>,
    scale: f32,
) -> Option<StoredRows<B>> {
    Some(StoredRows {
        encoding: source.encoding,
        weight: part(PartRole::Weight)?,
        scales: part(PartRole::Scales),
        zeros: part(PartRole::Zeros).or_else(|| part(PartRole::Biases)),
        table: part(PartRole::QuantMap).map(|b| b.buffer),
        nested: part(PartRole::NestedMap)
            .zip(part(PartRole::NestedScales))
            .map(|(map, scales)| (map.buffer, scales.buffer)),
        scale,
        row_scales: has_row_scales(source),
        order,
        first_row: (source.first_row + first) as u32,
        rows: rows as u32,
        all_rows: source.stored_rows as u32,
        row_order: source.row_order,
    })
}
