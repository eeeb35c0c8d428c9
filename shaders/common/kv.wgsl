// The KV cache by its element type: f32, f16, or two halves packed in a word. Indices count groups of four elements.
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
