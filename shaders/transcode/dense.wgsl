// Rows of plain numbers to padded rows, converted to nearest even. FROM and TO: 0 f16, 1 bf16, 2 f32.
#import transcode/pack
#import transcode/number
#import transcode/round

fn element(row: u32, k: u32) -> u32 {
    if (k >= params.cols) {
        return 0u;
    }
    let i = row * params.cols + k;
    // Bits that need no conversion are copied: not even a NaN changes.
    if (FROM == TO) {
        return number_bits(i);
    }
    return to_bits(number(i));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let t = (wid.x + wid.y * count.x) * 64u + lid;
    let row = t / params.blocks;
    if (row >= params.rows) {
        return;
    }
    let block = t % params.blocks;
    let source = source_row(row);
    let width = select(16u, 32u, TO == 2u);
    let at = ((params.out_row + row) * params.blocks + block) * width;
    for (var w = 0u; w < width; w++) {
        if (TO == 2u) {
            out_q[at + w] = element(source, block * 32u + w);
        } else {
            let k = block * 32u + 2u * w;
            out_q[at + w] = element(source, k) | (element(source, k + 1u) << 16u);
        }
    }
}
