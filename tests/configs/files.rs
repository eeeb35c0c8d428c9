//! Contradictory files, and files that only Python reads: golden checkpoints with changed
//! configurations around the same weights.

use jerboa::arch::{self, EncoderHead, LoadConfig};
use jerboa::exec::{ModelFiles, PrecisionOptions, RunOptions, Session};
use jerboa::format::Encoding;
use jerboa::gpu::DeviceOptions;
use jerboa::kernels::attention::Kv;
use jerboa::task::SentenceTransformersConfig;
use jerboa_tests::golden::{Golden, golden, open};
use jerboa_tests::relative_l2;
use pollster::block_on;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("jerboa-configs-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// A golden model's weights with its config.json changed by `change`.
    fn of(name: &str, model: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Self {
        let folder = Self::new(name);
        let from = golden(&format!("models/{model}"));

        let mut config = config_of(&from);
        change(config.as_object_mut().expect("fields"));
        folder.write("config.json", &config.to_string());
        std::fs::copy(
            from.join("model.safetensors"),
            folder.0.join("model.safetensors"),
        )
        .expect("weights");
        folder
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    /// Changes the tensors: bytes by name, to be stored in the returned order.
    fn tensors(&self, change: impl FnOnce(&mut Vec<(String, Value, Vec<u8>)>)) {
        let path = self.0.join("model.safetensors");
        let bytes = std::fs::read(&path).expect("weights");
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let header: Map<String, Value> =
            serde_json::from_slice(&bytes[8..start]).expect("a header");
        let mut all: Vec<(String, Value, Vec<u8>)> = Vec::new();
        for (name, info) in header
            .into_iter()
            .filter(|(name, _)| name != "__metadata__")
        {
            let range = [0, 1]
                .map(|i| start + info["data_offsets"][i].as_u64().expect("an offset") as usize);
            all.push((name, info, bytes[range[0]..range[1]].to_vec()));
        }
        change(&mut all);
        let mut header = Map::new();
        let mut data = Vec::new();

        for (name, mut info, bytes) in all {
            info["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
            header.insert(name, info);
            data.extend(bytes);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let length = (header.len() as u64).to_le_bytes();
        std::fs::write(&path, [&length[..], &header, &data].concat()).expect("weights");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config_of(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).expect("config.json"))
        .expect("JSON")
}

fn files(folder: &Path) -> jerboa::Result<ModelFiles> {
    block_on(async { ModelFiles::open(&open(folder).await?, None).await })
}

/// Relative error of a folder's logits against a golden model's reference.
fn distance(folder: &Path, model: &str) -> f64 {
    let overrides = PrecisionOptions {
        kv_type: Some(Kv::F32),
        ..PrecisionOptions::default()
    };
    let options = RunOptions {
        max_context: Some(128),
        overrides,
        ..RunOptions::default()
    };
    let mut session = block_on(async {
        let source = open(folder).await?;
        let files = ModelFiles::open(&source, None).await?;
        let gpu = jerboa_tests::open(&DeviceOptions {
            f16: false,
            ..DeviceOptions::default()
        });
        Session::load_files(gpu, &source, files, options).await
    })
    .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let golden = Golden::read(&golden(&format!("models/{model}/golden.safetensors")));
    let found = block_on(session.all_rows(&golden.ids("input_ids"), false)).expect("logits");
    relative_l2(&found, &golden.floats("logits"))
}

/// Python's json writes `Infinity` and `NaN`, and Nemotron-H's published limits contain them.
#[test]
fn infinity_and_nan_are_read_in_every_file() {
    let folder = Folder::of("python", "nemotron_h", |_| ());
    let mut text = config_of(&folder.0).to_string();
    text.truncate(text.len() - 1);
    folder.write(
        "config.json",
        &(text + r#", "time_step_limit": [0.0, Infinity], "unused": NaN, "low": -Infinity}"#),
    );
    folder.write(
        "generation_config.json",
        r#"{"temperature": 1.0, "top_p": Infinity, "x": [NaN, "NaN"]}"#,
    );
    assert!(distance(&folder.0, "nemotron_h") < 2e-4);
    let source = block_on(open(&folder.0)).expect("a source");
    let read = block_on(source.read("generation_config.json")).expect("a file");
    let read: Value = serde_json::from_slice(&read).expect("JSON");
    assert_eq!(
        read,
        json!({"temperature": 1.0, "top_p": f64::MAX, "x": [null, "NaN"]})
    );
    // The index of shards as well.
    let sharded = golden("models/llama_sharded");
    let folder = Folder::new("python-index");
    for file in std::fs::read_dir(&sharded)
        .expect("files")
        .map(|f| f.expect("a file").path())
    {
        std::fs::copy(&file, folder.0.join(file.file_name().expect("a name"))).expect("a copy");
    }
    let index =
        std::fs::read_to_string(sharded.join("model.safetensors.index.json")).expect("an index");
    folder.write(
        "model.safetensors.index.json",
        &index.replacen('{', r#"{"made": NaN,"#, 1),
    );
    assert!(files(&folder.0).is_ok());
}

#[test]
fn whole_numbers_may_be_floats() {
    fn float(value: &mut Value) {
        match value {
            Value::Number(n) => *value = json!(n.as_f64()),
            Value::Object(map) => map.values_mut().for_each(float),
            Value::Array(list) => list.iter_mut().for_each(float),
            _ => {}
        }
    }
    for model in ["llama", "gemma3", "qwen3_moe", "nemotron_h"] {
        let folder = Folder::of(&format!("floats-{model}"), model, |config| {
            config.values_mut().for_each(float);
        });
        assert!(
            std::fs::read_to_string(folder.0.join("config.json"))
                .expect("text")
                .contains(".0")
        );
        let [of, whole] =
            [&folder.0, &golden(&format!("models/{model}"))].map(|f| files(f).expect(model).config);
        let graph = |config: &LoadConfig| arch::graph(config).expect(model);
        assert_eq!(graph(&of), graph(&whole), "{model}");
    }
}

/// Both exist and differ: the configuration is wrong, as in transformers.
#[test]
fn a_stored_head_overrides_the_tied_flag() {
    let tie = |config: &mut Map<String, Value>| {
        drop(config.insert("tie_word_embeddings".into(), true.into()));
    };
    let folder = Folder::of("tied-flag", "qwen2_untied", tie);
    assert!(distance(&folder.0, "qwen2_untied") < 2e-4);
    // One different number in the last row is enough.
    let folder = Folder::of("tied-but-one", "llama", tie);
    let table = "model.embed_tokens.weight";
    folder.tensors(|all| {
        let mut copy = all
            .iter()
            .find(|(name, ..)| name == table)
            .expect("a table")
            .clone();
        copy.0 = "lm_head.weight".into();
        *copy.2.last_mut().expect("bytes") ^= 0x40;
        all.retain(|(name, ..)| name != "lm_head.weight");
        all.push(copy);
    });
    assert!(head(&folder.0).contains("lm_head"));
    // Equal tensors share one table on the device.
    folder.tensors(|all| {
        let bytes = all
            .iter()
            .find(|(name, ..)| name == table)
            .expect("a table")
            .2
            .clone();
        all.iter_mut()
            .filter(|(name, ..)| name == "lm_head.weight")
            .for_each(|head| head.2.clone_from(&bytes));
    });
    assert_eq!(head(&folder.0), table);
}

/// Bytes of a folder's weights on the device.
fn head(folder: &Path) -> String {
    let config = files(folder).expect("files").config;
    let graph = arch::graph(&config).expect("a graph");
    let logits = graph.nodes.iter().rev().find_map(|node| match &node.op {
        jerboa::ir::Op::Linear(linear) => Some(linear.weight),
        _ => None,
    });
    graph.weight(logits.expect("a head")).parts[0].0.clone()
}

/// A tied model whose single table is stored as the head.
#[test]
fn a_head_without_an_embedding_is_tied() {
    let folder = Folder::of("head-alone", "qwen2", |_| ());
    folder.tensors(|all| {
        let table = all
            .iter_mut()
            .find(|(name, ..)| name == "model.embed_tokens.weight");
        table.expect("a table").0 = "lm_head.weight".into();
    });
    assert!(distance(&folder.0, "qwen2") < 2e-4);
}

/// A list without a class, a string, and the class of a fine-tuning script: `model_type` decides.
#[test]
fn odd_classes_of_decoders_load_by_their_model_type() {
    for (name, classes, class) in [
        ("empty", json!([]), ""),
        ("null", json!(null), ""),
        ("string", json!("LlamaForCausalLM"), "LlamaForCausalLM"),
        ("unknown", json!(["MyLlamaForCausalLM"]), "LlamaForCausalLM"),
    ] {
        let folder = Folder::of(&format!("class-{name}"), "llama", |config| {
            config.insert("architectures".into(), classes);
        });
        let files = files(&folder.0).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(files.config.class(), class, "{name}");
        assert_eq!(files.config.unknown_class.is_some(), name == "unknown");
    }
    // Another task, an unknown type, and a type of several families are not guessed.
    for (class, kind) in [
        ("LlamaForTokenRanking", "llama"),
        ("MyForCausalLM", "my"),
        ("MyForCausalLM", ""),
    ] {
        let folder = Folder::of(&format!("class-{class}-{kind}"), "llama", |config| {
            config.insert("architectures".into(), json!([class]));
            config.insert("model_type".into(), kind.into());
        });
        let error = files(&folder.0).expect_err(class);
        assert_eq!(error.code(), "unknown_architecture", "{class} {kind}");
    }
    // A model without a head embeds.
    let folder = Folder::of("class-headless", "llama", |config| {
        config.insert("architectures".into(), json!(["LlamaModel"]));
    });
    let error = files(&folder.0).expect_err("no head");
    assert_eq!(error.code(), "unsupported_option", "{error}");
    let message = error.to_string();
    assert!(
        message.ends_with("Load it with the task 'embed'."),
        "{message}"
    );
}

/// As the body of a model alone is saved, with or without its head.
/// Models that have the class of BERT or RoBERTa, but another structure.
#[test]
fn variants_of_bert_are_refused_by_the_field() {
    for (model, field, value) in [
        ("bert", "is_decoder", json!(true)),
        ("bert", "add_cross_attention", json!(true)),
        ("bert", "alibi_starting_size", json!(4096)),
        ("roberta", "is_decoder", json!(true)),
    ] {
        let mut config = config_of(&golden(&format!("models/{model}")));
        let build = |config: &Value| arch::encoder_graph(&config.into(), &EncoderHead::Hidden);
        config["is_decoder"] = json!(false);
        build(&config).expect(model);
        config[field] = value;
        let refusal = build(&config).map(|_| ()).expect_err(field);
        assert_eq!(refusal.code(), "unsupported_option");
        assert!(refusal.to_string().contains(field), "{refusal}");
    }
}

#[test]
fn decoders_without_a_prefix_load() {
    for model in ["llama", "qwen3"] {
        let folder = Folder::of(&format!("body-{model}"), model, |_| ());
        folder.tensors(|all| {
            for (name, ..) in all.iter_mut() {
                *name = name.strip_prefix("model.").unwrap_or(name).to_string();
            }
        });
        assert!(distance(&folder.0, model) < 2e-4, "{model}");
    }
}

/// Also of a family that stores its matrices transposed.
#[test]
fn f64_tensors_are_read_as_f32() {
    for model in ["llama", "gpt2"] {
        let folder = Folder::of(&format!("f64-{model}"), model, |_| ());
        folder.tensors(|all| {
            for (name, info, bytes) in all.iter_mut() {
                // The upper half of an f32 is a BF16.
                let size = if info["dtype"] == "F32" { 4 } else { 2 };
                let wide = |element: &[u8]| {
                    let mut float = [0; 4];
                    float[4 - size..].copy_from_slice(element);
                    f64::from(f32::from_le_bytes(float)).to_le_bytes()
                };
                assert!(info["dtype"] == "F32" || info["dtype"] == "BF16", "{name}");
                *bytes = bytes.chunks_exact(size).flat_map(wide).collect();
                info["dtype"] = "F64".into();
            }
        });
        assert!(distance(&folder.0, model) < 2e-4, "{model}");
    }
}

/// Older GPTQ checkpoints describe their packing in a file of its own.
#[test]
fn quantize_config_is_read_where_config_has_no_block() {
    for (format, minus_one) in [("gptq", true), ("gptq_v2", false)] {
        let folder = Folder::new(&format!("sidecar-{format}"));
        let from = golden("quant/model_gptq");
        let mut config = config_of(&from);
        config
            .as_object_mut()
            .expect("fields")
            .remove("quantization_config");
        folder.write("config.json", &config.to_string());
        let block = json!({ "bits": 4, "group_size": 32, "checkpoint_format": format });
        folder.write("quantize_config.json", &block.to_string());
        let weights = folder.0.join("model.safetensors");
        std::fs::copy(from.join("model.safetensors"), weights).expect("weights");
        let files = files(&folder.0).expect("files");
        let found: Vec<bool> = files
            .weights
            .iter()
            .filter_map(|weight| match weight.encoding {
                Encoding::Gptq { minus_one, .. } => Some(minus_one),
                _ => None,
            })
            .collect();
        assert!(
            !found.is_empty() && found.iter().all(|found| *found == minus_one),
            "{format}"
        );
        folder.write("quantize_config.json", "{");
        let error = self::files(&folder.0).expect_err("no JSON");
        assert!(
            error.to_string().contains("quantize_config.json"),
            "{error}"
        );
    }
}

/// Models with another family's tensor names, and fields that do not distinguish them.
const ALIKE: [(&str, &str); 2] = [("helium", "llama"), ("phi4_mini", "phi3")];

#[test]
fn architectures_are_detected_by_tensor_names() {
    let mut seen = 0;
    let mut wrong = Vec::new();

    let one_family = |a: &str, b: &str| {
        arch::families().any(|f| [a, b].iter().all(|kind| f.model_types.contains(kind)))
    };
    for entry in std::fs::read_dir(golden("models")).expect("models") {
        let from = entry.expect("an entry").path();
        let name = from
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if !from.join("model.safetensors").exists() {
            continue;
        }
        let config = config_of(&from);
        let own = config["model_type"].as_str().expect("a type");
        let folder = Folder::of(&format!("unnamed-{name}"), &name, |config| {
            config.remove("architectures");
            config.remove("model_type");
        });
        let found = block_on(async { ModelFiles::config(&open(&folder.0).await?).await });
        let expected = ALIKE
            .iter()
            .find(|(model, _)| *model == name)
            .map_or(own, |alike| alike.1);
        let found = found.map(|config| {
            config.expect("config.json")["model_type"]
                .as_str()
                .unwrap_or_default()
                .to_string()
        });
        if !found
            .as_ref()
            .is_ok_and(|found| found == expected || one_family(found, expected))
        {
            wrong.push(format!("{name}: {found:?} for {expected}"));
        }
        seen += 1;
    }
    assert!(seen > 40, "{seen} models");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // An unsupported model is refused with advice.
    let folder = Folder::of("nobody", "llama", |config| {
        config.remove("architectures");
        config.remove("model_type");
    });
    folder.tensors(|all| {
        all.iter_mut()
            .for_each(|tensor| tensor.0 = tensor.0.replace("self_attn", "odd"));
    });
    let message = files(&folder.0).expect_err("no family").to_string();
    assert!(message.contains("Add 'model_type'"), "{message}");
}

/// Every name under which sentence-transformers stores the maximum length; the first file that has
/// one decides.
#[test]
fn lengths_are_read_from_every_file_of_sentence_transformers() {
    let read = |folder: &Folder| {
        let config =
            block_on(async { SentenceTransformersConfig::read(&open(&folder.0).await?).await });
        let config = config.expect("readable").expect("modules.json");
        (config.max_length, config.lower_case)
    };
    let modules = |path: &str| {
        let kind = |kind: &str| format!("sentence_transformers.models.{kind}");
        json!([{"type": kind("Transformer"), "path": path}, {"type": kind("Pooling"), "path": "1_Pooling"}]).to_string()
    };
    for kind in [
        "bert",
        "roberta",
        "distilbert",
        "camembert",
        "albert",
        "xlm-roberta",
        "xlnet",
    ] {
        for path in ["", "0_Transformer"] {
            let folder = Folder::new(&format!("length-{kind}-{path}"));
            folder.write("modules.json", &modules(path));
            let file = Path::new(path).join(format!("sentence_{kind}_config.json"));
            folder.write(
                &file.to_string_lossy(),
                r#"{"max_seq_length": 77, "do_lower_case": true}"#,
            );
            assert_eq!(read(&folder), (Some(77), true), "{kind} in '{path}'");
        }
    }
    let folder = Folder::new("length-first");
    folder.write("modules.json", &modules(""));
    assert_eq!(read(&folder), (None, false));
    folder.write("sentence_xlnet_config.json", r#"{"max_seq_length": 9}"#);
    folder.write("sentence_bert_config.json", "{}");
    assert_eq!(read(&folder), (Some(9), false));
    folder.write(
        "sentence_bert_config.json",
        r#"{"max_seq_length": null, "do_lower_case": false}"#,
    );
    assert_eq!(read(&folder), (None, false));
    folder.write(
        "sentence_bert_config.json",
        r#"{"max_seq_length": 8, "tokenizer_args": {"model_max_length": 7}}"#,
    );
    assert_eq!(read(&folder), (Some(7), false));
}
