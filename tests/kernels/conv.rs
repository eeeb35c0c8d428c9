//! Causal convolutions against their CPU reference: steps of any size, and a state that advances by
//! exactly the rows of a step.

use jerboa::kernels::conv::ShortConvKernel;
use jerboa::kernels::matmul::View;
use jerboa::reference::conv as reference;
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
    channels: usize,
    taps: usize,
    bias: bool,
    act: u32,
    gated: bool,
    scales: [(usize, f32); 3],
}

impl Case {
    /// Runs steps in order on wider rows whose other columns are NaN, with stale values in the
    /// state.
    fn check(self, cuts: &[(Form, usize)]) {
        let Case { channels, taps, .. } = self;
        let total: usize = cuts.iter().map(|c| c.1).sum();
        let [x, gate_in, gate_out] = [1, 2, 3].map(|seed| random(seed, total * channels));
        let weight = random(4, channels * taps);
        let bias = random(5, channels);
        let stride = 3 * channels + 5;
        // Columns of a row: the input gate, the output gate, the inputs.
        let wide: Vec<f32> = (0..total)
            .flat_map(|row| {
                let own = |v: &[f32]| v[row * channels..(row + 1) * channels].to_vec();
                [own(&gate_in), own(&gate_out), own(&x), vec![f32::NAN; 5]].concat()
            })
            .collect();
        let view = |buffer, offset| View {
            buffer,
            offset: offset as u32,
            stride: stride as u32,
        };
        let conv = ShortConvKernel {
            label: "conv".into(),
            channels: channels as u32,
            kernel_size: taps as u32,
            weight: 1,
            bias: self.bias.then_some(2),
            act: self.act,
            scales: self.scales.map(|(first, scale)| (first as u32, scale)),
            gates: self.gated.then(|| [view(0, 0), view(0, channels)]),
            memory: 3,
            state: 4,
            batch: false,
        };
        let mut memory = bytes(&vec![1e9f32; (taps - 1) * channels]);
        let mut found = Vec::new();
        let mut pos = 0;

        for (form, rows) in cuts {
            let out = View {
                buffer: 5,
                offset: 3,
                stride: channels as u32 + 2,
            };
            let launches = match form {
                Few => vec![conv.decode(&view(0, 2 * channels), &out)],
                Many => conv.prefill(&view(0, 2 * channels), &out).to_vec(),
                Verify => conv.verify(&view(0, 2 * channels), &out).to_vec(),
            };
            let dropped = if *form == Verify { 2 } else { 0 };
            let run = (rows + dropped) as u32;
            let state = [pos as u32, run, 0, 0, 0, *rows as u32, 0, 0];
            // A plan has more rows than the step.
            let mut given = wide[pos * stride..(pos + rows) * stride].to_vec();
            given.extend(vec![f32::NAN; 4 * stride]);
            let empty = bytes(&vec![f32::NAN; 3 + (rows + 4) * (channels + 2)]);
            let buffers = [
                bytes(&given),
                bytes(&weight),
                bytes(&bias),
                memory,
                bytes(&state),
                empty,
            ];
            let left = run_all(gpu(), &launches, run, &buffers);
            memory = left[3].clone();
            let out = floats(&left[5]);
            found.extend(
                (0..*rows).flat_map(|r| out[3 + r * (channels + 2)..][..channels].to_vec()),
            );
            assert!(
                out[3 + rows * (channels + 2)..].iter().all(|v| v.is_nan()),
                "{self:?} {cuts:?}: rows that are none"
            );
            pos += rows;
        }
        let times =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).collect::<Vec<f32>>();
        let seen = if self.gated { times(&x, &gate_in) } else { x };
        let mut kept = vec![0.0; (taps - 1) * channels];
        let own_bias = self.bias.then_some(&bias[..]);
        let spec = reference::ShortConvReference {
            kernel_size: taps,
            weight: &weight,
            bias: own_bias,
            act: self.act,
            scales: self.scales,
        };
        let mut expected = spec.of(&seen, &mut kept);
        if self.gated {
            expected = times(&expected, &gate_out);
        }
        let error = nmse(&found, &expected);
        assert!(error < 1e-11, "{self:?} {cuts:?}: {error:e}");
        assert!(
            nmse(&floats(&memory), &kept) < 1e-12,
            "{self:?} {cuts:?}: the memory"
        );
    }
}

const UNSCALED: [(usize, f32); 3] = [(0, 1.0); 3];
const PLAIN: Case = Case {
    channels: 70,
    taps: 4,
    bias: false,
    act: 1,
    gated: false,
    scales: UNSCALED,
};

#[test]
fn rows_may_be_cut_anywhere() {
    for cuts in [
        &[(Many, 37), (Few, 1), (Few, 3), (Many, 2), (Few, 1)][..],
        &[(Few, 1), (Few, 1), (Many, 1), (Many, 16), (Many, 17)],
        &[(Many, 1), (Few, 2)],
        &[
            (Many, 3),
            (Verify, 1),
            (Verify, 4),
            (Few, 1),
            (Verify, 2),
            (Many, 2),
        ],
    ] {
        PLAIN.check(cuts);
        Case {
            taps: 3,
            gated: true,
            act: 0,
            channels: 129,
            ..PLAIN
        }
        .check(cuts);
    }
}

#[test]
fn filters_of_every_length_with_bias_and_gates() {
    for taps in 2..=8 {
        Case {
            taps,
            bias: taps % 2 == 0,
            gated: taps % 3 == 0,
            channels: 5,
            ..PLAIN
        }
        .check(&[(Many, 3), (Few, 2), (Verify, 3), (Many, 11)]);
    }
}

/// Scales apply to the inputs, not to the bias or the state.
#[test]
fn groups_of_channels_have_scales() {
    for scales in [
        [(0, 0.5), (33, 1.5), (66, -2.0)],
        [(0, 3.0), (0, 0.25), (69, 1.0)],
    ] {
        Case {
            bias: true,
            scales,
            ..PLAIN
        }
        .check(&[(Many, 19), (Few, 2), (Many, 3)]);
    }
}

/// After a stop, steps have no rows: the state is unchanged, also at position 0.
#[test]
fn a_step_without_rows_changes_nothing() {
    PLAIN.check(&[(Many, 5), (Few, 0), (Many, 0), (Few, 2)]);
    let conv = ShortConvKernel {
        label: "conv".into(),
        channels: 8,
        kernel_size: 4,
        weight: 1,
        bias: None,
        act: 0,
        scales: UNSCALED.map(|(first, scale)| (first as u32, scale)),
        gates: None,
        memory: 2,
        state: 3,
        batch: false,
    };
    let x = View {
        buffer: 0,
        offset: 0,
        stride: 8,
    };
    let out = View {
        buffer: 4,
        offset: 0,
        stride: 8,
    };

    let kept = bytes(&random(1, 24));
    let buffers = [
        bytes(&[f32::NAN; 8]),
        bytes(&[1f32; 32]),
        kept.clone(),
        bytes(&[0u32; 8]),
        bytes(&[0f32; 8]),
    ];
    assert_eq!(
        run_all(gpu(), &[conv.decode(&x, &out)], 1, &buffers)[2],
        kept
    );
}
