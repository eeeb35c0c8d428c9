"""Writes tests/golden/models/qwen3_embedding/bidirectional.safetensors: the vectors of lengths.safetensors with
`"is_causal": false` in config.json, for which transformers masks no token of a sequence.

A forward pass in numpy. With a causal mask it must give the vectors that transformers recorded in lengths.safetensors.
Run: python3 make_bidirectional.py (needs numpy).
"""

import json
import struct
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "models/qwen3_embedding"
TYPES = {"F32": np.float32, "I64": np.int64, "I32": np.int32}


def read(path):
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, info in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = (start + offset for offset in info["data_offsets"])
        if info["dtype"] == "BF16":
            values = (np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data[begin:end], TYPES[info["dtype"]])
        tensors[name] = values.reshape(info["shape"])
    return tensors


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, base):
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def hidden(ids, config, weights, is_causal):
    prefix = "" if "embed_tokens.weight" in weights else "model."
    w = lambda name: weights[f"{prefix}{name}.weight"].astype(np.float64)
    dim, eps, base = config["head_dim"], config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    x = w("embed_tokens")[ids]
    for layer in range(config["num_hidden_layers"]):
        own = lambda name: w(f"layers.{layer}.{name}")
        y = norm(x, own("input_layernorm"), eps)
        q, k, v = ((y @ own(f"self_attn.{p}_proj").T).reshape(len(ids), -1, dim) for p in "qkv")
        q = rotate(norm(q, own("self_attn.q_norm"), eps), base)
        k = rotate(norm(k, own("self_attn.k_norm"), eps), base)
        k, v = k.repeat(group, 1), v.repeat(group, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        if is_causal:
            scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", shares, v).reshape(len(ids), -1) @ own("self_attn.o_proj").T
        y = norm(x, own("post_attention_layernorm"), eps)
        gate = y @ own("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ own("mlp.up_proj").T)) @ own("mlp.down_proj").T
    return norm(x, w("norm"), eps)


def main():
    config = json.loads((FOLDER / "config.json").read_text())
    weights, golden = read(FOLDER / "model.safetensors"), read(FOLDER / "lengths.safetensors")

    def vectors(is_causal):
        rows = zip(golden["input_ids"], golden["attention_mask"])
        last = [hidden(ids[mask == 1], config, weights, is_causal)[-1] for ids, mask in rows]
        return np.array([row / np.linalg.norm(row) for row in last], np.float32)

    error = np.abs(vectors(True) - golden["embedding"]).max()
    assert error < 1e-5, error
    out = vectors(False)
    header = {"embedding": {"dtype": "F32", "shape": list(out.shape), "data_offsets": [0, out.nbytes]}}
    header = json.dumps(header).encode()
    data = struct.pack("<Q", len(header)) + header + out.tobytes()
    (FOLDER / "bidirectional.safetensors").write_bytes(data)
    print(out.shape, "causal error", error, "difference", np.abs(out - golden["embedding"]).max())


if __name__ == "__main__":
    main()
