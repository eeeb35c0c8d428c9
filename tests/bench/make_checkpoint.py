#!/usr/bin/env python3
"""Writes a checkpoint of a real model's shape with seeded random weights, for benchmarks: make_checkpoint.py SHAPE OUT [f16|mlx4]

SHAPE: a decoder of www/bench/shapes.json (model types llama, qwen2, qwen3, phi3, qwen3_5_text).
f16: half precision (the default). mlx4: MLX's 4-bit codes in groups of 64, with a scale and a bias each.
The speed of a dense model does not depend on its weights. Scales are small, so that logits stay finite. The random bytes repeat after a
while, so that the files compress well. Needs numpy.
"""
import json, os, sys
import numpy as np

with open(os.path.join(os.path.dirname(__file__), "../../www/bench/shapes.json")) as shapes:
    SHAPES = {name: shape["config"] for name, shape in json.load(shapes).items() if shape["config"]["model_type"] != "bert"}

GROUP = 64


def tensors(c):
    h, i, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    d = c.get("head_dim", h // c["num_attention_heads"])
    yield "model.embed_tokens.weight", (v, h)
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        yield p + "input_layernorm.weight", (h,)
        yield p + "post_attention_layernorm.weight", (h,)
        if (n + 1) % c.get("full_attention_interval", 1):
            yield from delta_net(c, p + "linear_attn.")
        else:
            yield from attention(c, p + "self_attn.", d)
        if c["model_type"] == "phi3":
            yield p + "mlp.gate_up_proj.weight", (2 * i, h)
        else:
            yield p + "mlp.gate_proj.weight", (i, h)
            yield p + "mlp.up_proj.weight", (i, h)
        yield p + "mlp.down_proj.weight", (h, i)
    yield "model.norm.weight", (h,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (v, h)


def attention(c, p, d):
    h, kind = c["hidden_size"], c["model_type"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    if kind == "phi3":
        yield p + "qkv_proj.weight", (q + 2 * kv, h)
    else:
        # Each of Qwen3.5's queries has a gate.
        for name, rows in (("q", 2 * q if kind == "qwen3_5_text" else q), ("k", kv), ("v", kv)):
            yield p + f"{name}_proj.weight", (rows, h)
            if kind == "qwen2":
                yield p + f"{name}_proj.bias", (rows,)
            if kind in ("qwen3", "qwen3_5_text") and name != "v":
                yield p + f"{name}_norm.weight", (d,)
    yield p + "o_proj.weight", (h, q)


def delta_net(c, p):
    h, heads, d = c["hidden_size"], c["linear_num_value_heads"], c["linear_value_head_dim"]
    mixed = 2 * c["linear_key_head_dim"] * c["linear_num_key_heads"] + d * heads
    yield p + "in_proj_qkv.weight", (mixed, h)
    yield p + "in_proj_z.weight", (d * heads, h)
    yield p + "in_proj_b.weight", (heads, h)
    yield p + "in_proj_a.weight", (heads, h)
    yield p + "conv1d.weight", (mixed, 1, c["linear_conv_kernel_dim"])
    yield p + "dt_bias", (heads,)
    yield p + "A_log", (heads,)
    yield p + "norm.weight", (d,)
    yield p + "out_proj.weight", (h, d * heads)


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
