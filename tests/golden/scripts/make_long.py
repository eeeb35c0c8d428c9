#!/usr/bin/env python3
"""What transformers makes of the last 9 of 2,008 tokens.   usage: make_long.py MODELS OUT

MODELS is tests/golden/models: tiny random checkpoints (make_text.py). Writes OUT/<name>.safetensors with `logits`, [9, vocabulary], of positions 1,999 to 2,007 in
float32 with eager attention. The ids are those of `ids` in tests/models/ring_and_checkpoint.rs. Needs torch, transformers 5.23.0, safetensors.
"""
import os, sys
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TORCHDYNAMO_DISABLE="1")
import torch, transformers as T
from safetensors.torch import save_file
torch.set_num_threads(1); torch.set_grad_enabled(False)

state, ids = 0x2545F491, []
for _ in range(2008):
    state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
    ids.append(3 + (state >> 16) % 240)

models, out = sys.argv[1:3]
os.makedirs(out, exist_ok=True)
for name in ["qwen3", "gemma3", "gpt_oss", "lfm2", "qwen3_5", "granite_hybrid", "falcon_h1_norm"]:
    model = T.AutoModelForCausalLM.from_pretrained(f"{models}/{name}", dtype=torch.float32, attn_implementation="eager").eval()
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, -9:].float().contiguous()
    save_file({"logits": logits}, f"{out}/{name}.safetensors")
    print(name, float(logits.std()))
