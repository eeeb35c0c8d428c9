// A head in the memory of a 64-thread workgroup, for kernels that apply norm and RoPE with attention/head.
var<workgroup> head: array<f32, 512>;
#ifdef HEAD_NORM
var<workgroup> squares: array<f32, 64>;
#endif
#import attention/head

fn component(base: u32, i: u32) -> f32 {
    return head[base + i];
}

// RMSNorm factor of the head, after each thread has stored its share.
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
