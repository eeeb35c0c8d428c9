//! Attention of batched steps: results in 8 bits for the next matmul.

use super::matmul::affine_of;
use super::op::tested_caps;
use jerboa::format::layout::{AffineForm, Float};
use jerboa::gpu::Caps;
use jerboa::kernels::attention::{AttentionKernel, Kv, PAGE_POSITIONS, PageTable};
use jerboa::kernels::kv_splits::DecodeTiling;
use jerboa::kernels::matmul::{Matmul, OutputBuffers, QuantizeInputs, View, WeightPlanes};
use jerboa_tests::{bytes, gpu, random, run_all};

/// Heads, KV heads, columns per head.
type Heads = (u32, u32, u32);

/// Attention that writes 8 bits leaves the bytes that a launch of its own would, in one pass over
/// the keys, with more and with fewer threads, and in splits, for weights of 4 and 8 bits.
#[test]
fn results_in_8_bits_equal_quantized_results() {
    let heads = [
        (4, 2, 64),
        (2, 2, 96),
        (8, 2, 128),
        (2, 1, 256),
        (2, 1, 512),
    ];
    for caps in tested_caps(gpu()) {
        for heads in heads {
            let steps = [
                (128, u32::MAX, [5, 127, 64]),
                (128, 0, [5, 127, 64]),
                (640, 0, [300, 639, 0]),
            ];
            for (capacity, fill, positions) in steps {
                for (group, bits) in [(32, 4), (64, 8)] {
                    let keys = (capacity, fill);
                    let same = quantizes_alike(&caps, heads, keys, positions, (group, bits));
                    // Groups may not cross heads.
                    let can = heads.2.is_multiple_of(group);
                    assert_eq!(same, can.then_some(true), "{heads:?} {positions:?} {group}");
                }
            }
        }
    }
}

/// Attends with and without a launch that quantizes; returns whether both leave the same bytes, or
/// nothing if attention cannot quantize.
fn quantizes_alike(
    caps: &Caps,
    (heads, kv_heads, head_dim): Heads,
    (capacity, batch_fill): (u32, u32),
    positions: [u32; 3],
    (group, bits): (u32, u8),
) -> Option<bool> {
    let rows = positions.len();
    let cols = (heads * head_dim) as usize;
    let kv_cols = (kv_heads * head_dim) as usize;
    let stride = cols + 2 * kv_cols;
    let pages_per_slot = (capacity as usize).div_ceil(PAGE_POSITIONS);
    let view = |buffer, offset: usize, stride: usize| View {
        buffer,
        offset: offset as u32,
        stride: stride as u32,
    };
    let kernel = AttentionKernel {
        label: "test".to_string(),
        heads,
        kv_heads,
        head_dim,
        scale: 0.1,
        window: 0,
        softcap: 0.0,
        sinks: None,
        head_norm: None,
        rope: None,
        kv: Kv::F32,
        capacity,
        ring: None,
        k_cache: 1,
        v_cache: 2,
        state: 4,
        ends: None,
        decode: DecodeTiling {
            batch_fill,
            ..DecodeTiling::of(caps, heads, kv_heads, head_dim)
        },
        batch: Some(PageTable {
            pages: 5,
            pages_per_slot: pages_per_slot as u32,
            rows: rows as u32,
        }),
    };
    let [q, k, v] = [0, cols, cols + kv_cols].map(|offset| view(0, offset, stride));
    let mut launches = kernel.decode(&q, &k, &v, 6, &view(3, 0, cols));
    let weight = WeightPlanes {
        layout: affine_of(bits, 64, AffineForm::Bias, Float::F16),
        rows: 64,
        cols: cols as u32,
        q: 8,
        s: None,
    };
    let next = Matmul::plain("next", weight, view(3, 0, cols), view(8, 0, 64));
    let form = next
        .quantized_rows(caps, rows, QuantizeInputs::Always)
        .expect("weights of 4 or 8 bits")
        .with_group(group);
    let mut fused = launches.clone();
    launches.push(form.launch(&next, 4, 7));
    let buffers = OutputBuffers {
        quantized: 7,
        squares: 8,
    };
    form.quantize_output(caps, &mut fused, &next, rows, buffers)?;

    let mut state = vec![0, rows as u32, 0, 0, 0, 0, 0, 0];
    for (slot, position) in positions.into_iter().enumerate() {
        state.extend([position, slot as u32, position, 0, 0, 1, 0, 0]);
    }
    let pages = rows * pages_per_slot;
    // In another order than the positions.
    let table: Vec<u32> = (0..pages as u32).rev().collect();
    let cached = pages * PAGE_POSITIONS * kv_cols;
    let buffers = [
        bytes(&random(1, rows * stride)),
        bytes(&random(2, cached)),
        bytes(&random(3, cached)),
        bytes(&vec![f32::NAN; rows * cols]),
        bytes(&state),
        bytes(&table),
        vec![0xa5; kernel.scratch(rows as u32).max(16) as usize],
        vec![0xa5; form.bytes(rows) as usize],
        vec![0; 16],
    ];
    let run = |launches| run_all(gpu(), launches, rows as u32, &buffers)[7].clone();
    Some(run(&launches) == run(&fused))
}
