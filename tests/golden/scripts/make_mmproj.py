#!/usr/bin/env python3
"""Towers of vision/models as llama.cpp's files beside a GGUF model.  usage: make_mmproj.py VISION [FOLDER...]   (VISION: the folder tests/golden/vision)

Needs gguf 0.19.0, torch, safetensors. Writes VISION/gguf/FOLDER/mmproj-model-bf16.gguf with the names, fields and changes of llama.cpp's conversion, and beside it
model.gguf: of qwen3_vl the whole text model, of the others what their headers say. The numbers are the checkpoints' own, so the goldens are those of vision/models.
"""
import json, os, sys
import numpy as np, gguf
from safetensors.torch import load_file

ROOT = sys.argv[1]
CASES = {
    "gemma3": ("gemma3", "gemma3"), "smolvlm": ("idefics3", "llama"), "lfm2_vl": ("lfm2", "lfm2"),
    "qwen2_5_vl": ("qwen2.5vl_merger", "qwen2vl"), "qwen3_vl": ("qwen3vl_merger", "qwen3vl"),
}


def add(w, name, x):
    x = np.ascontiguousarray(x, dtype=np.float32)
    if x.ndim < 2:
        return w.add_tensor(name, x)
    data = gguf.quants.quantize(x, gguf.GGMLQuantizationType.BF16)
    w.add_tensor(name, data, raw_shape=data.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)


def text(folder, arch, c, tensors, out):
    t = c["text_config"]
    w = gguf.GGUFWriter(f"{out}/model.gguf", arch)
    w.add_block_count(t["num_hidden_layers"]); w.add_context_length(t["max_position_embeddings"]); w.add_embedding_length(t["hidden_size"])
    w.add_feed_forward_length(t["intermediate_size"]); w.add_head_count(t["num_attention_heads"]); w.add_head_count_kv(t["num_key_value_heads"])
    if folder == "qwen3_vl":
        rope = t["rope_parameters"]
        w.add_key_length(t["head_dim"]); w.add_value_length(t["head_dim"]); w.add_layer_norm_rms_eps(t["rms_norm_eps"]); w.add_rope_freq_base(rope["rope_theta"])
        w.add_rope_dimension_sections(rope["mrope_section"] + [0]); w.add_uint32("qwen3vl.n_deepstack_layers", len(c["vision_config"]["deepstack_visual_indexes"]))
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3VL, t["num_hidden_layers"])
        for name, x in tensors.items():
            if ".visual." in name: continue
            found = names.get_name(name.replace("model.language_model.", "model."), try_suffixes=(".weight", ".bias"))
            assert found, name
            add(w, found, x)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def tower(folder, kind, c, tensors, out):
    v = c["vision_config"]
    p = f"{ROOT}/models/{folder}/preprocessor_config.json"
    p = json.load(open(p)) if os.path.exists(p) else {}
    w = gguf.GGUFWriter(f"{out}/mmproj-model-bf16.gguf", "clip")
    w.add_type("mmproj"); w.add_clip_has_vision_encoder(True); w.add_clip_projector_type(kind)
    w.add_vision_projection_dim((c.get("text_config") or c)["hidden_size"])
    layers, heads = v.get("depth", v.get("num_hidden_layers")), v.get("num_heads", v.get("num_attention_heads"))
    size = v.get("image_size") or {"qwen2_5_vl": 560, "lfm2_vl": 256}.get(folder) or int(v["num_position_embeddings"] ** 0.5 * v["patch_size"])
    w.add_vision_image_size(size); w.add_vision_patch_size(v["patch_size"]); w.add_vision_embedding_length(v["hidden_size"]); w.add_vision_feed_forward_length(v["intermediate_size"])
    w.add_vision_block_count(layers); w.add_vision_head_count(heads); w.add_vision_attention_layernorm_eps(1e-6)
    w.add_vision_image_mean(p.get("image_mean", [0.5] * 3)); w.add_vision_image_std(p.get("image_std", [0.5] * 3))
    if kind == "qwen2.5vl_merger":
        w.add_vision_use_silu(True); w.add_vision_n_wa_pattern(v["fullatt_block_indexes"][0] + 1); w.add_uint32("clip.vision.window_size", v["window_size"])
    else:
        w.add_vision_use_gelu(True)
    if kind == "gemma3": w.add_vision_projector_scale_factor(size // v["patch_size"] // int(c["mm_tokens_per_image"] ** 0.5))
    if kind == "idefics3": w.add_vision_projector_scale_factor(c["scale_factor"]); w.add_vision_preproc_image_size(p["size"]["longest_edge"])
    if kind == "lfm2": w.add_vision_projector_scale_factor(c["downsample_factor"])
    deep = v.get("deepstack_visual_indexes", [])
    if kind == "qwen3vl_merger":
        w.add_vision_spatial_merge_size(v["spatial_merge_size"]); w.add_vision_is_deepstack_layers([i in deep for i in range(layers)])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(layers, 3))
    for name, x in tensors.items():
        if not any(part in name for part in ("visual.", "vision_model.", "vision_tower.", "multi_modal_projector.", "connector.")): continue
        name = name.replace("model.visual.", "visual.").replace("model.vision_tower.", "vision_tower.").replace("model.multi_modal_projector.", "multi_modal_projector.")
        if name.endswith("_projection_weight"): name = name.replace("_weight", ".weight")
        if "soft_emb_norm" in name: x = x + 1
        if kind == "lfm2" and "patch_embedding.weight" in name: x = x.reshape(-1, 16, 16, 3).transpose(0, 3, 1, 2)
        if "patch_embed.proj.weight" in name:
            add(w, "v.patch_embd.weight", x[:, :, 0]); add(w, "v.patch_embd.weight.1", x[:, :, 1]); continue
        if ".qkv." in name and kind == "qwen2.5vl_merger":
            for part, third in zip("qkv", np.split(x, 3)): add(w, names.get_name(name.replace("qkv", part), try_suffixes=(".weight", ".bias")), third)
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if "deepstack_merger_list" in name:
            at, part, suffix = name.split(".")[2:]
            found = f"v.deepstack.{deep[int(at)]}.{part.replace('linear_', '')}.{suffix}"
        elif name.startswith("visual.merger.") and kind == "qwen3vl_merger":
            part, suffix = name.split(".")[2:]
            found = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}[part] + "." + suffix
        elif name == "visual.patch_embed.proj.bias": found = "v.patch_embd.bias"
        assert found, name
        add(w, found, x)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


for folder in sys.argv[2:] or CASES:
    kind, arch = CASES[folder]
    out = f"{ROOT}/gguf/{folder}"
    os.makedirs(out, exist_ok=True)
    config = json.load(open(f"{ROOT}/models/{folder}/config.json"))
    config["text_config"] = config.get("text_config") or config
    tensors = {name: x.float().numpy() for name, x in load_file(f"{ROOT}/models/{folder}/model.safetensors").items()}
    text(folder, arch, config, tensors, out)
    tower(folder, kind, config, tensors, out)
