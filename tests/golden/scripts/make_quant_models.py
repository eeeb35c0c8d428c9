#!/usr/bin/env python3
"""Whole tiny models in the encodings that make_quant.py leaves out.   usage: make_quant_models.py OUT [NAME...]

Needs what make_quant.py needs, and `tokenizers`. Packings are those of make_quant.py and make_formats.py, written out there.
    OUT/<name>/   a checkpoint as its converter writes it, with golden.safetensors: ids, logits and greedy ids of transformers run
                  on the dequantised weights in f32
    OUT/twin_*/   a GGUF file with its tokenizer inside and the safetensors checkpoint of the same weights
"""
import json, os, sys
import numpy as np
import make_quant as Q, make_formats as F
import gguf, torch
from safetensors.torch import save_file
f32, th = np.float32, Q.th
RNG = np.random.default_rng(77)

def tiny(cls, cfg, seed, **k):
    return Q.tiny(cls, cfg, seed, **{**dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2), **k})
def llama(seed, **k): return tiny("LlamaForCausalLM", "LlamaConfig", seed, **k)
def qwen3(seed, **k): return tiny("Qwen3ForCausalLM", "Qwen3Config", seed, **{**dict(head_dim=32), **k})
def phi3(seed, **k): return tiny("Phi3ForCausalLM", "Phi3Config", seed, **{**dict(tie_word_embeddings=False, sliding_window=None), **k})

def each(m, quantise, extra=()):
    """Quantises every linear layer: `quantise(name, weight)` gives tensors by suffix and the dequantised weight."""
    t, done = {}, set()
    for n, l in Q.linears(m) + [(n, m.get_submodule(n)) for n in extra]:
        tensors, w = quantise(n, l.weight.numpy()); l.weight.copy_(th(np.ascontiguousarray(w, f32))); done.add(n); t |= {n + k: v for k, v in tensors.items()}
    return t, done
def write(d, m, t, done, extra, **k):
    if k.get("dtype"): m.config.dtype = k["dtype"]
    Q.save_model(d, m, t | Q.rest(m, done), extra); return Q.golden(m, d, n=16)

def mlx(m, d, bits=4, group=64, mode="affine", kind="f16", extra=(), overrides=True, special=None, distil=0.0):
    block = {"group_size": group, "bits": bits, "mode": mode}; config = dict(block)
    def one(n, w):
        b, g = (special or {}).get(n.split(".")[-1], (bits, group))
        if (b, g) != (bits, group) and overrides: config[n] = {"group_size": g, "bits": b}
        if mode == "mxfp4":
            x = w.reshape(len(w), -1, 32); e = np.round(np.log2(np.abs(x).max(-1) / 6)).astype(int); q = Q.fp4(x / np.exp2(e)[..., None])
            return {".weight": th(Q.bits32(q.reshape(len(w), -1, 8)).view(np.int32)).view(torch.uint32), ".scales": th((e + 127).astype(np.uint8))}, (Q.E2M1[q] * np.exp2(e)[..., None]).reshape(w.shape)
        p, s, z = Q.mlx_quant(w, b, g, kind)
        if distil: s, z = (Q.to16(a * (1 + distil * RNG.standard_normal(a.shape)), kind) for a in (s, z))  # scales that no minimum and maximum gave
        return {".weight": th(p.view(np.int32)).view(torch.uint32), ".scales": Q.store(s, kind), ".biases": Q.store(z, kind)}, Q.mlx_dequant(p, s, z, b, g)
    t, done = each(m, one, extra); return write(d, m, t, done, {"quantization": config, "quantization_config": config, "_format": "mlx"})
