//! The README's table of families: tested formats, error against the reference, cost of a token and
//! of a context.

use super::{layout_of, planned};
use jerboa::arch;
use jerboa::format::quantize;
use jerboa::ir::WeightKind;
use jerboa::kernels::attention::Kv;
use jerboa::plan::{Fusions, StatePlan, StepKind, WeightPlan, fuse, plan_states, plan_weights};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Environment variable: writes the table instead of comparing it.
const WRITE: &str = "JERBOA_WRITE_PLANS";
const BEGIN: &str =
    "<!-- families: JERBOA_WRITE_PLANS=1 cargo test -p jerboa-tests --test plan -->\n";
const END: &str = "<!-- /families -->\n";

/// Approximate sizes of Qwen3-0.6B by configuration field; windows of 512 tokens.
const SHAPE: &[(&str, u64)] = &[
    ("hidden_size", 1024),
    ("n_embd", 1024),
    ("num_hidden_layers", 28),
    ("n_layer", 28),
    ("num_attention_heads", 16),
    ("n_head", 16),
    ("num_key_value_heads", 8),
    ("num_global_key_value_heads", 8),
    ("head_dim", 128),
    ("global_head_dim", 256),
    ("intermediate_size", 3072),
    ("n_inner", 3072),
    ("shared_intermediate_size", 3072),
    ("moe_intermediate_size", 768),
    ("shared_expert_intermediate_size", 768),
    ("vocab_size", 151_936),
    ("vocab_size_per_layer_input", 151_936),
    ("hidden_size_per_layer_input", 256),
    ("laurel_rank", 64),
    ("sliding_window", 512),
    ("max_position_embeddings", 32_768),
    ("n_positions", 32_768),
    ("num_kv_shared_layers", 14),
    ("linear_num_key_heads", 16),
    ("linear_num_value_heads", 16),
    ("linear_key_head_dim", 128),
    ("linear_value_head_dim", 128),
    ("mamba_n_heads", 32),
    ("mamba_d_head", 64),
    ("mamba_num_heads", 32),
    ("mamba_head_dim", 64),
    ("mamba_d_state", 128),
    ("ssm_state_size", 128),
    ("q_lora_rank", 768),
    ("kv_lora_rank", 512),
    ("qk_nope_head_dim", 64),
    ("qk_rope_head_dim", 64),
    ("v_head_dim", 64),
    ("moe_layer_end_index", 27),
];

/// Lists with an entry per layer.
const BY_LAYER: &[&str] = &[
    "layer_types",
    "layers_block_type",
    "no_rope_layers",
    "activation_sparsity_pattern",
    "intermediate_size",
];

/// A tiny checkpoint's configuration, enlarged to the shape.
fn scaled(config: &Value) -> Value {
    let mut out = config.as_object().cloned().unwrap_or_default();
    for (field, size) in SHAPE {
        if out.get(*field).is_some_and(Value::is_number) {
            // Fields that a family does not have stay absent.
            let none = out[*field] == 0;
            if !none {
                out.insert((*field).into(), (*size).into());
            }
        }
    }
    for field in BY_LAYER {
        let Some(list) = out
            .get(*field)
            .and_then(Value::as_array)
            .filter(|l| !l.is_empty())
        else {
            continue;
        };

        let all: Vec<Value> = list
            .iter()
            .cycle()
            .take(28)
            .map(|v: &Value| {
                if *field == "intermediate_size" {
                    3072.into()
                } else {
                    v.clone()
                }
            })
            .collect();
        out.insert((*field).into(), all.into());
    }
    // Scaling factors belong to one head dimension.
    for field in ["rope_scaling", "rope_parameters"] {
        if out
            .get(field)
            .and_then(Value::as_object)
            .is_some_and(|r| r.contains_key("short_factor"))
        {
            out.remove(field);
        }
        // So does a partial rotary factor.
        if let Some(share) = out
            .get_mut(field)
            .and_then(|r| r.get_mut("partial_rotary_factor"))
            .filter(|s| **s == 0.4)
        {
            *share = 0.5.into();
        }
    }
    out.remove("per_layer_config");
    Value::Object(out)
}

fn golden(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(folder)
}

fn folders(of: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(golden(of)).expect("golden files");
    let mut all: Vec<PathBuf> = entries
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.is_dir())
        .collect();
    all.sort();
    all
}

fn json(path: &Path) -> Option<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

/// Storage formats by the parts of a folder's name.
const STORED: &[(&str, &str)] = &[
    ("gguf", "GGUF"),
    ("mlx", "MLX"),
    ("dwq", "MLX"),
    ("mlc", "MLC"),
    ("gptq", "GPTQ"),
    ("awq", "AWQ"),
    ("ct", "compressed-tensors"),
    ("fp8", "fp8"),
    ("nf4", "bitsandbytes"),
    ("bnb8", "bitsandbytes"),
    ("mxfp4", "MXFP4"),
    ("packed", "ternary"),
    ("bitlinear", "ternary"),
];

