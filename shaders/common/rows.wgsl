// Position and activity of a step's rows. The rows of a step belong to one sequence; with BATCH each row is the next token
// of another sequence, described by the row table behind the step state.
#ifdef BATCH
fn row_position(row: u32) -> u32 { return state.sequences[row].position; }
fn row_rope_position(row: u32) -> u32 { return state.sequences[row].rope_position; }
fn row_runs(row: u32) -> bool { return row < state.rows && state.sequences[row].stopped == 0u; }
#else
fn row_position(row: u32) -> u32 { return state.pos + row; }
fn row_rope_position(row: u32) -> u32 { return state.pos + row; }
fn row_runs(row: u32) -> bool { return row < state.rows; }
#endif
