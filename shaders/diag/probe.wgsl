// Measures the device's peak rates. FILL: writes incompressible content. READ: reads all of it, four loads in flight.
// CHAIN: almost no work, but depends on the previous dispatch.
struct Params {
    // Vectors of four words in x.
    count: u32,
    // Invocations of the dispatch.
    stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
#ifdef READ
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<u32>>;
#else
@group(0) @binding(1) var<storage, read_write> x: array<vec4<u32>>;
#endif

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#ifdef FILL
    for (var i = gid.x; i < params.count; i += params.stride) {
        var h = (i + 1u) * 2654435761u;
        h ^= h >> 15u;
        h *= 2246822519u;
        h ^= h >> 13u;
        x[i] = vec4<u32>(h, h * 3266489917u, h ^ 0x9e3779b9u, h * 668265263u);
    }
#endif
#ifdef READ
    var sum = vec4<u32>();
    let s = params.stride;
    var i = gid.x;
    for (; i + 3u * s < params.count; i += 4u * s) {
        sum ^= x[i] ^ x[i + s] ^ x[i + 2u * s] ^ x[i + 3u * s];
    }
    for (; i < params.count; i += s) {
        sum ^= x[i];
    }
    out[gid.x % 65536u] = sum;
#endif
#ifdef CHAIN
    if (lid < params.count) {
        x[lid] = x[(lid + 1u) % params.count] + 1u;
    }
#endif
}
