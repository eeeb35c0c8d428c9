#!/usr/bin/env python3
"""Tiny checkpoints that see, with what the tests compare.  usage: vision_models.py MEDIA OUT      (no packages needed)
MEDIA holds folders of config.json, model.safetensors (bf16, random), preprocessor_config.json and golden.safetensors (transformers 5.23.0, f32, eager attention). Intermediates are left out."""
import json, os, shutil, struct, sys
media, out = sys.argv[1:3]
KEEP = ("image.", "visual_tokens", "deepstack.", "input_ids", "position_ids", "rope_delta", "logits", "greedy")

def cut(source, target, keep):
    data = open(source, "rb").read(); n = struct.unpack("<Q", data[:8])[0]; head = json.loads(data[8:8 + n]); new, body = {}, b""
    for name, t in head.items():
        if name == "__metadata__" or not keep(name): continue
        a, b = t["data_offsets"]; piece = data[8 + n + a: 8 + n + b]
        new[name] = dict(t, data_offsets=[len(body), len(body) + len(piece)]); body += piece
    text = json.dumps(new, separators=(",", ":")).encode(); text += b" " * (-len(text) % 8)
    open(target, "wb").write(struct.pack("<Q", len(text)) + text + body)

for name in ("qwen3_vl", "qwen3_5", "qwen2_5_vl", "smolvlm", "idefics3", "gemma3", "gemma4", "lfm2_vl"):
    a, b = f"{media}/{name}", f"{out}/{name}"; os.makedirs(b, exist_ok=True)
    cut(f"{a}/model.safetensors", f"{b}/model.safetensors", lambda k: True)
    cut(f"{a}/golden.safetensors", f"{b}/golden.safetensors", lambda k: k.startswith(KEEP) and k != "logits_causal")
    for file in ("config.json", "preprocessor_config.json"):
        if os.path.exists(f"{a}/{file}"): shutil.copy(f"{a}/{file}", f"{b}/{file}"); os.chmod(f"{b}/{file}", 0o644)
