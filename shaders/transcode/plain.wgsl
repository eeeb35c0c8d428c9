// Blocks of dense elements. The including shader provides `bits_at(row, k)`, the bits of an element of the source's row
// in the type TO: 0 f16, 1 bf16, 2 f32. Columns beyond the last are zero.
#import transcode/pack
#import transcode/round

fn element(row: u32, k: u32) -> u32 {
    if (k >= params.cols) {
        return 0u;
    }
    return bits_at(row, k);
}

fn make_block(row: u32, source: u32, block: u32) {
#if TO == 2
    const WIDTH = 32u;
#else
    const WIDTH = 16u;
#endif
    let at = ((params.out_row + row) * params.blocks + block) * WIDTH;
    for (var w = 0u; w < WIDTH; w++) {
        if (TO == 2u) {
            out_q[at + w] = element(source, block * 32u + w);
        } else {
            let k = block * 32u + 2u * w;
            out_q[at + w] = element(source, k) | (element(source, k + 1u) << 16u);
        }
    }
}
