// GEMM y = x Wᵀ for many rows of x (prefill). A workgroup computes a tile of BM rows by BN columns, each thread 8 by 8
// of it in registers, from tiles of 16 elements of K in workgroup memory, dequantized once per tile. The next tiles are
// loaded while one is computed. Sums are f32. UNROLL of the 16 elements are unrolled: all is fastest, fewer compile
// sooner. With too few tiles to fill a device, the workgroups of one tile (along z) split K, and splitk_reduce adds
// their partial sums.
#import matmul/gemm_params
#ifndef EXPERTS
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;
#endif

const TK: u32 = 16u;
const BM4: u32 = BM / 4u;
const BN4: u32 = BN / 4u;
const THREADS: u32 = BM * BN / 64u;

// [k][row / 4] and [k][column / 4]; constant indices are free. Rows are permuted per four elements of K to avoid bank
// conflicts.
var<workgroup> xt: array<array<vec4<f32>, BM4>, TK>;
var<workgroup> wt: array<array<vec4<f32>, BN4>, TK>;

// Weight row of column c of this tile. With GATED, each 64 columns are 32 of the gate and the matching 32 of up.
fn weight_row(tile: u32, c: u32) -> u32 {
#ifdef GATED
    let n = min(tile * (BN / 2u) + c / 64u * 32u + c % 32u, params.n - 1u);
    return output_row(n) + c / 32u % 2u * params.up_row;
#else
    return output_row(min(tile * BN + c, params.n - 1u));
#endif
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    // 32 threads compute 32 rows by 64 columns: a thread two groups of four rows, 16 apart, by two groups of four
    // columns, 32 apart. Adjacent threads share rows or columns in pairs, which halves their reads.
    let block = lid / 32u;
    let r0 = block / (BN / 64u) * 8u + ((lid & 1u) | ((lid >> 2u) & 2u));
    let c0 = block % (BN / 64u) * 16u + (((lid >> 1u) & 3u) | ((lid >> 2u) & 4u));
#for i in 0..8
#for j in 0..2
    var acc$i_$j: vec4<f32>;
#endfor
#endfor
#ifdef EXPERTS
    let pairs = pairs_of(wid.y);
    if (pairs.first == pairs.end) {
        return;
    }
#endif
    let tiles = params.k_blocks * 2u;
    let share = (tiles + groups.z - 1u) / groups.z;
    let begin = wid.z * share;
    let last = min(begin + share, tiles);
    // Loads per thread: units of eight elements of one row of W, four elements of some rows of x.
    let k4 = lid % 4u;
#for p in 0..256/BN
    let xr$p = ($pu * THREADS + lid) / 4u;
#ifdef EXPERTS
    let x_row$p = pair_row(min(pairs.first + xr$p, pairs.end - 1u));
#else
    let x_row$p = min(wid.y * BM + xr$p, state.rows - 1u);
#endif
    let x_at$p = (params.x_offset + x_row$p * params.x_stride) / 4u;
    let x_to$p = (xr$p / 4u) ^ (k4 * 2u);
    var x_next$p: vec4<f32>;
#endfor
#for p in 0..128/BM
    let wn$p = lid % BN + $pu * THREADS % BN;
    let unit$p = lid / BN + $pu * THREADS / BN;
    let w_row$p = weight_row(wid.x, wn$p);
    var w_next$p: X8;
#endfor
    if (begin < last) {
#for p in 0..128/BM
        w_next$p = w_load8(w_row$p, begin * 2u + unit$p);
#endfor
#for p in 0..256/BN
        x_next$p = x[x_at$p + min(begin * TK + k4 * 4u, params.k - 1u) / 4u];
#endfor
    }
    for (var tile = begin; tile < last; tile++) {
        workgroupBarrier();
#for p in 0..128/BM
#for e in 0..4
        wt[unit$p * 8u + $eu][wn$p / 4u][wn$p % 4u] = w_next$p.a[$e];
        wt[unit$p * 8u + 4u + $eu][wn$p / 4u][wn$p % 4u] = w_next$p.b[$e];
#endfor
#endfor
#for p in 0..256/BN
        let x$p = inside(x_next$p, tile * TK + k4 * 4u);
#for e in 0..4
        xt[k4 * 4u + $eu][x_to$p][xr$p % 4u] = x$p[$e];
#endfor
#endfor
        workgroupBarrier();
        let next = min(tile + 1u, last - 1u);
#for p in 0..128/BM
        w_next$p = w_load8(w_row$p, next * 2u + unit$p);
#endfor
#for p in 0..256/BN
        x_next$p = x[x_at$p + min(next * TK + k4 * 4u, params.k - 1u) / 4u];
#endfor
#if UNROLL < 16
        for (var k = 0u; k < TK; k += UNROLL) {
#else
        {
            const k = 0u;
#endif
#for u in 0..UNROLL
            let xa$u = xt[k + $uu][r0 ^ ((k + $uu) / 4u * 2u)];
            let xb$u = xt[k + $uu][(r0 + 4u) ^ ((k + $uu) / 4u * 2u)];
            let wa$u = wt[k + $uu][c0];
            let wb$u = wt[k + $uu][c0 + 8u];
#for i in 0..4
            acc$i_0 = fma(vec4<f32>(xa$u[$i]), wa$u, acc$i_0);
            acc$i_1 = fma(vec4<f32>(xa$u[$i]), wb$u, acc$i_1);
#endfor
#for i in 4..8
            acc$i_0 = fma(vec4<f32>(xb$u[$i - 4]), wa$u, acc$i_0);
            acc$i_1 = fma(vec4<f32>(xb$u[$i - 4]), wb$u, acc$i_1);
#endfor
#endfor
        }
    }
#ifdef EXPERTS
    let row = pairs.first + r0 * 4u;
    let end = pairs.end;
#else
    let row = wid.y * BM + r0 * 4u;
    if (groups.z > 1u) {
#for i in 0..8
        let at$i = ((wid.z * groups.y * BM + row + $iu / 4u * 16u + $iu % 4u) * groups.x + wid.x) * BN4 + c0;
        parts[at$i] = acc$i_0;
        parts[at$i + 8u] = acc$i_1;
#endfor
        return;
    }
    let end = state.rows;
#endif
#for i in 0..8
    let place$i = row + $iu / 4u * 16u + $iu % 4u;
    if (place$i < end) {
#ifdef EXPERTS
        let row$i = buckets[params.order_at + place$i];
#else
        let row$i = place$i;
#endif
#ifdef GATED
        finish4(row$i, wid.x * (BN / 2u) + c0 / 16u * 32u + c0 % 16u * 4u, acc$i_0, acc$i_1);
#else
        finish4(row$i, wid.x * BN + c0 * 4u, acc$i_0, vec4<f32>(0.0));
        finish4(row$i, wid.x * BN + c0 * 4u + 32u, acc$i_1, vec4<f32>(0.0));
#endif
    }
#endfor
}
