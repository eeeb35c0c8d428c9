//! Gemma 4 (text). Full-attention layers have another head dimension, and the last layers share KV
//! caches. Also: norms of values, per-layer embeddings, experts parallel to the MLP, a scalar at
//! the end of each layer. Reference: transformers `modeling_gemma4.py`.

use super::blocks::experts::{ExpertTensors, ExpertsSpec, top_k_experts};
use super::blocks::{
    AttentionSpec, DenseDecoder, MlpSpec, NormSpec, QkvProjections, attention, embed, linear_act,
    mlp, norm, norm_per_group,
};
use super::config::Config;
use super::family::Family;
use super::qwen::head_norm;
use super::vision::gemma4::GEMMA4;
use crate::format::gguf::{Gguf, GgufSpec, MetadataValue as Meta};
use crate::ir::{
    Activation, Gated, Graph, GraphBuilder, IdSource, Linear, Mask, MulVector, Norm, Scale,
    StateId, ValueId, WeightKind,
};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// GGUF files without experts; those with experts have the same name.
const IN_GGUF: GgufSpec = GgufSpec {
    names: &[
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
        ("layer_output_scale.weight", "layer_scalar"),
        ("per_layer_token_embd", "model.embed_tokens_per_layer"),
        ("per_layer_model_proj", "model.per_layer_model_projection"),
        ("per_layer_proj_norm", "model.per_layer_projection_norm"),
        ("ffn_gate_inp.scale", "router.scale"),
        ("ffn_gate_inp", "router.proj"),
        ("ffn_gate_up_exps", "experts.{e}.gate_up_proj"),
        ("ffn_gate_exps", "experts.{e}.gate_proj"),
        ("ffn_up_exps", "experts.{e}.up_proj"),
        ("ffn_down_exps.scale", "router.per_expert_scale"),
        ("ffn_down_exps", "experts.{e}.down_proj"),
        ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
        ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
        ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ],
    extra_fields: &[
        ("attention.shared_kv_layers", "num_kv_shared_layers"),
        (
            "embedding_length_per_layer_input",
            "hidden_size_per_layer_input",
        ),
    ],
    set_fixed_fields: gguf_fields,
    varying_layer_sizes: true,
    ..GgufSpec::new("gemma4", "gemma4_text", "Gemma4ForCausalLM")
};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    model_types: &["gemma4_text", "gemma4"],
    defaults: r#"{"vocab_size": 262144, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144, "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}}}"#,
    decoder: Some(gemma4),
    gguf: &[
        IN_GGUF,
        GgufSpec {
            has_experts: true,
            ..IN_GGUF
        },
    ],
    vision: Some(GEMMA4),
    ..Family::EMPTY
}];

/// Sets the fields that GGUF files store per layer or imply by tensors, in the names of
/// config.json.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    let list = |key: &str| match file.field(key) {
        Some(Meta::Ints(list)) => list.clone(),
        one => one.and_then(Meta::as_i64).into_iter().collect(),
    };
    let sliding: Vec<bool> = list("attention.sliding_window_pattern")
        .into_iter()
        .map(|s| s != 0)
        .collect();
    let own = |i: usize, part: &str| file.has_tensor(&format!("blk.{i}.{part}.weight"));
    let same = (0..sliding.len()).any(|i| !sliding[i] && own(i, "attn_k") && !own(i, "attn_v"));
    let heads = list("attention.head_count_kv");
    let widths = list("feed_forward_length");

    let of_kind = |slides: bool| {
        heads
            .iter()
            .zip(&sliding)
            .find(|(_, s)| **s == slides)
            .map(|(heads, _)| *heads)
    };
    let least = widths.iter().min();
    let table = file
        .tensors
        .get("per_layer_token_embd.weight")
        .and_then(|t| t.shape.first());
    // Full-attention layers do not rotate the pairs with very large factors.
    let factors = out
        .get("rope_scaling")
        .and_then(|r| r.get("long_factor"))
        .and_then(Value::as_array);
    let share = factors.map_or(0.25, |all| {
        all.iter()
            .filter(|f| f.as_f64().is_some_and(|f| f < 2.0))
            .count() as f64
            / all.len().max(1) as f64
    });
    let rope = json!({
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": out.get("rope_theta")},
        "sliding_attention": {"rope_type": "default", "rope_theta": out.get("rope_local_base_freq")},
    });
    let fields = [
        ("global_head_dim", json!(out.get("head_dim"))),
        (
            "head_dim",
            json!(
                file.float_field("attention.key_length_swa")
                    .map(|n| n as u64)
            ),
        ),
        ("attention_k_eq_v", json!(same)),
        (
            "num_key_value_heads",
            json!(of_kind(true).or(heads.first().copied())),
        ),
        ("num_global_key_value_heads", json!(of_kind(false))),
        ("intermediate_size", json!(least)),
        ("use_double_wide_mlp", json!(widths.iter().max() > least)),
        ("enable_moe_block", json!(own(0, "ffn_gate_inp"))),
        ("vocab_size_per_layer_input", json!(table)),
        ("rope_parameters", rope),
        ("rope_scaling", Value::Null),
        ("partial_rotary_factor", Value::Null),
    ];
    out.extend(fields.map(|(key, value)| (key.to_string(), value)));
}

