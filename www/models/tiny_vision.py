#!/usr/bin/env python3
"""Makes www/public/models/tiny-vision: a Qwen3-VL with random weights and meaningless answers, for the page without a network and for tests. No packages needed.
usage: tiny_vision.py OUT"""
import json, os, random, struct, sys

OUT = sys.argv[1]
HIDDEN, LAYERS, INNER, VOCAB, HEAD = 32, 2, 48, 320, 16
WIDE, DEPTH, MLP, PATCH, MERGE, SIDE = 32, 2, 48, 16, 2, 6
WORDS = ("noise grain blur static fog snow hiss dust shade spark pixel patch speck smear ripple echo haze glare murk flicker red green blue grey pale dark bright soft rough "
         "here there left right above below and or with without maybe some more less near far").split()
FIRST_BYTE, IMAGE, VIDEO, START, END, OPEN, CLOSE, FIRST_WORD = 3, 259, 260, 261, 262, 263, 264, 265
assert FIRST_WORD + len(WORDS) <= VOCAB
rng = random.Random(17)
tensors = {}


def half(x):
    return struct.pack("<e", x)


def matrix(name, *shape, scale=None, rows=None):
    count = 1
    for s in shape: count *= s
    cols = count // shape[0]
    deviation = scale if scale is not None else cols ** -0.5
    values = [rng.gauss(0, deviation) * (rows(i // cols) if rows else 1) for i in range(count)]
    tensors[name] = (shape, b"".join(map(half, values)))


def vector(name, n, value=0.0):
    tensors[name] = ((n,), b"".join(half(value + rng.gauss(0, 0.02)) for _ in range(n)))


def linear(name, rows, cols):
    matrix(f"{name}.weight", rows, cols); vector(f"{name}.bias", rows)


def layer_norm(name, n):
    vector(f"{name}.weight", n, 1.0); vector(f"{name}.bias", n)


matrix("model.language_model.embed_tokens.weight", VOCAB, HIDDEN, scale=1.0)
# Only words are ever the likeliest.
matrix("lm_head.weight", VOCAB, HIDDEN, scale=0.5, rows=lambda r: 1.0 if FIRST_WORD <= r < FIRST_WORD + len(WORDS) else 0.02)
for l in range(LAYERS):
    p = f"model.language_model.layers.{l}"
    for norm in ("input_layernorm", "post_attention_layernorm"): vector(f"{p}.{norm}.weight", HIDDEN, 1.0)
    for part, rows in (("q_proj", 2 * HEAD), ("k_proj", HEAD), ("v_proj", HEAD)): matrix(f"{p}.self_attn.{part}.weight", rows, HIDDEN)
    matrix(f"{p}.self_attn.o_proj.weight", HIDDEN, 2 * HEAD)
    for norm in ("q_norm", "k_norm"): vector(f"{p}.self_attn.{norm}.weight", HEAD, 1.0)
    for part in ("gate_proj", "up_proj"): matrix(f"{p}.mlp.{part}.weight", INNER, HIDDEN)
    matrix(f"{p}.mlp.down_proj.weight", HIDDEN, INNER)
vector("model.language_model.norm.weight", HIDDEN, 1.0)
v = "model.visual"
matrix(f"{v}.patch_embed.proj.weight", WIDE, 3, 2, PATCH, PATCH); vector(f"{v}.patch_embed.proj.bias", WIDE)
matrix(f"{v}.pos_embed.weight", SIDE * SIDE, WIDE, scale=0.5)
for l in range(DEPTH):
    p = f"{v}.blocks.{l}"
    layer_norm(f"{p}.norm1", WIDE); layer_norm(f"{p}.norm2", WIDE)
    linear(f"{p}.attn.qkv", 3 * WIDE, WIDE); linear(f"{p}.attn.proj", WIDE, WIDE)
    linear(f"{p}.mlp.linear_fc1", MLP, WIDE); linear(f"{p}.mlp.linear_fc2", WIDE, MLP)
JOINED = WIDE * MERGE * MERGE
for p, norm in ((f"{v}.merger", WIDE), (f"{v}.deepstack_merger_list.0", JOINED)):
    layer_norm(f"{p}.norm", norm); linear(f"{p}.linear_fc1", JOINED, JOINED); linear(f"{p}.linear_fc2", HIDDEN, JOINED)

header, body = {}, b""
for name in sorted(tensors):
    shape, data = tensors[name]
    header[name] = dict(dtype="F16", shape=list(shape), data_offsets=[len(body), len(body) + len(data)]); body += data
text = json.dumps(header, separators=(",", ":")).encode(); text += b" " * (-len(text) % 8)

os.makedirs(OUT, exist_ok=True)
with open(f"{OUT}/model.safetensors", "wb") as f: f.write(struct.pack("<Q", len(text)) + text + body)

# GPT-2's characters for bytes.
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
chars, extra = {b: chr(b) for b in plain}, 0
for b in range(256):
    if b not in chars: chars[b] = chr(256 + extra); extra += 1
vocab = {chars[b]: FIRST_BYTE + b for b in range(256)}
vocab.update({"\u0120" + word: FIRST_WORD + i for i, word in enumerate(WORDS)})
SPECIAL = {0: "<|pad|>", 1: "<|begin|>", 2: "<|endoftext|>", IMAGE: "<|image_pad|>", VIDEO: "<|video_pad|>", START: "<|vision_start|>", END: "<|vision_end|>", OPEN: "<|im_start|>", CLOSE: "<|im_end|>"}
byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
template = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}{%- elif part.type == 'text' %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
files = {
    "config.json": dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", dtype="float16", image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END, tie_word_embeddings=False,
        text_config=dict(model_type="qwen3_vl_text", hidden_size=HIDDEN, num_hidden_layers=LAYERS, intermediate_size=INNER, num_attention_heads=2, num_key_value_heads=1, head_dim=HEAD, vocab_size=VOCAB, max_position_embeddings=4096, rms_norm_eps=1e-6, hidden_act="silu",
            eos_token_id=2, rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_interleaved=True, mrope_section=[4, 2, 2])),
        vision_config=dict(model_type="qwen3_vl", depth=DEPTH, hidden_size=WIDE, num_heads=2, intermediate_size=MLP, patch_size=PATCH, spatial_merge_size=MERGE, temporal_patch_size=2, in_channels=3, num_position_embeddings=SIDE * SIDE, out_hidden_size=HIDDEN,
            hidden_act="gelu_pytorch_tanh", deepstack_visual_indexes=[0])),
    "preprocessor_config.json": dict(image_processor_type="Qwen2VLImageProcessor", patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2, size=dict(shortest_edge=4096, longest_edge=65536), image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=3),
    "generation_config.json": dict(eos_token_id=[2, CLOSE], do_sample=False),
    "tokenizer.json": dict(version="1.0", truncation=None, padding=None, added_tokens=[dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, t in sorted(SPECIAL.items())], normalizer=None,
        pre_tokenizer=byte_level, post_processor=None, decoder=byte_level, model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab, merges=[])),
    "tokenizer_config.json": dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|pad|>", chat_template=template),
}
for name, content in files.items():
    with open(f"{OUT}/{name}", "w") as f: json.dump(content, f, ensure_ascii=True, indent=None if name == "tokenizer.json" else 1)
with open(f"{OUT}/README.md", "w") as f:
    f.write("Random numbers in the shape of Qwen3-VL, made by www/models/tiny_vision.py: it shows how images are processed; its answers are meaningless.\n")
