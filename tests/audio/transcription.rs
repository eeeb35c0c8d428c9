//! Loaded speech recognition models against transformers, from samples on: encoder states, logits,
//! greedy texts and the best of several beams. Also refused requests and long audio.

use super::run::{Tensors, tensors};
use jerboa::audio::subtitles::{Transcript, TranscriptSegment};
use jerboa::audio::vad::Vad;
use jerboa::exec::RunOptions;
use jerboa::gpu::{Backend, DeviceOptions};
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Phase, Progress, ProgressEvent, Source};
use jerboa::task::{ServesTask, TranscribeRequest, Transcriber};
use jerboa_tests::golden::{self, golden};
use jerboa_tests::{bytes, limit, on_units, open, relative_l2};
use pollster::block_on;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

struct Case {
    model: Transcriber,
    gold: Tensors,
    meta: Value,
}

fn load(folder: &Path) -> Transcriber {
    load_on(&DeviceOptions::default(), folder)
}

fn load_on(device: &DeviceOptions, folder: &Path) -> Transcriber {
    block_on(async {
        let source = golden::open(folder).await.expect("a folder");
        let gpu = open(device);
        Transcriber::load(gpu, &source, "tiny", RunOptions::default())
            .await
            .expect("a model that receives")
    })
}

impl Case {
    fn load(name: &str) -> Self {
        Self::load_on(&DeviceOptions::default(), name)
    }

    fn load_on(device: &DeviceOptions, name: &str) -> Self {
        let folder = golden(&format!("speech/{name}"));
        let meta = std::fs::read(folder.join("meta.json")).expect("meta.json");
        Self {
            model: load_on(device, &folder),
            gold: tensors(&folder.join("golden.safetensors")),
            meta: serde_json::from_slice(&meta).expect("JSON"),
        }
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.gold[name].iter().map(|v| *v as u32).collect()
    }

    fn expect(&self, name: &str, found: &[f32]) {
        let error = relative_l2(found, &self.gold[name]);
        println!("{name}: {error:e}");
        assert!(
            error < limit(self.model.session.gpu(), 3e-4),
            "{name}: {error:e}"
        );
    }

    fn request(fields: &Value) -> TranscribeRequest {
        TranscribeRequest::from_json(&fields.to_string()).expect("a request")
    }

    fn heard(&mut self, wave: &[f32], fields: &Value) -> TranscriptSegment {
        let made = block_on(self.model.transcribe(
            wave,
            &Self::request(fields),
            &AbortFlag::new(),
            |_| {},
        ));
        // A text that ends at once has no tokens.
        made.expect("a transcript")
            .segments
            .into_iter()
            .next()
            .unwrap_or_default()
    }

    /// Everything from samples on: states, logits, greedy text, beams.
    fn check(mut self, name: &str, wave: &[f32], whole: usize, clips: &[usize]) {
        for samples in clips {
            let (rows, _) = block_on(self.model.encode(&wave[..*samples])).expect("rows");
            self.expect(&format!("encoder.{samples}"), &rows);
        }
        let wave = &wave[..whole];
        let ids = self.ids("decoder_input_ids");
        let logits = block_on(self.model.logits(wave, &ids)).expect("logits");
        self.expect("logits", &logits);
        // The generated tokens, without an end token.
        self.model.end_tokens = Vec::new();
        let greedy = self.ids("greedy");
        let most = greedy.len() - 1;
        for fields in [
            json!({ "maxTokens": most }),
            json!({ "maxTokens": most, "logprobs": true, "ids": [greedy[0]] }),
        ] {
            assert_eq!(self.heard(wave, &fields).ids, greedy[1..], "{name}");
        }
        let best = self.heard(wave, &json!({ "maxTokens": most, "beams": 4 }));
        assert_eq!(best.ids, self.ids("beam4")[1..greedy.len()], "{name}");
        let score = best.mean_logprob.expect("a score");
        let expected = f64::from(self.gold["beam4_scores"][0]);

        assert!(
            (score - expected).abs() < 1e-3,
            "{name}: {score} {expected}"
        );
        let end = self.meta["beam_eos_id"].as_u64().expect("a token") as u32;
        self.model.end_tokens = vec![end];
        let width = self.gold["beam4_eos"].len() / 4;
        let best: Vec<u32> = self.ids("beam4_eos")[1..width]
            .iter()
            .copied()
            .take_while(|id| *id != end)
            .collect();
        assert_eq!(
            self.heard(wave, &json!({ "maxTokens": most, "beams": 4 }))
                .ids,
            best,
            "{name}"
        );
    }
}