def gptq(m, d, act):
    def one(n, w):
        g = np.arange(w.shape[1]) // 32; g = RNG.permutation(g) if act == "each" else np.random.default_rng(w.shape[1] + (0 if "q_proj" in n or "k_proj" in n or "v_proj" in n else 1)).permutation(g) if act else g
        q, z, s = Q.zq(w.T, g, 4, True); p = Q.gptq_pack(q, z, s, g, 4); return {f".{k}": v for k, v in p.items()}, Q.gptq_unpack(p, 4).T
    t, done = each(m, one); return write(d, m, t, done, {"quantization_config": {"bits": 4, "group_size": 32, "desc_act": bool(act), "sym": True, "quant_method": "gptq", "checkpoint_format": "gptq"}})
def awq(m, d):
    def one(n, w):
        q, z, s = Q.zq(w.T, np.arange(w.shape[1]) // 32, 4, False); p = Q.awq_pack(q, z, s); return {f".{k}": v for k, v in p.items()}, Q.awq_unpack(p, 32).T
    t, done = each(m, one); return write(d, m, t, done, {"quantization_config": {"bits": 4, "group_size": 32, "version": "gemm", "zero_point": True, "quant_method": "awq"}})
def compressed(m, d, sym, order):
    def one(n, w):
        r, k = w.shape; g = k // 32; idx = RNG.permutation(np.arange(k) // 32) if order else np.arange(k) // 32; q = np.zeros((r, k), np.int64); s = np.zeros((r, g), f32); z = np.full((r, g), 8)
        for i in range(g):
            x = w[:, idx == i]; lo, hi = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
            s[:, i] = F.bf16(np.abs(x).max(1) / 7 if sym else (hi - lo) / 15)
            if not sym: z[:, i] = np.clip(np.round(-lo / s[:, i]), 0, 15)
            q[:, idx == i] = np.clip(np.round(x / s[:, i:i + 1]) + z[:, i:i + 1], 0, 15)
        t = {".weight_packed": th(F.pack(q, 4, 1)), ".weight_scale": th(F.bf16_bits(s)).view(torch.bfloat16), ".weight_shape": torch.tensor([r, k])}
        if not sym: t[".weight_zero_point"] = th(np.ascontiguousarray(F.pack(z.T, 4, 1).T))
        if order: t[".weight_g_idx"] = th(idx.astype(np.int32))
        return t, (q - z[:, idx]).astype(f32) * s[:, idx]
    weights = {"num_bits": 4, "type": "int", "symmetric": bool(sym), "group_size": 32, "strategy": "group", "actorder": "group" if order else None}
    t, done = each(m, one); return write(d, m, t, done, {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}})
