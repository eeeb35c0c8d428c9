"""Tokenizers without a tokenizer.json, and the ids that transformers gives: slow/NAME has the files as a repository would
have them, and strings.json.gz with texts and ids. Needs transformers 5.24, tokenizers 0.23 and sentencepiece.

Most are trained on this repository's own texts. Published vocabularies have the texts of tokenizers/gpt2: the SentencePiece
models of Mistral 7B come from the package mistral-common (Apache-2.0), downloaded with pip; bert-base-cased's vocab.txt from a
checkout of nv-morpheus/Morpheus (Apache-2.0), which MORPHEUS names.

usage: make_slow.py [NAME...]
"""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

import sentencepiece
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import DebertaV2Converter, generate_merges, import_protobuf

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
TEXTS = [
    "The baker put the bread into the oven, and the bread was good.",
    "  two  spaces   and\ttabs\n\nlines ",
    "don't I'LL we've 12345 3.14 1,000,000 $5 50%",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m e\u0301 \ufb01 \u00bd \uff21\uff22 \u2460",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \u043f\u0440\u0438\u0432\u0435\u0442 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\U0001f600\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \u0000\u0004\u007f\ufeff\u00a0\u3000end",
    "def f(x):\n    return x**2  # <s> </s> <unk> <pad> <mask> [CLS] [MASK]\n",
    "<s>a</s> b <extra_id_0> c <|endoftext|> d<|im_end|> <user> e",
    "\u2581a \u2581\u2581 b",
    "",
    " ",
    "a",
]


def corpus():
    lines = []
    for name in ["README.md", "CONTRIBUTING.md", "docs/architecture.md"]:
        lines += [line.strip() for line in open(os.path.join(ROOT, name), encoding="utf-8") if line.strip()]
    return lines[:400]


def sentencepiece_model(folder, name, **options):
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as text:
        text.write("\n".join(corpus()))
        text.flush()
        sentencepiece.SentencePieceTrainer.train(
            input=text.name, model_prefix=os.path.join(folder, "m"), minloglevel=2, num_threads=1,
            **{"user_defined_symbols": ["<user>"], **options})
    os.rename(os.path.join(folder, "m.model"), os.path.join(folder, name))
    os.remove(os.path.join(folder, "m.vocab"))


def few_rules():
    """Writes a character map of three rules: A and its full-width form to a, a half to 1/2."""
    rules = tempfile.NamedTemporaryFile("w", suffix=".tsv", delete=False)
    rules.write("41\t61\nFF21\t61\nBD\t31 2F 32\n")
    rules.close()
    return rules.name


def byte_level(folder, special, alphabet=True):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    first = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=700, special_tokens=special, initial_alphabet=first))
    model = json.loads(tokenizer.to_str())["model"]
    json.dump(model["vocab"], open(os.path.join(folder, "vocab.json"), "w"), ensure_ascii=False)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8").write("#version: 0.2\n" + "\n".join(merges) + "\n")


def word_pieces(folder):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator((line.lower() for line in corpus()), trainers.WordPieceTrainer(vocab_size=600, special_tokens=special))
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8").write("\n".join(token for token, _ in vocab) + "\n")


def mistral(folder, version):
    """Copies a published model from the package."""
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", wheels, "mistral-common==1.13.1"]
        subprocess.run(pip, check=True)
        with zipfile.ZipFile(os.path.join(wheels, os.listdir(wheels)[0])) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(f".model.{version}"))
            open(os.path.join(folder, "tokenizer.model"), "wb").write(wheel.read(name))


def published_words(folder, name, digest):
    """Copies a published vocab.txt whose SHA-256 is known."""
    checkout = os.environ["MORPHEUS"]
    words = subprocess.run(["git", "-C", checkout, "show", f"HEAD:models/data/{name}"], check=True, capture_output=True).stdout
    assert hashlib.sha256(words).hexdigest() == digest, name
    open(os.path.join(folder, "vocab.txt"), "wb").write(words)


