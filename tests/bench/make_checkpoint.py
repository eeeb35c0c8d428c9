#!/usr/bin/env python3
"""Writes a checkpoint of a real model's shape with seeded random weights, for benchmarks: make_checkpoint.py SHAPE OUT

The speed of a dense model does not depend on its weights. Scales are small, so that logits stay finite.
Needs numpy and safetensors.
"""
import json, os, sys
import numpy as np

SHAPES = {
    "qwen2-0.5b": dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=896, intermediate_size=4864,
                       num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936,
                       tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=32768),
    "qwen2-1.5b": dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=1536, intermediate_size=8960,
                       num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936,
                       tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=32768),
    "qwen3-0.6b": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=1024, intermediate_size=3072,
                       num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                       vocab_size=151936, tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6,
                       max_position_embeddings=40960),
    "llama-3.2-1b": dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=2048,
                         intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=64, vocab_size=128256, tie_word_embeddings=True, rope_theta=5e5, rms_norm_eps=1e-5,
                         max_position_embeddings=131072),
    "llama-3.1-8b": dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096,
                         intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=128, vocab_size=128256, tie_word_embeddings=False, rope_theta=5e5, rms_norm_eps=1e-5,
                         max_position_embeddings=131072),
}


def tensors(c):
    h, i, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    d = c.get("head_dim", h // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (v, h)
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        yield p + "input_layernorm.weight", (h,)
        yield p + "post_attention_layernorm.weight", (h,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield p + f"self_attn.{name}_proj.weight", (rows, h)
            if c["model_type"] == "qwen2":
                yield p + f"self_attn.{name}_proj.bias", (rows,)
            if c["model_type"] == "qwen3" and name != "v":
                yield p + f"self_attn.{name}_norm.weight", (d,)
        yield p + "self_attn.o_proj.weight", (h, q)
        yield p + "mlp.gate_proj.weight", (i, h)
        yield p + "mlp.up_proj.weight", (i, h)
        yield p + "mlp.down_proj.weight", (h, i)
    yield "model.norm.weight", (h,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (v, h)


def main(shape, out):
    config = dict(SHAPES[shape], hidden_act="silu", torch_dtype="float16")
    os.makedirs(out, exist_ok=True)
    with open(f"{out}/config.json", "w") as f:
        json.dump(config, f, indent=1)
    rng = np.random.default_rng(1)
    block = (rng.standard_normal(1 << 20) * 0.02).astype(np.float16)
    header, offset = {}, 0
    for name, dims in tensors(config):
        size = int(np.prod(dims)) * 2
        header[name] = {"dtype": "F16", "shape": list(dims), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{out}/model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for index, (name, dims) in enumerate(tensors(config)):
            count = int(np.prod(dims))
            values = np.ones(count, np.float16) if "norm" in name else np.resize(np.roll(block, 7919 * index), count)
            values.tofile(f)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(__doc__ + "\nshapes: " + ", ".join(SHAPES))
    main(*sys.argv[1:])
