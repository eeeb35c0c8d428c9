//! RoPE in every spelling and position of its fields (tests/golden/scripts/make_rope.py).

use jerboa::arch::{self, LoadConfig};
use jerboa::ir::{Graph, Mask, Op, RopeSpec};
use jerboa_tests::golden::golden;
use serde_json::Value;
use std::path::Path;

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The configuration of a case: its own, or a golden model's with its RoPE fields replaced by the
/// case's.
fn config(case: &Value) -> Value {
    const ROPE: [&str; 9] = [
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "partial_rotary_factor",
        "rotary_pct",
        "rotary_emb_base",
        "rope_local_base_freq",
        "global_rope_theta",
        "local_rope_theta",
    ];
    let Some(model) = case["model"].as_str() else {
        return case["config"].clone();
    };
    let mut config = json(&golden(&format!("models/{model}/config.json")));
    let fields = config.as_object_mut().expect("fields");
    fields.retain(|key, _| !ROPE.contains(&key.as_str()));
    fields.extend(case["config"].as_object().expect("fields").clone());
    config
}

fn graph(config: &Value) -> Graph {
    let config = &LoadConfig::from(config);
    let made = match arch::is_encoder(config) {
        true => {
            arch::encoder_graph(config, &arch::EncoderHead::Hidden).map(|encoder| encoder.graph)
        }
        false => arch::graph(config),
    };
    made.unwrap_or_else(|e| panic!("{e}"))
}

/// RoPE of the first layer of a kind: with a window for `sliding_attention`, without one for the
/// others.
fn rope_of<'a>(graph: &'a Graph, kind: &str) -> &'a RopeSpec {
    let windowed = |mask: &Mask| match mask {
        Mask::Causal { window } | Mask::BidirectionalImages { window } => *window > 0,
        Mask::Packed { before, .. } => *before < usize::MAX,
        Mask::PackedWindow => true,
        Mask::CrossAttention => false,
    };
    let found = graph.nodes.iter().find_map(|node| match &node.op {
        Op::Attention(a)
            if kind.is_empty() || windowed(&a.mask) == (kind == "sliding_attention") =>
        {
            a.rope
        }
        _ => None,
    });
    &graph.ropes[found.unwrap_or_else(|| panic!("no RoPE for {kind}"))]
}

/// The maximum error of cos and sin at position 1 against the reference's frequencies.
fn distance(spec: &RopeSpec, length: usize, frequencies: &Value, factor: f64) -> f64 {
    let expected: Vec<f64> = frequencies
        .as_array()
        .expect("numbers")
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    let found = spec.table(1, 1, length);
    assert_eq!(found.len(), expected.len(), "pairs of columns");
    let each = found.iter().zip(&expected).map(|([cos, sin], f)| {
        (f64::from(*cos) - f.cos() * factor)
            .abs()
            .max((f64::from(*sin) - f.sin() * factor).abs())
    });
    each.fold(0.0, f64::max)
}

#[test]
fn rope_equals_transformers_in_every_spelling() {
    let table = json(&golden("rope/cases.json"));
    let long = table["long"].as_u64().expect("a length") as usize;
    let cases = table["cases"].as_array().expect("cases");
    assert!(cases.len() >= 140, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let graph = graph(&config(case));
        for (kind, expected) in case["expected"].as_object().expect("kinds") {
            let spec = rope_of(&graph, kind);
            let factor = expected["factor"].as_f64().expect("a factor");
            let mut worst = distance(spec, 2, &expected["inv_freq"], factor);
            if !expected["long"].is_null() {
                worst = worst.max(distance(spec, long, &expected["long"], factor));
            }
            if worst > 1e-6 {
                wrong.push(format!("{name} {kind}: off by {worst:.1e}: {spec:?}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

/// Reading an already converted configuration changes nothing.
#[test]
fn converting_a_configuration_is_idempotent() {
    for case in json(&golden("rope/cases.json"))["cases"]
        .as_array()
        .expect("cases")
    {
        let config = config(case);
        let once = LoadConfig::from(&config).json().clone();
        assert_eq!(LoadConfig::from(&once).json(), &once, "{}", case["name"]);
        assert_eq!(graph(&once), graph(&config), "{}", case["name"]);
        assert!(once.get("rope_scaling").is_none(), "{}", case["name"]);
    }
}

/// Sections, and integers written as floats such as 4096.0.
#[test]
fn sections_and_floats_are_read_in_all_spellings() {
    let with = |place: &str, kind: &str, spelled: &str| {
        serde_json::json!({
            "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_size": 64.0,
            "intermediate_size": 64.0, "vocab_size": 96.0, "num_hidden_layers": 2.0, "num_attention_heads": 2.0,
            "num_key_value_heads": 1.0, "max_position_embeddings": 512.0, "vision_config": {},
            place: {kind: spelled, "mrope_section": [4.0, 6, 6]}, "rope_theta": 1e6,
        })
    };
    for place in ["rope_scaling", "rope_parameters"] {
        for kind in ["type", "rope_type"] {
            for spelled in ["mrope", "default"] {
                let config = with(place, kind, spelled);
                let sections = arch::mrope_sections(&(&config).into()).expect("sections");
                assert_eq!(sections.sizes, [4, 6, 6], "{place} {kind} {spelled}");
                let graph = arch::graph(&(&config).into()).expect("a graph");
                assert_eq!(
                    *rope_of(&graph, ""),
                    RopeSpec::plain(32, 1e6),
                    "{place} {kind} {spelled}"
                );
            }
        }
    }
}

/// An unknown RoPE type is refused by name instead of falling back to the default.
#[test]
fn unknown_scalings_are_refused_by_name() {
    for kind in ["ntk", "xpos", "Default"] {
        let config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 96,
            "num_hidden_layers": 1, "num_attention_heads": 2, "rope_scaling": {"type": kind, "factor": 2.0},
        });
        let message = arch::graph(&config.into()).expect_err(kind).to_string();
        assert!(
            message.contains(&format!("rope scaling '{kind}'")),
            "{message}"
        );
    }
}
