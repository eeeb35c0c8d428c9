// Redistributes x within a workgroup: each thread loads a part of it and receives its whole block. Shuffled to avoid
// bank conflicts on both sides.
#if DOT == 1
// Octets, packed by the loading thread: [octet of a block][block].
var<workgroup> octets: array<XOctet, 4u * ROW_THREADS>;
// Scale and sum of each block.
var<workgroup> block_lines: array<vec2<f32>, ROW_THREADS>;

// The first or second vec4 of x in the octet of a slot.
fn column(base: u32, half: u32, place: u32) -> u32 {
    return (base + place / 4u) * 8u + place % 4u * 2u + half;
}

// Four adjacent threads load a block.
fn hold(place: u32, a: vec4<f32>, b: vec4<f32>) {
#ifdef ROUND
    const most = TOP;
    const inverse = 1.0;
#else
    let tops = max(abs(a), abs(b));
    var most = max(max(tops.x, tops.y), max(tops.z, tops.w));
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    var inverse = TOP / most;
    if (!(most > 0.0)) { inverse = 0.0; }
#endif
    let values = x_octet(a, b, inverse);
#if X_BITS == 16
    let both = a + b;
    var sum = (both.x + both.y) + (both.z + both.w);
#else
    // Of the integers, so that biases multiply the same x as codes do.
    const ones = 0x01010101u;
    var sum = f32(dot4I8Packed(values.x, ones) + dot4I8Packed(values.y, ones)) * (most / TOP);
#endif
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    let block = place / 4u;
    let octet = place % 4u;
    octets[octet * ROW_THREADS + (block ^ (octet * 2u))] = values;
    if (octet == 0u) { block_lines[block] = vec2<f32>(most / TOP, sum); }
}

fn held(block: u32) -> XBlock {
    var x: XBlock;
    let line = block_lines[block];
    x.unit = line.x;
    x.sum = line.y;
#for i in 0..4
    let octet$i = octets[$iu * ROW_THREADS + (block ^ ($iu * 2u))];
#endfor
#if BITS == 2
    // Codes are extracted every fourth of a word at a time; x is transposed to the same order.
    let low_a = x_turned(vec4<u32>(octet0.xy, octet1.xy));
    let low_b = x_turned(vec4<u32>(octet2.xy, octet3.xy));
    x.low0 = low_a.xy;
    x.low1 = low_a.zw;
    x.low2 = low_b.xy;
    x.low3 = low_b.zw;
#if X_BITS == 16
    let high_a = x_turned(vec4<u32>(octet0.zw, octet1.zw));
    let high_b = x_turned(vec4<u32>(octet2.zw, octet3.zw));
    x.high0 = high_a.xy;
    x.high1 = high_a.zw;
    x.high2 = high_b.xy;
    x.high3 = high_b.zw;
#endif
#else
#for i in 0..4
    x.low$i = octet$i.xy;
#if X_BITS == 16
    x.high$i = octet$i.zw;
#endif
#endfor
#endif
    return x;
}
#else
// Half of each block of a group's x: [vec4 of the half][block].
var<workgroup> half_x: array<vec4<f32>, 4u * ROW_THREADS>;

// The vec4 of x for a slot of half_x; slots follow x, so that loads are adjacent.
fn column(base: u32, half: u32, place: u32) -> u32 {
    return (base + place / 4u) * 8u + half * 4u + place % 4u;
}

fn hold(place: u32, v: vec4<f32>) {
    half_x[(place % 4u) * ROW_THREADS + ((place / 4u) ^ ((place % 4u) * 2u))] = v;
}

fn held(i: u32, block: u32) -> vec4<f32> {
    return half_x[i * ROW_THREADS + (block ^ (i * 2u))];
}
#endif
