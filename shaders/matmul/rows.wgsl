// Rows of a GEMM, and the weight row of an output.
#ifdef EXPERTS
// Row-expert pairs sorted by expert, in tiles (shaders/experts/bucket.wgsl): rows of x are those of a tile's pairs, each
// pair has its own row of out.
@group(0) @binding(8) var<storage, read> buckets: array<u32>;
var<private> expert_row: u32;
var<private> bias_row: u32;
const out_first: u32 = 0u;

fn output_row(n: u32) -> u32 {
    return expert_row + n * params.row_step;
}

// The pairs of a tile, from `first` to before `end`.
struct Pairs {
    first: u32,
    end: u32,
}

// Selects the expert of a tile; without pairs if these planes do not hold it.
fn pairs_of(tile: u32) -> Pairs {
    let expert = buckets[4u + tile * 4u];
    if (tile >= buckets[0] || expert - params.first_expert >= params.expert_count) {
        return Pairs(0u, 0u);
    }
    expert_row = (expert - params.first_expert) * params.expert_rows;
    bias_row = expert * params.expert_rows;
    return Pairs(buckets[5u + tile * 4u], buckets[6u + tile * 4u]);
}

// Row of x of a pair.
fn pair_row(place: u32) -> u32 {
    return buckets[params.order_at + place] / params.each;
}
#else
@group(0) @binding(8) var<storage, read> state: State;

fn output_row(n: u32) -> u32 {
    return params.row0 + n;
}
#endif
