// Matrices of SIDE by SIDE that the lanes of a subgroup hold together, multiplied by the device's matrix units, in the words
// of each implementation: COOP is naga's (VK_KHR_cooperative_matrix), CHROMIUM and STANDARD are gpuweb's draft
// proposals/subgroup-matrix.md, SPELLED is plain arithmetic with the same results, for tests on devices without such units.
// They come from and go to rows of workgroup memory `xt` (x, a row each PITCH) and `wt` (W likewise) and of storage `parts`.
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

fn load_left(at: u32) -> Left { return coopLoadT<Left>(&xt[at], PITCH); }

fn load_right(at: u32) -> Right { return coopLoad<Right>(&wt[at], PITCH); }

fn multiply(a: Left, b: Right, sum: Sum) -> Sum { return coopMultiplyAdd(a, b, sum); }

fn store_sum(sum: Sum, at: u32, stride: u32) { coopStoreT(sum, &parts[at], stride); }
#else
#ifdef SPELLED
struct Left { at: u32 }
struct Right { at: u32 }
alias Sum = array<f32, SIDE * SIDE / LANES>;
var<private> lane: u32;

fn load_left(at: u32) -> Left { return Left(at); }

fn load_right(at: u32) -> Right { return Right(at); }

fn multiply(a: Left, b: Right, sum: Sum) -> Sum {
    var sums = sum;
    for (var i = 0u; i < SIDE * SIDE / LANES; i++) {
        let element = i * LANES + lane;
        for (var k = 0u; k < SIDE; k++) {
            let x_k = f32(xt[a.at + element / SIDE * PITCH + k]);
            sums[i] = fma(x_k, f32(wt[b.at + element % SIDE * PITCH + k]), sums[i]);
        }
    }
    return sums;
}

fn store_sum(sum: Sum, at: u32, stride: u32) {
    var sums = sum;
    for (var i = 0u; i < SIDE * SIDE / LANES; i++) {
        let element = i * LANES + lane;
        parts[at + element / SIDE * stride + element % SIDE] = sums[i];
    }
}
#else
alias Left = subgroup_matrix_left<Element, SIDE, SIDE>;
alias Right = subgroup_matrix_right<Element, SIDE, SIDE>;
alias Sum = subgroup_matrix_result<f32, SIDE, SIDE>;

fn load_left(at: u32) -> Left { return subgroupMatrixLoad<Left>(&xt, at, false, PITCH); }

fn load_right(at: u32) -> Right { return subgroupMatrixLoad<Right>(&wt, at, true, PITCH); }

fn multiply(a: Left, b: Right, sum: Sum) -> Sum { return subgroupMatrixMultiplyAccumulate(a, b, sum); }

fn store_sum(sum: Sum, at: u32, stride: u32) { subgroupMatrixStore(&parts, at, sum, false, stride); }
#endif
#endif
