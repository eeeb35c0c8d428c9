//! T5 as an encoder (sentence-t5, the encoder of flan-t5): RMSNorm before each part, unscaled
//! attention scores, a relative position bias shared by all layers. Reference: transformers
//! `modeling_t5.py`.

use super::blocks::{DenseDecoder, MlpKind, QkvProjections, TensorNames};
use super::config::Config;
use super::encoder::{EncoderBody, PositionScheme};
use super::family::Family;
use crate::ir::{GraphBuilder, Mask};
use crate::{Error, Result};
use serde_json::json;

pub(super) static FAMILIES: &[Family] = &[Family {
    model_types: &["t5", "mt5"],
    encoder: Some(t5),
    ..Family::EMPTY
}];

/// The encoder of `T5Model`, `T5EncoderModel` and `MT5EncoderModel`.
fn t5(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    let buckets = [
        ("relative_attention_num_buckets", 32),
        ("relative_attention_max_distance", 128),
    ];
    for (field, known) in buckets {
        let found = config.count_or(field, known)?;
        if found != known {
            return Err(Error::UnsupportedOption {
                architecture: config.architecture(),
                option: format!("{field} = {found}"),
                hint: format!("The only supported value is {known}."),
            });
        }
    }
    let how = config.string("feed_forward_proj").unwrap_or("relu");
    let (gated, act) = how
        .split_once('-')
        .map_or((false, how), |(kind, act)| (kind == "gated", act));
    // Maps T5's field names to the common ones.
    let usual = json!({
        "architectures": [config.architecture()],
        "hidden_size": config.count("d_model")?,
        "head_dim": config.count("d_kv")?,
        "intermediate_size": config.count("d_ff")?,
        "num_attention_heads": config.count("num_heads")?,
        "num_hidden_layers": config.count("num_layers")?,
        "vocab_size": config.count("vocab_size")?,
        "rms_norm_eps": config.number_or("layer_norm_epsilon", 1e-6)?,
        "hidden_act": if how == "gated-gelu" { "gelu_new" } else { act },
    });
    let mut dense = DenseDecoder::from_config(config.with_fields(&usual), true)?;
    dense.names = TensorNames {
        embed: "shared",
        layers: "encoder.block",
        attention: "layer.0.SelfAttention",
        mlp: "layer.1.DenseReluDense",
        before_attention: "layer.0.layer_norm",
        before_mlp: "layer.1.layer_norm",
        final_norm: "encoder.final_layer_norm",
        ..TensorNames::PRE
    };
    dense.map_attention(|a| {
        a.mask = Mask::Packed {
            before: usize::MAX,
            after: usize::MAX,
        };
        a.rope = None;
        a.qkv.projections = QkvProjections::Separate(["q", "k", "v"]);
        a.output.projection = "o";
        a.scores.scale = 1.0;
        a.scores.relative_bias =
            Some("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    });
    let inner = if gated {
        MlpKind::Gated(["wi_0", "wi_1"])
    } else {
        MlpKind::Ungated("wi")
    };
    dense.map_mlp(|m| (m.kind, m.down) = (inner, "wo"));
    Ok(EncoderBody {
        hidden: dense.hidden_states(b),
        positions: PositionScheme::UNBOUNDED,
    })
}
