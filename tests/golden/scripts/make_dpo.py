#!/usr/bin/env python3
"""Direct preference optimization of PyTorch, with TRL's formulas.   usage: make_dpo.py ../train/dpo

Needs torch, transformers 5.23.0 and peft 0.19.1. Trains an adapter of ../models/llama whose B is not 0. Files:
adapter/            the adapter before training, as peft writes it
golden.safetensors  `ids`, `lengths` and `firsts` (first token of the answer) of sequences: chosen and rejected of each pair;
                    `reference` [pairs, 2]: log-probabilities of the answers by the model without adapter; `losses`, `margins`
                    and `accuracies` of steps over the first 8 pairs; `grad.NAME` of the first step; `held` [3]: loss, margin
                    and accuracy of the last pairs after training."""
import pathlib
import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(__file__).parent.parent
BETA = 0.3
PAIRS_PER_STEP, TRAINED, STEPS, RATE = 4, 8, 12, 3e-3


def log_probability(model, ids, first):
    """Sum of the log-probabilities of the tokens from `first` on."""
    logits = model(ids[None]).logits[0, :-1].float()
    own = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    return own[first - 1 :].sum()


def metrics(model, pairs, references):
    """TRL's sigmoid loss, rewards/margins and rewards/accuracies."""
    losses, margins = [], []
    for (chosen, rejected, first), reference in zip(pairs, references):
        policy = [log_probability(model, ids, first) for ids in (chosen, rejected)]
        rewards = [BETA * (own - base) for own, base in zip(policy, reference)]
        margins.append(rewards[0] - rewards[1])
        losses.append(-F.logsigmoid(margins[-1]))
    margins = torch.stack(margins)
    return torch.stack(losses).mean(), margins.mean(), (margins > 0).float().mean()


def make_pairs(g, vocab, count):
    pairs = []
    for _ in range(count):
        length = lambda low, high: int(torch.randint(low, high, (), generator=g))
        tokens = lambda low, high: torch.randint(3, vocab, (length(low, high),), generator=g)
        prompt = tokens(2, 9)
        pairs.append((torch.cat([prompt, tokens(1, 11)]), torch.cat([prompt, tokens(1, 11)]), len(prompt)))
    return pairs


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(6)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(GOLDEN / "models/llama", dtype=torch.float32, attn_implementation="eager")
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM"))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, p in trained.items():
        if "lora_B" in name:
            p.data.copy_(torch.randn(p.shape, generator=g) * 0.05)
    model.peft_config["default"].base_model_name_or_path = "llama"
    model.save_pretrained(out / "adapter")
    (out / "adapter/README.md").unlink(missing_ok=True)

    pairs = make_pairs(g, model.config.vocab_size, TRAINED + 3)
    sequences = [ids for chosen, rejected, _ in pairs for ids in (chosen, rejected)]
    with torch.no_grad(), model.disable_adapter():
        references = [[log_probability(model, ids, first) for ids in (chosen, rejected)] for chosen, rejected, first in pairs]
    golden = {
        "ids": torch.cat(sequences).to(torch.int32),
        "lengths": torch.tensor([len(ids) for ids in sequences], dtype=torch.int32),
        "firsts": torch.tensor([first for *_, first in pairs for _ in range(2)], dtype=torch.int32),
        "reference": torch.tensor(references),
    }
    optimizer = torch.optim.AdamW(trained.values(), lr=RATE, weight_decay=0.0)
    steps = []
    for step in range(STEPS):
        own = slice(step * PAIRS_PER_STEP % TRAINED, step * PAIRS_PER_STEP % TRAINED + PAIRS_PER_STEP)
        found = metrics(model, pairs[own], references[own])
        optimizer.zero_grad()
        found[0].backward()
        if step == 0:
            golden.update({f"grad.{name.replace('.default', '')}": p.grad.clone() for name, p in trained.items()})
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        steps.append([value.item() for value in found])
    for name, values in zip(("losses", "margins", "accuracies"), zip(*steps)):
        golden[name] = torch.tensor(values)
    with torch.no_grad():
        golden["held"] = torch.stack(metrics(model, pairs[TRAINED:], references[TRAINED:]))
    save_file(golden, out / "golden.safetensors")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
