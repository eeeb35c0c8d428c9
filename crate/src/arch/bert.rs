//! BERT encoders: MiniLM, BGE, E5, GTE, arctic-embed (`bert`), RoBERTa and XLM-RoBERTa with bge-m3
//! and multilingual E5, DistilBERT, MPNet. Learned positions, norms after each residual sum.
//! Reference: transformers `modeling_bert.py`, `modeling_roberta.py`, `modeling_distilbert.py`,
//! `modeling_mpnet.py`.

use super::config::Config;
use super::config::Container;
use super::encoder::{
    EncoderBody, PositionScheme, bidirectional, dense, embedding_table, head_dim, label_count,
    layer_norm,
};
use super::family::Family;
use crate::format::gguf::{Gguf, GgufSpec};
use crate::ir::{Activation, GraphBuilder, IdSource, Pool, Pooling, ValueId};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[
    Family {
        model_types: &["bert"],
        encoder: Some(bert),
        classification_head: Some(bert_score),
        gguf: &[GgufSpec {
            layer_prefix: "encoder.layer",
            names: &[
                ("token_embd", "embeddings.word_embeddings"),
                ("position_embd", "embeddings.position_embeddings"),
                ("token_types", "embeddings.token_type_embeddings"),
                ("token_embd_norm", "embeddings.LayerNorm"),
                ("attn_q", "attention.self.query"),
                ("attn_k", "attention.self.key"),
                ("attn_v", "attention.self.value"),
                ("attn_output", "attention.output.dense"),
                ("attn_output_norm", "attention.output.LayerNorm"),
                ("ffn_up", "intermediate.dense"),
                ("ffn_down", "output.dense"),
                ("layer_output_norm", "output.LayerNorm"),
                ("cls", "classifier.dense"),
                ("cls.output", "classifier.out_proj"),
            ],
            set_fixed_fields: gguf_fields,
            ..GgufSpec::new("bert", "bert", "BertModel")
        }],
        ..Family::EMPTY
    },
    Family {
        model_types: &["roberta", "xlm-roberta", "camembert"],
        encoder: Some(roberta),
        classification_head: Some(roberta_score),
        ..Family::EMPTY
    },
    Family {
        model_types: &["distilbert"],
        encoder: Some(distilbert),
        classification_head: Some(distilbert_score),
        ..Family::EMPTY
    },
    Family {
        model_types: &["mpnet"],
        encoder: Some(mpnet),
        classification_head: Some(roberta_score),
        ..Family::EMPTY
    },
];

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    let types = file
        .tensors
        .get("token_types.weight")
        .and_then(|t| t.shape.first().copied());
    out.insert("hidden_act".into(), json!("gelu"));
    // The conversion drops the table rows before the first position, so the table's size counts,
    // not the context length.
    if let Some(rows) = file
        .tensors
        .get("position_embd.weight")
        .and_then(|t| t.shape.first())
    {
        out.insert("max_position_embeddings".into(), json!(rows));
    }
    out.insert("type_vocab_size".into(), json!(types.unwrap_or(0)));
    let labels = file
        .tensors
        .get("cls.output.weight")
        .and_then(|t| t.shape.first().copied());
    if let Some(labels) = labels.filter(|_| file.has_tensor("cls.weight")) {
        out.insert(
            "architectures".into(),
            json!(["BertForSequenceClassification"]),
        );
        out.insert("num_labels".into(), json!(labels));
    }
}

/// Tensor names of a layer.
struct BertTensorNames {
    layer: &'static str,
    q: &'static str,
    k: &'static str,
    v: &'static str,
    o: &'static str,
    attention_norm: &'static str,
    up: &'static str,
    down: &'static str,
    norm: &'static str,
}

const BERT: BertTensorNames = BertTensorNames {
    layer: "encoder.layer",
    q: "attention.self.query",
    k: "attention.self.key",
    v: "attention.self.value",
    o: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
};

