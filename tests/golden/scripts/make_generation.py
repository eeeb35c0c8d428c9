"""Writes tests/golden/sample/generation.json: what transformers' `generate` makes of generation_config.json.

`fields` are the names of all fields of `GenerationConfig`. `answers` are greedy ids of tests/golden/models/llama for a prompt
under a configuration, `rows` the scores of a row of logits after all processors, null where a token is removed.
Run: python make_generation.py (needs torch and transformers 5.23).
"""

import inspect
import json
import re
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.generation import GenerationMixin

GOLDEN = Path(__file__).resolve().parent.parent


def fields():
    """The fields that `__init__` takes, deprecated ones included."""
    source = inspect.getsource(GenerationConfig.__init__)
    return sorted(set(re.findall(r"self\.(\w+) = kwargs\.pop\(", source)))


def answer(model, prompt, config):
    model.generation_config = GenerationConfig(**{"pad_token_id": 0, **config})
    ids = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long))
    return ids[0, len(prompt) :].tolist()


def row(model, logits, config):
    settings = GenerationConfig(**config)
    defaults = GenerationConfig._get_default_generation_params()
    for name, value in defaults.items():
        if getattr(settings, name) is None:
            setattr(settings, name, value)
    settings._eos_token_tensor = None
    processors = GenerationMixin._get_logits_processor(model, settings, input_ids_seq_length=3)
    scores = processors(torch.tensor([[1, 2, 3]]), logits[None].clone())[0]
    return [round(s, 5) if s > -1e30 else None for s in scores.tolist()]


def main():
    model = LlamaForCausalLM.from_pretrained(GOLDEN / "models/llama", dtype=torch.float32)
    prompt = [5, 6, 7, 8]
    plain = answer(model, prompt, {"max_new_tokens": 24})
    distinct = list(dict.fromkeys(plain))
    a, b, c = distinct[:3]
    many = {"max_new_tokens": 24}
    loop = prompt + plain[:6] + prompt[2:4]
    cases = [
        (prompt, many),
        (prompt, {**many, "suppress_tokens": [a, c, 100000]}),
        (prompt, {**many, "begin_suppress_tokens": [a]}),
        (prompt, {**many, "no_repeat_ngram_size": 1}),
        (prompt, {**many, "no_repeat_ngram_size": 2}),
        (loop, {**many, "encoder_no_repeat_ngram_size": 2}),
        (loop, {**many, "encoder_repetition_penalty": 2.5}),
        (loop, {**many, "encoder_repetition_penalty": 0.6, "repetition_penalty": 1.2}),
        (prompt, {**many, "bad_words_ids": [[b], [a, c], [plain[3], plain[4], 20]]}),
        (prompt, {**many, "eos_token_id": c, "bad_words_ids": [[c], [a, b]]}),
        (prompt, {**many, "sequence_bias": [[[a], -2.5], [[plain[0], plain[1]], -40.0], [[7], 1.0]]}),
        (prompt, {**many, "eos_token_id": plain[3]}),
        (prompt, {**many, "eos_token_id": [plain[3], 9], "min_new_tokens": 8}),
        (prompt, {**many, "eos_token_id": plain[3], "min_length": len(prompt) + 6}),
        (prompt, {**many, "eos_token_id": 9, "exponential_decay_length_penalty": [3, 1.4]}),
        (prompt, {**many, "eos_token_id": 9, "exponential_decay_length_penalty": [0, 2.0], "min_new_tokens": 12}),
        (prompt, {"max_length": len(prompt) + 9}),
        (prompt, {"max_new_tokens": 7, "max_length": 200, "forced_eos_token_id": 77}),
        (prompt, {"max_new_tokens": 6, "forced_eos_token_id": [77, 78], "eos_token_id": [78, 2]}),
        ([11], {**many, "forced_bos_token_id": 5}),
        ([11], {**many, "forced_bos_token_id": 5, "begin_suppress_tokens": answer(model, [11, 5], {"max_new_tokens": 1})}),
        (prompt, {**many, "forced_bos_token_id": 5, "begin_suppress_tokens": [a]}),
        (prompt, {**many, "renormalize_logits": True, "remove_invalid_values": True, "no_repeat_ngram_size": 2}),
        (
            loop,
            {
                **many,
                "eos_token_id": plain[3],
                "repetition_penalty": 1.3,
                "no_repeat_ngram_size": 3,
                "min_new_tokens": 10,
                "suppress_tokens": [a],
                "bad_words_ids": [[b, c]],
                "sequence_bias": [[[30], 2.0]],
                "exponential_decay_length_penalty": [12, 1.3],
                "forced_eos_token_id": plain[3],
            },
        ),
    ]
    answers = [{"prompt": p, "config": config, "ids": answer(model, p, config)} for p, config in cases]
    # config.json has 2 as its end, which ends answers wherever it is among the engine's.
    assert all(2 not in case["ids"][:-1] for case in answers)

    generator = torch.Generator().manual_seed(5)
    rows = []
    for count, width in [(64, 3.0), (300, 2.0), (300, 0.3)]:
        logits = (torch.randn(count, generator=generator) * width * 1024).round() / 1024
        plain_row = {"do_sample": True, "top_k": 0}
        for config in [
            {"epsilon_cutoff": 0.02},
            {"epsilon_cutoff": 0.9},
            {"eta_cutoff": 0.05},
            {"eta_cutoff": 0.9},
            {"top_h": 0.3},
            {"top_h": 0.8},
            {"top_h": 1.0},
            {"typical_p": 0.7},
            {"min_p": 0.1},
            {"temperature": 0.7, "top_h": 0.9, "top_k": 40, "top_p": 0.95, "typical_p": 0.9, "epsilon_cutoff": 0.004, "eta_cutoff": 0.02},
        ]:
            config = {**plain_row, **config}
            rows.append({"logits": logits.tolist(), "config": config, "scores": row(model, logits, config)})
    out = {"fields": fields(), "answers": answers, "rows": rows}
    (GOLDEN / "sample/generation.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")
    for case in answers:
        print(case["config"], case["ids"])


if __name__ == "__main__":
    main()
