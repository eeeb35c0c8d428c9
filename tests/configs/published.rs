//! Published configurations (tests/golden/configs): each becomes a graph with the published tensor
//! names, or is refused by name; docs/published-configs.md has a row for each. JERBOA_WRITE_PLANS=1
//! rewrites that table.

use jerboa::arch::{self, LoadConfig};
use jerboa::exec::ModelFiles;
use jerboa::format::quantize;
use jerboa::ir::{Graph, WeightKind};
use jerboa::kernels::attention::Kv;
use jerboa::plan::{StatePlan, WeightPlan, plan_states, plan_weights};
use jerboa_tests::golden::{golden, open};
use pollster::block_on;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Reads a folder's config.json as a load does: some contain Python's `Infinity`.
fn config_of(folder: &Path) -> LoadConfig {
    let read = block_on(async { ModelFiles::config(&open(folder).await?).await });
    read.unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .expect("config.json")
}

/// A tensor's name with `{n}` in place of each number between dots.
fn pattern(name: &str) -> String {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.split('.')
        .map(|part| if digits(part) { "{n}" } else { part })
        .collect::<Vec<_>>()
        .join(".")
}

/// Tensors of the checkpoint by name pattern.
fn stored(folder: &Path, config: &LoadConfig) -> Option<BTreeMap<String, usize>> {
    let patterns = folder.join("tensors.json");
    let index = folder.join("model.safetensors.index.json");

    let mut all = BTreeMap::new();
    if patterns.exists() {
        for (name, count) in read_json(&patterns).as_object()? {
            *all.entry(arch::canonical_name(config, name)).or_default() += count.as_u64()? as usize;
        }
    } else if index.exists() {
        for name in read_json(&index)["weight_map"].as_object()?.keys() {
            *all.entry(pattern(&arch::canonical_name(config, name)))
                .or_default() += 1;
        }
    } else {
        return None;
    }
    Some(all)
}

/// Sizes of a published configuration.
struct Found {
    /// Parameters.
    parameters: usize,
    /// Bytes of the weights at 4 bits.
    weights: u64,
    /// Bytes of the KV cache and states of a sequence of 32,768 tokens, in f16.
    states: u64,
    /// Name patterns that equal those of the published index, if it is known.
    names: Option<usize>,
}

/// The graphs of a configuration, including the encoder's if it has one.
fn graphs(config: &LoadConfig) -> jerboa::Result<Vec<Graph>> {
    if let Some(speech) = arch::speech_graphs(config)? {
        return Ok(vec![
            speech.encoder,
            speech.keys,
            speech.values,
            speech.decoder,
        ]);
    }
    let encoder = || {
        Ok(vec![
            arch::encoder_graph(config, &arch::EncoderHead::Hidden)?.graph,
        ])
    };
    if arch::is_encoder(config) {
        return encoder();
    }
    // A decoder without a head is published for embeddings.
    arch::graph(config)
        .map(|graph| vec![graph])
        .or_else(|error| encoder().map_err(|_| error))
}

