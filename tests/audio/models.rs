//! Speech recognition models against transformers: encoder states, decoder logits, greedy and beam
//! texts.

use super::run::{Given, Tensors, run, tensors};
use jerboa::arch::moonshine::{SAMPLES_PER_FRAME, SAMPLES_PER_ROW};
use jerboa::arch::{SpeechGraphs, speech_graphs};
use jerboa::audio::beam::{BeamOptions, BeamSearch, BeamStep, log_softmax};
use jerboa_tests::golden::golden;
use jerboa_tests::relative_l2;
use serde_json::Value;

struct Model {
    graphs: SpeechGraphs,
    weights: Tensors,
    gold: Tensors,
    meta: Value,
}

impl Model {
    fn load(name: &str) -> Self {
        let folder = golden(&format!("speech/{name}"));
        let json = |file: &str| -> Value {
            serde_json::from_slice(&std::fs::read(folder.join(file)).expect("a file"))
                .expect("JSON")
        };
        Self {
            graphs: speech_graphs(&json("config.json").into())
                .expect("a configuration")
                .expect("a model that receives"),
            weights: tensors(&folder.join("model.safetensors")),
            gold: tensors(&folder.join("golden.safetensors")),
            meta: json("meta.json"),
        }
    }

    fn encode(&self, input: &str, values: &[f32], rows: usize) -> Vec<f32> {
        run(
            &self.graphs.encoder,
            &self.weights,
            &Given {
                rows,
                inputs: vec![(input, values)],
                ..Given::default()
            },
        )
    }

    fn expect(&self, name: &str, found: &[f32]) {
        let error = relative_l2(found, &self.gold[name]);
        println!("{name}: {error:e}");
        assert!(error < 3e-4, "{name}: {error:e}");
    }

    /// Decoder results for given states: all logits, greedy, with beams.
    fn decode(&self, states: &[f32]) {
        let rows = states.len() / self.graphs.state_cols;
        let project = |graph| {
            let inputs = vec![("states", states)];
            run(
                graph,
                &self.weights,
                &Given {
                    rows,
                    inputs,
                    ..Given::default()
                },
            )
        };
        let keys = project(&self.graphs.keys);
        let values = project(&self.graphs.values);

        let ids = |name: &str| -> Vec<u32> { self.gold[name].iter().map(|v| *v as u32).collect() };
        let logits = |ids: &[u32]| {
            let inputs = vec![("keys", &keys[..]), ("values", &values[..])];
            let given = Given {
                rows: ids.len(),
                inputs,
                ids: ids.to_vec(),
                memory: rows,
            };
            run(&self.graphs.decoder, &self.weights, &given)
        };
        let forced = logits(&ids("decoder_input_ids"));
        self.expect("logits", &forced);
        let vocab = forced.len() / ids("decoder_input_ids").len();
        let last = |ids: &[u32]| logits(ids)[(ids.len() - 1) * vocab..].to_vec();
        let expected = ids("greedy");
        let mut text = vec![expected[0]];
        while text.len() < expected.len() {
            let row = last(&text);
            let best = (0..vocab)
                .max_by(|a, b| row[*a].total_cmp(&row[*b]))
                .expect("a token");
            text.push(best as u32);
        }
        assert_eq!(text, expected);
        self.beams(expected[0], "beam4", &[], &last);
        self.beams(
            expected[0],
            "beam4_eos",
            &[self.meta["beam_eos_id"].as_u64().expect("a token") as u32],
            &last,
        );
    }

    fn beams(&self, start: u32, name: &str, ends: &[u32], last: &dyn Fn(&[u32]) -> Vec<f32>) {
        let mut search = BeamSearch::new(BeamOptions {
            beams: 4,
            length_penalty: 1.0,
            max_tokens: 14,
            end_tokens: ends.to_vec(),
        });
        let mut strings = vec![vec![start]];
        loop {
            let rows: Vec<Vec<f32>> = strings
                .iter()
                .map(|text| {
                    let mut row = last(text);
                    log_softmax(&mut row);
                    row
                })
                .collect();
            let steps: Vec<BeamStep> = search.step(&rows);
            if steps.is_empty() {
                break;
            }
            strings = steps
                .iter()
                .map(|s| [&strings[s.parent][..], &[s.token]].concat())
                .collect();
        }
        let found = search.results();
        let width = self.gold[name].len() / 4;
        for (beam, hypothesis) in found.iter().enumerate() {
            let mut expected: Vec<u32> = self.gold[name][beam * width..][..width]
                .iter()
                .map(|v| *v as u32)
                .collect();
            // Rows are padded with the end token.
            expected.truncate(1 + hypothesis.ids.len());
            assert_eq!(
                [&[start], &hypothesis.ids[..]].concat(),
                expected,
                "{name} {beam}"
            );
            let score = self.gold[&format!("{name}_scores")][beam];
            assert!(
                (hypothesis.score - score).abs() < 1e-3,
                "{name} {beam}: {} {score}",
                hypothesis.score
            );
        }
    }
}

#[test]
fn whisper() {
    let model = Model::load("whisper");
    let features = |n: usize| {
        // Stored with mel bins as rows.
        let stored = &model.gold[&format!("input_features.{n}")];
        (0..stored.len())
            .map(|i| stored[i % 80 * 400 + i / 80])
            .collect::<Vec<f32>>()
    };
    let states = model.encode("features", &features(51_200), 400);
    model.expect("encoder.51200", &states);
    model.expect(
        "encoder.33333",
        &model.encode("features", &features(33_333), 400),
    );
    model.decode(&states);
}

#[test]
fn moonshine() {
    let model = Model::load("moonshine");
    let encode = |samples: usize| {
        let rows = (samples + 1) / SAMPLES_PER_ROW;
        let mut wave = model.gold["wave"][..samples].to_vec();
        wave.resize(rows * SAMPLES_PER_ROW, 0.0);
        model.encode("samples", &wave, rows)
    };
    for samples in [12_345, 19_200, 1000] {
        model.expect(&format!("encoder.{samples}"), &encode(samples));
    }
    let states = encode(20_001);
    model.expect("encoder.20001", &states);
    model.decode(&states);
}

#[test]
fn moonshine_streaming() {
    let model = Model::load("moonshine_streaming");
    let encode = |samples: usize| {
        model.encode(
            "samples",
            &model.gold["wave"][..samples],
            samples / SAMPLES_PER_FRAME,
        )
    };
    model.expect("encoder.8000", &encode(8000));
    let states = encode(16_000);
    model.expect("encoder.16000", &states);
    model.decode(&states);
}