/// `Gemma4ForCausalLM`, and the text part of `Gemma4ForConditionalGeneration`.
fn gemma4(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, true)?;
    dense.embed_scale = (dense.hidden as f32).sqrt();
    dense.logits_softcap = config.number_or("final_logit_softcapping", 0.0)? as f32;
    let layers = layers(config, &dense)?;
    let mut b = GraphBuilder::new(&dense.name);
    let mut x = dense.embed_tokens(&mut b);
    let own = per_layer_inputs(config, &mut b, &dense, x)?;
    // KV cache of the last layer of each type that has its own: [sliding window, full].
    let mut states: [Option<StateId>; 2] = [None, None];
    for (index, layer) in layers.iter().enumerate() {
        let path = format!("model.layers.{index}");
        let mut spec = layer.attention.clone();
        let kind = usize::from(layer.full);
        if layer.shares_kv {
            spec.shared_kv = Some(states[kind].ok_or_else(|| missing_shared_kv(config))?);
        } else {
            states[kind] = Some(StateId(b.graph().states.len()));
        }
        x = self::layer(&mut b, &path, &spec, layer, dense.norm, x);
        if let Some((values, cols)) = own {
            let own = b.view(
                &format!("{path}.per_layer_input"),
                values,
                index * cols,
                cols,
            );
            let made = per_layer_output(&mut b, &path, layer.mlp.act, dense.norm, x, own);
            x = b.add(&format!("{path}.per_layer_residual"), x, made);
        }
        let scalar = b.vector(&format!("{path}.layer_scalar"), 1);
        x = b.node(
            &format!("{path}.scaled"),
            MulVector(scalar),
            &[x],
            dense.hidden,
        );
    }
    dense.finish(b, x)
}

pub(super) fn missing_shared_kv(config: Config<'_>) -> Error {
    let reason =
        "'num_kv_shared_layers' is too large: a shared layer has no earlier layer of its type with a KV cache".into();
    Error::Config {
        file: format!("config.json of {}", config.architecture()),
        reason,
    }
}

/// Options of a layer.
struct Gemma4Layer {
    attention: AttentionSpec,
    mlp: MlpSpec,
    experts: Option<ExpertsSpec>,
    full: bool,
    shares_kv: bool,
}

fn layers(config: Config<'_>, dense: &DenseDecoder) -> Result<Vec<Gemma4Layer>> {
    let count = dense.layers.len();
    let shared = config.number_or("num_kv_shared_layers", 0.0)? as usize;
    let double = config.flag_or("use_double_wide_mlp", false);
    let same = config.flag_or("attention_k_eq_v", false);
    let window = config.count_or("sliding_window", 512)?;
    let act = config.activation("hidden_activation", "gelu_pytorch_tanh")?;
    let wide = config.count_or("global_head_dim", 512)?;
    let experts = config
        .flag_or("enable_moe_block", false)
        .then(|| experts(config, act))
        .transpose()?;
    let mut out = Vec::with_capacity(count);
    for (index, layer) in dense.layers.iter().enumerate() {
        let mut attention = layer.attention.clone();
        let mut mlp = layer.mlp.clone();

        // Without `layer_types` every sixth layer has full attention; the last one always does.
        let silent = if (index + 1).is_multiple_of(6) {
            "full_attention"
        } else {
            "sliding_attention"
        };
        let last = index + 1 == count;
        let kind = if last {
            "full_attention"
        } else {
            config.layer_type(index).unwrap_or(silent)
        };
        let full = kind == "full_attention";
        let shares = index + shared >= count;

        // Newer files list differences by layer.
        let named = config.get("per_layer_config");
        // Layer numbers can have leading zeros.
        let fits = |(key, _): &(&String, &Value)| key.parse() == Ok(index);
        if let Some(own) = named
            .and_then(|all| all.as_object()?.iter().find(fits))
            .map(|(_, own)| config.with_fields(own))
        {
            attention.heads.dim = own.count_or("head_dim", attention.heads.dim)?;
            attention.heads.kv = own.count_or("num_key_value_heads", attention.heads.kv)?;
        } else if full && named.is_none() {
            attention.heads.dim = wide;
            if same {
                attention.heads.kv =
                    config.count_or("num_global_key_value_heads", attention.heads.kv)?;
            }
        }
        let default = if full { 1_000_000.0 } else { 10_000.0 };
        attention.rope = Some(config.rope_for_type(kind, attention.heads.dim, default)?);
        attention.mask = Mask::Causal {
            window: if full { 0 } else { window },
        };
        attention.scores.scale = 1.0;
        attention.qkv.norm = Some(head_norm(dense.norm));
        attention.qkv.value_norm = Some(dense.norm.eps);
        if same && full {
            attention.qkv.projections = QkvProjections::KeysAsValues(["q_proj", "k_proj"]);
        }
        mlp.act = act;
        if double && shares {
            mlp.size *= 2;
        }
        out.push(Gemma4Layer {
            attention,
            mlp,
            experts: experts.clone(),
            full,
            shares_kv: shares,
        });
    }
    Ok(out)
}

