"""Exports the random MiniLM of tests/golden/embed to ONNX in the layout of transformers.js, for tests/gpu/embed.html.

    python make_onnx.py OUT_FOLDER      (torch, transformers, onnx, onnxscript)
"""

import gzip
import json
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
sys.path.insert(0, str(GOLDEN / "scripts"))
import make_embed  # noqa: E402
from hashed import tensor  # noqa: E402

TOKENIZER = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": make_embed.LONGEST, "cls_token": "[CLS]",
             "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}


class LastHidden(torch.nn.Module):
    """Wraps the model so that it has one output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state


def main(out):
    (out / "onnx").mkdir(parents=True, exist_ok=True)
    model = BertModel(BertConfig(**make_embed.CONFIG), add_pooling_layer=False).eval()
    weights = {name: torch.from_numpy(tensor(name, *rest)) for name, rest in make_embed.spec().items()}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys, missing
    ids = torch.ones(2, 16, dtype=torch.long)
    shape = {0: torch.export.Dim("batch", min=1, max=1024), 1: torch.export.Dim("sequence", min=2, max=make_embed.POSITIONS)}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    program = torch.onnx.export(LastHidden(model), (ids, torch.ones_like(ids), torch.zeros_like(ids)), dynamo=True, input_names=names,
                                output_names=["last_hidden_state"], dynamic_shapes=(shape,) * 3)
    program.save(str(out / "onnx/model.onnx"), external_data=False)
    (out / "tokenizer.json").write_bytes(gzip.decompress((GOLDEN / "text/tokenizers/minilm/tokenizer.json.gz").read_bytes()))
    (out / "config.json").write_text(json.dumps(make_embed.CONFIG))
    (out / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
