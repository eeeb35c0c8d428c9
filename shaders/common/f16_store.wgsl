// Output storage. F16_IO: f16, if only f16 subgroup-matrix matmuls read it. Values beyond the f16 range, which no known
// model needs, saturate instead of becoming infinite.
#ifdef F16_IO
alias Kept = f16;

fn as_kept(v: f32) -> Kept { return f16(clamp(v, -65504.0, 65504.0)); }
#else
alias Kept = f32;

fn as_kept(v: f32) -> Kept { return v; }
#endif
