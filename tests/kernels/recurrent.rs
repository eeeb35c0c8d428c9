//! Linear recurrences against their CPU reference: few rows in sequence and many in chunks, with
//! shared state, in every shape; gated norms.

use jerboa::ir::Recurrent;
use jerboa::kernels::attention::Kv;
use jerboa::kernels::matmul::View;
use jerboa::kernels::recurrent::{GatedNormKernel, RecurrentKernel, RuleBuffers};
use jerboa::reference::recurrent as reference;
use jerboa_tests::{bytes, floats, gpu, nmse, random, run_all};

/// Plan of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Few,
    Many,
    /// Verification of two more rows, which are dropped. Their inputs are NaN.
    Verify,
}
use Form::{Few, Many, Verify};

#[derive(Debug, Clone, Copy)]
struct Case {
    delta: bool,
    heads: usize,
    key_heads: usize,
    /// Heads interleave with keys instead of sharing them in blocks.
    turns: bool,
    key_dim: usize,
    value_dim: usize,
    kv: Kv,
    raw: bool,
}

/// The gated delta rule with the sizes of a tiny checkpoint.
const DELTA: Case = Case {
    delta: true,
    heads: 4,
    key_heads: 2,
    turns: false,
    key_dim: 8,
    value_dim: 12,
    kv: Kv::F32,
    raw: false,
};
/// Factor of Mamba-2's dt.
const DT_SCALE: f32 = 0.75;
const SSM: Case = Case {
    delta: false,
    heads: 6,
    key_heads: 2,
    key_dim: 20,
    value_dim: 16,
    ..DELTA
};

/// Error of the outputs and of the state against the CPU reference.
struct Errors {
    out: f64,
    memory: f64,
}

