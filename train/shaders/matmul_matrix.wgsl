// FORWARD and INPUT of matmul.wgsl on subgroup matrices, as gemm_matrix.wgsl of the engine: a workgroup takes a tile of
// BM rows by BN columns, DOWN by ACROSS subgroups take equal shares of it, and the next WIDTH terms are read while these are
// used. Factors are f16 if the device multiplies f16; sums are f32, in one fixed order. SCALED: `scales` has a power of
// two for each row of a, so that gradients of any size keep the precision of f16.
#import train/matmul_params
#import weights/octet

const THREADS: u32 = DOWN * ACROSS * LANES;
#import common/matrix_slices
// Rows of a, then of the right factor: with FORWARD a slice has SIDE columns and all terms, otherwise SIDE terms and WIDTH
// columns.
var<workgroup> tile: array<Slice, (BM + BN) / SIDE>;
const FIRST_RIGHT: u32 = BM / SIDE;
const STEPS: u32 = WIDTH / SIDE;
// SIDE rows and WIDTH columns of the sums of each subgroup.
var<workgroup> parts: array<f32, DOWN * ACROSS * SIDE * WIDTH>;

// Four values of a from term r on; zeros beyond the last.
fn left(row: u32, r: u32) -> vec4<f32> {
    if (r >= params.depth) { return vec4<f32>(0.0); }
    return a[(params.a_offset + row * params.a_stride + r) / 4u];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let subgroup = lid / LANES;
    let own_lane = lid % LANES;
#ifdef EMULATED
    lane = own_lane;
#endif
    let first_row = wid.y * BM;
    let first_col = wid.x * BN;
    // Start of the subgroup's share of the tile.
    let r0 = subgroup / ACROSS * (BM / DOWN);
    let c0 = subgroup % ACROSS * (BN / ACROSS);
#for i in 0..BM/DOWN/SIDE
#for h in 0..BN/ACROSS/WIDTH
#for v in 0..WIDTH/SIDE
    var sum$i_$h_$v = Sum();
#endfor
#endfor
#endfor
    // Loads per thread: four terms of some rows of a, units of eight of W.
    const FOURS = WIDTH / 4u;
    const UNITS = WIDTH / 8u;
    let k4 = lid % FOURS * 4u;
#for p in 0..BM*WIDTH/4/DOWN/ACROSS/LANES
    let a_row$p = ($pu * THREADS + lid) / FOURS;
    let a_place$p = min(first_row + a_row$p, params.rows - 1u);
    let a_to$p = a_row$p % SIDE * PITCH + k4;
#ifdef SCALED
    let a_scale$p = scales[a_place$p];
#endif
    var a_next$p = left(a_place$p, k4);
#endfor
#for p in 0..BN*WIDTH/8/DOWN/ACROSS/LANES
#ifdef FORWARD
    let w_col$p = ($pu * THREADS + lid) / UNITS;
    let w_row$p = params.row0 + min(first_col + w_col$p, params.cols - 1u);
    let w_unit$p = lid % UNITS;
    let w_slice$p = FIRST_RIGHT + w_col$p / SIDE;
    let w_to$p = w_col$p % SIDE * PITCH + w_unit$p * 8u;
    var w_next$p = octet_of(w_row$p, w_unit$p);
#else
    let w_term$p = ($pu * THREADS + lid) / (BN / 8u);
    let w_col$p = lid % (BN / 8u) * 8u;
    let w_unit$p = min(first_col + w_col$p, params.cols - 1u) / 8u;
    let w_slice$p = FIRST_RIGHT + w_col$p / WIDTH * STEPS + w_term$p / SIDE;
    let w_to$p = w_term$p % SIDE * PITCH + w_col$p % WIDTH;
    var w_next$p = octet_of(params.row0 + min(w_term$p, params.depth - 1u), w_unit$p);
#endif
#endfor
    for (var k = 0u; k < params.depth; k += WIDTH) {
        workgroupBarrier();
#for p in 0..BM*WIDTH/4/DOWN/ACROSS/LANES
#ifdef SCALED
        let a$p = elements(a_next$p * a_scale$p);
#else
        let a$p = elements(a_next$p);
#endif
#ifdef COOP
        tile[a_row$p / SIDE][a_to$p / 4u] = a$p;
#else
#for e in 0..4
        tile[a_row$p / SIDE][a_to$p + $eu] = a$p[$e];
#endfor
#endif
#endfor
#for p in 0..BN*WIDTH/8/DOWN/ACROSS/LANES
#ifdef COOP
        tile[w_slice$p][w_to$p / 4u] = w_next$p.a;
        tile[w_slice$p][w_to$p / 4u + 1u] = w_next$p.b;
#else
#for e in 0..4
        tile[w_slice$p][w_to$p + $eu] = w_next$p.a[$e];
        tile[w_slice$p][w_to$p + 4u + $eu] = w_next$p.b[$e];
#endfor
#endif
#endfor
        workgroupBarrier();
        let next = k + WIDTH;
        if (next < params.depth) {
#for p in 0..BM*WIDTH/4/DOWN/ACROSS/LANES
            a_next$p = left(a_place$p, next + k4);
#endfor
#for p in 0..BN*WIDTH/8/DOWN/ACROSS/LANES
#ifdef FORWARD
            w_next$p = octet_of(w_row$p, next / 8u + w_unit$p);
#else
            w_next$p = octet_of(params.row0 + min(next + w_term$p, params.depth - 1u), w_unit$p);
#endif
#endfor
        }
#for u in 0..WIDTH/SIDE
#for i in 0..BM/DOWN/SIDE
        let a$u_$i = load_left$u(r0 / SIDE + $iu);
#endfor
#for h in 0..BN/ACROSS/WIDTH
#for v in 0..WIDTH/SIDE
#ifdef FORWARD
        let b$u_$h_$v = load_turned$u(FIRST_RIGHT + c0 / SIDE + $hu * STEPS + $vu);
#else
        let b$u_$h_$v = load_right$v(FIRST_RIGHT + (c0 / WIDTH + $hu) * STEPS + $uu);
#endif
#for i in 0..BM/DOWN/SIDE
        sum$i_$h_$v = multiply(a$u_$i, b$u_$h_$v, sum$i_$h_$v);
#endfor
#endfor
#endfor
#endfor
    }
    let own = subgroup * SIDE * WIDTH;
#for i in 0..BM/DOWN/SIDE
#for h in 0..BN/ACROSS/WIDTH
    workgroupBarrier();
#for v in 0..WIDTH/SIDE
    store_sum(sum$i_$h_$v, own + $vu * SIDE, WIDTH);
#endfor
    workgroupBarrier();
    for (var e = own_lane; e < SIDE * WIDTH; e += LANES) {
        let row = first_row + r0 + $iu * SIDE + e / WIDTH;
        let col = first_col + c0 + $hu * WIDTH + e % WIDTH;
#ifdef SCALED
        store(row, col, parts[own + e] / scales[min(row, params.rows - 1u)]);
#else
        store(row, col, parts[own + e]);
#endif
    }
#endfor
#endfor
}
