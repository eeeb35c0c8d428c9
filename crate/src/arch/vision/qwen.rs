//! Towers of Qwen3.5, Qwen3-VL and Qwen2.5-VL: rotations by row and column, blocks of patches joined at the end.
//! Reference: transformers `modeling_qwen3_vl.py`, `modeling_qwen2_5_vl.py`.

use super::vit::{Vit, axial, dense, embedded, rope_base, side};
use super::{Sees, Sight, Tower};
use crate::Result;
use crate::arch::config::Config;
use crate::ir::{Activation, Builder, Op, ValueId};
use crate::vision::Table;
use serde_json::Value;

/// Qwen3.5 and Qwen3-VL.
pub const QWEN3: Sees = Sees { tower: qwen3, sight: |_| Sight::Causal, consecutive: false };
/// Qwen2.5-VL.
pub const QWEN2_5: Sees = Sees { tower: qwen2_5, consecutive: true, ..QWEN3 };

/// Qwen3-VL and Qwen3.5. Reference: `modeling_qwen3_vl.py`.
fn qwen3(all: Config<'_>, config: Config<'_>) -> Result<Tower> {
    let mut vit = Vit::of(config, "num_heads", 1e-6)?;
    let (patch, merge) = (config.count("patch_size")?, config.count_or("spatial_merge_size", 2)?);
    let (size, act) = (config.count("intermediate_size")?, config.activation("hidden_act", "gelu_pytorch_tanh")?);
    let out = config.count("out_hidden_size")?;
    let table = Table::Corners(side(config, "num_position_embeddings")?);
    let rope = axial(&mut vit, rope_base(config)?);
    let mut b = Builder::new(&all.architecture());
    let cols = config.count_or("in_channels", 3)? * config.count_or("temporal_patch_size", 2)? * patch * patch;
    let mut h = embedded(&mut b, "patch_embed.proj", cols, vit.hidden, true, table, "pos_embed.weight");
    let deep: Vec<u64> = config
        .get("deepstack_visual_indexes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    let mut features = Vec::new();
    for index in 0..config.layers("depth")? {
        let path = format!("blocks.{index}");
        h = vit.attend_fused(&mut b, &path, h, false);
        let x = vit.norm(&mut b, &format!("{path}.norm2"), h);
        let x = dense(&mut b, &format!("{path}.mlp.linear_fc1"), x, size, true, act);
        let x = dense(&mut b, &format!("{path}.mlp.linear_fc2"), x, vit.hidden, true, Activation::None);
        h = b.add(&format!("{path}.mlp_residual"), h, x);
        if let Some(at) = deep.iter().position(|d| *d == index as u64) {
            let path = format!("deepstack_merger_list.{at}");
            let joined = b.fold(&path, h, merge * merge);
            let x = vit.norm(&mut b, &format!("{path}.norm"), joined);
            features.push(merged(&mut b, &path, x, out));
        }
    }
    let x = vit.norm(&mut b, "merger.norm", h);
    let joined = b.fold("merger.joined", x, merge * merge);
    let mut outs = vec![merged(&mut b, "merger", joined, out)];
    outs.extend(features);
    let hidden = beside(&mut b, &outs);
    let graph = b.finish(hidden, None)?;
    let features = outs.len();
    Ok(Tower { table, rope: Some(rope), features, ..Tower::plain(graph, patch, merge) })
}

fn merged(b: &mut Builder, path: &str, x: ValueId, out: usize) -> ValueId {
    let cols = b.cols(x);
    let x = dense(b, &format!("{path}.linear_fc1"), x, cols, true, Activation::Gelu);
    dense(b, &format!("{path}.linear_fc2"), x, out, true, Activation::None)
}

/// Values side by side, the first as it is where it is alone.
fn beside(b: &mut Builder, values: &[ValueId]) -> ValueId {
    if let [only] = values {
        return *only;
    }
    let cols = values.iter().map(|v| b.cols(*v)).sum();
    b.node("features", Op::Beside, values, cols)
}

/// Qwen2.5-VL. Reference: `modeling_qwen2_5_vl.py`.
fn qwen2_5(all: Config<'_>, config: Config<'_>) -> Result<Tower> {
    let mut vit = Vit { rms: true, ..Vit::of(config, "num_heads", 1e-6)? };
    let (patch, merge) = (config.count_or("patch_size", 14)?, config.count_or("spatial_merge_size", 2)?);
    let (size, act) = (config.count("intermediate_size")?, config.activation("hidden_act", "silu")?);
    let window = config.count_or("window_size", 112)? / merge / patch;
    let full: Vec<u64> = config
        .get("fullatt_block_indexes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    let rope = axial(&mut vit, rope_base(config)?);
    let mut b = Builder::new(&all.architecture());
    let cols = config.count_or("in_channels", 3)? * config.count_or("temporal_patch_size", 2)? * patch * patch;
    let mut h = embedded(&mut b, "patch_embed.proj", cols, vit.hidden, false, Table::None, "");
    for index in 0..config.layers("depth")? {
        let path = format!("blocks.{index}");
        h = vit.attend_fused(&mut b, &path, h, !full.contains(&(index as u64)));
        let x = vit.norm(&mut b, &format!("{path}.norm2"), h);
        let gate = b.linear(&format!("{path}.mlp.gate_proj"), x, size, true);
        let up = b.linear(&format!("{path}.mlp.up_proj"), x, size, true);
        let x = b.node(&format!("{path}.mlp.gated"), Op::Gated(act), &[gate, up], size);
        let x = b.linear(&format!("{path}.mlp.down_proj"), x, vit.hidden, true);
        h = b.add(&format!("{path}.mlp_residual"), h, x);
    }
    let x = vit.norm(&mut b, "merger.ln_q", h);
    let x = b.fold("merger.joined", x, merge * merge);
    let cols = b.cols(x);
    let x = dense(&mut b, "merger.mlp.0", x, cols, true, Activation::Gelu);
    let hidden = dense(&mut b, "merger.mlp.2", x, config.count("out_hidden_size")?, true, Activation::None);
    let graph = b.finish(hidden, None)?;
    Ok(Tower { rope: Some(rope), window: Some(window), ..Tower::plain(graph, patch, merge) })
}