impl Case {
    fn run(self, cuts: &[(Form, usize)]) -> Errors {
        let Case {
            heads,
            key_heads,
            key_dim: dk,
            value_dim: dv,
            ..
        } = self;
        let total: usize = cuts.iter().map(|c| c.1).sum();
        let k_cols = key_heads * dk;
        let v_cols = heads * dv;

        let [q, k] = [1, 2].map(|seed| random(seed, total * k_cols));
        let [v, z] = [3, 4].map(|seed| random(seed, total * v_cols));
        // Some decays are nearly 0 and some nearly 1, within one chunk.
        let [a, b] = [5, 6].map(|seed| {
            random(seed, total * heads)
                .iter()
                .map(|v| 4.0 * v - 1.0)
                .collect::<Vec<f32>>()
        });
        let log_rate: Vec<f32> = random(7, heads).iter().map(|v| 2.5 * v).collect();
        let bias = random(8, heads);
        let last = random(9, if self.delta { dv } else { heads });
        let rate: Vec<f32> = log_rate
            .iter()
            .map(|v| if self.raw { -v.exp() } else { *v })
            .collect();
        let gains = [&rate[..], &bias, &last].concat();
        // Columns of a row of x: values, NaN, queries, keys; of the other input: a, b, z.
        let row = |v: &[f32], cols: usize, row: usize| v[row * cols..(row + 1) * cols].to_vec();
        let x_cols = v_cols + 4 + 2 * k_cols;
        let rest_cols = (2 * heads).next_multiple_of(4) + v_cols;
        let view = |buffer, offset: usize, stride: usize| View {
            buffer,
            offset: offset as u32,
            stride: stride as u32,
        };
        let per_key = if self.turns { 1 } else { heads / key_heads };
        let limits = [0.01, if self.delta { f32::INFINITY } else { 2.0 }];
        let kernel = RecurrentKernel {
            label: "recurrent".into(),
            heads: heads as u32,
            key_heads: key_heads as u32,
            heads_per_key: per_key as u32,
            key_dim: dk as u32,
            value_dim: dv as u32,
            columns: [v_cols + 4, v_cols + 4 + k_cols, 0].map(|c| c as u32),
            x: view(0, 0, x_cols),
            a: view(1, 0, rest_cols),
            rule: if self.delta {
                let z = view(1, (2 * heads).next_multiple_of(4), rest_cols);
                RuleBuffers::Delta {
                    b: view(1, heads, rest_cols),
                    z,
                    eps: 1e-5,
                }
            } else {
                RuleBuffers::Ssm {
                    limits,
                    dt_scale: DT_SCALE,
                }
            },
            gains: 2,
            negative_rates: self.raw,
            kv: self.kv,
            memory: 3,
            state: 4,
            batch: false,
        };
        let widest = if self.delta {
            Recurrent::MAX_DELTA_KEY_DIM
        } else {
            Recurrent::MAX_SSM_KEY_DIM
        };
        assert!(Recurrent::supports(widest, dk, dv));
        let stale = bytes(&vec![0x7000_7000u32; self.kv.bytes(heads * dk * dv) / 4]);
        let mut memory = stale;
        let mut found = Vec::new();
        let mut pos = 0;

        for (form, rows) in cuts {
            let given = |cols: usize, of: &dyn Fn(usize) -> Vec<f32>| {
                let mut all: Vec<f32> = (pos..pos + rows).flat_map(of).collect();
                all.extend(vec![f32::NAN; 3 * cols]);
                bytes(&all)
            };
            let x = given(x_cols, &|r| {
                [
                    row(&v, v_cols, r),
                    vec![f32::NAN; 4],
                    row(&q, k_cols, r),
                    row(&k, k_cols, r),
                ]
                .concat()
            });
            let rest = given(rest_cols, &|r| {
                let mut all = [row(&a, heads, r), row(&b, heads, r)].concat();
                all.resize(rest_cols - v_cols, f32::NAN);
                [all, row(&z, v_cols, r)].concat()
            });
            let out = view(5, 0, v_cols + 4);
            let launches = match form {
                Few => vec![kernel.decode(&out)],
                Many => kernel.prefill(&6, &out),
                Verify => kernel.verify(&out).to_vec(),
            };
            let dropped = if *form == Verify { 2 } else { 0 };
            let run = (rows + dropped) as u32;
            let state = [pos as u32, run, 0, 0, 0, *rows as u32, 0, 0];
            let empty = |bytes_: u64| bytes(&vec![f32::NAN; bytes_ as usize / 4]);
            let scratch = empty(kernel.scratch_bytes(*rows as u32 + 3).max(16));
            let outputs = empty(((rows + 3) * (v_cols + 4) * 4) as u64);
            let buffers = [
                x,
                rest,
                bytes(&gains),
                memory,
                bytes(&state),
                outputs,
                scratch,
            ];
            let left = run_all(gpu(), &launches, run, &buffers);
            memory = left[3].clone();
            let out = floats(&left[5]);
            found.extend((0..*rows).flat_map(|r| out[r * (v_cols + 4)..][..v_cols].to_vec()));
            pos += rows;
        }
        let spec = reference::RecurrentReference {
            heads,
            key_heads,
            heads_per_key: per_key,
            key_dim: dk,
            value_dim: dv,
            log_rate: &log_rate,
            bias: &bias,
            skip_scale: (!self.delta).then_some(&last),
            limits: if self.delta {
                [0.0, f32::INFINITY]
            } else {
                limits
            },
            dt_scale: if self.delta { 1.0 } else { DT_SCALE },
        };
        let mut kept = vec![0.0; heads * dk * dv];
        let mut expected = spec.of(
            reference::RecurrentInputs {
                q: &q,
                k: &k,
                v: &v,
                a: &a,
                b: &b,
            },
            &mut kept,
        );
        if self.delta {
            expected = reference::gated_norm(&expected, &z, &last, dv, 1e-5, false);
        }
        let kept: Vec<f32> = kept.iter().map(|v| *v as f32).collect();
        let memory = match self.kv {
            Kv::F32 => floats(&memory),
            _ => bytemuck::pod_collect_to_vec::<u8, half::f16>(&memory)
                .iter()
                .map(|v| v.to_f32())
                .collect(),
        };
        Errors {
            out: nmse(&found, &expected),
            memory: nmse(&memory, &kept),
        }
    }

    fn check(self, cuts: &[(Form, usize)]) {
        let errors = self.run(cuts);
        assert!(errors.out < 1e-10, "{self:?} {cuts:?}: {:e}", errors.out);
        assert!(
            errors.memory < 1e-10,
            "{self:?} {cuts:?}: memory {:e}",
            errors.memory
        );
    }
}

/// A prompt of several chunks and a partial one, tokens, a few drafts, and a longer prompt.
const TURNS: [(Form, usize); 5] = [(Many, 75), (Few, 1), (Few, 4), (Many, 33), (Few, 1)];

#[test]
fn rows_may_be_cut_anywhere() {
    for case in [DELTA, SSM] {
        for cuts in [
            &TURNS[..],
            &[(Few, 1), (Many, 1), (Many, 32), (Many, 64)],
            &[(Few, 40)],
            &[
                (Many, 3),
                (Verify, 1),
                (Verify, 4),
                (Few, 1),
                (Verify, 6),
                (Many, 5),
            ],
        ] {
            case.check(cuts);
        }
    }
}

