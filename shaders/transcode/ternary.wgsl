// Transcodes BitNet's packed safetensors to the ternary layout. Bits 2i and 2i+1 of byte row r hold the value plus one
// of row i * n / 4 + r.
#import transcode/codes
@group(0) @binding(3) var<storage, read_write> out_s: array<u32>;

fn code_bits() -> u32 {
    return 2u;
}

fn code(row: u32, k: u32) -> u32 {
    let quarter = (params.n + 3u) / 4u;
    return (byte(params.src_at + row % quarter * params.cols + k) >> (row / quarter * 2u)) & 3u;
}

fn scales(row: u32, source: u32, block: u32) {
    if (block == 0u) {
        out_s[params.out_row + row] = bitcast<u32>(params.constant);
    }
}
