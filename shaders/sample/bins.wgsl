// 1024 64-bit sums in workgroup memory, and the bin where their running total reaches a goal. For workgroups of 256.
var<workgroup> bins_low: array<atomic<u32>, 1024>;
var<workgroup> bins_high: array<atomic<u32>, 1024>;
var<workgroup> part: array<vec2<u32>, 256>;
var<workgroup> group: array<vec2<u32>, 16>;
var<workgroup> found_bin: u32;
var<workgroup> found_missing: vec2<u32>;

// Any thread that sees the low word wrap may add the carry late: the sum is correct after the next barrier.
fn add_to_bin(bin: u32, value: u32) {
    let old = atomicAdd(&bins_low[bin], value);
    if (old + value < old) {
        atomicAdd(&bins_high[bin], 1u);
    }
}

fn clear_bins(lid: u32) {
    for (var i = lid; i < 1024u; i += 256u) {
        atomicStore(&bins_low[i], 0u);
        atomicStore(&bins_high[i], 0u);
    }
}

// Exclusive prefix sum over threads; the total goes to found_missing. Three barriers.
fn sum_before(lid: u32, value: vec2<u32>) -> vec2<u32> {
    part[lid] = value;
    workgroupBarrier();
    if (lid < 16u) {
        var sum = vec2(0u, 0u);
        for (var i = 0u; i < 16u; i++) {
            sum = add64(sum, part[lid * 16u + i]);
        }
        group[lid] = sum;
    }
    workgroupBarrier();
    var before = vec2(0u, 0u);
    for (var i = 0u; i < lid / 16u; i++) {
        before = add64(before, group[i]);
    }
    for (var i = lid / 16u * 16u; i < lid; i++) {
        before = add64(before, part[i]);
    }
    if (lid == 255u) {
        found_missing = add64(before, value);
    }
    workgroupBarrier();
    return before;
}

fn bin_at(bin: u32) -> vec2<u32> {
    return vec2(atomicLoad(&bins_low[bin]), atomicLoad(&bins_high[bin]));
}

fn own_bins(lid: u32) -> vec2<u32> {
    var sum = vec2(0u, 0u);
    for (var i = 0u; i < 4u; i++) {
        sum = add64(sum, bin_at(lid * 4u + i));
    }
    return sum;
}

// Total of all bins, for all threads.
fn total_of_bins(lid: u32) -> vec2<u32> {
    sum_before(lid, own_bins(lid));
    return workgroupUniformLoad(&found_missing);
}

// Finds the first bin whose running total reaches goal (found_bin), and the remainder before it (found_missing).
fn find_bin(lid: u32, goal: vec2<u32>) {
    var before = sum_before(lid, own_bins(lid));
    if (lid == 0u) {
        found_bin = 1023u;
        found_missing = vec2(1u, 0u);
    }
    workgroupBarrier();
    for (var i = 0u; i < 4u; i++) {
        let after = add64(before, bin_at(lid * 4u + i));
        if (less64(before, goal) && !less64(after, goal)) {
            found_bin = lid * 4u + i;
            found_missing = sub64(goal, before);
        }
        before = after;
    }
    workgroupBarrier();
}
