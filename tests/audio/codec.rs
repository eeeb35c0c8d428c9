//! NanoCodec's decoder against the reference, at once and in chunks.

use super::run::{Given, Tensors, run, tensors};
use jerboa::audio::fsq::{CONTEXT_FRAMES, dequantize};
use jerboa::exec::RunOptions;
use jerboa::format::nemo::state_dict;
use jerboa::gpu::DeviceOptions;
use jerboa::ir::Graph;
use jerboa_tests::golden::{golden, open as open_folder};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use serde_json::{Value, json};
use std::path::Path;

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
        let config: Value =
            serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        Self {
            graph: jerboa::arch::codec_graph(&config.into()).expect("a graph"),
            weights: tensors(&folder.join("model.safetensors")),
            gold: tensors(&folder.join("golden.safetensors")),
        }
    }

    /// Samples of frames `first..end` of `[4][frames]` codes.
    fn decode(&self, codes: &[f32], first: usize, end: usize) -> Vec<f32> {
        let frames = codes.len() / 4;

        let input: Vec<f32> = (first..end)
            .flat_map(|t: usize| {
                dequantize(&[0, 1, 2, 3].map(|g| codes[g * frames + t] as u32), &LEVELS)
            })
            .collect();
        let given = Given {
            rows: end - first,
            inputs: vec![("values", &input)],
            ..Given::default()
        };
        run(&self.graph, &self.weights, &given)
            .into_iter()
            .map(|v| v.clamp(-1.0, 1.0))
            .collect()
    }
}

fn compare(name: &str, found: &[f32], expected: &[f32], most: f32, stored: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let error = found
        .iter()
        .zip(expected)
        .map(|(f, e)| (f - e).abs())
        .fold(0.0, f32::max);
    let relative = relative_l2(found, expected);
    println!("{name}: max {error:e}, relative {relative:e}");
    assert!(error < most && relative < 1e-4f64.max(stored), "{name}");
}

#[test]
fn samples_of_codes() {
    let codec = Codec::load();
    let probes: Vec<u32> = codec.gold["fsq.probe_codes"]
        .iter()
        .map(|v| *v as u32)
        .collect();
    let found: Vec<f32> = probes
        .iter()
        .flat_map(|code| dequantize(&[*code], &LEVELS))
        .collect();
    assert!(relative_l2(&found, &codec.gold["fsq.probe_values"]) < 1e-6);
    for frames in [1, 7] {
        let found = codec.decode(&codec.gold[&format!("codes.{frames}")], 0, frames);
        assert_eq!(found.len(), frames * HOP);
        compare(
            &format!("{frames} frames"),
            &found,
            &codec.gold[&format!("wave.{frames}")],
            1e-3,
            0.0,
        );
    }
}

