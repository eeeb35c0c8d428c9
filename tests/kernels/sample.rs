//! GPU sampling: ids equal the CPU sampler's, for thousands of random numbers.

use jerboa::gpu::Gpu;
use jerboa::kernels::Launch;
use jerboa::kernels::sample::{
    LogitBuffers, SampleKernels, bias, check_status, needs_adjust, settings, work_bytes,
};
use jerboa::sample::{Sampler, SamplingParams};
use jerboa::{Error, reference};
use jerboa_tests::{bytes, gpu, random, run_all};

/// Buffers of one generation: shared ones first, then a state and a sampled token per step.
const LOGITS: usize = 0;
const SAMPLING: usize = 1;
const WORK: usize = 2;
const COUNTS: usize = 3;
const BIAS: usize = 4;
const SCORES: usize = 5;
const SHARED: usize = 6;

fn sampling() -> SamplingParams {
    SamplingParams {
        greedy: false,
        top_k: 0,
        ..SamplingParams::default()
    }
}

/// Samples `steps` tokens from the same logits in one submit; returns each token and status.
fn generate(
    gpu: &Gpu,
    params: &SamplingParams,
    seed: u64,
    logits: &[f32],
    prompt: &[u32],
    steps: usize,
) -> Vec<(u32, u32)> {
    let vocabulary = logits.len() as u32;
    let mut sampler = Sampler::new(params.clone(), logits.len(), seed).unwrap();
    sampler.start(prompt);
    // The sampled row is not the first of its buffer.
    let offset = 5;
    let padded: Vec<f32> = [&[f32::MAX; 5], logits].concat();
    let mut buffers = vec![
        bytes(&padded),
        bytes(&settings(params, seed, vocabulary)),
        vec![0xa5; work_bytes(vocabulary) as usize],
        bytes(sampler.counts()),
        bytes(&bias(params, vocabulary)),
        bytes(&vec![f32::NAN; logits.len()]),
    ];
    let mut launches: Vec<Launch<usize>> = Vec::new();
    for step in 0..steps {
        let state = buffers.len();
        buffers.push(bytes(&[7u32, 1, step as u32, 0, 100, 0, 0, 0]));
        buffers.push(bytes(&[0u32; 4]));
        let adjust = LogitBuffers {
            counts: COUNTS,
            bias: BIAS,
            adjusted: SCORES,
        };
        let draw = SampleKernels {
            label: "draw".into(),
            vocabulary,
            logits: LOGITS,
            offset,
            sampling: SAMPLING,
            work: WORK,
            state,
            sampled: state + 1,
            adjust: needs_adjust(params).then_some(adjust),
        };
        launches.extend(draw.launches().unwrap());
    }
    let after = run_all(gpu, &launches, 1, &buffers);
    let picked = after[SHARED..]
        .chunks_exact(2)
        .map(|pair| bytemuck::pod_collect_to_vec::<u8, u32>(&pair[1]));
    picked.map(|words| (words[1], words[2])).collect()
}

fn compare(name: &str, params: &SamplingParams, seed: u64, logits: &[f32], steps: usize) {
    let prompt: Vec<u32> = (0..logits.len() as u32).step_by(11).collect();
    let found = generate(gpu(), params, seed, logits, &prompt, steps);
    let mut sampler = Sampler::new(params.clone(), logits.len(), seed).unwrap();
    sampler.start(&prompt);
    for (step, found) in found.into_iter().enumerate() {
        let scores = reference::sample::adjust(logits, params, sampler.counts());
        let reference = reference::sample::sample(&scores, params, seed, step as u32);
        let expected = sampler.sample(logits, None).unwrap();
        assert_eq!(
            reference,
            Some(expected),
            "{name}, {} logits, seed {seed}, step {step}",
            logits.len()
        );
        assert_eq!(
            found,
            (expected, 0),
            "{name}, {} logits, seed {seed}, step {step}",
            logits.len()
        );
    }
}

