#!/usr/bin/env python3
"""Names that llama.cpp's converter gives the tensors of ../models.   usage: make_gguf_names.py > ../gguf_names.json

Needs gguf 0.19.0. For each decoder that llama.cpp has: its architecture, and for each tensor the name in a GGUF file and
that in the checkpoint (`{e}` for the number of an expert), by the converter's own table (gguf.get_tensor_name_map);
tensors without a name there are left out.
"""
import json, os, re, struct, sys
import gguf

MODELS = os.path.join(os.path.dirname(__file__), "..", "models")
# Folder: llama.cpp's architecture.
CASES = {"llama": "llama", "smollm3": "smollm3", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "gemma2": "gemma2", "gemma3": "gemma3", "phi2": "phi2", "granite": "granite",
         "olmo2": "olmo2", "exaone4": "exaone4", "glm4": "glm4", "ernie4_5": "ernie4_5", "hunyuan_dense": "hunyuan-dense", "starcoder2": "starcoder2", "gpt_neox": "gptneox", "gpt2": "gpt2",
         "bitnet": "bitnet", "lfm2": "lfm2", "qwen3_5": "qwen35", "qwen3_next": "qwen3next", "gemma3n": "gemma3n", "olmoe": "olmoe", "ernie4_5_moe": "ernie4_5-moe", "gemma4_moe": "gemma4", "bert": "bert", "embeddinggemma": "gemma-embedding"}
NUMBERS = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}

def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))

def converted(name):
    """What the converter looks a tensor up by: it stacks the experts of a layer, and calls parameters without a module as if they had one."""
    name = re.sub(r"\.experts\.\d+\.", ".experts.", name).replace("e_score_correction_bias", "e_score_correction.bias")
    return name + ".weight" if re.search(r"(_scale|_scalar|\.experts\.[a-z_]+)$", name) else name

out = {}
for folder, arch in CASES.items():
    names = gguf.get_tensor_name_map(NUMBERS[arch], 8)
    pairs = {}
    for name in header(os.path.join(MODELS, folder, "model.safetensors")):
        graph = re.sub(r"\.experts\.(\d+\.)?", ".experts.{e}.", name) + (".weight" if re.search(r"\.experts\.[a-z_]+$", name) else "")
        found = names.get_name(converted(name), try_suffixes=(".weight", ".bias"))
        if found:
            pairs[found] = graph
        elif name != "__metadata__":
            print(f"{folder}: no name for {name}", file=sys.stderr)
    out[folder] = {"architecture": arch, "names": pairs}
json.dump(out, sys.stdout, indent=1, sort_keys=True)
print()
