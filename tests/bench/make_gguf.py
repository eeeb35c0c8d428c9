#!/usr/bin/env python3
"""Writes a GGUF file of a real model's shape with seeded random weights in Q4_0, to compare llama.cpp with Jerboa: make_gguf.py SHAPE OUT

SHAPE: a dense decoder of www/bench/shapes.json (model types llama, qwen2, qwen3, phi3, qwen3_5_text).
Matrices are Q4_0, the embeddings and the head too (llama-quantize --pure); what is smaller is F32. The file has no vocabulary, which llama-bench does not need.
The speed of a dense model does not depend on its weights. Scales are small, so that logits stay finite. Needs numpy and gguf.
"""
import sys
import gguf
import numpy as np
from make_checkpoint import SHAPES, tensors

# model_type of config.json: the architecture of GGUF
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
}
BLOCK, BLOCK_BYTES = 32, 18  # Q4_0: a scale of f16 and 32 codes


def named(c):
    """Every tensor's name in GGUF and its dimensions, the rows of a matrix first and without those of one."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[c["model_type"]], c["num_hidden_layers"])
    for name, dims in tensors(c):
        # As llama.cpp's conversion does before it looks up the name.
        name = name.replace(".dt_bias", ".dt_proj.bias")
        yield names.get_name(name, (".weight", ".bias")), tuple(size for size in dims if size > 1)


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
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[c["model_type"]]])
    describe(writer, c)
    rows = list(named(c))
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
