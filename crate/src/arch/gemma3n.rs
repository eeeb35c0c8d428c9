//! Gemma 3n (text). AltUp keeps several residual streams: a layer computes the first and predicts
//! and corrects all. Also: a low-rank residual parallel to attention (LAuReL), per-layer
//! embeddings, sparse gates, and KV caches shared by the last layers. Reference: transformers
//! `modeling_gemma3n.py`.

use super::blocks::{AttentionSpec, DenseDecoder, MlpSpec, attention, mlp, norm};
use super::config::Config;
use super::family::Family;
use super::gemma::read_softcap;
use super::gemma3::ROPES;
use super::gemma4::{missing_shared_kv, per_layer_inputs, per_layer_output};
use super::qwen::head_norm;
use crate::format::gguf::{Gguf, GgufSpec, MetadataValue as Meta};
use crate::ir::{
    Activation, AltUp, Concat, Epilogue, Graph, GraphBuilder, LastRow, Linear, Mask, MulVector,
    Scale, StateId, ValueId, WeightKind,
};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    model_types: &["gemma3n_text", "gemma3n"],
    defaults: r#"{"vocab_size": 262400, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144, "num_kv_shared_layers": 15}"#,
    rope_kinds: Some(ROPES),
    decoder: Some(gemma3n),
    gguf: &[GgufSpec {
        names: &[
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
            ("laurel_l", "laurel.linear_left"),
            ("laurel_r", "laurel.linear_right"),
            ("laurel_post_norm", "laurel.post_laurel_norm"),
            ("altup_router", "altup.modality_router"),
            ("altup_router_norm", "altup.router_norm"),
            ("altup_predict_coef", "altup.prediction_coefs"),
            ("altup_correct_coef", "altup.correction_coefs"),
            ("altup_correct_scale.weight", "altup.correct_output_scale"),
            ("altup_proj", "model.altup_projections.{e}"),
            ("altup_unembd_proj", "model.altup_unembed_projections.{e}"),
            ("per_layer_token_embd", "model.embed_tokens_per_layer"),
            ("per_layer_model_proj", "model.per_layer_model_projection"),
            ("per_layer_proj_norm", "model.per_layer_projection_norm"),
        ],
        extra_fields: &[
            ("attention.shared_kv_layers", "num_kv_shared_layers"),
            (
                "embedding_length_per_layer_input",
                "hidden_size_per_layer_input",
            ),
            ("altup.num_inputs", "altup_num_inputs"),
            ("altup.active_idx", "altup_active_idx"),
        ],
        set_fixed_fields: gguf_fields,
        varying_layer_sizes: true,
        ..GgufSpec::new("gemma3n", "gemma3n_text", "Gemma3nForCausalLM")
    }],
    ..Family::EMPTY
}];

/// Sets the fields that GGUF files store per layer or imply by tensors. Gate sparsity is stored as
/// standard deviations above the mean instead of config.json's fraction.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    let rows = |name: &str| file.tensors.get(name).and_then(|t| t.shape.first());
    let ints = |key: &str| match file.field(key) {
        Some(Meta::Ints(list)) => list.clone(),
        _ => Vec::new(),
    };

    let widths = Some(ints("feed_forward_length"))
        .filter(|list| !list.is_empty())
        .map(Value::from);
    out.extend(widths.map(|list| ("intermediate_size".into(), list)));
    if let Some(Meta::Floats(list)) = file.field("activation_sparsity_scale") {
        out.insert(GATE_DEVIATIONS.into(), json!(list));
    }
    let fields = [
        ("laurel_rank", json!(rows("blk.0.laurel_l.weight"))),
        (
            "vocab_size_per_layer_input",
            json!(rows("per_layer_token_embd.weight")),
        ),
    ];
    out.extend(fields.map(|(key, value)| (key.to_string(), value)));
}

/// Gate sparsity per layer, in standard deviations above the mean; not a field of config.json.
const GATE_DEVIATIONS: &str = "activation_sparsity_scale";

/// Options of a layer.
struct Gemma3nLayer {
    attention: AttentionSpec,
    mlp: MlpSpec,
    full: bool,
    shares_kv: bool,
    /// Gate threshold, in standard deviations above the mean.
    gate_threshold: Option<f32>,
}

