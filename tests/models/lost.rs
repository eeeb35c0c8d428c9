//! Devices lost at any time during any stage: each call returns its usual result or `device_lost`,
//! and a new device returns the same results. `JERBOA_LOSS_RUNS=100` repeats it. Losses in
//! Chromium: tests/page/lost.test.mjs.

use super::with_kv;
use jerboa::arch::EncoderHead;
use jerboa::exec::{DecodeLoop, DecodeParams, EncoderInput, ModelFiles, RunOptions, VisionEncoder};
use jerboa::gpu::{DeviceOptions, Gpu};
use jerboa::kernels::attention::Kv;
use jerboa::vision::{ImageProcessor, RgbImage};
use jerboa::{Error, Result};
use jerboa_tests::golden::{golden, load, load_encoder, open as source};
use pollster::block_on;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const PROMPT: [u32; 40] = [7; 40];
/// Time limit of a call.
const PATIENCE: Duration = Duration::from_secs(120);

/// A prepared stage; returns the bits of its result.
type Work = Box<dyn FnOnce() -> Result<Vec<u32>>>;
/// The name of a stage, and its preparation on a device that is not lost meanwhile.
type Stage = (&'static str, fn(Gpu) -> Work);

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

fn model(gpu: Gpu) -> Result<jerboa::exec::Session> {
    // A KV cache that grows during generation.
    load(
        gpu,
        &golden("models/qwen3"),
        RunOptions {
            kv_growth: 16,
            ..with_kv(Kv::F32)
        },
    )
}

const STAGES: [Stage; 6] = [
    ("load", |gpu| {
        Box::new(move || model(gpu).map(|session| vec![session.model().vocab() as u32]))
    }),
    ("prefill", |gpu| {
        let mut session = model(gpu).expect("a model");
        Box::new(move || {
            block_on(async {
                session.prefill(&PROMPT, 0).await?;
                session.logits().await
            })
            .map(bits)
        })
    }),
    ("decode", |gpu| {
        let mut session = model(gpu).expect("a model");
        block_on(session.prefill(&PROMPT, 0)).expect("prefill");
        Box::new(move || {
            block_on(async {
                let mut decode =
                    DecodeLoop::start(&mut session, DecodeParams::greedy(PROMPT.len(), 60))?;
                let mut tokens = Vec::new();
                loop {
                    let next = decode.next(&mut session).await?;
                    if next.is_empty() {
                        return Ok(tokens);
                    }
                    tokens.extend(next);
                }
            })
        })
    }),
    ("embed", |gpu| {
        let encoder = load_encoder(
            gpu,
            &golden("models/bert"),
            &EncoderHead::Hidden,
            RunOptions::default(),
        )
        .expect("a model");
        let text = EncoderInput {
            ids: vec![5; 12],
            types: Vec::new(),
            skip: 0,
        };
        Box::new(move || block_on(async { encoder.submit(&[&text])?.wait().await }).map(bits))
    }),
    ("encode", |gpu| {
        let folder = golden("vision/models/smolvlm");
        let json = |name: &str| {
            serde_json::from_slice(&std::fs::read(folder.join(name)).expect(name)).expect("JSON")
        };
        let processor =
            ImageProcessor::from_config(&json("preprocessor_config.json")).expect("a processor");
        let mut vision = block_on(async {
            let from = source(&folder).await?;
            let files = ModelFiles::safetensors(&from, json("config.json").into()).await?;
            VisionEncoder::load(&gpu, &from, files, RunOptions::default()).await
        })
        .expect("a vision encoder");
        let tiles = processor
            .tiles(&RgbImage::new(30, 20, vec![99; 1800]).expect("an image"))
            .expect("tiles");
        Box::new(move || {
            block_on(async {
                vision
                    .encode(&gpu, &tiles, 1, &processor)
                    .await?
                    .read(&gpu)
                    .await
            })
            .map(bits)
        })
    }),
    ("compile", |gpu| {
        Box::new(move || {
            let mut session = model(gpu)?;
            // Pipelines of chunks, of all rows, of steps.
            block_on(async {
                session.ready().await?;
                session.all_rows(&PROMPT, false).await
            })
            .map(bits)
        })
    }),
];

fn device() -> Gpu {
    jerboa_tests::open_alone(&DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    })
}

/// Ends the process unless the returned function is called in time, since a hanging test reports
/// nothing.
fn watched<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, over) = mpsc::channel::<()>();
    let what = what.to_owned();
    let guard = std::thread::spawn(move || {
        if over.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{what} hangs");
            std::process::abort();
        }
    });
    let result = work();
    drop(done);
    guard.join().expect("the guard");
    result
}

#[test]
fn every_call_succeeds_or_reports_device_lost() {
    let runs = std::env::var("JERBOA_LOSS_RUNS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2);
    for (name, prepare) in STAGES {
        let work = prepare(device());
        let begun = Instant::now();
        let expected = work().unwrap_or_else(|e| panic!("{name} on a device that stays: {e}"));
        let whole = begun.elapsed();
        let mut losses = 0;
        for run in 0..runs {
            let gpu = device();
            let destroy = gpu.device_destroyer();
            let work = prepare(gpu);
            // First while idle, then at every moment of the stage.
            let after = (run > 0).then(|| whole.mul_f64(f64::from(run) * 0.618_034 % 1.0));
            let loss = match after {
                Some(after) => std::thread::spawn(move || {
                    std::thread::sleep(after);
                    destroy();
                }),
                None => {
                    destroy();
                    std::thread::spawn(|| {})
                }
            };
            match watched(name, work) {
                Ok(found) => {
                    assert!(
                        found == expected && run > 0,
                        "{name}, lost after {after:?}: something else came out"
                    );
                }
                Err(Error::DeviceLost { .. }) => losses += 1,
                Err(other) => panic!("{name}, lost after {after:?}: {} {other}", other.code()),
            }
            loss.join().expect("a loss");
        }
        println!("{name}: {losses} of {runs} runs were lost, the others came out right");
        assert!(losses > 0, "{name}");
    }
}
