// Rows of signed bytes, as gemm_packed and gemv_packed read them: X_GROUP elements (32 or 64) share a scale, so that
// the largest is 127, and the sum of their bytes times the scale. A row is stored in units of 64 elements, ten pairs
// of words: sixteen words of bytes, then (scale, sum) of each group. NIBBLES: the bytes of an octet are ordered as its
// nibbles are unpacked, the even ones first.

#import common/packed_bytes

// Threads of a group.
const SHARE: u32 = X_GROUP / 8u;
// Of each thread: its largest element, and the sum of its bytes.
var<workgroup> octet_tops: array<f32, THREADS>;
var<workgroup> octet_sums: array<i32, THREADS>;

// Writes eight elements, a then b, times `factor`, as octet `octet` of a row; nothing from octet 8 * units on. All threads
// of the workgroup call it; the SHARE threads of a group pass consecutive octets, the first a multiple of SHARE.
fn quantize_octet(lid: u32, row: u32, units: u32, octet: u32, a: vec4<f32>, b: vec4<f32>, factor: f32) {
    let largest = max(abs(a), abs(b));
    octet_tops[lid] = max(max(largest.x, largest.y), max(largest.z, largest.w));
    workgroupBarrier();
    let first = lid / SHARE * SHARE;
    var top = 0.0;
#for i in 0..X_GROUP/8
    top = max(top, octet_tops[first + $iu]);
#endfor
    let scale = top / 127.0;
    // Below, a scale has no inverse.
    let inverse = 1.0 / max(scale, 1e-35);
    let p = fma(a, vec4<f32>(inverse), vec4<f32>(WHOLE));
    let q = fma(b, vec4<f32>(inverse), vec4<f32>(WHOLE));
#ifdef NIBBLES
    let low = bitcast<vec4<u32>>(vec4<f32>(p.xz, q.xz));
    let high = bitcast<vec4<u32>>(vec4<f32>(p.yw, q.yw));
#else
    let low = bitcast<vec4<u32>>(p);
    let high = bitcast<vec4<u32>>(q);
#endif
    let bytes = vec2<u32>(bytes_of(low), bytes_of(high));
    octet_sums[lid] = dot4I8Packed(bytes.x, 0x01010101u) + dot4I8Packed(bytes.y, 0x01010101u);
    workgroupBarrier();
    let unit = octet / 8u;
    if (unit >= units) {
        return;
    }
    let at = (row * units + unit) * 10u;
    quantized[at + octet % 8u] = bytes;
    if (lid == first) {
        var sum = 0;
#for i in 0..X_GROUP/8
        sum += octet_sums[first + $iu];
#endfor
        quantized[at + 8u + octet % 8u / SHARE] = bitcast<vec2<u32>>(vec2<f32>(scale, f32(sum) * scale) * factor);
    }
}
