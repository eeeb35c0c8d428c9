#!/usr/bin/env python3
"""What transformers makes of every spelling and place of the rotation's fields: ../rope/cases.json.   (transformers 5.23, torch)

A case is a golden model's config.json without its rotation (or a small one of its own), with some fields put in, and the
inverse frequencies that the model's rotary embedding has then: by kind of layers, and once more for a long sequence where
they depend on the length.
"""
import copy, importlib, json, os

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")
ROPE = ["rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor", "rotary_pct", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta"]
LONG = 2000
SMALL = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}
OWN = {
    "qwen2_5_vl": {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", **SMALL},
    "qwen2_5_vl_nested": {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text", **SMALL}},
    "qwen3_vl": {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text", **SMALL, "head_dim": 32}},
    "gemma3_nested": {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **SMALL, "head_dim": 32, "layer_types": ["sliding_attention", "full_attention"]}},
}


def base(model):
    if model in OWN:
        return copy.deepcopy(OWN[model])
    with open(os.path.join(MODELS, model, "config.json")) as f:
        config = json.load(f)
    return {key: value for key, value in config.items() if key not in ROPE}


def text_of(config):
    return getattr(config, "text_config", None) or config


def rotary(config):
    """The rotary embedding of the text model."""
    kind = config.model_type
    package = config.__class__.__module__.rsplit(".", 1)[0].rsplit(".", 1)[1]
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    found = [getattr(module, n) for n in dir(module) if n.endswith("RotaryEmbedding") and "Vision" not in n and getattr(module, n).__module__ == module.__name__]
    assert len(found) == 1, (kind, found)
    return found[0](config)


def numbers(tensor):
    return [float(f"{v:.9g}") for v in tensor.tolist()]


def expected(config):
    config = text_of(config)
    made = rotary(config)
    parameters = config.rope_parameters
    by_kind = [k for k in parameters if isinstance(parameters[k], dict)]
    if hasattr(made, "inv_freq"):
        kinds = {"": (made.inv_freq, made.attention_scaling, parameters, None)}
    else:
        used = sorted(set(config.layer_types) & set(by_kind))
        kinds = {k: (getattr(made, f"{k}_inv_freq"), getattr(made, f"{k}_attention_scaling"), parameters[k], k) for k in used}
    out = {}
    for kind, (frequencies, factor, own, layer_type) in kinds.items():
        out[kind] = {"inv_freq": numbers(frequencies), "factor": float(factor)}
        if own["rope_type"] in ("dynamic", "longrope") and not own.get("alpha"):
            long, _ = ROPE_INIT_FUNCTIONS[own["rope_type"]](config, "cpu", seq_len=LONG, layer_type=layer_type)
            out[kind]["long"] = numbers(long)
    return out


def case(name, model, fields, nested=False):
    config = base(model)
    (config["text_config"] if nested else config).update(copy.deepcopy(fields))
    made = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    return {"name": name, "model": None if model in OWN else model, "config": config if model in OWN else fields, "expected": expected(made)}


def cases():
    six = {"short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5], "long_factor": [1.3, 1.6, 2.0, 3.0, 5.0, 9.0]}
    kinds = {
        "default": {},
        "linear": {"factor": 3.0},
        "dynamic": {"factor": 4},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
        "longrope": {**six, "original_max_position_embeddings": 64},
        "proportional": {"partial_rotary_factor": 0.5},
    }
    # Each kind, by both names, in both objects, with the base in each place.
    for kind, own in kinds.items():
        for spelling in ("rope_type", "type"):
            for place in ("rope_scaling", "rope_parameters"):
                for inside in (True, False):
                    base_of = {"rope_theta": 75000.0}
                    fields = {place: {spelling: kind, **own, **(base_of if inside else {})}, **({} if inside else base_of)}
                    yield case(f"llama: {kind} by {spelling} in {place}, base {'inside' if inside else 'beside'}", "llama", fields)
    # What wins where there is more than one.
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    both = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0}}
    yield case("rope_scaling beside rope_parameters", "llama", {**both, "rope_scaling": yarn})
    yield case("rope_scaling beside rope_parameters, base beside", "llama", {**both, "rope_scaling": yarn, "rope_theta": 20000})
    yield case("an empty rope_scaling beside rope_parameters", "llama", {**both, "rope_scaling": {}})
    yield case("a null rope_scaling beside rope_parameters", "llama", {**both, "rope_scaling": None})
    yield case("a base inside and beside", "llama", {**both, "rope_theta": 20000.0})
    yield case("both names of the type", "llama", {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}})
    yield case("a base alone", "llama", {"rope_theta": 500000})
    yield case("a whole base and factor as floats", "llama", {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "linear", "factor": 2}})
    yield case("nothing at all", "llama", {})
    yield case("yarn: the original length beside", "llama", {"original_max_position_embeddings": 32, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    yield case("yarn: the original length inside and beside", "llama", {"original_max_position_embeddings": 32, "rope_scaling": yarn})
    yield case("yarn: no original length", "llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    yield case("yarn: no factor", "llama", {"rope_scaling": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 64}})
    yield case("yarn: mscale", "llama", {"rope_scaling": {**yarn, "mscale": 0.8, "mscale_all_dim": 1.2}})
    yield case("yarn: one mscale", "llama", {"rope_scaling": {**yarn, "mscale": 0.8}})
    yield case("yarn: an attention factor", "llama", {"rope_scaling": {**yarn, "attention_factor": 1.25}})
    yield case("yarn: betas and no truncation", "llama", {"rope_scaling": {**yarn, "beta_fast": 8, "beta_slow": 2, "truncate": False}})
    yield case("longrope: a factor", "llama", {"rope_scaling": {"rope_type": "longrope", **six, "factor": 16.0, "original_max_position_embeddings": 64}})
    yield case("llama3: the original length beside", "llama", {"original_max_position_embeddings": 32, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}})
    # Rotations of a part of a head.
    for model in ("phi2", "glm4", "gpt_neox"):
        yield case(f"{model}: nothing at all", model, {})
    yield case("phi2: a part beside", "phi2", {"partial_rotary_factor": 1.0})
    yield case("phi2: a part inside", "phi2", {"partial_rotary_factor": 1.0, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})
    yield case("phi2: linear over a part", "phi2", {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    yield case("gpt_neox: names of its own", "gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 25000})
    yield case("gpt_neox: names of its own and dynamic", "gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 25000, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    yield case("gpt_neox: new names", "gpt_neox", {"rope_parameters": {"rope_type": "default", "rope_theta": 25000.0, "partial_rotary_factor": 1.0}})
    yield case("nomic_bert: a base of its own", "nomic_bert", {"rope_parameters": {"rope_type": "default", "rope_theta": 25000.0}})
    # Defaults of families.
    for model in ("mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_next", "granite", "olmo2", "exaone4", "ernie4_5", "helium", "smollm3", "starcoder2", "mixtral", "phimoe", "phi3", "gpt_oss",
                  "bitnet", "lfm2", "lfm2_moe", "hunyuan_dense", "gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "modernbert", "nomic_bert", "deepseek_v3"):
        yield case(f"{model}: defaults", model, {})
    yield case("gpt_oss: published", "gpt_oss", {"rope_theta": 150000, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False}})
    yield case("phi3: su", "phi3", {"rope_scaling": {"type": "su", **six, "original_max_position_embeddings": 64}})
    yield case("phi3: yarn with lists", "phi3", {"rope_scaling": {"type": "yarn", **six, "original_max_position_embeddings": 64}})
    yield case("hunyuan_dense: alpha", "hunyuan_dense", {"rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}})
    # Kinds of layers.
    full = {"rope_type": "linear", "factor": 8.0}
    yield case("gemma3: published", "gemma3", {"rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": full})
    yield case("gemma3: published, nested", "gemma3_nested", {"rope_scaling": full}, nested=True)
    yield case("gemma3: bases of its own, nested", "gemma3_nested", {"rope_theta": 500000.0, "rope_local_base_freq": 20000.0}, nested=True)
    yield case("gemma3: by kind", "gemma3", {"rope_parameters": {"full_attention": {**full, "rope_theta": 2000000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}})
    yield case("gemma3: one kind alone", "gemma3", {"rope_parameters": {"full_attention": full}})
    yield case("gemma3: by kind, and rope_scaling", "gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_parameters": {"full_attention": {**full, "rope_theta": 2000000.0}, "sliding_attention": {"rope_type": "default"}}})
    yield case("gemma3: yarn by kind without a length", "gemma3", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}, "sliding_attention": None}})
    yield case("gemma3n: published", "gemma3n", {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None})
    yield case("gemma4: by kind", "gemma4", {"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 900000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}})
    yield case("modernbert: published", "modernbert", {"global_rope_theta": 80000.0, "local_rope_theta": 20000.0})
    yield case("modernbert: rope_scaling", "modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    yield case("modernbert: by kind", "modernbert", {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 90000.0}, "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9000.0}}})
    # Three directions.
    section = {"mrope_section": [4, 6, 6]}
    for model, nested in (("qwen2_5_vl", False), ("qwen2_5_vl_nested", True)):
        yield case(f"{model}: defaults", model, {}, nested)
        yield case(f"{model}: mrope by type", model, {"rope_theta": 900000.0, "rope_scaling": {"type": "mrope", **section}}, nested)
        yield case(f"{model}: mrope by rope_type", model, {"rope_theta": 900000.0, "rope_scaling": {"rope_type": "mrope", **section}}, nested)
        yield case(f"{model}: default and mrope", model, {"rope_theta": 900000.0, "rope_scaling": {"rope_type": "default", "type": "mrope", **section}}, nested)
        yield case(f"{model}: mrope in rope_parameters", model, {"rope_parameters": {"rope_type": "mrope", "rope_theta": 900000.0, **section}}, nested)
    yield case("qwen3_vl: defaults", "qwen3_vl", {}, True)
    yield case("qwen3_vl: published", "qwen3_vl", {"rope_theta": 5000000, "rope_scaling": {"mrope_interleaved": True, "rope_type": "default", **section}}, True)
    yield case("qwen3_vl: in rope_parameters", "qwen3_vl", {"rope_parameters": {"mrope_interleaved": True, "rope_type": "default", "rope_theta": 5000000, **section}}, True)


made = list(cases())
assert len({c["name"] for c in made}) == len(made)
with open(os.path.join(HERE, "..", "rope", "cases.json"), "w") as f:
    f.write('{"transformers": "%s", "long": %d, "cases": [\n' % (transformers.__version__, LONG))
    f.write(",\n".join(json.dumps(c) for c in made))
    f.write("\n]}\n")
print(len(made), "cases")
