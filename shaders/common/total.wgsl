// Sum over a workgroup of WG, returned to every thread. Two barriers: another sum may follow directly.
var<workgroup> partial: array<f32, WG>;
var<workgroup> sixteenths: array<f32, 16>;

fn total(lid: u32, value: f32) -> f32 {
    partial[lid] = value;
    workgroupBarrier();
    if (lid < 16u) {
        var sum = 0.0;
        for (var i = lid; i < WG; i += 16u) { sum += partial[i]; }
        sixteenths[lid] = sum;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 16u; i++) { sum += sixteenths[i]; }
    return sum;
}