const MPNET: BertTensorNames = BertTensorNames {
    q: "attention.attn.q",
    k: "attention.attn.k",
    v: "attention.attn.v",
    o: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    ..BERT
};

const DISTILBERT: BertTensorNames = BertTensorNames {
    layer: "transformer.layer",
    q: "attention.q_lin",
    k: "attention.k_lin",
    v: "attention.v_lin",
    o: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    norm: "output_layer_norm",
};

/// Dimensions and options of a model.
struct BertDims {
    hidden: usize,
    intermediate: usize,
    heads: usize,
    layers: usize,
    eps: f32,
    act: Activation,
    /// Token types; 0 without a table.
    types: usize,
    /// The padding token. Positions start after its id; at 0 if `None`.
    padding: Option<usize>,
    /// Whether attention has a learned relative position bias.
    relative: bool,
}

impl BertDims {
    fn from_config(config: Config<'_>) -> Result<Self> {
        match config.string("position_embedding_type") {
            None | Some("absolute") => {}
            Some(other) => {
                return Err(Error::UnsupportedOption {
                    architecture: config.architecture(),
                    option: format!("position_embedding_type = {other}"),
                    hint: "The only supported value is absolute.".into(),
                });
            }
        }
        // MosaicBERT has the class of BERT, with ALiBi and gated MLPs.
        if config.get("alibi_starting_size").is_some() {
            return Err(Error::UnsupportedOption {
                architecture: config.architecture(),
                option: "ALiBi ('alibi_starting_size')".into(),
                hint: "Use a model with absolute positions or RoPE, such as ModernBERT.".into(),
            });
        }
        config.require_values(&[("is_decoder", "false"), ("add_cross_attention", "false")])?;
        Ok(Self {
            hidden: config.count("hidden_size")?,
            intermediate: config.count("intermediate_size")?,
            heads: config.count("num_attention_heads")?,
            layers: config.layers("num_hidden_layers")?,
            eps: config.number_or("layer_norm_eps", 1e-12)? as f32,
            act: config.activation("hidden_act", "gelu")?,
            // DistilBERT in GGUF files.
            types: match config.get("type_vocab_size").and_then(Value::as_u64) {
                Some(0) => 0,
                _ => config.count_or("type_vocab_size", 2)?,
            },
            padding: None,
            relative: false,
        })
    }
}

/// `BertModel`.
fn bert(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    build(config, b, &BERT, &BertDims::from_config(config)?)
}

/// `RobertaModel`, `XLMRobertaModel`, `CamembertModel`.
fn roberta(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    let padding = Some(config.number_or("pad_token_id", 1.0)? as usize);
    build(
        config,
        b,
        &BERT,
        &BertDims {
            padding,
            ..BertDims::from_config(config)?
        },
    )
}

/// `MPNetModel`.
fn mpnet(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    let padding = Some(config.number_or("pad_token_id", 1.0)? as usize);
    build(
        config,
        b,
        &MPNET,
        &BertDims {
            padding,
            types: 0,
            relative: true,
            ..BertDims::from_config(config)?
        },
    )
}

/// `DistilBertModel`.
fn distilbert(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    let sizes = BertDims {
        hidden: config.count("dim")?,
        intermediate: config.count("hidden_dim")?,
        heads: config.count("n_heads")?,
        layers: config.layers("n_layers")?,
        eps: 1e-12,
        act: config.activation("activation", "gelu")?,
        types: 0,
        padding: None,
        relative: false,
    };
    build(config, b, &DISTILBERT, &sizes)
}