def merges_by_score(folder, tokenizer):
    """Puts the merges in the order that Mistral's tokenizer.json has: transformers 5.23 takes them by id, which splits
    spaces unlike sentencepiece. Compares with sentencepiece where a text spells no special token and starts with no space."""
    model = os.path.join(folder, "tokenizer.model")
    pieces = sentencepiece.SentencePieceProcessor(model)
    scores = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(pieces.vocab_size())]
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    made["model"]["merges"] = generate_merges({text: i for i, (text, _) in enumerate(scores)}, scores)
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(made))
    special = [text for i, (text, _) in enumerate(scores) if pieces.is_control(i) or pieces.is_unknown(i)]
    for text in published_texts():
        if text.startswith((" ", "\u2581")) or any(token in text for token in special):
            continue
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == pieces.encode(text), text


def published_normalizer(folder, tokenizer):
    """Puts the normalizer that DeBERTa's tokenizer.json has: transformers 5.24 leaves out the character map of the model,
    with which it was trained. Compares with sentencepiece where a text spells no special token."""
    model = os.path.join(folder, "spm.model")
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(open(model, "rb").read())
    converter = type("Converter", (), {"original_tokenizer": tokenizer})
    tokenizer._tokenizer.normalizer = DebertaV2Converter.normalizer(converter, proto)
    pieces = sentencepiece.SentencePieceProcessor(model)
    for text in TEXTS:
        if not tokenizer.do_lower_case and not tokenizer.split_by_punct and not any(token in text for token in ["[", "<user>"]):
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == pieces.encode(text), text


def published_texts():
    with gzip.open(os.path.join(HERE, "tokenizers", "gpt2", "strings.json.gz")) as file:
        return [case["text"] for case in json.load(file)["cases"]]


