#!/usr/bin/env python3
"""Compact expectations of image processors.  usage: vision_images.py MEDIA OUT      (no packages needed)
MEDIA holds `images` (files, expected.json, expected_<processor>.safetensors: transformers 5.23.0 with torchvision 0.29.2) and `mrope_layouts.json`.
Writes OUT/images.json: for each processor its settings and for each file the shape, grid and moments of pixel_values, and SAMPLES values as the 8-bit levels that they were before normalization (hex);
OUT/mrope.json: sequences as spans with their positions."""
import json, struct, sys
SAMPLES = 120                                           # and few large pictures for few processors: the test runs them all
media, out = sys.argv[1:3]
index = json.load(open(f"{media}/images/expected.json"))
PATCHES = ("qwen3_5", "qwen2_5_vl", "qwen_small")

def tensors(path):
    data = open(path, "rb").read(); n = struct.unpack("<Q", data[:8])[0]; head = json.loads(data[8:8 + n])
    for name, t in head.items():
        if name == "__metadata__": continue
        raw = data[8 + n + t["data_offsets"][0]: 8 + n + t["data_offsets"][1]]
        yield name, t["shape"], list(raw) if t["dtype"] == "U8" else [v[0] for v in struct.iter_unpack("<e", raw)]

def color(k, shape, kind):                              # the color of flat element k
    if len(shape) > 3 or kind == "siglip": return k // (shape[-1] * shape[-2]) % 3
    if kind in PATCHES: return k % shape[-1] // (shape[-1] // 3)
    return k % 3

def padded(info, full, at):                             # rows past a tile's patches are zeros
    shapes = info.get("spatial_shapes") or ([[info["num_soft_tokens_per_image"][0] * 9, 1]] if "num_soft_tokens_per_image" in info else None)
    if not shapes: return False
    h, w = shapes[at // (full[-1] * full[-2])]; return at // full[-1] % full[-2] >= h * w

done = {}
for name, p in index["processors"].items():
    files, (mean, std) = {}, (p["mean"], p["std"])
    if name == "gemma4": mean, std = [0] * 3, [1] * 3
    for file, shape, values in tensors(f"{media}/images/expected_{name}.safetensors"):
        if "large" in file and name not in ("siglip_224", "lfm2_vl", "gemma4", "smolvlm_small"): continue
        if name in ("smolvlm", "gemma3") and file.split("_")[0] not in ("odd", "portrait", "wide", "thin", "jpeg"): continue
        info = p["per_image"][file]; full = info["shape"]; numel = 1
        for n in full: numel *= n
        whole = len(shape) > 1 or len(values) == numel
        picked = []
        for k in range(SAMPLES):
            at = (k * 7919 + 13) % numel
            if name == "qwen_small" and not whole: at = (k * 7919 + 13) % (numel // 2); at = at // 768 * 1536 + at % 768 // 256 * 512 + at % 256
            if name == "qwen_small" and whole: v = values[at // 1536 * 768 + at % 1536 // 512 * 256 + at % 256]    # stored once for both frames
            else: v = values[at if whole else k]
            if padded(info, full, at): picked.append(0); continue
            if not isinstance(v, int):
                c = color(at, full, name); level = (v * std[c] + mean[c]) * 255
                if abs(level - round(level)) > 0.3: sys.exit(f"{name} {file}: {level} is no level")
                v = round(level)
            picked.append(v)
        files[file] = {k: v for k, v in info.items() if k not in ("min", "max")} | dict(once=name == "qwen_small" and not whole, levels=bytes(min(max(v, 0), 255) for v in picked).hex())
    done[name] = dict(cls=p["cls"], resample=p["resample"], mean=p["mean"], std=p["std"], kwargs=p["kwargs"], files=files)
json.dump(dict(loader=index["loader"], processors=done), open(f"{out}/images.json", "w"), separators=(",", ":"))

m = json.load(open(f"{media}/mrope_layouts.json")); cases = []
for family in ("qwen3_5", "qwen2_5_vl"):
    for c in m[family]:
        kept = [i for i, a in enumerate(c["attention_mask"]) if a]
        kinds = [c["mm_token_type_ids"][i] for i in kept]; grids = {1: list(c["image_grid_thw"]), 2: []}; spans, i = [], 0
        for j, (t, h, w) in enumerate(c["video_grid_thw"]):
            if family == "qwen3_5": grids[2] += [[1, h, w, 1]] * t
            else: grids[2].append([t, h, w, m["qwen2_5_tokens_per_second"] * c["second_per_grid_ts"][j]])
        while i < len(kinds):
            k = i
            while k < len(kinds) and kinds[k] == kinds[i]: k += 1
            spans.append(k - i if kinds[i] == 0 else [v // 2 if d in (1, 2) else v for d, v in enumerate(grids[kinds[i]].pop(0))]); i = k
        cases.append(dict(family=family, layout=" ".join(c["layout"]), spans=spans, positions=[[row[i] for i in kept] for row in c["position_ids"]], offset=c["rope_delta"]))
json.dump(cases, open(f"{out}/mrope.json", "w"), separators=(",", ":"))
print(len(done), "processors,", len(cases), "layouts")
