//! A BERT with all-MiniLM-L6-v2's exact shape and real tokenizer, with hashed weights, against
//! sentence-transformers.

use super::folder::{Folder, load, minilm_tokenizer};
use jerboa::exec::{Precision, PrecisionOptions, RunOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{EmbedInput, EmbedRequest, Embedder, TaskModel};
use jerboa_tests::golden::{Golden, golden, hashed};
use pollster::block_on;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

fn json_of(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(path)).expect(path)).expect(path)
}

fn checkpoint() -> Folder {
    let folder = Folder::new("minilm");
    let weights = json_of("embed/weights.json");
    let number = |v: &Value, name: &str| v[name].as_f64().expect(name) as f32;
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = weights["tensors"]
        .as_object()
        .expect("tensors")
        .iter()
        .map(|(name, t)| {
            let shape: Vec<usize> = t["shape"]
                .as_array()
                .expect("shape")
                .iter()
                .map(|d| d.as_u64().expect("a size") as usize)
                .collect();
            let values = hashed(
                name,
                shape.iter().product(),
                number(t, "scale"),
                number(t, "offset"),
            );
            let head: Vec<f32> = t["head"]
                .as_array()
                .expect("head")
                .iter()
                .map(|v| v.as_f64().expect("a number") as f32)
                .collect();
            assert_eq!(values[..head.len()], head[..], "{name}");
            (name.clone(), shape, values)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, values)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values))
            .expect("a tensor");
        (name.as_str(), view)
    });
    folder.write(
        "model.safetensors",
        safetensors::serialize(views, None).expect("a file"),
    );
    folder.write("config.json", weights["config"].to_string());
    folder.write("tokenizer.json", minilm_tokenizer());
    folder.write(
        "sentence_bert_config.json",
        json!({ "max_seq_length": 256, "do_lower_case": false }).to_string(),
    );
    let module = |name: &str, path: &str| json!({ "type": format!("sentence_transformers.models.{name}"), "path": path });
    let modules = [
        module("Transformer", ""),
        module("Pooling", "1_Pooling"),
        module("Normalize", "2_Normalize"),
    ];
    folder.write("modules.json", json!(modules).to_string());
    folder.write(
        "1_Pooling/config.json",
        json!({ "pooling_mode_mean_tokens": true }).to_string(),
    );
    folder
}

fn embedder(folder: &Folder, precision: Precision, f16: bool) -> Embedder {
    let options = RunOptions {
        overrides: PrecisionOptions {
            precision,
            ..PrecisionOptions::default()
        },
        ..RunOptions::default()
    };
    let device = DeviceOptions {
        f16,
        ..DeviceOptions::default()
    };
    match load(&folder.0, None, &device, options) {
        Ok(TaskModel::Embed(model)) => *model,
        Ok(other) => panic!("it is for {}", other.task().name()),
        Err(error) => panic!("{error}"),
    }
}

fn embed(model: &mut Embedder, strings: &[String], request: &EmbedRequest) -> Vec<Vec<f32>> {
    block_on(model.embed(strings, request, &AbortFlag::new(), |_, _| {})).expect("vectors")
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(x, y)| f64::from(*x) * f64::from(*y))
            .sum::<f64>()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn fifty_strings_equal_sentence_transformers() {
    let folder = checkpoint();
    let rows = json_of("embed/texts.json");
    let rows = rows.as_array().expect("texts");
    let strings: Vec<String> = rows
        .iter()
        .map(|r| r["text"].as_str().expect("text").to_string())
        .collect();
    let expected = Golden::read(&golden("embed/vectors.safetensors")).floats("vectors");
    for (precision, f16, bound) in [
        (Precision::F32, false, 0.99999),
        (Precision::F16, true, 0.9995),
        (Precision::Q8, true, 0.99),
    ] {
        let mut model = embedder(&folder, precision, f16);
        assert_eq!(
            (
                model.encoder.model.cols(),
                model.encoder.model.max_sequence_len
            ),
            (384, 256)
        );
        for (text, row) in strings.iter().zip(rows) {
            let ids: Vec<u32> = row["ids"]
                .as_array()
                .expect("ids")
                .iter()
                .map(|v| v.as_u64().expect("id") as u32)
                .collect();
            assert_eq!(
                model
                    .encoder
                    .text
                    .tokenizer()
                    .expect("a tokenizer")
                    .encode_text(text, 256)
                    .expect("ids"),
                ids,
                "{text}"
            );
        }
        let found = embed(&mut model, &strings, &EmbedRequest::default());
        // Token ids give the vector of their text, also in a list with strings.
        let ids = model
            .encoder
            .text
            .tokenizer()
            .expect("a tokenizer")
            .encode_text(&strings[1], 256)
            .expect("ids");
        let inputs = [
            EmbedInput::Text(strings[0].clone()),
            EmbedInput::Ids(ids),
            EmbedInput::Text(strings[2].clone()),
        ];
        let request = EmbedRequest::default();
        let mixed = block_on(model.embed_inputs(&inputs, &request, &AbortFlag::new(), |_, _| {}))
            .expect("vectors");
        for (one, other) in mixed.iter().zip(&found) {
            assert!(cosine(one, other) > 0.999_999, "{precision:?}");
        }
        let none = [EmbedInput::Ids(vec![5, 99_999_999])];
        let refused = block_on(model.embed_inputs(&none, &request, &AbortFlag::new(), |_, _| {}));
        assert_eq!(refused.expect_err("a refusal").code(), "request");
        let cosines: Vec<f64> = found
            .iter()
            .zip(expected.chunks_exact(384))
            .map(|(f, e)| cosine(f, e))
            .collect();
        let least = cosines.iter().copied().fold(1.0, f64::min);
        println!(
            "{precision:?}: minimum cosine {least:.7} of {} documents",
            strings.len()
        );
        assert!(least > bound, "{precision:?}: {cosines:?}");
        if precision == Precision::F32 {
            check_options(&mut model, &strings[..30], &found);
        }
    }
}

