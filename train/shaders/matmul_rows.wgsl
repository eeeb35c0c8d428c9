// The matmuls of matmul.wgsl without a GPU, where a core runs the threads of a workgroup together, as the lanes of its
// vectors. A workgroup of eight threads takes eight rows by 64 columns, each thread all rows of eight columns, in
// registers: loads cost most, and no thread waits for another. All sums have one fixed order.
#import train/matmul_params

// Column j of eight of a thread. INPUT: two groups of four adjacent columns, since W is read in fours.
fn column(first: u32, lid: u32, j: u32) -> u32 {
#ifdef INPUT
    return first + (lid + j / 4u * 8u) * 4u + j % 4u;
#else
    return first + lid + j * 8u;
#endif
}

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let first_row = wid.y * 8u;
    let first_col = wid.x * 64u;
    if (first_row >= params.rows) { return; }
#for j in 0..8
    let col$j = min(column(first_col, lid, $ju), params.cols - 1u);
#endfor
#for i in 0..8
    let row$i = min(first_row + $iu, params.rows - 1u);
    var acc$i_0 = vec4<f32>(0.0);
    var acc$i_1 = vec4<f32>(0.0);
#endfor
    for (var r0 = 0u; r0 < params.depth; r0 += 4u) {
#ifdef FORWARD
#for j in 0..8
        let w$j = w_load4(params.row0 + col$j, r0);
#endfor
#endif
#for e in 0..4
        {
            let inside = r0 + $eu < params.depth;
            let r = min(r0 + $eu, params.depth - 1u);
#ifdef FORWARD
            var right0 = vec4<f32>(w0[$e], w1[$e], w2[$e], w3[$e]);
            var right1 = vec4<f32>(w4[$e], w5[$e], w6[$e], w7[$e]);
            if (!inside) {
                right0 = vec4<f32>(0.0);
                right1 = vec4<f32>(0.0);
            }
#endif
#ifdef INPUT
            let right0 = w_load4(params.row0 + r, col0 / 4u * 4u);
            let right1 = w_load4(params.row0 + r, col4 / 4u * 4u);
#endif
#ifdef WEIGHT
            let start = params.b_offset + r * params.b_stride;
            let right0 = vec4<f32>(b[start + col0], b[start + col1], b[start + col2], b[start + col3]);
            let right1 = vec4<f32>(b[start + col4], b[start + col5], b[start + col6], b[start + col7]);
#endif
#for i in 0..8
#ifdef WEIGHT
            var left$i = a[params.a_offset + r * params.a_stride + row$i];
#else
            var left$i = a[params.a_offset + row$i * params.a_stride + r];
#endif
            if (!inside) { left$i = 0.0; }
            acc$i_0 += left$i * right0;
            acc$i_1 += left$i * right1;
#endfor
        }
#endfor
    }
    // A loop, since the end of a sum takes longest to compile.
    for (var i = 0u; i < min(8u, params.rows - first_row); i++) {
        var left = acc0_0;
        var right = acc0_1;
#for i in 1..8
        if (i == $iu) {
            left = acc$i_0;
            right = acc$i_1;
        }
#endfor
#for j in 0..4
        store(first_row + i, column(first_col, lid, $ju), left[$j]);
        store(first_row + i, column(first_col, lid, $ju + 4u), right[$j]);
#endfor
    }
}
