// Sampling kernel 3 of 4: lists the tokens near a filter's boundary, and sums the mass of those certain to pass, in
// blocks of 1024 tokens. One workgroup per block. Where a mask allows fewer tokens than top-k, all others are at the
// boundary: tokens without weight are not listed, since no filter's result depends on them.
#import sample/fixed
#import sample/bins

struct Params {
    count: u32,
    // First adjusted logit.
    offset: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> sampling: Sampling;
@group(0) @binding(3) var<storage, read_write> work: Work;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
    // Bins below first always pass; bins from first to last are listed.
    var first = 1024u;
    var last = 1024u;
    if (sampling.top_k != 0u || sampling.top_p != NO_TOP_P) {
        for (var i = lid; i < 1024u; i += 256u) {
            atomicStore(&bins_low[i], atomicLoad(&work.sums_low[i]));
            atomicStore(&bins_high[i], atomicLoad(&work.sums_high[i]));
        }
        workgroupBarrier();
        var goal = vec2(sampling.top_k + sampling.more_listed, 0u);
        if (sampling.top_k == 0u) {
            goal = at_least_one(share(sampling.top_p, total_of_bins(lid)));
        }
        find_bin(lid, goal);
        last = found_bin;
        first = last;
        if (sampling.top_k != 0u) {
            first = 0u;
        } else if (wid.x == 0u && lid == 0u) {
            work.missing = found_missing;
        }
        workgroupBarrier();
    }
    let largest = work.largest;
    let end = min(wid.x * BLOCK + BLOCK, params.count);
    var mass = vec2(0u, 0u);
    for (var id = wid.x * BLOCK + lid; id < end; id += 256u) {
        let gap = gap_of(largest, scores[params.offset + id]);
        let bin = gap >> 20u;
        if (bin < first) {
            if (gap <= sampling.min_p_limit) {
                mass = add64(mass, vec2(weight_of(gap), 0u));
            }
        } else if (bin <= last && gap < WEIGHTLESS_GAP) {
            work.list[atomicAdd(&work.listed, 1u)] = vec2(id, gap);
        }
    }
    sum_before(lid, mass);
    if (lid == 0u) {
        work.blocks[wid.x] = found_missing;
    }
}
