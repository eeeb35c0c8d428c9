"""Copies the tiny random encoders and rerankers of a folder into tests/golden/models/ and adds goldens for lengths 1, 2, 63, 64, 65 and 300.

    python make_encoders.py REFS      (a folder as make_text.py writes it)

Models with a table of positions end before 300 tokens: they get a second checkpoint `<name>_long` whose table goes on with hashed rows.
lengths.safetensors: input_ids, attention_mask, for BERT's reranker token_type_ids [6, 300]; `embedding` [6, E], or `logits` and `score`.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from hashed import tensor

OUT = Path(__file__).resolve().parents[1] / "models"
LENGTHS = (1, 2, 63, 64, 65, 300)
NAMES = ("bert", "distilbert", "roberta", "mpnet", "nomic_bert", "modernbert", "xlm_roberta_cls", "embeddinggemma", "qwen3_embedding", "t5_encoder",
         "bert_reranker", "xlm_roberta_reranker", "qwen3_reranker")


def lengthen(source, target):
    """A copy with positions for 300 tokens; None if the model has no table of positions."""
    weights = load_file(source / "model.safetensors")
    names = [n for n in weights if n.endswith("position_embeddings.weight")]
    if not names:
        return None
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("golden.safetensors", "meta.json"))
    old = weights[names[0]]
    rows = 304 - old.shape[0]
    more = torch.from_numpy(tensor(f"{source.name}/{names[0]}", (rows, old.shape[1]), float(old.float().std() * 1.7))).to(old.dtype)
    weights[names[0]] = torch.cat([old, more]).contiguous()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["max_position_embeddings"] = 304
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return target


def batch(config, starts):
    pad, longest = config.pad_token_id or 0, max(LENGTHS)
    ids, mask = torch.full((len(LENGTHS), longest), pad), torch.zeros(len(LENGTHS), longest, dtype=torch.long)
    for i, n in enumerate(LENGTHS):
        ids[i, :n] = torch.randint(3, 250, (n,), generator=torch.Generator().manual_seed(900 + i))
        mask[i, :n] = 1
        if starts:
            ids[i, 0] = config.bos_token_id
    return ids, mask


@torch.no_grad()
def golden(folder, meta):
    model = getattr(transformers, meta["model_class"]).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    pool = meta["pooling"]
    ids, mask = batch(model.config, pool == "cls")
    g, more = {"input_ids": ids, "attention_mask": mask}, {}
    if pool == "score" and getattr(model.config, "type_vocab_size", 1) > 1:
        more["token_type_ids"] = ((torch.arange(ids.shape[1])[None] >= mask.sum(1, keepdim=True) // 2) & (mask > 0)).long()
    out = model(input_ids=ids, attention_mask=mask, **more)
    last = torch.arange(len(LENGTHS)), mask.sum(1) - 1
    if pool == "score":
        return g | more | {"logits": out.logits.float(), "score": torch.sigmoid(out.logits[:, 0].float())}
    if pool == "yesno":
        two = out.logits[last].float()[:, [77, 201]]
        return g | {"no_yes": two, "score": two.softmax(-1)[:, 1]}
    hidden = out.last_hidden_state.float() * mask[..., None]
    vector = hidden[:, 0] if pool == "cls" else hidden[last] if pool == "last" else hidden.sum(1) / mask.sum(1, keepdim=True)
    for dense in sorted(folder.glob("*_Dense")):
        vector = vector @ load_file(dense / "model.safetensors")["linear.weight"].float().T
    # Once more without any padding: what the mask must achieve.
    alone = model(input_ids=ids[2:3, : LENGTHS[2]]).last_hidden_state.float()[0]
    assert float((alone - hidden[2, : LENGTHS[2]]).abs().max()) < 1e-4, folder
    return g | {"embedding": torch.nn.functional.normalize(vector, dim=-1)}


def main(refs):
    for name in NAMES:
        source, target = refs / name, OUT / name
        shutil.copytree(source, target, dirs_exist_ok=True)
        meta = json.loads((source / "meta.json").read_text())
        folder = lengthen(source, OUT / f"{name}_long") or target
        for f in OUT.rglob("*"):
            f.chmod(0o755 if f.is_dir() else 0o644)
        save_file({k: v.contiguous() for k, v in golden(folder, meta).items()}, folder / "lengths.safetensors")
        print(folder.name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
