// KV cache access by element type: f32, f16, two f16 packed in a word, or 8 bits. Indices count groups of four
// elements. `most` comes from kv_scale.
#ifdef KV_F32
alias Kv4 = vec4<f32>;
fn kv_unpack(v: Kv4) -> vec4<f32> { return v; }
fn kv_pack(v: vec4<f32>) -> Kv4 { return v; }
#endif
#ifdef KV_F16
alias Kv4 = vec4<f16>;
fn kv_unpack(v: Kv4) -> vec4<f32> { return vec4<f32>(v); }
fn kv_pack(v: vec4<f32>) -> Kv4 { return vec4<f16>(v); }
#endif
#ifdef KV_PACKED
alias Kv4 = vec2<u32>;
fn kv_unpack(v: Kv4) -> vec4<f32> { return vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)); }
fn kv_pack(v: vec4<f32>) -> Kv4 { return vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw)); }
#endif
#ifdef KV_INT8
// Multiples of the head's largest magnitude, which is stored before its elements.
alias Kv4 = u32;
const KV_FIRST = 1u;
fn kv_read(v: Kv4, most: f32) -> vec4<f32> { return unpack4x8snorm(v) * most; }
fn kv_write(v: vec4<f32>, most: f32) -> Kv4 { return pack4x8snorm(v / max(most, 1e-30)); }
fn kv_most(v: vec4<f32>) -> f32 { return max(max(abs(v.x), abs(v.y)), max(abs(v.z), abs(v.w))); }
#else
const KV_FIRST = 0u;
fn kv_read(v: Kv4, most: f32) -> vec4<f32> { return kv_unpack(v); }
fn kv_write(v: vec4<f32>, most: f32) -> Kv4 { return kv_pack(v); }
#endif
// Start of a head's `d4` groups of elements.
fn kv_at(head: u32, d4: u32) -> u32 { return head * (d4 + KV_FIRST) + KV_FIRST; }