/// The samples of meta.json.
fn chirp(count: usize) -> Vec<f32> {
    let mut seed = 2_463_534_242u32;
    let sample = |i: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let t = i as f64 / 16_000.0;
        let tau = std::f64::consts::TAU;

        let chirp =
            0.45 * (tau * (120.0 * t + 900.0 * t * t)).sin() * (0.6 + 0.4 * (tau * 3.0 * t).sin());
        let tone = if t % 0.4 < 0.13 {
            0.15 * (tau * 2500.0 * t).sin()
        } else {
            0.0
        };
        (chirp + tone + 0.03 * (f64::from(seed) / 2f64.powi(31) - 1.0)) as f32
    };
    (0..count).map(sample).collect()
}

#[test]
fn whisper_from_samples() {
    Case::load("whisper").check("whisper", &chirp(51_200), 51_200, &[51_200, 33_333]);
}

#[test]
fn moonshine_from_samples() {
    let case = Case::load("moonshine");
    let wave = case.gold["wave"].clone();
    case.check("moonshine", &wave, 20_001, &[12_345, 19_200, 1000]);
}

#[test]
fn moonshine_streaming_from_samples() {
    let case = Case::load("moonshine_streaming");
    let wave = case.gold["wave"].clone();
    case.check("moonshine_streaming", &wave, 16_000, &[8000]);
}

#[test]
fn on_subgroup_matrices() {
    Case::load_on(&on_units(64), "whisper").check(
        "whisper",
        &chirp(51_200),
        51_200,
        &[51_200, 33_333],
    );
    let case = Case::load_on(&on_units(64), "moonshine");
    let wave = case.gold["wave"].clone();
    case.check("moonshine", &wave, 20_001, &[12_345, 19_200, 1000]);
}

/// Word timestamps against transformers' pipeline, from cross-attention.
#[test]
fn whisper_word_timestamps() {
    let folder = golden("speech/whisper_words");
    // Two frames can differ by the last bit, which f16 changes.
    let mut model = load_on(
        &DeviceOptions {
            matrix: false,
            ..DeviceOptions::default()
        },
        &folder,
    );
    let meta: Value =
        serde_json::from_slice(&std::fs::read(folder.join("meta.json")).expect("a file"))
            .expect("JSON");
    for (samples, expected) in meta["clips"].as_object().expect("clips") {
        let wave = chirp(samples.parse().expect("a number"));
        let request = Case::request(&json!({ "timestamps": "word", "language": "en" }));
        let made = block_on(model.transcribe(&wave, &request, &AbortFlag::new(), |_| {}))
            .expect("a transcript");
        assert_timed(&made, expected, samples);
    }
}

/// Compares ids, segments and words with transformers'. Its last segment may end in the padding.
fn assert_timed(made: &Transcript, expected: &Value, case: &str) {
    let ids: Vec<u32> = made.segments.iter().flat_map(|s| s.ids.clone()).collect();
    assert_eq!(json!(ids), expected["ids"], "{case}");
    let hundredths = |seconds: f64| (seconds * 100.0).round() as i64;
    let of = |v: &Value| hundredths(v.as_f64().expect("seconds"));
    let list = |name: &str| expected[name].as_array().expect("a list").clone();
    let within = |s: &Value| (of(&s[0]), of(&s[1]).min(hundredths(made.duration)));
    assert_eq!(
        spans(made),
        list("segments").iter().map(within).collect::<Vec<_>>(),
        "{case}"
    );
    let words = made.segments.iter().flat_map(|s| &s.words);
    let words: Vec<_> = words
        .map(|w| (w.text.clone(), hundredths(w.start), hundredths(w.end)))
        .collect();
    let text = |v: &Value| v.as_str().expect("a word").trim().to_string();
    let told: Vec<_> = list("words")
        .iter()
        .map(|w| (text(&w[0]), of(&w[1]), of(&w[2])))
        .collect();
    assert_eq!(words, told, "{case}");
}

