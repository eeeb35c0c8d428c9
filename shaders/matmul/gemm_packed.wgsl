// GEMM y = x Wᵀ for many rows of x on packed dot products of four bytes, for devices without subgroup matrices. x is
// quantized to 8 bits (shaders/matmul/quantize_rows.wgsl), weights have up to 8 bits. A workgroup computes a tile of BM
// rows by 64 columns, each thread 4 by 8 of it in registers, from 64 of K in workgroup memory. Integers are summed over
// the X_GROUP elements (32 or 64) that share a scale of x and one of W, then scaled and added in f32. The next tiles are
// loaded while one is computed. With too few tiles to fill a device, the workgroups of one tile (along z) split K, and
// splitk_reduce adds their partial sums. EXPERTS: rows of x are those of a tile's pairs, rows of W those of their expert;
// K is not split.
#import matmul/packed_input
#import weights/block
#import matmul/epilogue
#ifndef EXPERTS
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;
#endif

const BN: u32 = 64u;
const THREADS: u32 = BM * 2u;

// [word of four elements][row / 4] and [word][column / 4], except that rows are exchanged eight at a time by word / 4 and
// columns sixteen at a time by word / 8: threads that store different words then use different banks of memory.
var<workgroup> xt: array<array<vec4<u32>, BM / 4>, 16>;
var<workgroup> wt: array<array<vec4<u32>, BN / 4>, 16>;
// By group: scales and sums of x; scales and biases of W.
const X_GROUPS: u32 = 64u / X_GROUP;
var<workgroup> x_scale: array<array<vec4<f32>, BM / 4>, X_GROUPS>;
var<workgroup> x_sum: array<array<vec4<f32>, BM / 4>, X_GROUPS>;
var<workgroup> w_scale: array<array<vec4<f32>, BN / 4>, X_GROUPS>;
var<workgroup> w_bias: array<array<vec4<f32>, BN / 4>, X_GROUPS>;

// Conversions are slow: sums begin with the bits of 1.5 * 2^23, and are exact below 2^22.
const START = vec4<i32>(1262485504i);
fn floats(sums: vec4<i32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(sums) - 12582912.0;
}

// Adds the products of four bytes of x and of four columns of W.
fn add(sums: vec4<i32>, w: vec4<u32>, x: u32) -> vec4<i32> {
    return sums + vec4<i32>(
        dot4I8Packed(w.x, x),
        dot4I8Packed(w.y, x),
        dot4I8Packed(w.z, x),
        dot4I8Packed(w.w, x),
    );
}

// Whether 32 columns of a tile are of the gate, then the matching 32 of up.
fn is_gated() -> bool {
#ifdef OPTIONAL
    return has(GATE);
#else
#ifdef GATED
    return true;
#else
    return false;
#endif
#endif
}

