// The better of two candidates, and the best of a workgroup of 256.
struct Best {
    value: f32,
    index: u32,
}
const NONE: u32 = 0xffffffffu;
const NOT_FINITE: u32 = 0xfffffffeu;
// Set in the index of a slice with all-equal logits.
const FLAT: u32 = 0x80000000u;

var<workgroup> values: array<f32, 256>;
var<workgroup> indices: array<u32, 256>;

fn better(a: Best, b: Best) -> Best {
    if (b.value > a.value || (b.value == a.value && b.index < a.index)) {
        return b;
    }
    return a;
}

fn best_of_all(lid: u32, own: Best) -> Best {
    var best = own;
    values[lid] = best.value;
    indices[lid] = best.index;
    for (var step = 128u; step > 0u; step /= 2u) {
        workgroupBarrier();
        var other = best;
        if (lid < step) { other = Best(values[lid + step], indices[lid + step]); }
        workgroupBarrier();
        if (lid < step) {
            best = better(best, other);
            values[lid] = best.value;
            indices[lid] = best.index;
        }
    }
    return best;
}
