//! GPU sampling: ids equal the CPU sampler's, for thousands of random numbers, with and without a
//! token mask.

use jerboa::gpu::Gpu;
use jerboa::kernels::Launch;
use jerboa::kernels::sample::{
    AdvanceBuffers, LogitBuffers, SampleKernels, SampledRow, advance, argmax, bias, check_status,
    mask_words, needs_adjust, settings, slices, work_bytes,
};
use jerboa::sample::{Sampler, SamplingParams, TokenMask};
use jerboa::{Error, reference};
use jerboa_tests::{bytes, gpu, random, run_all};

/// Buffers of one generation: shared ones first, then a state and a sampled token per step.
const LOGITS: usize = 0;
const SAMPLING: usize = 1;
const WORK: usize = 2;
const COUNTS: usize = 3;
const BIAS: usize = 4;
const SCORES: usize = 5;
const MASK: usize = 6;
const SHARED: usize = 7;
/// The sampled row is not the first of its buffer.
const OFFSET: u32 = 5;

fn sampling() -> SamplingParams {
    SamplingParams {
        greedy: false,
        top_k: 0,
        ..SamplingParams::default()
    }
}

/// A row of logits with the parameters of a request.
struct Request<'a> {
    params: &'a SamplingParams,
    seed: u64,
    logits: &'a [f32],
    prompt: &'a [u32],
    mask: Option<&'a [u32]>,
}

impl Request<'_> {
    fn sampler(&self) -> Sampler {
        let mut sampler = Sampler::new(self.params.clone(), self.logits.len(), self.seed).unwrap();
        sampler.start(self.prompt);
        sampler
    }

    /// The buffers before [`SHARED`].
    fn buffers(&self) -> Vec<Vec<u8>> {
        let vocabulary = self.logits.len() as u32;
        let padded: Vec<f32> = [&[f32::MAX; OFFSET as usize], self.logits].concat();
        vec![
            bytes(&padded),
            bytes(&settings(self.params, self.seed, vocabulary)),
            vec![0xa5; work_bytes(vocabulary) as usize],
            bytes(self.sampler().counts()),
            bytes(&bias(self.params, vocabulary)),
            bytes(&vec![f32::NAN; self.logits.len().next_multiple_of(4)]),
            bytes(self.mask.unwrap_or(&[0])),
        ]
    }

    fn kernels(&self, state: usize) -> SampleKernels<usize> {
        let adjust = LogitBuffers {
            counts: COUNTS,
            bias: BIAS,
        };
        SampleKernels {
            label: "draw".into(),
            vocabulary: self.logits.len() as u32,
            logits: LOGITS,
            offset: OFFSET,
            sampling: SAMPLING,
            work: WORK,
            state,
            sampled: state + 1,
            adjust: needs_adjust(self.params).then_some(adjust),
            mask: self.mask.map(|_| MASK),
            adjusted: SCORES,
            row: SampledRow::Single,
            candidates: None,
        }
    }
}

/// Samples `steps` tokens from the same logits in one submit; returns each token and status.
fn generate(gpu: &Gpu, request: &Request<'_>, steps: usize) -> Vec<(u32, u32)> {
    let mut buffers = request.buffers();
    let mut launches: Vec<Launch<usize>> = Vec::new();
    for step in 0..steps {
        let state = buffers.len();
        buffers.push(bytes(&[7u32, 1, step as u32, 0, 100, 0, 0, 0]));
        buffers.push(bytes(&[0u32; 4]));
        let kernels = request.kernels(state);
        launches.push(kernels.adjustment());
        launches.extend(kernels.filters());
        launches.push(kernels.select());
    }
    let after = run_all(gpu, &launches, 1, &buffers);
    let selected = after[SHARED..]
        .chunks_exact(2)
        .map(|pair| bytemuck::pod_collect_to_vec::<u8, u32>(&pair[1]));
    selected.map(|words| (words[1], words[2])).collect()
}

fn compare(name: &str, params: &SamplingParams, seed: u64, logits: &[f32], steps: usize) {
    compare_masked(name, params, seed, logits, None, steps);
}

