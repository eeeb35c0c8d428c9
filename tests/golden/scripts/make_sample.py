"""Writes tests/golden/sample/*.safetensors: random logits, and what transformers' processors make of them.

Each file holds, for a vocabulary of V tokens and several shapes of distribution, `<shape>.logits` [V] and for each
set of parameters `<shape>.<set>` [V]: the scores after all processors and warpers, -inf where a token is removed. The
metadata holds the sets of parameters (`params`) and for each shape the tokens so far (`prompt` and `answer`), as JSON.
Run: python make_sample.py (needs torch, transformers 5.23 and safetensors).
"""

import functools
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import generation
from transformers.generation import LogitsProcessor, LogitsProcessorList

# torch.sort promises no order among equal scores; rows of real vocabularies come out stable, so all do here.
torch.sort = functools.partial(torch.sort, stable=True)

OUT = Path(__file__).resolve().parent.parent / "sample"


class CountPenalty(LogitsProcessor):
    """OpenAI's presence and frequency penalties over the generated tokens; transformers has none of its own."""

    def __init__(self, prompt_length, presence, frequency):
        self.prompt_length, self.presence, self.frequency = prompt_length, presence, frequency

    def __call__(self, input_ids, scores):
        counts = torch.zeros_like(scores)
        generated = input_ids[:, self.prompt_length :]
        counts.scatter_add_(1, generated, torch.ones_like(generated, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def chain(params, prompt_length):
    """The processors in the order of GenerationMixin._get_logits_processor."""
    steps = LogitsProcessorList()
    if params.get("logit_bias"):
        bias = {(int(token),): value for token, value in params["logit_bias"].items()}
        steps.append(generation.SequenceBiasLogitsProcessor(bias))
    if params.get("repetition_penalty", 1.0) != 1.0:
        steps.append(generation.RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    presence, frequency = params.get("presence_penalty", 0.0), params.get("frequency_penalty", 0.0)
    if presence != 0.0 or frequency != 0.0:
        steps.append(CountPenalty(prompt_length, presence, frequency))
    if params.get("temperature", 1.0) != 1.0:
        steps.append(generation.TemperatureLogitsWarper(params["temperature"]))
    if params.get("top_k", 0) != 0:
        steps.append(generation.TopKLogitsWarper(params["top_k"]))
    if params.get("top_p", 1.0) < 1.0:
        steps.append(generation.TopPLogitsWarper(params["top_p"]))
    if params.get("min_p", 0.0) > 0.0:
        steps.append(generation.MinPLogitsWarper(params["min_p"]))
    if params.get("typical_p", 1.0) < 1.0:
        steps.append(generation.TypicalLogitsWarper(params["typical_p"]))
    return steps


PARAMS = {
    "temperature_low": {"temperature": 0.3},
    "temperature_high": {"temperature": 1.7},
    "top_k_1": {"top_k": 1},
    "top_k_5": {"top_k": 5},
    "top_k_50": {"top_k": 50},
    "top_p_50": {"top_p": 0.5},
    "top_p_90": {"top_p": 0.9},
    "top_p_999": {"top_p": 0.999},
    "top_p_0": {"top_p": 0.0},
    "min_p_05": {"min_p": 0.05},
    "min_p_1": {"min_p": 1.0},
    "typical_20": {"typical_p": 0.2},
    "typical_90": {"typical_p": 0.9},
    "repetition_13": {"repetition_penalty": 1.3},
    "repetition_07": {"repetition_penalty": 0.7},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.6},
    "bias": {"logit_bias": {"1": 4.5, "3": -100.0, "0": 0.25}},
    "qwen3": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "qwen2": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1},
    "llama": {"temperature": 0.6, "top_p": 0.9},
    "everything": {
        "temperature": 1.2,
        "top_k": 40,
        "top_p": 0.97,
        "min_p": 0.02,
        "typical_p": 0.8,
        "repetition_penalty": 1.15,
        "presence_penalty": 0.4,
        "frequency_penalty": -0.3,
        "logit_bias": {"2": 3.0, "5": -2.0},
    },
}


def rows(vocabulary, generator):
    """Logits of several shapes: peaked, flat, of a wide range, and with many equal values."""
    normal = torch.randn(vocabulary, generator=generator)
    peaked = normal * 2
    peaked[vocabulary // 3] += 9
    yield "normal", normal * 3
    yield "peaked", peaked
    yield "flat", normal * 0.05 + 11
    yield "ties", (normal * 2).round()


def main():
    OUT.mkdir(exist_ok=True)
    for vocabulary in (7, 64, 1025):
        generator = torch.Generator().manual_seed(vocabulary)
        tensors, metadata = {}, {}
        for shape, logits in rows(vocabulary, generator):
            prompt = torch.randint(0, vocabulary, (9,), generator=generator)
            answer = torch.randint(0, vocabulary, (12,), generator=generator)
            answer[3:6] = answer[0]
            history = torch.cat([prompt, answer])[None]
            tensors[f"{shape}.logits"] = logits.contiguous()
            for name, params in PARAMS.items():
                scores = chain(params, len(prompt))(history, logits[None].clone())[0]
                tensors[f"{shape}.{name}"] = scores.contiguous()
            metadata[shape] = json.dumps({"prompt": prompt.tolist(), "answer": answer.tolist()})
        metadata["params"] = json.dumps(PARAMS)
        save_file(tensors, OUT / f"vocabulary_{vocabulary}.safetensors", metadata)


if __name__ == "__main__":
    main()
