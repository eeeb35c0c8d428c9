#!/usr/bin/env python3
"""models/mixtral as GGUF: usage: make_moe_gguf.py GOLDEN   (the folder tests/golden)

Needs gguf 0.19.0, numpy, safetensors. Writes quant/gguf_mixtral: experts stacked in one tensor for each product, rows of
q and k in the order of interleaved rotation, as llama.cpp's conversion has them. The numbers are the checkpoint's own
(16 bits), so the goldens are those of models/mixtral.
"""
import json, os, shutil, struct, sys
import numpy as np, gguf

root = sys.argv[1]
source, out = f"{root}/models/mixtral", f"{root}/quant/gguf_mixtral"
os.makedirs(out, exist_ok=True)
config = json.load(open(f"{source}/config.json"))
raw = open(f"{source}/model.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + size])


def tensor(name):
    info = header[name]
    begin, end = info["data_offsets"]
    bits = np.frombuffer(raw[8 + size + begin:8 + size + end], dtype=np.uint16).astype(np.uint32) << 16
    assert info["dtype"] == "BF16"
    return bits.view(np.float32).reshape(info["shape"])


def interleaved(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


w = gguf.GGUFWriter(f"{out}/model.gguf", "llama")
w.add_block_count(config["num_hidden_layers"])
w.add_context_length(config["max_position_embeddings"])
w.add_embedding_length(config["hidden_size"])
w.add_feed_forward_length(config["intermediate_size"])
w.add_head_count(config["num_attention_heads"])
w.add_head_count_kv(config["num_key_value_heads"])
w.add_key_length(config["head_dim"])
w.add_value_length(config["head_dim"])
w.add_layer_norm_rms_eps(config["rms_norm_eps"])
w.add_rope_freq_base(config["rope_theta"])
w.add_rope_dimension_count(config["head_dim"])
w.add_expert_count(config["num_local_experts"])
w.add_expert_used_count(config["num_experts_per_tok"])


def matrix(name, value):
    data = gguf.quants.quantize(np.ascontiguousarray(value), gguf.GGMLQuantizationType.BF16)
    w.add_tensor(name, data, raw_shape=data.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)


matrix("token_embd.weight", tensor("model.embed_tokens.weight"))
w.add_tensor("output_norm.weight", tensor("model.norm.weight"))
for layer in range(config["num_hidden_layers"]):
    path, to = f"model.layers.{layer}", f"blk.{layer}"
    for name, own in [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")]:
        w.add_tensor(f"{to}.{name}.weight", tensor(f"{path}.{own}.weight"))
    q, k = (tensor(f"{path}.self_attn.{n}_proj.weight") for n in "qk")
    matrix(f"{to}.attn_q.weight", interleaved(q, config["num_attention_heads"]))
    matrix(f"{to}.attn_k.weight", interleaved(k, config["num_key_value_heads"]))
    matrix(f"{to}.attn_v.weight", tensor(f"{path}.self_attn.v_proj.weight"))
    matrix(f"{to}.attn_output.weight", tensor(f"{path}.self_attn.o_proj.weight"))
    moe = f"{path}.block_sparse_moe"
    w.add_tensor(f"{to}.ffn_gate_inp.weight", tensor(f"{moe}.gate.weight"))
    for name, own in [("gate", "w1"), ("up", "w3"), ("down", "w2")]:
        stack = [tensor(f"{moe}.experts.{e}.{own}.weight") for e in range(config["num_local_experts"])]
        matrix(f"{to}.ffn_{name}_exps.weight", np.stack(stack))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
shutil.copy(f"{source}/golden.safetensors", f"{out}/golden.safetensors")
