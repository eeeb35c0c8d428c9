// BitNet's packed safetensors to the ternary layout: bits 2i and 2i+1 of byte row r hold row i * n / 4 + r, value plus one.
#import transcode/pack
@group(0) @binding(3) var<storage, read_write> out_s: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let t = (wid.x + wid.y * count.x) * 64u + lid;
    let row = t / params.blocks;
    if (row >= params.rows) {
        return;
    }
    let block = t % params.blocks;
    let source = source_row(row);
    let quarter = (params.n + 3u) / 4u;
    let start = params.src_at + source % quarter * params.cols;
    let shift = source / quarter * 2u;
    for (var i = 0u; i < 32u; i++) {
        let k = block * 32u + i;
        if (k < params.cols) {
            put(2u, i, (byte(start + k) >> shift) & 3u);
        }
    }
    store_block(2u, row, block);
    if (block == 0u) {
        out_s[params.out_row + row] = bitcast<u32>(params.constant);
    }
}
