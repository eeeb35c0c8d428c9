// The place of a position in the cache. RING: a layer with a window keeps no more than that and a step's rows, and positions
// take turns.
fn place(position: u32) -> u32 {
#ifdef RING
    return position % params.ring;
#else
    return position;
#endif
}
