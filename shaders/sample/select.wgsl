// Sampling kernel 4 of 4, one workgroup: finds the exact boundaries of top-k and top-p, then the token at the random
// point of the passing mass, in id order. Each search is a radix search: 1024 sums over ten bits of a key at a time.
// CANDIDATES also writes the listed tokens, so that the host can tell what another mask would have selected.
#import common/state
#import sample/fixed
#import sample/bins

struct Params {
    count: u32,
    // First adjusted logit.
    offset: u32,
#ifdef BATCH
    // Row of a batched step.
    row: u32,
#endif
#ifdef DRAFTS
    // Row of a step with drafts.
    row: u32,
#endif
#ifdef CANDIDATES
    // First word of the slots for listed tokens, slots, and tokens in each.
    slot0: u32,
    slots: u32,
    slot_tokens: u32,
#endif
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> sampling: Sampling;
@group(0) @binding(3) var<storage, read_write> work: Work;
@group(0) @binding(4) var<storage, read> state: State;
// Value and token, as written by argmax, and a status (0 for success).
@group(0) @binding(5) var<storage, read_write> picked: array<u32>;
#ifdef ADJUST
// Generated count of each token; highest bit: occurs in the prompt.
@group(0) @binding(6) var<storage, read_write> counts: array<u32>;
#endif
#ifdef CANDIDATES
// A slot for each of the last tokens: the number of listed tokens, 0 if they are not the most likely ones; then pairs of
// id and adjusted logit.
@group(0) @binding(7) var<storage, read_write> listed_tokens: array<u32>;
#endif

// Replaces a missing token, as in best.wgsl.
const NOT_FINITE: u32 = 0xfffffffeu;
// Searches in their order. Keys are the gaps of listed tokens up to a limit; of those at the limit the ids, highest first.
const TOP_K: u32 = 0u;
const TOP_P: u32 = 1u;
const TOP_P_AT_LIMIT: u32 = 2u;
const LAST_ID: u32 = 0xfffffu;

#ifdef BATCH
fn sampled_before() -> u32 { return state.sequences[params.row].step; }
fn has_stopped() -> bool { return state.sequences[params.row].stopped != 0u; }
#else
fn sampled_before() -> u32 { return state.step; }
#ifdef DRAFTS
// Rows behind a rejected draft are not sampled.
fn has_stopped() -> bool { return state.stopped != 0u || params.row >= state.rows; }
#else
fn has_stopped() -> bool { return state.stopped != 0u; }
#endif
#endif

struct Border {
    key: u32,
    missing: vec2<u32>,
}

// Smallest key at which the sum over listed tokens reaches goal; each counts as one for top-k, else as its weight.
fn border(lid: u32, search: u32, limit: u32, start: vec2<u32>) -> Border {
    let listed = atomicLoad(&work.listed);
    var result = Border(0u, start);
    for (var level = 0u; level < 3u; level++) {
        let shift = 20u - 10u * level;
        clear_bins(lid);
        workgroupBarrier();
        for (var i = lid; i < listed; i += 256u) {
            let entry = work.list[i];
            var key = entry.y;
            var counts_here = entry.y <= limit;
            if (search == TOP_P_AT_LIMIT) {
                key = LAST_ID - entry.x;
                counts_here = entry.y == limit;
            }
            if (counts_here && (level == 0u || (key >> (shift + 10u)) == result.key)) {
                var value = 1u;
                if (search != TOP_K) {
                    value = weight_of(entry.y);
                }
                add_to_bin((key >> shift) & 1023u, value);
            }
        }
        workgroupBarrier();
        find_bin(lid, result.missing);
        result.key = (result.key << 10u) | found_bin;
        result.missing = found_missing;
        workgroupBarrier();
    }
    return result;
}

// Mass of listed tokens up to a limit.
fn listed_mass(lid: u32, limit: u32) -> vec2<u32> {
    let listed = atomicLoad(&work.listed);
    var mass = vec2(0u, 0u);
    for (var i = lid; i < listed; i += 256u) {
        let gap = work.list[i].y;
        if (gap <= limit) {
            mass = add64(mass, vec2(weight_of(gap), 0u));
        }
    }
    sum_before(lid, mass);
    return workgroupUniformLoad(&found_missing);
}

fn is_kept(id: u32, gap: u32, limit: u32, first_id: u32) -> bool {
    return gap < limit || (gap == limit && id >= first_id);
}

// The token at the random point of the passing mass: first its block, then itself.
fn draw(lid: u32, limit: u32, first_id: u32) -> u32 {
    let blocks = (params.count + BLOCK - 1u) / BLOCK;
    for (var i = lid; i < 1024u; i += 256u) {
        var mass = vec2(0u, 0u);
        if (i < blocks) {
            mass = work.blocks[i];
        }
        atomicStore(&bins_low[i], mass.x);
        atomicStore(&bins_high[i], mass.y);
    }
    workgroupBarrier();
    let listed = atomicLoad(&work.listed);
    for (var i = lid; i < listed; i += 256u) {
        let entry = work.list[i];
        if (is_kept(entry.x, entry.y, limit, first_id)) {
            add_to_bin(entry.x / BLOCK, weight_of(entry.y));
        }
    }
    workgroupBarrier();
    let point = share(random_word(sampled_before()), total_of_bins(lid));
    find_bin(lid, add64(point, vec2(1u, 0u)));
    let block = found_bin;
    let rest = found_missing;
    workgroupBarrier();
    clear_bins(lid);
    workgroupBarrier();
    let largest = work.largest;
    let end = min(block * BLOCK + BLOCK, params.count);
    for (var id = block * BLOCK + lid; id < end; id += 256u) {
        let gap = gap_of(largest, scores[params.offset + id]);
        if (is_kept(id, gap, limit, first_id)) {
            add_to_bin(id % BLOCK, weight_of(gap));
        }
    }
    workgroupBarrier();
    find_bin(lid, rest);
    return block * BLOCK + found_bin;
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32) {
    var limit = GAP_LIMIT;
    var first_id = 0u;
    var last: Border;
    // One loop, so that the search is compiled once.
    for (var search = TOP_K; search <= TOP_P_AT_LIMIT; search++) {
        if ((search == TOP_K && sampling.top_k == 0u) || (search != TOP_K && sampling.top_p == NO_TOP_P)) {
            continue;
        }
        var goal = last.missing;
        if (search == TOP_K) {
            goal = vec2(sampling.top_k, 0u);
        }
        if (search == TOP_P) {
            goal = work.missing;
            if (sampling.top_k != 0u) {
                goal = at_least_one(share(sampling.top_p, listed_mass(lid, limit)));
            }
        }
        last = border(lid, search, limit, goal);
        if (search == TOP_P_AT_LIMIT) {
            first_id = LAST_ID - last.key;
        } else {
            limit = last.key;
        }
    }
    if (sampling.min_p_limit < limit) {
        limit = sampling.min_p_limit;
        first_id = 0u;
    }
    let token = draw(lid, limit, first_id);
#ifdef CANDIDATES
    if (!has_stopped()) {
        let listed = atomicLoad(&work.listed);
        let slot = params.slot0 + (sampled_before() % params.slots) * (1u + 2u * params.slot_tokens);
        for (var i = lid; i < min(listed, params.slot_tokens); i += 256u) {
            let id = work.list[i].x;
            listed_tokens[slot + 1u + 2u * i] = id;
            listed_tokens[slot + 2u + 2u * i] = bitcast<u32>(scores[params.offset + id]);
        }
        if (lid == 0u) {
            listed_tokens[slot] = listed * u32(sampling.top_k != 0u && listed <= params.slot_tokens);
        }
    }
#endif
    if (lid != 0u || has_stopped()) {
        return;
    }
    picked[2] = work.status;
    if (work.status != 0u) {
        picked[1] = NOT_FINITE;
        return;
    }
    picked[0] = bitcast<u32>(scores[params.offset + token]);
    picked[1] = token;
#ifdef ADJUST
    counts[token] += 1u;
#endif
}
