// Subgroup matrices of SIDE by SIDE in the dialect of each implementation. COOP is naga's (VK_KHR_cooperative_matrix).
// CHROMIUM and STANDARD are gpuweb's draft proposals/subgroup-matrix.md. EMULATED is plain arithmetic with the same
// results, for tests on devices without subgroup matrices.
// Factors come from `tile`: Slices of SIDE rows of WIDTH Elements in workgroup memory, UNIT Elements per array entry (1
// except for COOP). load_left2 loads the third matrix of a slice, and so on: browsers bounds-check loads at
// non-constant indices, which costs a third of a matmul's speed. Sums are stored to and loaded from `parts`, always
// f32, with row stride `pitch`. A right factor is loaded row-major (rows of K) or transposed (rows of W).
#ifdef F16
alias Element = f16;
#else
alias Element = f32;
#endif
// Padding: rows start in different banks.
const PITCH: u32 = WIDTH + 8u;
// Length of a slice, plus one row: browsers require a whole pitch after a matrix's last row.
const LENGTH: u32 = (SIDE + 1u) * PITCH;

#ifdef COOP
#if SIDE == 16
alias Left = coop_mat16x16<Element, A>;
alias Right = coop_mat16x16<Element, B>;
alias Sum = coop_mat16x16<f32, C>;
#else
alias Left = coop_mat8x8<Element, A>;
alias Right = coop_mat8x8<Element, B>;
alias Sum = coop_mat8x8<f32, C>;
#endif

#for u in 0..WIDTH/SIDE
fn load_left$u(slice: u32) -> Left { return coopLoadT<Left>(&tile[slice][$uu * SIDE / UNIT], PITCH / UNIT); }

fn load_right$u(slice: u32) -> Right { return coopLoadT<Right>(&tile[slice][$uu * SIDE / UNIT], PITCH / UNIT); }

fn load_turned$u(slice: u32) -> Right { return coopLoad<Right>(&tile[slice][$uu * SIDE / UNIT], PITCH / UNIT); }

#endfor
fn multiply(a: Left, b: Right, sum: Sum) -> Sum { return coopMultiplyAdd(a, b, sum); }

fn load_sum(at: u32, pitch: u32) -> Sum { return coopLoadT<Sum>(&parts[at], pitch); }

fn store_sum(sum: Sum, at: u32, pitch: u32) { coopStoreT(sum, &parts[at], pitch); }
#else
#ifdef EMULATED
struct Left { slice: u32, at: u32 }
struct Right { slice: u32, at: u32, down: u32, across: u32 }
alias Sum = array<f32, SIDE * SIDE / LANES>;
var<private> lane: u32;

#for u in 0..WIDTH/SIDE
fn load_left$u(slice: u32) -> Left { return Left(slice, $uu * SIDE); }

fn load_right$u(slice: u32) -> Right { return Right(slice, $uu * SIDE, PITCH, 1u); }

fn load_turned$u(slice: u32) -> Right { return Right(slice, $uu * SIDE, 1u, PITCH); }

#endfor
fn multiply(a: Left, b: Right, sum: Sum) -> Sum {
    var sums = sum;
    let column = b.at + lane % SIDE * b.across;
    // Non-constant bounds: compilers would unroll the loop, which is slow with a tile's many loops.
    for (var at = lane; at < lane + SIDE; at++) {
        let k = at - lane;
        let right = f32(tile[b.slice][column + k * b.down]);
        for (var i = 0u; i < SIDE * SIDE / LANES; i++) {
            let row = a.at + (i * LANES + lane) / SIDE * PITCH;
            sums[i] = fma(f32(tile[a.slice][row + k]), right, sums[i]);
        }
    }
    return sums;
}

fn load_sum(at: u32, pitch: u32) -> Sum {
    var sums: Sum;
    for (var i = 0u; i < SIDE * SIDE / LANES; i++) {
        let element = i * LANES + lane;
        sums[i] = parts[at + element / SIDE * pitch + element % SIDE];
    }
    return sums;
}

fn store_sum(sum: Sum, at: u32, pitch: u32) {
    var sums = sum;
    for (var i = 0u; i < SIDE * SIDE / LANES; i++) {
        let element = i * LANES + lane;
        parts[at + element / SIDE * pitch + element % SIDE] = sums[i];
    }
}
#else
alias Left = subgroup_matrix_left<Element, SIDE, SIDE>;
alias Right = subgroup_matrix_right<Element, SIDE, SIDE>;
alias Sum = subgroup_matrix_result<f32, SIDE, SIDE>;

#for u in 0..WIDTH/SIDE
fn load_left$u(slice: u32) -> Left { return subgroupMatrixLoad<Left, row_major>(&tile[slice], $uu * SIDE, PITCH); }

fn load_right$u(slice: u32) -> Right { return subgroupMatrixLoad<Right, row_major>(&tile[slice], $uu * SIDE, PITCH); }

fn load_turned$u(slice: u32) -> Right { return subgroupMatrixLoad<Right, col_major>(&tile[slice], $uu * SIDE, PITCH); }

#endfor
fn multiply(a: Left, b: Right, sum: Sum) -> Sum { return subgroupMatrixMultiplyAccumulate(a, b, sum); }

fn load_sum(at: u32, pitch: u32) -> Sum { return subgroupMatrixLoad<Sum, row_major>(&parts, at, pitch); }

fn store_sum(sum: Sum, at: u32, pitch: u32) { subgroupMatrixStore<row_major>(&parts, at, sum, pitch); }
#endif
#endif

// Values beyond the f16 range, which no known model needs, saturate instead of becoming infinite.
#ifdef F16
fn elements(v: vec4<f32>) -> vec4<f16> { return vec4<f16>(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0))); }
#else
fn elements(v: vec4<f32>) -> vec4<f32> { return v; }
#endif
