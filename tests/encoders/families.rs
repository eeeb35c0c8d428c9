//! Every family with a tiny random checkpoint: hidden states, vectors and scores of packed
//! sequences, with lengths around the tile sizes.

use super::folder::{Folder, load, minilm_tokenizer};
use jerboa::arch::{self, DenseLayer, EncoderHead, LoadConfig};
use jerboa::exec::{EncoderInput, EncoderModel, Precision, PrecisionOptions, RunOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::ir::{Activation, Pooling};
use jerboa::plan::Fusions;
use jerboa::task::{Task, TaskModel};
use jerboa_tests::golden::{Golden, golden, load_encoder};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

const LIMIT: f64 = 2e-4;

/// Folder, pooling, and whether lengths up to 300 need the checkpoint with the longer position
/// table.
const VECTORS: &[(&str, Pooling, bool)] = &[
    ("bert", Pooling::Mean, true),
    ("roberta", Pooling::Mean, true),
    ("xlm_roberta_cls", Pooling::First, true),
    ("distilbert", Pooling::Mean, true),
    ("mpnet", Pooling::Mean, true),
    ("nomic_bert", Pooling::Mean, false),
    ("modernbert", Pooling::Mean, false),
    ("embeddinggemma", Pooling::Mean, false),
    ("qwen3_embedding", Pooling::Last, false),
    ("t5_encoder", Pooling::Mean, false),
];

/// Folder, whether a longer checkpoint exists, and the head.
const RERANKERS: &[(&str, bool, EncoderHead)] = &[
    ("bert_reranker", true, EncoderHead::Score),
    ("xlm_roberta_reranker", true, EncoderHead::Score),
    (
        "qwen3_reranker",
        false,
        EncoderHead::LogitDifference {
            yes: 201,
            no: Some(77),
        },
    ),
];

fn exact() -> DeviceOptions {
    DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    }
}

fn vector_head(name: &str, pooling: Pooling) -> EncoderHead {
    let layer = |path: &str, inputs, outputs| DenseLayer {
        path: path.into(),
        inputs,
        outputs,
        bias: false,
        act: Activation::None,
    };
    let dense = match name {
        "embeddinggemma" => vec![layer("2_Dense", 48, 96), layer("3_Dense", 96, 48)],
        _ => vec![],
    };
    EncoderHead::Vector { pooling, dense }
}

fn encoder(
    folder: &str,
    head: &EncoderHead,
    device: &DeviceOptions,
    options: RunOptions,
) -> EncoderModel {
    let path = golden(&format!("models/{folder}"));
    let options = RunOptions {
        max_context: Some(300),
        ..options
    };
    load_encoder(open(device), &path, head, options).unwrap_or_else(|e| panic!("{folder}: {e}"))
}

/// The sequences of a golden batch without padding.
fn strings(golden: &Golden) -> Vec<EncoderInput> {
    let (ids, mask) = (golden.ids("input_ids"), golden.ids("attention_mask"));
    let types = golden.optional_ids("token_type_ids");
    let width = golden.shape("input_ids")[1];
    (0..ids.len() / width)
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
        .collect()
}

fn run(encoder: &EncoderModel, strings: &[EncoderInput]) -> Vec<f32> {
    let all: Vec<&EncoderInput> = strings.iter().collect();
    block_on(async { encoder.submit(&all)?.wait().await }).expect("a batch")
}

