#!/usr/bin/env python3
"""Writes the seeds of config, tokenizer, template, audio and image: from tests/golden, or made here.

    python3 crate/fuzz/seeds.py       # in the repository's root
"""

import gzip
import json
import pathlib
import struct
import zlib

SEEDS = pathlib.Path("crate/fuzz/seeds")
GOLDEN = pathlib.Path("tests/golden")


def write(name, data):
    path = SEEDS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def compact(path):
    return json.dumps(json.loads(path.read_text()), separators=(",", ":"))


for model in ["qwen3", "gemma3", "qwen3_5", "granite_hybrid", "phi3_longrope", "bitnet", "gpt2", "t5_encoder", "modernbert"]:
    write(f"config/{model}", compact(GOLDEN / f"models/{model}/config.json"))
for model in ["whisper", "moonshine", "nanocodec"]:
    write(f"config/{model}", compact(GOLDEN / f"speech/{model}/config.json"))
for model in ["qwen3_vl", "gemma3", "idefics3"]:
    write(f"config/processor_{model}", compact(GOLDEN / f"vision/models/{model}/preprocessor_config.json"))


def shortened(name, pieces):
    """A published tokenizer with its first pieces and what they are merged of."""
    whole = json.loads(gzip.decompress((GOLDEN / f"text/tokenizers/{name}/tokenizer.json.gz").read_bytes()))
    model = whole["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = model["vocab"][:pieces]
    else:
        model["vocab"] = {piece: id for piece, id in model["vocab"].items() if id < pieces}
    if "merges" in model:
        pairs = [(m.split(" ") if isinstance(m, str) else m) for m in model["merges"]]
        known = model["vocab"]
        model["merges"] = [[a, b] for a, b in pairs if a in known and b in known and a + b in known]
    whole["added_tokens"] = [t for t in whole["added_tokens"] if t["id"] < pieces]
    if (whole["normalizer"] or {}).get("type") == "Precompiled":
        # Its table alone has 300 KB.
        whole["normalizer"] = {"type": "NFKC"}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)


TEXT = "Hello, wörld! It's 12345 — e\u0301 \u4f60\u597d \U0001f600\n\n  <s>two</s>"
for name, pieces in [("gpt2", 280), ("minilm", 110), ("t5-small", 60), ("moonshine", 60)]:
    write(f"tokenizer/{name.replace('-', '_')}", shortened(name, pieces) + "\n---\n" + TEXT)
split = {
    "version": "1.0",
    "added_tokens": [{"id": 5, "content": "<s>", "special": True, "lstrip": False, "rstrip": True, "normalized": False, "single_word": False}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": " +"}, "content": "_"}]},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": False},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "u", "byte_fallback": True, "vocab": {"u": 0, "a": 1, "b": 2, "ab": 3, "_": 4, "<0x0A>": 6}, "merges": ["a b"]},
}
write("tokenizer/split", json.dumps(split, separators=(",", ":")) + "\n---\nab a'sb 1234\n")
words = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "decoder": None, "post_processor": None, "normalizer": {"type": "Lowercase"},
         "model": {"type": "WordLevel", "unk_token": "[U]", "vocab": {"[U]": 0, "one": 1, "two": 2}}}
write("tokenizer/words", json.dumps(words, separators=(",", ":")) + "\n---\none Two three")

for name in ["zephyr-community", "chatml-community", "qwen2.5"]:
    write(f"template/{name.replace('-', '_')}", gzip.decompress((GOLDEN / f"text/templates/{name}.jinja.gz").read_bytes()))
write("template/loops", "{% set ns = namespace(n=0) %}{% macro f(x) %}{{ x }}{% endmacro %}{% for m in messages %}{% for n in messages %}{% set ns.n = ns.n + 1 %}"
      "{{ f(n.content) | trim | upper }}{% if loop.last %}{% break %}{% endif %}{% endfor %}{% endfor %}{{ raise_exception('no') if ns.n > 99 }}")
write("template/strings", "{{ bos_token + messages[0]['content'].split(' ')[-1].strip() * 3 }}{{ '%s' % tools | tojson(indent=2) }}{{ strftime_now('%Y-%m-%d %H') }}"
      "{{ range(9)[::2] | list | join(',') }}{{ messages | map(attribute='role') | list }}{{ 'ab'.replace('a', 'b' * 9).startswith('b') }}")

