//! Audio kernels against their CPU references.

use jerboa::audio::mel;
use jerboa::kernels::audio_conv::{ConvTransposeKernel, GroupNormKernel, Im2ColKernel, Mel, snake};
use jerboa::kernels::elementwise::{Elementwise, elementwise};
use jerboa::kernels::matmul::View;
use jerboa::reference::audio_conv as reference;
use jerboa_tests::{bytes, floats, gpu, random, relative_l2, run_all};

/// Rows with NaN between them, as a view of some columns.
fn rows(x: &[f32], cols: usize, offset: usize, stride: usize) -> Vec<u8> {
    let mut out = vec![f32::NAN; x.len() / cols * stride];
    for (row, values) in out.chunks_exact_mut(stride).zip(x.chunks_exact(cols)) {
        row[offset..offset + cols].copy_from_slice(values);
    }
    bytes(&out)
}

fn view(buffer: usize, offset: usize, stride: usize) -> View<usize> {
    View {
        buffer,
        offset: offset as u32,
        stride: stride as u32,
    }
}

fn state(rows: usize) -> Vec<u8> {
    bytes(&[0, rows as u32, 0, 0, 0, 0, 0, 0])
}

fn nan(count: usize) -> Vec<u8> {
    bytes(&vec![f32::NAN; count])
}

/// Rows of an output without the columns between them.
fn tight(out: &[u8], cols: usize, stride: usize, rows: usize) -> Vec<f32> {
    floats(out)
        .chunks_exact(stride)
        .take(rows)
        .flat_map(|r| r[..cols].to_vec())
        .collect()
}

#[test]
fn im2col_and_matmul_equal_a_convolution() {
    for (n, cols, taps, stride, dilation, padding, by_tap) in [
        (37, 5, 3, 1, 1, [1, 1], false),
        (37, 5, 3, 2, 1, [1, 1], false),
        (90, 3, 7, 3, 1, [0, 0], false),
        (12, 27, 11, 1, 5, [50, 0], false),
        (9, 64, 2, 1, 1, [0, 0], true),
        (4, 6, 5, 2, 1, [4, 0], false),
        (2, 6, 5, 1, 1, [0, 0], false),
        (300, 1, 127, 64, 1, [0, 0], false),
    ] {
        let x = random(1, n * cols);
        let w = random(2, 4 * cols * taps);

        let unfold = Im2ColKernel {
            cols: cols as u32,
            kernel_size: taps as u32,
            stride: stride as u32,
            dilation: dilation as u32,
            left: padding[0] as u32,
            right: padding[1] as u32,
            by_tap,
        };
        let windows = unfold.windows(n as u32) as usize;
        let wide = cols + 7;
        let width = cols * taps + 1;

        let launch = unfold.launch("unfold", &view(0, 3, wide), 1, &view(2, 0, width));
        // A plan's grid may be larger than the step's.
        let buffers = [
            rows(&x, cols, 3, wide),
            state(n),
            nan((windows + 2) * width),
        ];
        let done = run_all(gpu(), &[launch], windows as u32 + 1, &buffers);
        let found = tight(&done[2], cols * taps, width, windows);
        let weight = |o: usize, place: usize| {
            let (c, t) = if by_tap {
                (place % cols, place / cols)
            } else {
                (place / taps, place % taps)
            };
            w[(o * cols + c) * taps + t]
        };
        let matmul: Vec<f32> = found
            .chunks_exact(cols * taps)
            .flat_map(|r| {
                (0..4)
                    .map(|o| r.iter().enumerate().map(|(i, v)| v * weight(o, i)).sum())
                    .collect::<Vec<f32>>()
            })
            .collect();
        let expected = reference::Conv1dReference {
            cols,
            kernel_size: taps,
            stride,
            dilation,
            padding,
            weight: &w,
            bias: None,
        }
        .of(&x);
        assert_eq!(matmul.len(), expected.len(), "{n} {cols} {taps}");
        let error = if expected.is_empty() {
            0.0
        } else {
            relative_l2(&matmul, &expected)
        };
        assert!(error < 1e-5, "{n} {cols} {taps}: {error:e}");
        assert!(
            floats(&done[2])[windows * width..]
                .iter()
                .all(|v| v.is_nan()),
            "nothing is written after the windows"
        );
    }
}

#[test]
fn upsampling_in_groups() {
    for (n, inputs, groups, own, taps, rate) in [
        (5, 54, 27, 1, 14, 7),
        (33, 6, 6, 1, 4, 2),
        (1, 8, 2, 3, 9, 3),
        (9, 4, 1, 5, 3, 6),
        (70, 6, 3, 1, 12, 6),
    ] {
        let cols = groups * own;
        let x = random(3, n * inputs);
        let w = random(4, inputs * own * taps);
        let bias = random(5, cols);

        let upsample = ConvTransposeKernel {
            cols: cols as u32,
            inputs_per_group: (inputs / groups) as u32,
            outputs_per_group: own as u32,
            kernel_size: taps as u32,
            rate: rate as u32,
            weight: 2,
            bias: Some(3),
        };
        let wide = inputs + 5;
        let width = cols + 2;

        let launch = upsample.launch("upsample", &view(0, 2, wide), 1, &view(4, 0, width));
        let buffers = [
            rows(&x, inputs, 2, wide),
            state(n),
            bytes(&w),
            bytes(&bias),
            nan(n * rate * width),
        ];
        let done = run_all(gpu(), &[launch], (n * rate) as u32, &buffers);
        let found = tight(&done[4], cols, width, n * rate);
        let error = relative_l2(
            &found,
            &reference::conv_transpose1d(&x, inputs, groups, taps, rate, &w, &bias),
        );
        assert!(error < 1e-6, "{n} {inputs} {groups}: {error:e}");
    }
}

