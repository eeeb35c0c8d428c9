"""Makes the models of www/bench/sounds.json with random weights, for tests/gpu/audio.html: for Jerboa, and the recognition models also for transformers.js (ONNX with the
layout and operations of optimum's exports: encoder_model, decoder_model_merged).

    python make_audio.py OUT_FOLDER [NAME...] [--tiny] [--f32]      (numpy, torch, transformers, onnx)

Writes OUT/<name>/{config.json, model.safetensors, onnx/*} and the codec to OUT/<name>/codec. `--tiny` makes a few narrow layers, for software adapters; `--f32` makes f32 ONNX
(the page's `dtype=fp32`), for devices without f16.
"""

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from onnx import TensorProto as T
from onnx import external_data_helper, helper, save_model

SOUNDS = Path(__file__).resolve().parents[2] / "www/bench/sounds.json"
HALF = np.float16
F32 = "--f32" in sys.argv
SUFFIX = "" if F32 else "_fp16"
#: The number format of the ONNX graphs.
REAL, FLOAT = (np.float32, T.FLOAT) if F32 else (HALF, T.FLOAT16)


def random(name, shape, kind=None):
    """Seeds by the name; matmuls preserve the variance of their inputs."""
    if kind is None:
        kind = "bias" if name.endswith("bias") else "one" if len(shape) < 2 else "weight"
    if kind != "weight":
        return np.full(shape, 0 if kind == "bias" else 1, HALF)
    rng = np.random.default_rng(sum((i + 1) * b for i, b in enumerate(name.encode())))
    spread = 0.5 if "embed" in name else 1 / math.sqrt(np.prod(shape[1:]))
    return (rng.standard_normal(shape, np.float32) * np.float32(spread)).astype(HALF)


def weights_of(cls, config):
    with torch.device("meta"):
        model = cls(cls.config_class(**config))
    return {name: random(name, tuple(p.shape)) for name, p in model.named_parameters()}