write("template/growth", "{% set ns = namespace(x='ab', l=[1]) %}{% for i in range(9) %}{% set ns.x = ns.x ~ ns.x %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
      "{{ ns.l }}{{ ns.l | tojson }}{{ ns.l == [ns.l] }}{{ ns.x | replace('a', ns.x) | upper | length }}{{ ns.x | list | batch(3, 'x') | slice(2) | list | length }}")
write("template/nested", "{% macro m(n, x=[]) %}{% if n > 0 %}{{ m(n - 1, [x, {'a': (n, -n)}]) }}{% else %}{{ x | tojson(indent=1) }}{% endif %}{% endmacro %}{{ m(5) }}"
      "{% for x in [[1, [2]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}{{ 1 if 0 else 2 if (not (not 1)) else ((3)) }}")
write("template/formats", "{{ '%5d|%-8s|%.3f|%x' % (1, 'a', 2.5, 255) }}{{ '{:>9}|{:^7,.2f}|{!r}'.format('x', 1234.5, 'y') }}{{ 'a\nb' | indent(3, true) }}"
      "{{ 'a,b'.rsplit(',', 1) }}{{ 'x'.center(9, '*') }}{{ '7'.zfill(3) }}{{ 'a\tb'.expandtabs(4) }}{{ messages | groupby('role') | map('first') | list }}{{ [3, 1] | sort(reverse=true) }}")
twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
grows = {"version": "1.0", "added_tokens": [{"id": 3, "content": "aaa"}, {"id": 4, "content": "aa", "normalized": True}], "pre_tokenizer": {"type": "FixedLength", "length": 5},
         "normalizer": {"type": "Sequence", "normalizers": [twice, {"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": {"Regex": "(a|b)+"}, "content": "ab"}]},
         "post_processor": {"type": "BertProcessing", "sep": ["b", 2], "cls": ["a", 1]}, "decoder": {"type": "Sequence", "decoders": [twice, {"type": "Strip", "content": "a", "start": 1, "stop": 1}]},
         "model": {"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##", "max_input_chars_per_word": 50, "vocab": {"u": 0, "a": 1, "b": 2, "##a": 5, "##ab": 6}}}
write("tokenizer/grows", json.dumps(grows, separators=(",", ":")) + "\n---\nabab aaaa b")


def wav(tag, bits, channels, extra=b""):
    rate, samples = 16000, bytes(range(48)) * 2
    block = bits // 8 * channels
    body = struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits) + extra
    chunks = b"fmt " + struct.pack("<I", len(body)) + body + b"LIST" + struct.pack("<I", 3) + b"abc\0" + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


for name, arguments in {"pcm8": (1, 8, 1), "pcm16": (1, 16, 2), "pcm24": (1, 24, 1), "float32": (3, 32, 2), "float64": (3, 64, 1)}.items():
    write(f"audio/{name}", wav(*arguments))
write("audio/extensible", wav(0xFFFE, 16, 1, struct.pack("<HHI", 22, 16, 4) + b"\x01\0" + b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"))


def png(width, height):
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"eXIf", exif) + chunk(b"IEND", b"")


exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0"
segment = lambda marker, body: b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body
jpeg = b"\xff\xd8" + segment(0xE1, exif) + segment(0xDB, bytes(65)) + segment(0xC2, struct.pack(">BHHB", 8, 20, 30, 3) + bytes(9)) + b"\xff\xd9"
webp = lambda kind, body: b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBP" + kind + struct.pack("<I", len(body)) + body
write("image/png", png(30, 20))
write("image/jpeg", jpeg)
write("image/gif", b"GIF89a" + struct.pack("<HH", 30, 20) + b"\0\0\0")
write("image/webp_lossy", webp(b"VP8 ", b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", 30, 20)))
write("image/webp_lossless", webp(b"VP8L", b"\x2f" + struct.pack("<I", 29 | 19 << 14)))
write("image/webp_extended", webp(b"VP8X", b"\x08\0\0\0" + b"\x1d\0\0\x13\0\0" + b"EXIF" + struct.pack("<I", 26) + b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"))
