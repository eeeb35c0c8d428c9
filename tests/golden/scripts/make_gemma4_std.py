#!/usr/bin/env python3
"""The tower of vision/models/gemma4 with standardized outputs.  usage: make_gemma4_std.py VISION   (the folder tests/golden/vision)

Needs transformers 5.23.0, torch, safetensors. Writes VISION/models/gemma4_std: the tower alone, with random std_bias and std_scale, and golden.safetensors: the pictures of gemma4 and their rows (f32).
"""
import json, os, sys
import numpy as np, torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder, Gemma4VisionModel

ROOT = sys.argv[1]
source, out = f"{ROOT}/models/gemma4", f"{ROOT}/models/gemma4_std"
os.makedirs(out, exist_ok=True)
raw = json.load(open(f"{source}/config.json"))
raw["vision_config"]["standardize"] = True
json.dump(raw, open(f"{out}/config.json", "w"), indent=1)
config = AutoConfig.from_pretrained(out, attn_implementation="eager")
torch.manual_seed(11)
state = {k: v for k, v in load_file(f"{source}/model.safetensors").items() if "vision_tower" in k or "embed_vision" in k}
hidden = config.vision_config.hidden_size
state["model.vision_tower.std_bias"] = torch.randn(hidden).bfloat16()
state["model.vision_tower.std_scale"] = (1 + 0.5 * torch.randn(hidden)).bfloat16()
save_file({k: v.contiguous() for k, v in state.items()}, f"{out}/model.safetensors", metadata={"format": "pt"})
strip = lambda part: {k.split(part + ".", 1)[1]: v.float() for k, v in state.items() if part + "." in k}
tower = Gemma4VisionModel._from_config(config.vision_config).float().eval()
missing = tower.load_state_dict(strip("vision_tower"), strict=False)
assert not missing.missing_keys, missing
embedder = Gemma4MultimodalEmbedder(config.vision_config, config.text_config).float().eval()
embedder.load_state_dict(strip("embed_vision"), strict=False)
golden = load_file(f"{source}/golden.safetensors")
patch, rows = config.vision_config.patch_size, []
for name in ("image.0", "image.1"):
    picture = golden[name].float() / 255
    picture = picture.half().float()
    h, w = picture.shape[0] // patch, picture.shape[1] // patch
    pixels = picture[: h * patch, : w * patch].reshape(h, patch, w, patch, 3).permute(0, 2, 1, 3, 4).reshape(1, h * w, -1)
    y, x = np.divmod(np.arange(h * w), w)
    positions = torch.tensor(np.stack([x, y], -1))[None]
    with torch.no_grad():
        found = tower(pixel_values=pixels, pixel_position_ids=positions).last_hidden_state
        rows.append(embedder(inputs_embeds=found).reshape(-1, config.text_config.hidden_size))
save_file({"image.0": golden["image.0"], "image.1": golden["image.1"], "visual_tokens": torch.cat(rows).contiguous()}, f"{out}/golden.safetensors")