#[test]
fn snake_and_asinh() {
    for (n, cols) in [(1, 3), (7, 24), (33, 27), (5, 864)] {
        let x: Vec<f32> = random(6, n * cols).iter().map(|v| v * 60.0).collect();
        let alpha: Vec<f32> = random(7, cols / 2).iter().map(|v| v + 1.2).collect();
        let wide = cols + 3;
        let width = cols + 1;

        let launch = snake(
            "snake",
            cols as u32,
            alpha.len() as u32,
            &view(0, 1, wide),
            2,
            1,
            &view(3, 0, width),
        );
        let done = run_all(
            gpu(),
            &[launch],
            n as u32,
            &[
                rows(&x, cols, 1, wide),
                state(n),
                bytes(&alpha),
                nan(n * width),
            ],
        );
        let found = tight(&done[3], cols, width, n);
        let expected = reference::snake(&x, cols, &alpha);
        let error = found
            .iter()
            .zip(&expected)
            .map(|(f, e)| (f - e).abs())
            .fold(0.0, f32::max);
        assert!(error < 2e-5, "{n} {cols}: {error:e}");
    }
    let x: Vec<f32> = random(8, 3 * 10).iter().map(|v| v * v * v * 40.0).collect();
    let launch = elementwise(
        "asinh",
        Elementwise::Asinh,
        &[view(0, 0, 10), view(1, 0, 0)],
        &view(2, 0, 12),
        10,
        false,
    );
    let done = run_all(
        gpu(),
        &[launch],
        3,
        &[bytes(&x), bytes(&[-0.3f32]), nan(36)],
    );
    let expected: Vec<f32> = x
        .iter()
        .map(|v| (f64::from(*v) * (-0.3f64).exp()).asinh() as f32)
        .collect();
    assert!(relative_l2(&tight(&done[2], 10, 12, 3), &expected) < 1e-6);
}

#[test]
fn norms_over_time() {
    for (n, cols, groups) in [(311, 48, 1), (1, 6, 3), (40, 30, 5), (5, 288, 1)] {
        let x: Vec<f32> = random(9, n * cols).iter().map(|v| v + 20.0).collect();
        let gain = random(10, cols);
        let bias = random(11, cols);

        let norm = GroupNormKernel {
            cols: cols as u32,
            groups: groups as u32,
            eps: 1e-5,
            gain: 2,
            bias: 3,
        };
        let wide = cols + 4;
        let width = cols + 3;

        let launches = norm.launches("norm", &view(0, 2, wide), &1, &4, &view(5, 0, width));
        let buffers = [
            rows(&x, cols, 2, wide),
            state(n),
            bytes(&gain),
            bytes(&bias),
            nan(norm.bytes() as usize / 4),
            nan(n * width),
        ];
        let done = run_all(gpu(), &launches, n as u32, &buffers);
        let error = relative_l2(
            &tight(&done[5], cols, width, n),
            &reference::group_norm(&x, groups, 1e-5, &gain, &bias),
        );
        assert!(error < 1e-5, "{n} {cols} {groups}: {error:e}");
    }
}

#[test]
fn log_mel_features() {
    let tone = |i: usize| (i as f32 * 0.19).sin() * 0.6 + (i as f32 * 1.3).sin() * 0.02;
    let noise = random(12, 4000);
    for (samples, frames, mels, first) in [
        (4000, 20, 80, 0),
        (3200, 20, 128, 0),
        (160, 7, 80, 0),
        (3200, 20, 80, 6),
        (3200, 20, 80, 25),
    ] {
        let x: Vec<f32> = (0..samples).map(|i| tone(i) + noise[i] * 1e-1).collect();
        // From the frame `first` on, then zeros.
        let mut expected = reference::log_mel(&x, frames * 160, mels);
        expected.drain(..expected.len().min(first * mels));
        expected.resize(frames * mels, 0.0);
        let mel = Mel {
            mels: mels as u32,
            frames: frames as u32,
            table: 2,
            filters: 3,
            peaks: 4,
        };
        let width = mels + 4;
        let launches = mel.launches("mel", &view(0, 0, 160), 1, &view(5, 0, width));
        let given = samples / 160;
        let table: Vec<f32> = mel::window_table().concat();
        let buffers = [
            bytes(&x),
            bytes(&[first as u32, given as u32, 0, 0, 0, 0, 0, 0]),
            bytes(&table),
            bytes(&mel::filters(mels)),
            nan(frames),
            nan(frames * width),
        ];
        let done = run_all(gpu(), &launches, given as u32, &buffers);
        let found = tight(&done[5], mels, width, frames);
        let error = found
            .iter()
            .zip(&expected)
            .map(|(f, e)| (f - e).abs())
            .fold(0.0, f32::max);
        assert!(error < 1e-4, "{samples} {mels} {first}: {error:e}");
    }
}
