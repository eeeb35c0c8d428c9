#!/usr/bin/env python3
"""models/gpt_oss_mxfp4 as GGUF: usage: make_gpt_oss_gguf.py GOLDEN   (the folder tests/golden)

Needs gguf 0.19.0, numpy. Writes quant/gguf_gpt_oss as llama.cpp's conversion has it: gate and up of the experts apart and each in one tensor, their
blocks with elements j and j + 16 in a byte, biases and sinks in f32. The numbers are the checkpoint's own, so the goldens are those of models/gpt_oss_mxfp4.
"""
import json, os, struct, sys
import numpy as np, gguf

root = sys.argv[1]
source, out = f"{root}/models/gpt_oss_mxfp4", f"{root}/quant/gguf_gpt_oss"
os.makedirs(out, exist_ok=True)
config = json.load(open(f"{source}/config.json"))
raw = open(f"{source}/model.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + size])


def tensor(name):
    info = header[name]
    begin, end = info["data_offsets"]
    data = raw[8 + size + begin:8 + size + end]
    if info["dtype"] == "U8":
        return np.frombuffer(data, dtype=np.uint8).reshape(info["shape"])
    assert info["dtype"] == "BF16"
    bits = np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(info["shape"])


rope = config.get("rope_parameters") or config.get("rope_scaling")
w = gguf.GGUFWriter(f"{out}/model.gguf", "gpt-oss")
w.add_block_count(config["num_hidden_layers"])
w.add_context_length(config["max_position_embeddings"])
w.add_embedding_length(config["hidden_size"])
w.add_feed_forward_length(config["intermediate_size"])
w.add_expert_feed_forward_length(config["intermediate_size"])
w.add_head_count(config["num_attention_heads"])
w.add_head_count_kv(config["num_key_value_heads"])
w.add_key_length(config["head_dim"])
w.add_value_length(config["head_dim"])
w.add_layer_norm_rms_eps(config["rms_norm_eps"])
w.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta")))
w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
w.add_rope_scaling_factor(rope["factor"])
w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
w.add_sliding_window(config["sliding_window"])
w.add_expert_count(config["num_local_experts"])
w.add_expert_used_count(config["num_experts_per_tok"])


def matrix(name, value):
    data = gguf.quants.quantize(np.ascontiguousarray(value), gguf.GGMLQuantizationType.BF16)
    w.add_tensor(name, data, raw_shape=data.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)


def blocks(name, codes, scales):
    elements = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 32)
    packed = elements[..., :16] | (elements[..., 16:] << 4)
    data = np.concatenate([scales[..., None], packed], axis=-1).reshape(*codes.shape[:-2], -1)
    w.add_tensor(name, np.ascontiguousarray(data), raw_dtype=gguf.GGMLQuantizationType.MXFP4)


matrix("token_embd.weight", tensor("model.embed_tokens.weight"))
w.add_tensor("output_norm.weight", tensor("model.norm.weight"))
if "lm_head.weight" in header:
    matrix("output.weight", tensor("lm_head.weight"))
for layer in range(config["num_hidden_layers"]):
    path, to = f"model.layers.{layer}", f"blk.{layer}"
    for name, own in [("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm")]:
        w.add_tensor(f"{to}.{name}.weight", tensor(f"{path}.{own}.weight"))
    for name, own in [("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_output", "o_proj")]:
        matrix(f"{to}.{name}.weight", tensor(f"{path}.self_attn.{own}.weight"))
        w.add_tensor(f"{to}.{name}.bias", tensor(f"{path}.self_attn.{own}.bias"))
    w.add_tensor(f"{to}.attn_sinks.weight", tensor(f"{path}.self_attn.sinks"))
    matrix(f"{to}.ffn_gate_inp.weight", tensor(f"{path}.mlp.router.weight"))
    w.add_tensor(f"{to}.ffn_gate_inp.bias", tensor(f"{path}.mlp.router.bias"))
    experts = f"{path}.mlp.experts"
    for name, own, rows in [("gate", "gate_up_proj", slice(0, None, 2)), ("up", "gate_up_proj", slice(1, None, 2)), ("down", "down_proj", slice(None))]:
        blocks(f"{to}.ffn_{name}_exps.weight", tensor(f"{experts}.{own}_blocks")[:, rows], tensor(f"{experts}.{own}_scales")[:, rows])
        w.add_tensor(f"{to}.ffn_{name}_exps.bias", np.ascontiguousarray(tensor(f"{experts}.{own}_bias")[:, rows]))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
