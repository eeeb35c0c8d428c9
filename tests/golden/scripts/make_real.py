#!/usr/bin/env python3
"""Reference outputs of real published weights.   usage: make_real.py DIR [NAME...]

DIR is what tests/real/fetch.py wrote; NAME one of smollm2, gemma3, minilm, whisper-tiny.en, whisper-base. Writes
tests/golden/real/NAME.json and NAME.safetensors. Inputs beside them: strings.json (text for tokenizers), prompts.json,
page.txt (perplexity), sentences.txt (embeddings), audio/ (see README.md there).
Needs torch 2.15.0, transformers 5.23.0, sentence-transformers, accelerate, gguf, sentencepiece, numpy. All models run in f32, eager attention.
"""
import gzip
import json
import os
import sys
import wave

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TORCHDYNAMO_DISABLE="1")
import numpy as np
import tokenizers
import torch
import transformers as T
from safetensors.torch import save_file

torch.set_num_threads(1)
torch.set_grad_enabled(False)
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "real")
REPOS = {
    "smollm2": ("HuggingFaceTB/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gemma3": ("ggml-org/gemma-3-270m-GGUF", "gemma-3-270m-q4_k_m.gguf"),
    "minilm": ("sentence-transformers/all-MiniLM-L6-v2", None),
    "whisper-tiny.en": ("openai/whisper-tiny.en", None),
    "whisper-base": ("openai/whisper-base", None),
}
NEW_TOKENS = 32


def read(name):
    with open(os.path.join(GOLDEN, name), newline="", encoding="utf-8") as file:
        return file.read()


def write(name, facts, tensors):
    with open(os.path.join(GOLDEN, f"{name}.json"), "w") as out:
        json.dump(facts, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")
    if tensors:
        save_file({key: value.contiguous() for key, value in tensors.items()}, os.path.join(GOLDEN, f"{name}.safetensors"))


def chat_ids(tokenizer, messages):
    """Ids of a conversation; a GGUF tokenizer keeps special tokens that way too."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text, tokenizer(text, add_special_tokens=False)["input_ids"]


def published_tokenizer(name):
    """Encodes with the published tokenizer.json where it is at hand: transformers' conversion of GGUF leaves out the splitting of digits."""
    path = os.path.join(GOLDEN, "..", "text", "tokenizers", name, "tokenizer.json.gz")
    if not os.path.exists(path):
        return None
    tokenizer = tokenizers.Tokenizer.from_str(gzip.open(path).read().decode())
    return lambda text: tokenizer.encode(text).ids


def sentencepiece_gguf(path):
    """Encodes as llama.cpp does with a SentencePiece vocabulary of a GGUF file: added tokens are found in the text, longest first; the
    rest merges by score. transformers' conversion merges runs of spaces and U+2581 in the text another way."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    tokens, scores, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "scores", "token_type"))
    ids = {token: id for id, token in enumerate(tokens)}
    added = sorted((token for token, kind in zip(tokens, types) if kind in (3, 4)), key=lambda token: -len(token.encode()))

    def merged(text):
        parts = list(text.replace(" ", "\u2581"))
        while pairs := [(scores[ids[a + b]], -at) for at, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ids]:
            at = -max(pairs)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        for part in parts:
            yield from [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]

    def encode(text):
        pieces = [text]
        for token in added:
            split = []
            for piece in pieces:
                between = piece.split(token) if isinstance(piece, str) else [piece]
                for at, part in enumerate(between):
                    split += [ids[token]] * (at > 0) + [part] * (part != "")
            pieces = split
        found = [[piece] if isinstance(piece, int) else merged(piece) for piece in pieces]
        return [fields["tokenizer.ggml.bos_token_id"].contents()] + [id for part in found for id in part]

    return encode


def language(name, folder, gguf):
    tokenizer = T.AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
    model = T.AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32, attn_implementation="eager").eval()
    encode = published_tokenizer(name) or sentencepiece_gguf(os.path.join(folder, gguf))
    facts = {"strings": [encode(text) for text in json.loads(read("strings.json"))], "prompts": {}, "greedy": {}}
    tensors = {}
    for key, prompt in json.loads(read("prompts.json")).items():
        if isinstance(prompt, list):
            if not tokenizer.chat_template:
                continue
            text, ids = chat_ids(tokenizer, prompt)
            facts["chat_text"] = text
        else:
            ids = tokenizer(prompt)["input_ids"]
        inputs = torch.tensor([ids])
        tensors[f"{key}.last_logits"] = model(inputs).logits[0, -1]
        out = model.generate(inputs, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
        facts["prompts"][key], facts["greedy"][key] = ids, out[0, len(ids) :].tolist()
    ids = torch.tensor([tokenizer(read("page.txt"))["input_ids"]])
    loss = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    facts["perplexity"], facts["predicted"] = float(loss.exp()), ids.shape[1] - 1
    # Every 63rd column is enough to detect a wrong logit.
    write(name, facts, {key: value[::63] for key, value in tensors.items()})


def embedding(name, folder, _):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    sentences = read("sentences.txt").splitlines()
    vectors = model.encode(sentences, convert_to_tensor=True).float()
    ids = [model.tokenizer(text)["input_ids"] for text in json.loads(read("strings.json"))]
    write(name, {"strings": ids}, {"vectors": vectors})


def samples(clip):
    with wave.open(os.path.join(GOLDEN, "audio", f"{clip}.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def speech(name, folder, _):
    processor = T.WhisperProcessor.from_pretrained(folder)
    model = T.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    how = {} if name.endswith(".en") else {"language": "en", "task": "transcribe"}
    facts = {"clips": {}}
    for clip in ("jfk", "beckett", "ls_test"):
        inputs = processor(samples(clip), sampling_rate=16000, return_tensors="pt").input_features
        said = {}
        for kind, times in (("plain", False), ("times", True)):
            ids = model.generate(inputs, return_timestamps=times, do_sample=False, num_beams=1, **how)[0].tolist()
            text = processor.tokenizer.decode(ids, skip_special_tokens=True).strip()
            said[kind] = {"ids": [i for i in ids if i < model.config.eos_token_id or i > model.generation_config.no_timestamps_token_id], "text": text}
        facts["clips"][clip] = said
    write(name, facts, {})


def main(root, names):
    for name in names or REPOS:
        repo, gguf = REPOS[name]
        kind = {"minilm": embedding}.get(name, speech if name.startswith("whisper") else language)
        kind(name, os.path.join(root, "hub", repo), gguf)
        print(name, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