/// The second window of a recording has the rest of the recording's features, followed by zeros, as
/// in transformers. Features of its samples alone give other words.
#[test]
fn later_windows_continue_the_features_of_the_recording() {
    let folder = golden("speech/whisper_words");
    let device = DeviceOptions {
        matrix: false,
        ..DeviceOptions::default()
    };
    let mut model = load_on(&device, &folder);
    let tail = std::fs::read(folder.join("tail.json")).expect("a file");
    let tail: Value = serde_json::from_slice(&tail).expect("JSON");
    let number = |name: &str| tail[name].as_u64().expect("a number");
    model.rules.end = number("end") as u32;
    model.end_tokens = vec![model.rules.end];
    for (samples, expected) in tail["clips"].as_object().expect("clips") {
        let wave = chirp(samples.parse().expect("a number"));
        let first = number("first_frame") as usize;
        let rows = block_on(async {
            let gpu = model.session.gpu();
            let rows = model.encoder.encode_from(gpu, &wave, first).await?;
            assert_eq!(rows, 200);
            model.encoder.states(gpu).await
        });
        let golden: Vec<Vec<f32>> =
            serde_json::from_value(expected["rows"].clone()).expect("encoder rows");
        let rows: Vec<f32> = rows
            .expect("encoder states")
            .chunks_exact(golden[0].len())
            .step_by(number("row_step") as usize)
            .flatten()
            .copied()
            .collect();
        let error = relative_l2(&rows, &golden.concat());
        assert!(error < 3e-4, "{samples}: {error:e}");
        let request = Case::request(&json!({ "timestamps": "word", "language": "en" }));
        let made = block_on(model.transcribe(&wave, &request, &AbortFlag::new(), |_| {}))
            .expect("a transcript");
        assert_timed(&made, expected, samples);
    }
}

#[test]
fn unsupported_transcription_requests_are_refused() {
    let mut model = load(&golden("speech/moonshine"));
    let mut refused = |wave: &[f32], fields: Value| {
        let request = Case::request(&fields);
        let made = block_on(model.transcribe(wave, &request, &AbortFlag::new(), |_| {}));
        made.expect_err("a refusal").to_string()
    };
    let second = vec![0.1; 16_000];
    assert!(refused(&[], json!({})).contains("no samples"));
    assert!(refused(&[f32::NAN; 9000], json!({})).contains("NaN or infinite"));
    assert!(refused(&[0.1; 300], json!({})).contains("too short"));
    assert!(refused(&second, json!({ "timestamps": "segment" })).contains("no timestamp tokens"));
    let words = refused(&second, json!({ "timestamps": "word" }));
    assert!(
        words.contains("alignment heads") && words.contains("Use 'none'"),
        "{words}"
    );
    let translated = refused(&second, json!({ "translate": true }));
    assert!(
        translated.contains("English only") && translated.contains("translate:"),
        "{translated}"
    );
    assert!(refused(&second, json!({ "language": "de" })).contains("English only"));
    assert!(refused(&second, json!({ "vad": true })).contains("no voice activity detector"));
    for (fields, told) in [
        (json!({ "beams": 0 }), "beams"),
        (json!({ "temperatures": [3.0] }), "temperature"),
    ] {
        assert!(
            TranscribeRequest::from_json(&fields.to_string())
                .expect_err("a refusal")
                .to_string()
                .contains(told)
        );
    }
}

/// Silero VAD's weights, changed to return a constant.
fn constant_vad(bias: f32) -> Vad {
    let shapes: [(&str, usize); 15] = [
        ("stft_conv.weight", 258 * 256),
        ("conv1.weight", 128 * 129 * 3),
        ("conv1.bias", 128),
        ("conv2.weight", 64 * 128 * 3),
        ("conv2.bias", 64),
        ("conv3.weight", 64 * 64 * 3),
        ("conv3.bias", 64),
        ("conv4.weight", 128 * 64 * 3),
        ("conv4.bias", 128),
        ("lstm_cell.weight_ih", 512 * 128),
        ("lstm_cell.weight_hh", 512 * 128),
        ("lstm_cell.bias_ih", 512),
        ("lstm_cell.bias_hh", 512),
        ("final_conv.weight", 128),
        ("final_conv.bias", 1),
    ];
    let value = |name: &str| if name == "final_conv.bias" { bias } else { 0.0 };
    let data: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(name, count)| bytes(&vec![value(name); *count]))
        .collect();
    let views = shapes.iter().zip(&data).map(|((name, count), data)| {
        (
            name.to_string(),
            TensorView::new(Dtype::F32, vec![*count], data).expect("a tensor"),
        )
    });
    Vad::new(&safetensors::serialize(views, None).expect("a file")).expect("weights")
}

