#!/usr/bin/env python3
"""Fixtures of the weight formats that make_quant.py leaves out.   usage: make_formats.py QUANT_DIR GRIDS_FILE

Needs numpy, safetensors and gguf 0.19.0 only; every packing and its unpacking is written out below.
    QUANT_DIR/more/tensors.safetensors   compressed-tensors (pack-quantized, int8, nvfp4), fp8, bitsandbytes, dense
    QUANT_DIR/<model>/weights.json       FNV-1a hashes of every dequantised weight of the whole models, by HuggingFace name
    GRIDS_FILE                           the grids of ggml's IQ types, packed as in the gguf package
"""
import json, sys
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, quants as GQ
from safetensors.numpy import save_file, load_file

RNG = np.random.default_rng(4104)
f32 = np.float32
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], f32)

def bf16(x):
    """f32 rounded to bf16, as f32."""
    n = np.ascontiguousarray(x, f32).view(np.uint32); return (((n + 0x7fff + ((n >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(f32)
def bf16_bits(x): return (np.ascontiguousarray(bf16(x)).view(np.uint32) >> 16).astype(np.uint16)
def e4m3(u):
    u = u.astype(np.int64); e, m = (u >> 3) & 15, u & 7
    v = np.where(e == 0, m * 2.0 ** -9, (1 + m / 8) * 2.0 ** (e - 7.0)); return (np.where(u & 128, -v, v)).astype(f32)

def pack(values, bits, dense):
    """Codes [rows, n] -> i32 words along the last axis: a dense stream, or 32 // bits codes per word."""
    r, n = values.shape
    if dense:
        b = ((values[..., None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(r, n * bits)
        b = np.pad(b, ((0, 0), (0, -b.shape[1] % 32))); return np.packbits(b, axis=1, bitorder="little").view("<i4")
    per = 32 // bits; v = np.pad(values, ((0, 0), (0, -n % per))).reshape(r, -1, per).astype(np.uint32)
    return np.bitwise_or.reduce(v << (np.arange(per, dtype=np.uint32) * np.uint32(bits)), axis=-1).astype(np.uint32).view("<i4")

def more():
    t = {}
    for case, bits, group, sym, dense in (("ct4_sym", 4, 32, 1, 1), ("ct4_asym", 4, 64, 0, 1), ("ct8_row", 8, 192, 1, 1), ("ct3_dense", 3, 32, 0, 1), ("ct3_loose", 3, 32, 0, 0)):
        q = RNG.integers(0, 1 << bits, (24, 192)); g = 192 // group; s = bf16(RNG.uniform(0.01, 0.2, (24, g)))
        z = np.full((24, g), 1 << (bits - 1)) if sym else RNG.integers(0, 1 << bits, (24, g))
        t |= {f"{case}.weight_packed": pack(q, bits, dense), f"{case}.weight_scale": bf16_bits(s), f"{case}.expected": ((q.reshape(24, g, group) - z[..., None]).astype(f32) * s[..., None]).reshape(24, 192)}
        if not sym: t[f"{case}.weight_zero_point"] = np.ascontiguousarray(pack(z.T, bits, dense).T)
    g_idx = RNG.permutation(np.arange(192) // 32); q = RNG.integers(0, 16, (24, 192)); s = bf16(RNG.uniform(0.01, 0.2, (24, 6)))
    t |= {"ct4_order.weight_packed": pack(q, 4, 1), "ct4_order.weight_scale": bf16_bits(s), "ct4_order.weight_g_idx": g_idx.astype(np.int32), "ct4_order.expected": ((q - 8).astype(f32) * s[:, g_idx])}
    q = RNG.integers(-128, 128, (9, 40)).astype(np.int8)
    for case, s in (("int8_row", RNG.uniform(0.001, 0.1, (9, 1))), ("int8_tensor", np.array([0.03]))):
        s = s.astype(f32); t |= {f"{case}.weight": q, f"{case}.weight_scale": s, f"{case}.expected": q.astype(f32) * s}
    u = RNG.integers(0, 256, (20, 48)).astype(np.uint8); u[(u & 127) == 127] = 0x38
    s = RNG.uniform(0.001, 0.1, (3, 3)).astype(f32); t |= {"fp8_block.weight": u, "fp8_block.weight_scale_inv": s, "fp8_block.expected": e4m3(u) * np.repeat(np.repeat(s, 8, 0)[:20], 16, 1)}
    s = bf16(RNG.uniform(0.001, 0.1, (20, 1))); t |= {"fp8_row.weight": u, "fp8_row.weight_scale": bf16_bits(s), "fp8_row.expected": e4m3(u) * s}
    s = np.array(0.0125, f32); t |= {"fp8_tensor.weight": u, "fp8_tensor.weight_scale": s.reshape(1), "fp8_tensor.expected": e4m3(u) * s}
    q = RNG.integers(0, 8, (8, 64)) + 8 * RNG.integers(0, 2, (8, 64)); q[q == 8] = 0; s = RNG.integers(1, 127, (8, 4)).astype(np.uint8); g = f32(3.5)
    t |= {"nvfp4.weight_packed": (q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8), "nvfp4.weight_scale": s, "nvfp4.weight_global_scale": np.array([g]), "nvfp4.expected": E2M1[q] * np.repeat((e4m3(s) / g).astype(f32), 16, 1)}
    codes = RNG.integers(0, 16, 10 * 96); table = np.sort(RNG.uniform(-1, 1, 16)).astype(f32); packed = (codes[0::2] << 4 | codes[1::2]).astype(np.uint8).reshape(-1, 1)
    absmax = RNG.uniform(0.1, 2, 15).astype(f32); t |= {"nf4.weight": packed, "nf4.absmax": absmax, "nf4.quant_map": table, "nf4.expected": (table[codes] * np.repeat(absmax, 64)).reshape(10, 96)}
    levels = np.sort(RNG.uniform(-1, 1, 256)).astype(f32); b = RNG.integers(0, 256, 15).astype(np.uint8); n2 = np.array([1.25, 0.75, 2, 1], f32); off = f32(0.875)
    a = (levels[b] * np.repeat(n2, 4)[:15]).astype(f32) + off
    t |= {"nf4_nested.weight": packed, "nf4_nested.absmax": b, "nf4_nested.quant_map": table, "nf4_nested.nested_absmax": n2, "nf4_nested.nested_quant_map": levels, "nf4_nested.expected": (table[codes] * np.repeat(a, 64)).reshape(10, 96)}
    q = RNG.integers(-127, 128, (6, 40)).astype(np.int8); scb = RNG.uniform(0.1, 4, 6).astype(f32); t |= {"llm_int8.weight": q, "llm_int8.SCB": scb, "llm_int8.expected": q.astype(f32) * (scb / f32(127))[:, None]}
    return t | later()

def later():
    """What came later: more widths of pack-quantized, IQ1_M, GPTQ and AWQ whose last group is short, GPTQ with groups of any size, MLC's q4f32_1."""
    t = {}
    for bits in (2, 5, 6, 7):
        q, z = RNG.integers(0, 1 << bits, (24, 192)), RNG.integers(0, 1 << bits, (24, 3)); s = bf16(RNG.uniform(0.01, 0.2, (24, 3)))
        t |= {f"ct{bits}.weight_packed": pack(q, bits, 1), f"ct{bits}.weight_scale": bf16_bits(s), f"ct{bits}.weight_zero_point": np.ascontiguousarray(pack(z.T, bits, 1).T),
              f"ct{bits}.expected": ((q.reshape(24, 3, 64) - z[..., None]).astype(f32) * s[..., None]).reshape(24, 192)}
    b = RNG.integers(0, 256, (2, 2, 56)).astype(np.uint8); d = RNG.uniform(0.01, 0.2, (2, 2)).astype(np.float16).view(np.uint16)
    for i in range(4): b[..., 49 + 2 * i] = b[..., 49 + 2 * i] & 15 | ((d >> 4 * i & 15) << 4).astype(np.uint8)
    t |= {"IQ1_M.blocks": b.reshape(2, 112), "IQ1_M.expected": GQ.dequantize(b.reshape(2, 112), GGMLQuantizationType.IQ1_M).astype(f32)}
    uneven = RNG.permutation(np.repeat(np.arange(4), (40, 24, 33, 31)))
    for case, k, g_idx in (("gptq_tail", 144, np.arange(144) // 64), ("gptq_uneven", 128, uneven)):
        g = int(g_idx.max()) + 1; q, z = RNG.integers(0, 16, (k, 32)), RNG.integers(0, 15, (g, 32)); s = RNG.uniform(0.01, 0.2, (g, 32)).astype(np.float16)
        t |= {f"{case}.qweight": np.ascontiguousarray(pack(q.T, 4, 1).T), f"{case}.qzeros": pack(z, 4, 1), f"{case}.scales": s, f"{case}.g_idx": g_idx.astype(np.int32),
              f"{case}.expected": ((q - (z + 1)[g_idx]).astype(f32) * s.astype(f32)[g_idx]).T}
    q, z, g = RNG.integers(0, 16, (144, 32)), RNG.integers(0, 16, (3, 32)), np.arange(144) // 64; s = RNG.uniform(0.01, 0.2, (3, 32)).astype(np.float16)
    awq = lambda a: pack(a.reshape(len(a), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(a), -1), 4, 1)
    t |= {"awq_tail.qweight": awq(q), "awq_tail.qzeros": awq(z), "awq_tail.scales": s, "awq_tail.expected": ((q - z[g]).astype(f32) * s.astype(f32)[g]).T}
    # MLC's q4f32_1: scales are f32, which shards hold cut to bf16 ("f32-to-bf16") or whole.
    for case, cut in (("q4f32_1", True), ("q4f32_1_raw", False)):
        q, s = RNG.integers(0, 15, (24, 96)), RNG.uniform(0.01, 0.2, (24, 3)).astype(f32); s = bf16(s) if cut else s
        t |= {f"{case}.q_weight": pack(q, 4, 1), f"{case}.q_scale": bf16_bits(s) if cut else s, f"{case}.expected": ((q.reshape(24, 3, 32) - 7).astype(f32) * s[..., None]).reshape(24, 96)}
    return t

def fnv(a):
    """FNV-1a, 64 bits, over the u32 words of the f32 values."""
    h = 0xcbf29ce484222325
    for w in np.ascontiguousarray(a, f32).view(np.uint32).ravel().tolist(): h = ((h ^ w) * 0x100000001b3) & 0xffffffffffffffff
    return f"{h:016x}"

def unstream(w, b):
    r = w.shape[0]; bits = np.unpackbits(np.ascontiguousarray(w).view(np.uint8).reshape(r, -1), axis=1, bitorder="little")
    return (bits.reshape(r, -1, b).astype(np.uint32) << np.arange(b, dtype=np.uint32)).sum(-1, dtype=np.uint32)
def model(d, name):
    t, out = load_file(f"{d}/{name}/model.safetensors"), {}
    q = json.load(open(f"{d}/{name}/config.json")).get("quantization_config", {})
    for k, v in t.items():
        base, kind = k.rsplit(".", 1); s = t.get(f"{base}.scales")
        if kind in ("scales", "biases", "qzeros", "g_idx"): continue
        if kind == "qweight":
            n = s.shape[1]; nib = lambda a: ((a.view(np.uint32)[..., None] >> (np.arange(8, dtype=np.uint32) * np.uint32(4))) & 15).astype(f32)
            if "awq" in name:
                col = np.array([0, 2, 4, 6, 1, 3, 5, 7]); un = lambda a: nib(a)[..., np.argsort(col)].reshape(a.shape[0], -1); g = np.arange(v.shape[0]) // 32
                w = (un(v) - un(t[f"{base}.qzeros"])[g]) * s.astype(f32)[g]
            else:
                g = t[f"{base}.g_idx"]; c = nib(v).transpose(0, 2, 1).reshape(-1, n); z = nib(t[f"{base}.qzeros"]).reshape(-1, n) + 1
                w = (c - z[g]) * s.astype(f32)[g]
            out[f"{base}.weight"] = w.T
        elif s is not None and kind == "weight":
            o = q.get(base, q); b, g = o["bits"], o["group_size"]; c = unstream(v, b).astype(f32); r, n = c.shape
            out[k] = (c.reshape(r, n // g, g) * s.astype(f32)[..., None] + t[f"{base}.biases"].astype(f32)[..., None]).reshape(r, n)
        else: out[k] = v.astype(f32)
    return out
HF = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
def gguf_model(d, name):
    r, out = GGUFReader(f"{d}/{name}/model.gguf"), {}
    heads = {k: int(r.fields[f"llama.attention.{k}"].contents()) for k in ("head_count", "head_count_kv")}
    for t in r.tensors:
        a = GQ.dequantize(t.data, t.tensor_type).reshape([int(x) for x in t.shape[::-1]]).astype(f32)
        if t.name.startswith("blk."):
            _, i, m, k = t.name.split("."); n = f"model.layers.{i}.{HF[m]}.{k}"
            if m in ("attn_q", "attn_k"): h = heads["head_count" if m == "attn_q" else "head_count_kv"]; a = a.reshape(h, a.shape[0] // h // 2, 2, -1).swapaxes(1, 2).reshape(a.shape)
        else: n = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[t.name]
        out[n] = a
    return out

def main(d, grids):
    import os
    os.makedirs(f"{d}/more", exist_ok=True); save_file({k: np.ascontiguousarray(v) for k, v in more().items()}, f"{d}/more/tensors.safetensors")
    for name in ("model_mlx", "model_gptq", "model_awq", "gguf_q4_k_m", "gguf_q8_0", "gguf_tq2_0"):
        w = gguf_model(d, name) if name.startswith("gguf") else model(d, name)
        json.dump({k: [list(v.shape), fnv(v)] for k, v in sorted(w.items())}, open(f"{d}/{name}/weights.json", "w"), indent=None)
    open(grids, "wb").write(b"".join(bytes.fromhex(c.grid_hex.decode()) for c in (GQ.IQ2_XXS, GQ.IQ2_XS, GQ.IQ2_S, GQ.IQ3_XXS, GQ.IQ3_S, GQ.IQ1_S)))
if __name__ == "__main__": main(*sys.argv[1:])
