//! Phi-3, Phi-3.5 and Phi-4 mini: fused projections, a window, partial rotation, long-context factors.
//! Reference: transformers `modeling_phi3.py`.

use super::blocks::Dense;
use super::config::Config;
use crate::Result;
use crate::ir::Graph;

/// `Phi3ForCausalLM`.
pub fn phi3(config: Config<'_>) -> Result<Graph> {
    let mut dense = Dense::from_config(config, false)?;
    (dense.fused_qkv, dense.fused_gate_up) = (true, true);
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.layers.iter_mut().for_each(|l| l.window = window);
    dense.graph()
}