/// Segments in hundredths of a second.
fn spans(made: &Transcript) -> Vec<(i64, i64)> {
    let hundredths = |seconds: f64| (seconds * 100.0).round() as i64;
    made.segments
        .iter()
        .map(|s| (hundredths(s.start), hundredths(s.end)))
        .collect()
}

/// A model whose text always ends with a single timestamp at 2.48 s of its four. With voice
/// detection, speech after that is decoded again, in long audio and in audio of one window. Without
/// it the rest of the window is skipped.
#[test]
fn speech_after_the_last_timestamp_is_decoded_again() {
    let mut model = load(&golden("speech/whisper_words"));
    let request = Case::request(&json!({ "timestamps": "segment", "language": "en" }));
    let heard = |model: &mut Transcriber, wave: &[f32]| {
        let mut told = Vec::new();
        let made = block_on(
            model.transcribe(wave, &request, &AbortFlag::new(), |heard| {
                told.push(heard.text.clone());
            }),
        );
        let made = made.expect("a transcript");
        assert_eq!(
            told,
            made.segments
                .iter()
                .map(|s| s.text.clone())
                .collect::<Vec<_>>()
        );
        made
    };
    let long = chirp(192_000);
    let one = chirp(64_000);

    let window = [(20, 120), (140, 200), (200, 248)];
    let at = |starts: &[i64]| {
        starts
            .iter()
            .flat_map(|s| window.map(|(a, b)| (a + s, b + s)))
            .collect::<Vec<_>>()
    };
    assert_eq!(spans(&heard(&mut model, &long)), at(&[0, 400, 800]));
    assert_eq!(spans(&heard(&mut model, &one)), at(&[0]));
    model.vad = Some(Rc::new(constant_vad(5.0)));
    // The audio left for the last window is shorter than its text.
    let made = heard(&mut model, &long);
    assert_eq!(spans(&made)[..12], at(&[0, 248, 496, 744]));
    assert!(made.segments.iter().all(|s| s.end <= 12.0) && made.untranscribed.is_empty());
    assert_eq!(spans(&heard(&mut model, &one))[..3], at(&[0]));
    assert!(
        spans(&heard(&mut model, &one)).len() > 3,
        "the rest of a single window"
    );
    model.vad = Some(Rc::new(constant_vad(-5.0)));
    assert_eq!(spans(&heard(&mut model, &long)), []);
}

/// If timestamps contradict detected speech, the window is decoded without them; if it is empty
/// then too, a warning says so.
#[test]
fn detected_speech_is_never_skipped_without_a_warning() {
    let mut model = load(&golden("speech/whisper_words"));
    model.vad = Some(Rc::new(constant_vad(5.0)));
    let wave = chirp(128_000);
    let times = Case::request(&json!({ "timestamps": "segment", "language": "en" }));
    let plain = Case::request(&json!({ "language": "en" }));
    let first =
        block_on(model.transcribe(&wave, &times, &AbortFlag::new(), |_| {})).expect("a transcript");
    // A first timestamp token that ends the window gives an empty text.
    model.end_tokens.push(first.segments[0].ids[0]);
    let made =
        block_on(model.transcribe(&wave, &times, &AbortFlag::new(), |_| {})).expect("a transcript");
    let alone = block_on(model.transcribe(&wave[..64_000], &plain, &AbortFlag::new(), |_| {}))
        .expect("a transcript");
    match alone.text().as_str() {
        "" => {
            assert_eq!(made.untranscribed, [0.0..4.0, 4.0..8.0]);
            assert_eq!(
                made.to_verbose_json()["untranscribed"],
                json!([[0.0, 4.0], [4.0, 8.0]])
            );
        }
        text => assert_eq!(made.segments[0].text.trim(), text),
    }
    assert!(
        made.segments.len() + made.untranscribed.len() == 2,
        "each window is heard or named: {made:?}"
    );
    let heard =
        block_on(model.transcribe(&wave, &plain, &AbortFlag::new(), |_| {})).expect("a transcript");
    assert_eq!(heard.untranscribed.is_empty(), !heard.segments.is_empty());
}

