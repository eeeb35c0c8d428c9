// Sampling kernel 2 of 4: the largest adjusted logit, and the token count (top-k) or mass (top-p) of each bin of gaps.
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

// 4096 tokens per workgroup: few flushes, enough workgroups.
const TOKENS: u32 = 4096u;

var<workgroup> largest: atomic<u32>;
var<workgroup> largest_logit: atomic<u32>;
var<workgroup> smallest_logit: atomic<u32>;
var<workgroup> broken: atomic<u32>;

fn status_of(score: f32) -> u32 {
    if (atomicLoad(&broken) != 0u) {
        return STATUS_NOT_FINITE;
    }
    if (params.count > 1u && atomicLoad(&largest_logit) == atomicLoad(&smallest_logit)) {
        return STATUS_CONSTANT;
    }
    if (score <= -1e27) {
        return STATUS_ALL_BANNED;
    }
    return 0u;
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
    if (lid == 0u) {
        atomicStore(&largest, 0u);
        atomicStore(&largest_logit, 0u);
        atomicStore(&smallest_logit, 0xffffffffu);
        atomicStore(&broken, 0u);
    }
    clear_bins(lid);
    workgroupBarrier();
    let blocks = (params.count + BLOCK - 1u) / BLOCK;
    for (var i = lid; i < blocks; i += 256u) {
        let partial = work.partials[i];
        atomicMax(&largest, partial.x);
        atomicMax(&largest_logit, partial.y);
        atomicMin(&smallest_logit, partial.z);
        atomicOr(&broken, partial.w);
    }
    workgroupBarrier();
    let score = from_ordered(atomicLoad(&largest));
    if (wid.x == 0u && lid == 0u) {
        work.largest = score;
        work.status = status_of(score);
    }
    if (sampling.top_k == 0u && sampling.top_p == NO_TOP_P) {
        return;
    }
    let end = min(wid.x * TOKENS + TOKENS, params.count);
    for (var id = wid.x * TOKENS + lid; id < end; id += 256u) {
        let gap = gap_of(score, scores[params.offset + id]);
        var value = 1u;
        if (sampling.top_k == 0u) {
            value = weight_of(gap);
        }
        add_to_bin(gap >> 20u, value);
    }
    workgroupBarrier();
    for (var i = lid; i < 1024u; i += 256u) {
        let value = atomicLoad(&bins_low[i]);
        var high = atomicLoad(&bins_high[i]);
        if (value != 0u) {
            let old = atomicAdd(&work.sums_low[i], value);
            high += u32(old + value < old);
        }
        if (high != 0u) {
            atomicAdd(&work.sums_high[i], high);
        }
    }
}
