//! Decides whether a model's head is its embedding from the files' contents, as transformers'
//! `tie_weights` does, whatever config.json says.

use crate::format::{Checkpoint, TensorInfo, WeightSource, Weights};
use crate::hub::Source;
use crate::ir::{Graph, IdSource, Op};
use crate::{Error, Result};
use std::ops::Range;

/// Tensor names of output heads.
pub(super) const HEAD_TENSORS: [&str; 2] = ["lm_head.weight", "proj_out.weight"];

/// Bytes compared at a time.
const COMPARE_CHUNK_BYTES: u64 = 4 << 20;

/// Ranges compared first, spread over the tensors: separately trained heads differ everywhere.
const COMPARE_SAMPLES: u64 = 8;
const COMPARE_SAMPLE_BYTES: u64 = 4096;

/// Returns whether a head in the checkpoint differs from the embedding, although the configuration
/// that `graph` was built from ties them. Their contents decide: a copy would take device memory,
/// which costs more than reading both once. A head without an embedding becomes the embedding.
pub(super) async fn has_separate_head(
    source: &Source,
    checkpoint: &Checkpoint,
    weights: &mut Weights,
    graph: &Graph,
) -> Result<bool> {
    let (Some(table), Some(head)) = (
        embedding_table(graph),
        HEAD_TENSORS.into_iter().find(|name| weights.contains(name)),
    ) else {
        return Ok(false);
    };
    if graph
        .weights
        .iter()
        .any(|w| w.parts.iter().any(|p| p.0 == head))
    {
        // The configuration does not tie them.
        return Ok(false);
    }
    if !weights.contains(&table) {
        weights.rename(|name| (name == head).then(|| table.clone()));
        return Ok(false);
    }
    Ok(!is_stored_identically(source, checkpoint, weights, &table, head).await?)
}

/// The token embedding table.
fn embedding_table(graph: &Graph) -> Option<String> {
    let of_tokens = |op: &Op| match op {
        Op::Embed(embed) if embed.ids == IdSource::Tokens => Some(embed.table),
        _ => None,
    };
    let table = graph.nodes.iter().find_map(|node| of_tokens(&node.op))?;
    graph.weight(table).parts.first().map(|part| part.0.clone())
}

/// Whether two weights are stored identically, byte for byte.
async fn is_stored_identically(
    source: &Source,
    checkpoint: &Checkpoint,
    weights: &Weights,
    one: &str,
    other: &str,
) -> Result<bool> {
    let (Ok(one), Ok(other)) = (weights.get(one, ""), weights.get(other, "")) else {
        return Ok(false);
    };
    let kind = |w: &WeightSource| {
        (
            w.encoding,
            w.shape.clone(),
            w.parts
                .iter()
                .map(|p| (p.role, p.info.bytes()))
                .collect::<Vec<_>>(),
        )
    };
    if kind(one) != kind(other) {
        return Ok(false);
    }
    let parts = || one.parts.iter().zip(&other.parts);
    for sampled in [true, false] {
        for (a, b) in parts() {
            let bytes = a.info.bytes();
            let step = if sampled {
                (bytes / COMPARE_SAMPLES).max(COMPARE_SAMPLE_BYTES)
            } else {
                COMPARE_CHUNK_BYTES
            };
            let length = if sampled {
                COMPARE_SAMPLE_BYTES
            } else {
                COMPARE_CHUNK_BYTES
            };
            for start in (0..bytes).step_by(step as usize) {
                let range = start..(start + length).min(bytes);
                let read =
                    async |info: &TensorInfo| read_chunk(source, checkpoint, info, &range).await;
                if read(&a.info).await? != read(&b.info).await? {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

async fn read_chunk(
    source: &Source,
    files: &Checkpoint,
    tensor: &TensorInfo,
    range: &Range<u64>,
) -> Result<Vec<u8>> {
    let start = tensor.range.start;
    let file = files.files.get(tensor.file).ok_or_else(|| Error::Changed {
        file: source.name().into(),
    })?;
    Ok(source
        .slice(&file.name, start + range.start..start + range.end)
        .await?
        .to_vec())
}
