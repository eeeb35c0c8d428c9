#!/usr/bin/env python3
"""Contrastive gradients and training runs of embedding models in PyTorch.   usage: make_train_embedding.py ../train

Needs torch, transformers 5.23.0 and peft 0.19.1. The loss is sentence-transformers' MultipleNegativesRankingLoss: cross-entropy of
20 · cosine similarity of each anchor with all candidates; candidate i belongs to anchor i. Files:
embedding/MODEL.safetensors   of ../models/MODEL: `ids` and `lengths` of sequences, the first `anchors` of which are anchors and the
                              others candidates, `loss`, `embeddings` ([sequences, cols]), and of each parameter's gradient
                              `grad.NAME` ([every 5th element of it in order, its norm last]). Computed in f64.
embedding/bert_lora/          adapter/: LoRA adapter of bert as peft starts it; trained/: after training; golden.safetensors: `ids` and
                              `lengths` of 20 pairs and their negatives, `counts` of sequences of each pair, `losses` of steps of 5
                              pairs, `embeddings` of the first 5 queries with the trained adapter, the loss `before` and `after` of the
                              last 5 pairs, which are not trained on.
embedding/model/              a random BERT with a tokenizer of letters, prompts and mean pooling, for trainings of text."""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from make_train import packed, sequences

GOLDEN = pathlib.Path(__file__).parent.parent
POOLING = {"bert": "mean", "xlm_roberta_cls": "first", "qwen3_embedding": "last", "embeddinggemma": "mean"}
SCALE = 20.0


def model_of(name, dtype):
    folder = GOLDEN / "models" / name
    model = transformers.AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    dense = {}
    for path in sorted(folder.glob("*_Dense")):
        weight = load_file(path / "model.safetensors")["linear.weight"].to(dtype)
        dense[f"{path.name}/linear.weight"] = weight.requires_grad_()
    return model, dense


def embedding(model, dense, ids, pooling):
    hidden = model(input_ids=ids[None]).last_hidden_state[0]
    vector = {"mean": lambda: hidden.mean(0), "first": lambda: hidden[0], "last": lambda: hidden[-1]}[pooling]()
    for weight in dense.values():
        vector = weight @ vector
    return vector


def contrastive(embeddings, anchors):
    normed = F.normalize(embeddings, dim=-1)
    scores = SCALE * normed[:anchors] @ normed[anchors:].T
    return F.cross_entropy(scores, torch.arange(anchors))


def gradients(name):
    g = torch.Generator().manual_seed(5)
    model, dense = model_of(name, torch.float64)
    batch = sequences(g, model.config.vocab_size, [5, 9, 1, 12, 7, 17, 3, 11, 20, 6])
    anchors = 4
    embeddings = torch.stack([embedding(model, dense, ids, POOLING[name]) for ids in batch])
    loss = contrastive(embeddings, anchors)
    loss.backward()
    out = {"loss": loss.detach().float()[None], "anchors": torch.tensor([anchors], dtype=torch.int32)}
    out["embeddings"] = embeddings.detach().float().contiguous()
    packed(out, batch)
    for key, value in [*model.named_parameters(), *dense.items()]:
        if value.grad is not None:
            flat = value.grad.flatten().float()
            out[f"grad.{key}"] = torch.cat([flat[::5], flat.norm()[None]])
    return out


def lora(folder):
    g = torch.Generator().manual_seed(6)
    torch.manual_seed(6)
    base, _ = model_of("bert", torch.float32)
    counts = [2 + (i % 3) // 2 for i in range(20)]
    pairs = []
    for count in counts:
        lengths = torch.randint(2, 20, (count,), generator=g).tolist()
        own = sequences(g, base.config.vocab_size, lengths)
        # A positive shares tokens with its query, so there is something to learn.
        own[1] = torch.cat([own[0][: max(1, len(own[0]) // 2)], own[1]])
        pairs.append(own)
    targets = ["query", "key", "value", "dense"]
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets, task_type="FEATURE_EXTRACTION"))
    # The pooler is no part of the embeddings.
    for name, parameter in model.named_parameters():
        if "pooler" in name:
            parameter.requires_grad = False
    model.peft_config["default"].base_model_name_or_path = "bert"
    model.save_pretrained(folder / "adapter")
    out = {}
    packed(out, [ids for pair in pairs for ids in pair])
    out["counts"] = torch.tensor(counts, dtype=torch.int32)

    def loss_of(batch):
        ordered = [pair[0] for pair in batch] + [pair[1] for pair in batch] + [ids for pair in batch for ids in pair[2:]]
        return contrastive(torch.stack([embedding(model, {}, ids, "mean") for ids in ordered]), len(batch))

    held = pairs[15:]
    with torch.no_grad():
        out["before"] = loss_of(held)[None]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3, weight_decay=0.0)
    losses = []
    for step in range(24):
        loss = loss_of(pairs[step % 3 * 5 : step % 3 * 5 + 5])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    out["losses"] = torch.tensor(losses)
    with torch.no_grad():
        out["after"] = loss_of(held)[None]
        out["embeddings"] = torch.stack([embedding(model, {}, pair[0], "mean") for pair in pairs[:5]])
    model.save_pretrained(folder / "trained")
    for name in ("adapter", "trained"):
        (folder / name / "README.md").unlink(missing_ok=True)
    save_file(out, folder / "golden.safetensors")


def tiny_model(folder):
    torch.manual_seed(8)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789:.,?!-'"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters), "query", "passage", "the", "with", "that"]
    vocabulary = {word: index for index, word in enumerate(words)}
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64,
        initializer_range=0.2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).half()
    model.save_pretrained(folder)
    special = [{"id": vocabulary[word], "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for word in words[:4]]
    sides = {name: {"id": name, "ids": [vocabulary[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": sides},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary},
    }
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, value in {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "model_max_length": 64, "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"},
        "modules.json": [{"idx": i, "name": n, "path": p, "type": f"sentence_transformers.models.{k}"} for i, (n, p, k) in enumerate(modules)],
        "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        "config_sentence_transformers.json": {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": None},
    }.items():
        (folder / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def main(out):
    (out / "bert_lora").mkdir(parents=True, exist_ok=True)
    for name in POOLING:
        save_file(gradients(name), out / f"{name}.safetensors")
    lora(out / "bert_lora")
    tiny_model(out / "model")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) / "embedding")
