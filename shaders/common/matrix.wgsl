// Matrices of SIDE by SIDE that the lanes of a subgroup hold together, multiplied by the device's matrix units, in the words
// of each implementation: COOP is naga's (VK_KHR_cooperative_matrix), CHROMIUM and STANDARD are gpuweb's draft
// proposals/subgroup-matrix.md, SPELLED is plain arithmetic with the same results, for tests on devices without such units.
// Factors come from `tile`, Slices of SIDE rows of WIDTH Elements in workgroup memory, UNIT of them in each place of a slice's
// array (1 but for COOP); load_left2 takes the third matrix of a slice, and so on: browsers guard each load whose place in its
// array is no constant, which costs a third of a product's speed. Sums go to `parts`, of f32 wherever it is, `pitch` from row to
// row, and come back from there. A right factor is read as it lies (rows of K) or turned, as rows of W are.
#ifdef F16
alias Element = f16;
#else
alias Element = f32;
#endif
// Rows begin in other banks.
const PITCH: u32 = WIDTH + 8u;
// Of a slice. A row more than is used: browsers want a whole pitch behind a matrix's last row.
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
#ifdef SPELLED
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
    // Between numbers that no compiler knows: a loop that it writes out takes it long, and a tile has many.
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

// Values beyond the range of halves, which no model is known to need, end there and not in infinity.
#ifdef F16
fn elements(v: vec4<f32>) -> vec4<f16> { return vec4<f16>(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0))); }
#else
fn elements(v: vec4<f32>) -> vec4<f32> { return v; }
#endif