def fp8(m, d, block):
    def one(n, w):
        r, k = w.shape; b = block or (r, k); x = np.zeros((-(-r // b[0]) * b[0], -(-k // b[1]) * b[1]), f32); x[:r, :k] = w
        s = (np.abs(x.reshape(-1, b[0], x.shape[1] // b[1], b[1])).max((1, 3)) / 448).astype(f32); S = np.repeat(np.repeat(s, b[0], 0), b[1], 1)[:r, :k]; u = Q.to_e4m3(w / S)
        name = ".weight_scale_inv" if block else ".weight_scale"
        return {".weight": th(u).view(torch.float8_e4m3fn), name: th(s) if block else th(s.reshape(1))}, F.bf16(Q.e4m3(u) * S)  # rounded once to bf16, as the libraries do
    q = {"quant_method": "fp8", "weight_block_size": list(block), "activation_scheme": "dynamic"} if block else {"quant_method": "fp8", "activation_scheme": "static"}
    t, done = each(m, one); return write(d, m, t, done, {"quantization_config": q})
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], f32)
def bnb4(m, d):
    levels = np.linspace(-1, 1, 256).astype(f32)
    def one(n, w):
        x = w.reshape(-1, 64); a = np.abs(x).max(1); off = f32(a.mean()); r = a - off; blocks = -(-len(a) // 256); n2 = np.array([np.abs(r[i * 256:(i + 1) * 256]).max() for i in range(blocks)], f32)
        per = np.repeat(n2, 256)[:len(a)]; b = np.abs((r / np.maximum(per, 1e-12))[:, None] - levels).argmin(1).astype(np.uint8); A = (levels[b] * per).astype(f32) + off
        c = np.abs((x / A[:, None])[..., None] - NF4).argmin(-1).reshape(-1); packed = (c[0::2] << 4 | c[1::2]).astype(np.uint8).reshape(-1, 1)
        state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(w.shape), "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(off)}).encode()
        t = {".weight": th(packed), ".weight.absmax": th(b), ".weight.quant_map": th(NF4), ".weight.nested_absmax": th(n2), ".weight.nested_quant_map": th(levels), ".weight.quant_state.bitsandbytes__nf4": th(np.frombuffer(state, np.uint8).copy())}
        return t, (NF4[c] * np.repeat(A, 64)).astype(f32).reshape(w.shape).astype(np.float16)
    t, done = each(m, one); return write(d, m, t, done, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "float16"}})
def bnb8(m, d):
    def one(n, w):
        a = np.abs(w).max(1).astype(f32); q = np.clip(np.round(w / a[:, None] * 127), -127, 127).astype(np.int8); return {".weight": th(q), ".SCB": th(a), ".weight_format": torch.tensor(0, dtype=torch.uint8)}, q.astype(f32) * (a / f32(127))[:, None]
    t, done = each(m, one); return write(d, m, t, done, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}})
def mlc(m, d):
    """q4f16_1 as mlc_llm convert_weight writes it: fused projections, one shard, the shard list with offsets."""
    c, sd, out = m.config, m.state_dict(), {}
    def q4(w):
        x = w.reshape(len(w), -1, 32); s = (np.abs(x).max(-1).astype(np.float16) / np.float16(7)).astype(np.float16); S = s.astype(f32); n = np.clip(np.round(x / np.maximum(S, 1e-12)[..., None] + 7), 0, 14).astype(np.uint32)
        return Q.bits32(n.reshape(len(w), -1, 8)), s, ((n.astype(f32) - 7) * S[..., None]).reshape(w.shape)
    attention = {"qwen3": "c_attn"}.get(c.model_type, "qkv_proj"); phi = c.model_type == "phi3"
    def mlc_name(n):
        if not phi: return n
        n = n.replace("model.embed_tokens.", "transformer.embd.").replace("model.norm.", "transformer.norm.").replace("model.layers.", "transformer.h.").replace(".input_layernorm.", ".ln.")
        return n.replace(".self_attn.o_proj.", ".mixer.out_proj.").replace(".self_attn.qkv_proj.", ".mixer.qkv_proj.")
    groups, used = [], set()
    for n in sd:
        if n == "lm_head.weight" and c.tie_word_embeddings: continue
        if n.endswith("q_proj.weight"): groups.append((n.replace("q_proj", attention), [n, n.replace("q_proj", "k_proj"), n.replace("q_proj", "v_proj")]))
        elif n.endswith("gate_proj.weight"): groups.append((n.replace("gate_proj", "gate_up_proj"), [n, n.replace("gate_proj", "up_proj")]))
        elif not any(p in n for p in ("k_proj", "v_proj", "up_proj.weight")) or "gate_up" in n or "qkv" in n: groups.append((n, [n]))
    shard, records = b"", []
    def add(name, a, dtype):
        nonlocal shard; b = np.ascontiguousarray(a).tobytes(); records.append({"name": name, "shape": list(a.shape), "dtype": dtype, "format": "f32-to-bf16", "nbytes": len(b), "byteOffset": len(shard)}); shard += b
    for name, parts in groups:
        w = np.concatenate([sd[p].numpy() for p in parts]); target = mlc_name(name)
        if w.ndim == 1: add(target, w.astype(np.float16), "float16"); continue
        p, s, e = q4(w); base = target.removesuffix(".weight"); add(f"{base}.q_weight", p, "uint32"); add(f"{base}.q_scale", s, "float16"); first = 0
        for part in parts: n = len(sd[part]); m.get_parameter(part).copy_(th(e[first:first + n].copy())); first += n
    rope = c.rope_parameters["rope_theta"] if isinstance(getattr(c, "rope_parameters", None), dict) else 10000.0
    keys = ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "vocab_size", "head_dim", "tie_word_embeddings"]
    config = {k: getattr(c, k) for k in keys if getattr(c, k, None) is not None} | {"position_embedding_base": rope, "context_window_size": c.max_position_embeddings, "prefill_chunk_size": 64, "tensor_parallel_shards": 1}
    json.dump({"version": "0.1.0", "model_type": c.model_type, "quantization": "q4f16_1", "model_config": config, "vocab_size": c.vocab_size, "context_window_size": c.max_position_embeddings, "sliding_window_size": -1, "bos_token_id": 1, "eos_token_id": 2}, open(f"{d}/mlc-chat-config.json", "w"), indent=1)
    json.dump({"metadata": {"ParamSize": len(records), "ParamBytes": float(len(shard)), "BitsPerParam": 4.5}, "records": [{"dataPath": "params_shard_0.bin", "format": "raw-shard", "nbytes": len(shard), "records": records}]}, open(f"{d}/ndarray-cache.json", "w"))
    open(f"{d}/params_shard_0.bin", "wb").write(shard); return Q.golden(m, d, n=16)

