//! Log-mel features against transformers' on a real recording, on the CPU and on the GPU.

use jerboa::audio::mel;
use jerboa::kernels::audio_conv::Mel;
use jerboa::kernels::matmul::View;
use jerboa::reference::audio_conv::log_mel;
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::{bytes, floats, gpu, run_all};

fn worst(found: &[f32], expected: &[f32]) -> f32 {
    let place = |k: usize| (k * 7919 + 13) % found.len();
    expected
        .iter()
        .enumerate()
        .map(|(k, e)| (found[place(k)] - e).abs())
        .fold(0.0, f32::max)
}

fn on_gpu(samples: &[f32], mels: usize) -> Vec<f32> {
    let mut rows = samples[..samples.len().min(480_000)].to_vec();
    rows.resize(rows.len().next_multiple_of(160), 0.0);
    let frames = 3000;
    let kernel = Mel {
        mels: mels as u32,
        frames: frames as u32,
        table: 2,
        filters: 3,
        peaks: 4,
    };
    let view = |buffer: usize, stride: usize| View {
        buffer,
        offset: 0,
        stride: stride as u32,
    };
    let state = [0, rows.len() as u32 / 160, 0, 0, 0, 0, 0, 0];
    let zeros = |n: usize| vec![0u8; n * 4];
    let table: Vec<f32> = mel::window_table().concat();
    let buffers = [
        bytes(&rows),
        bytes(&state),
        bytes(&table),
        bytes(&mel::filters(mels)),
        zeros(frames),
        zeros(frames * mels),
    ];
    let done = run_all(
        gpu(),
        &kernel.launches("mel", &view(0, 160), 1, &view(5, mels)),
        1,
        &buffers,
    );
    floats(&done[5])
}

#[test]
fn features_of_a_recording() {
    let gold = Golden::read(&golden("audio/logmel.safetensors"));
    let pcm: Vec<f32> = gold
        .shorts("pcm")
        .iter()
        .map(|s| f32::from(*s) / 32_768.0)
        .collect();
    for mels in [80, 128] {
        let filters = gold.halves(&format!("filters.{mels}"));
        let error = mel::filters(mels)
            .iter()
            .zip(&filters)
            .map(|(f, e)| (f - e).abs())
            .fold(0.0, f32::max);
        assert!(error < 2e-5, "filters of {mels}: {error:e}");
        // A clip padded with silence, and one cut at 30 s.
        let long: Vec<f32> = pcm.iter().copied().cycle().take(488_000).collect();
        let expected = gold.floats(&format!("whole.{mels}"));
        let reference = worst(&log_mel(&pcm, 480_000, mels), &expected);
        let kernel = worst(&on_gpu(&pcm, mels), &expected);
        let cut = worst(&on_gpu(&long, mels), &gold.floats(&format!("long.{mels}")));
        println!("{mels} mels: CPU {reference:e}, kernel {kernel:e}, 30 s {cut:e}");
        assert!(
            reference < 1e-4 && kernel < 1e-4 && cut < 1e-4,
            "{mels}: {reference:e} {kernel:e} {cut:e}"
        );
    }
}
