//! Weights from a checkpoint into buffers: chunks go straight to the GPU where the file's bytes are the layout's bytes;
//! small or unaligned tensors are packed on the way. It knows buffers and containers, no architecture.

use crate::format::layout::{Float, Layout, Packed};
use crate::format::{Checkpoint, Dtype, TensorInfo};
use crate::gpu::{Backend, Buffer, Gpu, Usage};
use crate::hub::{Chunk, Source};
use crate::ir::{Graph, WeightId, WeightKind};
use crate::plan::{Slot, WeightPlan, WeightPlans};
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap};

use super::step::Buffers;

/// One use of a tensor: rows of a weight.
#[derive(Debug, Clone, Copy)]
struct Place {
    weight: WeightId,
    first_row: usize,
    rows: usize,
}

/// The float type of a dense dtype.
pub fn float_of(dtype: Dtype) -> Option<Float> {
    match dtype {
        Dtype::F32 => Some(Float::F32),
        Dtype::F16 => Some(Float::F16),
        Dtype::BF16 => Some(Float::BF16),
        _ => None,
    }
}

/// Makes the buffers of all weights and streams the checkpoint into them.
///
/// # Errors
/// `MissingTensor`, `Shape`, `UnsupportedEncoding`, `OutOfMemory`, or what the source reports.
pub async fn load_weights(
    gpu: &Gpu,
    graph: &Graph,
    plans: &WeightPlans,
    source: &Source,
    checkpoint: &Checkpoint,
) -> Result<Buffers> {
    let mut buffers = Buffers::new();
    let mut places: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for (id, plan) in plans {
        allocate(gpu, *id, plan, &mut buffers)?;
        let weight = graph.weight(*id);
        let mut first_row = 0;
        for (name, rows) in &weight.parts {
            let tensor = checkpoint.require(name, &graph.name)?;
            check_shape(tensor, *rows, plan)?;
            places.entry(name.clone()).or_default().push(Place { weight: *id, first_row, rows: *rows });
            first_row += rows;
        }
    }
    let wanted: Vec<&TensorInfo> = places.keys().filter_map(|n| checkpoint.get(n)).collect();
    let mut partial: HashMap<String, (u64, Vec<u8>)> = HashMap::new();
    let mut pending = 0usize;
    let sink = async |tensor: &TensorInfo, offset: u64, chunk: Chunk| -> Result<()> {
        let mut collect = false;
        for place in places.get(&tensor.name).into_iter().flatten() {
            let Some(plan) = plans.get(&place.weight) else { continue };
            if is_direct(tensor, plan) {
                write_rows(gpu, &buffers, plan, *place, offset, &chunk)?;
            } else {
                collect = true;
            }
        }
        if collect {
            let (have, bytes) =
                partial.entry(tensor.name.clone()).or_insert_with(|| (0, vec![0; tensor.bytes() as usize]));
            let (data, at) = (chunk.to_vec(), offset as usize);
            let end = (at + data.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&data[..end - at]);
            *have += (end - at) as u64;
            if *have >= tensor.bytes() {
                let (_, bytes) = partial.remove(&tensor.name).unwrap_or_default();
                for place in places.get(&tensor.name).into_iter().flatten() {
                    pack_rows(gpu, &buffers, plans, *place, tensor, &bytes)?;
                }
            }
        }
        // The queue holds written bytes until they are submitted: let it drain now and then.
        pending += chunk.len();
        if pending > 64 << 20 {
            pending = 0;
            gpu.submit(&[])?;
            gpu.wait_idle().await?;
        }
        Ok(())
    };
    source.stream_tensors(checkpoint, &wanted, sink).await?;
    gpu.check().await?;
    Ok(buffers)
}

fn allocate(gpu: &Gpu, id: WeightId, plan: &WeightPlan, buffers: &mut Buffers) -> Result<()> {
    if plan.kind == WeightKind::Vector {
        buffers.insert(Slot::Vector(id), gpu.buffer("vector", plan.bytes(), Usage::Storage)?);
        return Ok(());
    }
    for (index, run) in plan.runs.iter().enumerate() {
        let [q, s] = plan.layout.plane_bytes(run.len(), plan.cols);
        buffers.insert(Slot::WeightQ(id, index), gpu.buffer("weights", q, Usage::Storage)?);
        if s > 0 {
            buffers.insert(Slot::WeightS(id, index), gpu.buffer("scales", s, Usage::Storage)?);
        }
    }
    Ok(())
}

fn check_shape(tensor: &TensorInfo, rows: usize, plan: &WeightPlan) -> Result<()> {
    if plan.kind == WeightKind::Vector {
        // Some files keep a vector as [n, 1] or [1, n].
        let found: usize = tensor.shape.iter().product();
        return if found == rows { Ok(()) } else { tensor.expect_shape(&[rows]) };
    }
    tensor.expect_shape(&[rows, plan.cols])
}

