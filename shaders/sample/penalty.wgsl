// Sampling kernel 1 of 4: applies bias, penalties and the token mask to the logits; each workgroup finds the extremes of
// its 1024 tokens. Also clears the sums of the next kernels. ADJUST: bias and penalties; MASK: token mask. Either
// writes the scores.
#import sample/fixed

struct Params {
    count: u32,
    // First logit.
    offset: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> sampling: Sampling;
@group(0) @binding(3) var<storage, read_write> work: Work;
#ifdef ADJUST
// Generated count of each token; highest bit: occurs in the prompt.
@group(0) @binding(4) var<storage, read> counts: array<u32>;
// Added to each logit.
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read_write> scores: array<f32>;
#endif
#ifdef MASK
// One bit per token; tokens without it are banned.
@group(0) @binding(7) var<storage, read> mask: array<u32>;
#ifndef ADJUST
@group(0) @binding(6) var<storage, read_write> scores: array<f32>;
#endif
#endif

var<workgroup> largest_score: atomic<u32>;
var<workgroup> largest_logit: atomic<u32>;
var<workgroup> smallest_logit: atomic<u32>;
var<workgroup> broken: atomic<u32>;

#ifdef ADJUST
fn adjusted(id: u32, logit: f32) -> f32 {
    var score = opaque(logit + bias[id]);
    let count = counts[id];
    if (count != 0u) {
        var factor = sampling.repetition_inverse;
        if (score < 0.0) {
            factor = sampling.repetition;
        }
        score = opaque(score * factor);
        let generated = count & 0x7fffffffu;
        if (generated != 0u) {
            let frequency = opaque(sampling.frequency * f32(generated));
            score = opaque(opaque(score - frequency) - sampling.presence);
        }
    }
    return score;
}
#endif

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    if (lid == 0u) {
        atomicStore(&largest_score, 0u);
        atomicStore(&largest_logit, 0u);
        atomicStore(&smallest_logit, 0xffffffffu);
        atomicStore(&broken, 0u);
        if (wid.x == 0u) {
            atomicStore(&work.listed, 0u);
        }
    }
    for (var i = wid.x * 256u + lid; i < 1024u; i += groups.x * 256u) {
        atomicStore(&work.sums_low[i], 0u);
        atomicStore(&work.sums_high[i], 0u);
    }
    workgroupBarrier();
    let end = min(wid.x * BLOCK + BLOCK, params.count);
    var high = 0u;
    var low = 0xffffffffu;
    var high_score = 0u;
    for (var id = wid.x * BLOCK + lid; id < end; id += 256u) {
        let logit = logits[params.offset + id];
        if ((bitcast<u32>(logit) & 0x7f800000u) == 0x7f800000u) {
            atomicStore(&broken, 1u);
        }
        high = max(high, ordered(logit));
        low = min(low, ordered(logit));
        var score = logit;
#ifdef ADJUST
        score = adjusted(id, logit);
        scores[id] = score;
#endif
#ifdef MASK
        // NaN stays visible to the argmax of greedy decoding.
        if (((mask[id / 32u] >> (id % 32u)) & 1u) == 0u && (bitcast<u32>(logit) & 0x7f800000u) != 0x7f800000u) {
            score = BANNED_SCORE;
        }
        scores[id] = score;
#endif
        high_score = max(high_score, ordered(score));
    }
    atomicMax(&largest_logit, high);
    atomicMin(&smallest_logit, low);
    atomicMax(&largest_score, high_score);
    workgroupBarrier();
    if (lid == 0u) {
        work.partials[wid.x] = vec4(
            atomicLoad(&largest_score),
            atomicLoad(&largest_logit),
            atomicLoad(&smallest_logit),
            atomicLoad(&broken),
        );
    }
}
