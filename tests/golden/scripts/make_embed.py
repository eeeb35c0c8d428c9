"""Golden vectors of a random BERT in the exact shape of all-MiniLM-L6-v2, by sentence-transformers. The weights are hashed, not stored.

    python make_embed.py TOKENIZER_JSON [--keep FOLDER]

Writes tests/golden/embed/: texts.json (50 texts, their ids as the model gets them), vectors.safetensors (f32 [50, 384]), weights.json (every tensor's
shape, scale and offset, with its first elements to check a generator by). Element i of tensor NAME is offset + scale * u(NAME, i), as in hashed.py.
`--keep` leaves the checkpoint, 87 MB, in a folder.
"""

import json
import lzma
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from hashed import tensor

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "tests/golden/embed"
HIDDEN, LAYERS, HEADS, INNER, POSITIONS, VOCABULARY, LONGEST = 384, 6, 12, 1536, 512, 30522, 256
CONFIG = {
    "architectures": ["BertModel"], "model_type": "bert", "dtype": "float32", "hidden_act": "gelu", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "max_position_embeddings": POSITIONS, "vocab_size": VOCABULARY, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "pad_token_id": 0, "position_embedding_type": "absolute", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
WORDS = "river stone winter garden letter window copper morning island thread engine valley silver harbour pepper meadow lantern bridge orchard violin".split()


def spec():
    """Name to (shape, scale, offset); scales keep the variance of a layer's output near that of its input."""
    h = HIDDEN
    s = {
        "embeddings.word_embeddings.weight": ((VOCABULARY, h), 0.0625, 0),
        "embeddings.position_embeddings.weight": ((POSITIONS, h), 0.03125, 0),
        "embeddings.token_type_embeddings.weight": ((2, h), 0.03125, 0),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(LAYERS):
        p = f"encoder.layer.{i}."
        for name, rows, columns, scale in [
            ("attention.self.query", h, h, 0.125), ("attention.self.key", h, h, 0.125), ("attention.self.value", h, h, 0.09375),
            ("attention.output.dense", h, h, 0.09375), ("intermediate.dense", INNER, h, 0.09375), ("output.dense", h, INNER, 0.046875)]:
            s[p + name + ".weight"] = ((rows, columns), scale, 0)
            s[p + name + ".bias"] = ((rows,), 0.03125, 0)
        norms += [p + "attention.output.LayerNorm", p + "output.LayerNorm"]
    for norm in norms:
        s[norm + ".weight"], s[norm + ".bias"] = ((h,), 0.125, 1), ((h,), 0.0625, 0)
    return s


def texts():
    long = " ".join(WORDS[(i * i + 3 * i) % 20] + ("." if i % 11 == 10 else "") for i in range(3000))
    some = ["", " ", "a", "Hello", "hello", "HELLO!", "Straße", "naïve café", "don't", "3.14159", "well-known", "…", "👍", "👩‍👩‍👧‍👦 family", "🇨🇭🎉 party 🥳",
            "今天天气很好，我们去公园。", "東京タワーは高い。", "안녕하세요 세계", "Привет, мир!", "مرحبا بالعالم", "שלום עולם", "สวัสดี", "नमस्ते दुनिया",
            "mixed 中文 and English, plus emoji 🙂", "x" * 101, "x" * 100, "supercalifragilisticexpialidocious", "a\tb\nc\r\nd", "\u00a0nbsp\u200bzero width",
            "e\u0301 composed or not é", "ＡＢＣ full width １２３", "C++ and C# are languages; so is F#.", "foo@example.com, https://example.com/a?b=c#d",
            "SELECT * FROM t WHERE x = 'y';", "[CLS] is written out, [SEP] too", "The quick brown fox jumps over the lazy dog.",
            "A much longer sentence that goes on for a while, with commas, and clauses, and a few more words before it finally ends."]
    some += [" ".join(WORDS[(k * 7 + i * 3) % 20] for i in range(n)) for k, n in enumerate([2, 3, 30, 61, 62, 63, 100, 126, 127, 200, 253, 254])]
    return [*some, long]


def main(source, keep):
    from sentence_transformers import SentenceTransformer

    raw = lzma.open(source).read() if source.endswith(".xz") else Path(source).read_bytes()
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        d = Path(keep or scratch)
        (d / "1_Pooling").mkdir(parents=True, exist_ok=True)
        weights = {name: tensor(name, *rest) for name, rest in spec().items()}
        save_file(weights, d / "model.safetensors", metadata={"format": "pt"})
        (d / "tokenizer.json").write_bytes(raw)
        write = lambda name, value: (d / name).write_text(json.dumps(value))
        write("config.json", CONFIG)
        write("tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": LONGEST, "cls_token": "[CLS]",
              "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"})
        modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
        write("modules.json", [{"idx": i, "name": n, "path": p, "type": f"sentence_transformers.models.{k}"} for i, (n, p, k) in enumerate(modules)])
        write("sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
        write("1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False,
              "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False, "pooling_mode_weightedmean_tokens": False, "pooling_mode_lasttoken": False, "include_prompt": True})
        model = SentenceTransformer(str(d), device="cpu")
        all_texts = texts()
        assert len(all_texts) == 50, len(all_texts)
        vectors = model.encode(all_texts, batch_size=8)
        alone = np.stack([model.encode([t])[0] for t in all_texts[::7]])
        print("alone against batched:", float(np.abs(alone - vectors[::7]).max()))
        near = vectors @ vectors.T - np.eye(50)
        print("cosines between different texts: median", float(np.median(near)), "largest", float(near.max()))
        ids = [model.tokenizer(t, truncation=True, max_length=LONGEST)["input_ids"] for t in all_texts]
    save_file({"vectors": vectors.astype(np.float32)}, OUT / "vectors.safetensors")
    rows = [json.dumps({"text": t, "ids": i}, ensure_ascii=False) for t, i in zip(all_texts, ids)]
    (OUT / "texts.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")
    head = lambda name: [float(x) for x in weights[name].ravel()[:3]]
    rows = [f'  "{n}": ' + json.dumps({"shape": list(s), "scale": scale, "offset": o, "head": head(n)}) for n, (s, scale, o) in spec().items()]
    (OUT / "weights.json").write_text('{\n "config": ' + json.dumps(CONFIG) + ',\n "max_seq_length": 256,\n "tensors": {\n' + ",\n".join(rows) + "\n }\n}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else None)
