#!/usr/bin/env python3
"""GGUF files of tiny hybrids and mixtures in ../models, as llama.cpp's converter makes them.   usage: make_gguf_hybrids.py ../quant [NAME...]

Needs numpy, torch, safetensors, gguf 0.19.0. Tensors are F32, matrices of the newer ones BF16; the goldens are those of
../models. What the converter does to them is written from its description: norms of Qwen3.5 hold their weight plus one (but for the gated one), A_log is
kept as -exp(A_log), rotations of Gemma 4's full layers are factors of the frequencies, heads of values take turns with the key heads (value head h of key head k lies at h * key_heads + k), q
and k of Granite lie in the order of interleaved rotation, its MLP's gate and up are apart. Qwen3-Next's gates of values lie apart
from queries, keys and values, whose heads are side by side, while beta and a stay together; experts are stacked, as are
AltUp's projections of Gemma 3n, whose shares of gates become deviations of the normal distribution. Granite's stacked gate and
up are two stacks; Falcon-H1's multipliers are in its weights. Tokenizers are left out.
"""
import json, os, re, sys
import numpy as np, torch, gguf
from safetensors.torch import load_file

MODELS = os.path.join(os.path.dirname(__file__), "..", "models")

def tiled(x, axis, heads, key_heads, dim):
    """Heads of values of one key head side by side to heads that take turns."""
    shape = list(x.shape)
    apart = x.reshape(shape[:axis] + [key_heads, heads // key_heads, dim] + shape[axis + 1:])
    return np.swapaxes(apart, axis, axis + 1).reshape(shape)

def qwen35(name, x, c):
    heads, keys, dv = c["linear_num_value_heads"], c["linear_num_key_heads"], c["linear_value_head_dim"]
    turn = lambda x, axis=0, dim=dv: tiled(x, axis, heads, keys, dim)
    first = 2 * keys * c["linear_key_head_dim"]
    if name.endswith("norm.weight") and "linear_attn" not in name: return x + 1
    if name.endswith("A_log"): return turn(-np.exp(x), dim=1)
    if name.endswith(("dt_bias", "in_proj_a.weight", "in_proj_b.weight")): return turn(x, dim=1)
    if name.endswith("in_proj_z.weight"): return turn(x)
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        x = x.reshape(x.shape[0], -1)
        return np.concatenate([x[:first], turn(x[first:])])
    return turn(x, 1) if name.endswith("linear_attn.out_proj.weight") else x

def mamba(name, x, c):
    if name.endswith("A_log"): return -np.exp(x).reshape(-1, 1)
    if name.endswith(".D"): return x.reshape(-1, 1)
    if name.endswith("conv1d.weight"): return x.reshape(x.shape[0], -1)
    for part, heads in (("q_proj", c["num_attention_heads"]), ("k_proj", c["num_key_value_heads"])):
        if c["model_type"].startswith("granitemoe") and name.endswith(f"{part}.weight"):
            return x.reshape(heads, 2, x.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)
        if c["model_type"].startswith("granitemoe") and name.endswith(f"{part}.bias"): return x.reshape(heads, 2, -1).swapaxes(1, 2).reshape(x.shape)
    if name.endswith("mixer.norm.weight"): return x.reshape(c["n_groups"], -1)
    return x

def falcon(name, x, c):
    x, (gate, down) = mamba(name, x, c), c["mlp_multipliers"]
    if name.endswith("in_proj.weight"):
        inner, shared = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
        return x * np.repeat(c["ssm_multipliers"], [inner, inner, shared, shared, c["mamba_n_heads"]]).reshape(-1, 1) * c["ssm_in_multiplier"]
    given = c["attention_in_multiplier"]
    scales = {"down_proj": down, "gate_proj": gate, "k_proj": given * c["key_multiplier"], "q_proj": given, "v_proj": given, "o_proj": c["attention_out_multiplier"],
        "out_proj": c["ssm_out_multiplier"], "lm_head": c["lm_head_multiplier"], "embed_tokens": c["embedding_multiplier"]}
    return x * scales.get(name.split(".")[-2], 1.0)

def multipliers(c): return {"embedding_scale": c["embedding_multiplier"], "residual_scale": c["residual_multiplier"], "attention.scale": c["attention_multiplier"], "logit_scale": c["logits_scaling"]}
def granite_experts(c):
    return {**multipliers(c), "expert_count": c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"], "expert_shared_feed_forward_length": c["shared_intermediate_size"],
        "rope.dimension_count": c["hidden_size"] // c["num_attention_heads"], "rope.freq_base": c["rope_parameters"]["rope_theta"]}
def mamba_sizes(c): return {"ssm.conv_kernel": c["mamba_d_conv"], "ssm.state_size": c["mamba_d_state"], "ssm.group_count": c["mamba_n_groups"], "ssm.time_step_rank": c["mamba_n_heads"], "ssm.inner_size": c["mamba_n_heads"] * c["mamba_d_head"]}

def qwen3next(name, x, c):
    if name.endswith("norm.weight") and "linear_attn" not in name: return x + 1
    return -np.exp(x) if name.endswith("A_log") else x.reshape(x.shape[0], -1) if name.endswith("conv1d.weight") else x

def qkv_and_z(x, c):
    """The rows of each key head's q, k, v and z as all q, k and v, and all z."""
    each = c["linear_num_value_heads"] // c["linear_num_key_heads"] * c["linear_value_head_dim"]
    runs = np.cumsum([c["linear_key_head_dim"]] * 2 + [each])
    q, k, v, z = (part.reshape(-1, x.shape[1]) for part in np.split(x.reshape(c["linear_num_key_heads"], -1, x.shape[1]), runs, axis=1))
    return np.concatenate([q, k, v]), z

def deviations(share): return float(torch.distributions.Normal(0, 1).icdf(torch.tensor(share)))

def lfm2(name, x, c):
    return x.reshape(x.shape[0], -1) if name.endswith("conv.conv.weight") else x

def plain(name, x, c): return x

def grouped(c): return {"attention.head_count_kv": c["num_key_value_heads"], "rope.dimension_count": c["hidden_size"] // c["num_attention_heads"]}

CASES = {
    "qwen3_5": ("qwen35", qwen35, lambda c: {"ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"], "ssm.group_count": c["linear_num_key_heads"],
        "ssm.time_step_rank": c["linear_num_value_heads"], "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"], "full_attention_interval": 3,
        "attention.key_length": c["head_dim"], "rope.dimension_count": c["head_dim"] // 2, "rope.freq_base": c["rope_parameters"]["rope_theta"]}),
    "granite_hybrid": ("granitehybrid", mamba, lambda c: {"ssm.conv_kernel": c["mamba_d_conv"], "ssm.state_size": c["mamba_d_state"], "ssm.group_count": c["mamba_n_groups"],
        "ssm.time_step_rank": c["mamba_n_heads"], "ssm.inner_size": c["mamba_n_heads"] * c["mamba_d_head"], "embedding_scale": c["embedding_multiplier"], "residual_scale": c["residual_multiplier"],
        "attention.scale": c["attention_multiplier"], "logit_scale": c["logits_scaling"]}),
    "gemma4": ("gemma4", lambda name, x, c: x, lambda c: {"feed_forward_length": [c["intermediate_size"] * (2 if i + c["num_kv_shared_layers"] >= c["num_hidden_layers"] else 1) for i in range(c["num_hidden_layers"])],
        "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["global_head_dim"], "attention.value_length": c["global_head_dim"], "attention.key_length_swa": c["head_dim"],
        "attention.value_length_swa": c["head_dim"], "attention.sliding_window": c["sliding_window"], "attention.sliding_window_pattern": [t == "sliding_attention" for t in c["layer_types"]],
        "attention.shared_kv_layers": c["num_kv_shared_layers"], "embedding_length_per_layer_input": c["hidden_size_per_layer_input"], "final_logit_softcapping": c["final_logit_softcapping"],
        "rope.freq_base": c["rope_parameters"]["full_attention"]["rope_theta"], "rope.freq_base_swa": c["rope_parameters"]["sliding_attention"]["rope_theta"],
        "rope.dimension_count": c["global_head_dim"], "rope.dimension_count_swa": c["head_dim"]}),
    "qwen3_next": ("qwen3next", qwen3next, lambda c: {"ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"], "ssm.group_count": c["linear_num_key_heads"],
        "ssm.time_step_rank": c["linear_num_value_heads"], "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"], "full_attention_interval": 2,
        "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"], "expert_count": c["num_experts"],
        "expert_used_count": c["num_experts_per_tok"], "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"],
        "rope.dimension_count": int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"]), "rope.freq_base": c["rope_parameters"]["rope_theta"]}),
    "gemma3n": ("gemma3n", lambda name, x, c: x, lambda c: {"attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
        "attention.sliding_window": c["sliding_window"], "attention.sliding_window_pattern": [t == "sliding_attention" for t in c["layer_types"]], "attention.shared_kv_layers": c["num_kv_shared_layers"],
        "embedding_length_per_layer_input": c["hidden_size_per_layer_input"], "altup.num_inputs": c["altup_num_inputs"], "altup.active_idx": c["altup_active_idx"],
        "activation_sparsity_scale": [deviations(share) for share in c["activation_sparsity_pattern"]], "rope.freq_base": c["rope_parameters"]["full_attention"]["rope_theta"]}),
    "olmo3": ("olmo2", plain, lambda c: {**grouped(c), "attention.sliding_window": c["sliding_window"], "attention.sliding_window_pattern": [t == "sliding_attention" for t in c["layer_types"]],
        "rope.freq_base": c["rope_theta"], "rope.scaling.type": "yarn", "rope.scaling.factor": c["rope_scaling"]["factor"], "rope.scaling.original_context_length": c["rope_scaling"]["original_max_position_embeddings"]}),
    "olmoe": ("olmoe", plain, lambda c: {**grouped(c), "expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"], "rope.freq_base": c["rope_parameters"]["rope_theta"]}),
    "ernie4_5_moe": ("ernie4_5-moe", plain, lambda c: {**grouped(c), "expert_count": c["moe_num_experts"], "expert_used_count": c["moe_k"], "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": c["moe_num_shared_experts"], "expert_shared_feed_forward_length": c["moe_intermediate_size"], "leading_dense_block_count": c["moe_layer_start_index"],
        "interleave_moe_layer_step": c["moe_layer_interval"], "rope.freq_base": c["rope_parameters"]["rope_theta"]}),
    "granite_moe_shared": ("granitemoe", mamba, lambda c: {**granite_experts(c), "attention.head_count_kv": c["num_key_value_heads"]}),
    "granite_hybrid_moe": ("granitehybrid", mamba, lambda c: {**granite_experts(c), **mamba_sizes(c)}),
    "nemotron_h_moe": ("nemotron_h_moe", mamba, lambda c: {"ssm.conv_kernel": c["conv_kernel"], "ssm.state_size": c["ssm_state_size"], "ssm.group_count": c["n_groups"], "ssm.time_step_rank": c["mamba_num_heads"],
        "ssm.inner_size": c["mamba_num_heads"] * c["mamba_head_dim"], "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
        "feed_forward_length": [c["intermediate_size"] if t == "mlp" else 0 for t in c["layers_block_type"]], "expert_count": c["n_routed_experts"], "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"], "expert_shared_count": c["n_shared_experts"],
        "expert_weights_norm": c["norm_topk_prob"], "expert_weights_scale": c["routed_scaling_factor"], "expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]}),
    "falcon_h1": ("falcon-h1", falcon, lambda c: {**mamba_sizes(c), "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
        "rope.freq_base": c["rope_parameters"]["rope_theta"]}),
    "lfm2": ("lfm2", lfm2, lambda c: {"shortconv.l_cache": c["conv_L_cache"], "rope.freq_base": c["rope_parameters"]["rope_theta"]}),
}
CASES["gemma4_moe"] = ("gemma4", plain, lambda c: {**CASES["gemma4"][2](c), "attention.head_count_kv": [c["num_key_value_heads" if t == "sliding_attention" else "num_global_key_value_heads"] for t in c["layer_types"]],
    "expert_count": c["num_experts"], "expert_used_count": c["top_k_experts"], "expert_feed_forward_length": c["moe_intermediate_size"]})
# What the converter renames before it looks names up.
EARLIER = {".dt_bias": ".dt_proj.bias", ".layer_scalar": ".layer_scalar.weight", ".correct_output_scale": ".correct_output_scale.weight", "backbone.embeddings": "backbone.embedding",
    "e_score_correction_bias": "e_score_correction.bias", ".experts.gate_up_proj": ".experts.gate_up_proj.weight", ".experts.down_proj": ".experts.down_proj.weight"}
# What it names by hand.
OWN = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
# Those whose matrices are kept as they are stored; conversion widens these.
HALVES = ("qwen3_next", "gemma3n", "olmo3", "olmoe", "ernie4_5_moe", "gemma4_moe", "granite_moe_shared", "granite_hybrid_moe", "nemotron_h_moe")
WIDE = ("conv1d", "ssm_a", "ssm_d", "ssm_norm", "altup_predict_coef", "altup_correct_coef", "ffn_gate_inp.")
WIDTHS = {"lfm2": 48, "granite_hybrid": 44}

def write(out, folder):
    arch, change, fields = CASES[folder]
    c = json.load(open(f"{MODELS}/{folder}/config.json"))
    os.makedirs(f"{out}/gguf_{folder}", exist_ok=True)
    w = gguf.GGUFWriter(f"{out}/gguf_{folder}/model.gguf", arch)
    kinds = c.get("layers_block_type", c.get("layer_types", []))
    layers = c.get("num_hidden_layers", len(kinds))
    numbers = {"embedding_length": c["hidden_size"], "block_count": layers, "feed_forward_length": WIDTHS.get(folder, c["intermediate_size"]), "context_length": c["max_position_embeddings"],
        "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": [c["num_key_value_heads"] if kinds[i:i + 1] == ["full_attention"] else 0 for i in range(layers)],
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps", c.get("norm_eps", c.get("layer_norm_epsilon"))), **fields(c)}
    for key, value in numbers.items():
        key = f"{arch}.{key}"
        if isinstance(value, list): w.add_array(key, value)
        elif isinstance(value, str): w.add_string(key, value)
        elif isinstance(value, bool): w.add_bool(key, value)
        elif isinstance(value, float): w.add_float32(key, value)
        else: w.add_uint32(key, value)
    names = gguf.get_tensor_name_map({n: a for a, n in gguf.MODEL_ARCH_NAMES.items()}[arch], layers)
    def add(name, x):
        if folder in HALVES and x.ndim > 1 and not any(part in name for part in WIDE):
            x = gguf.quants.quantize(np.ascontiguousarray(x, dtype=np.float32), gguf.GGMLQuantizationType.BF16)
            w.add_tensor(name, x, raw_shape=x.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else: w.add_tensor(name, np.ascontiguousarray(x, dtype=np.float32))
    stacks = {}
    for name, tensor in sorted(load_file(f"{MODELS}/{folder}/model.safetensors").items()):
        x = change(name, tensor.float().numpy(), c)
        one = re.fullmatch(r"(.*(?:\.experts|altup_\w*projections))\.\d+(\..*)", name)
        if one:
            stacks.setdefault(one[1] + one[2], []).append(x)
            continue
        parts = {name: x}
        if name.endswith("block_sparse_moe.input_linear.weight"):
            parts = {name.replace("input_linear", f"experts.{part}"): half for part, half in zip(("w1", "w3"), np.split(x, 2, axis=1))}
        elif ".shared_mlp." in name and c["num_local_experts"]:
            halves = np.split(x, 2) if "input_linear" in name else [x]
            parts = {f"{name.rsplit('.', 2)[0].replace('shared_mlp', 'mlp.shared_mlp')}.{part}_proj.weight": half for part, half in zip(("gate", "up") if len(halves) > 1 else ("down",), halves)}
        elif name.endswith("shared_mlp.input_linear.weight"):
            parts = {name.replace("shared_mlp.input_linear", f"mlp.{part}_proj"): half for part, half in zip(("gate", "up"), np.split(x, 2))}
        elif name.endswith("shared_mlp.output_linear.weight"): parts = {name.replace("shared_mlp.output_linear", "mlp.down_proj"): x}
        if name.endswith("in_proj_qkvz.weight"):
            block = name.split(".")[2]
            for part, x in zip(("attn_qkv", "attn_gate"), qkv_and_z(x, c)): add(f"blk.{block}.{part}.weight", x)
            continue
        for part, x in parts.items():
            for old, new in EARLIER.items(): part = part.replace(old, new)
            own = next((f"blk.{part.split('.')[2]}.{new}" for old, new in OWN.items() if part.endswith(old)), None)
            found = own or names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert found, part
            add(found, x)
    for name, parts in stacks.items():
        found = names.get_name(re.sub(r"backbone(.*)mixer", r"model\1mlp", name), try_suffixes=(".weight",))
        assert found, name
        add(found, np.stack(parts))
    if arch == "gemma4":
        half = c["global_head_dim"] // 2
        turned = int(half * c["rope_parameters"]["full_attention"]["partial_rotary_factor"])
        w.add_tensor("rope_freqs.weight", np.array([1.0] * turned + [1e30] * (half - turned), dtype=np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()

for folder in sys.argv[2:] or CASES: write(sys.argv[1], folder)