# ------------------------------------------------------------------ GGUF twins
LLAMA = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
def gguf_file(path, m, arch, fill):
    c = m.config; w = gguf.GGUFWriter(path, arch); w.add_name("twin"); w.add_context_length(c.max_position_embeddings); w.add_embedding_length(c.hidden_size); w.add_block_count(c.num_hidden_layers); w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads); w.add_head_count_kv(c.num_key_value_heads); w.add_layer_norm_rms_eps(c.rms_norm_eps); w.add_rope_freq_base(c.rope_parameters["rope_theta"] if isinstance(getattr(c, "rope_parameters", None), dict) else 10000.0)
    if arch == "llama": w.add_rope_dimension_count(c.head_dim)
    else: w.add_key_length(c.head_dim); w.add_value_length(c.head_dim)
    w.add_vocab_size(c.vocab_size); w.add_file_type(1); fill(w)
    for n, p in m.named_parameters():
        g = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(n)
        if g is None: _, _, i, r = n.split(".", 3); g = f"blk.{i}.{LLAMA[r.removesuffix('.weight')]}.weight"
        a = p.detach().numpy().astype(f32); heads = (c.num_attention_heads if "attn_q." in g else c.num_key_value_heads if "attn_k." in g else 0) if arch == "llama" else 0
        a = Q.permute(a, heads) if heads else a; w.add_tensor(g, a.astype(np.float16) if a.ndim == 2 else a)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
def twin_stories(d):
    """The bundled model (SentencePiece tokenizer) as a GGUF file of 16 bits; its twin is www/public/models/stories260K read as f16."""
    src = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../www/public/models/stories260K")
    m = Q.T.LlamaForCausalLM.from_pretrained(src, dtype=torch.float32); tok = json.load(open(f"{src}/tokenizer.json")); assert tok["model"]["type"] == "BPE", tok["model"]["type"]
    vocab = sorted(tok["model"]["vocab"].items(), key=lambda kv: kv[1]); merges = [x if isinstance(x, list) else x.split(" ") for x in tok["model"]["merges"]]; rank = {"".join(p): i for i, p in enumerate(merges)}
    special = {t["content"] for t in tok["added_tokens"]}; n = len(vocab)
    kind = [6 if v.startswith("<0x") else (2 if v == "<unk>" else 3) if v in special else 1 for v, _ in vocab]; scores = [-float(rank[v]) if v in rank else -1e6 if k == 1 else 0.0 for (v, _), k in zip(vocab, kind)]
    def fill(w): w.add_tokenizer_model("llama"); w.add_tokenizer_pre("default"); w.add_token_list([v for v, _ in vocab]); w.add_token_scores(scores); w.add_token_types(kind); w.add_bos_token_id(1); w.add_eos_token_id(2); w.add_unk_token_id(0)
    gguf_file(f"{d}/model.gguf", m, "llama", fill); return {}
