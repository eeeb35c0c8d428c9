// GEMM y = x Wᵀ for many rows of x on subgroup matrices. A workgroup computes a tile of BM rows by BN columns; DOWN by
// ACROSS subgroups take equal shares. It loads WIDTH elements of K at a time to workgroup memory, dequantized on the
// way, while the previous ones are computed. Factors are f16 if the device multiplies f16; sums are f32. F16_IO: x is
// stored as f16, in whole blocks of K.
// All sums go to `parts`, and splitk_reduce finishes them. So the code, which is slow to compile, is the same for every
// matmul of a layout. With too few tiles to fill a device, the workgroups of one tile (along z) split K. EXPERTS: rows
// of x are those of a tile's pairs, rows of W those of their expert (shaders/experts/bucket.wgsl).
struct Params {
    k: u32,
    k_blocks: u32,
    groups: u32,
    n: u32,
    row0: u32,
    x_offset: u32,
    x_stride: u32,
    // Row offset from the gate to the up projection; 0 without a gate.
    up_row: u32,
#ifdef EXPERTS
#import matmul/pair_params
#endif
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
#ifdef F16_IO
alias Four = vec4<f16>;
#else
alias Four = vec4<f32>;
#import matmul/bounds
#endif
@group(0) @binding(1) var<storage, read> x: array<Four>;
#import weights/any
#import weights/octet
@group(0) @binding(7) var<storage, read_write> parts: array<f32>;
#import matmul/rows

const THREADS: u32 = DOWN * ACROSS * LANES;
#import common/matrix_slices
// Rows of x, then of W.
var<workgroup> tile: array<Slice, (BM + BN) / SIDE>;

// Weight row of column c of a tile. With a gate, each 64 columns are 32 of the gate and the matching 32 of up.
fn weight_row(tile: u32, c: u32) -> u32 {
    if (params.up_row == 0u) {
        return output_row(min(tile * BN + c, params.n - 1u));
    }
    let n = min(tile * (BN / 2u) + c / 64u * 32u + c % 32u, params.n - 1u);
    return output_row(n) + c / 32u % 2u * params.up_row;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let subgroup = lid / LANES;
    // Start of the subgroup's share of the tile.
    let r0 = subgroup / ACROSS * (BM / DOWN);
    let c0 = subgroup % ACROSS * (BN / ACROSS);
#ifdef EMULATED
    lane = lid % LANES;
#endif
#for i in 0..BM/DOWN/SIDE
#for j in 0..BN/ACROSS/SIDE
    var sum$i_$j = Sum();
#endfor
#endfor
#ifdef EXPERTS
    let pairs = pairs_of(wid.y);
    if (pairs.first == pairs.end) {
        return;
    }
#endif
    let blocks = params.k_blocks * 32u / WIDTH;
    let share = (blocks + groups.z - 1u) / groups.z;
    let begin = wid.z * share;
    let last = min(begin + share, blocks);
    // Loads per thread: four elements of some rows of x, units of eight of W.
    const FOURS = WIDTH / 4u;
    const UNITS = WIDTH / 8u;
    let k4 = lid % FOURS * 4u;
    let unit = lid % UNITS;
#for p in 0..BM*WIDTH/4/DOWN/ACROSS/LANES
    let x_row$p = ($pu * THREADS + lid) / FOURS;
#ifdef EXPERTS
    let x_from$p = pair_row(min(pairs.first + x_row$p, pairs.end - 1u));
#else
    let x_from$p = min(wid.y * BM + x_row$p, state.rows - 1u);
#endif
    let x_at$p = (params.x_offset + x_from$p * params.x_stride) / 4u;
    let x_to$p = x_row$p % SIDE * PITCH + k4;
    var x_next$p: Four;
#endfor
#for p in 0..BN*WIDTH/8/DOWN/ACROSS/LANES
    let w_column$p = ($pu * THREADS + lid) / UNITS;
    let w_row$p = weight_row(wid.x, w_column$p);
    let w_to$p = w_column$p % SIDE * PITCH + unit * 8u;
    var w_next$p: Octet;
#endfor
    if (begin < last) {
#for p in 0..BM*WIDTH/4/DOWN/ACROSS/LANES
        x_next$p = x[x_at$p + min(begin * WIDTH + k4, params.k - 1u) / 4u];
#endfor
#for p in 0..BN*WIDTH/8/DOWN/ACROSS/LANES
        w_next$p = octet_of(w_row$p, begin * UNITS + unit);
#endfor
    }
    for (var block = begin; block < last; block++) {
        workgroupBarrier();
#for p in 0..BM*WIDTH/4/DOWN/ACROSS/LANES
#ifdef F16_IO
        let x$p = x_next$p;
#else
        let x$p = elements(inside(x_next$p, block * WIDTH + k4));
#endif
#ifdef COOP
        tile[x_row$p / SIDE][x_to$p / 4u] = x$p;
#else
#for e in 0..4
        tile[x_row$p / SIDE][x_to$p + $eu] = x$p[$e];
#endfor
#endif
#endfor
#for p in 0..BN*WIDTH/8/DOWN/ACROSS/LANES
#ifdef COOP
        tile[(BM + w_column$p) / SIDE][w_to$p / 4u] = w_next$p.a;
        tile[(BM + w_column$p) / SIDE][w_to$p / 4u + 1u] = w_next$p.b;
#else
#for e in 0..4
        tile[(BM + w_column$p) / SIDE][w_to$p + $eu] = w_next$p.a[$e];
        tile[(BM + w_column$p) / SIDE][w_to$p + 4u + $eu] = w_next$p.b[$e];
#endfor
#endif
#endfor
        workgroupBarrier();
        let next = min(block + 1u, last - 1u);
#for p in 0..BM*WIDTH/4/DOWN/ACROSS/LANES
        x_next$p = x[x_at$p + min(next * WIDTH + k4, params.k - 1u) / 4u];
#endfor
#for p in 0..BN*WIDTH/8/DOWN/ACROSS/LANES
        w_next$p = octet_of(w_row$p, next * UNITS + unit);
#endfor
#for u in 0..WIDTH/SIDE
#for i in 0..BM/DOWN/SIDE
        let a$u_$i = load_left$u(r0 / SIDE + $iu);
#endfor
#for j in 0..BN/ACROSS/SIDE
        let b$u_$j = load_turned$u((BM + c0) / SIDE + $ju);
#for i in 0..BM/DOWN/SIDE
        sum$i_$j = multiply(a$u_$i, b$u_$j, sum$i_$j);
#endfor
#endfor
#endfor
    }
    // Must match GridSpec::SplitK.
    let width = groups.x * BN;
    let at = ((wid.z * groups.y + wid.y) * BM + r0) * width + wid.x * BN + c0;
#for i in 0..BM/DOWN/SIDE
#for j in 0..BN/ACROSS/SIDE
    store_sum(sum$i_$j, at + $iu * SIDE * width + $ju * SIDE, width);
#endfor
#endfor
}