fn build(
    config: Config<'_>,
    b: &mut GraphBuilder,
    names: &BertTensorNames,
    sizes: &BertDims,
) -> Result<EncoderBody> {
    let hidden = sizes.hidden;
    let vocab = config.count("vocab_size")?;

    let places = config.count_or("max_position_embeddings", 512)?;
    let head_dim = head_dim(config, hidden, sizes.heads)?;
    let first = sizes.padding.map_or(0, |p| p + 1);
    let most = places
        .checked_sub(first)
        .filter(|n| *n > 0)
        .ok_or_else(|| Error::Config {
            file: "config.json".into(),
            reason: format!(
                "'max_position_embeddings' is {places}, but the first position is {first}"
            ),
        })?;
    let words = embedding_table(
        b,
        "embeddings.word_embeddings",
        vocab,
        hidden,
        IdSource::Tokens,
    );
    let places = embedding_table(
        b,
        "embeddings.position_embeddings",
        places,
        hidden,
        IdSource::Positions,
    );
    let mut x = b.add("embeddings.placed", words, places);
    if sizes.types > 0 {
        let kinds = embedding_table(
            b,
            "embeddings.token_type_embeddings",
            sizes.types,
            hidden,
            IdSource::Types,
        );
        x = b.add("embeddings.typed", x, kinds);
    }
    x = layer_norm(b, "embeddings.LayerNorm", x, sizes.eps, true);
    for index in 0..sizes.layers {
        let name = |part: &str| format!("{}.{index}.{part}", names.layer);
        let mut project = |part: &str| b.linear(&name(part), x, hidden, true);
        let q = project(names.q);
        let k = project(names.k);
        let v = project(names.v);

        let mut attention = bidirectional(sizes.heads, head_dim);
        if sizes.relative {
            attention.relative =
                Some(b.vector("encoder.relative_attention_bias.weight", 32 * sizes.heads));
        }
        let mixed = b.node(&name("attention"), attention, &[q, k, v], hidden);
        let mixed = b.linear(&name(names.o), mixed, hidden, true);
        let sum = b.add(&name("attention_residual"), x, mixed);
        x = layer_norm(b, &name(names.attention_norm), sum, sizes.eps, true);
        let inner = dense(b, &name(names.up), x, sizes.intermediate, true, sizes.act);
        let outer = b.linear(&name(names.down), inner, hidden, true);
        let sum = b.add(&name("residual"), x, outer);
        x = layer_norm(b, &name(names.norm), sum, sizes.eps, true);
    }
    let padding = sizes.padding.map(|p| p as u32);
    Ok(EncoderBody {
        hidden: x,
        positions: PositionScheme {
            first,
            padding,
            max_tokens: most,
            token_types: sizes.types,
        },
    })
}

/// Adds a dense layer and a classifier over the first token.
fn classify(
    config: Config<'_>,
    b: &mut GraphBuilder,
    hidden: ValueId,
    act: Activation,
    names: [&str; 2],
) -> ValueId {
    let cols = b.cols(hidden);
    let first = b.node("first", Pool(Pooling::First), &[hidden], cols);
    let inner = dense(b, names[0], first, cols, true, act);
    b.linear(names[1], inner, label_count(config), true)
}

/// `BertForSequenceClassification`.
fn bert_score(config: Config<'_>, b: &mut GraphBuilder, hidden: ValueId) -> Result<ValueId> {
    // GGUF files use this name for RoBERTa-style heads only.
    if config.load().container() == Container::Gguf {
        return roberta_score(config, b, hidden);
    }
    Ok(classify(
        config,
        b,
        hidden,
        Activation::Tanh,
        ["pooler.dense", "classifier"],
    ))
}

/// `RobertaForSequenceClassification` and other RoBERTa-style heads.
fn roberta_score(config: Config<'_>, b: &mut GraphBuilder, hidden: ValueId) -> Result<ValueId> {
    Ok(classify(
        config,
        b,
        hidden,
        Activation::Tanh,
        ["classifier.dense", "classifier.out_proj"],
    ))
}

/// `DistilBertForSequenceClassification`.
fn distilbert_score(config: Config<'_>, b: &mut GraphBuilder, hidden: ValueId) -> Result<ValueId> {
    Ok(classify(
        config,
        b,
        hidden,
        Activation::Relu,
        ["pre_classifier", "classifier"],
    ))
}
