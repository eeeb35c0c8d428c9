#!/usr/bin/env python3
"""Gradients, updates and training runs of PyTorch.   usage: make_train.py ../train

Needs torch, transformers 5.23.0 and peft 0.19.1. Files:
ops.safetensors       inputs and gradients of single operations.
MODEL.safetensors     of ../models/MODEL: `ids`, `labels` (-1: none) and `lengths` of sequences, `loss`, and of each parameter's
                      gradient `grad.NAME` ([every 5th element of it in order, its norm last]); for llama also `sgd` and `adamw`:
                      losses of 200 steps.
stories260K/          adapter/: LoRA adapter as peft starts it; trained/: after training; golden.safetensors: `ids` and `lengths`
                      of sequences, `losses` of steps, `logits` of the first sequence with the trained adapter, the losses
                      `before` and `after` of the last sequences, which are not trained on."""
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

GOLDEN = pathlib.Path(__file__).parent.parent
STORIES = GOLDEN.parent.parent / "www/public/models/stories260K"


def random(generator, *shape):
    return torch.randn(*shape, generator=generator, requires_grad=True)


def ops():
    g = torch.Generator().manual_seed(1)
    out = {}

    def record(name, inputs, y):
        dy = torch.randn(y.shape, generator=g)
        grads = torch.autograd.grad(y, list(inputs.values()), dy)
        for key, value in {**inputs, "y": y, "dy": dy}.items():
            out[f"{name}.{key}"] = value.detach().contiguous().clone()
        for key, value in zip(inputs, grads):
            out[f"{name}.d{key}"] = value.contiguous().clone()

    x, w, b = random(g, 7, 37), random(g, 13, 37), random(g, 13)
    record("linear", {"x": x, "w": w, "b": b}, F.linear(x, w, b))
    x, gain, bias = random(g, 5, 70), random(g, 70), random(g, 70)
    record("rms", {"x": x, "gain": gain}, F.rms_norm(x, (70,), gain, 1e-5))
    record("rms_offset", {"x": x, "gain": gain}, F.rms_norm(x, (70,), gain + 1, 1e-5))
    record("layer", {"x": x, "gain": gain, "bias": bias}, F.layer_norm(x, (70,), gain, bias, 1e-5))
    for name, act in {
        "Silu": F.silu,
        "GeluTanh": lambda x: F.gelu(x, approximate="tanh"),
        "Gelu": F.gelu,
        "Relu": F.relu,
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
    }.items():
        a, b = random(g, 4, 31), random(g, 4, 31)
        record(name, {"a": a}, act(a * 3))
        out[f"{name}.a"] = (a * 3).detach()
        out[f"{name}.da"] = out[f"{name}.da"] / 3
        record(f"{name}.gate", {"a": a, "b": b}, act(a) * b)
    # Two sequences of 9 and 12 rows, 4 heads over 2 key heads, a window of 5.
    rows, heads, shared, size = 21, 4, 2, 12
    q, k, v = random(g, rows, heads * size), random(g, rows, shared * size), random(g, rows, shared * size)
    row = torch.arange(rows)
    same = (row[:, None] < 9) == (row[None, :] < 9)
    seen = same & (row[None, :] <= row[:, None]) & (row[None, :] > row[:, None] - 5)
    split = lambda x, n: x.view(rows, n, size).transpose(0, 1)[None]
    mixed = F.scaled_dot_product_attention(split(q, heads), split(k, shared), split(v, shared), attn_mask=seen, enable_gqa=True)
    record("attention", {"q": q, "k": k, "v": v}, mixed[0].transpose(0, 1).reshape(rows, heads * size))
    positions = torch.arange(rows) % 9
    angles = positions[:, None] * 100.0 ** (-torch.arange(0, size, 2) / size)[None, :]
    cos, sin = [torch.cat([f(angles)] * 2, -1)[None] for f in (torch.cos, torch.sin)]
    turned, _ = apply_rotary_pos_emb(split(q, heads), split(k, shared), cos, sin)
    record("rope", {"q": q}, turned[0].transpose(0, 1).reshape(rows, heads * size))
    out["rope.positions"] = positions.to(torch.int32)
    table, ids = random(g, 20, 24), torch.randint(0, 20, (40,), generator=g)
    record("embed", {"table": table}, F.embedding(ids, table))
    out["embed.ids"] = ids.to(torch.int32)
    logits = random(g, 9, 131)
    labels = torch.tensor([3, -100, 130, 0, 77, -100, -100, 5, 64])
    loss = F.cross_entropy(logits * 4, labels)
    loss.backward()
    out["loss.logits"] = (logits * 4).detach()
    out["loss.labels"] = labels.to(torch.int32)
    out["loss.dlogits"] = logits.grad / 4
    out["loss.loss"] = loss.detach()[None]
    for name, conv, x_shape, w_shape, options in [
        ("conv1", F.conv1d, (2, 6, 17), (9, 2, 4), {"stride": 2, "padding": 3, "dilation": 2, "groups": 3}),
        ("conv2", F.conv2d, (3, 4, 9, 7), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 3), "groups": 2}),
        ("conv3", F.conv3d, (1, 3, 4, 5, 6), (5, 3, 2, 3, 3), {"stride": (1, 2, 3), "padding": (1, 0, 2), "dilation": (2, 1, 1)}),
    ]:
        x, w, b = random(g, *x_shape), random(g, *w_shape), random(g, w_shape[0])
        record(name, {"x": x, "w": w, "b": b}, conv(x, w, b, **options))
    for name, gates, layer in [("lstm", 4, torch.nn.LSTM(10, 7)), ("rnn", 1, torch.nn.RNN(10, 7))]:
        x = random(g, 6, 3, 10)
        own = [random(g, *shape) for shape in [(gates * 7, 10), (gates * 7, 7), (gates * 7,), (gates * 7,)]]
        names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
        y = torch.func.functional_call(layer, dict(zip(names, own)), (x,))[0]
        record(name, {"x": x, **dict(zip("wubc", own))}, y)
    for name, make in {
        "sgd": lambda w: torch.optim.SGD([w], lr=0.1, weight_decay=0.2),
        "momentum": lambda w: torch.optim.SGD([w], lr=0.1, momentum=0.9),
        "adamw": lambda w: torch.optim.AdamW([w], lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2),
    }.items():
        w = torch.nn.Parameter(torch.randn(33, generator=g))
        out[f"{name}.before"] = w.detach().clone()
        optimizer = make(w)
        gradients = torch.randn(5, 33, generator=g)
        out[f"{name}.gradients"] = gradients
        for gradient in gradients:
            w.grad = gradient.clone()
            optimizer.step()
        out[f"{name}.after"] = w.detach().clone()
    # Two sequences of 9 and 12 rows.
    x, w, b = random(g, rows, 37), random(g, 37, 4), random(g, 37)
    convolved = [F.conv1d(F.pad(part.T[None], (3, 0)), w[:, None], b, groups=37)[0].T for part in (x[:9], x[9:])]
    record("short_conv", {"x": x, "w": w, "b": b}, torch.cat(convolved))
    return out


