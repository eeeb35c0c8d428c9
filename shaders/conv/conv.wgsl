// Causal depthwise convolution of TAPS rows. `memory` holds the last TAPS - 1 inputs before this step, oldest first,
// and is read as zeros at position 0. A thread takes one channel and some rows, with inputs in registers.
// FEW processes all rows and updates the memory; with BATCH, each row has a memory of its own. MANY processes a tile of
// rows; with params.advance it then updates the memory, from the last rows. GATED multiplies inputs by `gate_in` and
// outputs by `gate_out`. Three channel ranges have an input scale each. VERIFY leaves the memory as it was; once the
// accepted rows are known, ACCEPTED updates it with them.
struct Params {
    channels: u32,
    tile: u32,
    x_offset: u32,
    x_stride: u32,
    in_offset: u32,
    in_stride: u32,
    gate_offset: u32,
    gate_stride: u32,
    out_offset: u32,
    out_stride: u32,
    act: u32,
#ifdef MANY
    advance: u32,
#endif
#ifndef ACCEPTED
    second: u32,
    third: u32,
    first_scale: f32,
    second_scale: f32,
    third_scale: f32,
#endif
}
#import common/state
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> state: State;
#import common/rows
@group(0) @binding(3) var<storage, read_write> memory: array<f32>;
#ifdef GATED
@group(0) @binding(4) var<storage, read> gate_in: array<f32>;
#endif
#ifndef ACCEPTED
@group(0) @binding(5) var<storage, read> weight: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
#ifdef GATED
@group(0) @binding(7) var<storage, read> gate_out: array<f32>;
#endif
#ifdef BIAS
@group(0) @binding(8) var<storage, read> bias: array<f32>;
#endif
#endif

fn input(row: u32, c: u32) -> f32 {
    var value = x[params.x_offset + row * params.x_stride + c];
#ifdef GATED
    value *= gate_in[params.in_offset + row * params.in_stride + c];
#endif
    return value;
}

// The input `back` rows before a row.
fn before(row: u32, back: u32, c: u32) -> f32 {
#ifdef BATCH
    if (row_position(row) == 0u) {
        return 0.0;
    }
    return memory[(state.sequences[row].slot * (TAPS - 1u) + TAPS - 1u - back) * params.channels + c];
#else
    if (row >= back) {
        return input(row - back, c);
    }
    if (state.pos == 0u) {
        return 0.0;
    }
    return memory[(TAPS - 1u + row - back) * params.channels + c];
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let c = wid.x * 64u + lid;
#ifdef ACCEPTED
    let rows = state.accepted;
#else
    let rows = state.rows;
#endif
#ifdef MANY
    var first = wid.y * params.tile;
    var end = min(first + params.tile, rows);
    if (params.advance == 1u) {
        first = rows - min(rows, TAPS - 1u);
        end = rows;
    }
#endif
#ifdef FEW
#ifdef BATCH
    let first = wid.y;
    var end = first;
    if (row_runs(first)) { end = first + 1u; }
#else
    let first = 0u;
    let end = rows;
#endif
#endif
#ifdef ACCEPTED
    let first = rows - min(rows, TAPS - 1u);
    let end = rows;
#endif
    if (c >= params.channels || first >= end) {
        return;
    }
#ifndef ACCEPTED
    var scale = params.first_scale;
    if (c >= params.second) { scale = params.second_scale; }
    if (c >= params.third) { scale = params.third_scale; }
#endif
    // Window inputs, oldest first; the last is the current row's.
    var window: array<f32, TAPS>;
#for i in 1..TAPS
    window[$iu] = before(first, TAPS - $iu, c);
#endfor
    for (var row = first; row < end; row++) {
#for i in 1..TAPS
        window[$iu - 1u] = window[$iu];
#endfor
        window[TAPS - 1u] = input(row, c);
#ifndef ACCEPTED
        var y = 0.0;
#for i in 0..TAPS
        y += weight[c * TAPS + $iu] * window[$iu];
#endfor
        y *= scale;
#ifdef BIAS
        y += bias[c];
#endif
        y = activate(params.act, y);
#ifdef GATED
        y *= gate_out[params.gate_offset + row * params.gate_stride + c];
#endif
        out[params.out_offset + row * params.out_stride + c] = y;
#endif
    }
#ifdef MANY
    if (params.advance == 0u) {
        return;
    }
#endif
#ifndef VERIFY
#ifdef BATCH
    let base = state.sequences[first].slot * (TAPS - 1u);
#else
    let base = 0u;
#endif
#for i in 1..TAPS
    memory[(base + $iu - 1u) * params.channels + c] = window[$iu];
#endfor
#endif
}