#[test]
fn heads_of_every_shape() {
    let turns = [(Many, 37), (Few, 2)];
    for (key_dim, value_dim) in [
        (128, 128),
        (64, 64),
        (96, 80),
        (4, 4),
        (100, 20),
        (16, 256),
        (128, 60),
    ] {
        for case in [DELTA, SSM] {
            Case {
                heads: 2,
                key_heads: 1,
                key_dim,
                value_dim,
                ..case
            }
            .check(&turns);
        }
    }
}

/// Mamba-2 with more keys than one launch of the scan holds.
#[test]
fn states_of_over_128_columns() {
    for (key_dim, value_dim, key_heads) in [(256, 64, 2), (256, 128, 1), (132, 12, 2), (200, 60, 1)]
    {
        for kv in [Kv::F32, Kv::Packed] {
            let case = Case {
                heads: 2,
                key_heads,
                key_dim,
                value_dim,
                kv,
                ..SSM
            };
            let errors = case.run(&TURNS);
            let limit = if kv == Kv::F32 { 1e-10 } else { 1e-5 };
            assert!(
                errors.out < limit && errors.memory < limit,
                "{case:?}: {:e}, {:e}",
                errors.out,
                errors.memory
            );
        }
    }
}

#[test]
fn heads_share_keys_in_blocks_or_interleaved() {
    let turns = [(Many, 5), (Few, 1)];
    for case in [DELTA, SSM] {
        for (heads, key_heads) in [(1, 1), (6, 3), (6, 1), (5, 5)] {
            for turns_ in [false, true] {
                Case {
                    heads,
                    key_heads,
                    turns: turns_,
                    raw: turns_,
                    ..case
                }
                .check(&turns);
            }
        }
    }
}

/// After a stop, steps have no rows: the state is unchanged.
#[test]
fn a_step_without_rows_changes_nothing() {
    for case in [DELTA, SSM] {
        case.check(&[(Many, 7), (Few, 0), (Many, 0), (Few, 1)]);
    }
}

/// The error of an f16 state after 2,000 rows.
#[test]
fn f16_state_stays_accurate_over_long_contexts() {
    for case in [DELTA, SSM] {
        let cuts: Vec<_> = (0..20)
            .map(|_| (Many, 90))
            .chain((0..20).map(|_| (Few, 10)))
            .collect();
        let errors = Case {
            kv: Kv::Packed,
            ..case
        }
        .run(&cuts);
        let worst = errors.out.max(errors.memory).sqrt();
        assert!(worst < 3e-3, "{case:?}: {worst:e}");
    }
}

#[test]
fn gated_norms() {
    let cases = [
        (4, 12, false, false),
        (1, 300, true, true),
        (3, 64, true, true),
        (2, 70, false, false),
    ];
    for (runs, cols, first, apiece) in
        [&cases[..], &[(3, 20, false, true), (2, 300, true, false)]].concat()
    {
        let rows = 3;
        let all = runs * cols;

        let x = random(1, rows * all);
        let z = random(2, rows * (all + 5));

        let gain = random(3, if apiece { all } else { cols });
        let gain_step = if apiece { cols as u32 } else { 0 };
        let norm = GatedNormKernel {
            gain: 2,
            gain_offset: 1,
            gain_step,
            gate_first: first,
            eps: 1e-5,
        };
        let view = |buffer, stride: usize| View {
            buffer,
            offset: 0,
            stride: stride as u32,
        };
        let gains = [&[f32::NAN][..], &gain].concat();
        let run = |apart: bool| {
            let out = view(3, all + 3);
            let x_view = view(0, all);
            let z_view = view(1, all + 5);

            let launch = norm.launch(
                "norm",
                &x_view,
                &z_view,
                apart.then_some(&out),
                runs as u32,
                cols as u32,
            );
            let empty = bytes(&vec![f32::NAN; rows * (all + 3)]);
            let left = run_all(
                gpu(),
                &[launch],
                rows as u32,
                &[bytes(&x), bytes(&z), bytes(&gains), empty],
            );
            let (found, stride) = if apart {
                (floats(&left[3]), all + 3)
            } else {
                (floats(&left[0]), all)
            };
            found
                .chunks(stride)
                .flat_map(|r| r[..all].to_vec())
                .collect::<Vec<f32>>()
        };
        let gates: Vec<f32> = (0..rows)
            .flat_map(|r| z[r * (all + 5)..][..all].to_vec())
            .collect();
        let expected = reference::gated_norm(&x, &gates, &gain, cols, 1e-5, first);
        for apart in [false, true] {
            let error = nmse(&run(apart), &expected);
            assert!(
                error < 1e-11,
                "{runs} runs of {cols}, gate first {first}, apart {apart}: {error:e}"
            );
        }
    }
}