/// Published vision encoders, which leave out fields that equal transformers' defaults.
#[test]
fn published_vision_encoders_become_graphs() {
    let mut built = 0;
    for folder in std::fs::read_dir(golden("configs")).expect("configs") {
        let folder = folder.expect("a folder").path();
        if !folder.join("config.json").exists() {
            continue;
        }
        let config = config_of(&folder);
        if !config["vision_config"].is_object() || arch::check_generates(&config).is_err() {
            continue;
        }
        match arch::vision_encoder(&config) {
            Ok(_) => built += 1,
            Err(error) => assert_eq!(error.code(), "unsupported_option", "{folder:?}: {error}"),
        }
    }
    assert!(built > 20, "{built}");

    // Each of these fields has the default of its configuration class.
    let qwen3 = [
        "depth",
        "hidden_size",
        "intermediate_size",
        "num_heads",
        "patch_size",
        "num_position_embeddings",
    ];
    for (name, fields) in [
        (
            "Qwen__Qwen2.5-VL-7B-Instruct",
            &[
                "depth",
                "intermediate_size",
                "num_heads",
                "patch_size",
                "out_hidden_size",
                "window_size",
                "fullatt_block_indexes",
            ][..],
        ),
        (
            "Qwen__Qwen3-VL-8B-Instruct",
            &[&qwen3[..], &["deepstack_visual_indexes"]].concat(),
        ),
        ("Qwen__Qwen3.5-9B", &qwen3),
        (
            "aribornstein__gemma-4-E2B-it",
            &[
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "head_dim",
            ],
        ),
    ] {
        let mut config = read_json(&golden(&format!("configs/{name}/config.json")));
        // The decoder of Qwen3-VL adds the features of the listed layers.
        let graph = |config: &Value| {
            let config = LoadConfig::from(config);
            let vision = arch::vision_encoder(&config).expect(name);
            (vision.graph, arch::graph(&config).expect(name))
        };
        let whole = graph(&config);
        for field in fields {
            let vision = config["vision_config"].as_object_mut().expect("an object");
            assert!(vision.remove(*field).is_some(), "{name}: {field}");
            assert_eq!(graph(&config), whole, "{name}: {field}");
        }
    }

    // Idefics3-8B leaves out what equals LlamaConfig's defaults.
    let folder = golden("configs/HuggingFaceTB__SmolVLM2-500M-Video-Instruct");
    let mut config = read_json(&folder.join("config.json"));
    let text = json!({ "model_type": "llama", "intermediate_size": 14336, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "vocab_size": 128259 });
    config["text_config"] = text;
    let short = arch::graph(&LoadConfig::from(&config)).expect("a decoder");
    let sizes = json!({ "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32 });
    let text = config["text_config"].as_object_mut().expect("an object");
    text.extend(sizes.as_object().expect("an object").clone());
    let whole = arch::graph(&LoadConfig::from(&config)).expect("a decoder");
    assert_eq!(short, whole);

    // Defaults of SmolVLMVisionConfig: 12 layers with an MLP of 3072.
    let config = config_of(&golden(
        "configs/HuggingFaceTB__SmolVLM2-500M-Video-Instruct",
    ));
    let vision = arch::vision_encoder(&config).expect("a vision encoder");
    assert_eq!(vision.tile_tokens, Some((512 / 16 / 4) * (512 / 16 / 4)));
    let rows = |name: &str| {
        let mut parts = vision.graph.weights.iter().flat_map(|weight| &weight.parts);
        parts.find(|part| part.0.ends_with(name)).map(|part| part.1)
    };
    assert_eq!(rows("layers.11.mlp.fc1.weight"), Some(3072));
    assert_eq!(rows("layers.12.mlp.fc1.weight"), None);
}

/// The sizes of a published configuration whose tensor names all match, or the refusal.
fn sizes(folder: &Path) -> Result<Found, String> {
    let config = config_of(folder);
    let graphs = graphs(&config).map_err(|e| {
        assert!(
            ["unknown_architecture", "unsupported_option", "config"].contains(&e.code()),
            "{e}"
        );
        e.to_string()
    })?;
    let parts = || {
        let weights = graphs.iter().flat_map(|g| &g.weights);
        weights
            .flat_map(|w| w.parts.iter().map(|p| (p.0.as_str(), p.1 * w.cols)))
            .collect::<BTreeMap<_, _>>()
    };
    let stored = stored(folder, &config);
    if let Some(stored) = &stored {
        let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
        parts()
            .keys()
            .for_each(|name| *wanted.entry(pattern(name)).or_default() += 1);
        // Without a stored head, the head is the embedding.
        wanted.retain(|name, _| name != "lm_head.weight" || stored.contains_key(name));
        for (name, count) in &wanted {
            assert_eq!(
                stored.get(name),
                Some(count),
                "{}: {name}",
                folder.display()
            );
        }
        let text = |name: &str| name.starts_with("model.layers.") && name.ends_with("weight");
        for name in stored.keys().filter(|name| text(name)) {
            assert!(
                wanted.contains_key(name),
                "{}: no graph reads {name}",
                folder.display()
            );
        }
    }
    let mut weights = 0;
    let mut states = 0;

    for graph in &graphs {
        let four_bits = |name: &str| {
            quantize::layout(if graph.kind_of(name) == WeightKind::Table {
                8
            } else {
                4
            })
        };
        weights += plan_weights(graph, &four_bits, 4 << 30)
            .expect("a plan")
            .values()
            .map(WeightPlan::bytes)
            .sum::<u64>();
        states += plan_states(graph, Kv::F16, 32_768, 512)
            .iter()
            .map(StatePlan::bytes)
            .sum::<u64>();
    }
    Ok(Found {
        parameters: parts().values().sum(),
        weights,
        states,
        names: stored.map(|names| names.len()),
    })
}

/// Rows of supported models: millions of parameters, MB of weights at 4 bits (tables at 8), MB of
/// memory for 32,768 tokens in f16.
const SIZES: &[(&str, [u64; 3])] = &[
    ("Qwen__Qwen3-0.6B", [596, 450, 3758]),
    ("Qwen__Qwen3-14B-MLX-4bit", [14_768, 10_009, 5368]),
    ("root-hypercube__qwen3-mlx-root", [1720, 1231, 3758]),
    ("Qwen__Qwen3-30B-A3B", [30_532, 19_394, 3221]),
    ("Qwen__Qwen3.5-27B", [26_895, 17_454, 2304]),
    ("Qwen__Qwen3.5-35B-A3B", [34_660, 21_921, 736]),
    ("microsoft__Phi-3-mini-4k-instruct", [3821, 2487, 1006]),
    ("microsoft__Phi-3-mini-128k-instruct", [3821, 2487, 12_884]),
    ("microsoft__Phi-3-medium-4k-instruct", [13_960, 8890, 524]),
    ("microsoft__phi-2", [2779, 1871, 10_737]),
    ("mistralai__Devstral-Small-2507", [23_572, 15_405, 5368]),
    ("mistralai__Mixtral-8x7B-v0.1", [46_702, 29_321, 4294]),
    ("openai__gpt-oss-20b", [20_914, 13_674, 821]),
    ("deepseek-ai__DeepSeek-V3", [671_026, 420_321, 196_494]),
    ("Supabase__gte-small", [33, 26, 0]),
    ("allenai__OLMoE-1B-7B-0125-Instruct", [6919, 4427, 4294]),
    ("allenai__Olmo-3-7B-Think", [7298, 4973, 6106]),
    ("baidu__ERNIE-4.5-21B-A3B-PT", [21_825, 13_773, 1879]),
    ("google__gemma-4-26B-A4B", [25_233, 16_142, 985]),
    (
        "ibm-granite__granite-3.1-1b-a400m-instruct",
        [1334, 859, 1610],
    ),
    (
        "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        [31_577, 19_915, 251],
    ),
    ("tiiuae__Falcon-H1-0.5B-Base", [521, 344, 633]),
    ("zai-org__GLM-4.7-Flash", [29_943, 19_032, 31_541]),
];

/// Refused folders or whole classes, and their messages.
const REFUSED: &[(&str, &str)] = &[
    (
        "BaichuanForCausalLM",
        "'BaichuanForCausalLM' is not supported",
    ),
    ("ChatGLMModel", "'ChatGLMModel' is not supported"),
    ("CohereForCausalLM", "'CohereForCausalLM' is not supported"),
    ("DbrxForCausalLM", "'DbrxForCausalLM' is not supported"),
    ("deepseek_vl_v2", "'deepseek_vl_v2' is not supported"),
    (
        "DeepseekV32ForCausalLM",
        "'DeepseekV32ForCausalLM' is not supported",
    ),
    (
        "DeepseekV4ForCausalLM",
        "'DeepseekV4ForCausalLM' is not supported",
    ),
    (
        "Exaone4_5_ForConditionalGeneration",
        "'Exaone4_5_ForConditionalGeneration' is not supported",
    ),
    ("ExaoneForCausalLM", "'ExaoneForCausalLM' is not supported"),
    (
        "Glm4MoeForCausalLM",
        "'Glm4MoeForCausalLM' is not supported",
    ),
    (
        "GlmMoeDsaForCausalLM",
        "'GlmMoeDsaForCausalLM' is not supported",
    ),
    (
        "GPTBigCodeForCausalLM",
        "'GPTBigCodeForCausalLM' is not supported",
    ),
    ("GPTJForCausalLM", "'GPTJForCausalLM' is not supported"),
    (
        "InternLM2ForCausalLM",
        "'InternLM2ForCausalLM' is not supported",
    ),
    (
        "KimiK25ForConditionalGeneration",
        "'KimiK25ForConditionalGeneration' is not supported",
    ),
    (
        "KimiK3ForConditionalGeneration",
        "'KimiK3ForConditionalGeneration' is not supported",
    ),
    (
        "Llama4ForConditionalGeneration",
        "'Llama4ForConditionalGeneration' is not supported",
    ),
    (
        "LlavaForConditionalGeneration",
        "'LlavaForConditionalGeneration' is not supported",
    ),
    ("MiMoForCausalLM", "'MiMoForCausalLM' is not supported"),
    (
        "MiMoV2FlashForCausalLM",
        "'MiMoV2FlashForCausalLM' is not supported",
    ),
    (
        "MiniCPM3ForCausalLM",
        "'MiniCPM3ForCausalLM' is not supported",
    ),
    (
        "MiniMaxM2ForCausalLM",
        "'MiniMaxM2ForCausalLM' is not supported",
    ),
    (
        "MiniMaxM3ForCausalLM",
        "'MiniMaxM3ForCausalLM' is not supported",
    ),
    (
        "MiniMaxM3SparseForConditionalGeneration",
        "'MiniMaxM3SparseForConditionalGeneration' is not supported",
    ),
    (
        "Ministral3ForCausalLM",
        "'Ministral3ForCausalLM' is not supported",
    ),
    (
        "Mistral3ForConditionalGeneration",
        "'Mistral3ForConditionalGeneration' is not supported",
    ),
    (
        "MllamaForConditionalGeneration",
        "'MllamaForConditionalGeneration' is not supported",
    ),
    ("multi_modality", "'multi_modality' is not supported"),
    (
        "nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        "22 of 512 experts is not supported",
    ),
    (
        "nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        "22 of 512 experts is not supported",
    ),
    (
        "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
        "22 of 512 experts is not supported",
    ),
    (
        "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8",
        "22 of 512 experts is not supported",
    ),
    (
        "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4",
        "22 of 512 experts is not supported",
    ),
    (
        "Phi3SmallForCausalLM",
        "'Phi3SmallForCausalLM' is not supported",
    ),
    ("Phi3VForCausalLM", "'Phi3VForCausalLM' is not supported"),
    ("microsoft__phi-1_5", "'num_attention_heads' is missing"),
    (
        "Qwen2MoeForCausalLM",
        "'Qwen2MoeForCausalLM' is not supported",
    ),
    (
        "Qwen2VLForConditionalGeneration",
        "'Qwen2VLForConditionalGeneration' is not supported",
    ),
    (
        "Qwen3VLMoeForConditionalGeneration",
        "'Qwen3VLMoeForConditionalGeneration' is not supported",
    ),
    ("QWenLMHeadModel", "'QWenLMHeadModel' is not supported"),
    (
        "StableLmForCausalLM",
        "'StableLmForCausalLM' is not supported",
    ),
    (
        "Step3p7FlashForCausalLM",
        "'Step3p7FlashForCausalLM' is not supported",
    ),
    // A configuration from before transformers 4.48, which named the encoder's and the decoder's heads apart.
    (
        "Xenova__moonshine-tiny-hf",
        "'encoder_num_attention_heads' is missing",
    ),
    ("XverseForCausalLM", "'XverseForCausalLM' is not supported"),
];

/// The class of a configuration.
fn class(config: &LoadConfig) -> String {
    let class = config["architectures"][0]
        .as_str()
        .or(config["model_type"].as_str());
    class.expect("a class").to_string()
}

/// The folders of a root that have a config.json.
fn folders(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
    let mut folders: Vec<PathBuf> = entries
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.join("config.json").exists())
        .collect();
    folders.sort();
    folders
}

fn name(folder: &Path) -> String {
    folder
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned()
}

#[test]
fn published_configurations_become_graphs_or_are_refused_by_name() {
    let folders = folders(&golden("configs"));
    assert!(folders.len() >= 150, "{} folders", folders.len());
    let mut rows = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut refusing = BTreeSet::new();

    let mut built = 0;
    for folder in &folders {
        let name = name(folder);
        let class = class(&config_of(folder));

        let expected = SIZES.iter().find(|s| s.0 == name);
        let refused = REFUSED
            .iter()
            .find(|r| r.0 == name)
            .or_else(|| REFUSED.iter().find(|r| r.0 == class));
        let repository = name.replacen("__", "/", 1);
        let row = match sizes(folder) {
            Ok(found) => {
                let numbers =
                    [found.parameters as u64, found.weights, found.states].map(|n| n / 1_000_000);
                if expected.is_some_and(|e| e.1 != numbers) || refused.is_some() {
                    wrong.push(format!("{name} of {class} is built: {numbers:?}"));
                }
                built += 1;
                let names = found
                    .names
                    .map_or(String::new(), |count| format!("{count} patterns"));
                format!(
                    "| {class} | {repository} | builds | {} | {names} |",
                    numbers[0]
                )
            }
            Err(refusal) => {
                match refused.filter(|r| refusal.contains(r.1)) {
                    Some(refused) => drop(refusing.insert(refused.0)),
                    None => wrong.push(format!("{name} of {class}: {refusal}")),
                }
                // Suggested classes in a message change with every new family.
                let said = refusal
                    .split("; the nearest")
                    .next()
                    .and_then(|said| said.split(". ").next());
                let said = said.unwrap_or_default().replace('|', "\\|");
                format!("| {class} | {repository} | refused: {said} | | |")
            }
        };
        rows.insert((class.to_lowercase(), row));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let unused: Vec<&str> = REFUSED
        .iter()
        .map(|r| r.0)
        .filter(|class| !refusing.contains(class))
        .collect();
    assert_eq!(unused, [""; 0], "nothing is refused of these");
    let missing = SIZES
        .iter()
        .find(|s| !folders.iter().any(|f| f.ends_with(s.0)));
    assert!(missing.is_none(), "{missing:?} is not there");
    document(
        folders.len(),
        built,
        &rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>(),
    );
}

/// Compares the table with docs/published-configs.md: a missing row or another outcome fails.
fn document(all: usize, built: usize, rows: &[String]) {
    let mut text = String::from("# Published configurations\n\n");
    let lead = "What becomes of published config.json files: `builds`, or the reason of the refusal. Millions of parameters are \
        those that the graph reads. Tensor names are compared where a published index is known.";
    let made = "Sources and licences of the copies: [tests/golden/configs/SOURCES.toml](../tests/golden/configs/SOURCES.toml). \
        The table is written by `JERBOA_WRITE_PLANS=1 cargo test -p jerboa-tests --test configs published`.";
    let absent = "Searched for without result: a configuration of GraniteMoeShared (no checkpoint names the class), the whole files of \
        Gemma 3n E2B and E4B, Kani-TTS-2 and Ernie 4.5 300B-A47B. SOURCES.toml says where a copy is cut off or quoted.";
    write!(
        text,
        "{lead}\n\n{made}\n\n{absent}\n\n{built} of {all} build.\n\n"
    )
    .expect("text");
    text +=
        "| Class | Repository | Outcome | Parameters, M | Tensor names |\n|---|---|---|--:|---|\n";
    rows.iter().for_each(|row| text += &format!("{row}\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/published-configs.md");
    if std::env::var_os("JERBOA_WRITE_PLANS").is_some() {
        std::fs::write(&path, text).expect("the document");
        return;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let changed = text
        .lines()
        .find(|line| !stored.lines().any(|l| l == *line));
    assert!(
        stored == text,
        "docs/published-configs.md is not current: {changed:?}. Write it with JERBOA_WRITE_PLANS=1."
    );
}

/// Licences that `licence` may name; "not stated" where neither repository nor model has one.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "MIT",
    "BSD-3-Clause",
    "OpenRAIL-M",
    "Llama 2 community",
    "Llama 3.1 community",
    "Llama 3.2 community",
    "Gemma terms",
    "Health AI Developer Foundations terms",
    "LFM Open License",
    "Mistral Research License",
    "Falcon LLM license",
    "Tongyi Qianwen",
    "DeepSeek model licence",
    "not stated",
];

/// Each folder names its source and its licence.
#[test]
fn copies_name_their_sources_and_licences() {
    let sources = std::fs::read_to_string(golden("configs/SOURCES.toml")).expect("SOURCES.toml");
    for folder in folders(&golden("configs")) {
        let heading = format!("[\"{}\"]\nrepository = \"", name(&folder));
        let (_, entry) = sources.split_once(&heading).expect(&heading);
        let entry = entry.split("\n[").next().unwrap_or_default();
        let licence = entry
            .lines()
            .find_map(|line| line.strip_prefix("licence = "));
        let licence = licence.unwrap_or_else(|| panic!("{heading} has no licence"));
        assert!(
            LICENCES.iter().any(|known| licence.contains(known)),
            "{heading}: {licence}"
        );
    }
}

/// A refusal is one line with similar classes and a link to the list, never every class, and never
/// the refused name itself.
#[test]
fn unknown_architectures_name_their_neighbours() {
    for (class, near) in [
        ("Qwen2MoeForCausalLM", "Qwen2ForCausalLM"),
        ("LlamaForSequenceClassification", "LlamaForCausalLM"),
        ("Mistral3ForConditionalGeneration", "MistralForCausalLM"),
        ("DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM"),
        ("UnheardOf", ""),
    ] {
        let message = arch::graph(&serde_json::json!({ "architectures": [class] }).into())
            .expect_err(class)
            .to_string();
        assert!(
            message.contains(&format!("'{class}' is not supported")) && message.contains(near),
            "{message}"
        );
        assert!(
            message.ends_with("#what-runs") && !message.contains('\n') && message.len() < 300,
            "{message}"
        );
        assert_eq!(message.matches(class).count(), 1, "{message}");
        assert_eq!(message.contains("nearest"), !near.is_empty(), "{message}");
    }
    let known: Vec<&str> = arch::supported_architectures().collect();
    for name in &known {
        let message = arch::unknown_architecture(name, known.iter().copied()).to_string();
        assert_eq!(message.matches(&format!("{name} ")).count(), 0, "{message}");
        assert!(
            message
                .split(['\'', ' ', ',', ';', '.'])
                .filter(|word| word == name)
                .count()
                == 1,
            "{message}"
        );
    }
}
