//! Decoders retrained to attend to both sides, and how their config.json says so. transformers reads
//! `is_causal`; models with code of their own say it by the name of a class or a model type.

use super::config::Config;
use super::families;
use crate::ir::Pooling;
use crate::{Error, Result};
use serde_json::{Value, json};

/// Sets `is_causal` to false for a decoder whose class, model type or
/// `use_bidirectional_attention` says so, and gives it the decoder's model type. A value in the file
/// wins.
pub(super) fn normalize_direction(json: &mut Value) {
    let kind = json["model_type"].as_str().unwrap_or_default();
    let own = decoder_type(kind);
    let names = [kind, first_class(json), custom_class(json)];
    let is_named = names.into_iter().any(is_bidirectional_name)
        // Families with an encoder of their own read the field themselves.
        || json["use_bidirectional_attention"] == true && !has_encoder(own.unwrap_or(kind));
    let (Some(own), true) = (own, is_named) else {
        return;
    };
    let own = own.to_string();
    let Some(fields) = json.as_object_mut() else {
        return;
    };
    fields.insert("model_type".into(), own.into());
    let causal = fields.entry("is_causal").or_insert(Value::Null);
    if causal.is_null() {
        *causal = json!(false);
    }
}

/// Returns whether a decoder's attention is bidirectional.
pub(super) fn is_bidirectional(config: Config<'_>) -> bool {
    !config.flag_or("is_causal", true)
}

/// Returns whether a decoder's attention is bidirectional when it embeds. The code of gte-Qwen2,
/// stella_en_1.5B_v5 and KaLM-embedding v2 masks tokens only when it generates.
pub(super) fn embeds_bidirectionally(config: Config<'_>) -> bool {
    let is_custom = custom_class(config.json()) == "Qwen2Model";
    !config.flag_or("is_causal", !is_custom)
}

/// Returns the class of the code that a decoder's repository brings for embedding, where the
/// configuration does not say how it attends.
pub(super) fn unread_class(config: Config<'_>) -> Option<&str> {
    let class = custom_class(config.json());
    let is_open = config.get("is_causal").is_none() && !embeds_bidirectionally(config);
    (is_open && !class.is_empty()).then_some(class)
}

/// Refuses the score of a bidirectional decoder: its pooling, temperature and prompt are custom code.
pub(super) fn check_score(config: Config<'_>) -> Result<()> {
    let class = config.architecture();
    if is_bidirectional_name(&class) {
        return Err(Error::UnsupportedOption {
            architecture: class,
            option: "reranking with bidirectional attention".into(),
            hint: "Use a reranker such as Qwen3-Reranker or bge-reranker-v2-m3.".into(),
        });
    }
    Ok(())
}

/// Returns the pooling that a configuration names; `None` if it names none.
///
/// # Errors
/// `UnsupportedOption` for an unknown name.
pub(super) fn pooling(config: Config<'_>) -> Result<Option<Pooling>> {
    Ok(Some(match config.string("pooling") {
        None => return Ok(None),
        Some("avg" | "mean") => Pooling::Mean,
        Some("cls") => Pooling::First,
        Some("last") => Pooling::Last,
        Some("weighted_avg") => Pooling::Weighted,
        Some(other) => {
            return Err(Error::UnsupportedOption {
                architecture: config.architecture(),
                option: format!("pooling = {other}"),
                hint: "Supported: avg, cls, last and weighted_avg.".into(),
            });
        }
    }))
}

/// Returns the model type of the decoder behind a bidirectional one's, as `llama` of
/// `llama_bidirec`; `None` if no decoder is known.
fn decoder_type(kind: &str) -> Option<&str> {
    const ENDS: [&str; 2] = ["_bidirec", "_bidirectional"];
    const STARTS: [&str; 3] = ["bidir_", "bidirectional_", "bi_"];
    let base = ENDS.iter().find_map(|end| kind.strip_suffix(end));
    let base = base.or_else(|| STARTS.iter().find_map(|start| kind.strip_prefix(start)));
    let is_decoder =
        |kind: &&str| families().any(|f| f.decoder.is_some() && f.model_types.contains(kind));
    Some(kind).filter(is_decoder).or(base.filter(is_decoder))
}

