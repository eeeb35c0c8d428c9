#!/usr/bin/env python3
"""NanoCodec decoder (FSQ codes -> waveform), a plain torch reference in own words. Tensor names are those of the published checkpoint's state dict
(audio_decoder.*, vector_quantizer.*), weight norm included (original0 = g, original1 = v; w = g * v / |v|, the norm over every axis but the first).
usage: make_nanocodec.py DIR      checks DIR/golden.safetensors against DIR/model.safetensors + DIR/config.json, prints max|err|
       make_nanocodec.py --make DIR   writes a tiny random checkpoint and its goldens"""
import json, os, sys
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
torch.set_num_threads(1); torch.set_grad_enabled(False)

def fsq_dequant(codes, levels):
    """codes [G, T] ints, one per group -> [G * len(levels), T] floats. digit d = (code // base_d) % L_d, value = (digit - L//2) / (L//2): L//2 is an INTEGER half,
    so 9 -> {-1,-.75..1}, 8 -> {-1..0.75}, 7 -> {-1,-2/3..1}. The groups are stacked: channel = group * len(levels) + d."""
    out, base = [], 1
    for L in levels:
        out.append(((codes // base) % L - L // 2).float() / (L // 2)); base *= L
    return torch.stack(out, 1).reshape(-1, codes.shape[-1])

def fsq_quant(x, levels, eps=1e-3):
    """[G * D, T] -> codes [G, T] (the encoder side)."""
    D = len(levels); x = x.reshape(-1, D, x.shape[-1]); code, base = 0, 1
    for d, L in enumerate(levels):
        s = (L - 1) / 2 * (1 - eps); off = 0.5 if L % 2 == 0 else 0.0
        shift = torch.tan(torch.tensor(off / s, dtype=torch.float32))
        code = code + (torch.round(s * torch.tanh(x[:, d] + shift) - off).long() + L // 2) * base; base *= L
    return code

class Decoder:
    def __init__(self, sd, cfg): self.sd, self.cfg = {k: v.float() if v.is_floating_point() else v for k, v in sd.items()}, cfg
    def w(self, p):
        g, v = self.sd[p + ".parametrizations.weight.original0"], self.sd[p + ".parametrizations.weight.original1"]
        return g * v / v.pow(2).sum(dim=(1, 2), keepdim=True).sqrt(), self.sd[p + ".bias"]
    def conv(self, x, p, dil=1):                       # causal: (k-1)*dilation zeros on the left, none on the right
        w, b = self.w(p + ".conv"); return F.conv1d(F.pad(x, ((w.shape[-1] - 1) * dil, 0)), w, b, dilation=dil)
    def up(self, x, p, r):                             # kernel 2r, stride r; out_channels = in/2 groups, so each output reads inputs 2o and 2o+1; the last r samples are cut
        w, b = self.w(p + ".conv"); C = w.shape[0] // 2
        return F.conv_transpose1d(x, w, b, stride=r, groups=C)[..., :x.shape[-1] * r]
    def act(self, x, p):                               # half snake: first C//2 channels x + sin(a x)^2 / (a + 1e-9), the rest leaky ReLU 0.01
        a = self.sd[p + ".activation.snake_act.alpha"]; h = a.shape[1]
        s = x[:, :h]; return torch.cat([s + torch.sin(a * s).pow(2) / (a + 1e-9), F.leaky_relu(x[:, h:], 0.01)], 1)
    def res(self, x, p):                               # mean over kernel sizes of a chain over dilations
        outs = []
        for k in range(len(self.cfg["resblock_kernel_sizes"])):
            y = x
            for d, dil in enumerate(self.cfg["resblock_dilation_sizes"]):
                q = f"{p}.res_blocks.{k}.res_blocks.{d}"
                y = y + self.conv(self.act(self.conv(self.act(y, q + ".input_activation"), q + ".input_conv", dil), q + ".skip_activation"), q + ".skip_conv")
            outs.append(y)
        return sum(outs) / len(outs)
    def __call__(self, codes):                         # codes [G, T] -> (waveform [T * hop], dict of stages)
        st = {"fsq": fsq_dequant(codes, self.cfg["num_levels"])}; p = "audio_decoder."
        x = self.conv(st["fsq"][None], p + "pre_conv"); st["pre_conv"] = x[0]
        for i, r in enumerate(self.cfg["up_sample_rates"]):
            x = self.up(self.act(x, f"{p}activations.{i}"), f"{p}up_sample_conv_layers.{i}", r); st[f"up.{i}"] = x[0]
            x = self.res(x, f"{p}res_layers.{i}"); st[f"res.{i}"] = x[0]
        x = self.conv(self.act(x, p + "post_activation"), p + "post_conv")
        return x.clamp(-1, 1)[0, 0], st

CFG = dict(model_type="nanocodec_decoder", sample_rate=22050, num_groups=4, num_levels=[9, 8, 8, 7], input_dim=16, base_channels=48, up_sample_rates=[7, 7, 6, 6],
           in_kernel_size=7, out_kernel_size=3, resblock_kernel_sizes=[3, 7, 11], resblock_dilation_sizes=[1, 3, 5], activation="half_snake", output_activation="clamp", pad_mode="zeros")

def random_weights(cfg, seed=31337):
    g = torch.Generator().manual_seed(seed); sd = {}
    def wn(p, shape, gain):
        v = torch.randn(shape, generator=g); n = v.pow(2).sum(dim=(1, 2), keepdim=True).sqrt()
        sd[p + ".bias"] = torch.randn(gain[1], generator=g) * 0.1
        sd[p + ".parametrizations.weight.original0"] = gain[0] * (1 + 0.2 * torch.randn(n.shape, generator=g)); sd[p + ".parametrizations.weight.original1"] = v
    def act(p, C): sd[p + ".activation.snake_act.alpha"] = 1 + 0.4 * torch.rand(1, C // 2, 1, generator=g)
    p, C = "audio_decoder.", cfg["base_channels"]
    wn(p + "pre_conv.conv", (C, cfg["input_dim"], cfg["in_kernel_size"]), (1.0, C))
    for i, r in enumerate(cfg["up_sample_rates"]):
        act(f"{p}activations.{i}", C); wn(f"{p}up_sample_conv_layers.{i}.conv", (C, 1, 2 * r), (0.8 * r ** 0.5, C // 2)); C //= 2
        for k, K in enumerate(cfg["resblock_kernel_sizes"]):
            for d in range(len(cfg["resblock_dilation_sizes"])):
                q = f"{p}res_layers.{i}.res_blocks.{k}.res_blocks.{d}"
                for a in ("input", "skip"): act(f"{q}.{a}_activation", C); wn(f"{q}.{a}_conv.conv", (C, C, K), (0.45, C))
    act(p + "post_activation", C); wn(p + "post_conv.conv", (1, C, cfg["out_kernel_size"]), (0.3, 1))
    for k in sd: sd[k] = sd[k].half()                  # stored in 16 bits, computed in 32
    for j in range(cfg["num_groups"]):
        lv = torch.tensor(cfg["num_levels"], dtype=torch.int32).reshape(1, -1, 1)
        sd[f"vector_quantizer.fsqs.{j}.num_levels"] = lv
        sd[f"vector_quantizer.fsqs.{j}.dim_base_index"] = torch.cumprod(torch.tensor([1] + cfg["num_levels"][:-1]), 0).to(torch.int32).reshape(1, -1, 1)
    return sd

def make(d, cfg=CFG):
    os.makedirs(d, exist_ok=True); sd = random_weights(cfg); dec = Decoder(sd, cfg); g = torch.Generator().manual_seed(7); n = 1
    for L in cfg["num_levels"]: n *= L
    gold = {}
    for T in (1, 7, 60):
        c = torch.randint(0, n, (cfg["num_groups"], T), generator=g); c[0, 0] = n - 1; c[1, 0] = 0; w, st = dec(c)
        gold[f"codes.{T}"] = c.int(); gold[f"wave.{T}"] = w if T < 60 else w.half()      # 60 frames: f16 to stay small
        if T == 1: gold.update({f"stage.1.{k}": v.half() if v.numel() > 20000 else v for k, v in st.items()})
    probe = torch.tensor([[0, 1, 8, 9, 71, 72, 575, 576, 2015, 2016, n - 1]]); gold["fsq.probe_codes"] = probe[0].int(); gold["fsq.probe_values"] = fsq_dequant(probe, cfg["num_levels"]).T
    x = torch.randn(cfg["input_dim"], 25, generator=g) * 1.3; gold["fsq.encode_in"] = x; gold["fsq.encode_codes"] = fsq_quant(x, cfg["num_levels"]).int()
    save_file({k: v.contiguous() for k, v in sd.items()}, f"{d}/model.safetensors"); save_file({k: v.clone().contiguous() for k, v in gold.items()}, f"{d}/golden.safetensors")
    json.dump(cfg, open(f"{d}/config.json", "w"), indent=1)
    return gold

def check(d):
    cfg = json.load(open(f"{d}/config.json")); dec = Decoder(load_file(f"{d}/model.safetensors"), cfg); G = load_file(f"{d}/golden.safetensors")
    for k in G:
        if k.startswith("codes."):
            w, _ = dec(G[k].long()); r = G["wave." + k[6:]]; print(k, list(w.shape), "max|err|", float((w - r.float()).abs().max()), "rms", float(r.float().pow(2).mean().sqrt()))

if __name__ == "__main__":
    if sys.argv[1] == "--make": make(sys.argv[2])
    check(sys.argv[-1])
