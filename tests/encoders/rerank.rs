//! Rerankers from text to scores: pairs with token types, Qwen3-Reranker's prompt.

use super::folder::{Folder, load};
use jerboa::arch::EncoderHead;
use jerboa::exec::{EncoderInput, RunOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{Reranker, Task, TaskModel};
use jerboa_tests::golden::{golden, load_encoder};
use pollster::block_on;
use serde_json::{Value, json};

const WORDS: &[&str] = &[
    "red", "green", "blue", "sky", "grass", "is", "what", "colour", "the", "Judge", "Query", "user",
];

/// A tokenizer of whole words: `WORDS` from 10 on, `no` is 77, `yes` is 201.
fn tokenizer() -> Value {
    let mut vocab = json!({ "[UNK]": 3, "[CLS]": 1, "[SEP]": 2, "no": 77, "yes": 201 });
    for (i, word) in WORDS.iter().enumerate() {
        vocab[*word] = json!(10 + i);
    }
    let special =
        |token: &str, kind: u32| json!({ "SpecialToken": { "id": token, "type_id": kind } });
    let sequence = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
    json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)],
            "pair": [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0), sequence("B", 1), special("[SEP]", 1)],
            "special_tokens": {
                "[CLS]": { "id": "[CLS]", "ids": [1], "tokens": ["[CLS]"] },
                "[SEP]": { "id": "[SEP]", "ids": [2], "tokens": ["[SEP]"] },
            },
        },
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" },
    })
}

fn folder(name: &str, change: impl Fn(&mut Value)) -> Folder {
    let folder = Folder::new(&format!("{name}-with-words"));
    folder.copy(
        &format!("models/{name}/model.safetensors"),
        "model.safetensors",
    );
    let config = std::fs::read(golden(&format!("models/{name}/config.json"))).expect("config.json");
    let mut config: Value = serde_json::from_slice(&config).expect("config.json");
    change(&mut config);
    folder.write("config.json", config.to_string());
    folder.write("tokenizer.json", tokenizer().to_string());
    folder
}

fn exact() -> DeviceOptions {
    DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    }
}

fn reranker(folder: &Folder, task: Option<Task>) -> Reranker {
    match load(&folder.0, task, &exact(), RunOptions::default()) {
        Ok(TaskModel::Rerank(model)) => *model,
        Ok(other) => panic!("it is for {}", other.task().name()),
        Err(error) => panic!("{error}"),
    }
}

fn scores(
    model: &mut Reranker,
    query: &str,
    documents: &[&str],
    instruction: Option<&str>,
) -> jerboa::Result<Vec<f32>> {
    let documents: Vec<String> = documents.iter().map(ToString::to_string).collect();
    block_on(model.rerank(query, &documents, instruction, &AbortFlag::new()))
}

/// Scores of the model for given tokens.
fn by_hand(name: &str, head: &EncoderHead, strings: &[EncoderInput]) -> Vec<f32> {
    let path = golden(&format!("models/{name}"));
    let encoder = load_encoder(
        jerboa_tests::open(&exact()),
        &path,
        head,
        RunOptions::default(),
    )
    .expect(name);
    let strings: Vec<&EncoderInput> = strings.iter().collect();
    block_on(async { encoder.submit(&strings)?.wait().await }).expect("scores")
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn assert_near(found: &[f32], expected: &[f32]) {
    let near = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(f, e)| (f - e).abs() < 1e-5);
    assert!(near, "{found:?} {expected:?}");
}

#[test]
fn pairs_have_token_types_and_scores_an_activation() {
    let pair = |ids: &[u32], types: &[u32]| EncoderInput {
        ids: ids.to_vec(),
        types: types.to_vec(),
        skip: 0,
    };
    let strings = [
        pair(&[1, 16, 17, 2, 13, 15, 12, 2], &[0, 0, 0, 0, 1, 1, 1, 1]),
        pair(&[1, 16, 17, 2, 14, 2], &[0, 0, 0, 0, 1, 1]),
    ];
    let raw = by_hand("bert_reranker", &EncoderHead::Score, &strings);
    let squeezed: Vec<f32> = raw.iter().map(|x| sigmoid(*x)).collect();
    let documents = ["sky is blue", "grass"];
    let mut model = reranker(&folder("bert_reranker", |_| {}), None);
    assert_near(
        &scores(&mut model, "what colour", &documents, None).expect("scores"),
        &squeezed,
    );
    let refused =
        scores(&mut model, "what colour", &documents, Some("judge")).expect_err("no instruction");
    assert_eq!(refused.code(), "request");
    let identity = json!({ "activation_fn": "torch.nn.modules.linear.Identity" });
    let plain = folder("bert_reranker", |c| {
        c["sentence_transformers"] = identity.clone();
    });
    assert_near(
        &scores(&mut reranker(&plain, None), "what colour", &documents, None).expect("scores"),
        &raw,
    );
    // Too long for 64 positions: the longer text is truncated.
    let long = "red ".repeat(200);
    let cut = scores(&mut model, "what colour", &[long.as_str()], None).expect("scores");
    assert_near(
        &cut,
        &scores(
            &mut model,
            "what colour",
            &["red ".repeat(59).as_str()],
            None,
        )
        .expect("scores"),
    );
    let two = folder("bert_reranker", |c| {
        c["id2label"] = json!({ "0": "a", "1": "b" });
    });
    assert_eq!(
        load(&two.0, None, &exact(), RunOptions::default())
            .err()
            .expect("two labels")
            .code(),
        "shape"
    );
}

#[test]
fn qwen3_reranker_compares_yes_and_no() {
    let folder = folder("qwen3_reranker", |_| {});
    let mut model = reranker(&folder, Some(Task::Rerank));
    let found = scores(&mut model, "what colour", &["sky is blue", "grass"], None).expect("scores");
    assert!(
        found.iter().all(|s| *s > 0.0 && *s < 1.0) && found[0] != found[1],
        "{found:?}"
    );
    let instructed = scores(
        &mut model,
        "what colour",
        &["sky is blue"],
        Some("what is the colour"),
    )
    .expect("scores");
    assert_ne!(instructed[0], found[0]);
    let question = |document: &str| {
        let text = format!(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
             provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given \
             a web search query, retrieve relevant passages that answer the query\n<Query>: what colour\n<Document>: \
             {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        );
        let ids = model
            .encoder
            .text
            .tokenizer()
            .expect("a tokenizer")
            .encode(&text, false)
            .expect("ids");
        EncoderInput {
            ids,
            ..EncoderInput::default()
        }
    };
    let head = EncoderHead::LogitDifference {
        yes: 201,
        no: Some(77),
    };
    let expected = by_hand(
        "qwen3_reranker",
        &head,
        &[question("sky is blue"), question("grass")],
    );
    assert_near(
        &found,
        &expected.iter().map(|x| sigmoid(*x)).collect::<Vec<_>>(),
    );
}
