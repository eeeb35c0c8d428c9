#!/usr/bin/env python3
"""LoRA adapters of tiny checkpoints in ../models with peft's logits.   usage: make_lora_families.py ../lora/families

Needs torch, transformers 5.23.0 and peft 0.19.1. Each adapter targets the linear layers of a family, with random A and B and other
settings of peft. FAMILY/golden.safetensors: `logits` ([ids, vocabulary]) and `greedy` (24 ids) for the model's `input_ids`."""
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

MODELS = pathlib.Path(__file__).parent.parent / "models"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

FAMILIES = {
    # Ranks and alphas by layer.
    "qwen3": {"target_modules": ATTENTION + MLP, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.0.mlp.up_proj": 12, "v_proj": 2}},
    # Matmuls that the checkpoint stores in one matrix.
    "phi3": {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], "use_rslora": True},
    "gemma3": {"target_modules": ATTENTION + MLP},
    "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    # Rows that the checkpoint stores by head.
    "gpt_neox": {"target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]},
    # The attention of a mixture of experts, and an untied head.
    "mixtral": {"target_modules": ATTENTION},
    "qwen2_untied": {"target_modules": ATTENTION + MLP + ["lm_head"], "use_rslora": True},
    "lfm2": {"target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"]},
    # An MLP that reads the input of the attention.
    "phi2": {"target_modules": ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"]},
}


def write(out, families):
    """Writes an adapter and its golden values for each family, with these settings of peft."""
    for name, options in families.items():
        base = MODELS / name
        ids = load_file(base / "golden.safetensors")["input_ids"].long()
        torch.manual_seed(len(name))
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **{"r": 3, "lora_alpha": 7, **options}))
        golden = {}
        with torch.no_grad():
            for tensor, values in model.named_parameters():
                if "lora_magnitude_vector" in tensor:  # of DoRA
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


def main(families):
    """Writes the families that the command names, or all."""
    out, *names = sys.argv[1:]
    write(pathlib.Path(out), {name: families[name] for name in names or families})


if __name__ == "__main__":
    main(FAMILIES)
