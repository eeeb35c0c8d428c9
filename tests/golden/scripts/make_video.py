#!/usr/bin/env python3
"""Videos as transformers' processors write them and its models read them.  usage: make_video.py VISION TINY   (tests/golden/vision, www/public/models/tiny-vision)

Needs transformers 5.23.0, torch, torchvision, Pillow, num2words, safetensors, numpy. Writes VISION/video/NAME.safetensors for the checkpoints of VISION/models and for TINY: frames (u8, HWC), the pixels that the processor
makes of them as the 8-bit levels that they were (u8, in the processor's order), input_ids, position_ids [3, T], logits, greedy (16 ids); and VISION/video/cases.json: texts, and frames and sizes that processors choose."""
import json, os, sys
import numpy as np, torch
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor, smart_resize as smart2
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor, smart_resize as smart3
from transformers.models.smolvlm.image_processing_smolvlm import SmolVLMImageProcessor
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata

VISION, TINY = sys.argv[1:3]
OUT = f"{VISION}/video"; os.makedirs(OUT, exist_ok=True)
tok = PreTrainedTokenizerFast(tokenizer_file=f"{TINY}/tokenizer.json", **{k: v for k, v in json.load(open(f"{TINY}/tokenizer_config.json")).items() if k != "tokenizer_class"})
tok.add_special_tokens({"additional_special_tokens": ["<image>", "<video>", "<fake_token_around_image>", "<global-img>"]})
cases = {}


def frames(count, height, width, seed):
    rng = np.random.default_rng(seed); y, x = np.mgrid[0:height, 0:width]; all = []
    for t in range(count):
        base = np.stack([(x + 9 * t) * 255 / width % 256, (y * 255 / height + 20 * t) % 256, (x + y + 13 * t) % 64 * 4], -1)
        all.append(np.clip(base + rng.normal(0, 9, base.shape), 0, 255).astype(np.uint8))
    return torch.from_numpy(np.stack(all))


def make(name, folder, processor, film, metadata, prompt, own, still):
    video = film.permute(0, 3, 1, 2)
    given = processor(text=[prompt], videos=[video], video_metadata=[metadata], images=None if still is None else [still.permute(2, 0, 1)], do_sample_frames=False, return_tensors="pt")
    ids = given["input_ids"]
    spelled = tok.convert_ids_to_tokens(ids[0].tolist())
    # The checkpoints' own numbers of the tokens that stand for frames; words of the tokenizer are numbers like any other.
    for spelling, number in own.items(): ids[0][[i for i, s in enumerate(spelled) if s == spelling]] = number
    given["input_ids"] = torch.where(ids < 320, ids, ids % 256)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    inputs = {k: v for k, v in given.items() if k in ("input_ids", "attention_mask", "pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw", "second_per_grid_ts", "mm_token_type_ids", "pixel_attention_mask")}
    tensors = {"frames": film.contiguous(), "input_ids": given["input_ids"][0].int()}
    if still is not None: tensors["image.0"] = still.contiguous()
    with torch.no_grad():
        tensors["logits"] = model(**inputs).logits[0].contiguous()
        greedy = model.generate(**inputs, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)[0, ids.shape[1]:]
        tensors["greedy"] = greedy.int()
        if "video_grid_thw" in inputs:
            grids = {k: inputs[k] for k in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts") if k in inputs}
            positions, delta = model.model.get_rope_index(given["input_ids"], mm_token_type_ids=given["mm_token_type_ids"], **grids)
            tensors["position_ids"] = positions[:, 0].int().contiguous()
            print(name, "delta", delta.tolist(), {k: v.tolist() for k, v in grids.items()})
    values = given["pixel_values_videos"] if "pixel_values_videos" in given else given["pixel_values"][0]
    mean, std = processor.video_processor.image_mean, processor.video_processor.image_std
    per = values.shape[-1] // 3 if values.dim() == 2 else None
    color = (torch.arange(values.shape[-1]) // per)[None] if per else torch.arange(3)[None, :, None, None]
    level = (values * torch.tensor(std)[color] + torch.tensor(mean)[color]) * 255
    assert (level - level.round()).abs().max() < 1e-2
    if name != "tiny": tensors["levels"] = level.round().to(torch.uint8).contiguous()
    save_file(tensors, f"{OUT}/{name}.safetensors")
    text = processor_text(processor, prompt, video, metadata, still)
    cases.setdefault("texts", {})[name] = dict(text=text, seconds=[i / metadata["fps"] for i in metadata["frames_indices"]])
    print(name, text, len(ids[0]), greedy.tolist(), top2(tensors["logits"]))


def processor_text(processor, prompt, video, metadata, still):
    given = processor.video_processor([video], video_metadata=[VideoMetadata(**metadata)], do_sample_frames=False, return_metadata=True, return_tensors="pt")
    texts = [processor.replace_video_token(given, 0)]
    stills = [processor.replace_image_token(processor.image_processor([still.permute(2, 0, 1)], return_tensors="pt"), 0)] if still is not None else []
    return processor.get_text_with_replacements([prompt], stills, texts)[0][0]


def top2(logits):
    a = logits[-1].topk(2).values; return float(a[0] - a[1])


qwen = {"<|image_pad|>": 300, "<|video_pad|>": 301, "<|vision_start|>": 302, "<|vision_end|>": 303}
said = "Look <|vision_start|><|video_pad|><|vision_end|> at it"
both = "<|vision_start|><|image_pad|><|vision_end|> then " + said
tok.image_token, tok.video_token = "<|image_pad|>", "<|video_pad|>"
settings = lambda name: {k: v for k, v in json.load(open(f"{VISION}/models/{name}/preprocessor_config.json")).items() if k != "image_processor_type"}
image3 = Qwen2VLImageProcessor(**settings("qwen3_vl"))
video3 = Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 24576})
three = Qwen3VLProcessor(image3, tok, video3)
meta = lambda count, fps: dict(total_num_frames=count, fps=fps, frames_indices=list(range(count)), duration=count / fps)
still = frames(1, 50, 70, 9)[0]
for name in ("qwen3_vl", "qwen3_5"):
    make(name, f"{VISION}/models/{name}", three, frames(5, 60, 90, 1), meta(5, 2.0), both, qwen, still)