/// Reads the experts; gate and up are one tensor unless the checkpoint says otherwise.
fn experts(config: Config<'_>, act: Activation) -> Result<ExpertsSpec> {
    let mut spec = ExpertsSpec::from_config(config, "moe_intermediate_size")?;
    if config.load().fused_experts.unwrap_or(true) {
        spec.up = ExpertTensors::Fused("gate_up_proj");
    }
    Ok(ExpertsSpec {
        act,
        renormalize: true,
        expert_scale: Some("router.per_expert_scale"),
        ..spec
    })
}

fn layer(
    b: &mut GraphBuilder,
    path: &str,
    spec: &AttentionSpec,
    layer: &Gemma4Layer,
    norms: NormSpec,
    x: ValueId,
) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let read = norm(b, &name("input_layernorm"), norms, x);
    let mixed = attention(b, &name("self_attn"), spec, read);
    let mixed = norm(b, &name("post_attention_layernorm"), norms, mixed);
    let x = b.add(&name("attention_residual"), x, mixed);
    let read = norm(b, &name("pre_feedforward_layernorm"), norms, x);
    let mut outer = mlp(b, &name("mlp"), &layer.mlp, read);
    if let Some(experts) = &layer.experts {
        let own = norm(b, &name("post_feedforward_layernorm_1"), norms, outer);
        let routed = parallel_experts(b, path, experts, norms, x);
        outer = b.add(&name("experts_added"), own, routed);
    }
    let outer = norm(b, &name("post_feedforward_layernorm"), norms, outer);
    b.add(&name("mlp_residual"), x, outer)
}

/// Adds the experts on the MLP's input, with separate norms for the experts and the router.
fn parallel_experts(
    b: &mut GraphBuilder,
    path: &str,
    experts: &ExpertsSpec,
    norms: NormSpec,
    x: ValueId,
) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let cols = b.cols(x);
    let gain = Some(b.vector(&name("router.scale"), cols));
    let seen = Norm {
        gain,
        bias: None,
        layer: false,
        offset: 0.0,
        eps: norms.eps,
    };
    let seen = b.node(&name("router.norm"), seen, &[x], cols);
    let weight = b.weight(
        &name("router.proj.weight"),
        experts.count,
        cols,
        WeightKind::Router,
    );
    let router = Linear {
        scale: (cols as f32).powf(-0.5),
        ..Linear::new(weight, None)
    };
    let logits = b.node(&name("router.proj"), router, &[seen], experts.count);
    let read = norm(b, &name("pre_feedforward_layernorm_2"), norms, x);
    let mixed = top_k_experts(b, path, experts, read, logits);
    norm(b, &name("post_feedforward_layernorm_2"), norms, mixed)
}

/// Adds the per-layer inputs: a table lookup for all layers, mixed with a projection of the
/// embedding. Returns the columns of all layers and the columns per layer; `None` for models
/// without.
pub(super) fn per_layer_inputs(
    config: Config<'_>,
    b: &mut GraphBuilder,
    dense: &DenseDecoder,
    x: ValueId,
) -> Result<Option<(ValueId, usize)>> {
    let cols = config.number_or("hidden_size_per_layer_input", 0.0)? as usize;
    if cols == 0 {
        return Ok(None);
    }
    let all = cols * dense.layers.len();
    let vocab = config.count_or("vocab_size_per_layer_input", dense.vocab)?;

    let table = embed(
        b,
        "model.embed_tokens_per_layer",
        vocab,
        all,
        (cols as f32).sqrt(),
        IdSource::Tokens,
    );
    let scale = (dense.hidden as f32).powf(-0.5);
    let projected = linear_act(
        b,
        "model.per_layer_model_projection",
        x,
        all,
        false,
        Activation::None,
        scale,
    );
    let projected = norm_per_group(
        b,
        "model.per_layer_projection_norm",
        dense.norm,
        cols,
        projected,
    );
    let both = b.add("per_layer_inputs", projected, table);
    Ok(Some((
        b.node(
            "per_layer_inputs.scaled",
            Scale(0.5f32.sqrt()),
            &[both],
            all,
        ),
        cols,
    )))
}

/// Adds the per-layer input, gated by the residual stream.
pub(super) fn per_layer_output(
    b: &mut GraphBuilder,
    path: &str,
    act: Activation,
    norms: NormSpec,
    x: ValueId,
    own: ValueId,
) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let (cols, hidden) = (b.cols(own), b.cols(x));
    let gate = b.linear(&name("per_layer_input_gate"), x, cols, false);
    let gated = b.node(&name("per_layer_gated"), Gated(act), &[gate, own], cols);
    let outer = b.linear(&name("per_layer_projection"), gated, hidden, false);
    norm(b, &name("post_per_layer_input_norm"), norms, outer)
}
