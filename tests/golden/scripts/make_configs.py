#!/usr/bin/env python3
"""Copies configurations of published checkpoints out of clones of the repositories that SOURCES.toml names.   usage: make_configs.py CLONES [TO]

CLONES has a clone `owner+name` (or `owner+name/repo`) for each repository; folders whose repository is not there stay as
they are. A model.safetensors.index.json beside a config.json becomes tensors.json: names with `{n}` for each number, and
how often each occurs. Lists of modules that are not quantised are long and say nothing here: they are left out.
"""
import collections, json, os, re, subprocess, sys, tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
LONG = ["modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"]


def shown(clones, repository, commit, path):
    for folder in ("", "repo"):
        clone = os.path.join(clones, repository.replace("/", "+"), folder)
        if os.path.isdir(clone):
            found = subprocess.run(["git", "-C", clone, "show", f"{commit}:{path}"], capture_output=True, text=True)
            if found.returncode == 0:
                return found.stdout
    return None


def trimmed(config):
    for part in (config, config.get("text_config") or {}):
        for name in ("quantization_config", "quantization"):
            block = part.get(name)
            for key in LONG if isinstance(block, dict) else ():
                block.pop(key, None)
    return config


def written(value, depth=0):
    """JSON with a list of plain values in one line."""
    pad = " " * (depth + 1)
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"{pad}{json.dumps(k)}: {written(v, depth + 1)}" for k, v in value.items()) + "\n" + " " * depth + "}"
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        return "[\n" + ",\n".join(pad + written(v, depth + 1) for v in value) + "\n" + " " * depth + "]"
    return json.dumps(value)


clones, target = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "..", "configs")
with open(os.path.join(HERE, "..", "configs", "SOURCES.toml"), "rb") as f:
    sources = tomllib.load(f)
for name, source in sources.items():
    text = shown(clones, source["repository"], source["commit"], source["path"])
    if text is None:
        continue
    folder = os.path.join(target, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(written(trimmed(json.loads(text))) + "\n")
    index = shown(clones, source["repository"], source["commit"], os.path.join(os.path.dirname(source["path"]), "model.safetensors.index.json"))
    if index:
        count = collections.Counter(re.sub(r"\d+(?=\.)", "{n}", n) for n in json.loads(index)["weight_map"])
        with open(os.path.join(folder, "tensors.json"), "w") as f:
            f.write(json.dumps(dict(sorted(count.items())), indent=1) + "\n")
