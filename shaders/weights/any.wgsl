// The file of the layout at hand.
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