/// The AltUp streams of a row.
#[derive(Clone, Copy)]
struct AltUpRow {
    /// All streams, concatenated.
    all: ValueId,
    /// A pending addition to all streams but the first.
    added: Option<ValueId>,
}

/// The decoder and its AltUp and LAuReL options.
struct Gemma3n {
    dense: DenseDecoder,
    streams: usize,
    rank: usize,
    scaled: bool,
}

/// `Gemma3nForCausalLM`, and the text part of `Gemma3nForConditionalGeneration`.
fn gemma3n(config: Config<'_>) -> Result<Graph> {
    if config.number_or("altup_active_idx", 0.0)? != 0.0 {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: "altup_active_idx other than 0".into(),
            hint: "The only supported value is 0.".into(),
        });
    }
    // Older files list the MLP width of each layer.
    let mut own = config.json().clone();
    if let Some(width) = config.get("intermediate_size").and_then(|list| list.get(0)) {
        own["intermediate_size"] = width.clone();
    }
    let mut dense = DenseDecoder::from_config(config.with_fields(&own), true)?;
    dense.embed_scale = (dense.hidden as f32).sqrt();
    dense.logits_softcap = read_softcap(config, "final_logit_softcapping", 30.0)?;
    let streams = config.count_or("altup_num_inputs", 4)?;
    let rank = config.count_or("laurel_rank", 64)?;
    let scaled = config.flag_or("altup_correct_scale", true);

    let layers = layers(config, &dense)?;
    let mut model = Gemma3n {
        dense,
        streams,
        rank,
        scaled,
    };
    let mut b = GraphBuilder::new(&model.dense.name);
    let dense = &model.dense;
    let x = dense.embed_tokens(&mut b);
    let own = per_layer_inputs(config, &mut b, dense, x)?;
    let mut now = AltUpRow {
        all: model.expand_streams(&mut b, x),
        added: None,
    };
    // KV cache of the last layer of each type that has its own: [sliding window, full].
    let mut states: [Option<StateId>; 2] = [None, None];
    for (index, mut layer) in layers.into_iter().enumerate() {
        let kind = usize::from(layer.full);
        if layer.shares_kv {
            layer.attention.shared_kv =
                Some(states[kind].ok_or_else(|| missing_shared_kv(config))?);
        } else {
            states[kind] = Some(StateId(b.graph().states.len()));
        }
        let own = own.map(|(values, cols)| {
            b.view(
                &format!("{index}.per_layer_input"),
                values,
                index * cols,
                cols,
            )
        });
        now = model.layer(&mut b, &format!("model.layers.{index}"), &layer, now, own);
    }
    let x = model.merge_streams(&mut b, now);
    // The mean of the streams is left to the norm that follows.
    model.dense.norm.eps *= (streams * streams) as f32;
    model.dense.finish(b, x)
}

fn layers(config: Config<'_>, dense: &DenseDecoder) -> Result<Vec<Gemma3nLayer>> {
    let count = dense.layers.len();
    let shared = config.number_or("num_kv_shared_layers", 0.0)? as usize;
    let window = config.count_or("sliding_window", 512)?;
    let act = config.activation("hidden_activation", "gelu_pytorch_tanh")?;
    let of_layer = |field: &str, index: usize| config.get(field).and_then(|list| list.get(index));
    let mut out = Vec::with_capacity(count);
    for (index, layer) in dense.layers.iter().enumerate() {
        let mut attention = layer.attention.clone();
        let mut mlp = layer.mlp.clone();

        let full = config
            .layer_type(index)
            .map_or((index + 1) % 5 == 0, |kind| kind == "full_attention");
        let (kind, base) = if full {
            ("full_attention", 1_000_000.0)
        } else {
            ("sliding_attention", 10_000.0)
        };
        attention.rope = Some(config.rope_for_type(kind, attention.heads.dim, base)?);
        attention.mask = Mask::Causal {
            window: if full { 0 } else { window },
        };
        attention.scores.scale = 1.0;
        attention.qkv.norm = Some(head_norm(dense.norm));
        attention.qkv.value_norm = Some(dense.norm.eps);
        let size = of_layer("intermediate_size", index).and_then(Value::as_u64);
        (mlp.act, mlp.size) = (act, size.map_or(mlp.size, |n| n as usize));
        let share = of_layer("activation_sparsity_pattern", index)
            .and_then(Value::as_f64)
            .unwrap_or(0.0);
        let sparse = (share > 0.0 && share < 1.0).then(|| normal_quantile(share));
        // Layers without sparsity have infinity here, which reads as `None`.
        let sparse = sparse
            .or_else(|| of_layer(GATE_DEVIATIONS, index)?.as_f64())
            .map(|factor| factor as f32);
        out.push(Gemma3nLayer {
            attention,
            mlp,
            full,
            shares_kv: index + shared >= count,
            gate_threshold: sparse,
        });
    }
    Ok(out)
}