fn sets() -> Vec<(&'static str, SamplingParams)> {
    let base = sampling();
    let penalties = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.7,
        frequency_penalty: 0.11,
        logit_bias: [(0, 1.5), (3, f64::NEG_INFINITY), (5, -2.25)].into(),
        ..sampling()
    };
    vec![
        (
            "temperature",
            SamplingParams {
                temperature: 0.7,
                ..base.clone()
            },
        ),
        (
            "hot",
            SamplingParams {
                temperature: 40.0,
                ..base.clone()
            },
        ),
        (
            "top_k",
            SamplingParams {
                top_k: 20,
                ..base.clone()
            },
        ),
        (
            "top_p",
            SamplingParams {
                top_p: 0.9,
                ..base.clone()
            },
        ),
        (
            "wide top_p",
            SamplingParams {
                top_p: 0.999,
                temperature: 1.5,
                ..base.clone()
            },
        ),
        (
            "top_p of nothing",
            SamplingParams {
                top_p: 0.0,
                ..base.clone()
            },
        ),
        (
            "min_p",
            SamplingParams {
                min_p: 0.1,
                ..base.clone()
            },
        ),
        (
            "qwen3",
            SamplingParams {
                temperature: 0.6,
                top_k: 20,
                top_p: 0.95,
                ..base.clone()
            },
        ),
        (
            "all filters",
            SamplingParams {
                temperature: 1.3,
                top_k: 400,
                top_p: 0.8,
                min_p: 0.02,
                ..base
            },
        ),
        ("penalties", penalties.clone()),
        (
            "all",
            SamplingParams {
                temperature: 0.9,
                top_k: 40,
                top_p: 0.9,
                min_p: 0.01,
                ..penalties
            },
        ),
    ]
}

#[test]
fn samples_equal_the_cpu_samplers() {
    for (count, steps) in [(7, 30), (1000, 60), (5003, 60)] {
        for (name, params) in sets() {
            for (seed, width) in [(1, 6.0), (0xdead_beef_0000_0002, 1.0)] {
                let logits: Vec<f32> = random(seed + 9, count).iter().map(|v| v * width).collect();
                compare(name, &params, seed, &logits, steps);
            }
        }
    }
}

#[test]
fn samples_equal_the_cpu_samplers_among_ties() {
    for (name, params) in sets() {
        let logits: Vec<f32> = random(77, 3100).iter().map(|v| (v * 3.0).round()).collect();
        compare(name, &params, 5, &logits, 25);
    }
}

#[test]
fn samples_from_a_real_vocabulary() {
    let logits: Vec<f32> = random(4, 151_936)
        .iter()
        .map(|v| v * v * v * 14.0)
        .collect();
    for (name, params) in sets() {
        compare(name, &params, 3, &logits, 2);
    }
}

#[test]
fn broken_logits_have_a_status() {
    let good = random(1, 2000);
    let with = |id: usize, value: f32| {
        let mut row = good.clone();
        row[id] = value;
        row
    };
    let rows = [
        with(1999, f32::NAN),
        with(3, f32::INFINITY),
        with(1500, f32::NEG_INFINITY),
        vec![1.5; 2000],
    ];
    for params in [sets()[0].1.clone(), sets()[10].1.clone()] {
        for row in &rows {
            let (token, word) = generate(gpu(), &params, 1, row, &[], 1)[0];
            assert_eq!(token, 0xffff_fffe);
            assert!(
                matches!(check_status(word, 0), Err(Error::NotFinite { .. })),
                "{word}"
            );
        }
    }
    let banned = SamplingParams {
        logit_bias: (0..8).map(|id| (id, f64::NEG_INFINITY)).collect(),
        ..sampling()
    };
    let (_, word) = generate(gpu(), &banned, 1, &good[..8], &[], 1)[0];
    assert!(
        matches!(check_status(word, 0), Err(Error::Request { .. })),
        "{word}"
    );
}