def codec_weights(config):
    """NanoCodec's decoder."""
    out = {}

    def conv(path, o, i, kernel):
        out[f"{path}.conv.bias"] = random("bias", (o if "up_sample" not in path else o // 2,))
        out[f"{path}.conv.parametrizations.weight.original0"] = random("g", (o, 1, 1), "one")
        out[f"{path}.conv.parametrizations.weight.original1"] = random(path, (o, i, kernel))

    def snake(path, channels):
        out[f"{path}.activation.snake_act.alpha"] = random("alpha", (1, max(channels // 2, 1), 1), "one")

    channels, top = config["base_channels"], "audio_decoder"
    conv(f"{top}.pre_conv", channels, config["input_dim"], config["in_kernel_size"])
    for layer, rate in enumerate(config["up_sample_rates"]):
        snake(f"{top}.activations.{layer}", channels)
        conv(f"{top}.up_sample_conv_layers.{layer}", channels, 1, 2 * rate)
        channels //= 2
        for k, kernel in enumerate(config["resblock_kernel_sizes"]):
            for d in range(len(config["resblock_dilation_sizes"])):
                path = f"{top}.res_layers.{layer}.res_blocks.{k}.res_blocks.{d}"
                for part in ("input", "skip"):
                    snake(f"{path}.{part}_activation", channels)
                    conv(f"{path}.{part}_conv", channels, channels, kernel)
    snake(f"{top}.post_activation", channels)
    conv(f"{top}.post_conv", 1, channels, config["out_kernel_size"])
    return out


def safetensors(path, tensors):
    header, at = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F16", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.tobytes())


class Graph:
    """Builds an ONNX graph; values are names."""

    def __init__(self, weights, outer=None):
        self.weights, self.nodes, self.inits, self.outer = weights, [], {}, outer
        self.count = 0

    def op(self, kind, *inputs, outs=1, **attributes):
        root = self
        while root.outer:
            root = root.outer
        root.count += 1
        names = [f"v{root.count}_{i}" for i in range(outs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outs == 1 else names

    def constant(self, value):
        root = self
        while root.outer:
            root = root.outer
        value = np.asarray(value)
        name = f"c_{value.dtype}_{'x'.join(map(str, value.shape))}_{abs(hash(value.tobytes()))}"
        root.inits[name] = value
        return name

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def weight(self, name, turned=False):
        root = self
        while root.outer:
            root = root.outer
        key = f"{name}.t" if turned else name
        root.inits.setdefault(key, np.ascontiguousarray(self.weights[name].T if turned else self.weights[name], REAL))
        return key

    def linear(self, x, path):
        x = self.op("MatMul", x, self.weight(f"{path}.weight", turned=True))
        return self.op("Add", x, self.weight(f"{path}.bias")) if f"{path}.bias" in self.weights else x

    def norm(self, x, path):
        scale = self.weights[f"{path}.weight"]
        bias = self.weight(f"{path}.bias") if f"{path}.bias" in self.weights else self.constant(np.zeros(scale.shape, REAL))
        return self.op("LayerNormalization", x, self.weight(f"{path}.weight"), bias, axis=-1, epsilon=1e-5)

    def gelu(self, x):
        erf = self.op("Erf", self.op("Div", x, self.constant(REAL(math.sqrt(2)))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.constant(REAL(1)))), self.constant(REAL(0.5)))

    def split(self, x, heads, d):
        return self.op("Transpose", self.op("Reshape", x, self.ints(0, -1, heads, d)), perm=[0, 2, 1, 3])

    def attend(self, q, k, v, heads, d, mask=None):
        scores = self.op("MatMul", self.op("Mul", q, self.constant(REAL(d**-0.5))), self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Add", scores, mask) if mask else scores
        out = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.op("Reshape", self.op("Transpose", out, perm=[0, 2, 1, 3]), self.ints(0, 0, heads * d))

    def length(self, x, axis):
        return self.op("Gather", self.op("Shape", x), self.constant(np.int64(axis)))

    def save(self, path, inputs, outputs):
        value = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
        inits = []
        for name, array in self.inits.items():
            inits.append(helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.tobytes(), raw=True))
        graph = helper.make_graph(self.nodes, "audio", [value(*i) for i in inputs], [value(*o) for o in outputs], inits)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        data = f"{path.name}_data"
        (path.parent / data).unlink(missing_ok=True)
        external_data_helper.convert_model_to_external_data(model, all_tensors_to_one_file=True, location=data, size_threshold=1024)
        save_model(model, str(path))


def whisper_encoder(g, c):
    x = g.op("Cast", "input_features", to=FLOAT)
    for name, stride in (("conv1", 1), ("conv2", 2)):
        path = f"model.encoder.{name}"
        x = g.gelu(g.op("Conv", x, g.weight(f"{path}.weight"), g.weight(f"{path}.bias"), strides=[stride], pads=[1, 1]))
    x = g.op("Add", g.op("Transpose", x, perm=[0, 2, 1]), g.weight("model.encoder.embed_positions.weight"))
    heads = c["encoder_attention_heads"]
    d = c["d_model"] // heads
    for i in range(c["encoder_layers"]):
        path = f"model.encoder.layers.{i}"
        h = g.norm(x, f"{path}.self_attn_layer_norm")
        q, k, v = (g.split(g.linear(h, f"{path}.self_attn.{n}_proj"), heads, d) for n in "qkv")
        x = g.op("Add", x, g.linear(g.attend(q, k, v, heads, d), f"{path}.self_attn.out_proj"))
        h = g.gelu(g.linear(g.norm(x, f"{path}.final_layer_norm"), f"{path}.fc1"))
        x = g.op("Add", x, g.linear(h, f"{path}.fc2"))
    return g.norm(x, "model.encoder.layer_norm"), [("input_features", T.FLOAT, ["batch_size", c["num_mel_bins"], 2 * c["max_source_positions"]])]


def tables(c, positions):
    """RoPE tables of adjacent columns, and the number of rotated columns."""
    d = c["hidden_size"] // c["decoder_num_attention_heads"]
    turned = int(d * c["partial_rotary_factor"])
    angles = np.arange(positions)[:, None] / c["rope_theta"] ** (np.arange(0, turned, 2) / turned)[None]
    angles = angles.repeat(2, 1)[:, :turned]
    return np.cos(angles).astype(REAL), np.sin(angles).astype(REAL), turned


def rotated(g, x, cos, sin, turned):
    cut = lambda x, a, b, axis=3, step=1: g.op("Slice", x, g.ints(a), g.ints(b), g.ints(axis), g.ints(step))
    r, rest = cut(x, 0, turned), cut(x, turned, 1 << 30)
    even, odd = cut(r, 0, 1 << 30, step=2), cut(r, 1, 1 << 30, step=2)
    pair = g.op("Concat", g.op("Unsqueeze", g.op("Neg", odd), g.ints(-1)), g.op("Unsqueeze", even, g.ints(-1)), axis=-1)
    half = g.op("Reshape", pair, g.op("Shape", r))
    return g.op("Concat", g.op("Add", g.op("Mul", r, cos), g.op("Mul", half, sin)), rest, axis=-1)


def turns(g, c, start, count, positions):
    """Rows `start` to `start + count` of the RoPE tables."""
    cos, sin, turned = tables(c, positions)
    end = g.op("Add", start, count)
    one = lambda table: g.op("Slice", g.constant(table), g.op("Unsqueeze", start, g.ints(0)), g.op("Unsqueeze", end, g.ints(0)), g.ints(0))
    return one(cos), one(sin), turned


def moonshine_encoder(g, c):
    path = "model.encoder"
    x = g.op("Unsqueeze", g.op("Cast", "input_values", to=FLOAT), g.ints(1))
    x = g.op("Tanh", g.op("Conv", x, g.weight(f"{path}.conv1.weight"), strides=[64]))
    # One group normalizes over time and channels.
    flat = g.op("Reshape", x, g.ints(0, 1, -1))
    flat = g.op("InstanceNormalization", flat, g.constant(np.ones(1, REAL)), g.constant(np.zeros(1, REAL)), epsilon=1e-5)
    x = g.op("Reshape", flat, g.op("Shape", x))
    column = lambda name: g.op("Unsqueeze", g.weight(name), g.ints(0, 2))
    x = g.op("Add", g.op("Mul", x, column(f"{path}.groupnorm.weight")), column(f"{path}.groupnorm.bias"))
    for name, stride in (("conv2", 3), ("conv3", 2)):
        x = g.gelu(g.op("Conv", x, g.weight(f"{path}.{name}.weight"), g.weight(f"{path}.{name}.bias"), strides=[stride]))
    x = g.op("Transpose", x, perm=[0, 2, 1])
    heads = c["encoder_num_attention_heads"]
    d = c["hidden_size"] // heads
    around = turns(g, c, g.constant(np.int64(0)), g.length(x, 1), 4096)
    for i in range(c["encoder_num_hidden_layers"]):
        path = f"model.encoder.layers.{i}"
        h = g.norm(x, f"{path}.input_layernorm")
        q, k, v = (g.split(g.linear(h, f"{path}.self_attn.{n}_proj"), heads, d) for n in "qkv")
        h = g.attend(rotated(g, q, *around), rotated(g, k, *around), v, heads, d)
        x = g.op("Add", x, g.linear(h, f"{path}.self_attn.o_proj"))
        h = g.gelu(g.linear(g.norm(x, f"{path}.post_attention_layernorm"), f"{path}.mlp.fc1"))
        x = g.op("Add", x, g.linear(h, f"{path}.mlp.fc2"))
    return g.norm(x, "model.encoder.layer_norm"), [("input_values", T.FLOAT, ["batch_size", "num_samples"])]


def silu(g, x):
    return g.op("Mul", x, g.op("Sigmoid", x))


def decoder(g, c):
    whisper = c["model_type"] == "whisper"
    heads, layers, wide = (c["decoder_attention_heads"], c["decoder_layers"], c["d_model"]) if whisper else (c["decoder_num_attention_heads"], c["decoder_num_hidden_layers"], c["hidden_size"])
    d = wide // heads
    past = lambda i, which, what: f"past_key_values.{i}.{which}.{what}"
    x = g.op("Gather", g.weight("model.decoder.embed_tokens.weight"), "input_ids")
    start, count = g.length(past(0, "decoder", "key"), 2), g.length("input_ids", 1)
    total = g.op("Add", start, count)
    one = g.constant(np.int64(1))
    rows, cols = g.op("Range", start, total, one), g.op("Range", g.constant(np.int64(0)), total, one)
    seen = g.op("LessOrEqual", g.op("Unsqueeze", cols, g.ints(0)), g.op("Unsqueeze", rows, g.ints(1)))
    mask = g.op("Where", seen, g.constant(REAL(0)), g.constant(REAL(-60000)))
    around = None
    if whisper:
        x = g.op("Add", x, g.op("Gather", g.weight("model.decoder.embed_positions.weight"), rows))
    else:
        around = turns(g, c, start, count, c["max_position_embeddings"])
    names = [(f"model.decoder.layers.{i}", what) for i in range(layers) for what in ("key", "value")]
    # The first step computes keys and values of the encoder's states.
    sub = Graph(g.weights, outer=g)
    states = sub.op("Cast", "encoder_hidden_states", to=FLOAT)
    made = [sub.split(sub.linear(states, f"{path}.encoder_attn.{what[0]}_proj"), heads, d) for path, what in names]
    cached = Graph(g.weights, outer=g)
    same = [cached.op("Identity", past(i // 2, "encoder", what)) for i, (_, what) in enumerate(names)]
    shape = ["batch_size", heads, "encoder_length", d]
    branch = lambda b, outs, name: helper.make_graph(b.nodes, name, [], [helper.make_tensor_value_info(o, FLOAT, shape) for o in outs])
    memory = g.op("If", "use_cache_branch", outs=len(names), then_branch=branch(cached, same, "cached"), else_branch=branch(sub, made, "made"))
    outputs = []

    def give(value, name):
        g.nodes.append(helper.make_node("Identity", [value], [name]))
        outputs.append((name, FLOAT, ["batch_size", heads, f"{name.split('.')[2]}_total", d]))

    before, between, last = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm") if whisper else ("input_layernorm", "post_attention_layernorm", "final_layernorm")
    out = "out_proj" if whisper else "o_proj"
    for i in range(layers):
        path = f"model.decoder.layers.{i}"
        h = g.norm(x, f"{path}.{before}")
        q, k, v = (g.split(g.linear(h, f"{path}.self_attn.{n}_proj"), heads, d) for n in "qkv")
        if around:
            q, k = rotated(g, q, *around), rotated(g, k, *around)
        k, v = g.op("Concat", past(i, "decoder", "key"), k, axis=2), g.op("Concat", past(i, "decoder", "value"), v, axis=2)
        give(k, f"present.{i}.decoder.key")
        give(v, f"present.{i}.decoder.value")
        x = g.op("Add", x, g.linear(g.attend(q, k, v, heads, d, mask), f"{path}.self_attn.{out}"))
        h = g.norm(x, f"{path}.{between}")
        q = g.split(g.linear(h, f"{path}.encoder_attn.q_proj"), heads, d)
        mk, mv = memory[2 * i], memory[2 * i + 1]
        give(mk, f"present.{i}.encoder.key")
        give(mv, f"present.{i}.encoder.value")
        x = g.op("Add", x, g.linear(g.attend(q, mk, mv, heads, d), f"{path}.encoder_attn.{out}"))
        h = g.norm(x, f"{path}.{last}")
        if whisper:
            h = g.linear(g.gelu(g.linear(h, f"{path}.fc1")), f"{path}.fc2")
        else:
            value, gate = g.op("Split", g.linear(h, f"{path}.mlp.fc1"), outs=2, axis=-1)
            h = g.linear(g.op("Mul", value, silu(g, gate)), f"{path}.mlp.fc2")
        x = g.op("Add", x, h)
    x = g.norm(x, "model.decoder.layer_norm" if whisper else "model.decoder.norm")
    logits = g.op("Cast", g.op("MatMul", x, g.weight("model.decoder.embed_tokens.weight", turned=True)), to=T.FLOAT)
    g.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    outputs.insert(0, ("logits", T.FLOAT, ["batch_size", "decoder_length", c["vocab_size"]]))
    inputs = [("input_ids", T.INT64, ["batch_size", "decoder_length"]), ("encoder_hidden_states", T.FLOAT, ["batch_size", "encoder_length", wide]), ("use_cache_branch", T.BOOL, [1])]
    for i in range(layers):
        for which in ("decoder", "encoder"):
            inputs += [(past(i, which, what), FLOAT, ["batch_size", heads, f"past_{which}_length", d]) for what in ("key", "value")]
    return inputs, outputs


def onnx(folder, config, weights):
    folder.mkdir(exist_ok=True)
    g = Graph(weights)
    states, inputs = (whisper_encoder if config["model_type"] == "whisper" else moonshine_encoder)(g, config)
    g.nodes.append(helper.make_node("Cast", [states], ["last_hidden_state"], to=T.FLOAT))
    g.save(folder / f"encoder_model{SUFFIX}.onnx", inputs, [("last_hidden_state", T.FLOAT, ["batch_size", "encoder_length", config.get("d_model", config.get("hidden_size"))])])
    g = Graph(weights)
    inputs, outputs = decoder(g, config)
    g.save(folder / f"decoder_model_merged{SUFFIX}.onnx", inputs, outputs)


TINY = {
    "moonshine-base": {"hidden_size": 64, "intermediate_size": 96, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2, "vocab_size": 512},
    "whisper-large-v3-turbo": {"d_model": 64, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 512,
                               "pad_token_id": 0, "bos_token_id": 500, "eos_token_id": 500, "decoder_start_token_id": 501},
    "kani-tts-2": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_attention_heads": 4, "num_key_value_heads": 2, "block_auto_adjust_ff_dim": False},
}


def main(out, names, tiny):
    for name, shape in json.loads(SOUNDS.read_text()).items():
        if names and name not in names:
            continue
        folder, config = out / name, {**shape["config"], **(TINY[name] if tiny else {})}
        folder.mkdir(parents=True, exist_ok=True)
        if "codec" in shape:
            weights = weights_of(transformers.Lfm2ForCausalLM, config)
            codec = {**shape["codec"], **({"base_channels": 64} if tiny else {})}
            for layer, kind in enumerate(config["layer_types"]):
                if kind == "full_attention":
                    weights[f"model.learnable_rope_layers.{layer}.alpha_weight"] = random("bias", ())
            (folder / "codec").mkdir(exist_ok=True)
            (folder / "codec/config.json").write_text(json.dumps(codec))
            safetensors(folder / "codec/model.safetensors", codec_weights(codec))
        else:
            cls = transformers.WhisperForConditionalGeneration if config["model_type"] == "whisper" else transformers.MoonshineForConditionalGeneration
            given = dict(config)
            if "rope_theta" in given:
                given["rope_parameters"] = {"rope_type": "default", "rope_theta": given["rope_theta"], "partial_rotary_factor": given["partial_rotary_factor"]}
            weights = weights_of(cls, given)
            onnx(folder / "onnx", config, weights)
            generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "decoder_start_token_id")}
            (folder / "generation_config.json").write_text(json.dumps(generation))
            config["is_encoder_decoder"] = True
        config["transformers.js_config"] = {"use_external_data_format": True, "kv_cache_dtype": {"fp16": "float16"}}
        (folder / "config.json").write_text(json.dumps(config))
        safetensors(folder / "model.safetensors", {key: value for key, value in weights.items() if key != "proj_out.weight"})
        print(name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) >> 20, "MiB", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [a for a in sys.argv[2:] if not a.startswith("--")], "--tiny" in sys.argv)