fn normalized(mut rows: Vec<f32>, cols: usize) -> Vec<f32> {
    for row in rows.chunks_exact_mut(cols) {
        let length = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        row.iter_mut().for_each(|v| *v /= length);
    }
    rows
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn hidden_states_equal_the_reference() {
    for (name, _, _) in VECTORS {
        let golden = Golden::read(&golden(&format!("models/{name}/golden.safetensors")));
        let encoder = encoder(name, &EncoderHead::Hidden, &exact(), RunOptions::default());
        let strings = strings(&golden);
        let found = run(&encoder, &strings);
        let all = golden.floats("last_hidden_state");
        let shape = golden.shape("last_hidden_state");

        let mut expected = Vec::new();
        for (row, text) in strings.iter().enumerate() {
            let start = row * shape[1] * shape[2];
            expected.extend_from_slice(&all[start..start + text.ids.len() * shape[2]]);
        }
        let error = relative_l2(&found, &expected);
        assert!(error < LIMIT, "{name}: {error:e}");
    }
}

#[test]
fn vectors_equal_the_reference() {
    for (name, pooling, long) in VECTORS {
        let head = vector_head(name, *pooling);
        let lengths = if *long {
            format!("{name}_long")
        } else {
            (*name).to_string()
        };
        for (folder, file) in [((*name).to_string(), "golden"), (lengths, "lengths")] {
            let golden = Golden::read(&golden(&format!("models/{folder}/{file}.safetensors")));
            let encoder = encoder(&folder, &head, &exact(), RunOptions::default());
            let found = normalized(run(&encoder, &strings(&golden)), encoder.cols());
            let error = relative_l2(&found, &golden.floats("embedding"));
            assert!(error < LIMIT, "{folder} {file}: {error:e}");
        }
    }
}

/// A decoder whose config.json has `is_causal = false`, for which transformers masks no token
/// (tests/golden/scripts/make_bidirectional.py).
#[test]
fn a_decoder_without_a_causal_mask_embeds() {
    let fields = json!({"is_causal": false});
    let folder = bidirectional_folder("bidirectional", &fields);
    let config = std::fs::read(folder.0.join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");

    let head = vector_head("qwen3_embedding", Pooling::Last);
    let options = RunOptions {
        max_context: Some(300),
        ..RunOptions::default()
    };
    let encoder = load_encoder(open(&exact()), &folder.0, &head, options).expect("an encoder");
    let read = |file| {
        Golden::read(&golden(&format!(
            "models/qwen3_embedding/{file}.safetensors"
        )))
    };
    let found = normalized(run(&encoder, &strings(&read("lengths"))), encoder.cols());
    let error = relative_l2(&found, &read("bidirectional").floats("embedding"));
    assert!(error < LIMIT, "{error:e}");

    // It embeds without being asked to, and does not generate.
    config["architectures"] = json!(["Qwen3ForCausalLM"]);
    folder.write("config.json", config.to_string());
    folder.write("tokenizer.json", minilm_tokenizer());
    let load = |task| load(&folder.0, task, &exact(), RunOptions::default());
    assert_eq!(load(None).expect("a model").task(), Task::Embed);
    let refusal = load(Some(Task::Generate))
        .map(|_| ())
        .expect_err("bidirectional");
    assert!(refusal.to_string().contains("embed"), "{refusal}");
    let config = LoadConfig::from(&config);
    let refusal = arch::check_generates(&config)
        .expect_err("bidirectional")
        .to_string();
    assert!(refusal.contains("is_causal = false"), "{refusal}");
}

/// Classes, model types and fields that say the same as `is_causal = false`.
#[test]
fn decoders_of_bidirectional_classes_embed() {
    let read = |file| {
        Golden::read(&golden(&format!(
            "models/qwen3_embedding/{file}.safetensors"
        )))
    };
    let (lengths, expected) = (read("lengths"), read("bidirectional").floats("embedding"));
    let head = vector_head("qwen3_embedding", Pooling::Last);
    let own = "modeling_qwen3_encoder.Qwen3EncoderModel";
    for fields in [
        json!({"architectures": ["Qwen3BidirectionalModel"]}),
        json!({"architectures": ["Qwen3BiModel"], "model_type": "qwen3_bidirec"}),
        json!({"auto_map": {"AutoModel": own}}),
        json!({"use_bidirectional_attention": true}),
    ] {
        let folder = bidirectional_folder("bidirectional-class", &fields);
        let options = RunOptions {
            max_context: Some(300),
            ..RunOptions::default()
        };
        let encoder = load_encoder(open(&exact()), &folder.0, &head, options).expect("an encoder");
        let found = normalized(run(&encoder, &strings(&lengths)), encoder.cols());
        let error = relative_l2(&found, &expected);
        assert!(error < LIMIT, "{fields}: {error:e}");
    }
    // Their rerankers pool and prompt in code of their own.
    let class = "Qwen3BidirectionalForSequenceClassification";
    let folder = bidirectional_folder("bidirectional-score", &json!({"architectures": [class]}));
    let options = RunOptions::default();
    let refusal = load_encoder(open(&exact()), &folder.0, &EncoderHead::Score, options)
        .map(|_| ())
        .expect_err("a reranker");
    assert!(refusal.to_string().contains("bidirectional"), "{refusal}");
}

/// The projection of voyage-4-nano's `linear.weight`, which has no module of its own.
#[test]
fn a_projection_of_tokens_applies_after_pooling() {
    let fields = json!({"architectures": ["Qwen3BidirectionalModel"], "num_labels": 4});
    let folder = bidirectional_folder("bidirectional-projection", &fields);
    folder.write("tokenizer.json", minilm_tokenizer());
    let ids = vec![7u32, 3, 9, 200, 4];
    let embed = |folder: &Folder| {
        let loaded = load(&folder.0, None, &exact(), RunOptions::default()).expect("a model");
        let TaskModel::Embed(embedder) = loaded else {
            panic!("{:?}", loaded.task())
        };
        let text = EncoderInput {
            ids: ids.clone(),
            ..EncoderInput::default()
        };
        run(&embedder.encoder.model, &[text])
    };
    let pooled = embed(&folder);
    let weight: Vec<f32> = (0..4 * pooled.len())
        .map(|n| ((n * 37 % 101) as f32 - 50.0) / 64.0)
        .collect();
    let path = folder.0.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("a checkpoint");
    let stored = SafeTensors::deserialize(&bytes).expect("a checkpoint");
    let own = bytemuck::cast_slice(&weight);
    let own = TensorView::new(Dtype::F32, vec![4, pooled.len()], own).expect("a tensor");
    let mut tensors: Vec<(String, TensorView<'_>)> = stored
        .iter()
        .map(|(name, tensor)| (name.to_string(), tensor))
        .collect();
    tensors.push(("linear.weight".into(), own));
    let written = safetensors::serialize(tensors, None).expect("a checkpoint");
    folder.write("model.safetensors", written);
    let expected: Vec<f32> = weight
        .chunks_exact(pooled.len())
        .map(|row| row.iter().zip(&pooled).map(|(w, x)| w * x).sum())
        .collect();
    assert!(relative_l2(&embed(&folder), &expected) < LIMIT);
}

/// A pooling of config.json counts only where modules.json is missing.
#[test]
fn pooling_of_the_modules_comes_first() {
    let fields = json!({"architectures": ["Qwen3BidirectionalModel"], "pooling": "custom"});
    let folder = bidirectional_folder("bidirectional-pooling", &fields);
    folder.write("tokenizer.json", minilm_tokenizer());
    let open = || load(&folder.0, None, &exact(), RunOptions::default()).map(|_| ());
    let refusal = open().expect_err("an unknown pooling").to_string();
    assert!(refusal.contains("pooling = custom"), "{refusal}");
    let modules = json!([
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]);
    folder.write("modules.json", modules.to_string());
    folder.write(
        "1_Pooling/config.json",
        json!({"pooling_mode_mean_tokens": true}).to_string(),
    );
    open().expect("a model");
}

/// A copy of the golden embedding decoder with other fields in config.json.
fn bidirectional_folder(name: &str, fields: &Value) -> Folder {
    let folder = Folder::new(name);
    let config = std::fs::read(golden("models/qwen3_embedding/config.json")).expect("a config");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    for (key, value) in fields.as_object().into_iter().flatten() {
        config[key.as_str()] = value.clone();
    }
    folder.write("config.json", config.to_string());
    folder.copy(
        "models/qwen3_embedding/model.safetensors",
        "model.safetensors",
    );
    folder
}

#[test]
fn scores_equal_the_reference() {
    for (name, long, head) in RERANKERS {
        let lengths = if *long {
            format!("{name}_long")
        } else {
            (*name).to_string()
        };
        for (folder, file) in [((*name).to_string(), "golden"), (lengths, "lengths")] {
            let golden = Golden::read(&golden(&format!("models/{folder}/{file}.safetensors")));
            let encoder = encoder(&folder, head, &exact(), RunOptions::default());
            let found: Vec<f32> = run(&encoder, &strings(&golden))
                .into_iter()
                .map(sigmoid)
                .collect();
            let expected = golden.floats("score");
            assert!(
                relative_l2(&found, &expected) < LIMIT,
                "{folder} {file}: {found:?} {expected:?}"
            );
        }
    }
}

#[test]
fn fusions_order_and_batches_do_not_change_vectors() {
    for (name, pooling) in [
        ("bert_long", Pooling::Mean),
        ("modernbert", Pooling::Mean),
        ("qwen3_embedding", Pooling::Last),
    ] {
        let golden = Golden::read(&golden(&format!("models/{name}/lengths.safetensors")));
        let strings = strings(&golden);
        let head = vector_head(name, pooling);
        let fused = encoder(name, &head, &exact(), RunOptions::default());
        let expected = run(&fused, &strings);
        let cols = fused.cols();
        let plain = encoder(
            name,
            &head,
            &exact(),
            RunOptions {
                fusions: Fusions::NONE,
                ..RunOptions::default()
            },
        );
        assert!(
            relative_l2(&run(&plain, &strings), &expected) < 1e-5,
            "{name}: without fusions"
        );
        let backwards: Vec<EncoderInput> = strings.iter().rev().cloned().collect();
        let reversed = run(&fused, &backwards);
        for (index, row) in expected.chunks_exact(cols).enumerate() {
            let at = (strings.len() - 1 - index) * cols;
            assert!(
                relative_l2(&reversed[at..at + cols], row) < 1e-5,
                "{name}: order"
            );
            let alone = run(&fused, &strings[index..=index]);
            assert!(relative_l2(&alone, row) < 1e-5, "{name}: alone");
        }
    }
}

#[test]
fn quantized_encoders_stay_close() {
    let golden = Golden::read(&golden("models/bert_long/lengths.safetensors"));
    let expected = golden.floats("embedding");
    for (precision, limit) in [
        (Precision::F16, 2e-3),
        (Precision::Q8, 3e-2),
        (Precision::Q4, 3e-1),
    ] {
        let overrides = PrecisionOptions {
            precision,
            ..PrecisionOptions::default()
        };
        let options = RunOptions {
            overrides,
            ..RunOptions::default()
        };
        let encoder = encoder(
            "bert_long",
            &vector_head("bert", Pooling::Mean),
            &DeviceOptions::default(),
            options,
        );
        let error = relative_l2(
            &normalized(run(&encoder, &strings(&golden)), encoder.cols()),
            &expected,
        );
        assert!(error < limit, "{precision:?}: {error:e}");
    }
}

#[test]
fn unsupported_inputs_are_refused() {
    let encoder = encoder(
        "bert",
        &vector_head("bert", Pooling::Mean),
        &exact(),
        RunOptions::default(),
    );
    let refused = |strings: &[EncoderInput]| {
        let all: Vec<&EncoderInput> = strings.iter().collect();
        encoder.submit(&all).err().expect("a refusal")
    };
    let text = |ids: Vec<u32>| EncoderInput {
        ids,
        ..EncoderInput::default()
    };
    assert_eq!(refused(&[]).code(), "request");
    assert_eq!(refused(&[text(vec![])]).code(), "request");
    assert_eq!(refused(&[text(vec![256])]).code(), "request");
    let too_long = refused(&[text(vec![1; 65])]);
    assert_eq!(too_long.code(), "context_full");
    assert_eq!(
        too_long.to_string(),
        "a sequence has 65 tokens, but the model accepts at most 64. Shorten it, or split it into several sequences."
    );
    let score = golden("models/bert");
    let error = load_encoder(
        open(&exact()),
        &score,
        &EncoderHead::Score,
        RunOptions::default(),
    )
    .err()
    .expect("a refusal");
    assert_eq!(error.code(), "unsupported_option");
}
