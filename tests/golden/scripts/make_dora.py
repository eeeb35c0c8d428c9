#!/usr/bin/env python3
"""DoRA adapters of tiny checkpoints in ../models with peft's logits.   usage: make_dora.py ../lora/dora

Needs torch, transformers 5.23.0 and peft 0.19.1. A, B and the magnitudes are random. FAMILY/golden.safetensors: `logits`
([ids, vocabulary]) and `greedy` (24 ids) for the model's `input_ids`."""
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

MODELS = pathlib.Path(__file__).parent.parent / "models"
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

FAMILIES = {
    "llama": {"target_modules": LAYERS, "use_rslora": True},
    # Biases, some matrices only.
    "qwen2": {"target_modules": ["q_proj", "v_proj", "down_proj"], "alpha_pattern": {"v_proj": 2}},
    # Rows that the checkpoint stores by head.
    "gpt_neox": {"target_modules": ["query_key_value", "dense_4h_to_h"]},
}


def main(out, names):
    for name in names or FAMILIES:
        base = MODELS / name
        ids = load_file(base / "golden.safetensors")["input_ids"].long()
        torch.manual_seed(len(name))
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
        options = {"r": 3, "lora_alpha": 7, "use_dora": True, **FAMILIES[name]}
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options))
        golden = {}
        with torch.no_grad():
            for tensor, values in model.named_parameters():
                if "lora_magnitude_vector" in tensor:
                    values.mul_(torch.rand_like(values) + 0.5)
                elif "lora_" in tensor:
                    values.copy_(torch.randn_like(values) * 0.2)
            model.eval()
            golden["logits"] = model(ids).logits[0].float().contiguous()
            run = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, eos_token_id=None
            )
            golden["greedy"] = run[0, ids.shape[1] :].to(torch.int32)
        model.peft_config["default"].base_model_name_or_path = f"../../../models/{name}"
        model.save_pretrained(out / name)
        (out / name / "README.md").unlink(missing_ok=True)
        save_file(golden, out / name / "golden.safetensors")
        changed = (golden["logits"] - load_file(base / "golden.safetensors")["logits"].reshape(golden["logits"].shape)).norm() / golden["logits"].norm()
        print(name, float(changed), sorted(load_file(out / name / "adapter_model.safetensors"))[:3])


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
