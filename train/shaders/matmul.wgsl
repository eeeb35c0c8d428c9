// One of the three matmuls of a linear layer with weights W [n, k]:
//   FORWARD: out[m, n] = alpha · x[m, k] Wᵀ (+ bias), W in any layout;
//   INPUT: out[m, k] = alpha · dy[m, n] W, W in any layout;
//   WEIGHT: out[n, k] = alpha · dy[m, n]ᵀ x[m, k].
// `rows` and `cols` are those of out, `depth` is the length of the sums. ADD adds to out. All sums have one fixed order.
//
// A workgroup takes a tile of EDGE × EDGE, DEEP terms of its sums at a time; a thread takes SIDE × SIDE of it in registers, in
// squares of 4 × 4 that are 64 apart. SIDE is 1 for outputs with few rows or columns, whose sums are many workgroups then.
#import train/matmul_params

const EDGE = 16u * SIDE;
#if SIDE == 1
const DEEP = 64u;
#else
const DEEP = 16u;
#endif
// Rows of a tile are one vector further apart than they are long: few bank conflicts in either order of access.
const SPAN = EDGE / 4u + 1u;
const FOURS = DEEP / 4u;
const ALONG = EDGE / 4u;

var<workgroup> a_tile: array<vec4<f32>, DEEP * SPAN>;
var<workgroup> b_tile: array<vec4<f32>, DEEP * SPAN>;

// Four values of `a` from `at` on; zeros from `limit` on, where `first` is the place of the first.
fn a_load4(at: u32, first: u32, limit: u32) -> vec4<f32> {
    if (first + 4u <= limit) { return vec4<f32>(a[at], a[at + 1u], a[at + 2u], a[at + 3u]); }
    var four = vec4<f32>(0.0);
    for (var e = 0u; first + e < limit; e++) { four[e] = a[at + e]; }
    return four;
}

#ifdef WEIGHT
fn b_load4(at: u32, first: u32, limit: u32) -> vec4<f32> {
    if (first + 4u <= limit) { return vec4<f32>(b[at], b[at + 1u], b[at + 2u], b[at + 3u]); }
    var four = vec4<f32>(0.0);
    for (var e = 0u; first + e < limit; e++) { four[e] = b[at + e]; }
    return four;
}
#endif

// Vector `place` of DEEP · EDGE / 4 of the left tile at term r0: four terms of a row, or with WEIGHT four rows of a term.
fn left(place: u32, first_row: u32, r0: u32) -> vec4<f32> {
#ifdef WEIGHT
    let r = r0 + place / ALONG;
    let row = first_row + place % ALONG * 4u;
    if (r >= params.depth) { return vec4<f32>(0.0); }
    return a_load4(params.a_offset + r * params.a_stride + row, row, params.rows);
#else
    let r = r0 + place % FOURS * 4u;
    let row = min(first_row + place / FOURS, params.rows - 1u);
    return a_load4(params.a_offset + row * params.a_stride + r, r, params.depth);
#endif
}

fn store_left(place: u32, four: vec4<f32>) {
#ifdef WEIGHT
    a_tile[place / ALONG * SPAN + place % ALONG] = four;
#else
    let row = place / FOURS;
    let r = place % FOURS * 4u;
    for (var e = 0u; e < 4u; e++) { a_tile[(r + e) * SPAN + row / 4u][row % 4u] = four[e]; }
#endif
}

// The same of the right tile: four terms of a column with FORWARD, four columns of a term otherwise.
fn right(place: u32, first_col: u32, r0: u32) -> vec4<f32> {
#ifdef FORWARD
    let r = r0 + place % FOURS * 4u;
    let col = min(first_col + place / FOURS, params.cols - 1u);
    if (r >= params.depth) { return vec4<f32>(0.0); }
    var four = w_load4(params.row0 + col, r);
    if (r + 4u > params.depth) {
        for (var e = params.depth - r; e < 4u; e++) { four[e] = 0.0; }
    }
    return four;
#else
    let r = r0 + place / ALONG;
    let col = first_col + place % ALONG * 4u;
    if (r >= params.depth || col >= params.cols) { return vec4<f32>(0.0); }
#ifdef INPUT
    return w_load4(params.row0 + r, col);
#else
    return b_load4(params.b_offset + r * params.b_stride + col, col, params.cols);
#endif
#endif
}

fn store_right(place: u32, four: vec4<f32>) {
#ifdef FORWARD
    let col = place / FOURS;
    let r = place % FOURS * 4u;
    for (var e = 0u; e < 4u; e++) { b_tile[(r + e) * SPAN + col / 4u][col % 4u] = four[e]; }
#else
    b_tile[place / ALONG * SPAN + place % ALONG] = four;
#endif
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let first_row = wid.y * EDGE;
    let first_col = wid.x * EDGE;
    let tx = lid % 16u;
    let ty = lid / 16u;
#if SIDE == 1
    var sum = 0.0;
#else
#for h in 0..SIDE/4
#for i in 0..4
#for j in 0..SIDE/4
    var sum$h_$i_$j = vec4<f32>(0.0);
#endfor
#endfor
#endfor
#endif
    // The next tiles are read while these are used.
#for e in 0..LOADS
    var left$e = left(lid + $eu * 256u, first_row, 0u);
    var right$e = right(lid + $eu * 256u, first_col, 0u);
#endfor
    for (var r0 = 0u; r0 < params.depth; r0 += DEEP) {
        workgroupBarrier();
#for e in 0..LOADS
        store_left(lid + $eu * 256u, left$e);
        store_right(lid + $eu * 256u, right$e);
#endfor
        workgroupBarrier();
        if (r0 + DEEP < params.depth) {
#for e in 0..LOADS
            left$e = left(lid + $eu * 256u, first_row, r0 + DEEP);
            right$e = right(lid + $eu * 256u, first_col, r0 + DEEP);
#endfor
        }
        for (var r = 0u; r < DEEP; r++) {
#if SIDE == 1
            sum += a_tile[r * SPAN + ty / 4u][ty % 4u] * b_tile[r * SPAN + tx / 4u][tx % 4u];
#else
#for h in 0..SIDE/4
            let row$h = a_tile[r * SPAN + ty + $hu * 16u];
            let col$h = b_tile[r * SPAN + tx + $hu * 16u];
#endfor
#for h in 0..SIDE/4
#for i in 0..4
#for j in 0..SIDE/4
            sum$h_$i_$j += row$h[$i] * col$j;
#endfor
#endfor
#endfor
#endif
        }
    }
#if SIDE == 1
    store(first_row + ty, first_col + tx, sum);
#else
#for h in 0..SIDE/4
#for i in 0..4
#for j in 0..SIDE/4
    for (var e = 0u; e < 4u; e++) {
        store(first_row + $hu * 64u + ty * 4u + $iu, first_col + $ju * 64u + tx * 4u + e, sum$h_$i_$j[e]);
    }
#endfor
#endfor
#endfor
#endif
}
