#!/usr/bin/env python3
"""DoRA adapters of tiny checkpoints in ../models with peft's logits.   usage: make_dora.py ../lora/dora

Needs torch, transformers 5.23.0 and peft 0.19.1. A, B and the magnitudes are random. FAMILY/golden.safetensors: `logits`
([ids, vocabulary]) and `greedy` (24 ids) for the model's `input_ids`."""
from make_lora_families import ATTENTION, MLP, main

FAMILIES = {
    "llama": {"use_dora": True, "target_modules": ATTENTION + MLP, "use_rslora": True},
    # Biases, some matrices only.
    "qwen2": {"use_dora": True, "target_modules": ["q_proj", "v_proj", "down_proj"], "alpha_pattern": {"v_proj": 2}},
    # Rows that the checkpoint stores by head.
    "gpt_neox": {"use_dora": True, "target_modules": ["query_key_value", "dense_4h_to_h"]},
}

if __name__ == "__main__":
    main(FAMILIES)