fn has_encoder(kind: &str) -> bool {
    families().any(|f| f.encoder.is_some() && f.model_types.contains(&kind))
}

/// Whether a name is that of a bidirectional decoder: `LlamaBidirectionalModel`, LLM2Vec's
/// `LlamaBiModel`, `LlamaBiForMNTP` and `LlamaEncoderModel`, `llama_bidirec`, `bi_llama`.
fn is_bidirectional_name(name: &str) -> bool {
    name.contains("Bidir")
        || name.contains("bidir")
        || name.starts_with("bi_")
        || name.contains("BiFor")
        || name.ends_with("BiModel")
        || name.ends_with("EncoderModel")
}

fn first_class(json: &Value) -> &str {
    let classes = &json["architectures"];
    classes[0].as_str().or(classes.as_str()).unwrap_or_default()
}

/// The class that a repository's own code defines for embedding; empty without one.
fn custom_class(json: &Value) -> &str {
    let named = json["auto_map"]["AutoModel"].as_str().unwrap_or_default();
    named.rsplit('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::{EncoderHead, LoadConfig, encoder_graph};
    use super::*;

    /// What a published configuration says: model type, class, class of its code, further fields.
    fn config(kind: &str, class: &str, code: &str, more: Value) -> LoadConfig {
        let mut config = json!({"model_type": kind, "architectures": [class]});
        if !code.is_empty() {
            config["auto_map"] = json!({"AutoModel": code});
        }
        if let (Value::Object(fields), Some(config)) = (more, config.as_object_mut()) {
            config.extend(fields);
        }
        config.into()
    }

    #[test]
    fn configurations_say_how_a_decoder_attends() {
        let causal = json!({"is_causal": true});
        let both = json!({"is_causal": false});
        let gte = "modeling_qwen.Qwen2Model";
        let stella = "dunzhang/stella_en_1.5B_v5--modeling_qwen.Qwen2Model";
        for (kind, class, code, more, is_bidirectional_to_embed, to_generate) in [
            // LLM2Vec, its forks, and models trained with it.
            (
                "llama",
                "LlamaEncoderModel",
                "modeling_llama_encoder.LlamaEncoderModel",
                json!({}),
                true,
                true,
            ),
            ("mistral", "MistralEncoderModel", "", json!({}), true, true),
            ("llama", "LlamaBiModel", "", json!({}), true, true),
            ("qwen2", "Qwen2BiForMNTP", "", json!({}), true, true),
            ("gemma", "GemmaBiModel", "", json!({}), true, true),
            ("bi_llama", "LlamaBiModel", "", json!({}), true, true),
            // NVIDIA's, voyage-4-nano, Giga-Embeddings.
            (
                "llama_bidirec",
                "LlamaBidirectionalModel",
                "m.LlamaBidirectionalModel",
                json!({}),
                true,
                true,
            ),
            (
                "llama_bidirec",
                "LlamaBidirectionalModel",
                "",
                causal.clone(),
                false,
                false,
            ),
            (
                "qwen3",
                "Qwen3BidirectionalModel",
                "",
                json!({}),
                true,
                true,
            ),
            (
                "qwen3",
                "Qwen3Model",
                "",
                json!({"use_bidirectional_attention": true}),
                true,
                true,
            ),
            (
                "qwen3",
                "Qwen3Model",
                "",
                json!({"use_bidirectional_attention": false}),
                false,
                false,
            ),
            (
                "qwen3",
                "Qwen3Model",
                "",
                json!({"use_bidirectional_attention": "vision"}),
                false,
                false,
            ),
            // gte-Qwen2 and models made from it.
            ("qwen2", "Qwen2ForCausalLM", gte, both, true, true),
            ("qwen2", "Qwen2ForCausalLM", stella, json!({}), true, false),
            (
                "qwen2",
                "Qwen2Model",
                "modeling.Qwen2Model",
                json!({}),
                true,
                false,
            ),
            ("qwen2", "Qwen2Model", gte, causal, false, false),
            // Decoders that embed causally.
            ("qwen2", "Qwen2Model", "", json!({}), false, false),
            ("qwen3", "Qwen3ForCausalLM", "", json!({}), false, false),
            (
                "mistral",
                "MistralModel",
                "modeling_gritlm7b.MistralModel",
                json!({}),
                false,
                false,
            ),
            (
                "llama",
                "LlamaForCausalLM",
                "",
                json!({"is_causal": null}),
                false,
                false,
            ),
        ] {
            let config = config(kind, class, code, more);
            let found = (
                embeds_bidirectionally(config.fields()),
                is_bidirectional(config.fields()),
            );
            let what = format!("{kind} {class} {code}");
            assert_eq!(found, (is_bidirectional_to_embed, to_generate), "{what}");
            assert_eq!(config.class(), class, "{what}");
            assert!(
                families().any(|f| f.model_types.contains(&config.model_type())),
                "{what}"
            );
        }
    }

    #[test]
    fn layers_without_attention_are_refused() {
        let config = config(
            "lfm2",
            "Lfm2BidirectionalModel",
            "modeling_lfm2_bidirectional.Lfm2BidirectionalModel",
            json!({
                "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "norm_eps": 1e-5, "conv_L_cache": 3,
                "layer_types": ["conv", "full_attention"],
            }),
        );
        let refusal = encoder_graph(&config, &EncoderHead::Hidden).map(|_| ());
        let refusal = refusal.expect_err("convolutions").to_string();
        assert!(refusal.contains("convolution"), "{refusal}");
    }

    /// NV-Embed pools with latent attention, pplx-embed quantizes its vectors.
    #[test]
    fn models_with_other_code_are_refused_by_name() {
        let text =
            json!({"model_type": "bidir_mistral", "hidden_size": 64, "num_hidden_layers": 1});
        for (kind, class, more) in [
            ("nvembed", "NVEmbedModel", json!({"text_config": text})),
            ("bidirectional_pplx_qwen3", "PPLXQwen3Model", json!({})),
        ] {
            let config = config(kind, class, "", more);
            let refusal = encoder_graph(&config, &EncoderHead::Hidden).map(|_| ());
            let refusal = refusal.expect_err(class).to_string();
            assert!(refusal.contains(class), "{refusal}");
        }
    }

    #[test]
    fn code_that_is_not_run_is_named() {
        let unread = |code: &str, more: Value| {
            let config = config("mistral", "MistralModel", code, more);
            unread_class(config.fields()).map(str::to_string)
        };
        let grit = "modeling_gritlm7b.MistralModel";
        assert_eq!(unread(grit, json!({})).as_deref(), Some("MistralModel"));
        assert_eq!(unread(grit, json!({"is_causal": false})), None);
        assert_eq!(unread("", json!({})), None);
    }

    #[test]
    fn pooling_is_that_of_the_configuration() {
        let read = |name: Value| {
            let more = json!({"pooling": name});
            pooling(config("llama_bidirec", "LlamaBidirectionalModel", "", more).fields())
        };
        assert_eq!(read(json!("avg")).expect("a pooling"), Some(Pooling::Mean));
        assert_eq!(read(json!("last")).expect("a pooling"), Some(Pooling::Last));
        assert_eq!(read(Value::Null).expect("no pooling"), None);
        let refusal = read(json!("colbert")).expect_err("unknown").to_string();
        assert!(refusal.contains("pooling = colbert"), "{refusal}");
    }
}
