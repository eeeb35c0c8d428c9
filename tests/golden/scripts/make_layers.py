#!/usr/bin/env python3
"""Layers of PyTorch with their gradients.   usage: make_layers.py ../train

Needs torch. Writes layers.safetensors and layers.json. `gru.*` has a GRU as make_train.py has an LSTM: x and y are [steps, rows, cols].
Each entry of layers.json is a network: its description, `input` and `layers`. Its tensors are NAME.x (I32 for ids), NAME.y, NAME.dy,
NAME.dx, and for each weight NAME.w.WEIGHT and NAME.d.WEIGHT.
`fit` has losses of a small network by step: description, options, and tensors fit.x, fit.y, fit.w.WEIGHT, fit.losses, fit.predictions.
"""
import json
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

BATCH = 3


class Last(nn.Module):
    """A recurrent layer: all outputs, or the last."""

    def __init__(self, layer, sequences):
        super().__init__()
        self.layer, self.sequences = layer, sequences

    def forward(self, x):
        y = self.layer(x)[0]
        return y if self.sequences else y[:, -1]


class Attend(nn.Module):
    def __init__(self, size, heads, causal, bias):
        super().__init__()
        self.layer, self.causal = nn.MultiheadAttention(size, heads, bias=bias, batch_first=True), causal

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        return self.layer(x, x, x, attn_mask=mask, need_weights=False)[0]