// Weight row of column c of this tile.
fn weight_row(tile: u32, c: u32) -> u32 {
    if (is_gated()) {
        return output_row(min(tile * 32u + c % 32u, params.n - 1u)) + c / 32u * params.up_row;
    }
    return output_row(min(tile * BN + c, params.n - 1u));
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    // 32 threads compute 16 rows by 64 columns: a thread four rows by two groups of four columns, 32 apart. Adjacent
    // threads share rows or columns in pairs, which halves their reads.
    let r0 = lid / 32u * 4u + ((lid & 1u) | ((lid >> 2u) & 2u));
    let c0 = ((lid >> 1u) & 3u) | ((lid >> 2u) & 4u);
#for i in 0..4
#for j in 0..2
    var acc$i_$j: vec4<f32>;
#endfor
#endfor
#ifdef EXPERTS
    let pairs = pairs_of(wid.y);
    if (pairs.first == pairs.end) {
        return;
    }
    let first = pairs.first;
    let end = pairs.end;
    // Experts with few rows leave tiles empty. Elsewhere a branch costs more than it saves.
    let has_rows = first + lid / 32u * 16u < end;
#else
    let first = wid.y * BM;
    let end = state.rows;
#endif
    let share = (params.units + groups.z - 1u) / groups.z;
    let begin = wid.z * share;
    let last = min(begin + share, params.units);
    // Loads per thread: four words of two rows of x, whole blocks of W, and the scales of a row of x. Neighbours load
    // a row of W.
#for p in 0..2
    let xr$p = ($pu * THREADS + lid) / 4u;
    let xw$p = lid % 4u;
    let x_to$p = xr$p ^ (xw$p * 8u);
    let x_at$p = x_row(min(first + xr$p, end - 1u)) * params.units * 5u + xw$p;
    var x_next$p: vec4<u32>;
#endfor
    let scales_at = x_row(min(first + lid % BM, end - 1u)) * params.units * 5u + 4u;
    var scales_next: vec4<u32>;
#for p in 0..64/BM
    let wn$p = ($pu * THREADS + lid) / 2u;
    let wb$p = lid % 2u;
    let w_to$p = wn$p ^ (wb$p * 16u);
    let w_row$p = weight_row(wid.x, wn$p);
    var w_next$p: Codes;
    var bits_next$p: PairBits;
#endfor
    if (begin < last) {
#for p in 0..64/BM
        {
            let block = min(begin * 2u + wb$p, params.k_blocks - 1u);
            w_next$p = w_codes(w_row$p, block);
            bits_next$p = w_bits(w_row$p, block * 32u);
        }
#endfor
#for p in 0..2
        x_next$p = x[x_at$p + begin * 5u];
#endfor
        scales_next = x[scales_at + begin * 5u];
    }
    for (var unit = begin; unit < last; unit++) {
        workgroupBarrier();
#for p in 0..64/BM
        {
            if (wb$p < X_GROUPS) {
                let line = w_line(bits_next$p, unit * 2u + wb$p);
                w_scale[wb$p][wn$p / 4u][wn$p % 4u] = line.x;
                w_bias[wb$p][wn$p / 4u][wn$p % 4u] = line.y;
            }
#for i in 0..4
            let bytes$i = w_bytes(w_next$p.o$i);
            wt[wb$p * 8u + $iu * 2u][w_to$p / 4u][w_to$p % 4u] = bytes$i.x;
            wt[wb$p * 8u + $iu * 2u + 1u][w_to$p / 4u][w_to$p % 4u] = bytes$i.y;
#endfor
        }
#endfor
#for p in 0..2
#for e in 0..4
        xt[xw$p * 4u + $eu][x_to$p / 4u][x_to$p % 4u] = x_next$p[$e];
#endfor
#endfor
        if (lid < BM) {
            let scales = bitcast<vec4<f32>>(scales_next);
#for b in 0..64/X_GROUP
            x_scale[$b][lid / 4u][lid % 4u] = scales[$b * 2];
            x_sum[$b][lid / 4u][lid % 4u] = scales[$b * 2 + 1];
#endfor
        }
        workgroupBarrier();
        let next = min(unit + 1u, last - 1u);
#for p in 0..64/BM
        {
            let block = min(next * 2u + wb$p, params.k_blocks - 1u);
            w_next$p = w_codes(w_row$p, block);
            bits_next$p = w_bits(w_row$p, block * 32u);
        }
#endfor
#for p in 0..2
        x_next$p = x[x_at$p + next * 5u];
#endfor
        scales_next = x[scales_at + next * 5u];
#for b in 0..64/X_GROUP
#ifdef EXPERTS
        if (has_rows) {
#else
        {
#endif
#for i in 0..4
#for j in 0..2
            var dots$i_$j = START;
#endfor
#endfor
#for q in 0..X_GROUP/16
            {
                const four = $bu * (X_GROUP / 16u) + $qu;
                let r = r0 ^ (four * 2u);
                let c = c0 ^ (four / 2u * 4u);
#for w in 0..4
                {
                    let xv = xt[four * 4u + $wu][r];
#for j in 0..2
                    let wv$j = wt[four * 4u + $wu][c + $ju * 8u];
#for i in 0..4
                    dots$i_$j = add(dots$i_$j, wv$j, xv[$i]);
#endfor
#endfor
                }
#endfor
            }
#endfor
            let xs = x_scale[$b][r0];
            let xm = x_sum[$b][r0];
#for j in 0..2
            let ws$j = w_scale[$b][c0 + $ju * 8u];
            let wm$j = w_bias[$b][c0 + $ju * 8u];
#for i in 0..4
            acc$i_$j = fma(floats(dots$i_$j), ws$j * xs[$i], fma(wm$j, vec4<f32>(xm[$i]), acc$i_$j));
#endfor
#endfor
        }
#endfor
    }
    let row = first + r0 * 4u;
#ifndef EXPERTS
    if (groups.z > 1u || params.reduced == 1u) {
#for i in 0..4
        let at$i = ((wid.z * groups.y * BM + row + $iu) * groups.x + wid.x) * (BN / 4u) + c0;
        parts[at$i] = acc$i_0;
        parts[at$i + 8u] = acc$i_1;
#endfor
        return;
    }
#endif
    // A loop: the epilogue of all sums would be most of the kernel's code.
    var sums = array<vec4<f32>, 8>(acc0_0, acc0_1, acc1_0, acc1_1, acc2_0, acc2_1, acc3_0, acc3_1);
    for (var i = 0u; i < 8u; i++) {
        let at = row + i / 2u;
        if (at < end && !(is_gated() && i % 2u == 1u)) {
            var column = wid.x * BN + c0 * 4u + i % 2u * 32u;
            if (is_gated()) { column = wid.x * 32u + c0 * 4u; }
            finish4(out_row(at), column, sums[i], sums[i | 1u]);
        }
    }
}

// Row of x of a row of a tile, and row of out.
fn x_row(place: u32) -> u32 {
#ifdef EXPERTS
    return pair_row(place);
#else
    return place;
#endif
}

fn out_row(place: u32) -> u32 {
#ifdef EXPERTS
    return buckets[params.order_at + place];
#else
    return place;
#endif
}
