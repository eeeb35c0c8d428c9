//! Cross-attention of few rows against its CPU reference: KV splits, strides, heads of every width.

use super::op::tested_caps;
use jerboa::gpu::{Backend, Caps, Gpu};
use jerboa::kernels::attention::{AttentionKernel, Kv};
use jerboa::kernels::kv_splits::DecodeTiling;
use jerboa::kernels::matmul::View;
use jerboa::kernels::packed_attention::PackedAttention;
use jerboa::reference::attention as reference;
use jerboa_tests::{bytes, floats, gpu, nmse, random, run_all};

/// Error of heads `[heads, kv_heads, head_dim]` whose query rows see these ranges of memory rows.
fn error(gpu: &Gpu, caps: &Caps, shape: [usize; 3], seen: &[[u32; 2]]) -> f64 {
    let [heads, kv_heads, head_dim] = shape;
    let rows = seen.len();
    let most = 700;

    let q_cols = heads * head_dim;
    let kv_cols = kv_heads * head_dim;

    // Two layers side by side; the test reads the second.
    let stride = 2 * kv_cols;
    let scaled = |seed: u64, count: usize| -> Vec<f32> {
        random(seed, count).iter().map(|v| v * 2.0).collect()
    };
    let q = scaled(1, rows * q_cols);
    let k = scaled(2, most * stride);
    let v = scaled(3, most * stride);

    let second = |x: &[f32]| -> Vec<f32> {
        x.chunks_exact(stride)
            .flat_map(|row| row[kv_cols..].to_vec())
            .collect()
    };
    let kernel = AttentionKernel {
        label: "look".into(),
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        scale: (head_dim as f32).powf(-0.5),
        window: 0,
        softcap: 0.0,
        sinks: None,
        ends: None,
        head_norm: None,
        rope: None,
        kv: Kv::F32,
        capacity: most as u32,
        ring: None,
        k_cache: 1,
        v_cache: 2,
        state: 3,
        decode: DecodeTiling::of(caps, heads as u32, kv_heads as u32, head_dim as u32),
        batch: None,
    };
    let view = |buffer: usize, offset: usize, stride: usize| View {
        buffer,
        offset: offset as u32,
        stride: stride as u32,
    };
    let [keys, values] = [1, 2].map(|buffer| view(buffer, kv_cols, stride));
    let launches = kernel.cross_attend(
        &view(0, 0, q_cols),
        [&keys, &values],
        4,
        5,
        &view(6, 0, q_cols),
    );
    let poison = |count: usize| bytes(&vec![f32::NAN; count]);
    let state = [9u32, rows as u32, 0, 0, 0, 0, 0, 0];
    let buffers = [
        bytes(&q),
        bytes(&k),
        bytes(&v),
        bytes(&state),
        bytes(seen),
        poison(kernel.scratch(rows as u32) as usize / 4),
        poison(rows * q_cols),
    ];
    let found = floats(&run_all(gpu, &launches, rows as u32, &buffers)[6]);
    let spec = reference::AttentionReference {
        heads,
        kv_heads,
        head_dim,
        scale: kernel.scale,
        softcap: 0.0,
        sinks: None,
        relative: None,
    };
    let visible = |row: usize| seen[row][0] as usize..seen[row][1] as usize;
    nmse(&found, &spec.of(&q, &second(&k), &second(&v), &visible))
}

#[test]
fn rows_of_another_sequence() {
    for (heads, kv_heads, head_dim) in [(4, 4, 12), (3, 3, 64), (4, 2, 36), (2, 2, 80), (5, 5, 52)]
    {
        for seen in [&[[0, 1]][..], &[[0, 500]], &[[0, 33], [5, 700], [699, 700]]] {
            for caps in tested_caps(gpu()) {
                let error = error(gpu(), &caps, [heads, kv_heads, head_dim], seen);
                let limit = if caps.f16 { 3e-6 } else { 1e-10 };
                assert!(
                    error < limit,
                    "{heads} heads of {head_dim}, {seen:?}: {error:e}"
                );
            }
        }
    }
}

/// A prompt longer than the memory; rows after the memory belong to an earlier sequence.
#[test]
fn prompts_attend_to_a_shorter_memory() {
    let heads = 3;
    let head_dim = 20;
    let rows = 70;

    let cols = heads * head_dim;
    for end in [1usize, 3, 33, 69, 90] {
        let view = |buffer: usize| View {
            buffer,
            offset: 0,
            stride: cols as u32,
        };
        let kernel = PackedAttention {
            label: "look".into(),
            heads: heads as u32,
            kv_heads: heads as u32,
            head_dim: head_dim as u32,
            scale: (head_dim as f32).powf(-0.5),
            softcap: 0.0,
            max_before: u32::MAX,
            max_after: u32::MAX,
            relative: None,
            head_norm: None,
            rope: None,
            sequence_spans: 4,
            state: 3,
        };
        let stale = |mut of: Vec<f32>| {
            of[end * cols..].fill(f32::NAN);
            of
        };
        let q = random(1, rows * cols);
        let k = stale(random(2, 100 * cols));
        let v = stale(random(3, 100 * cols));

        let state = [0u32, rows as u32, 0, 0, 0, 0, 0, 0];
        let seen = vec![[0, end as u32]; rows];
        let out = bytes(&vec![f32::NAN; rows * cols]);
        let buffers = [
            bytes(&q),
            bytes(&k),
            bytes(&v),
            bytes(&state),
            bytes(&seen),
            out,
        ];
        let launch = kernel.attend(gpu().caps(), true, &view(0), &view(1), &view(2), &view(5));
        let found = floats(&run_all(gpu(), &[launch], rows as u32, &buffers)[5]);
        let scale = kernel.scale;
        let kv_heads = heads;

        let spec = reference::AttentionReference {
            heads,
            kv_heads,
            head_dim,
            scale,
            softcap: 0.0,
            sinks: None,
            relative: None,
        };
        let error = nmse(&found, &spec.of(&q, &k, &v, &|_| 0..end));
        assert!(error < 1e-10, "{end} rows: {error:e}");
    }
}
