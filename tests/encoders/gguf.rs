//! Embedding models and rerankers in GGUF files, made from the golden checkpoints with llama.cpp's
//! names and keys: task, vectors and scores.

use super::folder::{Folder, load};
use half::{bf16, f16};
use jerboa::arch::{self, Container};
use jerboa::exec::{EncoderInput, EncoderModel, RunOptions};
use jerboa::format::gguf::{self, MetadataValue};
use jerboa::gpu::DeviceOptions;
use jerboa::task::{Task, TaskModel};
use jerboa_tests::gguf::GgufFile;
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::relative_l2;
use pollster::block_on;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;

const LIMIT: f64 = 2e-4;

/// Module names of the original and of llama.cpp, those of layers without their numbers.
type Names = &'static [(&'static str, &'static str)];

const BERT: Names = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
    ("classifier.dense", "cls"),
    ("classifier.out_proj", "cls.output"),
];
const DISTILBERT: Names = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("attention.q_lin", "attn_q"),
    ("attention.k_lin", "attn_k"),
    ("attention.v_lin", "attn_v"),
    ("attention.out_lin", "attn_output"),
    ("sa_layer_norm", "attn_output_norm"),
    ("ffn.lin1", "ffn_up"),
    ("ffn.lin2", "ffn_down"),
    ("output_layer_norm", "layer_output_norm"),
];
const NOMIC: Names = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("emb_ln", "token_embd_norm"),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.out_proj", "attn_output"),
    ("norm1", "attn_output_norm"),
    ("mlp.fc11", "ffn_up"),
    ("mlp.fc12", "ffn_gate"),
    ("mlp.fc2", "ffn_down"),
    ("norm2", "layer_output_norm"),
];
const QWEN3: Names = &[
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
const GEMMA: Names = &[
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

fn json(path: &str) -> Json {
    serde_json::from_slice(&std::fs::read(golden(path)).expect(path)).expect(path)
}

fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytemuck::pod_collect_to_vec(bytes),
        Dtype::F16 => bytes
            .chunks_exact(2)
            .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect(),
        Dtype::BF16 => bytes
            .chunks_exact(2)
            .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect(),
        other => panic!("{other:?}"),
    }
}

/// llama.cpp's name of a tensor; `None` if its conversion omits it.
fn renamed(name: &str, names: Names) -> Option<String> {
    let prefixes = ["roberta.", "bert.", "model."];
    let name = prefixes
        .iter()
        .find_map(|p| name.strip_prefix(p))
        .unwrap_or(name);
    let (module, kind) = name.rsplit_once('.')?;
    let find = |module: &str| names.iter().find(|n| n.0 == module).map(|n| n.1);
    let layers = [
        "encoder.layer.",
        "encoder.layers.",
        "layers.",
        "transformer.layer.",
    ];
    let layer = layers.iter().find_map(|p| module.strip_prefix(p));
    match layer.and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => Some(format!("blk.{layer}.{}.{kind}", find(rest)?)),
        None => Some(format!("{}.{kind}", find(module)?)),
    }
}

