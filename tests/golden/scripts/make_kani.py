#!/usr/bin/env python3
"""Kani-TTS-2 backbone reference: transformers' Lfm2ForCausalLM + frame-level positions + one learned RoPE scale per attention layer + a speaker vector.
usage: make_kani.py --make DIR | make_kani.py DIR (checks)
Extra tensors over an LFM2 checkpoint:  model.speaker_emb_projection.weight [hidden, speaker_dim] (no bias),
model.learnable_rope_layers.<layer index>.alpha_weight [] (attention layers only; conv layers have none)."""
import json, os, sys
os.environ.setdefault("OMP_NUM_THREADS", "1"); os.environ["TRANSFORMERS_VERBOSITY"] = "error"; os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers as T
from safetensors.torch import load_file, save_file
torch.set_num_threads(1); torch.set_grad_enabled(False)
SPECIAL = dict(start_of_speech=1, end_of_speech=2, start_of_human=3, end_of_human=4, start_of_ai=5, end_of_ai=6, pad=7, audio_tokens_start=10)   # offsets from text_vocab_size

class Kani:
    def __init__(self, d):
        self.c = json.load(open(f"{d}/config.json")); sd = {n: t.float() for n, t in load_file(f"{d}/model.safetensors").items()}
        cfg = T.Lfm2Config(**{a: b for a, b in self.c.items() if a not in ("kani", "architectures")}); cfg._attn_implementation = "eager"
        self.m = T.Lfm2ForCausalLM(cfg).eval(); self.m.load_state_dict({n: t for n, t in sd.items() if "alpha_weight" not in n and "speaker_emb" not in n} | {"lm_head.weight": sd["model.embed_tokens.weight"]})
        self.spk, self.start, self.per, self.step = sd["model.speaker_emb_projection.weight"], self.c["audio_tokens_start"], self.c["tokens_per_frame"], self.c["audio_step"]
        hd = cfg.hidden_size // cfg.num_attention_heads; base = cfg.rope_parameters["rope_theta"] ** (-torch.arange(0, hd, 2).float() / hd)
        self.alpha = {}
        for i, kind in enumerate(cfg.layer_types):
            if kind != "full_attention": continue
            a = self.alpha[i] = self.c["alpha_min"] + (self.c["alpha_max"] - self.c["alpha_min"]) * torch.sigmoid(sd[f"model.learnable_rope_layers.{i}.alpha_weight"])
            def hook(mod, args, kw, inv=base * a):     # half-split RoPE with inv_freq * alpha of this layer, at (possibly fractional) positions
                f = self.pos[0, :, None].float() * inv; f = torch.cat([f, f], -1)[None]; kw["position_embeddings"] = (f.cos(), f.sin()); return args, kw
            self.m.model.layers[i].self_attn.register_forward_pre_hook(hook, with_kwargs=True)
    def positions(self, ids, speaker):
        """text tokens advance by 1; audio tokens (id >= audio_tokens_start) share the position of their frame: text_before + (audio_before // per) * step;
        a speaker vector takes slot 1 with position 1, everything after it moves by one."""
        p, t, a = [], 0, 0
        for i in ids:
            p.append(t + (a // self.per) * self.step); t, a = (t, a + 1) if i >= self.start else (t + 1, a)
        return p if speaker is None else p[:1] + [p[0] + 1] + [x + 1 for x in p[1:]]
    def logits(self, ids, speaker=None, pos=None):
        e = self.m.model.embed_tokens(torch.tensor([ids]))
        if speaker is not None: e = torch.cat([e[:, :1], (speaker @ self.spk.T)[None, None], e[:, 1:]], 1)
        self.pos = torch.tensor([self.positions(ids, speaker) if pos is None else pos], dtype=torch.float32)
        return self.m(inputs_embeds=e, use_cache=False).logits[0]
    def greedy(self, ids, speaker, n, penalty=1.0, grammar=False):
        """positions while decoding: a text or special token takes the number of slots in the cache; the first audio token likewise, then +step at every 4th audio token.
        grammar: only ids of the right codebook (slot j of a frame: start + j*size ..), or end_of_speech at a frame's edge. The public code samples without such a mask."""
        ids, pos, out, aud, cur, self.gap = list(ids), self.positions(ids, speaker), [], 0, None, 9e9; size = self.c["kani"]["codebook_size"]
        for _ in range(n):
            l = self.logits(ids, speaker, pos)[-1]
            if penalty != 1.0:
                for j in set(ids): l[j] = l[j] / penalty if l[j] > 0 else l[j] * penalty
            if grammar:
                j = aud % self.per; ok = torch.full_like(l, float("-inf")); s = self.start + j * size; ok[s:s + size] = 0
                if j == 0 and aud: ok[self.c["kani"]["text_vocab_size"] + SPECIAL["end_of_speech"]] = 0
                l = l + ok
            t = int(l.argmax()); out.append(t); w = l.topk(2).values; self.gap = min(self.gap, float(w[0] - w[1]))
            if t >= self.start:
                cur = len(pos) if cur is None else cur + (self.step if aud and aud % self.per == 0 else 0); aud += 1; pos.append(cur)
            else: pos.append(len(pos))
            ids.append(t)
            if grammar and t == self.c["kani"]["text_vocab_size"] + SPECIAL["end_of_speech"]: break
        return out, pos

def make(d, seed=8080):
    os.makedirs(d, exist_ok=True); tv, cb, H = 90, 12, 48
    cfg = T.Lfm2Config(vocab_size=tv + 10 + 4 * cb, hidden_size=H, intermediate_size=80, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.12,
                       norm_eps=1e-5, block_auto_adjust_ff_dim=False, conv_L_cache=3, conv_bias=False, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6),
                       layer_types=["conv", "full_attention", "conv", "full_attention", "full_attention"], pad_token_id=tv + 7, bos_token_id=1, eos_token_id=tv + 2)
    torch.manual_seed(seed); m = T.Lfm2ForCausalLM(cfg).eval(); g = torch.Generator().manual_seed(seed + 1)
    for n, p in m.named_parameters():
        if p.ndim == 1: p.add_(torch.randn(p.shape, generator=g) * 0.15)
    sd = {n: p.clone() for n, p in m.state_dict().items() if n != "lm_head.weight"}
    for i, k in enumerate(cfg.layer_types):
        if k == "full_attention": sd[f"model.learnable_rope_layers.{i}.alpha_weight"] = torch.randn((), generator=g) * 1.5
    sd["model.speaker_emb_projection.weight"] = torch.randn(H, 24, generator=g) * 0.2
    c = {k: v for k, v in cfg.to_dict().items() if k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "norm_eps", "block_auto_adjust_ff_dim",
         "conv_L_cache", "conv_bias", "tie_word_embeddings", "rope_parameters", "layer_types", "pad_token_id", "bos_token_id", "eos_token_id", "model_type")}
    c.update(architectures=["KaniTTS2ForCausalLM"], audio_tokens_start=tv + 10, tokens_per_frame=4, audio_step=1.0, use_learnable_rope=True, alpha_min=0.1, alpha_max=2.0, speaker_emb_dim=24, kani=dict(text_vocab_size=tv, codebook_size=cb))
    json.dump(c, open(f"{d}/config.json", "w"), indent=1); save_file({k: v.bfloat16().contiguous() for k, v in sd.items()}, f"{d}/model.safetensors")     # stored BF16, computed in f32
    K = Kani(d); S = {k: tv + o for k, o in SPECIAL.items()}; G = {}; spk = torch.randn(24, generator=g); G["speaker"] = spk
    prompt = [S["start_of_human"], 1] + torch.randint(5, tv, (11,), generator=g).tolist() + [2, S["end_of_human"]]
    audio = [S["audio_tokens_start"] + j * cb + int(torch.randint(0, cb, (), generator=g)) for _ in range(5) for j in range(4)]
    full = prompt + [S["start_of_ai"], S["start_of_speech"]] + audio + [S["end_of_speech"], S["end_of_ai"]]
    for name, ids, s in (("text_only", prompt, None), ("full", full, None), ("full_speaker", full, spk), ("partial_frame_speaker", full[:-5], spk)):
        G[f"{name}.ids"] = torch.tensor(ids); G[f"{name}.positions"] = torch.tensor(K.positions(ids, s), dtype=torch.float32); G[f"{name}.logits"] = K.logits(ids, s)
    K.step = 0.5; G["full_speaker_step_half.positions"] = torch.tensor(K.positions(full, spk), dtype=torch.float32); G["full_speaker_step_half.logits"] = K.logits(full, spk); K.step = 1.0
    G["alpha"] = torch.stack([K.alpha[i] for i in sorted(K.alpha)])
    gaps = {}; pre = prompt + [S["start_of_ai"], S["start_of_speech"]]; G["greedy.prompt"] = torch.tensor(prompt); G["grammar.prompt"] = torch.tensor(pre)
    for name, p, s, kw in (("greedy.speaker", prompt, spk, {}), ("greedy.plain", prompt, None, {}), ("greedy.speaker_penalty1.1", prompt, spk, dict(penalty=1.1)), ("grammar.speaker", pre, spk, dict(grammar=True)), ("grammar.plain", pre, None, dict(grammar=True))):
        o, pos = K.greedy(p, s, 24, **kw); gaps[name] = K.gap; G[f"{name}.ids"] = torch.tensor(o); G[f"{name}.positions"] = torch.tensor(pos, dtype=torch.float32)
    save_file({k: v.clone().contiguous() for k, v in G.items()}, f"{d}/golden.safetensors")
    json.dump(dict(special=S, smallest_top2_gap=gaps, note="audio id = audio_tokens_start + slot*codebook_size + code; speaker vector in slot 1 of the sequence; logits rows include the speaker slot"), open(f"{d}/meta.json", "w"), indent=1)

def check(d):
    K = Kani(d); G = load_file(f"{d}/golden.safetensors")
    for n in ("text_only", "full", "full_speaker", "partial_frame_speaker"):
        y = K.logits(G[f"{n}.ids"].tolist(), G["speaker"] if "speaker" in n else None); print(n, list(y.shape), "std", round(float(y.std()), 3), "max|err|", float((y - G[f"{n}.logits"]).abs().max()))
    print("greedy", G["greedy.speaker.ids"].tolist(), "\ngrammar", G["grammar.speaker.ids"].tolist(), G["grammar.speaker.positions"].tolist(), "\nalpha", G["alpha"].tolist())

if __name__ == "__main__":
    if sys.argv[1] == "--make": make(sys.argv[2])
    check(sys.argv[-1])