/// Whether the file's bytes are what the layout wants.
fn is_direct(tensor: &TensorInfo, plan: &WeightPlan) -> bool {
    let Some(float) = float_of(tensor.dtype) else { return false };
    match plan.kind {
        WeightKind::Vector => float == Float::F32,
        _ => plan.layout == Layout::Dense(float) && plan.cols % 32 == 0,
    }
}

/// Writes a chunk of a tensor whose bytes are the layout's, over the borders of runs.
fn write_rows(gpu: &Gpu, buffers: &Buffers, plan: &WeightPlan, place: Place, offset: u64, chunk: &Chunk) -> Result<()> {
    let missing = || Error::Internal("a weight has no buffer".into());
    if plan.kind == WeightKind::Vector {
        let buffer = buffers.get(&Slot::Vector(place.weight)).ok_or_else(missing)?;
        write_chunk(gpu, buffer, place.first_row as u64 * 4 + offset, chunk);
        return Ok(());
    }
    let row_bytes = plan.layout.row_words(plan.cols) as u64 * 4;
    let start = place.first_row as u64 * row_bytes + offset;
    let end = start + chunk.len() as u64;
    for (index, run) in plan.runs.iter().enumerate() {
        let (low, high) = (run.start as u64 * row_bytes, run.end as u64 * row_bytes);
        let (from, to) = (start.max(low), end.min(high));
        if from < to {
            let buffer = buffers.get(&Slot::WeightQ(place.weight, index)).ok_or_else(missing)?;
            write_chunk(gpu, buffer, from - low, &chunk.slice((from - start) as usize..(to - start) as usize));
        }
    }
    Ok(())
}

/// Packs a whole tensor into its layout and writes it.
fn pack_rows(
    gpu: &Gpu,
    buffers: &Buffers,
    plans: &WeightPlans,
    place: Place,
    tensor: &TensorInfo,
    bytes: &[u8],
) -> Result<()> {
    let Some(plan) = plans.get(&place.weight) else { return Ok(()) };
    if is_direct(tensor, plan) {
        return Ok(());
    }
    let unsupported = || Error::UnsupportedEncoding {
        tensor: tensor.name.clone(),
        encoding: tensor.dtype.to_string(),
        hint: "Weights may be F32, F16 or BF16.".into(),
    };
    let float = float_of(tensor.dtype).ok_or_else(unsupported)?;
    let value = |i: usize| float.get(bytes, i).unwrap_or(f32::NAN);
    let missing = || Error::Internal("a weight has no buffer".into());
    if plan.kind == WeightKind::Vector {
        let values: Vec<f32> = (0..place.rows * plan.cols).map(value).collect();
        let buffer = buffers.get(&Slot::Vector(place.weight)).ok_or_else(missing)?;
        gpu.write(buffer, place.first_row as u64 * 4, bytemuck::cast_slice(&values));
        return Ok(());
    }
    if !matches!(plan.layout, Layout::Dense(_)) {
        return Err(unsupported());
    }
    let mut packed = Packed::zeros(plan.layout, place.rows, plan.cols);
    for row in 0..place.rows {
        for col in 0..plan.cols {
            packed.set_dense(row, col, value(row * plan.cols + col));
        }
    }
    write_packed(gpu, buffers, plan, place, &packed)
}

/// Writes packed rows, over the borders of runs.
fn write_packed(gpu: &Gpu, buffers: &Buffers, plan: &WeightPlan, place: Place, packed: &Packed) -> Result<()> {
    let words = [packed.layout.row_words(packed.cols), packed.layout.row_params(packed.cols)];
    for (index, run) in plan.runs.iter().enumerate() {
        let rows = place.first_row.max(run.start)..(place.first_row + place.rows).min(run.end);
        if rows.is_empty() {
            continue;
        }
        for (plane, words) in words.iter().enumerate().filter(|(_, w)| **w > 0) {
            let slot = if plane == 0 { Slot::WeightQ(place.weight, index) } else { Slot::WeightS(place.weight, index) };
            let buffer = buffers.get(&slot).ok_or_else(|| Error::Internal("a weight has no buffer".into()))?;
            let (from, to) = (rows.start - place.first_row, rows.end - place.first_row);
            let data = &packed.planes[plane][from * words..to * words];
            gpu.write(buffer, ((rows.start - run.start) * words * 4) as u64, bytemuck::cast_slice(data));
        }
    }
    Ok(())
}

/// A chunk's bytes to a buffer; in the browser they do not pass through WebAssembly's memory.
fn write_chunk(gpu: &Gpu, buffer: &Buffer, offset: u64, chunk: &Chunk) {
    let chunk = chunk.padded(4);
    #[cfg(target_arch = "wasm32")]
    gpu.write_js(buffer, offset, chunk.as_js());
    #[cfg(not(target_arch = "wasm32"))]
    gpu.write(buffer, offset, chunk.as_slice());
}
