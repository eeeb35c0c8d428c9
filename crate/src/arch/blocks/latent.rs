//! Multi-head latent attention (MLA, DeepSeek). Keys and values are expanded before they are
//! cached, so that plain attention reads them.

use super::{MAX_HEAD_DIM, NormSpec, norm};
use crate::arch::config::Config;
use crate::ir::{
    Attention, ConcatHeads, GraphBuilder, HeadSlice, Linear, Mask, RopeScaling, RopeSpec,
    StateSpec, ValueId, WeightKind,
};
use crate::{Error, Result};

/// Options of latent attention. Only part of each head is rotated; that part of the keys is shared
/// by all heads.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentSpec {
    /// Attention heads.
    pub heads: usize,
    /// Columns of the query latent, if any.
    query_rank: Option<usize>,
    /// Columns of the latent of keys and values.
    kv_rank: usize,
    /// Columns of a head without RoPE, with RoPE, and of its values.
    nope_dim: usize,
    rope_dim: usize,
    value_dim: usize,
    rope: RopeSpec,
    scale: f32,
    bias: bool,
    /// Whether the projections of the latent to keys (per head) and to values are tensors of their
    /// own.
    separate: bool,
}

impl LatentSpec {
    /// Reads the fields of DeepSeek's configurations.
    ///
    /// # Errors
    /// `Config` or `UnsupportedOption`, naming the field.
    pub fn from_config(config: Config<'_>, interleaved: bool) -> Result<Self> {
        let plain = config.count("qk_nope_head_dim")?;
        let rotated = config.count("qk_rope_head_dim")?;

        let value = config.count("v_head_dim")?;
        let latent = config.count("kv_lora_rank")?;

        let head = plain + rotated;
        if [plain, rotated, value, latent].iter().any(|n| n % 4 != 0)
            || head > MAX_HEAD_DIM
            || value > head
        {
            return Err(Error::UnsupportedOption {
                architecture: config.architecture(),
                option: format!(
                    "head dimension {plain} + {rotated}, value dimension {value}, latent {latent}"
                ),
                hint: format!(
                    "Dimensions must be multiples of 4, heads at most {MAX_HEAD_DIM}, values no wider than keys."
                ),
            });
        }
        let mut rope = config.rope(rotated, 10_000.0)?;
        rope.interleaved = interleaved;
        let mut scale = (head as f64).powf(-0.5);
        if let RopeScaling::Yarn { factor, .. } = rope.scaling {
            let s = config
                .nested("rope_parameters")
                .or_else(|| config.nested("rope_scaling"));
            let all = s.map_or(Ok(0.0), |s| s.number_or("mscale_all_dim", 0.0))?;
            if all != 0.0 && factor > 1.0 {
                scale *= (0.1 * all * factor.ln() + 1.0).powi(2);
            }
        }
        let query = config
            .get("q_lora_rank")
            .map(|_| config.count("q_lora_rank"))
            .transpose()?;
        let heads = config.heads()?.0;
        let bias = config.flag_or("attention_bias", false);

        Ok(Self {
            heads,
            query_rank: query,
            kv_rank: latent,
            nope_dim: plain,
            rope_dim: rotated,
            value_dim: value,
            rope,
            scale: scale as f32,
            bias,
            separate: config.load().separate_latents,
        })
    }

    /// Returns the columns of a head of queries and keys.
    pub fn head_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }
}

/// Adds latent attention over `x` `[rows, cols]` with tensors under `path`; returns `[rows, cols]`.
pub fn latent_attention(
    b: &mut GraphBuilder,
    path: &str,
    spec: &LatentSpec,
    x: ValueId,
) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let LatentSpec {
        heads,
        kv_rank: latent,
        nope_dim: plain,
        rope_dim: rotated,
        value_dim: value,
        ..
    } = *spec;
    let dim = spec.head_dim();
    // The norms of latents use transformers' fixed epsilon.
    let norms = NormSpec::rms(1e-6);
    let q = match spec.query_rank {
        Some(rank) => {
            let q = b.linear(&name("q_a_proj"), x, rank, spec.bias);
            let q = norm(b, &name("q_a_layernorm"), norms, q);
            b.linear(&name("q_b_proj"), q, heads * dim, false)
        }
        None => b.linear(&name("q_proj"), x, heads * dim, false),
    };
    let both = b.linear(&name("kv_a_proj_with_mqa"), x, latent + rotated, spec.bias);
    let kv = b.view(&name("kv"), both, 0, latent);
    let k_rotated = b.view(&name("k_rotated"), both, latent, rotated);

    let kv = norm(b, &name("kv_a_layernorm"), norms, kv);
    // Keys and values, each with the first column and the step of its heads.
    let (k, v) = if spec.separate {
        let parts = (0..heads).map(|head| (name(&format!("embed_q.{head}.weight")), plain));
        let weight = b.stacked(parts.collect(), latent, WeightKind::Matrix);
        let linear = Linear::new(weight, None);
        let k = b.node(&name("embed_q"), linear, &[kv], heads * plain);
        let v = b.linear(&name("unembed_out"), kv, heads * value, false);
        ((k, 0, plain), (v, 0, value))
    } else {
        let both = b.linear(&name("kv_b_proj"), kv, heads * (plain + value), false);
        ((both, 0, plain + value), (both, plain, plain + value))
    };
    let part = |first, step, cols| HeadSlice { first, step, cols };
    let put = |b: &mut GraphBuilder,
               what: &str,
               head_dim: usize,
               parts: Vec<HeadSlice>,
               inputs: &[ValueId]| {
        b.node(
            &name(what),
            ConcatHeads { head_dim, parts },
            inputs,
            heads * head_dim,
        )
    };
    // RoPE rotates the first columns of a head; scores do not depend on the column order.
    let q = put(
        b,
        "q",
        dim,
        vec![part(plain, dim, rotated), part(0, dim, plain)],
        &[q, q],
    );
    let k = put(
        b,
        "k",
        dim,
        vec![part(0, 0, rotated), part(k.1, k.2, plain)],
        &[k_rotated, k.0],
    );
    let v = put(b, "v", dim, vec![part(v.1, v.2, value)], &[v.0]);
    let attention = Attention {
        heads,
        kv_heads: heads,
        head_dim: dim,
        scale: spec.scale,
        mask: Mask::Causal { window: 0 },
        softcap: 0.0,
        relative: None,
        sinks: None,
        head_norm: None,
        rope: Some(b.rope(spec.rope.clone())),
        state: Some(b.state(StateSpec::Kv {
            kv_heads: heads,
            head_dim: dim,
            window: 0,
        })),
    };
    let mixed = b.node(&name("attention"), attention, &[q, k, v], heads * dim);
    let mixed = put(b, "values", value, vec![part(0, dim, value)], &[mixed]);
    let cols = b.cols(x);
    b.linear(&name("o_proj"), mixed, cols, spec.bias)
}
