// Blocks of codes. The including shader provides `code_bits()`, `code(row, k)` of an element of the source's row, and
// `scales(row, source, block)`, which writes the block's scales.
#import transcode/pack

fn make_block(row: u32, source: u32, block: u32) {
    for (var i = 0u; i < 32u; i++) {
        let k = block * 32u + i;
        if (k < params.cols) {
            put(code_bits(), i, code(source, k));
        }
    }
    store_block(code_bits(), row, block);
    scales(row, source, block);
}
