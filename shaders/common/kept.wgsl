// How an output is kept. HALVES: as halves, where only products read it whose matrix units take halves; values beyond their range,
// which no model is known to need, end there and not in infinity.
#ifdef HALVES
alias Kept = f16;

fn as_kept(v: f32) -> Kept { return f16(clamp(v, -65504.0, 65504.0)); }
#else
alias Kept = f32;

fn as_kept(v: f32) -> Kept { return v; }
#endif
