// Matrices of SIDE by SIDE that the lanes of a subgroup hold together, multiplied by the device's matrix units, in the words
// of each implementation: COOP is naga's (VK_KHR_cooperative_matrix), CHROMIUM and STANDARD are gpuweb's draft
// proposals/subgroup-matrix.md, SPELLED is plain arithmetic with the same results, for tests on devices without such units.
// Factors come from `tile`, of Elements in workgroup memory, `pitch` from row to row; sums go to `parts`, of f32 wherever it is,
// and come back from there. A right factor is read as it lies (rows of K) or turned, as rows of W are.
#ifdef F16
alias Element = f16;
alias Element4 = vec4<f16>;
#else
alias Element = f32;
alias Element4 = vec4<f32>;
#endif

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

fn load_left(at: u32, pitch: u32) -> Left { return coopLoadT<Left>(&tile[at], pitch); }

fn load_right(at: u32, pitch: u32) -> Right { return coopLoadT<Right>(&tile[at], pitch); }

fn load_turned(at: u32, pitch: u32) -> Right { return coopLoad<Right>(&tile[at], pitch); }

fn multiply(a: Left, b: Right, sum: Sum) -> Sum { return coopMultiplyAdd(a, b, sum); }

fn load_sum(at: u32, pitch: u32) -> Sum { return coopLoadT<Sum>(&parts[at], pitch); }

fn store_sum(sum: Sum, at: u32, pitch: u32) { coopStoreT(sum, &parts[at], pitch); }
#else
#ifdef SPELLED
struct Left { at: u32, pitch: u32 }
struct Right { at: u32, down: u32, across: u32 }
alias Sum = array<f32, SIDE * SIDE / LANES>;
var<private> lane: u32;

fn load_left(at: u32, pitch: u32) -> Left { return Left(at, pitch); }

fn load_right(at: u32, pitch: u32) -> Right { return Right(at, pitch, 1u); }

fn load_turned(at: u32, pitch: u32) -> Right { return Right(at, 1u, pitch); }

fn multiply(a: Left, b: Right, sum: Sum) -> Sum {
    var sums = sum;
    for (var i = 0u; i < SIDE * SIDE / LANES; i++) {
        let element = i * LANES + lane;
        let row = a.at + element / SIDE * a.pitch;
        let column = b.at + element % SIDE * b.across;
        for (var k = 0u; k < SIDE; k++) {
            sums[i] = fma(f32(tile[row + k]), f32(tile[column + k * b.down]), sums[i]);
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

fn load_left(at: u32, pitch: u32) -> Left { return subgroupMatrixLoad<Left>(&tile, at, false, pitch); }

fn load_right(at: u32, pitch: u32) -> Right { return subgroupMatrixLoad<Right>(&tile, at, false, pitch); }

fn load_turned(at: u32, pitch: u32) -> Right { return subgroupMatrixLoad<Right>(&tile, at, true, pitch); }

fn multiply(a: Left, b: Right, sum: Sum) -> Sum { return subgroupMatrixMultiplyAccumulate(a, b, sum); }

fn load_sum(at: u32, pitch: u32) -> Sum { return subgroupMatrixLoad<Sum>(&parts, at, false, pitch); }

fn store_sum(sum: Sum, at: u32, pitch: u32) { subgroupMatrixStore(&parts, at, sum, false, pitch); }
#endif
#endif

// Values beyond the range of halves, which no model is known to need, end there and not in infinity.
fn element4(v: vec4<f32>) -> Element4 {
#ifdef F16
    return Element4(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
#else
    return v;
#endif
}
