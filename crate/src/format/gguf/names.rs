//! Tensor names of GGUF files to those of the original checkpoints, with what the conversion did to the tensors.
//! Knows no bytes.

use super::{Gguf, GgufTensor, source};
use crate::format::Weights;
use crate::format::encoding::{RowOrder, WeightSource};
use crate::{Error, Result};

/// How a family's tensors differ from the common names.
#[derive(Clone, Copy, PartialEq)]
enum Family {
    /// Llama and what is stored like it: q and k rows in interleaved order.
    Llama,
    /// The common names, rows as they were.
    Plain,
    Phi3,
    /// Norms hold their weight plus one; four norms per layer.
    Gemma,
    Lfm2,
    Bert,
}

/// Architectures that are mapped, by `general.architecture`.
const FAMILIES: [(&str, Family); 19] = [
    ("llama", Family::Llama),
    ("granite", Family::Llama),
    ("smollm3", Family::Llama),
    ("qwen2", Family::Plain),
    ("qwen3", Family::Plain),
    ("qwen2moe", Family::Plain),
    ("qwen3moe", Family::Plain),
    ("olmo2", Family::Plain),
    ("ernie4_5", Family::Plain),
    ("starcoder2", Family::Plain),
    ("bitnet", Family::Plain),
    ("bitnet-b1.58", Family::Plain),
    ("phi3", Family::Phi3),
    ("gemma", Family::Gemma),
    ("gemma2", Family::Gemma),
    ("gemma3", Family::Gemma),
    ("gemma-embedding", Family::Gemma),
    ("lfm2", Family::Lfm2),
    ("bert", Family::Bert),
];

/// The names of GGUF's `blk.N.*` modules in the originals' `model.layers.N.*`.
const LAYER: [(&str, &str); 25] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_sub_norm", "self_attn.attn_sub_norm"),
    ("ffn_sub_norm", "mlp.ffn_sub_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{e}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{e}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{e}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("attn_rot_embd", ""),
];

/// Where families differ from [`LAYER`].
fn layer_override(family: Family, module: &str) -> Option<&'static str> {
    Some(match (family, module) {
        (Family::Phi3, "ffn_up") => "mlp.gate_up_proj",
        (Family::Gemma, "ffn_norm") => "pre_feedforward_layernorm",
        (Family::Lfm2, "attn_norm") => "operator_norm",
        (Family::Lfm2, "ffn_norm") => "ffn_norm",
        (Family::Lfm2, "attn_output") => "self_attn.out_proj",
        (Family::Lfm2, "attn_q_norm") => "self_attn.q_layernorm",
        (Family::Lfm2, "attn_k_norm") => "self_attn.k_layernorm",
        (Family::Lfm2, "ffn_gate") => "feed_forward.w1",
        (Family::Lfm2, "ffn_up") => "feed_forward.w3",
        (Family::Lfm2, "ffn_down") => "feed_forward.w2",
        (Family::Lfm2, "shortconv.conv") => "conv.conv",
        (Family::Lfm2, "shortconv.in_proj") => "conv.in_proj",
        (Family::Lfm2, "shortconv.out_proj") => "conv.out_proj",
        (Family::Bert, "attn_q") => "attention.self.query",
        (Family::Bert, "attn_k") => "attention.self.key",
        (Family::Bert, "attn_v") => "attention.self.value",
        (Family::Bert, "attn_output") => "attention.output.dense",
        (Family::Bert, "attn_output_norm") => "attention.output.LayerNorm",
        (Family::Bert, "ffn_up") => "intermediate.dense",
        (Family::Bert, "ffn_down") => "output.dense",
        (Family::Bert, "layer_output_norm") => "output.LayerNorm",
        _ => return None,
    })
}

/// The map of one file.
pub(super) struct Map<'a> {
    architecture: &'a str,
    family: Family,
    mixtral: bool,
    heads: Option<usize>,
    kv_heads: Option<usize>,
}