image2, video2 = Qwen2VLImageProcessor(**settings("qwen2_5_vl")), Qwen2VLVideoProcessor(**{**settings("qwen2_5_vl"), "size": {"shortest_edge": 1568, "longest_edge": 9408}})
make("qwen2_5_vl", f"{VISION}/models/qwen2_5_vl", Qwen2_5_VLProcessor(image2, tok, video2), frames(7, 60, 90, 2), meta(7, 1.5), both, qwen, still)
config = json.load(open(f"{TINY}/preprocessor_config.json"))
tiny3 = Qwen3VLProcessor(Qwen2VLImageProcessor(**{k: v for k, v in config.items() if k != "image_processor_type"}), tok, Qwen3VLVideoProcessor(size=config["size"]))
make("tiny", TINY, tiny3, frames(4, 64, 96, 3), meta(4, 2.0), f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n", {"<|image_pad|>": 259, "<|video_pad|>": 260}, None)
tok.image_token, tok.video_token = "<image>", "<video>"
own = {"<image>": 300, "<video>": 305, "<fake_token_around_image>": 306, "<global-img>": 307}
s = settings("smolvlm")
smol = SmolVLMProcessor(SmolVLMImageProcessor(**s), tok, SmolVLMVideoProcessor(size=s["size"], max_image_size=s["max_image_size"]), image_seq_len=4)
make("smolvlm", f"{VISION}/models/smolvlm", smol, frames(3, 50, 90, 4), meta(3, 0.4), "Look <video> at it", own, None)

chosen = []
for cls, kind in ((Qwen3VLVideoProcessor, "Qwen3VLVideoProcessor"), (Qwen2VLVideoProcessor, "Qwen2VLVideoProcessor"), (SmolVLMVideoProcessor, "SmolVLMVideoProcessor")):
    kw = dict(num_frames=64, fps=1) if kind.startswith("Smol") else dict(fps=2)
    p = cls(**({"video_sampling": {"max_frames": 64, "fps": 1, "video_size": {"longest_edge": 512}}} if kind.startswith("Smol") else {}))
    for total, rate in ((10, 25.0), (50, 25.0), (240, 24.0), (97, 29.97), (1000, 30.0), (24_000, 24.0), (3, 10.0), (2000, 24.0)):
        m = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
        try: indices = [int(i) for i in (p.sample_frames(m, **kw) if kind.startswith("Smol") else p.sample_frames(m, fps=2))]
        except ValueError as e: print(kind, total, rate, e); continue
        chosen.append(dict(cls=kind, total=total, rate=rate, indices=indices))
cases["chosen"] = chosen
sizes = []
for count, h, w in ((4, 64, 96), (2, 720, 1280), (16, 1080, 1920), (768, 360, 640), (5, 20, 900), (3, 31, 33), (64, 2160, 3840)):
    sizes.append(dict(cls="Qwen3VLVideoProcessor", frames=count, of=[h, w], size=list(smart3(count, h, w, 2, 32, 128 * 32 * 32, 32 * 32 * 768))))
    sizes.append(dict(cls="Qwen2VLVideoProcessor", frames=count, of=[h, w], size=list(smart2(h, w, 28, 128 * 28 * 28, 28 * 28 * 768))))
cases["sizes"] = sizes
json.dump(cases, open(f"{OUT}/cases.json", "w"), separators=(",", ":"))