fn stored_as(folder: &Path) -> BTreeSet<String> {
    let name = folder
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let mut found: BTreeSet<String> = BTreeSet::new();
    found.extend(
        STORED
            .iter()
            .filter(|s| name.split('_').any(|part| part == s.0))
            .map(|s| s.1.to_string()),
    );
    if !found.is_empty() {
        return found;
    }
    let files = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").path());
    let weights = |p: &PathBuf| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("model"))
    };
    for file in files
        .filter(weights)
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
    {
        let bytes = std::fs::read(&file).expect("a checkpoint");
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
        found.extend(
            tensors
                .tensors()
                .iter()
                .filter(|t| t.1.shape().len() > 1)
                .map(|t| format!("{:?}", t.1.dtype())),
        );
    }
    found
}

/// The class of a folder's model.
fn class_of(folder: &Path) -> Option<String> {
    if let Some(config) = json(&folder.join("config.json")) {
        return config
            .pointer("/architectures/0")?
            .as_str()
            .map(str::to_owned);
    }
    // Folders without one are named after the tiny checkpoint that they were made from; Llama GGUF
    // files by their type.
    let name = folder.file_name()?.to_string_lossy().into_owned();
    let made_of = name.strip_prefix("gguf_").or(name.split('_').next())?;
    let config = json(&golden("models").join(made_of).join("config.json"));
    let class = config
        .as_ref()
        .and_then(|c| c.pointer("/architectures/0")?.as_str());
    class
        .or(name.starts_with("gguf_q").then_some("LlamaForCausalLM"))
        .map(str::to_owned)
}

fn row(
    class: &str,
    config: &Value,
    encodings: &BTreeSet<String>,
    error: Option<f64>,
) -> Option<String> {
    let graph = arch::graph(&scaled(config).into()).unwrap_or_else(|e| panic!("{class}: {e}"));
    let few = fuse::few_rows(
        fuse::common(graph.clone(), Fusions::ALL, &layout_of),
        Fusions::ALL,
    );
    let plan = planned(&few, StepKind::Decode(1)).unwrap_or_else(|e| panic!("{class}: {e}"));
    let bits = |name: &str| {
        quantize::layout(if graph.kind_of(name) == WeightKind::Table {
            8
        } else {
            4
        })
    };
    let weights: u64 = plan_weights(&graph, &bits, 2 << 30)
        .ok()?
        .values()
        .map(WeightPlan::bytes)
        .sum();
    let [halves, eight] = [Kv::F16, Kv::Int8].map(|kv| {
        plan_states(&graph, kv, 32_768, 512)
            .iter()
            .map(StatePlan::bytes)
            .sum::<u64>()
            / 1_000_000
    });
    let encodings: Vec<&str> = encodings.iter().map(String::as_str).collect();
    let error = error.map_or("-".into(), |e| format!("{e:.0e}"));
    let name = class
        .trim_end_matches("ForCausalLM")
        .trim_end_matches("LMHeadModel");
    let dispatches = plan.launches.len();
    let weights = weights / 1_000_000;

    Some(format!(
        "| {name} | {} | {error} | {dispatches} | {weights} | {halves} / {eight} |\n",
        encodings.join(", ")
    ))
}

#[test]
fn the_readme_has_a_row_for_each_family() {
    let errors = json(&golden("models/errors.json"))
        .and_then(|v| v.as_object().cloned())
        .unwrap_or_default();
    let mut families: BTreeMap<String, (Value, BTreeSet<String>, Option<f64>)> = BTreeMap::new();
    for folder in folders("models") {
        let Some(config) = json(&folder.join("config.json")) else {
            continue;
        };
        let Some(class) = class_of(&folder).filter(|_| arch::graph(&(&config).into()).is_ok())
        else {
            continue;
        };
        let error = errors
            .get(
                folder
                    .file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .as_ref(),
            )
            .and_then(Value::as_f64);
        let entry = families
            .entry(class)
            .or_insert_with(|| (config, BTreeSet::new(), None));
        entry.1.extend(stored_as(&folder));
        entry.2 = entry.2.into_iter().chain(error).reduce(f64::max);
    }
    // Encoders and rerankers have their own tests.
    families.retain(|_, family| family.2.is_some());
    for folder in folders("quant") {
        if let Some(family) = class_of(&folder).and_then(|class| families.get_mut(&class)) {
            family.1.extend(stored_as(&folder));
        }
    }
    let mut table = String::from(
        "| Family | Encodings tried | Distance from transformers, f32 | Dispatches a token | MB of weights at 4 bits | MB of 32k tokens, f16 / int8 |\n|---|---|--:|--:|--:|--:|\n",
    );
    for (class, (config, encodings, error)) in &families {
        table +=
            &row(class, config, encodings, *error).unwrap_or_else(|| panic!("{class} has no plan"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(&path).expect("README.md");
    let (before, rest) = readme.split_once(BEGIN).expect("where the table begins");
    let (found, after) = rest.split_once(END).expect("where the table ends");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, [before, BEGIN, &table, END, after].concat()).expect("README.md");
        return;
    }
    assert!(
        found == table,
        "the README's table of families is another; write it with {WRITE}=1\n{table}"
    );
}
