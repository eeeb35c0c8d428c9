//! Silero VAD with its real weights against onnxruntime's probabilities, and the resulting speech
//! segments.

use jerboa::audio::vad::{Vad, VadState, VadThresholds, WINDOW, speech_segments};
use jerboa_tests::golden::{Golden, golden};

fn vad() -> Vad {
    Vad::new(
        &std::fs::read(golden(
            "../../www/public/models/silero-vad/model.safetensors",
        ))
        .unwrap(),
    )
    .unwrap()
}

fn recordings() -> [(Vec<f32>, Vec<f32>); 2] {
    let gold = Golden::read(&golden("audio/silero_golden.safetensors"));
    let speech = gold
        .shorts("speech.pcm_i16")
        .iter()
        .map(|s| f32::from(*s) / 32_768.0)
        .collect();
    [
        (speech, gold.floats("speech.prob")),
        (gold.halves("synthetic.wave"), gold.floats("synthetic.prob")),
    ]
}

#[test]
fn probabilities_and_segments() {
    let vad = vad();
    for (samples, expected) in recordings() {
        let found = vad.probabilities(&samples);
        assert_eq!(found.len(), expected.len());
        let error = found
            .iter()
            .zip(&expected)
            .map(|(f, e)| (f - e).abs())
            .fold(0.0, f32::max);
        println!("largest error {error:e}");
        assert!(error < 1e-3, "{error:e}");
        let t = VadThresholds::default();
        let found = speech_segments(&found, samples.len(), t);
        let expected = speech_segments(&expected, samples.len(), t);

        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(&expected) {
            assert!(
                f.start.abs_diff(e.start) <= 800 && f.end.abs_diff(e.end) <= 800,
                "{f:?} {e:?}"
            );
        }
    }
}

#[test]
fn streamed_windows_equal_the_whole() {
    let vad = vad();
    let (samples, _) = &recordings()[0];
    let mut state = VadState::default();
    let stream: Vec<f32> = samples
        .chunks(WINDOW)
        .map(|w| vad.next(&mut state, w))
        .collect();
    assert_eq!(stream, vad.probabilities(samples));
    assert!(
        vad.probabilities(&vec![0.0; 16_000])
            .iter()
            .all(|p| *p < 0.3),
        "silence is no speech"
    );
}
