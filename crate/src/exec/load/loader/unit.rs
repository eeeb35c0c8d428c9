//! A load unit: rows of a weight with their sources, received bytes, and the path into the weight's buffers.

use crate::format::{Encoding, Float, Layout, Role, RowOrder, WeightSource};
use crate::gpu::Buffer;
use crate::ir::{WeightId, WeightKind};
use crate::kernels::transcode::{self, Stored, Target};
use crate::plan::WeightPlan;
use crate::util::map::SortedSet;
use crate::{Error, Result};

/// Rows of a weight with the file parts that they are made of.
pub(super) struct Unit {
    pub weight: WeightId,
    /// First row in the weight.
    pub row: usize,
    pub source: WeightSource,
    pub route: Route,
    pub parts: Vec<Held>,
}

/// The path of a unit's bytes to its buffers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Route {
    /// Written as they are: file and device layouts match.
    Direct,
    Gpu,
    Cpu,
}

/// Received bytes of a part.
pub(super) struct Held {
    pub role: Role,
    pub bytes: u64,
    pub have: u64,
    pub seen: SortedSet<u64>,
    pub cpu: Vec<u8>,
    pub gpu: Option<Buffer>,
}

impl Route {
    /// Creates a unit. The path is direct if layouts match, the GPU if a kernel exists, else the CPU. `room` is the
    /// maximum buffer size in bytes.
    pub fn of(source: &WeightSource, plan: &WeightPlan, row: usize, room: u64) -> Self {
        if is_direct(source, plan) {
            return Self::Direct;
        }
        let (rows, _) = source.rows_cols();
        let one_run = plan.runs.iter().any(|r| r.start <= row && row + rows <= r.end);
        let largest = source.parts.iter().map(|p| p.info.bytes()).max().unwrap_or(0);
        let staged = source.encoding.keeps_rows() && source.row_order == RowOrder::Stored;
        let fits = staged || largest <= room;
        if plan.kind == WeightKind::Vector
            || source.offset != 0.0
            || (source.is_scattered() && source.order.is_none())
            || !fits
            || (source.row_order != RowOrder::Stored && !one_run)
        {
            return Self::Cpu;
        }
        let made = |role: Role| source.encoding == Encoding::Nvfp4 && role == Role::QuantMap;
        let part =
            |role: Role| (made(role) || source.part(role).is_some()).then_some(transcode::Bytes { buffer: (), at: 0 });
        let from = stored(source, 0, rows, part, source.order.is_some().then_some(()), 1.0);
        let from = from.as_ref().and_then(|f| {
            let to = Target { layout: plan.layout, cols: plan.cols as u32, q: (), s: Some(()), first_row: 0 };
            transcode::transcode("probe", f, &to)
        });
        if from.is_some() { Self::Gpu } else { Self::Cpu }
    }
}

/// Returns the source with the shape that the graph expects; `Shape` if element counts differ.
pub(super) fn shaped(source: &WeightSource, rows: usize, plan: &WeightPlan) -> Result<WeightSource> {
    let wrong =
        |expected: Vec<usize>| Error::Shape { tensor: source.name.clone(), found: source.shape.clone(), expected };
    if plan.kind == WeightKind::Vector {
        // Some files store a vector as [n, 1] or [1, n].
        let found: usize = source.shape.iter().product();
        return if found == rows { Ok(source.clone()) } else { Err(wrong(vec![rows])) };
    }
    // Convolution weights `[outputs, channels, taps]` are the rows of an im2col matmul.
    let flat = source.shape.first() == Some(&rows) && source.shape.iter().product::<usize>() == rows * plan.cols;
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
        (Encoding::Dense(float), _) | (Encoding::Ggml(_), Some(Layout::Dense(float))) => float,
        _ => return false,
    };
    source.row_order == RowOrder::Stored
        && source.offset == 0.0
        && match plan.kind {
            WeightKind::Vector => float == Float::F32,
            _ => plan.layout == Layout::Dense(float) && plan.cols.is_multiple_of(32),
        }
}

/// Whether a part of a GPU-transcoded weight is needed on the CPU: small parts that require division, which is inexact
/// on the GPU.
pub(super) fn on_cpu(source: &WeightSource, role: Role) -> bool {
    matches!(
        (source.encoding, role),
        (Encoding::BitNet { .. } | Encoding::Bnb8, Role::Scales) | (Encoding::Nvfp4, Role::GlobalScale)
    )
}

/// Whether signed 8-bit values have a scale for each row.
fn row_scales(source: &WeightSource) -> bool {
    source.part(Role::Scales).is_some_and(|scales| scales.elements() >= source.stored_rows as u64)
}

/// Describes stored rows for the transcoding kernels; `part` provides the bytes of each part.
pub(super) fn stored<B: Clone>(
    source: &WeightSource,
    first: usize,
    rows: usize,
    part: impl Fn(Role) -> Option<transcode::Bytes<B>>,
    order: Option<B>,
    scale: f32,
) -> Option<Stored<B>> {
    Some(Stored {
        encoding: source.encoding,
        weight: part(Role::Weight)?,
        scales: part(Role::Scales),
        zeros: part(Role::Zeros).or_else(|| part(Role::Biases)),
        table: part(Role::QuantMap).map(|b| b.buffer),
        nested: part(Role::NestedMap).zip(part(Role::NestedScales)).map(|(map, scales)| (map.buffer, scales.buffer)),
        scale,
        row_scales: row_scales(source),
        order,
        first_row: (source.first_row + first) as u32,
        rows: rows as u32,
        all_rows: source.stored_rows as u32,
        row_order: source.row_order,
    })
}
