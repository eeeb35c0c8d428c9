//! Maps GGUF tensor names to those of the original checkpoints and undoes what the conversion did
//! to the tensors. Family-specific facts are data from the caller ([`GgufSpec`]).

use super::{Gguf, GgufTensor, weight_source};
use crate::format::Weights;
use crate::format::encoding::{RowOrder, WeightSource};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// How GGUF files store a model family: differences from the common names and fields.
#[derive(Debug, Clone, Copy)]
pub struct GgufSpec {
    /// `general.architecture`.
    pub name: &'static str,
    /// Whether this entry is the variant with experts, if one name is used for both.
    pub has_experts: bool,
    /// The `model_type` in the original config.json.
    pub model_type: &'static str,
    /// The class in the original `architectures`.
    pub class: &'static str,
    /// Prefix of the layers in the original.
    pub layer_prefix: &'static str,
    /// Modules whose names differ from the common ones (of layers without `blk.N.`): GGUF's, the
    /// original's.
    pub names: &'static [(&'static str, &'static str)],
    /// Whether the rows of q and k are stored for interleaved RoPE.
    pub interleaved_rope: bool,
    /// Whether rows are stored in the orders of the family's original checkpoints.
    pub original_row_orders: bool,
    /// Whether norms store their weight plus one.
    pub norm_plus_one: bool,
    /// Whether sizes may differ between layers.
    pub varying_layer_sizes: bool,
    /// Further metadata fields: GGUF's name without the architecture, config.json's.
    pub extra_fields: &'static [(&'static str, &'static str)],
    /// Adds configuration fields that GGUF omits because the family fixes them.
    pub set_fixed_fields: fn(&Gguf, &mut Map<String, Value>),
}

impl GgufSpec {
    /// Creates a family with the common names, row order and fields.
    pub const fn new(name: &'static str, model_type: &'static str, class: &'static str) -> Self {
        Self {
            name,
            has_experts: false,
            model_type,
            class,
            layer_prefix: "model.layers",
            names: &[],
            interleaved_rope: false,
            original_row_orders: false,
            norm_plus_one: false,
            varying_layer_sizes: false,
            extra_fields: &[],
            set_fixed_fields: set_common_fields,
        }
    }
}

/// Sets the fields that most families fix: SiLU, and biases if the file has them.
pub fn set_common_fields(gguf: &Gguf, out: &mut Map<String, Value>) {
    out.entry("hidden_act").or_insert(json!("silu"));
    out.insert("attention_bias".into(), json!(gguf.has_qkv_bias()));
    out.insert(
        "mlp_bias".into(),
        json!(gguf.has_tensor("blk.0.ffn_up.bias")),
    );
}

/// Maximum layers whose types are read from a file.
const MAX_TYPED_LAYERS: u64 = 1024;

/// Sets `layer_types`: `with` for the layers that have `tensor`, else `without`. Returns the number
/// of layers.
pub fn set_layer_types(
    gguf: &Gguf,
    out: &mut Map<String, Value>,
    tensor: &str,
    [with, without]: [&str; 2],
) -> u64 {
    let layers = out
        .get("num_hidden_layers")
        .and_then(Value::as_u64)
        .unwrap_or(0)
        .min(MAX_TYPED_LAYERS);
    let types: Vec<&str> = (0..layers)
        .map(
            |layer| match gguf.has_tensor(&format!("blk.{layer}.{tensor}")) {
                true => with,
                false => without,
            },
        )
        .collect();
    out.insert("layer_types".into(), json!(types));
    layers
}

/// Common names of modules outside layers: GGUF's, the original's.
const GLOBAL_MODULES: [(&str, &str); 5] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("dense_2", "2_Dense/linear"),
    ("dense_3", "3_Dense/linear"),
];

/// Common names of modules in layers (`blk.N.*`): GGUF's, the original's.
const LAYER_MODULES: [(&str, &str); 23] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
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
];

/// The name mapping of one file.
pub(super) struct GgufNameMap<'a> {
    pub architecture: &'a GgufSpec,
    pub heads: Option<usize>,
    pub kv_heads: Option<usize>,
}

