// Workgroup memory of attention_matrix for SUBGROUP_COUNT subgroups.
const ROWS: u32 = SUBGROUP_COUNT * 16u;
const KEYS: u32 = 32u;
const THREADS: u32 = SUBGROUP_COUNT * LANES;
const SCORES: u32 = KEYS + 4u;
#import common/matrix
alias Slice = array<Element, LENGTH>;
const UNIT: u32 = 1u;
// Keys, values, then rows of q, whose memory is reused for weights once they are loaded.
const FIRST_VALUE: u32 = APART * KEYS / SIDE;
const FIRST_ROW: u32 = FIRST_VALUE + KEYS / SIDE;
#ifdef EMULATED
// q is never loaded to registers, so weights need separate memory.
const FIRST_WEIGHT: u32 = FIRST_ROW + ROWS / SIDE;
#else
const FIRST_WEIGHT: u32 = FIRST_ROW;
#endif
var<workgroup> tile: array<Slice, FIRST_WEIGHT + ROWS / SIDE>;
// Scores, and sums exchanged between threads.
var<workgroup> parts: array<f32, (ROWS + 1u) * SCORES>;
// Partial row statistics per lane: the maximum score, finally the sum of the weights.
const SHARES: u32 = LANES / 16u;
const OWN: u32 = KEYS / SHARES;
var<workgroup> known: array<array<f32, ROWS>, SHARES>;
// Rescale factor of each row's sums, finally their divisor.
var<workgroup> kept: array<f32, ROWS>;
// Whether the sums need rescaling. Four words, because matrices in memory must be aligned.
var<workgroup> grown: array<u32, 4>;