/// A golden checkpoint as llama.cpp's conversion writes it, with a pooling type.
fn converted(model: &str, architecture: &str, names: Names, pooling: i64) -> GgufFile {
    let config = json(&format!("models/{model}/config.json"));
    let number = |field: &str| {
        // DistilBERT's names.
        let short = match field {
            "hidden_size" => "dim",
            "num_hidden_layers" => "n_layers",
            "intermediate_size" => "hidden_dim",
            "num_attention_heads" => "n_heads",
            _ => "",
        };
        let value = config[field].as_i64().or(config[short].as_i64());
        value.unwrap_or_else(|| panic!("{model}: {field}"))
    };
    let gemma = architecture == "gemma-embedding";
    let mut out = GgufFile::new(architecture);
    let mut set = |key: &str, value: MetadataValue| {
        out.set(&format!("{architecture}.{key}"), value);
    };
    for (key, field) in [
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("context_length", "max_position_embeddings"),
    ] {
        set(key, MetadataValue::Int(number(field)));
    }
    set("pooling_type", MetadataValue::Int(pooling));
    if matches!(architecture, "bert" | "nomic-bert") {
        set("attention.layer_norm_epsilon", MetadataValue::Float(1e-12));
        set("attention.causal", MetadataValue::Bool(false));
    } else {
        set(
            "attention.layer_norm_rms_epsilon",
            MetadataValue::Float(1e-6),
        );
        set(
            "attention.head_count_kv",
            MetadataValue::Int(number("num_key_value_heads")),
        );
        set(
            "attention.key_length",
            MetadataValue::Int(number("head_dim")),
        );
        set(
            "attention.value_length",
            MetadataValue::Int(number("head_dim")),
        );
    }
    if gemma {
        set(
            "attention.sliding_window",
            MetadataValue::Int(number("sliding_window")),
        );
        set(
            "attention.sliding_window_pattern",
            MetadataValue::Ints(vec![1, 1, 0]),
        );
    } else {
        let theta = config
            .pointer("/rope_parameters/rope_theta")
            .and_then(Json::as_f64);
        theta
            .into_iter()
            .for_each(|theta| set("rope.freq_base", MetadataValue::Float(theta)));
    }
    let mut files = vec![(format!("models/{model}/model.safetensors"), String::new())];
    if gemma {
        for module in ["2_Dense", "3_Dense"] {
            files.push((
                format!("models/{model}/{module}/model.safetensors"),
                format!("dense_{}", &module[..1]),
            ));
        }
    }
    for (file, dense) in files {
        let bytes = std::fs::read(golden(&file)).expect("a checkpoint");
        for (name, tensor) in SafeTensors::deserialize(&bytes)
            .expect("a checkpoint")
            .iter()
        {
            let to = match dense.is_empty() {
                true => renamed(name, names),
                false => Some(format!("{dense}.weight")),
            };
            let Some(to) = to else { continue };
            let mut values = floats(tensor.dtype(), tensor.data());
            let mut shape = tensor.shape().to_vec();

            if gemma && to.ends_with("norm.weight") {
                values.iter_mut().for_each(|w| *w += 1.0);
            }
            if gemma && to.ends_with("attn_q_norm.weight") {
                // The file stores a scale by head dimension; the checkpoint has another one.
                let factor =
                    (number("head_dim") as f32 / number("query_pre_attn_scalar") as f32).sqrt();
                values.iter_mut().for_each(|w| *w *= factor);
            }
            if to == "position_embd.weight" && config["model_type"] == "xlm-roberta" {
                // Rows before the first position are removed.
                let first = (number("pad_token_id") + 1) as usize;
                values.drain(..first * shape[1]);
                shape[0] -= first;
            }
            out.tensor(&to, &shape, values);
        }
    }
    out
}

/// A small vocabulary for a model of 256 tokens.
fn with_words(file: &mut GgufFile) {
    let mut tokens: Vec<String> = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "\u{2581}the",
        "\u{2581}sea",
        "s",
    ]
    .map(str::to_string)
    .to_vec();
    tokens.extend((tokens.len()..256).map(|n| format!("\u{2581}word{n}")));
    let mut kinds = vec![3i64; 4];
    kinds.resize(tokens.len(), 1);
    file.set("tokenizer.ggml.model", MetadataValue::Text("bert".into()))
        .set("tokenizer.ggml.tokens", MetadataValue::Texts(tokens))
        .set("tokenizer.ggml.token_type", MetadataValue::Ints(kinds))
        .set("tokenizer.ggml.unknown_token_id", MetadataValue::Int(1))
        .set("tokenizer.ggml.bos_token_id", MetadataValue::Int(2))
        .set("tokenizer.ggml.seperator_token_id", MetadataValue::Int(3));
}

fn opened(name: &str, file: &GgufFile, task: Option<Task>) -> jerboa::Result<TaskModel> {
    let folder = Folder::new(name);
    folder.write("model.gguf", file.bytes());
    let device = DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    };
    load(
        &folder.0,
        task,
        &device,
        RunOptions {
            max_context: Some(300),
            ..RunOptions::default()
        },
    )
}

/// The sequences of a golden batch.
fn rows(encoder: &EncoderModel, golden: &Golden) -> Vec<f32> {
    let (ids, mask) = (golden.ids("input_ids"), golden.ids("attention_mask"));
    let types = golden.optional_ids("token_type_ids");
    let width = golden.shape("input_ids")[1];
    let strings: Vec<EncoderInput> = (0..ids.len() / width)
        .map(|row| {
            let kept = |all: &[u32]| -> Vec<u32> {
                (row * width..(row + 1) * width)
                    .filter(|i| mask[*i] == 1)
                    .map(|i| all[i])
                    .collect()
            };
            EncoderInput {
                ids: kept(&ids),
                types: types.as_deref().map(kept).unwrap_or_default(),
                skip: 0,
            }
        })
        .collect();
    let all: Vec<&EncoderInput> = strings.iter().collect();
    block_on(async { encoder.submit(&all)?.wait().await }).expect("a batch")
}

