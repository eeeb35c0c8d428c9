// A head of at most WIDEST columns in the memory of a workgroup of WG threads, for kernels that apply norm and RoPE with
// attention/head.
var<workgroup> head: array<f32, WIDEST>;
#ifdef HEAD_NORM
var<workgroup> squares: array<f32, WG>;
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
    for (var i = lid; i < params.head_dim; i += WG) { squares[lid] += head[i] * head[i]; }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < WG; i++) { sum += squares[i]; }
    factor = inverseSqrt(sum / f32(params.head_dim) + params.eps);
#endif
    return factor;
}
