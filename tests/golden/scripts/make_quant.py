#!/usr/bin/env python3
"""Quantised containers with exact expected values.   usage: make_quant.py OUT [NAME...]

Needs numpy, torch 2.15.0, transformers 5.23.0, safetensors, gguf 0.19.0.
    OUT/<name>/tensors.safetensors   small tensors: <case>.<packed part>... and <case>.expected (f32, row-major)
    OUT/<name>/{config.json,model.safetensors | model.gguf}, golden.safetensors    whole tiny models
    OUT/<name>/meta.json             the layout in words
Packing and unpacking are written out in numpy below; `expected` always comes from the unpacking side, in float32.
"""
import json, os, sys
import numpy as np
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_text as M                                   # sets single-threaded torch and offline mode
import torch, gguf
from gguf import quants as GQ, GGMLQuantizationType as QT
from safetensors.torch import save_file
T = M.T
RNG = np.random.default_rng(20260)
f32 = np.float32
def th(a): return torch.from_numpy(np.ascontiguousarray(a))
def rnd(*s, scale=0.7): return (RNG.standard_normal(s) * scale).astype(f32)
def bits32(n):
    """Integers [..., k, 32/b] -> u32: the first value in the lowest bits."""
    b = 32 // n.shape[-1]; return np.bitwise_or.reduce(n.astype(np.uint32) << (np.arange(n.shape[-1], dtype=np.uint32) * np.uint32(b)), axis=-1).astype(np.uint32)

# ------------------------------------------------------------------ MLX affine
def to16(x, kind): return x.astype(f32) if kind == "f32" else th(x).to({"f16": torch.float16, "bf16": torch.bfloat16}[kind]).float().numpy()
def mlx_pack(q, b):
    """q [rows, n] integers -> u32 [rows, n*b/32]: one little-endian bit stream per row; values of 3, 5 and 6 bits straddle words."""
    r, n = q.shape; bits = ((q[..., None] >> np.arange(b)) & 1).astype(np.uint8).reshape(r, n * b)
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").reshape(r, n * b // 32)
def mlx_unpack(w, b):
    r = w.shape[0]; bits = np.unpackbits(np.ascontiguousarray(w).view(np.uint8).reshape(r, -1), axis=1, bitorder="little")
    return (bits.reshape(r, -1, b).astype(np.uint32) << np.arange(b, dtype=np.uint32)).sum(-1, dtype=np.uint32)