impl<'a> Map<'a> {
    pub(super) fn new(gguf: &'a Gguf, heads: Option<usize>, kv_heads: Option<usize>) -> Result<Map<'a>> {
        let architecture = gguf.architecture();
        let family = FAMILIES.iter().find(|f| f.0 == architecture).map(|f| f.1);
        let family = family.ok_or_else(|| unknown(architecture))?;
        let mixtral = architecture == "llama" && gguf.int("llama.expert_count").is_some_and(|n| n > 0);
        Ok(Map { architecture, family, mixtral, heads, kv_heads })
    }

    /// Adds the weights that a tensor holds; none for tensors that only inform the configuration.
    pub(super) fn sources(&self, tensor: &GgufTensor, out: &mut Weights) {
        let Some(name) = self.name(&tensor.name) else { return };
        let Some((before, after)) = name.split_once("{e}") else {
            out.insert(&name, source(tensor, &name).and_then(|s| self.adjusted(s, tensor)));
            return;
        };
        let stacked = match source(tensor, &name) {
            Ok(stacked) => stacked,
            Err(error) => return out.insert(&name, Err(error)),
        };
        let &[experts, n, k] = &tensor.shape[..] else { return };
        for e in 0..experts.min(4096) {
            let name = format!("{before}{e}{after}");
            if let Some(slice) = stacked.slice(&name, e.saturating_mul(n), vec![n, k]) {
                out.insert(&name, Ok(slice));
            }
        }
    }

    /// The original's name of a tensor.
    fn name(&self, gguf: &str) -> Option<String> {
        if let Some(rest) = gguf.strip_prefix("blk.") {
            let (layer, rest) = rest.split_once('.')?;
            let (module, kind) = rest.rsplit_once('.')?;
            layer.parse::<u32>().ok()?;
            let common = || LAYER.iter().find(|l| l.0 == module).map(|l| l.1).filter(|n| !n.is_empty());
            let module = layer_override(self.family, module).or_else(common)?;
            let prefix = if self.family == Family::Bert { "encoder.layer" } else { "model.layers" };
            let module = if self.mixtral { mixtral(module) } else { module };
            return Some(format!("{prefix}.{layer}.{module}.{kind}"));
        }
        let (module, kind) = gguf.rsplit_once('.')?;
        let name = match (self.family, module) {
            (Family::Bert, "token_embd") => "embeddings.word_embeddings",
            (Family::Bert, "position_embd") => "embeddings.position_embeddings",
            (Family::Bert, "token_types") => "embeddings.token_type_embeddings",
            (Family::Bert, "token_embd_norm") => "embeddings.LayerNorm",
            (Family::Lfm2, "token_embd_norm") => "model.embedding_norm",
            (_, "token_embd") => "model.embed_tokens",
            (_, "output_norm") => "model.norm",
            (_, "output") => "lm_head",
            _ => return None,
        };
        Some(format!("{name}.{kind}"))
    }

    /// Undoes what the conversion did to a tensor.
    fn adjusted(&self, mut source: WeightSource, tensor: &GgufTensor) -> Result<WeightSource> {
        if self.family == Family::Gemma && source.name.ends_with("norm.weight") {
            source.offset = -1.0;
        }
        if source.name.ends_with("conv.conv.weight") && source.shape.len() == 2 {
            source.shape.insert(1, 1);
        }
        let heads = match (self.family, tensor.name.rsplit('.').nth(1)) {
            (Family::Llama, Some("attn_q")) => self.heads,
            (Family::Llama, Some("attn_k")) => self.kv_heads,
            _ => return Ok(source),
        };
        let rows = source.shape.first().copied().unwrap_or(0);
        let head_rows = heads.and_then(|h| rows.checked_div(h)).unwrap_or(0);
        if head_rows == 0 || head_rows % 2 != 0 || heads.is_none_or(|h| h * head_rows != rows) {
            let architecture = self.architecture;
            let reason =
                format!("{architecture}.attention.head_count does not divide the {rows} rows of {}", tensor.name);
            return Err(Error::Config { file: "GGUF metadata".into(), reason });
        }
        source.row_order = RowOrder::Interleaved { head_rows };
        Ok(source)
    }
}

/// Mixtral's names for its experts; GGUF calls it llama.
fn mixtral(module: &'static str) -> &'static str {
    match module {
        "mlp.gate" => "block_sparse_moe.gate",
        "mlp.experts.{e}.gate_proj" => "block_sparse_moe.experts.{e}.w1",
        "mlp.experts.{e}.up_proj" => "block_sparse_moe.experts.{e}.w3",
        "mlp.experts.{e}.down_proj" => "block_sparse_moe.experts.{e}.w2",
        other => other,
    }
}

/// The error for an architecture that is not mapped.
pub(super) fn unknown(architecture: &str) -> Error {
    let supported: Vec<&str> = FAMILIES.iter().map(|f| f.0).collect();
    Error::UnknownArchitecture { name: format!("GGUF {architecture}"), supported: supported.join(", ") }
}
