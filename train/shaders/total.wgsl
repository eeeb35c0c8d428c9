// Sum and maximum over a workgroup of 64 threads, in a fixed order.
var<workgroup> partial: array<f32, 64>;

fn total(lid: u32, value: f32) -> f32 {
    workgroupBarrier();
    partial[lid] = value;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half >>= 1u) {
        if (lid < half) { partial[lid] += partial[lid + half]; }
        workgroupBarrier();
    }
    return partial[0];
}

fn highest(lid: u32, value: f32) -> f32 {
    workgroupBarrier();
    partial[lid] = value;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half >>= 1u) {
        if (lid < half) { partial[lid] = max(partial[lid], partial[lid + half]); }
        workgroupBarrier();
    }
    return partial[0];
}