def twin_qwen3(d):
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, Regex, AddedToken
    m = qwen3(91, vocab_size=304, num_attention_heads=2, num_key_value_heads=1); c = m.config; tok, mer, _ = Q.byte_tokens(); tok = tok[3:]; names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    t = Tokenizer(models.BPE({v: i for i, v in enumerate(tok)}, [tuple(x.split(" ")) for x in mer])); t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]); t.decoder = decoders.ByteLevel()
    t.add_tokens([AddedToken(x, special=not x.startswith(("<think", "</", "<tool")), normalized=False) for x in names]); t.save(f"{d}/tokenizer.json")
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    first = len(tok); json.dump({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "add_bos_token": False, "chat_template": template}, open(f"{d}/tokenizer_config.json", "w"), indent=1)
    m.config.eos_token_id = first + 2; m.config.bos_token_id = None; m.config.pad_token_id = first; Q.save_model(d, m, Q.rest(m, set()), {})
    def fill(w):
        pad = c.vocab_size - first - len(names); w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("qwen2"); w.add_token_list(tok + names + [f"[PAD{i}]" for i in range(pad)])
        w.add_token_types([1] * first + [3 if not x.startswith(("<think", "</", "<tool")) else 4 for x in names] + [5] * pad); w.add_token_merges(mer); w.add_eos_token_id(first + 2); w.add_pad_token_id(first); w.add_add_bos_token(False); w.add_chat_template(template)
    gguf_file(f"{d}/model.gguf", m, "qwen3", fill); return {}

MODELS = dict(
    phi3_mlx=lambda d: mlx(phi3(51), d), phi3_gptq=lambda d: gptq(phi3(52), d, None), phi3_ct=lambda d: compressed(phi3(53), d, True, False), phi3_fp8=lambda d: fp8(phi3(54), d, (48, 32)), phi3_mlc=lambda d: mlc(phi3(55), d),
    llama_mxfp4=lambda d: mlx(llama(61), d, 4, 32, "mxfp4", extra=["model.embed_tokens"]), llama_gptq_order=lambda d: gptq(llama(62), d, "shared"), llama_ct_order=lambda d: compressed(llama(63), d, False, True), llama_bnb8=lambda d: bnb8(llama(64), d), llama_mlc=lambda d: mlc(llama(65), d),
    llama_dwq=lambda d: mlx(llama(66), d, 4, 64, kind="bf16", extra=["model.embed_tokens"], overrides=False, special={"embed_tokens": (8, 64), "down_proj": (6, 32), "v_proj": (5, 32)}, distil=0.03),
    qwen3_awq=lambda d: awq(qwen3(71), d), qwen3_ct_asym=lambda d: compressed(qwen3(72), d, False, False), qwen3_fp8=lambda d: fp8(qwen3(73), d, None), qwen3_nf4=lambda d: bnb4(qwen3(74), d), qwen3_mlc=lambda d: mlc(qwen3(75), d), qwen3_gptq=lambda d: gptq(qwen3(76), d, None),
    twin_stories=twin_stories, twin_qwen3=twin_qwen3)
def main(out, only):
    global RNG
    for name, make in MODELS.items():
        if only and name not in only: continue
        d = f"{out}/{name}"; os.makedirs(d, exist_ok=True); RNG = Q.RNG = F.RNG = np.random.default_rng([77, *name.encode()])
        with torch.no_grad(): t = make(d)
        for extra in ("generation_config.json",):
            if os.path.exists(f"{d}/{extra}"): os.remove(f"{d}/{extra}")
        gap = float(t["greedy_gap"].min()) if "greedy_gap" in t else None
        print(f"ok   {name:18} {sum(os.path.getsize(f'{d}/{x}') for x in os.listdir(d)) // 1024:4} KB  gap {gap}", flush=True)
if __name__ == "__main__": main(sys.argv[1], sys.argv[2:])
