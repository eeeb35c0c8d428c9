//! The bundled encoder ranks passages like sentence-transformers.

use super::folder::load;
use jerboa::exec::RunOptions;
use jerboa::gpu::DeviceOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{EmbedRequest, TaskModel};
use jerboa_tests::golden::golden;
use pollster::block_on;
use serde_json::Value;

fn json_of(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(path)).expect(path)).expect(path)
}

fn strings(list: &Value, field: &str) -> Vec<String> {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|entry: &Value| entry[field].as_str().expect(field).to_string())
        .collect()
}

#[test]
fn the_bundled_encoder_ranks_like_the_reference() {
    let folder = golden("../../www/public/models/words-encoder");
    let device = DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    };
    let Ok(TaskModel::Embed(mut model)) = load(&folder, None, &device, RunOptions::default())
    else {
        panic!("the bundled encoder is an embedding model")
    };
    let mut embed = |strings: &[String]| {
        block_on(model.embed(
            strings,
            &EmbedRequest::default(),
            &AbortFlag::new(),
            |_, _| {},
        ))
        .expect("vectors")
    };
    let passages = json_of("retrieval/passages.json");
    let questions = json_of("retrieval/questions.json");

    let expected = json_of("retrieval/expected.json");
    let ids = strings(&passages, "id");
    let known = embed(&strings(&passages, "text"));
    let asked = embed(&strings(&questions, "question"));
    let mut found = 0;
    for (index, question) in asked.iter().enumerate() {
        let mut ranking: Vec<(f64, &str)> = known
            .iter()
            .map(|v: &Vec<f32>| -> f64 {
                v.iter()
                    .zip(question)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum()
            })
            .zip(ids.iter().map(String::as_str))
            .collect();
        ranking.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (place, entry) in expected["ranking"][index]["passages"]
            .as_array()
            .expect("a ranking")
            .iter()
            .enumerate()
        {
            let id = entry[0].as_str().expect("id");
            let score = entry[1].as_f64().expect("score");

            // Neighbours closer than f32 resolution may swap.
            let at = ranking.iter().position(|r| r.1 == id).expect("a passage");
            assert!(
                (ranking[at].0 - score).abs() < 1e-5,
                "{id}: {} {score}",
                ranking[at].0
            );
            assert!(
                at == place || (ranking[place].0 - score).abs() < 2e-5,
                "question {index}: {id} at {at}"
            );
        }
        let answer = questions[index]["answer"].as_str().expect("answer");
        found += usize::from(ranking[..3].iter().any(|r| r.1 == answer));
    }
    let recall = found as f64 / asked.len() as f64;
    println!(
        "recall@3 {recall:.4}, sentence-transformers {}",
        expected["recall@3"]
    );
    assert!((recall - expected["recall@3"].as_f64().expect("recall")).abs() < 1e-4);
}
