"""Writes the bundled encoder: a BERT that adds nothing to its embeddings, which are random vectors weighted by how rare a word is.

    python make_tiny_encoder.py TOKENIZER_JSON [OUT]

TOKENIZER_JSON is that of sentence-transformers/all-MiniLM-L6-v2 (bert-base-uncased's vocabulary, Apache-2.0), plain or .xz.

How the vectors survive the blocks. Every token's vector is (w * r, s, -s): r a random direction without a mean, w the word's weight, s chosen so
that mean and variance of the whole are 0 and 1. LayerNorm leaves such a vector as it is; attention and MLP have zero output weights; so the block's
two LayerNorms see it unchanged, and the last one has gain 0 for the two filling components. What is left is w * r, and mean pooling adds the words up.

How rare a word is. From id 1996 ("the") on, the vocabulary is in the order of frequency of the corpus it was made from. Zipf's law turns the rank into a
probability p, and w = a / (a + p) with a = 0.001 (smooth inverse frequency, Arora et al. 2017). Punctuation weighs next to nothing. Words that differ
in a common ending share a part of their direction, so that "bees" finds "bee".
"""

import json
import lzma
import sys
import unicodedata
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from hashed import uniform

ROOT = Path(__file__).resolve().parents[3]
HIDDEN, HEADS, INTERMEDIATE, POSITIONS = 56, 7, 56, 256
FIRST_RANKED = 1996
ENDINGS = ("s", "es", "ed", "d", "ing", "er", "ers", "ly", "y")
README = """# words-encoder

Not a trained model. A BERT (WordPiece, one block, 56 wide) whose block adds nothing and whose embeddings are seeded random vectors weighted by how rare
a word is: texts are near when they share words, above all rare ones. It knows no synonyms. The page uses it until a real embedding model is loaded.

The vocabulary is bert-base-uncased's (Apache-2.0), in the tokenizer.json of sentence-transformers/all-MiniLM-L6-v2 with its fixed truncation and
padding taken out. Everything else is made by tests/golden/scripts/make_tiny_encoder.py, which says how.
"""


def weight(token, index):
    if token in ("[CLS]", "[UNK]"):
        return 0.02 if token == "[CLS]" else 0.5  # so that no text, not even an empty one, is without a direction
    if token.startswith("[") and token.endswith("]") and len(token) > 1:
        return 0.0
    bare = token.removeprefix("##")
    if all(unicodedata.category(c)[0] in "PSZC" for c in bare):
        return 0.005
    if index < FIRST_RANKED:
        return 0.3 if bare.isascii() else 0.8
    p = 0.1 / (index - FIRST_RANKED + 2.7)
    return 1e-3 / (1e-3 + p)


def direction(name):
    """A vector of length 1 and mean 0: sums of uniform numbers, so nearly normal."""
    width = HIDDEN - 2
    v = sum(uniform(f"{name}/{i}", width).astype(np.float64) for i in range(3))
    v -= v.mean()
    return v / np.linalg.norm(v)


def stem(token, vocabulary):
    """The word without its ending, if that is a word of the vocabulary too."""
    for ending in ENDINGS:
        for base in (token.removesuffix(ending), token.removesuffix(ending) + "e"):
            if token.endswith(ending) and len(base) >= 3 and base in vocabulary:
                return stem(base, vocabulary)
    return token


def embeddings(vocabulary):
    table = np.zeros((len(vocabulary), HIDDEN))
    for token, index in vocabulary.items():
        root = stem(token, vocabulary) if token.isascii() and token.isalpha() else token
        r = direction(token)
        if root != token:
            r = 0.85 * direction(root) + np.sqrt(1 - 0.85**2) * r
            r /= np.linalg.norm(r)
        # A margin below 1 keeps the filling components real.
        length = 0.98 * weight(token, index) * np.sqrt(HIDDEN)
        s = np.sqrt((HIDDEN - length**2) / 2)
        table[index] = [*(length * r), s, -s]
    return table


def tensors(vocabulary):
    h, i = HIDDEN, INTERMEDIATE
    zero, one = (lambda *shape: np.zeros(shape)), (lambda *shape: np.ones(shape))
    last = one(h)
    last[-2:] = 0
    layer = "encoder.layer.0."
    t = {
        "embeddings.word_embeddings.weight": embeddings(vocabulary),
        "embeddings.position_embeddings.weight": zero(POSITIONS, h),
        "embeddings.token_type_embeddings.weight": zero(2, h),
        "embeddings.LayerNorm.weight": one(h),
        "embeddings.LayerNorm.bias": zero(h),
        layer + "attention.output.LayerNorm.weight": one(h),
        layer + "attention.output.LayerNorm.bias": zero(h),
        layer + "output.LayerNorm.weight": last,
        layer + "output.LayerNorm.bias": zero(h),
    }
    shapes = {"attention.self.query": (h, h), "attention.self.key": (h, h), "attention.self.value": (h, h), "attention.output.dense": (h, h),
              "intermediate.dense": (i, h), "output.dense": (h, i)}
    for name, shape in shapes.items():
        t[layer + name + ".weight"], t[layer + name + ".bias"] = zero(*shape), zero(shape[0])
    t["pooler.dense.weight"], t["pooler.dense.bias"] = zero(h, h), zero(h)
    return {name: np.ascontiguousarray(value, dtype=np.float16) for name, value in t.items()}


def main(source, out):
    raw = lzma.open(source).read() if str(source).endswith(".xz") else Path(source).read_bytes()
    tokenizer = json.loads(raw)
    tokenizer["truncation"] = tokenizer["padding"] = None
    vocabulary = tokenizer["model"]["vocab"]
    out.mkdir(parents=True, exist_ok=True)
    (out / "1_Pooling").mkdir(exist_ok=True)
    write = lambda name, value: (out / name).write_text(json.dumps(value, indent=1) + "\n")
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, separators=(",", ":"), ensure_ascii=False))
    save_file(tensors(vocabulary), out / "model.safetensors", metadata={"format": "pt"})
    write("config.json", {
        "architectures": ["BertModel"], "model_type": "bert", "dtype": "float16", "hidden_act": "gelu", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_attention_heads": HEADS, "num_hidden_layers": 1, "max_position_embeddings": POSITIONS,
        "vocab_size": len(vocabulary), "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "position_embedding_type": "absolute",
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.02})
    write("tokenizer_config.json", {
        "tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": POSITIONS, "cls_token": "[CLS]", "sep_token": "[SEP]",
        "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", "strip_accents": None, "tokenize_chinese_chars": True})
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
    write("modules.json", [{"idx": i, "name": n, "path": p, "type": f"sentence_transformers.models.{k}"} for i, (n, p, k) in enumerate(modules)])
    write("sentence_bert_config.json", {"max_seq_length": POSITIONS, "do_lower_case": False})
    write("config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"})
    modes = dict.fromkeys(("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"), False) | {"mean_tokens": True}
    write("1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, **{f"pooling_mode_{k}": v for k, v in modes.items()}, "include_prompt": True})
    (out / "README.md").write_text(README)
    total = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    assert total <= 4_000_000, f"{total} bytes"
    print(f"{out}: {total} bytes")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "www/public/models/words-encoder")
