#!/usr/bin/env python3
"""A tiny BitNet b1.58 as a GGUF file with the logits that transformers computes.   usage: make_bitnet_gguf.py ../quant

Needs numpy, torch, transformers 5.23.0, safetensors, gguf 0.19.0. Layer 0 is kept in I2_S as BitNet.cpp writes it on x86 (whole tensor, then one f32 scale and
28 bytes), layer 1 in TQ1_0 (attention) and TQ2_0 (MLP) as llama.cpp does, whose blocks have the tensor's scale in f16. gguf does not know I2_S, so the file is
written by hand; the tokenizer is left out.
"""
import os, struct, sys
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TORCHDYNAMO_DISABLE="1")
import numpy as np, torch, gguf, transformers as T
from safetensors.torch import save_file
from transformers.integrations import bitnet as B
torch.set_num_threads(1); torch.set_grad_enabled(False)

SIZES = dict(vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=64)
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.attn_sub_norm": "attn_sub_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.ffn_sub_norm": "ffn_sub_norm", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
KEY = "bitnet-b1.58"

def i2_s(codes, scale):
    """Byte p of 32 holds values p, p + 32, p + 64, p + 96 of 128, the first in the top bits, each plus one."""
    q = (codes.reshape(-1, 4, 32) + 1).astype(np.uint8)
    packed = q[:, 0] << 6 | q[:, 1] << 4 | q[:, 2] << 2 | q[:, 3]
    return packed.tobytes() + struct.pack("<f", scale) + bytes(28)

def text(s): return struct.pack("<Q", len(s)) + s.encode()

def field(key, value):
    if isinstance(value, str): return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float): return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)

def model():
    c = T.BitNetConfig(**SIZES, rms_norm_eps=1e-5, hidden_act="relu2", rope_parameters=dict(rope_type="default", rope_theta=5e5), tie_word_embeddings=True,
                       bos_token_id=1, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(77)
    m = T.BitNetForCausalLM(c)
    for n, p in m.named_parameters():
        p.copy_(torch.randn(p.shape) * 0.15 + 1 if p.ndim == 1 else torch.randn(p.shape) * 0.1)
        if n == "model.embed_tokens.weight": p.copy_(p.half().float())
    live, codes = {}, {}
    for k, v in m.state_dict().items():
        if k.endswith("_proj.weight"):
            scale = v.abs().mean().half().float()
            codes[k] = ((v / scale).round().clamp(-1, 1), scale)
            live[k], live[k + "_scale"] = codes[k][0], scale.reshape(1)
        else: live[k] = v
    rotations = {n: b.clone() for n, b in m.named_buffers() if "rotary" in n}
    B.replace_with_bitnet_linear(m, ["lm_head"], T.BitNetQuantConfig(modules_to_not_convert=["lm_head"], linear_class="autobitlinear", quantization_mode="offline"))
    m.to_empty(device="cpu"); m.load_state_dict(live, strict=False)
    for n, b in m.named_buffers():
        if n in rotations: b.copy_(rotations[n])
    for mod in m.modules():
        if isinstance(mod, B.BitLinear): mod.dtype = torch.float32
    m.tie_weights(); m.set_attn_implementation("eager")
    return m.eval(), live, codes

def main(out):
    m, live, codes = model()
    os.makedirs(f"{out}/gguf_bitnet", exist_ok=True)
    ids = torch.randint(3, 64, (1, 20), generator=torch.Generator().manual_seed(5))
    save_file({"input_ids": ids, "logits": m(input_ids=ids, use_cache=False).logits[0].contiguous()}, f"{out}/gguf_bitnet/golden.safetensors")
    tensors = []
    for name, v in live.items():
        if name.endswith("_scale") or name == "lm_head.weight": continue
        if name in WHOLE: here = WHOLE[name]
        else:
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            here = f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
        shape = v.shape[::-1]
        if name in codes:
            q, scale = codes[name]
            if here.startswith("blk.0"): kind, data = 36, i2_s(q.numpy(), float(scale))
            else:
                quant = gguf.GGMLQuantizationType.TQ1_0 if "attn" in here else gguf.GGMLQuantizationType.TQ2_0
                kind, data = int(quant), gguf.quants.quantize((q * scale).numpy(), quant).tobytes()
        elif v.ndim == 1: kind, data = 0, v.numpy().astype(np.float32).tobytes()
        else: kind, data = 1, v.numpy().astype(np.float16).tobytes()
        tensors.append((here, shape, kind, data))
    fields = {"general.architecture": KEY, f"{KEY}.embedding_length": 256, f"{KEY}.block_count": 2, f"{KEY}.feed_forward_length": 256, f"{KEY}.context_length": 64,
              f"{KEY}.attention.head_count": 4, f"{KEY}.attention.head_count_kv": 1, f"{KEY}.attention.layer_norm_rms_epsilon": 1e-5, f"{KEY}.rope.freq_base": 5e5}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(field(k, v) for k, v in fields.items())
    at, infos, body = 0, b"", b""
    for name, shape, kind, data in tensors:
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, at)
        body += data + bytes(-len(data) % 32)
        at = len(body)
    head += infos
    open(f"{out}/gguf_bitnet/model.gguf", "wb").write(head + bytes(-len(head) % 32) + body)

main(sys.argv[1])
