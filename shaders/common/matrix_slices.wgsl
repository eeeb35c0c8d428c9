// Slices of factors that common/matrix loads.
#import common/matrix
#ifdef COOP
// Stored four at a time.
alias Slice = array<vec4<Element>, LENGTH / 4u>;
const UNIT: u32 = 4u;
#else
// Browsers load matrices only from arrays of scalars.
alias Slice = array<Element, LENGTH>;
#endif