/// Returns the quantile of the standard normal distribution, by bisection.
fn normal_quantile(share: f64) -> f64 {
    // The integral of the density from 0, by Simpson's rule.
    let below = |x: f64| {
        let steps = 2000;
        let density = |t: f64| (-t * t / 2.0).exp() / std::f64::consts::TAU.sqrt();

        let h = x / f64::from(steps);
        let weight = |i: i32| {
            if i == 0 || i == steps {
                1.0
            } else {
                f64::from(2 + i % 2 * 2)
            }
        };
        0.5 + (0..=steps)
            .map(|i| weight(i) * density(f64::from(i) * h))
            .sum::<f64>()
            * h
            / 3.0
    };
    let mut low = -8.0;
    let mut high = 8.0;

    for _ in 0..52 {
        let middle = (low + high) / 2.0;
        if below(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

impl Gemma3n {
    /// Projects the embeddings into all streams, concatenated.
    fn expand_streams(&self, b: &mut GraphBuilder, x: ValueId) -> ValueId {
        let hidden = self.dense.hidden;
        let more = self.streams - 1;

        if more == 0 {
            return x;
        }
        let parts = (0..more)
            .map(|i| (format!("model.altup_projections.{i}.weight"), hidden))
            .collect();
        let weight = b.stacked(parts, hidden, WeightKind::Matrix);
        let others = b.node(
            "altup.projected",
            Linear::new(weight, None),
            &[x],
            more * hidden,
        );
        let others = b.node(
            "altup.matched",
            AltUp::MatchMagnitude,
            &[others, x],
            more * hidden,
        );
        b.node("altup.streams", Concat, &[x, others], self.streams * hidden)
    }

    /// Returns the sum of the last row's streams, each scaled to the magnitude of the first.
    fn merge_streams(&self, b: &mut GraphBuilder, of: AltUpRow) -> ValueId {
        let hidden = self.dense.hidden;
        let x = b.node("altup.last", LastRow, &[of.all], self.streams * hidden);
        let added = of
            .added
            .map(|row| b.node("altup.last_added", LastRow, &[row], hidden));
        let first = b.view("altup.first", x, 0, hidden);
        let mut sum = first;
        for i in 0..self.streams - 1 {
            let mut stream = b.view(&format!("altup.{i}"), x, (i + 1) * hidden, hidden);
            if let Some(added) = added {
                stream = b.add(&format!("altup.{i}.added"), stream, added);
            }
            let made = b.linear(
                &format!("model.altup_unembed_projections.{i}"),
                stream,
                hidden,
                false,
            );
            sum = b.node(
                &format!("altup.{i}.sum"),
                AltUp::MatchMagnitude,
                &[made, first, sum],
                hidden,
            );
        }
        sum
    }

    /// Adds the AltUp router: one coefficient per stream and row.
    fn router(&self, b: &mut GraphBuilder, path: &str, x: ValueId) -> ValueId {
        let hidden = self.dense.hidden;
        let streams = self.streams;

        let x = norm(b, &format!("{path}.router_norm"), self.dense.norm, x);
        let weight = b.weight(
            &format!("{path}.modality_router.weight"),
            streams,
            hidden,
            WeightKind::Router,
        );
        let scale = 1.0 / hidden as f32;
        let router = Linear {
            epilogue: Epilogue::Activation(Activation::Tanh),
            scale,
            ..Linear::new(weight, None)
        };
        b.node(&format!("{path}.modes"), router, &[x], streams)
    }

    /// Adds a layer over all streams, with its per-layer input.
    fn layer(
        &self,
        b: &mut GraphBuilder,
        path: &str,
        layer: &Gemma3nLayer,
        of: AltUpRow,
        own: Option<ValueId>,
    ) -> AltUpRow {
        let hidden = self.dense.hidden;
        let streams = self.streams;
        let norms = self.dense.norm;

        let name = |part: &str| format!("{path}.{part}");
        let altup = format!("{path}.altup");

        let active = b.view(&name("altup.active"), of.all, 0, hidden);
        let modes = self.router(b, &altup, active);
        let coefs = b.vector(&format!("{altup}.prediction_coefs.weight"), streams.pow(3));
        let inputs: Vec<ValueId> = [of.all, modes].into_iter().chain(of.added).collect();
        let predict = AltUp::Predict {
            coefs,
            count: streams,
        };
        let predicted = b.node(&name("altup.predicted"), predict, &inputs, streams * hidden);
        let first = b.view(&name("altup.first"), predicted, 0, hidden);
        let made = self.attention_and_mlp(b, path, layer, first);
        let modes = self.router(b, &altup, made);
        let coefs = b.vector(&format!("{altup}.correction_coefs.weight"), streams.pow(2));
        let correct = AltUp::Correct {
            coefs,
            count: streams,
        };
        let all = b.node(
            &name("altup.corrected"),
            correct,
            &[predicted, modes, made],
            streams * hidden,
        );
        let Some(own) = own else {
            return AltUpRow { all, added: None };
        };
        let mut first = b.view(&name("altup.corrected_first"), all, 0, hidden);
        if self.scaled {
            let scale = b.vector(&format!("{altup}.correct_output_scale"), hidden);
            first = b.node(&name("altup.scaled"), MulVector(scale), &[first], hidden);
        }
        AltUpRow {
            all,
            added: Some(per_layer_output(b, path, layer.mlp.act, norms, first, own)),
        }
    }

    /// Adds attention, LAuReL and MLP of a layer over one stream.
    fn attention_and_mlp(
        &self,
        b: &mut GraphBuilder,
        path: &str,
        layer: &Gemma3nLayer,
        x: ValueId,
    ) -> ValueId {
        let hidden = self.dense.hidden;
        let norms = self.dense.norm;
        let name = |part: &str| format!("{path}.{part}");

        let read = norm(b, &name("input_layernorm"), norms, x);
        let low = b.linear(&name("laurel.linear_left"), read, self.rank, false);
        let laurel = b.linear(&name("laurel.linear_right"), low, hidden, false);
        let laurel = norm(b, &name("laurel.post_laurel_norm"), norms, laurel);
        let laurel = b.add(&name("laurel.residual"), read, laurel);
        let mixed = attention(b, &name("self_attn"), &layer.attention, read);
        let mixed = norm(b, &name("post_attention_layernorm"), norms, mixed);
        let x = b.add(&name("attention_residual"), x, mixed);
        let x = b.add(&name("laurel.sum"), x, laurel);
        let x = b.node(&name("laurel.scaled"), Scale(0.5f32.sqrt()), &[x], hidden);
        let read = norm(b, &name("pre_feedforward_layernorm"), norms, x);
        let outer = match layer.gate_threshold {
            Some(factor) => sparse_mlp(b, &name("mlp"), &layer.mlp, factor, read),
            None => mlp(b, &name("mlp"), &layer.mlp, read),
        };
        let outer = norm(b, &name("post_feedforward_layernorm"), norms, outer);
        b.add(&name("mlp_residual"), x, outer)
    }
}

/// Adds an MLP with a sparse gate: only columns above the threshold are kept.
fn sparse_mlp(
    b: &mut GraphBuilder,
    path: &str,
    spec: &MlpSpec,
    factor: f32,
    x: ValueId,
) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let cols = b.cols(x);

    let gate = b.linear(&name("gate_proj"), x, spec.size, false);
    let up = b.linear(&name("up_proj"), x, spec.size, false);
    let sparse = AltUp::Sparse {
        act: spec.act,
        factor,
    };
    let inner = b.node(&name("sparse"), sparse, &[gate, up], spec.size);
    b.linear(&name("down_proj"), inner, cols, false)
}
