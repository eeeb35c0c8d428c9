#!/usr/bin/env python3
"""Copies configurations of real checkpoints with the names of their tensors.   usage: make_configs.py FROM TO

FROM has a folder org__name for each checkpoint with config.json and perhaps model.safetensors.index.json. Names are kept
with `{n}` for each number and how often each occurs: tensors.json.
"""
import collections, json, os, re, shutil, sys

NAMES = """Qwen__Qwen3-0.6B Qwen__Qwen3-14B-MLX-4bit root-hypercube__qwen3-mlx-root Qwen__Qwen3-30B-A3B Qwen__Qwen3-VL-2B-Instruct Qwen__Qwen3.5-27B Qwen__Qwen3.5-35B-A3B
microsoft__Phi-3-mini-4k-instruct microsoft__Phi-3-mini-128k-instruct microsoft__Phi-3-medium-4k-instruct microsoft__phi-2 mistralai__Devstral-Small-2507
mistralai__Mixtral-8x7B-v0.1 openai__gpt-oss-20b google__gemma-4-26B-A4B ibm-granite__granite-3.1-1b-a400m-instruct deepseek-ai__DeepSeek-V3
nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 remodlai__qwen-2.5-vl-7b-instruct-lexiq zai-org__GLM-5.1 Supabase__gte-small""".split()

source, target = sys.argv[1:]
for name in NAMES:
    folder = os.path.join(target, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(source, name, "config.json")) as f:
        config = json.load(f)
    # Lists of excluded modules are long and say nothing here.
    quantization = config.get("quantization_config") or {}
    quantization.pop("modules_to_not_convert", None)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    index = os.path.join(source, name, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as f:
            names = json.load(f)["weight_map"]
        count = collections.Counter(re.sub(r"\d+(?=\.)", "{n}", n) for n in names)
        with open(os.path.join(folder, "tensors.json"), "w") as f:
            json.dump(dict(sorted(count.items())), f, indent=1)
            f.write("\n")