def mlx_quant(w, b, g, kind):
    r, n = w.shape; x = w.reshape(r, n // g, g); hi, lo = x.max(-1), x.min(-1); nb = (1 << b) - 1
    side = np.abs(lo) > np.abs(hi); s = np.maximum((hi - lo) / nb, 1e-7); s = np.where(side, s, -s); edge = np.where(side, lo, hi)
    q0 = np.round(edge / s); s = np.where(q0 != 0, edge / np.where(q0 == 0, 1, q0), s); z = np.where(q0 == 0, 0, edge)
    q = np.clip(np.round((x - z[..., None]) / s[..., None]), 0, nb).astype(np.uint32).reshape(r, n)
    return mlx_pack(q, b), to16(s, kind), to16(z, kind)
def mlx_dequant(p, s, z, b, g):
    q = mlx_unpack(p, b).astype(f32); r, n = q.shape
    return (q.reshape(r, n // g, g) * s[..., None] + z[..., None]).reshape(r, n).astype(f32)
def store(x, kind): return th(x).to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind])

def mlx_affine():
    t = {}
    for b in (2, 3, 4, 5, 6, 8):
        for g, kind in ((32, "bf16"), (64, "f16"), (128, "f32")):
            w = rnd(4, 256); w[0, :g] = 0.25; p, s, z = mlx_quant(w, b, g, kind); c = f"b{b}_g{g}"; e = mlx_dequant(p, s, z, b, g)
            assert np.array_equal(mlx_pack(mlx_unpack(p, b), b), p) and np.abs(e - w).max() < 3.2 / ((1 << b) - 1) * 1.2 + {"bf16": 0.04, "f16": 0.005, "f32": 0}[kind]
            t |= {f"{c}.weight": th(p.view(np.int32)).view(torch.uint32), f"{c}.scales": store(s, kind), f"{c}.biases": store(z, kind), f"{c}.expected": th(e)}
    return t, dict(layout="weight u32 [out, in*bits/32]; scales, biases [out, in/group]; w = q*scale + bias", packing="every row is one little-endian bit stream, first value in the lowest bits; with 3, 5 and 6 bits values straddle u32 words (8 values = 3 / 5 bytes, 4 values = 3 bytes)",
        scale_sign="scales are often negative: the value range is anchored at the edge of larger magnitude", scale_dtypes={"g32": "bf16", "g64": "f16", "g128": "f32"}, edge="row 0 begins with a constant group")

# ------------------------------------------------------------------ 4- and 8-bit floats
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], f32)
def fp4(x): return np.abs(x[..., None] - E2M1).argmin(-1)
def e4m3(u): return th(u.astype(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
def to_e4m3(x): return th(x.astype(f32)).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
def mlx_fp():
    t, w = {}, rnd(8, 256); w[1] *= 1e-3; w[2] *= 300; u = lambda a: th(a.view(np.int32)).view(torch.uint32)
    x = w.reshape(8, 8, 32); e = np.round(np.log2(np.abs(x).max(-1) / 6)).astype(int); q = fp4(x / np.exp2(e)[..., None])
    t |= {"mxfp4.weight": u(bits32(q.reshape(8, -1, 8))), "mxfp4.scales": th((e + 127).astype(np.uint8)), "mxfp4.expected": th((E2M1[q] * np.exp2(e)[..., None]).reshape(8, 256).astype(f32))}
    e = np.round(np.log2(np.abs(x).max(-1) / 448)).astype(int); q = to_e4m3(x / np.exp2(e)[..., None])
    t |= {"mxfp8.weight": u(np.ascontiguousarray(q.reshape(8, 256)).view("<u4")), "mxfp8.scales": th((e + 127).astype(np.uint8)), "mxfp8.expected": th((e4m3(q) * np.exp2(e)[..., None]).reshape(8, 256).astype(f32))}
    x = np.clip(w, -2, 2).reshape(8, 16, 16); s = to_e4m3(np.abs(x).max(-1) / 6); sv = np.maximum(e4m3(s), 1e-9); q = fp4(x / sv[..., None])
    t |= {"nvfp4.weight": u(bits32(q.reshape(8, -1, 8))), "nvfp4.scales": th(s), "nvfp4.expected": th((E2M1[q] * e4m3(s)[..., None]).reshape(8, 256).astype(f32))}
    return t, dict(layout="weight u32 [out, in*bits/32] first value lowest; scales u8 [out, in/group]; no biases", mxfp4="group 32, e2m1 values, scale 2^(s-127)", mxfp8="group 32, e4m3 values, scale 2^(s-127)", nvfp4="group 16, e2m1 values, scale is an e4m3 byte; no global scale here")

def mxfp4_gpt_oss():
    w = rnd(2, 32, 96); w[0, 0] *= 1e-6; w[1, 1] *= 1e4; w[1, 2] = 0; b, s = M.mx_pack(th(w)); e = M.mx_unpack(b, s)
    q = np.stack([b.numpy() & 15, b.numpy() >> 4], -1).reshape(2, 32, 3, 32)      # written a second time, in numpy
    assert np.array_equal((E2M1[q] * np.exp2(s.numpy().astype(f32) - 127)[..., None]).reshape(2, 32, 96), e.numpy())
    return {"w_blocks": b, "w_scales": s, "expected": e}, dict(layout="blocks u8 [experts, out, in/32, 16], scales u8 [experts, out, in/32]; low nibble = even element; value = e2m1[nibble] * 2^(scale-127); expected is [experts, out, in]",
        note="the published bf16 form of the same parameter is transposed: [experts, in, out]", edge="expert 1 row 2 is all zero")

# ------------------------------------------------------------------ GPTQ and AWQ
def zq(w, g, b, sym):
    """w [in, out] -> integers, zero points [groups, out], f16 scales [groups, out]; g gives the group of each input."""
    n = g.max() + 1; q = np.zeros(w.shape, np.uint32); z = np.zeros((n, w.shape[1]), np.uint32); s = np.zeros((n, w.shape[1]), f32); m = (1 << b) - 1
    for i in range(n):
        x = w[g == i]; hi, lo = np.maximum(x.max(0), 0.01), np.minimum(x.min(0), -0.01)
        if sym: sc = np.maximum(hi, -lo) * 2 / m; zi = np.full(sc.shape, (m + 1) // 2)
        else: sc = (hi - lo) / m; zi = np.clip(np.round(-lo / sc), 1, m)
        s[i] = sc.astype(np.float16); z[i] = zi; q[g == i] = np.clip(np.round(x / s[i]) + zi, 0, m)
    return q, z, s
def i32(a): return th(a.view(np.int32))
def gptq_pack(q, z, s, g, b, v2=False):
    if b == 3: return {"qweight": i32(mlx_pack(q.T, 3).T.copy()), "qzeros": i32(mlx_pack(z - 1, 3)), "scales": th(s).half(), "g_idx": th(g.astype(np.int32))}   # one bit stream
    p = 32 // b; qw = bits32(q.reshape(q.shape[0] // p, p, -1).transpose(0, 2, 1)); zz = z if v2 else z - 1
    return {"qweight": i32(qw), "qzeros": i32(bits32(zz.reshape(z.shape[0], -1, p))), "scales": th(s).half(), "g_idx": th(g.astype(np.int32))}
def gptq_unpack(t, b, v2=False):
    if b == 3:
        g = t["g_idx"].numpy(); q, z = mlx_unpack(t["qweight"].numpy().T.copy(), 3).T.astype(f32), (mlx_unpack(t["qzeros"].numpy(), 3) + 1 & 7).astype(f32)
        return (q - z[g]) * t["scales"].float().numpy()[g]
    p, m = 32 // b, (1 << b) - 1; sh = np.arange(p, dtype=np.uint32) * b
    qw, qz = (t[k].numpy().view(np.uint32) for k in ("qweight", "qzeros")); g = t["g_idx"].numpy()
    q = ((qw[:, None, :] >> sh[None, :, None]) & m).reshape(-1, qw.shape[1]).astype(f32); z = ((qz[:, :, None] >> sh) & m).reshape(qz.shape[0], -1)
    z = ((z + (0 if v2 else 1)) & m).astype(f32)
    return (q - z[g]) * t["scales"].float().numpy()[g]                              # [in, out]
def gptq():
    t = {}
    for c, b, act, sym in (("b4_sym", 4, 0, 1), ("b4_act_order", 4, 1, 1), ("b4_asym", 4, 0, 0), ("b8_sym", 8, 0, 1), ("b8_act_order", 8, 1, 1), ("b3_asym", 3, 0, 0), ("b2_asym", 2, 0, 0)):
        w = rnd(128, 32); g = np.arange(128) // 32; g = RNG.permutation(g) if act else g; q, z, s = zq(w, g, b, sym); p = gptq_pack(q, z, s, g, b); e = gptq_unpack(p, b)
        assert np.abs(e - w).max() < 1.2 * s.max(); t |= {f"{c}.{k}": v for k, v in p.items()} | {f"{c}.expected": th(e.T.astype(f32))}
    w = rnd(128, 32); g = np.arange(128) // 32; q, z, s = zq(w, g, 4, 0); p = gptq_pack(q, z, s, g, 4, True); t |= {f"b4_v2.{k}": v for k, v in p.items()} | {"b4_v2.expected": th(gptq_unpack(p, 4, True).T.astype(f32))}
    return t, dict(layout="qweight i32 [in*bits/32, out] packed along the inputs, first lowest; qzeros i32 [groups, out*bits/32] packed along the outputs; scales f16 [groups, out]; g_idx i32 [in] gives the group of each input",
        three_bits="32 values in 3 words as one little-endian bit stream", value="(q - ((zero_stored + 1) mod 2^bits)) * scale[g_idx] (checkpoint_format gptq, v1); the case b4_v2 stores the zero itself (checkpoint_format gptq_v2)", symmetric="zero is 2^(bits-1), so v1 qzeros are 0x77777777 for 4 bits and 0x7f7f7f7f for 8", expected="transposed to the nn.Linear shape [out, in]; group 32")
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
def awq_pack(q, z, s):
    f = lambda a: i32(bits32(a.reshape(a.shape[0], -1, 8)[..., AWQ_ORDER])); return {"qweight": f(q), "qzeros": f(z), "scales": th(s).half()}
def awq_unpack(t, group):
    def f(a):
        n = (a.numpy().view(np.uint32)[..., None] >> (np.arange(8, dtype=np.uint32) * 4)) & 15; o = np.empty_like(n); o[..., AWQ_ORDER] = n; return o.reshape(n.shape[0], -1).astype(f32)
    g = np.arange(t["qweight"].shape[0]) // group; return (f(t["qweight"]) - f(t["qzeros"])[g]) * t["scales"].float().numpy()[g]
def awq():
    t = {}
    for group in (32, 64, 128):
        w = rnd(128, 32); q, z, s = zq(w, np.arange(128) // group, 4, 0); p = awq_pack(q, z, s); e = awq_unpack(p, group); assert np.abs(e - w).max() < 1.2 * s.max()
        t |= {f"g{group}.{k}": v for k, v in p.items()} | {f"g{group}.expected": th(e.T.astype(f32))}
    return t, dict(layout="gemm: qweight i32 [in, out/8] packed along the outputs, qzeros i32 [in/group, out/8], scales f16 [in/group, out]", order="nibble i (lowest first) of a word holds column 8*word + [0,2,4,6,1,3,5,7][i], in qweight and in qzeros", value="(q - zero) * scale, no +1", expected="transposed to the nn.Linear shape [out, in]")

# ------------------------------------------------------------------ MLC
def mlc():
    t = {}
    for c, kn in (("q4f16_1", 0), ("q4f16_0", 1)):
        w = rnd(64, 128).astype(np.float16).astype(f32); x = w.reshape(64, 4, 32); s = (np.abs(x).max(-1).astype(np.float16) / np.float16(7)).astype(np.float16).astype(f32)
        q = np.clip(np.round(x / s[..., None] + 7), 0, 14).astype(np.uint32); p = bits32(q.reshape(64, 16, 8)); e = ((q.astype(f32) - 7) * s[..., None]).reshape(64, 128)
        if kn: p, s = p.T.copy(), s.T.copy()
        t |= {f"{c}.q_weight": th(p.view(np.int32)).view(torch.uint32), f"{c}.q_scale": th(s).half(), f"{c}.expected": th(e)}
    return t, dict(layout="q4f16_1: q_weight u32 [out, in/8] first value lowest, q_scale f16 [out, in/32]; q4f16_0: both transposed", value="(q - 7) * scale, q in 0..14, in f16 on the device; expected here is the f32 product", expected="[out, in]")

# ------------------------------------------------------------------ ternary
def bitnet_ternary():
    q = RNG.integers(-1, 2, (96, 64)).astype(np.int8); p = np.zeros((24, 64), np.uint8)
    for i in range(4): p |= ((q[i * 24:(i + 1) * 24] + 1).astype(np.uint8)) << (2 * i)
    s = np.float32(0.046875); t = {"weight": th(p), "weight_scale": torch.tensor([s]).bfloat16(), "expected": th(q.astype(f32) * s)}
    for c, blk in (("i2_s_x86", 128), ("i2_s_arm", 64)):          # BitNet.cpp: blocks of 4 groups, the first group in the top two bits
        g = (q + 1).astype(np.uint8).reshape(-1, 4, blk // 4); b = (g << np.array([6, 4, 2, 0], np.uint8)[:, None]).sum(1, dtype=np.uint8).reshape(-1)
        t[c] = th(np.concatenate([b, s.reshape(1).view(np.uint8), np.zeros(28, np.uint8)]))
    return t, dict(i2_s="bytes of the whole tensor in row-major order (n/4 bytes), then the f32 scale and 28 bytes of padding; block of 128 (x86) or 64 (ARM) values = 32 or 16 bytes, byte p holds values p, p+32, p+64, p+96 (ARM: p, p+16, ...) in bits 7-6, 5-4, 3-2, 1-0, value + 1; same `expected`. Written from the public BitNet.cpp source (which also has a build that packs four rows per byte); not checked against a published file.",
        layout="u8 [out/4, in]; with R = out/4, bits 2i..2i+1 of byte [r, c] hold row i*R + r (not 4r + i), value + 1", value="q * weight_scale for linear_class autobitlinear; q / weight_scale for linear_class bitlinear")

# ------------------------------------------------------------------ GGUF blocks
def q4k(w):
    """A plain Q4_K quantiser (blocks of 256: eight sub-blocks of 32 with 6-bit scale and minimum)."""
    x = w.reshape(-1, 8, 32); lo = np.minimum(x.min(-1), 0); sc = np.maximum((x.max(-1) - lo) / 15, 1e-9); mn = -lo
    d = (sc.max(-1) / 63).astype(np.float16); dm = (np.maximum(mn.max(-1), 1e-9) / 63).astype(np.float16); D, DM = d.astype(f32)[:, None], dm.astype(f32)[:, None]
    S = np.clip(np.round(sc / D), 1, 63).astype(np.uint8); N = np.clip(np.round(mn / np.maximum(DM, 1e-12)), 0, 63).astype(np.uint8)
    q = np.clip(np.round((x + (DM * N)[..., None]) / (D * S)[..., None]), 0, 15).astype(np.uint8)
    k = np.empty((len(x), 12), np.uint8); k[:, 0:4] = S[:, :4] | ((S[:, 4:] >> 4) << 6); k[:, 4:8] = N[:, :4] | ((N[:, 4:] >> 4) << 6); k[:, 8:] = (S[:, 4:] & 15) | ((N[:, 4:] & 15) << 4)
    qs = (q[:, 0::2] | (q[:, 1::2] << 4)).reshape(len(x), 128)
    return np.concatenate([d[:, None].view(np.uint8), dm[:, None].view(np.uint8), k, qs], 1).reshape(*w.shape[:-1], -1)
def q6k(w):
    """A plain Q6_K quantiser (sixteen sub-blocks of 16 with 8-bit scale)."""
    x = w.reshape(-1, 16, 16); sc = np.maximum(np.abs(x).max(-1) / 31, 1e-9); d = (sc.max(-1) / 127).astype(np.float16); D = d.astype(f32)[:, None]
    S = np.clip(np.round(sc / D), 1, 127).astype(np.int8); q = (np.clip(np.round(x / (D * S)[..., None]), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    ql = np.concatenate([(q[:, :, 0:2] & 15) | ((q[:, :, 2:4] & 15) << 4)], 2).reshape(-1, 128); h = q >> 4
    qh = (h[:, :, 0] | (h[:, :, 1] << 2) | (h[:, :, 2] << 4) | (h[:, :, 3] << 6)).reshape(-1, 64)
    return np.concatenate([ql, qh, S.view(np.uint8), d[:, None].view(np.uint8)], 1).reshape(*w.shape[:-1], -1)
def gquant(w, qt):
    if qt == QT.F32: return w.astype(f32)
    if qt == QT.F16: return w.astype(np.float16)
    return q4k(w) if qt == QT.Q4_K else q6k(w) if qt == QT.Q6_K else GQ.quantize(w, qt)
# where the 16-bit block scales lie, for formats that the package can only decode: blocks are then made of random bytes with sane scales
SCALE_AT = {QT.Q2_K: (80, 82), QT.Q3_K: (108,), QT.Q5_K: (0, 2), QT.IQ4_NL: (0,), QT.IQ4_XS: (0,), QT.IQ2_XXS: (0,), QT.IQ2_XS: (0,), QT.IQ2_S: (0,), QT.IQ3_XXS: (0,), QT.IQ3_S: (0,), QT.IQ1_S: (0,)}
def gguf_blocks():
    t, how, wr = {}, {}, gguf.GGUFWriter(None, "llama")
    for qt in (QT.F16, QT.BF16, QT.Q4_0, QT.Q4_1, QT.Q5_0, QT.Q5_1, QT.Q8_0, QT.Q4_K, QT.Q6_K, QT.TQ1_0, QT.TQ2_0, QT.MXFP4, *SCALE_AT):
        per, size = gguf.GGML_QUANT_SIZES[qt]; rows = 2
        if qt in SCALE_AT:
            n = rows * 512 // per; b = RNG.integers(0, 256, (n, size)).astype(np.uint8)
            for o in SCALE_AT[qt]: b[:, o:o + 2] = (RNG.uniform(0.002, 0.02, (n, 1)) * np.where(RNG.random((n, 1)) < .2, -1, 1)).astype(np.float16).view(np.uint8)
            b = b.reshape(rows, -1); how[qt.name] = "random bytes, decoded"
        else:
            w = rnd(rows, 512); w[0, :32] = 0; b = gquant(w, qt); how[qt.name] = "quantised from random weights"
        e = GQ.dequantize(b, qt).reshape(rows, 512).astype(f32) if qt not in (QT.F16,) else b.astype(f32)
        assert np.isfinite(e).all()
        if qt not in SCALE_AT: how[qt.name] += f", max error {np.abs(e - w).max():.3g}"
        t[f"{qt.name}.blocks"] = th(b.view(np.uint8).reshape(rows, -1)); t[f"{qt.name}.expected"] = th(e)
    return t, dict(layout="blocks u8 [rows, bytes per row]: the raw rows as they lie in a .gguf file; expected f32 [2, 512] from gguf.quants.dequantize", how=how, edge="where quantised, the first 32 values of row 0 are zero", ggml_type={q.name: int(q) for q in QT if f"{q.name}.blocks" in t})

# ------------------------------------------------------------------ whole models
def golden(m, d, n=32, vocab=256):
    x = M.pick_ids(m, n, {}, seed=909, hi=vocab - 6); logits = m(input_ids=x, use_cache=False).logits[0].float(); g, last, gap = M.greedy_golden(m, x)
    out = {"input_ids": x, "logits": logits, "greedy": g, "greedy_logits_last": last, "greedy_gap": gap}
    save_file({k: v.clone().contiguous() for k, v in out.items()}, f"{d}/golden.safetensors"); return out
def tiny(cls, cfg, seed, **k):
    kw = M.base(**{**dict(hidden_size=64, intermediate_size=96, head_dim=..., num_hidden_layers=2), **k}); torch.manual_seed(seed)
    m = M.perturb(M.eager(getattr(T, cls)(getattr(T, cfg)(**kw))).float(), seed); M.round_to(m, M.F16); return m
def save_model(d, m, tensors, extra, legacy=True):
    m.config.dtype = torch.float16; m.config.architectures = [type(m).__name__]; m.config.save_pretrained(d); p = f"{d}/config.json"
    if legacy: M.legacy_config(p)
    fmt = extra.pop("_format", "pt"); c = json.load(open(p)); c.update(extra); json.dump(c, open(p, "w"), indent=2, sort_keys=True)
    save_file({k: v.clone().contiguous() for k, v in tensors.items()}, f"{d}/model.safetensors", metadata={"format": fmt})
def linears(m): return [(n, l) for n, l in m.named_modules() if isinstance(l, torch.nn.Linear) and "lm_head" not in n]
def rest(m, done): return {k: v.half() for k, v in m.state_dict().items() if k.rsplit(".", 1)[0] not in done and not (k == "lm_head.weight" and m.config.tie_word_embeddings)} | {n + ".bias": l.bias.half() for n, l in linears(m) if l.bias is not None}

def model_mlx(d):
    m = tiny("Qwen3ForCausalLM", "Qwen3Config", 31, head_dim=32); t, done, q = {}, set(), {"group_size": 64, "bits": 4, "mode": "affine"}
    for n, l in linears(m) + [("model.embed_tokens", m.model.embed_tokens)]:
        b, g = (6, 32) if n.endswith("down_proj") else (4, 64)
        if (b, g) != (4, 64): q[n] = {"group_size": g, "bits": b}
        p, s, z = mlx_quant(l.weight.numpy(), b, g, "f16"); l.weight.copy_(th(mlx_dequant(p, s, z, b, g))); done.add(n)
        t |= {n + ".weight": th(p.view(np.int32)).view(torch.uint32), n + ".scales": store(s, "f16"), n + ".biases": store(z, "f16")}
    save_model(d, m, t | rest(m, done), {"quantization": q, "quantization_config": q, "_format": "mlx"}); g = golden(m, d)
    return g, m, dict(note="qwen3 as mlx-lm writes it: 4 bit group 64 everywhere including the embedding (which is also the head), 6 bit group 32 for down_proj through per-module overrides in config.quantization")
def model_gptq(d):
    m = tiny("LlamaForCausalLM", "LlamaConfig", 32); t, done = {}, set(); m.config.tie_word_embeddings = True
    for n, l in linears(m):
        k = l.in_features; g = RNG.permutation(np.arange(k) // 32); q, z, s = zq(l.weight.numpy().T, g, 4, True); p = gptq_pack(q, z, s, g, 4); l.weight.copy_(th(gptq_unpack(p, 4).T.copy())); done.add(n); t |= {f"{n}.{a}": v for a, v in p.items()}
    save_model(d, m, t | rest(m, done), {"quantization_config": {"bits": 4, "group_size": 32, "desc_act": True, "sym": True, "true_sequential": True, "damp_percent": 0.01, "static_groups": False, "quant_method": "gptq", "checkpoint_format": "gptq"}}); return golden(m, d), m, dict(note="llama, GPTQ 4 bit group 32 with act-order (g_idx is a permutation), symmetric")
def model_awq(d):
    m = tiny("Qwen2ForCausalLM", "Qwen2Config", 33); t, done = {}, set()
    for n, l in linears(m):
        q, z, s = zq(l.weight.numpy().T, np.arange(l.in_features) // 32, 4, False); p = awq_pack(q, z, s); l.weight.copy_(th(awq_unpack(p, 32).T.copy())); done.add(n); t |= {f"{n}.{a}": v for a, v in p.items()}
    save_model(d, m, t | rest(m, done), {"quantization_config": {"bits": 4, "group_size": 32, "version": "gemm", "zero_point": True, "quant_method": "awq", "modules_to_not_convert": None}}); return golden(m, d), m, dict(note="qwen2 (biases stay f16), AWQ gemm 4 bit group 32 with zero points")

def permute(w, heads):
    """HF -> GGUF llama order of q and k rows: each head's two halves are interleaved, so rotary then acts on neighbouring pairs."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
def unpermute(w, heads): return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
def byte_tokens():
    """A 300-token byte-level BPE: 3 specials, 256 bytes, 41 merges."""
    vis = [*range(33, 127), *range(161, 173), *range(174, 256)]; ch, n = {b: chr(b) for b in vis}, 0
    for b in range(256):
        if b not in ch: ch[b] = chr(256 + n); n += 1
    words = "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic ne ea ra".split()
    return ["<unk>", "<s>", "</s>"] + [ch[b] for b in range(256)] + words, [f"{w[0]} {w[1]}" for w in words], [2, 3, 3] + [1] * 297
def gguf_model(d, seed, mix, ftype, **k):
    m = tiny("LlamaForCausalLM", "LlamaConfig", seed, vocab_size=300, **k); c = m.config; path = f"{d}/model.gguf"
    w = gguf.GGUFWriter(path, "llama"); tok, mer, typ = byte_tokens(); assert len(tok) == 300
    w.add_name("tiny"); w.add_context_length(c.max_position_embeddings); w.add_embedding_length(c.hidden_size); w.add_block_count(c.num_hidden_layers); w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads); w.add_head_count_kv(c.num_key_value_heads); w.add_layer_norm_rms_eps(c.rms_norm_eps); w.add_rope_freq_base(10000.0); w.add_rope_dimension_count(c.head_dim); w.add_vocab_size(300); w.add_file_type(ftype); w.add_quantization_version(2)
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("default"); w.add_token_list(tok); w.add_token_types(typ); w.add_token_merges(mer); w.add_bos_token_id(1); w.add_eos_token_id(2); w.add_unk_token_id(0)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    kinds = {}
    for n, p in m.named_parameters():
        if n == "model.embed_tokens.weight": g = "token_embd.weight"
        elif n == "model.norm.weight": g = "output_norm.weight"
        else: _, _, i, r = n.split(".", 3); g = f"blk.{i}.{names[r.removesuffix('.weight')]}.weight"
        a = p.numpy().astype(f32); heads = c.num_attention_heads if "attn_q" in g else c.num_key_value_heads if "attn_k." in g else 0
        qt = QT.F32 if a.ndim == 1 else next((q for key, q in mix.items() if key in g), mix["*"]); a = permute(a, heads) if heads else a
        raw = gquant(a, qt); w.add_tensor(g, raw, raw_dtype=qt if qt not in (QT.F32, QT.F16) else None); kinds[g] = qt.name
        b = GQ.dequantize(raw, qt).reshape(a.shape) if qt not in (QT.F32, QT.F16) else raw.astype(f32)
        p.copy_(th((unpermute(b, heads) if heads else b).astype(f32)))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close(); out = golden(m, d, vocab=300)
    try:                                                                            # the library's own GGUF loader must agree
        lib = M.eager(T.LlamaForCausalLM.from_pretrained(d, gguf_file="model.gguf", dtype=torch.float32)); diff = float((lib(input_ids=out["input_ids"]).logits[0] - out["logits"]).abs().max()); assert diff < 1e-3, diff
    except AssertionError: raise
    except Exception as e: diff = f"not run: {type(e).__name__} {str(e)[:120]}"
    return out, m, dict(tensor_types=kinds, library_gguf_loader_max_diff=diff, permutation="q and k rows are in GGUF llama order: HF row h*hd + j (j < hd/2) lies at h*hd + 2j and HF row h*hd + hd/2 + j at h*hd + 2j + 1; either undo it and rotate halves, or keep it and rotate neighbouring pairs",
        tied="there is no output.weight: the head is token_embd.weight", shape_order="GGUF lists dimensions fastest first, so [out, in] reads ne = [in, out]")
Q = dict(
 gguf_q4_k_m=lambda d: gguf_model(d, 41, {"attn_v": QT.Q6_K, "ffn_down": QT.Q6_K, "token_embd": QT.Q6_K, "*": QT.Q4_K}, 15, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_key_value_heads=1, head_dim=64, initializer_range=0.055),
 gguf_q8_0=lambda d: gguf_model(d, 42, {"*": QT.Q8_0}, 7, head_dim=16),
 gguf_tq2_0=lambda d: gguf_model(d, 43, {"token_embd": QT.Q4_0, "*": QT.TQ2_0}, 37, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_key_value_heads=1, head_dim=64, initializer_range=0.055))
TENSORS = dict(mlx_affine=mlx_affine, mlx_fp=mlx_fp, gptq=gptq, awq=awq, mlc=mlc, mxfp4_gpt_oss=mxfp4_gpt_oss, bitnet_ternary=bitnet_ternary, gguf_blocks=gguf_blocks)
MODELS = dict(model_mlx=model_mlx, model_gptq=model_gptq, model_awq=model_awq, **Q)

def main(out, only):
    global RNG
    for name, f in {**TENSORS, **MODELS}.items():
        if only and name not in only: continue
        d = f"{out}/{name}"; os.makedirs(d, exist_ok=True); RNG = np.random.default_rng([20260, *name.encode()])
        if name in TENSORS:
            t, meta = f(); save_file({k: v.clone().contiguous() for k, v in t.items()}, f"{d}/tensors.safetensors")
        else:
            t, m, meta = f(d); meta["model_class"] = type(m).__name__; meta["logits_std"] = round(float(t["logits"].std()), 3)
        meta = dict(name=name, **meta); meta["tensors" if name in TENSORS else "goldens"] = {k: f"{str(v.dtype)[6:]} {list(v.shape)}" for k, v in t.items()}
        json.dump(meta, open(f"{d}/meta.json", "w"), indent=1 if name in MODELS else None)
        print(f"ok   {name:16} {sum(os.path.getsize(f'{d}/{x}') for x in os.listdir(d)) // 1024:4} KB", {k: meta[k] for k in ("logits_std", "library_gguf_loader_max_diff") if k in meta})
if __name__ == "__main__": main(sys.argv[1], sys.argv[2:])
