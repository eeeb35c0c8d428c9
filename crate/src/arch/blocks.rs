//! What dense decoder families share: the layer loop, attention and the gated MLP, with the differences as data.
//! The order of operations is that of transformers' `modeling_llama.py`.

use super::config::Config;
use crate::Result;
use crate::ir::{
    Activation, Attention, Builder, Graph, HeadNorm, Ids, Linear, Mask, Norm, Op, RopeSpec, StateSpec, ValueId,
    WeightKind,
};

/// The widest heads that attention over a cache takes.
const WIDEST_HEAD: usize = 256;

/// How a layer differs from its neighbours.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    /// Sliding window; 0 for full attention.
    pub window: usize,
    /// The rotation; none for layers without.
    pub rope: Option<RopeSpec>,
}

/// A dense decoder by its sizes and switches.
#[derive(Debug, Clone)]
pub struct Dense {
    /// The architecture's name.
    pub name: String,
    /// Prefix of the tensors' names, `model.` as a rule.
    pub prefix: String,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Columns of the MLP.
    pub intermediate: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Activation of the MLP's gate.
    pub act: Activation,
    /// Whether the output head is the embedding table.
    pub tied: bool,
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// Bias of the output projection.
    pub o_bias: bool,
    /// Biases of the MLP.
    pub mlp_bias: bool,
    /// RMSNorm of each head of q and k before the rotation.
    pub head_norm: bool,
    /// q, k and v are one tensor `qkv_proj`.
    pub fused_qkv: bool,
    /// Gate and up are one tensor `gate_up_proj`.
    pub fused_gate_up: bool,
    /// The layers.
    pub layers: Vec<Layer>,
}

impl Dense {
    /// The sizes that every family names alike; switches off, full attention with rotation in every layer.
    pub fn from_config(config: Config<'_>, tied_by_default: bool) -> Result<Self> {
        let (heads, kv_heads) = config.heads()?;
        let hidden = config.count("hidden_size")?;
        let head_dim = config.head_dim(hidden, heads, WIDEST_HEAD)?;
        let rope = config.rope(head_dim, 10_000.0)?;
        let layers = config.layers("num_hidden_layers")?;
        Ok(Self {
            name: config.architecture(),
            prefix: "model.".into(),
            hidden,
            intermediate: config.count("intermediate_size")?,
            vocab: config.count("vocab_size")?,
            heads,
            kv_heads,
            head_dim,
            eps: config.number_or("rms_norm_eps", 1e-6)? as f32,
            act: config.activation("hidden_act", "silu")?,
            tied: config.flag_or("tie_word_embeddings", tied_by_default),
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            head_norm: false,
            fused_qkv: false,
            fused_gate_up: false,
            layers: vec![Layer { window: 0, rope: Some(rope) }; layers],
        })
    }

    /// The whole decoder, from token ids to logits.
    pub fn graph(&self) -> Result<Graph> {
        let mut b = Builder::new(&self.name);
        let table_name = format!("{}embed_tokens.weight", self.prefix);
        let table = b.weight(&table_name, self.vocab, self.hidden, WeightKind::Table);
        let mut h = b.node("embed", Op::Embed { table, scale: 1.0, ids: Ids::Tokens, soft: None }, &[], self.hidden);
        for (index, layer) in self.layers.iter().enumerate() {
            let path = format!("{}layers.{index}", self.prefix);
            let x = self.norm(&mut b, &format!("{path}.input_layernorm"), h);
            let x = self.attention(&mut b, &path, layer, x);
            h = b.add(&format!("{path}.attention_residual"), h, x);
            let x = self.norm(&mut b, &format!("{path}.post_attention_layernorm"), h);
            let x = self.mlp(&mut b, &path, x);
            h = b.add(&format!("{path}.mlp_residual"), h, x);
        }
        let last = b.node("last_row", Op::LastRow, &[h], self.hidden);
        let hidden = self.norm(&mut b, &format!("{}norm", self.prefix), last);
        let head =
            if self.tied { table } else { b.weight("lm_head.weight", self.vocab, self.hidden, WeightKind::Table) };
        let logits = b.node("logits", Op::Linear(Linear::new(head, None)), &[hidden], self.vocab);
        b.finish(hidden, Some(logits))
    }

    fn norm(&self, b: &mut Builder, name: &str, x: ValueId) -> ValueId {
        let gain = b.vector(&format!("{name}.weight"), self.hidden);
        let norm = Norm { gain: Some(gain), bias: None, layer: false, offset: 0.0, eps: self.eps };
        b.node(name, Op::Norm(norm), &[x], self.hidden)
    }

    fn attention(&self, b: &mut Builder, path: &str, layer: &Layer, x: ValueId) -> ValueId {
        let (q_cols, kv_cols) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let name = |part: &str| format!("{path}.self_attn.{part}");
        let [q, k, v] = if self.fused_qkv {
            let qkv = b.linear(&name("qkv_proj"), x, q_cols + 2 * kv_cols, self.qkv_bias);
            let view = |b: &mut Builder, part: &str, first, cols| b.view(&name(part), qkv, first, cols);
            [view(b, "q", 0, q_cols), view(b, "k", q_cols, kv_cols), view(b, "v", q_cols + kv_cols, kv_cols)]
        } else {
            let project = |b: &mut Builder, part: &str, cols| b.linear(&name(part), x, cols, self.qkv_bias);
            [project(b, "q_proj", q_cols), project(b, "k_proj", kv_cols), project(b, "v_proj", kv_cols)]
        };
        let head_norm = self.head_norm.then(|| HeadNorm {
            gains: b.vectors(&[name("q_norm.weight"), name("k_norm.weight")], self.head_dim),
            offset: 0.0,
            eps: self.eps,
            after_rope: false,
        });
        let attention = Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: (self.head_dim as f32).powf(-0.5),
            mask: Mask::Causal { window: layer.window },
            softcap: 0.0,
            relative: None,
            sinks: None,
            head_norm,
            rope: layer.rope.clone().map(|r| b.rope(r)),
            state: Some(b.state(StateSpec::Kv {
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                window: layer.window,
            })),
        };
        let mixed = b.node(&name("attention"), Op::Attention(attention), &[q, k, v], q_cols);
        b.linear(&name("o_proj"), mixed, self.hidden, self.o_bias)
    }

    fn mlp(&self, b: &mut Builder, path: &str, x: ValueId) -> ValueId {
        let name = |part: &str| format!("{path}.mlp.{part}");
        let size = self.intermediate;
        let (gate, up) = if self.fused_gate_up {
            let both = b.linear(&name("gate_up_proj"), x, 2 * size, self.mlp_bias);
            (b.view(&name("gate"), both, 0, size), b.view(&name("up"), both, size, size))
        } else {
            (b.linear(&name("gate_proj"), x, size, self.mlp_bias), b.linear(&name("up_proj"), x, size, self.mlp_bias))
        };
        let gated = b.node(&name("gated"), Op::Gated(self.act), &[gate, up], size);
        b.linear(&name("down_proj"), gated, self.hidden, self.mlp_bias)
    }
}
