//! Kani-TTS-2 against its reference: logits with and without a speaker, at integer and half
//! positions; greedy and grammar-constrained codes; from tokens to audio, in chunks and at once.

use jerboa::audio::codec_tokens::CodecVocab;
use jerboa::exec::{RunOptions, SoftEmbeddings};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{SpeakRequest, SpeechSynthesizer, SynthesisResult};
use jerboa_tests::golden::{Golden, golden, open as open_folder};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use serde_json::{Value, json};

fn load() -> SpeechSynthesizer {
    block_on(async {
        let source = open_folder(&golden("speech/kani")).await.expect("a folder");
        let codec = open_folder(&golden("speech/nanocodec"))
            .await
            .expect("a folder");
        let mut options = RunOptions::default();
        options.overrides.kv_type = Some(jerboa::kernels::attention::Kv::F32);
        let gpu = open(&DeviceOptions {
            f16: false,
            ..DeviceOptions::default()
        });
        SpeechSynthesizer::load(gpu, &source, &codec, "tiny", options)
            .await
            .expect("a voice")
    })
}

fn speak(
    model: &mut SpeechSynthesizer,
    fields: &Value,
    abort: &AbortFlag,
) -> (jerboa::Result<SynthesisResult>, Vec<Vec<f32>>) {
    let request = SpeakRequest::from_json(&fields.to_string()).expect("a request");
    let mut pieces = Vec::new();
    let made = block_on(model.speak(&request, abort, |samples| pieces.push(samples.to_vec())));
    (made, pieces)
}

/// Logits of all tokens at given positions; the speaker's row is the second.
fn logits(
    model: &mut SpeechSynthesizer,
    gold: &Golden,
    ids: &[u32],
    positions: &[f32],
    speaker: bool,
) -> Vec<f32> {
    let mut ids = ids.to_vec();
    if speaker {
        let vector = gold.floats("speaker");
        let file = std::fs::read(golden("speech/kani/model.safetensors")).expect("a checkpoint");
        let all = safetensors::SafeTensors::deserialize(&file).expect("a safetensors file");
        let tensor = all
            .tensor("model.speaker_emb_projection.weight")
            .expect("a projection");
        let weights = tensor
            .data()
            .chunks_exact(2)
            .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32());
        let weights: Vec<f32> = weights.collect();
        let row: Vec<f32> = weights
            .chunks_exact(vector.len())
            .map(|w| w.iter().zip(&vector).map(|(a, b)| a * b).sum())
            .collect();
        let encoded =
            SoftEmbeddings::from_vector(model.session.gpu(), "speaker", &row).expect("a buffer");
        let number = model
            .session
            .soft_token_cache()
            .borrow_mut()
            .add(0, encoded);
        ids.insert(1, model.session.vocab() as u32 + number);
    }
    model.session.set_positions(positions);
    block_on(model.session.all_rows(&ids, false)).expect("logits")
}

#[test]
fn logits_of_text_and_frames() {
    let mut model = load();
    let gold = Golden::read(&golden("speech/kani/golden.safetensors"));

    for name in [
        "text_only",
        "full",
        "full_speaker",
        "partial_frame_speaker",
        "full_speaker_step_half",
    ] {
        let ids = gold.ids(&format!("{}.ids", name.trim_end_matches("_step_half")));
        let positions = gold.floats(&format!("{name}.positions"));
        let found = logits(
            &mut model,
            &gold,
            &ids,
            &positions,
            name.contains("speaker"),
        );
        let error = relative_l2(&found, &gold.floats(&format!("{name}.logits")));
        println!("{name}: {error:e}");
        assert!(error < 3e-4, "{name}: {error:e}");
    }
    // Positions of a prompt that contains codes equal those of generated speech.
    let ids = gold.ids("full.ids");
    let expected = gold.floats("full.positions");

    let before = ids.iter().take_while(|id| **id < 100).count();
    let codes = ids[before..].iter().take_while(|id| **id >= 100).count();
    let frames = CodecVocab {
        position_step: Some(1.0),
        ..model.codec_vocab
    };
    assert_eq!(
        frames.positions(before, before + codes),
        expected[..before + codes]
    );
    for (name, speaker) in [("greedy.speaker", true), ("greedy.plain", false)] {
        let prompt = gold.ids("greedy.prompt");
        let expected = gold.ids(&format!("{name}.ids"));

        let all = [&prompt[..], &expected].concat();
        let positions = gold.floats(&format!("{name}.positions"));
        let rows = logits(&mut model, &gold, &all, &positions, speaker);
        let vocab = model.session.vocab();

        let first = prompt.len() + usize::from(speaker) - 1;
        let found: Vec<u32> = rows
            .chunks_exact(vocab)
            .skip(first)
            .take(expected.len())
            .map(|row: &[f32]| {
                (0..vocab)
                    .max_by(|a, b| row[*a].total_cmp(&row[*b]))
                    .expect("a token") as u32
            })
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn grammar_constrained_codes_and_their_audio() {
    let mut model = load();
    let gold = Golden::read(&golden("speech/kani/golden.safetensors"));

    let prompt = gold.ids("grammar.prompt");
    for (name, speaker) in [("grammar.speaker", true), ("grammar.plain", false)] {
        let mut fields = json!({ "ids": prompt, "grammar": true, "temperature": 0, "repetition_penalty": 1, "maxTokens": 24 });
        if speaker {
            fields["speaker"] = json!(gold.floats("speaker"));
        }
        let (made, pieces) = speak(&mut model, &fields, &AbortFlag::new());
        let made = made.expect("a speech");
        let expected: Vec<u32> = gold
            .ids(&format!("{name}.ids"))
            .into_iter()
            .take_while(|id| *id != 92)
            .collect();
        assert_eq!(made.ids, expected, "{name}");
        assert_eq!((made.frames, made.dropped), (expected.len() / 4, 0));
        let clip: Vec<f32> = pieces.concat();
        assert_eq!(clip.len(), made.frames * model.codec.hop);
        let codes: Vec<u32> = expected[..made.frames * 4]
            .iter()
            .map(|id| (id - 100) % 12)
            .collect();
        let whole = block_on(model.codec.decode(model.session.gpu(), &codes, 0)).expect("sound");
        assert!(
            relative_l2(&clip, &whole) < 1e-5,
            "{name}: in chunks and at once"
        );
    }
    // Sampling: equal seeds give equal audio, different seeds different audio.
    let draw = |model: &mut SpeechSynthesizer, seed: u32| {
        let (made, pieces) = speak(
            model,
            &json!({ "ids": prompt, "seed": seed, "maxTokens": 60 }),
            &AbortFlag::new(),
        );
        (made.expect("a speech").ids, pieces.len())
    };
    let first = draw(&mut model, 1);
    let again = draw(&mut model, 1);
    let other = draw(&mut model, 2);

    assert_eq!(first, again);
    assert!(
        first.0 != other.0 && first.0.iter().all(|id| *id >= 100),
        "codes alone: {first:?}"
    );
    let abort = AbortFlag::new();
    abort.abort();
    let (stopped, _) = speak(&mut model, &json!({ "ids": prompt }), &abort);
    assert_eq!(stopped.expect_err("an abort").code(), "aborted");
    let (refused, _) = speak(
        &mut model,
        &json!({ "ids": prompt, "speaker": [1, 2] }),
        &AbortFlag::new(),
    );
    assert!(refused.expect_err("a refusal").to_string().contains("24"));
    assert!(
        SpeakRequest::from_json("{\"input\":\" \"}")
            .expect_err("a refusal")
            .to_string()
            .contains("no text")
    );
}
