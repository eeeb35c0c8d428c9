#!/usr/bin/env python3
"""A LoRA of SmolLM2-135M as peft trains it.   usage: make_real_lora.py DIR
                                                     make_real_lora.py DIR --check ADAPTER

DIR is what tests/real/fetch.py wrote. Writes tests/golden/real/smollm2-lora.json: `sequences` to train on one by one and `held` ones,
`losses` of the steps, `evaluations` of the held sequences before the first step and after every third, every 63rd logit of the last row
of the first sequence with the trained adapter, and with an adapter of hashed numbers (`hashed`), names and shapes of the tensors that
peft saves.
--check loads an adapter that the engine saved, with the `logits.json` that the test wrote next to it, and compares all logits of the last row.
Needs torch, transformers 5.23.0, peft 0.19.1, gguf, safetensors. peft computes on the dequantized weights of the GGUF file, in f32.
"""
import json
import os
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TORCHDYNAMO_DISABLE="1")
import torch
import torch.nn.functional as F
from hashed import tensor
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
REPO, GGUF = "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"
RANK, ALPHA, RATE = 8, 16, 4e-3
TOKENS, STEPS, EVERY, HELD = 64, 6, 3, 1


def base(root):
    folder = os.path.join(root, "hub", REPO)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32, attn_implementation="eager")
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)


def factors(model, second):
    """Sets A to hashed numbers of PyTorch's range for linear layers, and B to `second` times hashed ones."""
    for name, value in model.named_parameters():
        if "lora_" in name:
            own = name.replace(".default", "")
            scale = value.shape[1] ** -0.5 if "lora_A" in name else second
            value.data = torch.from_numpy(tensor(own, tuple(value.shape), scale))


def loss(model, ids):
    return F.cross_entropy(model(ids[None]).logits[0, :-1], ids[1:])


def last_logits(model, ids):
    with torch.no_grad():
        return model(ids[None]).logits[0, -1]


def record(root):
    model, tokenizer = base(root)
    text = open(os.path.join(GOLDEN, "stories260K", "story.txt"), encoding="utf-8").read()
    # Capitals are rare in what the model was trained on, so there is something to learn.
    ids = torch.tensor(tokenizer(text.upper())["input_ids"][: TOKENS * (STEPS + HELD)]).split(TOKENS)
    assert len(ids) == STEPS + HELD and len(ids[-1]) == TOKENS
    trained, held = ids[:STEPS], ids[STEPS:]
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, config).train()
    factors(model, 0.02)
    facts = {"hashed": last_logits(model, ids[0])[::63].tolist()}
    factors(model, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(os.path.join(folder, "adapter_model.safetensors"))
    facts["tensors"] = {name: list(value.shape) for name, value in sorted(saved.items())}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0)
    losses, evaluations = [], []

    def evaluate():
        with torch.no_grad():
            evaluations.append(sum(loss(model, own).item() for own in held) / HELD)

    evaluate()
    for step, own in enumerate(trained):
        optimizer.zero_grad()
        value = loss(model, own)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(value.item())
        if (step + 1) % EVERY == 0:
            evaluate()
    facts.update(losses=losses, evaluations=evaluations, trained=last_logits(model, ids[0])[::63].tolist())
    facts.update(sequences=[own.tolist() for own in trained], held=[own.tolist() for own in held])
    with open(os.path.join(GOLDEN, "real", "smollm2-lora.json"), "w") as out:
        json.dump(facts, out, separators=(",", ":"))
        out.write("\n")
    print("losses", losses, "evaluations", evaluations)


def check(root, adapter):
    model = PeftModel.from_pretrained(base(root)[0], adapter).eval()
    own = json.load(open(os.path.join(adapter, "logits.json")))
    expected = last_logits(model, torch.tensor(own["ids"]))
    found = torch.tensor(own["logits"])
    with model.disable_adapter():
        without = last_logits(model, torch.tensor(own["ids"]))
    error = ((found - expected).norm() / expected.norm()).item()
    effect = ((without - expected).norm() / expected.norm()).item()
    print(f"logits of the engine and of peft with the engine's adapter: relative L2 {error:.1e}; without the adapter {effect:.1e}")
    sys.exit(error > 1e-3 or effect < 1e-2)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        record(sys.argv[1])
    elif len(sys.argv) == 4 and sys.argv[2] == "--check":
        check(sys.argv[1], sys.argv[3])
    else:
        sys.exit(__doc__)
