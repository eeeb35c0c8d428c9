// A head in memory of a workgroup of 64 threads, for kernels that write it normed and rotated with attention/head.
var<workgroup> head: array<f32, 512>;
#ifdef HEAD_NORM
var<workgroup> squares: array<f32, 64>;
#endif
#import attention/head

fn component(base: u32, i: u32) -> f32 {
    return head[base + i];
}

// The factor of the head's RMSNorm, once each thread has stored its share of the head.
fn staged_factor(lid: u32) -> f32 {
    workgroupBarrier();
    var factor = 1.0;
#ifdef HEAD_NORM
    for (var i = lid; i < params.head_dim; i += 64u) { squares[lid] += head[i] * head[i]; }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 64u; i++) { sum += squares[i]; }
    factor = inverseSqrt(sum / f32(params.head_dim) + params.eps);
#endif
    return factor;
}
