#!/usr/bin/env python3
"""A LoRA adapter of ../models/llama with peft's logits.   usage: make_lora.py ../lora

Needs torch, transformers 5.23.0 and peft 0.19.1. `adapter` targets every matmul of a layer, with random A and B; `query_value` is
peft's default for Llama. golden.safetensors: `ids`, `logits.adapter` and `logits.query_value` ([ids, vocabulary]), `greedy.NAME`
(32 ids after `ids`)."""
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

MODELS = pathlib.Path(__file__).parent.parent / "models"
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main(out):
    base = MODELS / "llama"
    ids = load_file(base / "golden.safetensors")["input_ids"].long()
    golden = {"ids": ids[0].to(torch.int32)}
    for name, options in {
        "adapter": {"r": 4, "lora_alpha": 10, "target_modules": LAYERS},
        "query_value": {"r": 6, "lora_alpha": 3, "use_rslora": True},
    }.items():
        torch.manual_seed(len(name))
        model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options))
        with torch.no_grad():
            for tensor, values in model.named_parameters():
                if "lora_" in tensor:
                    values.copy_(torch.randn_like(values) * 0.2)
            model.eval()
            golden[f"logits.{name}"] = model(ids).logits[0].float().contiguous()
            run = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False, eos_token_id=None
            )
            golden[f"greedy.{name}"] = run[0, ids.shape[1] :].to(torch.int32)
        model.peft_config["default"].base_model_name_or_path = "../../models/llama"
        model.save_pretrained(out / name)
        (out / name / "README.md").unlink(missing_ok=True)
    save_file(golden, out / "golden.safetensors")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
