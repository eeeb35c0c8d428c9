//! NanoCodec's decoder against the reference, at once and in chunks.

use super::run::{Given, Tensors, run, tensors};
use jerboa::audio::codec::{CONTEXT, values};
use jerboa::exec::RunOptions;
use jerboa::gpu::DeviceOptions;
use jerboa::ir::Graph;
use jerboa_tests::golden::{golden, open as open_folder};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use serde_json::Value;

const LEVELS: [u32; 4] = [9, 8, 8, 7];
const HOP: usize = 1764;

struct Codec {
    graph: Graph,
    weights: Tensors,
    gold: Tensors,
}

impl Codec {
    fn load() -> Self {
        let folder = golden("speech/nanocodec");
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        Self {
            graph: jerboa::arch::codec(&config).expect("a graph"),
            weights: tensors(&folder.join("model.safetensors")),
            gold: tensors(&folder.join("golden.safetensors")),
        }
    }

    /// Samples of frames `first..end` of `[4][frames]` codes.
    fn decode(&self, codes: &[f32], first: usize, end: usize) -> Vec<f32> {
        let frames = codes.len() / 4;
        let frame = |t: usize| values(&[0, 1, 2, 3].map(|g| codes[g * frames + t] as u32), &LEVELS);
        let input: Vec<f32> = (first..end).flat_map(frame).collect();
        let given = Given { rows: end - first, inputs: vec![("values", &input)], ..Given::default() };
        run(&self.graph, &self.weights, &given).into_iter().map(|v| v.clamp(-1.0, 1.0)).collect()
    }
}

fn compare(name: &str, found: &[f32], expected: &[f32], most: f32, stored: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let error = found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max);
    let relative = relative_l2(found, expected);
    println!("{name}: max {error:e}, relative {relative:e}");
    assert!(error < most && relative < 1e-4f64.max(stored), "{name}");
}

#[test]
fn samples_of_codes() {
    let codec = Codec::load();
    let probes: Vec<u32> = codec.gold["fsq.probe_codes"].iter().map(|v| *v as u32).collect();
    let found: Vec<f32> = probes.iter().flat_map(|code| values(&[*code], &LEVELS)).collect();
    assert!(relative_l2(&found, &codec.gold["fsq.probe_values"]) < 1e-6);
    for frames in [1, 7] {
        let found = codec.decode(&codec.gold[&format!("codes.{frames}")], 0, frames);
        assert_eq!(found.len(), frames * HOP);
        compare(&format!("{frames} frames"), &found, &codec.gold[&format!("wave.{frames}")], 1e-3, 0.0);
    }
}

#[test]
fn a_chunk_with_its_context_is_a_piece_of_the_whole() {
    let codec = Codec::load();
    let codes = &codec.gold["codes.60"];
    // Stored in 16 bits.
    let expected = &codec.gold["wave.60"];
    for (first, end) in [(0, 4), (CONTEXT + 2, CONTEXT + 5)] {
        let from = first.saturating_sub(CONTEXT);
        let found = codec.decode(codes, from, end);
        compare(
            &format!("{first} to {end}"),
            &found[(first - from) * HOP..],
            &expected[first * HOP..end * HOP],
            1e-3,
            5e-4,
        );
    }
}

/// From a folder on, weight norms folded while loading: at once, in a stream of chunks, and longer than a step.
#[test]
fn a_loaded_codec_speaks_in_chunks_as_at_once() {
    let codec = Codec::load();
    let gpu = open(&DeviceOptions::default());
    let mut loaded = block_on(async {
        let source = open_folder(&golden("speech/nanocodec")).await.expect("a folder");
        jerboa::task::Codec::load(&gpu, &source, RunOptions::default()).await.expect("a codec")
    });
    assert_eq!((loaded.hop, loaded.rate, loaded.codes()), (HOP, 22_050, 4032));
    let frames = |name: &str| -> Vec<u32> {
        let codes = &codec.gold[name];
        let count = codes.len() / 4;
        (0..count).flat_map(|t| (0..4).map(move |g| codes[g * count + t] as u32)).collect()
    };
    for count in [1, 7] {
        let found = block_on(loaded.decode(&gpu, &frames(&format!("codes.{count}")), 0)).expect("sound");
        compare(&format!("{count} frames"), &found, &codec.gold[&format!("wave.{count}")], 1e-3, 0.0);
    }
    // Of three steps, of which the first holds all that there is a reference for: it hears nothing behind it.
    let sixty = frames("codes.60");
    let long: Vec<u32> = sixty.iter().copied().cycle().take(400).collect();
    let long = block_on(loaded.decode(&gpu, &long, 0)).expect("sound");
    assert_eq!(long.len(), 100 * HOP);
    let whole = &long[..60 * HOP];
    compare("60 frames", whole, &codec.gold["wave.60"], 1e-3, 5e-4);
    // As they come, some at a time.
    let mut stream = Vec::new();
    for end in [3, 4, 41, 60] {
        stream.extend(block_on(loaded.decode(&gpu, &sixty[..end * 4], stream.len() / HOP)).expect("sound"));
    }
    compare("in chunks", &stream, whole, 1e-5, 0.0);
    assert!(block_on(loaded.decode(&gpu, &[4032, 0, 0, 0], 0)).expect_err("a refusal").to_string().contains("4032"));
}