fn compare_masked(
    name: &str,
    params: &SamplingParams,
    seed: u64,
    logits: &[f32],
    mask: Option<&[u32]>,
    steps: usize,
) {
    let prompt: Vec<u32> = (0..logits.len() as u32).step_by(11).collect();
    let request = Request {
        params,
        seed,
        logits,
        prompt: &prompt,
        mask,
    };
    let found = generate(gpu(), &request, steps);
    let mut sampler = request.sampler();
    for (step, found) in found.into_iter().enumerate() {
        let mut scores = reference::sample::adjust(logits, params, sampler.counts());
        if let Some(mask) = mask {
            reference::sample::mask(&mut scores, mask);
        }
        let reference = reference::sample::sample(&scores, params, seed, step as u32);
        let expected = sampler.sample(logits, mask.map(TokenMask)).unwrap();
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
            let request = Request {
                params: &params,
                seed: 1,
                logits: row,
                prompt: &[],
                mask: None,
            };
            let (token, word) = generate(gpu(), &request, 1)[0];
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
    let request = Request {
        params: &banned,
        seed: 1,
        logits: &good[..8],
        prompt: &[],
        mask: None,
    };
    let (_, word) = generate(gpu(), &request, 1)[0];
    assert!(
        matches!(check_status(word, 0), Err(Error::Request { .. })),
        "{word}"
    );
}

/// The mask of the tokens for which `allow` holds; the bits past the vocabulary are set.
fn mask_of(vocabulary: usize, allow: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut words = vec![0; mask_words(vocabulary as u32)];
    for id in (0..words.len() * 32).filter(|id| *id >= vocabulary || allow(*id)) {
        words[id / 32] |= 1 << (id % 32);
    }
    words
}

/// Masks of a row: half of the tokens, one in forty, all but the largest logit, and single tokens at
/// the ends of words and of the vocabulary.
fn masks(logits: &[f32]) -> Vec<Vec<u32>> {
    let count = logits.len();
    let largest = reference::sample::argmax(logits).unwrap() as usize;
    let single = [0, 31 % count, 32 % count, count / 2, count - 1];
    let mut masks = vec![
        mask_of(count, |id| (id * 7 + id / 3) % 2 == 0),
        mask_of(count, |id| id % 40 == 3),
        mask_of(count, |id| id != largest),
    ];
    masks.extend(single.map(|only| mask_of(count, |id| id == only)));
    masks
}

#[test]
fn masked_draws_equal_the_cpu_samplers() {
    for (count, steps) in [(7, 6), (31, 6), (33, 6), (1000, 12), (1025, 12), (5003, 12)] {
        let logits: Vec<f32> = random(count as u64, count)
            .iter()
            .map(|v| v * 4.0)
            .collect();
        for mask in masks(&logits) {
            for (name, params) in sets() {
                // Token 3 is banned by a bias of some sets.
                if !params.logit_bias.is_empty() && mask == mask_of(count, |id| id == 3) {
                    continue;
                }
                compare_masked(name, &params, 3, &logits, Some(&mask), steps);
            }
        }
    }
    let logits: Vec<f32> = random(4, 151_937)
        .iter()
        .map(|v| v * v * v * 14.0)
        .collect();
    let mask = mask_of(logits.len(), |id| id % 1000 == 936);
    for (name, params) in sets() {
        compare_masked(name, &params, 3, &logits, Some(&mask), 2);
    }
}

/// One step of greedy decoding under a mask: the token that the state update stores. In one
/// dispatch after the mask as in two.
fn greedy_token(request: &Request<'_>) -> u32 {
    let vocabulary = request.logits.len() as u32;
    let after = |in_one: bool| {
        let mut buffers = request.buffers();
        let kernels = request.kernels(SHARED);
        let others = [
            bytes(&[7u32, 1, 0, 0, 100, 0, 0, 0]),
            bytes(&[0u32; 4]),
            bytes(&[u32::MAX; 4]),
            bytes(&[0u32; 4]),
            bytes(&[0u32; 8]),
            vec![0; 128 * 8],
        ];
        buffers.extend(others);
        let [stops, ids, tokens, partials] = [2, 3, 4, 5].map(|at| SHARED + at);
        let mut launches = vec![kernels.adjustment()];
        if !in_one {
            launches.push(argmax(SCORES, partials, vocabulary));
        }
        launches.push(advance(AdvanceBuffers {
            candidates: if in_one { SCORES } else { partials },
            slices: slices(vocabulary),
            stops,
            stop_count: 4,
            state: SHARED,
            ids,
            tokens,
            ring: 4,
            counts: None,
            history: None,
            vocabulary: in_one.then_some(vocabulary),
        }));
        let after = run_all(gpu(), &launches, 1, &buffers);
        bytemuck::pod_collect_to_vec::<u8, u32>(&after[tokens])[0]
    };
    let token = after(false);
    assert_eq!(token, after(true), "in one dispatch as in two");
    token
}

#[test]
fn masked_greedy_decoding_equals_the_cpu_samplers() {
    let penalties = SamplingParams {
        repetition_penalty: 1.4,
        logit_bias: [(0, 1.5), (5, -2.25)].into(),
        ..SamplingParams::default()
    };
    for count in [7, 31, 33, 1000, 1025, 5003, 151_937] {
        let logits: Vec<f32> = random(9, count).iter().map(|v| v * 4.0).collect();
        let prompt: Vec<u32> = (0..count as u32).step_by(11).collect();
        for mask in masks(&logits) {
            for params in [&SamplingParams::default(), &penalties] {
                let request = Request {
                    params,
                    seed: 0,
                    logits: &logits,
                    prompt: &prompt,
                    mask: Some(&mask),
                };
                let expected = request.sampler().select(&logits, Some(TokenMask(&mask)));
                assert_eq!(greedy_token(&request), expected.unwrap(), "{count} logits");
            }
        }
    }
}

#[test]
fn masks_hide_neither_broken_logits_nor_their_own_emptiness() {
    const NO_TOKEN: u32 = 0xffff_fffe;
    let logits = random(2, 1025);
    // The mask bans token 1.
    let mut broken = logits.clone();
    broken[1] = f32::NAN;
    let greedy = SamplingParams::default();
    let samples = sampling();
    let nothing = mask_of(1025, |_| false);
    let few = mask_of(1025, |id| id % 9 == 0);
    let of = |params, logits, mask| Request {
        params,
        seed: 1,
        logits,
        prompt: &[],
        mask: Some(mask),
    };
    assert_eq!(greedy_token(&of(&greedy, &logits, &nothing)), NO_TOKEN);
    let (token, status) = generate(gpu(), &of(&samples, &logits, &nothing), 1)[0];
    assert_eq!(token, NO_TOKEN);
    assert!(matches!(
        check_status(status, 0),
        Err(Error::Request { .. })
    ));
    assert_eq!(greedy_token(&of(&greedy, &broken, &few)), NO_TOKEN);
    let (token, status) = generate(gpu(), &of(&samples, &broken, &few), 1)[0];
    assert_eq!(token, NO_TOKEN);
    assert!(matches!(
        check_status(status, 0),
        Err(Error::NotFinite { .. })
    ));
}