#[test]
fn a_chunk_with_context_equals_its_part_of_the_whole() {
    let codec = Codec::load();
    let codes = &codec.gold["codes.60"];
    // Stored as f16.
    let expected = &codec.gold["wave.60"];
    for (first, end) in [(0, 4), (CONTEXT_FRAMES + 2, CONTEXT_FRAMES + 5)] {
        let from = first.saturating_sub(CONTEXT_FRAMES);
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

/// Loaded from a folder, with weight norms folded: all frames at once, in a stream of chunks, and
/// longer than a step.
#[test]
fn chunked_decoding_equals_decoding_at_once() {
    let codec = Codec::load();
    let gpu = open(&DeviceOptions::default());
    let mut loaded = block_on(async {
        let source = open_folder(&golden("speech/nanocodec"))
            .await
            .expect("a folder");
        jerboa::task::AudioCodec::load(&gpu, &source, RunOptions::default())
            .await
            .expect("a codec")
    });
    assert_eq!(
        (loaded.hop, loaded.rate, loaded.codes_per_group()),
        (HOP, 22_050, 4032)
    );
    let frames = |name: &str| -> Vec<u32> {
        let codes = &codec.gold[name];
        let count = codes.len() / 4;
        (0..count)
            .flat_map(|t| (0..4).map(move |g| codes[g * count + t] as u32))
            .collect()
    };
    for count in [1, 7] {
        let found =
            block_on(loaded.decode(&gpu, &frames(&format!("codes.{count}")), 0)).expect("sound");
        compare(
            &format!("{count} frames"),
            &found,
            &codec.gold[&format!("wave.{count}")],
            1e-3,
            0.0,
        );
    }
    // Three steps; the reference covers the first, which depends on no later frame.
    let sixty = frames("codes.60");
    let long: Vec<u32> = sixty.iter().copied().cycle().take(400).collect();
    let long = block_on(loaded.decode(&gpu, &long, 0)).expect("sound");
    assert_eq!(long.len(), 100 * HOP);
    let whole = &long[..60 * HOP];
    compare("60 frames", whole, &codec.gold["wave.60"], 1e-3, 5e-4);
    // As they are generated, a few at a time.
    let mut stream = Vec::new();
    for end in [3, 4, 41, 60] {
        stream.extend(
            block_on(loaded.decode(&gpu, &sixty[..end * 4], stream.len() / HOP)).expect("sound"),
        );
    }
    compare("in chunks", &stream, whole, 1e-5, 0.0);
    assert!(
        block_on(loaded.decode(&gpu, &[4032, 0, 0, 0], 0))
            .expect_err("a refusal")
            .to_string()
            .contains("4032")
    );
}

/// The published forms of the codec: NeMo's archive, and the MLX conversion, whose config.json says
/// little about the decoder. Both give the samples of the decoder alone.
#[test]
fn published_formats_give_the_same_audio() {
    let gpu = open(&DeviceOptions::default());
    let codec = Codec::load();
    let codes: Vec<u32> = {
        let codes = &codec.gold["codes.7"];
        (0..7)
            .flat_map(|t| (0..4).map(move |g| codes[g * 7 + t] as u32))
            .collect()
    };
    let decoded = |folder: &Path| {
        block_on(async {
            let source = open_folder(folder).await?;
            let mut loaded =
                jerboa::task::AudioCodec::load(&gpu, &source, RunOptions::default()).await?;
            let about = (
                loaded.hop,
                loaded.rate,
                loaded.levels.clone(),
                loaded.groups,
            );
            Ok::<_, jerboa::Error>((about, loaded.decode(&gpu, &codes, 0).await?))
        })
    };
    let plain = decoded(&golden("speech/nanocodec")).expect("sound");
    assert_eq!(plain.0, (HOP, 22_050, LEVELS.to_vec(), 4));
    let archive = golden("speech/nanocodec_nemo");
    assert!(decoded(&archive).expect("samples of an archive") == plain);
    let folder = std::env::temp_dir().join(format!("jerboa-codec-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let weights = golden("speech/nanocodec").join("model.safetensors");
    std::fs::copy(weights, folder.join("model.safetensors")).expect("a copy");
    for config in [
        json!({ "sample_rate": 22_050, "model_type": "nanocodec" }),
        json!({ "vector_quantizer": { "num_levels_per_group": LEVELS, "num_groups": 4 } }),
        json!({}),
    ] {
        std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
        assert!(
            decoded(&folder).expect("samples of a conversion") == plain,
            "{config}"
        );
    }
    // Invalid and truncated archives.
    std::fs::remove_file(folder.join("model.safetensors")).expect("a file");
    std::fs::remove_file(folder.join("config.json")).expect("a file");
    let whole = std::fs::read(archive.join("tiny.nemo")).expect("an archive");
    let refused = |bytes: &[u8]| {
        std::fs::write(folder.join("broken.nemo"), bytes).expect("a file");
        decoded(&folder).expect_err("a refusal").to_string()
    };
    assert!(refused(&[&[0x1f, 0x8b, 8][..], &[0; 600]].concat()).contains("compressed"));
    assert!(refused(&[7; 600]).contains("not a tar archive"));
    assert!(refused(&[0; 600]).contains("model_config.yaml"));
    assert!(refused(&whole[..whole.len() / 2]).contains("is truncated"));
    let weights = whole
        .windows(4)
        .position(|four| four == b"PK\x06\x06")
        .expect("the end of a zip");
    let mut broken = whole;
    broken[weights + 48] ^= 1;
    assert!(refused(&broken).contains("not a PyTorch checkpoint"));
    std::fs::remove_dir_all(&folder).expect("a folder");
}

/// A truncated or modified pickle is read or refused: it runs no code, and nothing panics.
#[test]
fn a_broken_pickle_is_refused() {
    let whole =
        std::fs::read(golden("speech/nanocodec_nemo").join("tiny.nemo")).expect("an archive");
    let begin = whole
        .windows(3)
        .position(|three| three == b"\x80\x02c")
        .expect("a pickle");
    let end = begin
        + whole[begin..]
            .windows(2)
            .position(|two| two == b"u.")
            .expect("its end")
        + 2;
    let pickle = &whole[begin..end];
    let all = state_dict(pickle).expect("a state dict");
    let find = |name: &str| all.iter().find(|tensor| tensor.name == name);
    let second = find("discriminator.second").expect("a tensor");
    assert_eq!(
        (
            second.offset,
            second.shape.clone(),
            find("discriminator.turned")
        ),
        (24, vec![5, 8], None)
    );
    assert_eq!(find("discriminator.steps").map(|t| t.shape.len()), Some(0));
    for length in (0..pickle.len()).step_by(97) {
        assert_eq!(state_dict(&pickle[..length]), None);
    }
    for at in (0..pickle.len()).step_by(193) {
        for bit in [1, 4, 0x80] {
            let mut changed = pickle.to_vec();
            changed[at] ^= bit;
            let _ = state_dict(&changed);
        }
    }
    // Endless nested tuples, and objects that refer to themselves repeatedly.
    assert_eq!(
        state_dict(&[&[b')'][..], &[0x85; 100_000], b"."].concat()),
        None
    );
    let twice = [b'q', 0, b'h', 0, 0x86].repeat(100_000);
    assert_eq!(state_dict(&[&[b')'][..], &twice, b"."].concat()), None);
}
