#!/usr/bin/env python3
"""The tower of vision/models/gemma4 with options.  usage: make_gemma4_towers.py VISION   (the folder tests/golden/vision)

Needs transformers 5.23.0, torch, safetensors. Writes folders of the tower alone, each with golden.safetensors, the pictures of gemma4 and their rows (f32):
VISION/models/gemma4_std with standardized outputs (random std_bias and std_scale), VISION/models/gemma4_clip with clipped products, whose limits cut off a tenth of what goes through.
"""
import json, os, sys
import numpy as np, torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4ClippableLinear, Gemma4MultimodalEmbedder, Gemma4VisionModel

ROOT = sys.argv[1]
source = f"{ROOT}/models/gemma4"
torch.set_grad_enabled(False)


def strip(state, part):
    return {k.split(part + ".", 1)[1]: v.float() for k, v in state.items() if part + "." in k}


def loaded(config, state):
    tower = Gemma4VisionModel._from_config(config.vision_config).float().eval()
    missing = tower.load_state_dict(strip(state, "vision_tower"), strict=False)
    assert not missing.missing_keys and not missing.unexpected_keys, missing
    return tower


def run(tower, golden, name):
    patch = tower.config.patch_size
    picture = golden[name].float() / 255
    picture = picture.half().float()
    h, w = picture.shape[0] // patch, picture.shape[1] // patch
    pixels = picture[: h * patch, : w * patch].reshape(h, patch, w, patch, 3).permute(0, 2, 1, 3, 4).reshape(1, h * w, -1)
    y, x = np.divmod(np.arange(h * w), w)
    positions = torch.tensor(np.stack([x, y], -1))[None]
    return tower(pixel_values=pixels, pixel_position_ids=positions).last_hidden_state


def standardized(config, state):
    torch.manual_seed(11)
    hidden = config.vision_config.hidden_size
    state["model.vision_tower.std_bias"] = torch.randn(hidden).bfloat16()
    state["model.vision_tower.std_scale"] = (1 + 0.5 * torch.randn(hidden)).bfloat16()


def clipped(config, state):
    """Limits of what the tower has without any; the last product's output has none."""
    config.vision_config.use_clipped_linears = False
    tower, seen = loaded(config, state), {}
    config.vision_config.use_clipped_linears = True
    for name, module in tower.named_modules():
        if isinstance(module, Gemma4ClippableLinear):
            module.register_forward_hook(lambda m, x, y, name=name: seen.update({name: (x[0], y)}))
    run(tower, golden, "image.0")
    for name, values in seen.items():
        for part, value in zip(("input", "output"), values):
            low, high = (torch.quantile(value.flatten(), q) for q in (0.05, 0.95))
            if (name, part) == (list(seen)[-1], "output"):
                low, high = torch.tensor(-torch.inf), torch.tensor(torch.inf)
            state[f"model.vision_tower.{name}.{part}_min"] = low.bfloat16()
            state[f"model.vision_tower.{name}.{part}_max"] = high.bfloat16()


golden = load_file(f"{source}/golden.safetensors")
for folder, option, change in (("gemma4_std", "standardize", standardized), ("gemma4_clip", "use_clipped_linears", clipped)):
    out = f"{ROOT}/models/{folder}"
    os.makedirs(out, exist_ok=True)
    raw = json.load(open(f"{source}/config.json"))
    raw["vision_config"][option] = True
    json.dump(raw, open(f"{out}/config.json", "w"), indent=1)
    config = AutoConfig.from_pretrained(out, attn_implementation="eager")
    state = {k: v for k, v in load_file(f"{source}/model.safetensors").items() if "vision_tower" in k or "embed_vision" in k}
    change(config, state)
    save_file({k: v.contiguous() for k, v in state.items()}, f"{out}/model.safetensors", metadata={"format": "pt"})
    tower = loaded(config, state)
    embedder = Gemma4MultimodalEmbedder(config.vision_config, config.text_config).float().eval()
    embedder.load_state_dict(strip(state, "embed_vision"), strict=False)
    rows = [embedder(inputs_embeds=run(tower, golden, name)).reshape(-1, config.text_config.hidden_size) for name in ("image.0", "image.1")]
    save_file({"image.0": golden["image.0"], "image.1": golden["image.1"], "visual_tokens": torch.cat(rows).contiguous()}, f"{out}/golden.safetensors")