def sequences(g, vocab, lengths):
    return [torch.randint(3, vocab, (length,), generator=g) for length in lengths]


def loss_sum(model, ids, first=0):
    """The summed cross-entropy of a sequence and the number of its labels; labels before `first` do not count."""
    logits = model(ids[None]).logits[0].float()
    labels = ids[1:].clone()
    labels[: max(first - 1, 0)] = -100
    return F.cross_entropy(logits[:-1], labels, reduction="sum"), int((labels >= 0).sum())


def model_of(name):
    return AutoModelForCausalLM.from_pretrained(GOLDEN / "models" / name, dtype=torch.float32, attn_implementation="eager")


def packed(out, batch):
    out["ids"] = torch.cat(batch).to(torch.int32)
    out["lengths"] = torch.tensor([len(ids) for ids in batch], dtype=torch.int32)


def gradients(name):
    g = torch.Generator().manual_seed(2)
    model = model_of(name)
    batch = sequences(g, model.config.get_text_config().vocab_size, [13, 1, 7, 20])
    firsts = [5, 0, 0, 11]
    sums, counts = zip(*(loss_sum(model, ids, first) for ids, first in zip(batch, firsts)))
    loss = sum(sums) / sum(counts)
    loss.backward()
    out = {"loss": loss.detach()[None], "firsts": torch.tensor(firsts, dtype=torch.int32)}
    packed(out, batch)
    for key, value in model.named_parameters():
        flat = value.grad.flatten()
        out[f"grad.{key}"] = torch.cat([flat[::5], flat.norm()[None]])
    return out


def rate(step, warm_up, steps, peak):
    """transformers' cosine schedule with warm-up."""
    if step < warm_up:
        return peak * step / warm_up
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def run(model, optimizer, batches, steps, peak, max_norm=None, schedule=None, per_step=1):
    losses = []
    for step in range(steps):
        own = [batches[(step * per_step + i) % len(batches)] for i in range(per_step)]
        sums, counts = zip(*(loss_sum(model, ids) for batch in own for ids in batch))
        loss = sum(sums) / sum(counts)
        optimizer.zero_grad()
        loss.backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, peak) if schedule else peak
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def long_runs(out):
    g = torch.Generator().manual_seed(3)
    batch = sequences(g, 256, [12, 9, 16, 5, 11, 8, 14, 10])
    packed_runs = {}
    packed(packed_runs, batch)
    out.update({f"run.{key}": value for key, value in packed_runs.items()})
    batches = [batch[i : i + 2] for i in range(0, 8, 2)]
    model = model_of("llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    out["sgd"] = run(model, optimizer, batches, 200, 0.02)
    model = model_of("llama")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01)
    schedule = lambda step, peak: rate(step + 1, 20, 200, peak)
    out["adamw"] = run(model, optimizer, batches, 200, 1e-3, 1.0, schedule, 2)


def stories(folder):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(STORIES / "tokenizer.json"))
    # Capitals are new to the model, so there is something to learn.
    text = (GOLDEN / "stories260K/story.txt").read_text().upper()
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    batch = list(ids[: 48 * 20].split(48))
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32, attn_implementation="eager")
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM"))
    model.peft_config["default"].base_model_name_or_path = "stories260K"
    model.save_pretrained(folder / "adapter")
    trained, held = batch[:16], batch[16:]
    out = {}
    packed(out, batch)

    def held_out():
        with torch.no_grad():
            sums, counts = zip(*(loss_sum(model, ids) for ids in held))
        return (sum(sums) / sum(counts))[None]

    out["before"] = held_out()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0, weight_decay=0.0)
    batches = [trained[i : i + 4] for i in range(0, 16, 4)]
    out["losses"] = run(model, optimizer, batches, 24, 5e-3, 1.0)
    out["after"] = held_out()
    with torch.no_grad():
        out["logits"] = model(batch[0][None]).logits[0].contiguous()
    model.save_pretrained(folder / "trained")
    for name in ("adapter", "trained"):
        (folder / name / "README.md").unlink(missing_ok=True)
    save_file(out, folder / "golden.safetensors")


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    save_file(ops(), out / "ops.safetensors")
    for name in ("llama", "qwen3", "gemma3", "lfm2_bias"):
        golden = gradients(name)
        if name == "llama":
            long_runs(golden)
        save_file(golden, out / f"{name}.safetensors")
    stories(out / "stories260K")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