#[test]
fn vectors_are_those_of_the_folder() {
    for (model, architecture, names, pooling) in [
        ("bert", "bert", BERT, 1),
        ("xlm_roberta_cls", "bert", BERT, 2),
        ("distilbert", "bert", DISTILBERT, 1),
        ("nomic_bert", "nomic-bert", NOMIC, 1),
        ("qwen3_embedding", "qwen3", QWEN3, 3),
        ("embeddinggemma", "gemma-embedding", GEMMA, 1),
    ] {
        let name = format!("gguf-{model}");
        // The file's pooling type determines the task.
        let loaded = opened(&name, &converted(model, architecture, names, pooling), None);
        let loaded = loaded.unwrap_or_else(|e| panic!("{model}: {e}"));
        let TaskModel::Embed(embedder) = &loaded else {
            panic!("{model}: {:?}", loaded.task())
        };
        // These files have no tokenizer, the only warning of the load.
        let [warning] = &embedder.encoder.origin.warnings[..] else {
            panic!("{model}: {:?}", embedder.encoder.origin.warnings)
        };
        assert!(
            embedder.config.normalize && warning.contains("tokenizer"),
            "{model}: {warning}"
        );
        let golden = Golden::read(&golden(&format!("models/{model}/golden.safetensors")));
        let mut found = rows(&embedder.encoder.model, &golden);
        for row in found.chunks_exact_mut(embedder.encoder.model.cols()) {
            let length = row.iter().map(|v| v * v).sum::<f32>().sqrt();
            row.iter_mut().for_each(|v| *v /= length);
        }
        let error = relative_l2(&found, &golden.floats("embedding"));
        assert!(error < LIMIT, "{model}: {error:e}");
    }
}

/// Decoders with `attention.causal = false`, and llama.cpp's architecture that implies it.
#[test]
fn decoders_without_a_causal_mask_embed() {
    let read = |file| {
        Golden::read(&golden(&format!(
            "models/qwen3_embedding/{file}.safetensors"
        )))
    };
    let (lengths, expected) = (read("lengths"), read("bidirectional").floats("embedding"));
    let mut qwen = converted("qwen3_embedding", "qwen3", QWEN3, 3);
    qwen.set("qwen3.attention.causal", MetadataValue::Bool(false));
    for pooling in [Some(3), None] {
        if pooling.is_none() {
            // The attention alone says that it embeds, by the mean of all tokens.
            qwen.set("qwen3.pooling_type", MetadataValue::Int(0));
        }
        let loaded = opened("gguf-bidirectional", &qwen, None).expect("a model");
        let TaskModel::Embed(embedder) = &loaded else {
            panic!("{:?}", loaded.task())
        };
        let warnings = loaded.info()["warnings"].to_string();
        if pooling.is_none() {
            assert!(warnings.contains("the mean of all tokens"), "{warnings}");
            continue;
        }
        let mut found = rows(&embedder.encoder.model, &lengths);
        for row in found.chunks_exact_mut(embedder.encoder.model.cols()) {
            let length = row.iter().map(|v| v * v).sum::<f32>().sqrt();
            row.iter_mut().for_each(|v| *v /= length);
        }
        let error = relative_l2(&found, &expected);
        assert!(error < LIMIT, "{error:e}");
    }
    let mut nemotron = GgufFile::new("llama-embed");
    nemotron.set("llama-embed.block_count", MetadataValue::Int(1));
    let header = gguf::parse(
        "model.gguf",
        &nemotron.bytes(),
        nemotron.bytes().len() as u64,
    );
    let header = header.expect("a header").expect("a whole header");
    let spec = arch::find_gguf(&header).expect("a known architecture");
    let config = arch::load_config(header.config(spec, &Default::default()), Container::Gguf);
    assert!(arch::is_bidirectional(&config) && config.model_type() == "llama");
}