/// Partial transcripts: each partial text replaces the previous one, stable text never changes, and
/// together with settled segments it becomes the transcript. Their number depends on speed. A
/// second temperature replaces the first one's text.
#[test]
fn partial_strings_become_the_transcript() {
    let mut model = load(&golden("speech/whisper_words"));
    model.vad = Some(Rc::new(constant_vad(5.0)));
    let wave = chirp(160_000);
    let both = |a: &str, b: &str| {
        if a.is_empty() || b.is_empty() {
            format!("{a}{b}")
        } else {
            format!("{a} {b}")
        }
    };
    // With overlapping windows, temperatures or beams, no text is stable before it settles.
    for (mut fields, window, told) in [
        (json!({ "timestamps": "segment" }), 160_000, (true, true)),
        (json!({ "timestamps": "none" }), 51_200, (true, true)),
        (json!({ "timestamps": "none" }), 160_000, (true, false)),
        (
            json!({ "timestamps": "segment", "temperatures": [0.0, 0.4] }),
            160_000,
            (true, false),
        ),
        (
            json!({ "timestamps": "segment", "beams": 2 }),
            51_200,
            (false, false),
        ),
    ] {
        (fields["partials"], fields["language"]) = (json!(true), json!("en"));
        let request = Case::request(&fields);
        let mut settled = String::new();
        let mut stable = String::new();
        let mut partial = String::new();

        let mut partials = 0;
        let mut early = 0;

        let made =
            block_on(
                model.transcribe(&wave[..window], &request, &AbortFlag::new(), |heard| {
                    match &heard.stable {
                        None => {
                            settled = both(&settled, heard.text.trim());
                            assert!(
                                settled.starts_with(&stable) || stable.starts_with(&settled),
                                "{stable} {settled}"
                            );
                            partial.clear();
                        }
                        Some(sure) => {
                            assert!(heard.text.starts_with(sure.as_str()), "{heard:?}");
                            let now = both(&settled, sure);
                            assert!(
                                sure.is_empty() || now.starts_with(&stable),
                                "{fields}: {stable} | {now}"
                            );
                            early += usize::from(now.len() > settled.len());
                            if !sure.is_empty() {
                                stable = now;
                            }
                            partial = heard.text.clone();
                            partials += 1;
                        }
                    }
                    assert!(heard.done <= heard.total);
                }),
            );
        let made = made.expect("a transcript");
        assert_eq!(
            (both(&settled, ""), partial.as_str()),
            (made.text(), ""),
            "{fields}"
        );
        assert!(made.text().starts_with(&stable), "{fields}");
        assert_eq!(
            (partials > 0, early > 0),
            told,
            "{fields}: {partials} {early}"
        );
    }
}

