// Cache slot of a position. RING: a sliding-window layer stores the window plus one step's rows; its slots are reused
// cyclically.
fn place(position: u32) -> u32 {
#ifdef RING
    return position % params.ring;
#else
    return position;
#endif
}
