//! Scores and probabilities against transformers' processors and warpers
//! (tests/golden/scripts/make_sample.py).

use std::collections::BTreeMap;
use std::path::PathBuf;

use jerboa::sample::{GenerationConfig, Sampler, SamplingOptions, SamplingParams};
use safetensors::SafeTensors;
use serde::Deserialize;

#[derive(Deserialize)]
struct History {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

/// All filters off; the golden cases name those that they use.
fn neutral() -> SamplingParams {
    SamplingParams {
        greedy: false,
        top_k: 0,
        ..SamplingParams::default()
    }
}

fn row(file: &SafeTensors, name: &str) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(file.tensor(name).unwrap().data())
}

fn softmax(scores: &[f32]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers: Vec<f64> = scores
        .iter()
        .map(|score| f64::from(score - max).exp())
        .collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

fn each_case(mut check: impl FnMut(&str, &SamplingParams, Sampler, &[f32], &[f32])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/sample");
    for vocabulary in [7, 64, 1025] {
        let bytes =
            std::fs::read(folder.join(format!("vocabulary_{vocabulary}.safetensors"))).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let mut metadata = header.metadata().clone().unwrap();
        let sets: BTreeMap<String, SamplingOptions> =
            serde_json::from_str(&metadata.remove("params").unwrap()).unwrap();
        for (shape, history) in metadata {
            let history: History = serde_json::from_str(&history).unwrap();
            let logits = row(&file, &format!("{shape}.logits"));
            for (name, overrides) in &sets {
                let params = SamplingParams {
                    greedy: false,
                    ..neutral().merge(overrides).unwrap()
                };
                let mut sampler = Sampler::new(params.clone(), vocabulary, 0).unwrap();
                sampler.start(&history.prompt);
                history
                    .answer
                    .iter()
                    .for_each(|&token| sampler.accept(token));
                let expected = row(&file, &format!("{shape}.{name}"));
                check(
                    &format!("{vocabulary} {shape} {name}"),
                    &params,
                    sampler,
                    &logits,
                    &expected,
                );
            }
        }
    }
}

#[test]
fn bias_and_penalties_as_in_transformers() {
    let mut compared = 0;
    each_case(|case, params, mut sampler, logits, expected| {
        let filters = (
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.typical_p,
        );
        let adjusts = params.has_penalties() || !params.logit_bias.is_empty();
        if !adjusts || filters != (1.0, 0, 1.0, 0.0, 1.0) {
            return;
        }
        compared += 1;
        for (id, (found, expected)) in sampler
            .scores(logits, None)
            .unwrap()
            .iter()
            .zip(expected)
            .enumerate()
        {
            assert!(
                (found - expected).abs() <= 4e-7 * expected.abs().max(1.0),
                "{case}, token {id}: {found} {expected}"
            );
        }
    });
    assert_eq!(compared, 3 * 4 * 5);
}

#[test]
fn distributions_as_in_transformers() {
    let mut compared = 0;
    each_case(|case, _, mut sampler, logits, expected| {
        compared += 1;
        let mut found = vec![None; logits.len()];
        for (id, probability) in sampler.distribution(logits, None).unwrap().probabilities() {
            found[id as usize] = Some(f64::from(probability));
        }
        for (id, (found, expected)) in found.iter().zip(softmax(expected)).enumerate() {
            if expected > 1e-8 || found.is_some_and(|p| p > 1e-8) {
                assert_eq!(
                    found.is_some(),
                    expected > 0.0,
                    "{case}, token {id}: {found:?} {expected}"
                );
            }
            let error = (found.unwrap_or(0.0) - expected).abs();
            assert!(
                error <= 1e-7 + 4e-6 * expected,
                "{case}, token {id}: {found:?} {expected}"
            );
        }
    });
    assert_eq!(compared, 3 * 4 * 22);
}

/// Filters that only generation_config.json sets (tests/golden/scripts/make_generation.py).
#[test]
fn filters_of_generation_config_as_in_transformers() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/sample/generation.json");
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rows = golden["rows"].as_array().unwrap();
    for row in rows {
        let numbers = |name: &str| -> Vec<f32> {
            let values = row[name].as_array().unwrap().iter();
            values
                .map(|value| value.as_f64().map_or(f32::NEG_INFINITY, |v| v as f32))
                .collect()
        };
        let logits = numbers("logits");
        let scores = numbers("scores");
        let config = &row["config"];

        let params = GenerationConfig::read(config).unwrap().params;
        let mut sampler = Sampler::new(params, logits.len(), 0).unwrap();
        let mut found = vec![0.0; logits.len()];
        for (id, probability) in sampler.distribution(&logits, None).unwrap().probabilities() {
            found[id as usize] = f64::from(probability);
        }
        for (id, (found, expected)) in found.iter().zip(softmax(&scores)).enumerate() {
            assert_eq!(
                *found > 0.0,
                expected > 0.0,
                "{config}, token {id}: {found} {expected}"
            );
            // Scores are recorded with five decimals.
            assert!(
                (found - expected).abs() <= 1e-7 + 2e-5 * expected,
                "{config}, token {id}: {found} {expected}"
            );
        }
    }
    assert_eq!(rows.len(), 30);
}