class SwiGlu(nn.Module):
    def __init__(self, size, hidden, units):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(size, hidden, bias=False), nn.Linear(size, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, units, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Parallel(nn.Module):
    """Branches under the names 0, 1, …, joined along an axis of the example or added."""

    def __init__(self, branches, axis):
        super().__init__()
        self.axis = axis
        for index, branch in enumerate(branches):
            self.add_module(str(index), branch)

    def forward(self, x):
        outputs = [branch(x) for branch in self.children()]
        return sum(outputs) if self.axis is None else torch.cat(outputs, self.axis)


def named(layer):
    """Names without the wrappers Last and Attend."""
    return {name.replace("layer.", ""): value for name, value in layer.named_parameters()}


def networks():
    dense = {"type": "dense", "units": 4}
    yield "dense", [5], [{"type": "dense", "units": 7}], nn.Sequential(nn.Linear(5, 7))
    yield "dense_rows", [2, 40], [{"type": "dense", "units": 70, "bias": False}], nn.Sequential(nn.Linear(40, 70, bias=False))
    yield "conv1d", [6, 17], [{"type": "conv1d", "filters": 9, "kernelSize": 4, "stride": 2, "padding": 3, "dilation": 2, "groups": 3}], nn.Sequential(
        nn.Conv1d(6, 9, 4, 2, 3, 2, 3)
    )
    yield "conv2d", [4, 9, 7], [{"type": "conv2d", "filters": 6, "kernelSize": [3, 2], "stride": [2, 1], "padding": [1, 2], "dilation": [1, 3], "groups": 2}], nn.Sequential(
        nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (1, 3), 2)
    )
    yield "conv3d", [3, 4, 5, 6], [{"type": "conv3d", "filters": 5, "kernelSize": [2, 3, 3], "stride": [1, 2, 3], "padding": [1, 0, 2], "dilation": [2, 1, 1], "bias": False}], nn.Sequential(
        nn.Conv3d(3, 5, (2, 3, 3), (1, 2, 3), (1, 0, 2), (2, 1, 1), bias=False)
    )
    for name, make in {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}.items():
        yield name, [6, 10], [{"type": name, "units": 7}], nn.Sequential(Last(make(10, 7, batch_first=True), False))
        layers = [{"type": name, "units": 7, "returnSequences": True, "bias": False}]
        yield f"{name}_sequences", [6, 10], layers, nn.Sequential(Last(make(10, 7, batch_first=True, bias=False), True))
        layers = [{"type": name, "units": 5, "returnSequences": True}, {"type": name, "units": 4}]
        stack = nn.Sequential(Last(make(8, 5, batch_first=True), True), Last(make(5, 4, batch_first=True), False))
        yield f"{name}_stack", [5, 8], layers, stack
    yield "rmsNorm", [3, 70], [{"type": "rmsNorm"}], nn.Sequential(nn.RMSNorm(70, eps=1e-5))
    yield "layerNorm", [3, 70], [{"type": "layerNorm", "eps": 1e-3}], nn.Sequential(nn.LayerNorm(70, eps=1e-3))
    yield "embedding", [8], [{"type": "embedding", "inputDim": 20, "outputDim": 24}, dense], nn.Sequential(nn.Embedding(20, 24), nn.Linear(24, 4))
    for name, heads, causal, bias in [("attention", 3, False, True), ("attention_causal", 2, True, False)]:
        layers = [{"type": "attention", "heads": heads, "causal": causal, "bias": bias}]
        yield name, [7, 24], layers, nn.Sequential(Attend(24, heads, causal, bias))
    yield "swiglu", [2, 12], [{"type": "swiglu", "hidden": 36}], nn.Sequential(SwiGlu(12, 36, 12))
    yield "swiglu_units", [12], [{"type": "swiglu", "hidden": 20, "units": 5}], nn.Sequential(SwiGlu(12, 20, 5))
    activations = {"relu": nn.ReLU(), "silu": nn.SiLU(), "gelu": nn.GELU(), "geluTanh": nn.GELU("tanh"), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid()}
    for name, act in activations.items():
        yield name, [5, 9], [{"type": name}], nn.Sequential(act)
        yield f"dense_{name}", [9], [{"type": "dense", "units": 6, "activation": name}], nn.Sequential(nn.Sequential(nn.Linear(9, 6)), act)
    yield "softmax", [4, 31], [{"type": "softmax"}], nn.Sequential(nn.Softmax(-1))
    layers = [{"type": "conv2d", "filters": 3, "kernelSize": 3, "activation": "relu"}, {"type": "flatten"}, {"type": "reshape", "shape": [4, 12]}, dense]
    yield "shapes", [2, 6, 6], layers, nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sequential(nn.ReLU(), nn.Flatten()), nn.Unflatten(1, (4, 12)), nn.Linear(12, 4))
    layers = [{"type": "residual", "layers": [{"type": "rmsNorm"}, {"type": "dense", "units": 10, "activation": "gelu"}]}, {"type": "residual", "layers": [{"type": "tanh"}]}]
    yield "residual", [3, 10], layers, nn.Sequential(Residual(nn.RMSNorm(10, eps=1e-5), nn.Sequential(nn.Linear(10, 10), nn.GELU())), Residual(nn.Tanh()))
    layers = [{"type": "sequential", "layers": [dense, {"type": "sigmoid"}]}, {"type": "dense", "units": 3}]
    yield "sequential", [6], layers, nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.Sigmoid()), nn.Linear(4, 3))
    for name, axis, given in [("parallel", -1, {}), ("parallel_axis", 1, {"axis": 0}), ("parallel_add", None, {"combine": "add"})]:
        branches = [[{"type": "dense", "units": 6}], [{"type": "dense", "units": 6, "activation": "relu"}, {"type": "dense", "units": 6, "name": "own"}], []]
        own = nn.Sequential()
        own.add_module("0", nn.Sequential(nn.Linear(6, 6), nn.ReLU()))
        own.add_module("own", nn.Linear(6, 6))
        module = nn.Sequential(Parallel([nn.Sequential(nn.Linear(6, 6)), own, nn.Sequential()], axis), nn.Tanh())
        yield name, [4, 6], [{"type": "parallel", "branches": branches, **given}, {"type": "tanh"}], module


def renamed(name, network):
    """Where the module needs a wrapper for an activation, the wrapper's index goes: 0.0.weight is 0.weight."""
    if network.startswith("dense_") and network != "dense_rows":
        return name.replace("0.0.", "0.")
    if network == "residual":
        return name.replace("0.1.0.", "0.1.")
    if network.startswith("parallel"):
        return name.replace("0.1.0.0.", "0.1.0.")
    return name