/// Load progress has one total for encoder, projections and decoder of a file, a share that never
/// decreases, and no cached bytes.
#[test]
fn load_progress_has_one_total() {
    let events: Rc<RefCell<Vec<ProgressEvent>>> = Rc::default();
    let seen = events.clone();
    let progress = Progress::new(move |event| seen.borrow_mut().push(event.clone()));
    let folder = golden("speech/whisper");
    let model = block_on(async {
        let name = ModelRef::parse(&folder.to_string_lossy()).expect("a folder");
        let options = HubOptions {
            part_size: 4096,
            ..HubOptions::default()
        };
        let source = Source::open(&name, &options, AbortFlag::new(), progress)
            .await
            .expect("a folder");
        Transcriber::load(
            open(&DeviceOptions::default()),
            &source,
            "tiny",
            RunOptions::default(),
        )
        .await
    });
    let model = model.expect("a model");
    let events = events.borrow();
    assert!(
        events
            .windows(2)
            .all(|two| two[0].progress <= two[1].progress)
            && events.last().is_some_and(|e| e.progress == 1.0)
    );
    let weights: Vec<_> = events
        .iter()
        .filter(|e| e.phase == Phase::Weights && e.total > 0)
        .collect();
    let file = std::fs::read(folder.join("model.safetensors")).expect("a file");
    let header = 8 + u64::from_le_bytes(file[..8].try_into().expect("a length"));
    let total = weights[0].total;
    let size = file.len() as u64;

    assert!(
        total <= size && total > size - header - 4096,
        "{total} of {size}"
    );
    assert!(
        weights
            .iter()
            .all(|e| e.total == total && e.loaded <= total && !e.from_cache),
        "{weights:?}"
    );
    assert_eq!(weights.last().map(|e| e.loaded), Some(total));
    // All tensors of the file count, including the encoder's.
    let all = safetensors::SafeTensors::deserialize(&file).expect("a file");
    let numbers: usize = all
        .tensors()
        .iter()
        .map(|(_, t)| t.shape().iter().product::<usize>())
        .sum();
    assert_eq!(model.info()["parameters"], json!(numbers));
}

/// The language of a transcript, also for models of a single language.
#[test]
fn languages_by_name() {
    let mut model = load(&golden("speech/whisper_words"));
    let wave = chirp(40_000);
    let said = |model: &mut Transcriber, fields: Value| {
        block_on(model.transcribe(&wave, &Case::request(&fields), &AbortFlag::new(), |_| {}))
    };
    assert_eq!(
        said(&mut model, json!({ "language": "German" }))
            .expect("a transcript")
            .language,
        Some("de".into())
    );
    let refused = said(&mut model, json!({ "language": "germn" }))
        .expect_err("a refusal")
        .to_string();
    assert!(
        refused.contains("'germn'") && refused.contains("Did you mean 'german'?"),
        "{refused}"
    );
    model.rules.languages = Default::default();
    model.rules.english_only = true;
    assert_eq!(
        said(&mut model, json!({})).expect("a transcript").language,
        Some("en".into())
    );
    assert_eq!(
        said(&mut model, json!({ "language": "English" }))
            .expect("a transcript")
            .language,
        Some("en".into())
    );
    let refused = said(&mut model, json!({ "language": "romanian" }))
        .expect_err("a refusal")
        .to_string();
    assert!(
        refused.contains("'romanian'") && refused.contains("English only"),
        "{refused}"
    );
}

/// Ten minutes: memory is constant after the first windows, all segments arrive in order, and an
/// abort takes effect.
#[test]
fn ten_minutes() {
    let mut model = load(&golden("speech/moonshine"));
    let wave: Vec<f32> = chirp(160_000)
        .into_iter()
        .cycle()
        .take(600 * 16_000)
        .collect();
    let request = Case::request(&json!({ "maxTokens": 3 }));
    let mut hear = |wave: &[f32]| {
        let mut told = Vec::new();
        let made = block_on(
            model.transcribe(wave, &request, &AbortFlag::new(), |heard| {
                told.push((heard.start, heard.end, heard.done));
            }),
        );
        (
            made.expect("a transcript"),
            told,
            model.session.gpu().resource_counts(),
        )
    };
    // Longer than a window, so all plans exist by then.
    let (_, _, before) = hear(&wave[..80 * 16_000]);
    let (made, told, after) = hear(&wave);
    assert_eq!((made.segments.len(), told.len()), (25, 25));
    assert!(
        told.windows(2)
            .all(|two| two[0].1 <= two[1].0 + 1e-9 && two[0].2 <= two[1].2),
        "{told:?}"
    );
    assert!((told[24].1 - 600.0).abs() < 1e-6 && told[0].0 == 0.0);
    assert_eq!(
        (before.bytes, before.bind_groups),
        (after.bytes, after.bind_groups)
    );
    let abort = AbortFlag::new();
    let flag = abort.clone();
    let mut count = 0;

    let stopped = block_on(model.transcribe(&wave, &request, &abort, |_| {
        count += 1;
        flag.abort();
    }));
    assert_eq!(
        (stopped.expect_err("an abort").code(), count),
        ("aborted", 1)
    );
}