/// Order does not change vectors; truncation, normalization and prompts match
/// sentence-transformers.
fn check_options(model: &mut Embedder, strings: &[String], found: &[Vec<f32>]) {
    let backwards: Vec<String> = strings.iter().rev().cloned().collect();
    let reversed = embed(model, &backwards, &EmbedRequest::default());
    for (row, again) in found.iter().zip(reversed.iter().rev()) {
        assert!(cosine(row, again) > 0.999_999_9);
    }
    let few = &strings[strings.len() - 3..];
    let request = EmbedRequest {
        truncate_dim: Some(96),
        ..EmbedRequest::default()
    };
    for (row, cut) in found[strings.len() - 3..]
        .iter()
        .zip(embed(model, few, &request))
    {
        assert_eq!(cut.len(), 96);
        let length: f64 = cut.iter().map(|v| f64::from(*v).powi(2)).sum();
        assert!((length - 1.0).abs() < 1e-6 && cosine(&row[..96], &cut) > 0.999_999_9);
    }
    let request = EmbedRequest {
        normalize: Some(false),
        ..EmbedRequest::default()
    };
    for (row, raw) in found[strings.len() - 3..]
        .iter()
        .zip(embed(model, few, &request))
    {
        let length: f64 = raw.iter().map(|v| f64::from(*v).powi(2)).sum();
        assert!((length - 1.0).abs() > 1e-3 && cosine(row, &raw) > 0.999_999_9);
    }
    let request = EmbedRequest {
        prompt: Some("query: ".into()),
        ..EmbedRequest::default()
    };
    let prompted = embed(model, &few[..1], &request);
    let written = embed(
        model,
        &[format!("query: {}", few[0])],
        &EmbedRequest::default(),
    );
    assert!(cosine(&prompted[0], &written[0]) > 0.999_999_9);
    let refused = |request: EmbedRequest, model: &mut Embedder| {
        block_on(model.embed(few, &request, &AbortFlag::new(), |_, _| {}))
            .expect_err("a refusal")
            .code()
    };
    assert_eq!(
        refused(
            EmbedRequest {
                truncate_dim: Some(385),
                ..EmbedRequest::default()
            },
            model
        ),
        "request"
    );
    assert_eq!(
        refused(
            EmbedRequest {
                task: Some("sing".into()),
                ..EmbedRequest::default()
            },
            model
        ),
        "request"
    );
    let abort = AbortFlag::new();
    abort.abort();
    let request = EmbedRequest::default();
    let aborted = block_on(model.embed(few, &request, &abort, |_, _| {}));
    assert_eq!(aborted.expect_err("an abort").code(), "aborted");
    let mut reports = Vec::new();
    let report = |done, total| reports.push((done, total));
    let vectors =
        block_on(model.embed(strings, &request, &AbortFlag::new(), report)).expect("vectors");
    assert_eq!(vectors.len(), strings.len());
    assert!(
        reports.is_sorted() && reports.last() == Some(&(strings.len(), strings.len())),
        "{reports:?}"
    );
}
