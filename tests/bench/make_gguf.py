#!/usr/bin/env python3
"""Writes a GGUF file of a real model's shape with seeded random weights in Q4_0, to measure llama.cpp beside Jerboa: make_gguf.py SHAPE OUT

SHAPE: a dense decoder of www/bench/shapes.json (model types llama, qwen2, qwen3, phi3, qwen3_5_text).
Matrices are Q4_0, the embeddings and the head too (llama-quantize --pure); what is smaller is F32. The file has no vocabulary, which llama-bench does not need.
The speed of a dense model does not depend on its weights. Scales are small, so that logits stay finite. Needs numpy and gguf.
"""
import json, os, sys
import gguf
import numpy as np

with open(os.path.join(os.path.dirname(__file__), "../../www/bench/shapes.json")) as shapes:
    SHAPES = {name: shape["config"] for name, shape in json.load(shapes).items()}

# model_type of config.json: general.architecture of GGUF
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "qwen3_5_text": "qwen35"}
BLOCK, BLOCK_BYTES = 32, 18  # Q4_0: a scale of f16 and 32 codes


def full_attention(c, layer):
    return (layer + 1) % c.get("full_attention_interval", 1) == 0


def tensors(c):
    """Name and dimensions of every tensor, the rows of a matrix first."""
    h, i, v, kind = c["hidden_size"], c["intermediate_size"], c["vocab_size"], c["model_type"]
    d = c.get("head_dim", h // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "token_embd.weight", (v, h)
    yield "output_norm.weight", (h,)
    if not c["tie_word_embeddings"]:
        yield "output.weight", (v, h)
    for n in range(c["num_hidden_layers"]):
        b = f"blk.{n}."
        yield b + "attn_norm.weight", (h,)
        yield b + ("post_attention_norm.weight" if kind == "qwen3_5_text" else "ffn_norm.weight"), (h,)
        if not full_attention(c, n):
            key, heads = c["linear_key_head_dim"] * c["linear_num_key_heads"], c["linear_num_value_heads"]
            value = c["linear_value_head_dim"] * heads
            yield b + "attn_qkv.weight", (2 * key + value, h)
            yield b + "attn_gate.weight", (value, h)
            yield b + "ssm_conv1d.weight", (2 * key + value, c["linear_conv_kernel_dim"])
            yield b + "ssm_dt.bias", (heads,)
            yield b + "ssm_a", (heads,)
            yield b + "ssm_beta.weight", (heads, h)
            yield b + "ssm_alpha.weight", (heads, h)
            yield b + "ssm_norm.weight", (c["linear_value_head_dim"],)
            yield b + "ssm_out.weight", (h, value)
        else:
            if kind == "phi3":
                yield b + "attn_qkv.weight", (q + 2 * kv, h)
            else:
                # Qwen3.5's queries come with a gate each
                for name, rows in (("q", 2 * q if kind == "qwen3_5_text" else q), ("k", kv), ("v", kv)):
                    yield b + f"attn_{name}.weight", (rows, h)
                    if kind == "qwen2":
                        yield b + f"attn_{name}.bias", (rows,)
                    if kind in ("qwen3", "qwen3_5_text") and name != "v":
                        yield b + f"attn_{name}_norm.weight", (d,)
            yield b + "attn_output.weight", (h, q)
        if kind == "phi3":
            yield b + "ffn_up.weight", (2 * i, h)
        else:
            yield b + "ffn_gate.weight", (i, h)
            yield b + "ffn_up.weight", (i, h)
        yield b + "ffn_down.weight", (h, i)


def quantized(name, dims):
    return len(dims) == 2 and "ssm_conv1d" not in name


def describe(writer, c):
    d = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    rope = c.get("rope_parameters", c)
    writer.add_vocab_size(c["vocab_size"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(d)
    writer.add_value_length(d)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(d * rope.get("partial_rotary_factor", 1)))
    if c.get("sliding_window"):
        writer.add_sliding_window(c["sliding_window"])
    if c["model_type"] == "phi3":
        writer.add_rope_scaling_orig_ctx_len(c["max_position_embeddings"])
    if c["model_type"] == "qwen3_5_text":
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        writer.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        writer.add_ssm_state_size(c["linear_key_head_dim"])
        writer.add_ssm_time_step_rank(c["linear_num_value_heads"])
        writer.add_ssm_group_count(c["linear_num_key_heads"])
        writer.add_full_attention_interval(c["full_attention_interval"])
    writer.add_tokenizer_model("no_vocab")


def main(shape, out):
    c = SHAPES[shape]
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (16_381, BLOCK_BYTES), np.uint8)  # a prime: rows of no width repeat
    blocks[:, :2] = (0.02 / 4.61 * (0.9 + 0.2 * rng.random((16_381, 1)))).astype(np.float16).view(np.uint8)
    writer = gguf.GGUFWriter(out, ARCHITECTURES[c["model_type"]])
    describe(writer, c)
    rows = list(tensors(c))
    for name, dims in rows:
        if quantized(name, dims):
            width = dims[1] // BLOCK * BLOCK_BYTES
            writer.add_tensor_info(name, (dims[0], width), np.dtype(np.uint8), dims[0] * width, gguf.GGMLQuantizationType.Q4_0)
        else:
            writer.add_tensor_info(name, dims, np.dtype(np.float32), 4 * int(np.prod(dims)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, dims in rows:
        if quantized(name, dims):
            data = np.resize(blocks, (dims[0] * dims[1] // BLOCK, BLOCK_BYTES))
        elif "norm" in name:
            data = np.ones(dims, np.float32)
        else:
            data = np.full(dims, -0.1 if name.endswith("ssm_a") else 0.01, np.float32)
        writer.write_tensor_data(data)
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3 or SHAPES.get(sys.argv[1], {}).get("model_type") not in ARCHITECTURES:
        sys.exit(__doc__ + "\nshapes: " + ", ".join(name for name, c in SHAPES.items() if c["model_type"] in ARCHITECTURES))
    main(*sys.argv[1:])
