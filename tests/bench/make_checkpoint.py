#!/usr/bin/env python3
"""Writes a checkpoint of a real model's shape with seeded random weights, for benchmarks: make_checkpoint.py SHAPE OUT [f16|mlx4]

f16: 16-bit floats (the default). mlx4: MLX's 4-bit codes in groups of 64, with a scale and a bias each.
The speed of a dense model does not depend on its weights. Scales are small, so that logits stay finite. The random bytes repeat after a
while, so that the files compress well. Needs numpy.
"""
import json, os, sys
import numpy as np

SHAPES = {
    "tiny": dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=128, intermediate_size=256,
                 num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=1024,
                 tie_word_embeddings=True, rope_theta=5e5, rms_norm_eps=1e-5, max_position_embeddings=131072),
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
    "phi-3-mini": dict(architectures=["Phi3ForCausalLM"], model_type="phi3", hidden_size=3072, intermediate_size=8192,
                       num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, head_dim=96,
                       vocab_size=32064, tie_word_embeddings=False, rope_theta=1e4, rms_norm_eps=1e-5,
                       max_position_embeddings=4096, sliding_window=2047),
    "llama-3.1-8b": dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096,
                         intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=128, vocab_size=128256, tie_word_embeddings=False, rope_theta=5e5, rms_norm_eps=1e-5,
                         max_position_embeddings=131072),
}

GROUP = 64


def tensors(c):
    h, i, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    d = c.get("head_dim", h // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (v, h)
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        yield p + "input_layernorm.weight", (h,)
        yield p + "post_attention_layernorm.weight", (h,)
        if c["model_type"] == "phi3":
            yield p + "self_attn.qkv_proj.weight", (q + 2 * kv, h)
            yield p + "mlp.gate_up_proj.weight", (2 * i, h)
        else:
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                yield p + f"self_attn.{name}_proj.weight", (rows, h)
                if c["model_type"] == "qwen2":
                    yield p + f"self_attn.{name}_proj.bias", (rows,)
                if c["model_type"] == "qwen3" and name != "v":
                    yield p + f"self_attn.{name}_norm.weight", (d,)
            yield p + "mlp.gate_proj.weight", (i, h)
            yield p + "mlp.up_proj.weight", (i, h)
        yield p + "self_attn.o_proj.weight", (h, q)
        yield p + "mlp.down_proj.weight", (h, i)
    yield "model.norm.weight", (h,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (v, h)


def parts(config, stored):
    """Name, dtype, shape and values of every tensor as it is stored; the values as a function."""
    rng = np.random.default_rng(1)
    period = 16_381  # a prime: rows of no width repeat
    normal = (rng.standard_normal(period) * 0.02).astype(np.float16)
    codes = rng.integers(0, 2**32, period, np.uint32)
    scales = (0.02 / 4.61 * (0.9 + 0.2 * rng.random(8_191))).astype(np.float16)
    resized = lambda values, dims: lambda: np.resize(values, int(np.prod(dims)))
    for name, dims in tensors(config):
        if len(dims) == 1:
            filled = np.ones if "norm" in name else np.zeros
            yield name, "F16", dims, lambda dims=dims, filled=filled: filled(dims, np.float16)
        elif stored == "f16" or dims[1] % GROUP:
            yield name, "F16", dims, resized(normal, dims)
        else:
            words, groups = (dims[0], dims[1] // 8), (dims[0], dims[1] // GROUP)
            base = name.removesuffix(".weight")
            yield name, "U32", words, resized(codes, words)
            yield base + ".scales", "F16", groups, resized(scales, groups)
            yield base + ".biases", "F16", groups, resized(np.float16(-7.5) * scales, groups)


def main(shape, out, stored="f16"):
    config = dict(SHAPES[shape], hidden_act="silu", torch_dtype="float16")
    if stored == "mlx4":
        config["quantization"] = {"group_size": GROUP, "bits": 4}
    os.makedirs(out, exist_ok=True)
    with open(f"{out}/config.json", "w") as f:
        json.dump(config, f, indent=1)
    header, offset = {}, 0
    for name, dtype, dims, _ in parts(config, stored):
        size = int(np.prod(dims)) * (4 if dtype == "U32" else 2)
        header[name] = {"dtype": dtype, "shape": list(dims), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{out}/model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, values in parts(config, stored):
            values().tofile(f)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in SHAPES or sys.argv[3:] not in ([], ["f16"], ["mlx4"]):
        sys.exit(__doc__ + "\nshapes: " + ", ".join(SHAPES))
    main(*sys.argv[1:])
