//! EmbeddingGemma: Gemma 3's text tower with attention both ways. Reference: transformers `modeling_gemma3.py`.

use super::config::Config;
use super::encoder::{Body, Positions, both_ways, head_dim, rope_of};
use crate::Result;
use crate::ir::{Builder, HeadNorm, Ids, Mask, Norm, Op, ValueId, WeightKind};

/// `Gemma3TextModel` with `use_bidirectional_attention`.
pub(super) fn embeddinggemma(config: Config<'_>, b: &mut Builder) -> Result<Body> {
    let (hidden, size) = (config.count("hidden_size")?, config.count("intermediate_size")?);
    let (heads, kv_heads) = config.heads()?;
    let head_dim = head_dim(config, hidden, heads)?;
    let eps = config.number_or("rms_norm_eps", 1e-6)? as f32;
    let act = config.activation("hidden_activation", "gelu_pytorch_tanh")?;
    // The file's window counts both sides and the token itself.
    let reach = config.count_or("sliding_window", 4096)? / 2;
    let pattern = config.count_or("_sliding_window_pattern", 6)?;
    let full = b.rope(rope_of(config, "full_attention", "rope_theta", 1_000_000.0, head_dim)?);
    let local = b.rope(rope_of(config, "sliding_attention", "rope_local_base_freq", 10_000.0, head_dim)?);
    let norm = |b: &mut Builder, name: &str, x: ValueId| {
        let gain = Some(b.vector(&format!("{name}.weight"), hidden));
        b.node(name, Op::Norm(Norm { gain, bias: None, layer: false, offset: 1.0, eps }), &[x], hidden)
    };
    let table = b.weight("embed_tokens.weight", config.count("vocab_size")?, hidden, WeightKind::Table);
    let scale = (hidden as f32).sqrt();
    let mut x = b.node("embed_tokens", Op::Embed { table, scale, ids: Ids::Tokens, soft: None }, &[], hidden);
    for index in 0..config.layers("num_hidden_layers")? {
        let name = |part: &str| format!("layers.{index}.{part}");
        let global = config.layer_type(index).map_or((index + 1) % pattern == 0, |t| t == "full_attention");
        let normed = norm(b, &name("input_layernorm"), x);
        let mut project = |part: &str, heads: usize| b.linear(&name(part), normed, heads * head_dim, false);
        let q = project("self_attn.q_proj", heads);
        let k = project("self_attn.k_proj", kv_heads);
        let v = project("self_attn.v_proj", kv_heads);
        let gains = b.vectors(&[name("self_attn.q_norm.weight"), name("self_attn.k_norm.weight")], head_dim);
        let mut attention = both_ways(heads, head_dim);
        attention.kv_heads = kv_heads;
        attention.scale = (config.number_or("query_pre_attn_scalar", head_dim as f64)? as f32).powf(-0.5);
        attention.softcap = config.number_or("attn_logit_softcapping", 0.0)? as f32;
        attention.head_norm = Some(HeadNorm { gains, offset: 1.0, eps, after_rope: false });
        attention.rope = Some(if global { full } else { local });
        if !global {
            attention.mask = Mask::Segment { before: reach, after: reach };
        }
        let mixed = b.node(&name("attention"), Op::Attention(attention), &[q, k, v], heads * head_dim);
        let mixed = b.linear(&name("self_attn.o_proj"), mixed, hidden, false);
        let mixed = norm(b, &name("post_attention_layernorm"), mixed);
        x = b.add(&name("attention_residual"), x, mixed);
        let normed = norm(b, &name("pre_feedforward_layernorm"), x);
        let gate = b.linear(&name("mlp.gate_proj"), normed, size, false);
        let up = b.linear(&name("mlp.up_proj"), normed, size, false);
        let gated = b.node(&name("mlp.gated"), Op::Gated(act), &[gate, up], size);
        let outer = b.linear(&name("mlp.down_proj"), gated, hidden, false);
        let outer = norm(b, &name("post_feedforward_layernorm"), outer);
        x = b.add(&name("residual"), x, outer);
    }
    let hidden = norm(b, "norm", x);
    Ok(Body { hidden, positions: Positions { first: 0, padding: None, most: usize::MAX, types: 0 } })
}
