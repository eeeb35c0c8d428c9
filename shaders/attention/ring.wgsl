// Cache slot of a position. RING: a sliding-window layer stores the window plus one step's rows; its slots are reused
// cyclically. BATCH: the caches of all sequences share a buffer. `sequence` is the slot of the row's sequence: the index
// of its ring, or its row of the page table, which gives the page of each PAGE positions.
#ifdef BATCH
var<private> sequence: u32;
#ifndef RING
const PAGE: u32 = 64u;
@group(0) @binding(7) var<storage, read> pages: array<u32>;
#endif
#endif
fn place(position: u32) -> u32 {
#ifdef RING
#ifdef BATCH
    return sequence * params.ring + position % params.ring;
#else
    return position % params.ring;
#endif
#else
#ifdef BATCH
    return pages[sequence * params.pages_per_slot + position / PAGE] * PAGE + position % PAGE;
#else
    return position;
#endif
#endif
}
