// What the TEAMS subgroups of a workgroup of attention_matrix take, and where it lies in their memory.
const ROWS: u32 = TEAMS * 16u;
const KEYS: u32 = 32u;
const THREADS: u32 = TEAMS * LANES;
const SCORES: u32 = KEYS + 4u;
#import common/matrix
alias Slice = array<Element, LENGTH>;
const UNIT: u32 = 1u;
// Keys, values, then rows of q, in whose place, once they are loaded, weights come.
const FIRST_VALUE: u32 = APART * KEYS / SIDE;
const FIRST_ROW: u32 = FIRST_VALUE + KEYS / SIDE;
#ifdef SPELLED
// Nothing is ever loaded.
const FIRST_WEIGHT: u32 = FIRST_ROW + ROWS / SIDE;
#else
const FIRST_WEIGHT: u32 = FIRST_ROW;
#endif
var<workgroup> tile: array<Slice, FIRST_WEIGHT + ROWS / SIDE>;
// Scores, and sums that are on their way.
var<workgroup> parts: array<f32, (ROWS + 1u) * SCORES>;
// What the lanes of a row know each: the largest score, at the end the sum of the weights.
const SHARES: u32 = LANES / 16u;
const OWN: u32 = KEYS / SHARES;
var<workgroup> known: array<array<f32, ROWS>, SHARES>;
// What is left of each row's sums under its new maximum, at the end what divides them.
var<workgroup> kept: array<f32, ROWS>;
// Whether the sums are to be scaled; four, as what begins behind a single word is not aligned as matrices in memory must be.
var<workgroup> grown: array<u32, 4>;
