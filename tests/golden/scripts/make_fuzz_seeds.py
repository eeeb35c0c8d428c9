#!/usr/bin/env python3
"""Small whole inputs that the fuzz targets start from (crate/fuzz/seeds).   usage: make_fuzz_seeds.py OUT

Needs numpy and gguf 0.19.0; reads the checkpoints of tests/golden/quant.
"""
import json, os, struct, sys
import gguf, numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
QUANT = os.path.join(HERE, "../quant")
OUT = sys.argv[1]


def put(target, name, data):
    os.makedirs(f"{OUT}/{target}", exist_ok=True)
    with open(f"{OUT}/{target}/{name}", "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def first_layer(name):
    return ".layers.1." not in name and ".h.1." not in name


def checkpoint(name):
    """config.json and the header of the first layer's tensors, moved together."""
    folder = f"{QUANT}/{name}"
    config = json.load(open(f"{folder}/config.json"))
    raw = open(f"{folder}/model.safetensors", "rb").read()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    out, at = {}, 0
    for tensor, info in sorted(header.items(), key=lambda t: t[1].get("data_offsets", [0])[0]):
        if tensor != "__metadata__" and first_layer(tensor):
            size = info["data_offsets"][1] - info["data_offsets"][0]
            out[tensor] = {**info, "data_offsets": [at, at + size]}
            at += size
    small = lambda value: json.dumps(value, separators=(",", ":"))
    put("checkpoint", name, small(config) + "\n---\n" + small(out))


def mlc(name):
    folder = f"{QUANT}/{name}"
    shards = json.load(open(f"{folder}/ndarray-cache.json"))
    for shard in shards["records"]:
        shard["records"] = [r for r in shard["records"] if first_layer(r["name"])]
    put("mlc", name, json.dumps(shards) + "\n---\n" + open(f"{folder}/mlc-chat-config.json").read())


def gguf_file(name, arch, model, types, **extra):
    path = f"{OUT}/gguf/{name}"
    os.makedirs(f"{OUT}/gguf", exist_ok=True)
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(64), w.add_embedding_length(32), w.add_block_count(1), w.add_feed_forward_length(32)
    w.add_head_count(2), w.add_head_count_kv(1), w.add_layer_norm_rms_eps(1e-5), w.add_rope_freq_base(1e4)
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "\u2581", "\u2581a", "[PAD]", "c"]
    w.add_tokenizer_model(model), w.add_token_list(tokens), w.add_token_types([2, 3, 3, 1, 1, 1, 1, 1, 4, 5])
    w.add_bos_token_id(1), w.add_eos_token_id(2), w.add_unk_token_id(0), w.add_pad_token_id(8)
    if model == "gpt2":
        w.add_tokenizer_pre("qwen2"), w.add_token_merges(["a b"])
    else:
        w.add_token_scores([-float(i) for i in range(len(tokens))])
    w.add_chat_template("{{ messages }}")
    for key, value in extra.items():
        w.add_uint32(key.replace("__", "."), value)
    rng = np.random.default_rng(3)
    for tensor, rows in [("token_embd", 10), ("blk.0.attn_q", 32), ("blk.0.attn_k", 16), ("blk.0.ffn_down", 32)]:
        x = rng.standard_normal((rows, 256 if types.startswith(("Q4_K", "TQ")) else 32)).astype(np.float32)
        kind = gguf.GGMLQuantizationType[types]
        w.add_tensor(f"{tensor}.weight", gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.add_tensor("output_norm.weight", np.ones(32, np.float32))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def safetensors():
    tensors = {"__metadata__": {"format": "pt"}}
    at = 0
    for i, (dtype, size) in enumerate([("F32", 4), ("BF16", 2), ("F8_E4M3", 1), ("U32", 4), ("I64", 8)]):
        tensors[f"t{i}"] = {"dtype": dtype, "shape": [2, 3], "data_offsets": [at, at + 6 * size]}
        at += 6 * size
    header = json.dumps(tensors).encode()
    put("safetensors", "five_tensors", struct.pack("<Q", len(header)) + header + bytes(at))
    index = {"metadata": {"total_size": 12}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    put("safetensors", "index", json.dumps(index))


for name in sorted(os.listdir(QUANT)):
    if os.path.exists(f"{QUANT}/{name}/ndarray-cache.json"):
        mlc(name)
    elif os.path.exists(f"{QUANT}/{name}/model.safetensors") and os.path.exists(f"{QUANT}/{name}/config.json"):
        if not name.startswith("twin"):
            checkpoint(name)
gguf_file("llama_q8_0", "llama", "llama", "Q8_0")
gguf_file("qwen3_q4_0", "qwen3", "gpt2", "Q4_0", qwen3__attention__key_length=16)
gguf_file("phi3_f16", "phi3", "llama", "F16")
gguf_file("bert_f32", "bert", "bert", "F32")
gguf_file("t5_q5_1", "gemma", "t5", "Q5_1")
gguf_file("bitnet_tq2_0", "bitnet", "llama", "TQ2_0")
safetensors()