impl GgufNameMap<'_> {
    /// Adds the weights of a tensor; none for tensors that only inform the configuration.
    pub(super) fn add_weights(&self, tensor: &GgufTensor, out: &mut Weights) {
        let Some(name) = self.architecture.original_name(&tensor.name) else {
            return self.add_split_qkv(tensor, out);
        };
        let Some((before, after)) = name.split_once("{e}") else {
            out.insert(
                &name,
                weight_source(tensor, &name).and_then(|s| self.undo_conversion(s, &tensor.name)),
            );
            return;
        };
        let stacked = match weight_source(tensor, &name) {
            Ok(stacked) => stacked,
            Err(error) => return out.insert(&name, Err(error)),
        };
        // Each expert has a matrix, or a vector such as a bias.
        let (&experts, own) = match &tensor.shape[..] {
            [experts, own @ ..] if matches!(own.len(), 1 | 2) => (experts, own),
            _ => return,
        };
        let rows = if let [rows, _] = own { *rows } else { 1 };
        for e in 0..experts.min(4096) {
            let name = format!("{before}{e}{after}");
            if let Some(slice) = stacked.slice(&name, e.saturating_mul(rows), own.to_vec()) {
                out.insert(&name, Ok(slice));
            }
        }
    }

    /// Adds q, k and v of a tensor that joins their rows (`--fuse-qkv` of llama.cpp's conversion),
    /// for families without joined projections.
    fn add_split_qkv(&self, tensor: &GgufTensor, out: &mut Weights) {
        let Some((layer, kind)) = tensor.name.split_once("attn_qkv.") else {
            return;
        };
        let q = self.heads.unwrap_or(0);
        let kv = self.kv_heads.unwrap_or(0);
        let rows = tensor.shape.first().copied().unwrap_or(0);
        let all = kv.saturating_mul(2).saturating_add(q);
        let head_rows = rows.checked_div(all).unwrap_or(0);
        let mut first = 0;
        for (module, heads) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            let part = format!("{layer}{module}.{kind}");
            let Some(name) = self.architecture.original_name(&part) else {
                return;
            };
            let slice = weight_source(tensor, &name).and_then(|stacked| {
                stacked
                    .slice_rows(&name, first, heads * head_rows)
                    .filter(|_| head_rows * all == rows)
                    .ok_or_else(|| self.wrong_head_count(rows, &tensor.name))
            });
            out.insert(&name, slice.and_then(|s| self.undo_conversion(s, &part)));
            first += heads * head_rows;
        }
    }

    fn wrong_head_count(&self, rows: usize, tensor: &str) -> Error {
        let architecture = self.architecture.name;
        Error::Config {
            file: "GGUF metadata".into(),
            reason: format!(
                "{architecture}.attention.head_count does not divide the {rows} rows of {tensor}"
            ),
        }
    }

    /// Undoes what the conversion did to the tensor of this name.
    fn undo_conversion(&self, mut source: WeightSource, tensor: &str) -> Result<WeightSource> {
        let gated_norm = source.name.ends_with("linear_attn.norm.weight");
        if self.architecture.norm_plus_one && source.name.ends_with("norm.weight") && !gated_norm {
            source.offset = -1.0;
        }
        if source.name.ends_with("conv.conv.weight") && source.shape.len() == 2 {
            source.shape.insert(1, 1);
        }
        let heads = match tensor.rsplit('.').nth(1) {
            Some("attn_q") if self.architecture.interleaved_rope => self.heads,
            Some("attn_k") if self.architecture.interleaved_rope => self.kv_heads,
            _ => return Ok(source),
        };
        let rows = source.shape.first().copied().unwrap_or(0);
        let head_rows = heads.and_then(|h| rows.checked_div(h)).unwrap_or(0);
        if head_rows == 0 || head_rows % 2 != 0 || heads.is_none_or(|h| h * head_rows != rows) {
            return Err(self.wrong_head_count(rows, tensor));
        }
        source.row_order = RowOrder::Interleaved { head_rows };
        Ok(source)
    }
}

impl GgufSpec {
    /// The original's name of a tensor; `None` for tensors that are not weights. `{e}` is a
    /// placeholder for the expert index.
    pub fn original_name(&self, tensor: &str) -> Option<String> {
        let find = |common: &[(&'static str, &'static str)], module: &str| {
            let all = self.names.iter().chain(common);
            all.copied()
                .find(|n| n.0 == module)
                .map(|n| n.1)
                .filter(|n| !n.is_empty())
        };
        if let Some(rest) = tensor.strip_prefix("blk.") {
            let (layer, rest) = rest.split_once('.')?;
            layer.parse::<u32>().ok()?;
            // Some entries name a whole tensor.
            if let Some((_, name)) = self.names.iter().find(|n| n.0 == rest) {
                return Some(format!("{}.{layer}.{name}", self.layer_prefix));
            }
            let (module, kind) = rest.rsplit_once('.')?;
            return Some(format!(
                "{}.{layer}.{}.{kind}",
                self.layer_prefix,
                find(&LAYER_MODULES, module)?
            ));
        }
        let (module, kind) = tensor.rsplit_once('.')?;
        Some(format!("{}.{kind}", find(&GLOBAL_MODULES, module)?))
    }
}
