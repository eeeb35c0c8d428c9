#!/usr/bin/env python3
"""A multi-token-prediction head for models/qwen3_5, with golden outputs.   usage: make_mtp.py GOLDEN

Needs torch, safetensors and the folder GOLDEN/models/qwen3_5.  Writes
    GOLDEN/mtp/weights.safetensors   random tensors mtp.*, bf16
    GOLDEN/mtp/golden.safetensors    logits of the head over the prompt of models/qwen3_5
The decoder layer is transformers' Qwen3_5DecoderLayer with full attention.  The head around it follows vLLM's
qwen3_next_mtp.py: fc(cat(norm(embedding of token t + 1), norm(hidden state t))) at position t, where the hidden state is the
one after the model's last norm; then the layer, its norm, and the model's output head.  All norms multiply by 1 + weight.
    logits   rows ROWS of one pass over the whole prompt
    again    the head applied to its own hidden state of the last row and the most likely token
"""
import json, os, sys
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TORCHDYNAMO_DISABLE="1")
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer
torch.set_num_threads(1); torch.set_grad_enabled(False); torch.manual_seed(4711)

ROWS = [0, 1, 17, 63, 64, 70]
root = sys.argv[1]
model = Qwen3_5ForCausalLM.from_pretrained(f"{root}/models/qwen3_5", dtype=torch.float32, attn_implementation="eager").eval()
config, hidden = model.config, model.config.hidden_size
full = config.layer_types.index("full_attention")

def random(shape, scale): return (torch.randn(shape) * scale).to(torch.bfloat16).float()
layer = Qwen3_5DecoderLayer(config, full).float().eval()
weights = {f"mtp.layers.0.{name}": random(p.shape, 0.1 if p.dim() == 1 else 0.15) for name, p in layer.state_dict().items()}
weights["mtp.fc.weight"] = random((hidden, 2 * hidden), 0.15)
for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"): weights[f"mtp.{name}.weight"] = random((hidden,), 0.1)
layer.load_state_dict({name.removeprefix("mtp.layers.0."): w for name, w in weights.items() if ".layers." in name})

def norm(x, name): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * (1 + weights[f"mtp.{name}.weight"])

def head(tokens, states):
    """Hidden states and logits of rows that pair a token with the hidden state before it."""
    x = torch.cat([norm(model.model.embed_tokens(tokens), "pre_fc_norm_embedding"), norm(states, "pre_fc_norm_hidden")], -1)
    x = (x @ weights["mtp.fc.weight"].T)[None]
    count = x.shape[1]
    positions = torch.arange(count)[None]
    mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
    x = layer(x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=mask, position_ids=positions)
    x = norm((x[0] if isinstance(x, tuple) else x)[0], "norm")
    return x, model.lm_head(x)

ids = load_file(f"{root}/models/qwen3_5/golden.safetensors")["input_ids"].flatten()
states = model.model(ids[None]).last_hidden_state[0]
made, logits = head(ids[1:], states[:-1])
token = logits[-1].argmax()
_, again = head(torch.cat([ids[1:], token[None]]), torch.cat([states[:-1], made[-1:]]))
os.makedirs(f"{root}/mtp", exist_ok=True)
save_file({name: w.to(torch.bfloat16).contiguous() for name, w in weights.items()}, f"{root}/mtp/weights.safetensors")
save_file({"rows": torch.tensor(ROWS), "logits": logits[ROWS].contiguous(), "again": again[-1].contiguous()}, f"{root}/mtp/golden.safetensors")
print(json.dumps({"rows": len(made), "spread": float(logits.std())}))