PUBLISHED = ("mistral-v1", "mistral-v3", "bert-base-cased")
SPM = dict(vocab_size=400, character_coverage=0.995)
BYTES = dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, **{**SPM, "vocab_size": 700})
WHOLE = ["<user>", "<us", "<s", "bread", "brea", "br", "x**2", "**2", "b", "3.14", "3.1", "$5", "[MASK]", "[", "\u2581\u2581", "\u2581\u2581\u2581", "\u2581two"]
DEBERTA = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", **SPM)
CASES = {
    "qwen2": ("Qwen2Tokenizer", lambda to: byte_level(to, ["<|endoftext|>"]), {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}),
    "gpt2": ("GPT2Tokenizer", lambda to: byte_level(to, ["<|endoftext|>"], alphabet=False), {}),
    "gpt2-prefix-bos": ("GPT2Tokenizer", lambda to: byte_level(to, ["<|endoftext|>"]), {"add_prefix_space": True, "add_bos_token": True}),
    "roberta": ("RobertaTokenizer", lambda to: byte_level(to, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}}),
    "bart": ("BartTokenizer", lambda to: byte_level(to, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), {"add_prefix_space": True}),
    "opt": ("GPT2Tokenizer", lambda to: byte_level(to, ["<s>", "<pad>", "</s>", "<unk>"]), {"add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}),
    "gpt-neox": ("GPTNeoXTokenizer", lambda to: byte_level(to, ["<|endoftext|>", "<|padding|>"]), {}),
    "gpt-neox-bos-eos": ("GPTNeoXTokenizer", lambda to: byte_level(to, ["<|endoftext|>", "<|padding|>"]), {"add_bos_token": True, "add_eos_token": True}),
    "codegen": ("CodeGenTokenizer", lambda to: byte_level(to, ["<|endoftext|>"]), {}),
    "whisper": ("WhisperTokenizer", lambda to: byte_level(to, ["<|endoftext|>"]), {"additional_special_tokens": ["<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]}),
    "bert": ("BertTokenizer", word_pieces, {}),
    "bert-cased": ("BertTokenizer", word_pieces, {"do_lower_case": False, "strip_accents": False}),
    "bert-base-cased": ("BertTokenizer", lambda to: published_words(to, "bert-base-cased-vocab.txt", "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02"), {"do_lower_case": False}),
    "llama": ("LlamaTokenizer", lambda to: sentencepiece_model(to, "tokenizer.model", **BYTES), {"add_bos_token": True, "add_eos_token": False}),
    "llama-legacy": ("LlamaTokenizer", lambda to: sentencepiece_model(to, "tokenizer.model", **BYTES), {"legacy": True, "add_bos_token": True}),
    "gemma": ("GemmaTokenizer", lambda to: sentencepiece_model(to, "tokenizer.model", pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>", **BYTES), {"add_bos_token": True}),
    "mistral-v1": ("LlamaTokenizer", lambda to: mistral(to, "v1"), {"add_bos_token": True, "add_eos_token": False, "legacy": True}),
    "mistral-v3": ("LlamaTokenizer", lambda to: mistral(to, "v3"), {"add_bos_token": True, "add_eos_token": False, "legacy": False}),
    "t5": ("T5Tokenizer", lambda to: sentencepiece_model(to, "spiece.model", model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **SPM), {"extra_ids": 100}),
    "deberta-v2": ("DebertaV2Tokenizer", lambda to: sentencepiece_model(to, "spm.model", model_type="unigram", **DEBERTA), {}),
    "deberta-v2-lower": ("DebertaV2Tokenizer", lambda to: sentencepiece_model(to, "spm.model", model_type="unigram", normalization_rule_name="identity", **DEBERTA), {"do_lower_case": True, "split_by_punct": True}),
    "internlm2": ("InternLM2Tokenizer", lambda to: sentencepiece_model(to, "tokenizer.model", model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False, **{**SPM, "vocab_size": 700}), {"add_bos_token": True, "added_tokens_decoder": {str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for i, text in enumerate(["<unk>", "<s>", "</s>", "<|im_end|>"])}}),
    "spm-bpe-prefix": ("OtherTokenizer", lambda to: sentencepiece_model(to, "tokenizer.model", **BYTES), {}),
    "spm-bpe-first": ("OtherTokenizer", lambda to: sentencepiece_model(to, "tokenizer.model", user_defined_symbols=WHOLE, **BYTES), {"legacy": False}),
    "spm-bpe-spaces": ("OtherTokenizer", lambda to: sentencepiece_model(to, "tokenizer.model", model_type="bpe", normalization_rule_name="identity", **{**SPM, "vocab_size": 500}), {"add_eos_token": True}),
    "spm-unigram": ("OtherTokenizer", lambda to: sentencepiece_model(to, "tokenizer.model", model_type="unigram", normalization_rule_tsv=few_rules(), **SPM), {}),
    "xlm-roberta": ("XLMRobertaTokenizer", lambda to: sentencepiece_model(to, "sentencepiece.bpe.model", model_type="unigram", normalization_rule_name="identity", **SPM), {}),
}


def make(name):
    kind, build, config = CASES[name]
    folder = os.path.join(HERE, "slow", name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    build(folder)
    config = {"tokenizer_class": kind, **config}
    json.dump(config, open(os.path.join(folder, "tokenizer_config.json"), "w"), indent=1)
    tokenizer = getattr(transformers, kind, transformers.TokenizersBackend).from_pretrained(folder)
    if name.startswith("deberta"):
        published_normalizer(folder, tokenizer)
    if name.startswith("mistral"):
        merges_by_score(folder, tokenizer)
    cases = []
    for text in published_texts() if name in PUBLISHED else TEXTS:
        cases.append({
            "text": text,
            "ids": tokenizer(text, add_special_tokens=False)["input_ids"],
            "ids_special": tokenizer(text)["input_ids"],
            "decoded": tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True, clean_up_tokenization_spaces=False),
        })
    out = json.dumps({"transformers": transformers.__version__, "vocab_size": len(tokenizer), "cases": cases}).encode()
    with open(os.path.join(folder, "strings.json.gz"), "wb") as file:
        file.write(gzip.compress(out, mtime=0))
    # The character map of T5's is 240 KB, a published vocab.txt 210 KB.
    for name_of_model in [f for f in os.listdir(folder) if f.endswith(".model") or os.path.getsize(os.path.join(folder, f)) > 100_000]:
        path = os.path.join(folder, name_of_model)
        with open(path + ".gz", "wb") as file:
            file.write(gzip.compress(open(path, "rb").read(), mtime=0))
        os.remove(path)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name}: {len(tokenizer)} tokens, {size} bytes")


for name in sys.argv[1:] or CASES:
    make(name)
