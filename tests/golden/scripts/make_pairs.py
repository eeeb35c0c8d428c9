#!/usr/bin/env python3
"""Tiny models whose pictures and texts share a space.  usage: make_pairs.py VISION [NAME...]   (the folder tests/golden/vision)

Needs transformers 5.23.0, torch, safetensors, tokenizers; for siglip2 torchvision and Pillow as well. Writes VISION/pairs/{clip,siglip,siglip2}: random checkpoints (bf16), a tokenizer of words, the image processor's settings and
golden.safetensors: pictures of the towers' size, and the vectors of texts.json and of the pictures, computed in f32 and scaled to length 1. SigLIP's texts are lowercased and filled up to the longest. SigLIP 2's pictures are of several sizes and go through its
processor; sizes.json: patch, most patches, height, width, and the size that the processor chooses.
"""
import json, os, sys
import numpy as np, torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import CLIPConfig, CLIPModel, Siglip2Config, Siglip2Model, SiglipConfig, SiglipModel

ROOT = sys.argv[1]
WORDS = ["<start>", "<pad>", "<end>", "<unk>"] + "a an the of in on photo picture cat dog bird bee red green blue small large two three with and house tree".split()
TEXTS = ["a photo of a red bird", "two small dog", "The House with a TREE and a bee on it", ""]


def tokenizer(out, clip):
    words = {w: i for i, w in enumerate(WORDS)}
    # CLIP's end token is the last of its vocabulary: where config.json says 2, as OpenAI's do, the model takes the row of the largest id.
    if clip: words["<end>"], words[WORDS[-1]] = words[WORDS[-1]], words["<end>"]
    tok = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.add_special_tokens(["<start>", "<pad>", "<end>"])
    single = "<start> $A <end>" if clip else "$A <end>"
    tok.post_processor = processors.TemplateProcessing(single=single, pair=None, special_tokens=[("<start>", 0), ("<end>", words["<end>"])])
    tok.save(f"{out}/tokenizer.json", pretty=False)
    json.dump({"pad_token": "<end>" if clip else "<pad>", "eos_token": "<end>", "model_max_length": 12}, open(f"{out}/tokenizer_config.json", "w"))
    return tok


def make(name, config, cls, processor, clip):
    out = f"{ROOT}/pairs/{name}"
    os.makedirs(out, exist_ok=True)
    torch.manual_seed(7)
    model = cls(config).eval()
    state = model.state_dict()
    for key, x in state.items():
        if x.dtype == torch.float32 and x.ndim:
            # Spread out, so that a mistake in any part shows.
            if x.ndim == 1 and key.endswith("weight"): x.copy_(1 + 0.2 * torch.randn_like(x))
            elif x.ndim == 1: x.copy_(0.2 * torch.randn_like(x))
            else: x.copy_(torch.randn_like(x) * (0.5 if "embedding.weight" in key or "probe" in key else 1.2 / x[0].numel() ** 0.5))
            x.copy_(x.bfloat16().float())
    model.load_state_dict(state)
    save_file({k: v.bfloat16().contiguous() for k, v in state.items()}, f"{out}/model.safetensors", metadata={"format": "pt"})
    config.architectures = [cls.__name__]
    json.dump(json.loads(config.to_json_string(use_diff=False)), open(f"{out}/config.json", "w"), indent=1)
    json.dump(processor, open(f"{out}/preprocessor_config.json", "w"), indent=1)
    tok = tokenizer(out, clip)
    rng = np.random.default_rng(3)
    pictures = []
    any_size = name == "siglip2"
    for height, width in ((50, 90), (61, 33)) if any_size else ((40, 40), (40, 40)):
        y, x = np.mgrid[0:height, 0:width]
        base = np.stack([x * 255 / width, y * 255 / height, (x + y) % 64 * 4], -1)
        pictures.append(np.clip(base + rng.normal(0, 12, base.shape), 0, 255).astype(np.uint8))
    with torch.no_grad():
        mean, std = (torch.tensor(processor[k])[:, None, None] for k in ("image_mean", "image_std"))
        given = lambda p: Siglip2ImageProcessor(**{k: v for k, v in processor.items() if k != "image_processor_type"})(torch.from_numpy(p).permute(2, 0, 1), return_tensors="pt")
        pixels = None if any_size else torch.stack([(torch.from_numpy(p).permute(2, 0, 1).float() / 255 - mean) / std for p in pictures])
        images = torch.cat([model.get_image_features(**given(p)).pooler_output for p in pictures]) if any_size else model.get_image_features(pixel_values=pixels).pooler_output
        texts = []
        for text in TEXTS:
            ids = tok.encode(text if clip else text.lower()).ids
            if not clip: ids = ids + [1] * (config.text_config.max_position_embeddings - len(ids))
            texts.append(model.get_text_features(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)).pooler_output[0])
    unit = lambda x: (x / x.norm(dim=-1, keepdim=True)).contiguous()
    save_file({"image.0": torch.from_numpy(pictures[0]), "image.1": torch.from_numpy(pictures[1]), "pictures": unit(images), "texts": unit(torch.stack(texts))}, f"{out}/golden.safetensors")
    json.dump(TEXTS, open(f"{out}/texts.json", "w"))


ONLY = sys.argv[2:] or ["clip", "siglip", "siglip2"]
text = dict(vocab_size=len(WORDS), hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=12)
sight = dict(hidden_size=36, intermediate_size=50, num_hidden_layers=2, num_attention_heads=3, image_size=40, patch_size=8)
if "clip" in ONLY: make("clip", CLIPConfig(text_config=dict(text, bos_token_id=0, eos_token_id=2, pad_token_id=2), vision_config=sight, projection_dim=24), CLIPModel,
     {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 40}, "crop_size": {"height": 40, "width": 40}, "resample": 3,
      "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}, True)
if "siglip" in ONLY: make("siglip", SiglipConfig(text_config=dict(text, hidden_size=36, num_attention_heads=3, projection_size=36, pad_token_id=1, bos_token_id=0, eos_token_id=2), vision_config=sight), SiglipModel,
     {"image_processor_type": "SiglipImageProcessor", "size": {"height": 40, "width": 40}, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, False)
if "siglip2" in ONLY:
    from transformers.models.siglip2.image_processing_siglip2 import Siglip2ImageProcessor, get_image_size_for_max_num_patches as chosen
    flexible = {k: v for k, v in sight.items() if k != "image_size"} | dict(num_patches=25)
    make("siglip2", Siglip2Config(text_config=dict(text, hidden_size=36, num_attention_heads=3, projection_size=36, pad_token_id=1, bos_token_id=0, eos_token_id=2), vision_config=flexible), Siglip2Model,
         {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 8, "max_num_patches": 40, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, False)
    cases = [(p, m, h, w) for p, m in ((8, 40), (16, 256), (14, 729)) for h, w in ((50, 90), (61, 33), (1, 1), (480, 640), (4000, 3000), (7, 900), (224, 224))]
    json.dump([[*c, *chosen(c[2], c[3], c[0], c[1])] for c in cases], open(f"{ROOT}/pairs/siglip2/sizes.json", "w"), separators=(",", ":"))