#[test]
fn scores_are_those_of_the_folder() {
    let file = converted("xlm_roberta_reranker", "bert", BERT, 4);
    let loaded = opened("gguf-reranker", &file, None).expect("a reranker");
    let TaskModel::Rerank(reranker) = &loaded else {
        panic!("{:?}", loaded.task())
    };
    let golden = Golden::read(&golden("models/xlm_roberta_reranker/golden.safetensors"));
    let found: Vec<f32> = rows(&reranker.encoder.model, &golden)
        .into_iter()
        .map(|x| 1.0 / (1.0 + (-x).exp()))
        .collect();
    let expected = golden.floats("score");
    assert!(
        relative_l2(&found, &expected) < LIMIT,
        "{found:?} {expected:?}"
    );
    let error = opened("gguf-reranker-embed", &file, Some(Task::Embed))
        .err()
        .expect("a refusal");
    assert!(error.to_string().contains("rerank"), "{error}");
}

/// The tokenizer of a file: the vector of a text equals that of its ids.
#[test]
fn gguf_tokenizers_give_the_same_vectors() {
    let mut file = converted("bert", "bert", BERT, 1);
    with_words(&mut file);
    let mut loaded = opened("gguf-words", &file, Some(Task::Embed)).expect("an embedder");
    let TaskModel::Embed(embedder) = &mut loaded else {
        panic!("not an embedder")
    };
    let ids = embedder
        .encoder
        .text
        .tokenizer()
        .and_then(|t| t.encode_text("The seas", 16))
        .expect("ids");
    assert_eq!(ids, [2, 4, 5, 6, 3]);
    let strings = vec!["The seas".to_string()];
    let abort = jerboa::hub::AbortFlag::new();
    let found = block_on(embedder.embed(&strings, &Default::default(), &abort, |_, _| {}))
        .expect("a vector");
    let length = found[0].iter().map(|v| v * v).sum::<f32>();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let tokens = EncoderInput {
        ids,
        types: Vec::new(),
        skip: 0,
    };
    let plain = block_on(async { embedder.encoder.model.submit(&[&tokens])?.wait().await })
        .expect("a vector");
    let length = plain.iter().map(|v| v * v).sum::<f32>().sqrt();
    let plain: Vec<f32> = plain.iter().map(|v| v / length).collect();
    assert!(relative_l2(&found[0], &plain) < 1e-5);
}

/// A task that a file does not support is refused by name, never ignored. Runs with the stack size
/// of a program's main thread.
#[test]
fn tasks_are_supported_or_refused() {
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(tasks);
    thread
        .expect("a thread")
        .join()
        .expect("every task is done or refused");
}

fn tasks() {
    let refusal = |name: &str, file: &GgufFile, task: Task| {
        opened(name, file, Some(task))
            .err()
            .unwrap_or_else(|| panic!("{name}: no refusal"))
            .to_string()
    };
    let bert = converted("bert", "bert", BERT, 1);
    let message = refusal("gguf-generate", &bert, Task::Generate);
    assert!(message.contains("embed"), "{message}");
    // A folder may also contain the original's configuration.
    let folder = Folder::new("gguf-beside");
    folder.copy("models/bert/config.json", "config.json");
    folder.write("model-Q8_0.gguf", bert.bytes());
    let device = DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    };
    assert_eq!(
        load(&folder.0, None, &device, RunOptions::default())
            .expect("a model")
            .task(),
        Task::Embed
    );
    let message = refusal("gguf-transcribe", &bert, Task::Transcribe);
    assert!(message.contains("transcribe"), "{message}");
    // Without a pooling type a decoder generates, and embeds by its last token on request.
    let mut qwen = converted("qwen3_embedding", "qwen3", QWEN3, 3);
    qwen.set("qwen3.pooling_type", MetadataValue::Int(0));
    assert_eq!(
        opened("gguf-decoder", &qwen, None).expect("a model").task(),
        Task::Generate
    );
    let loaded = opened("gguf-decoder-embed", &qwen, Some(Task::Embed)).expect("an embedder");
    assert_eq!(loaded.task(), Task::Embed);
    assert!(
        loaded.info()["warnings"]
            .to_string()
            .contains("qwen3.pooling_type"),
        "{}",
        loaded.info()["warnings"]
    );
    qwen.set("qwen3.attention.causal", MetadataValue::Bool(false));
    let message = refusal("gguf-both-ways", &qwen, Task::Generate);
    assert!(message.contains("bidirectional"), "{message}");
    qwen.set("qwen3.pooling_type", MetadataValue::Int(9));
    let message = refusal("gguf-pooling", &qwen, Task::Embed);
    assert!(message.contains("pooling_type = 9"), "{message}");
}