def gru(g, out):
    layer = nn.GRU(10, 7)
    x, dy = torch.randn(6, 3, 10, generator=g, requires_grad=True), torch.randn(6, 3, 7, generator=g)
    own = [torch.randn(*shape, generator=g, requires_grad=True) for shape in [(21, 10), (21, 7), (21,), (21,)]]
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    y = torch.func.functional_call(layer, dict(zip(names, own)), (x,))[0]
    grads = torch.autograd.grad(y, [x, *own], dy)
    out.update({"gru.y": y, "gru.dy": dy})
    for key, value, grad in zip("xwubc", [x, *own], grads):
        out[f"gru.{key}"], out[f"gru.d{key}"] = value, grad


def fit(g, out, entries):
    """20 steps over 16 examples in order, 8 a step: MSE with AdamW, then cross-entropy with SGD and momentum."""
    layers = [{"type": "dense", "units": 12, "activation": "tanh"}, {"type": "dense", "units": 5}]
    for name, loss, optimizer in [
        ("mse", "mse", {"type": "adamw", "learningRate": 0.02, "weightDecay": 0.1}),
        ("entropy", "crossEntropy", {"type": "sgd", "learningRate": 0.1, "momentum": 0.9}),
    ]:
        model = nn.Sequential(nn.Sequential(nn.Linear(6, 12), nn.Tanh()), nn.Linear(12, 5))
        x = torch.randn(16, 6, generator=g)
        if loss == "mse":
            y = torch.randn(16, 5, generator=g)
            step = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
        else:
            y = torch.randint(0, 5, (16,), generator=g)
            y[3] = -100
            step = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for key, value in model.named_parameters():
            out[f"fit_{name}.w.{key.replace('0.0.', '0.')}"] = value.detach().clone()
        losses = []
        for index in range(20):
            own = slice(index % 2 * 8, index % 2 * 8 + 8)
            value = F.mse_loss(model(x[own]), y[own]) if loss == "mse" else F.cross_entropy(model(x[own]), y[own])
            step.zero_grad()
            value.backward()
            # Mean of an epoch, as the network reports it: labels that are ignored do not count.
            count = (y[own] >= 0).sum().item() if loss != "mse" else y[own].numel()
            losses.append((value.item(), count))
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            step.step()
        epochs = [(a * m + b * n) / (m + n) for (a, m), (b, n) in zip(losses[::2], losses[1::2])]
        out[f"fit_{name}.x"], out[f"fit_{name}.y"] = x, y.to(torch.int32) if loss != "mse" else y
        out[f"fit_{name}.losses"], out[f"fit_{name}.predictions"] = torch.tensor(epochs), model(x)
        options = {"loss": loss, "optimizer": optimizer, "epochs": 10, "batchSize": 8, "shuffle": False, "maxNorm": 0.5}
        entries[f"fit_{name}"] = {"input": [6], "layers": layers, "options": options}


def main(folder):
    g = torch.Generator().manual_seed(7)
    torch.manual_seed(8)
    out, entries = {}, {}
    gru(g, out)
    for name, shape, layers, module in networks():
        entries[f"net_{name}"] = {"input": shape, "layers": layers}
        # Gains and biases of norms start with ones and zeros, which hide mistakes.
        for value in module.parameters():
            value.data += 0.1 * torch.randn(value.shape, generator=g)
        ids = name == "embedding"
        x = torch.randint(0, 20, (BATCH, *shape), generator=g) if ids else torch.randn(BATCH, *shape, generator=g, requires_grad=True)
        y = module(x)
        dy = torch.randn(y.shape, generator=g)
        y.backward(dy)
        key = f"net_{name}"
        out.update({f"{key}.x": x.to(torch.int32) if ids else x, f"{key}.y": y, f"{key}.dy": dy})
        if not ids:
            out[f"{key}.dx"] = x.grad
        for weight, value in named(module).items():
            own = renamed(weight, name)
            out[f"{key}.w.{own}"], out[f"{key}.d.{own}"] = value, value.grad
    fit(g, out, entries)
    save_file({key: value.detach().contiguous().clone() for key, value in out.items()}, folder / "layers.safetensors")
    (folder / "layers.json").write_text(json.dumps(entries, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
