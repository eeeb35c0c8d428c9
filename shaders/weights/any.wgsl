// Imports the current weight layout. Each layout provides, over the planes w_q and w_s:
//   w_load4(row, k): four weights of a row from column k (a multiple of 4) on;
//   w_load8(row, unit): columns 8 * unit to 8 * unit + 7;
//   w_dot8(row, unit, x, sum): dot product of these eight columns with w_prepare8(x); `sum` is the sum of x.
struct X8 {
    a: vec4<f32>,
    b: vec4<f32>,
}
#ifdef W_AFFINE
#import weights/affine
#else
#ifdef W_Q4K
#import weights/q4_k
#else
#ifdef W_Q6K
#import weights/q6_k
#else
#ifdef W_MXFP4
#import weights/mxfp4
#else
#ifdef W_TERNARY
#import weights/ternary
#else
#import weights/dense
#endif
#endif
#endif
#endif
#endif
