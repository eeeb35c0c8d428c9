#!/usr/bin/env python3
"""Tiny random checkpoints of models that hear, with what transformers computed on them.  usage: make_speech.py OUT [NAME...]   (torch 2.15.0, transformers 5.23.0, safetensors; no network)
Writes OUT/<name>/{config.json, model.safetensors, golden.safetensors, meta.json}. Weights are rounded to bf16 and stored so; everything is computed in float32, eager attention, eval mode. F16 tensors named wave* and input_features* are the
model's exact inputs (rounded to f16 before the forward pass); every other F16 tensor is a bulky intermediate to compare at 2e-3."""
import json, math, os, sys, warnings
os.environ["OMP_NUM_THREADS"] = "1"; os.environ["HF_HUB_OFFLINE"] = "1"; os.environ["TRANSFORMERS_VERBOSITY"] = "error"; warnings.filterwarnings("ignore")
import numpy as np, torch, transformers as T
from safetensors.torch import save_file
torch.set_num_threads(1); torch.set_grad_enabled(False)
SEED = 60493

def reinit(m, seed=SEED):
    """weights ~ N(0, 1/fan_in), embeddings N(0, .5), norms and biases perturbed, so that activations and logits come out near std 1."""
    g = torch.Generator().manual_seed(seed); r = lambda p, s: torch.randn(p.shape, generator=g) * s
    for n, p in m.named_parameters():
        if "embed_tokens" in n or "pos_embed" in n or "position_embedding" in n or "embed_positions" in n: p.copy_(r(p, 0.5))
        elif p.ndim <= 1: p.add_(r(p, 0.1))
        else: p.copy_(r(p, 1 / math.sqrt(p[0].numel())))
    for n, b in m.named_buffers():
        if n.endswith("layer_scalar"): b.add_(r(b, 0.1))
    return m
def calibrate(m, y=None):                             # logits to std ~1 (scales an untied head); then every weight is rounded to bf16, so that the stored BF16 weights are exact
    if y is not None and not m.config.get_text_config().tie_word_embeddings: m.get_output_embeddings().weight.mul_(1 / y.std())
    for p in list(m.parameters()) + [b for n, b in m.named_buffers() if n.endswith("layer_scalar")]: p.copy_(p.bfloat16().float())
def build(cls, cfg, seed=SEED):                       # a few seeds differ, to keep the two best logits apart along the greedy path
    torch.manual_seed(seed); cfg._attn_implementation = "eager"; m = cls(cfg).eval().float(); reinit(m, seed)
    try: m.set_attn_implementation("eager")
    except Exception: pass
    if m.can_generate(): m.generation_config.eos_token_id = None
    return m
class Capture:                                        # outputs of named submodules
    def __init__(self, mods):
        self.out = {}
        def hook(n):
            def h(_m, _i, o): self.out.setdefault(n, o[0] if isinstance(o, (tuple, list)) else getattr(o, "last_hidden_state", o))
            return h
        for n, mod in mods.items(): mod.register_forward_hook(hook(n))
def save(out, name, m, gold, meta, pre=None, rename=None):
    d = f"{out}/{name}"; os.makedirs(d, exist_ok=True); m.to(torch.bfloat16).save_pretrained(d)
    if rename:                                        # to the tensor names of the published checkpoints
        from safetensors.torch import load_file; sd = {k.replace(*rename): v for k, v in load_file(f"{d}/model.safetensors").items()}; save_file(sd, f"{d}/model.safetensors", metadata=dict(format="pt"))
    if pre is not None: pre.save_pretrained(d)
    save_file({k: (v.long().int() if v.dtype in (torch.int64, torch.bool) else v).clone().contiguous() for k, v in gold.items()}, f"{d}/golden.safetensors")
    meta = dict(meta, model_class=type(m).__name__, tensors={k: list(v.shape) for k, v in gold.items()}); json.dump(meta, open(f"{d}/meta.json", "w"), indent=1)
    if os.path.exists(f"{d}/generation_config.json"): os.remove(f"{d}/generation_config.json")
    for f in os.listdir(d): os.chmod(f"{d}/{f}", 0o644)
    print("OK", name, "logits std", round(float(gold["logits"].std()), 3) if "logits" in gold else "-", sum(os.path.getsize(f"{d}/{f}") for f in os.listdir(d)) // 1024, "KiB")
def gap(logits):                                      # smallest distance between the two best logits along a greedy path
    t = logits.float().topk(2, -1).values; return float((t[..., 0] - t[..., 1]).min())
def greedy(m, n=16, **kw):
    o = m.generate(**kw, do_sample=False, max_new_tokens=n, return_dict_in_generate=True, output_logits=True); s = torch.stack(o.logits, 1)[0]
    return o.sequences[0, -n:], gap(s)
TEXT = lambda **k: dict(dict(vocab_size=320, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, rms_norm_eps=1e-6, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False), **k)
def words(n, k): return torch.randint(5, 290, (n,), generator=torch.Generator().manual_seed(SEED + k)).tolist()

# ---- speech ------------------------------------------------------------------------------------------------------------------------------------------------------------------------
FORMULA = ("t=i/16000; x[i] = 0.45*sin(2*pi*(120*t+900*t*t))*(0.6+0.4*sin(2*pi*3*t)) + 0.15*sin(2*pi*2500*t)*(1 if (t mod 0.4) < 0.13 else 0) + 0.03*u[i]; u[i]=s/2^31-1 with s=(1664525*s+1013904223) mod 2^32 "
           "updated before each use, s0=2463534242; all in float64, then cast to float32 (wave golden tensors: then to float16)")
def wave(n):
    u, st = np.empty(n), 2463534242
    for i in range(n): st = (1664525 * st + 1013904223) % 2**32; u[i] = st / 2**31 - 1
    t = np.arange(n) / 16000
    return (0.45 * np.sin(2 * np.pi * (120 * t + 900 * t * t)) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t)) + 0.15 * np.sin(2 * np.pi * 2500 * t) * (np.mod(t, 0.4) < 0.13) + 0.03 * u).astype(np.float32)
def seq2seq(m, enc_kw, dec, bos, n=14):
    """teacher-forced logits, greedy and beam-4 ids; beam-4 again with an end token that really occurs."""
    D = torch.tensor([dec]); o = m(**enc_kw, decoder_input_ids=D); gen = lambda **k: T.GenerationMixin.generate(m, **enc_kw, decoder_input_ids=torch.tensor([[bos]]), do_sample=False, max_new_tokens=n, return_dict_in_generate=True, output_logits=True, **k)
    m.generation_config.pad_token_id = 0; g = gen(); b = gen(num_beams=4, output_scores=True, num_return_sequences=4); eos = int(b.sequences[0, 6]); e = gen(num_beams=4, output_scores=True, num_return_sequences=4, eos_token_id=eos, early_stopping=False, length_penalty=1.0)
    return dict(decoder_input_ids=D[0], logits=o.logits[0], greedy=g.sequences[0], beam4=b.sequences, beam4_scores=b.sequences_scores, beam4_eos=e.sequences, beam4_eos_scores=e.sequences_scores), dict(decoder_start=bos, beam_eos_id=eos, beam=dict(num_beams=4, length_penalty=1.0, early_stopping=False, pad=0), smallest_top2_gap=gap(torch.stack(g.logits, 1)[0]))
def moonshine(out):
    m = build(T.MoonshineForConditionalGeneration, T.MoonshineConfig(vocab_size=200, hidden_size=48, intermediate_size=80, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4, max_position_embeddings=194,
              rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.9), tie_word_embeddings=True, pad_token_id=2)); m.model.encoder.conv1.weight.mul_(3); m.model.decoder.embed_tokens.weight.mul_(0.27); calibrate(m)
    e = m.model.encoder; gold = {}; cap = Capture({"enc.conv1": e.conv1, "enc.groupnorm": e.groupnorm, "enc.conv3": e.conv3, "enc.block.0": e.layers[0]}); W = torch.from_numpy(wave(20001)).half().float()
    for n in (20001, 12345, 19200, 1000): gold[f"encoder.{n}"] = e(W[None, :n]).last_hidden_state[0]
    gold.update({k: v.half() for k, v in cap.out.items()}); s, meta = seq2seq(m, dict(input_values=W[None]), [1] + [w % 190 + 5 for w in words(11, 51)], 1)
    save(out, "moonshine", m, dict(wave=W.half(), **gold, **s), dict(meta, wave=FORMULA, note="encoder.N: the first N samples of wave; enc.* stages and the decoder use all 20001. head_dim 12, rotary dims int(12*0.9)=10"))
def moonshine_streaming(out):
    ec = dict(hidden_size=40, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, sliding_windows=((6, 2), (5, 0), (6, 2)), max_position_embeddings=256)
    m = build(T.MoonshineStreamingForConditionalGeneration, T.MoonshineStreamingConfig(encoder_config=ec, vocab_size=200, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, pad_token_id=0, decoder_start_token_id=1), SEED + 3)
    W = torch.from_numpy(wave(16000)).half().float(); e = m.model.encoder; kw = dict(input_values=W[None], attention_mask=torch.ones(1, 16000, dtype=torch.long)); dec = [1] + [w % 190 + 5 for w in words(11, 52)]
    calibrate(m, m(**kw, decoder_input_ids=torch.tensor([dec])).logits); cap = Capture({"enc.embedder": e.embedder, "enc.block.0": e.layers[0]}); gold = {"encoder.16000": e(**kw).last_hidden_state[0]}
    gold["encoder.16000.no_mask"] = e(input_values=W[None]).last_hidden_state[0]; gold["encoder.8000"] = e(input_values=W[None, :8000], attention_mask=torch.ones(1, 8000, dtype=torch.long)).last_hidden_state[0]; gold.update({k: v.half() for k, v in cap.out.items()}); s, meta = seq2seq(m, kw, dec, 1)
    save(out, "moonshine_streaming", m, dict(wave=W.half(), **gold, **s), dict(meta, wave=FORMULA, note="the per-layer sliding windows act only when an attention mask is passed; no_mask is full attention. Sample counts must be multiples of 80"))
def whisper(out):
    for bins in (80,):
        cfg = T.WhisperConfig(vocab_size=200, num_mel_bins=bins, d_model=40, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=200, max_target_positions=64,
                              decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2, suppress_tokens=None, begin_suppress_tokens=None)
        m = build(T.WhisperForConditionalGeneration, cfg); sin = m.model.encoder.embed_positions.weight; ln = math.log(10000) / 19; t = torch.arange(200)[:, None] * torch.exp(-ln * torch.arange(20).float())[None]; sin.copy_(torch.cat([t.sin(), t.cos()], 1)); m.model.decoder.embed_tokens.weight.mul_(0.4); calibrate(m)
        fe = T.WhisperFeatureExtractor(feature_size=bins, chunk_length=4); gold = {}
        for n in (51200, 33333): F = fe(wave(n), sampling_rate=16000, return_tensors="pt")["input_features"].half().float(); gold[f"input_features.{n}"] = F[0].half(); gold[f"encoder.{n}"] = m.model.encoder(F).last_hidden_state[0]; F0 = F if n == 51200 else F0
        s, meta = seq2seq(m, dict(input_features=F0), [1] + [w % 190 + 5 for w in words(11, 53)], 1); save(out, "whisper", m, dict(gold, **s), dict(meta, wave=FORMULA, note="features of the first N samples, padded with zeros to 4 s (chunk_length 4 -> 400 frames); decoder goldens on 51200"), fe)
SAID = [0.2, " so", ",", " the", " cat", "ch", "ing", " (", "ed", ")", 1.2, 1.4, " well", "-", "er", " \"", "ly", "\"", "?", " up", 2.0, 2.0, "ba", "ra", " we", "'s", " 10", "%", " é", "on", "!", 2.48]
def whisper_words(out):
    """word times as the pipeline gives them (return_timestamps="word"): a tokenizer of bytes and a few words, tokens for times to 4 s, three heads that align. The decoder's table of positions makes it say SAID, whatever it hears; where it looks
    depends on the sound."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode; b2u = bytes_to_unicode(); byte = lambda s: "".join(b2u[b] for b in s.encode())
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    vocab, merges = {c: i for i, c in enumerate(sorted(b2u.values()))}, []
    for text in [w for w in SAID if isinstance(w, str)]:                                # each by pairs from its beginning
        c = byte(text)
        for k in range(2, len(c) + 1):
            if c[:k] not in vocab: vocab[c[:k]] = len(vocab); merges.append((c[:k - 1], c[k - 1]))
    text = len(vocab); first = text + len(special); sid = {s: text + i for i, s in enumerate(special)}
    tk = T.WhisperTokenizer(vocab=vocab, merges=merges); tk.add_special_tokens({"additional_special_tokens": special[1:]}); tk.add_tokens([T.AddedToken(f"<|{i * 0.02:.2f}|>", normalized=False) for i in range(201)])
    assert tk.convert_tokens_to_ids("<|notimestamps|>") == first - 1 and tk.convert_tokens_to_ids("<|4.00|>") == first + 200
    cfg = T.WhisperConfig(vocab_size=first + 201, num_mel_bins=80, d_model=40, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=200, max_target_positions=64,
                          decoder_start_token_id=sid["<|startoftranscript|>"], pad_token_id=text, bos_token_id=text, eos_token_id=text, suppress_tokens=None, begin_suppress_tokens=None)
    m = build(T.WhisperForConditionalGeneration, cfg); sin = m.model.encoder.embed_positions.weight; ln = math.log(10000) / 19; t = torch.arange(200)[:, None] * torch.exp(-ln * torch.arange(20).float())[None]; sin.copy_(torch.cat([t.sin(), t.cos()], 1))
    said = [vocab[byte(w)] if isinstance(w, str) else first + round(w / 0.02) for w in SAID] + [text]; d = m.model.decoder; d.embed_positions.weight[2:2 + len(said)] += 5 * d.embed_tokens.weight[said]
    for l in d.layers: l.encoder_attn.q_proj.weight.mul_(2); l.encoder_attn.k_proj.weight.mul_(2)
    calibrate(m)
    m.generation_config = T.GenerationConfig(decoder_start_token_id=sid["<|startoftranscript|>"], pad_token_id=text, bos_token_id=text, eos_token_id=text, no_timestamps_token_id=first - 1, is_multilingual=True, lang_to_id={"<|en|>": sid["<|en|>"], "<|de|>": sid["<|de|>"]},
                          task_to_id={"translate": sid["<|translate|>"], "transcribe": sid["<|transcribe|>"]}, prev_sot_token_id=sid["<|startofprev|>"], max_initial_timestamp_index=20, alignment_heads=[[0, 1], [1, 0], [1, 3]], max_length=64,
                          suppress_tokens=[i for s, i in sid.items() if s != "<|endoftext|>"], begin_suppress_tokens=[text])
    fe = T.WhisperFeatureExtractor(feature_size=80, chunk_length=4); pipe = T.pipeline("automatic-speech-recognition", model=m, tokenizer=tk, feature_extractor=fe); clips = {}
    for n in (51200, 40000):
        F = fe(wave(n), sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
        s = m.generate(F["input_features"], attention_mask=F["attention_mask"], language="en", task="transcribe", return_timestamps=True, return_token_timestamps=True, return_segments=True)["segments"][0]
        ids = torch.cat([x["tokens"] for x in s]).tolist(); assert ids == said[:-1], (ids, said)
        clips[n] = dict(ids=ids, times=[round(float(t), 2) for x in s for t in x["token_timestamps"]], segments=[[round(float(x["start"]), 2), round(float(x["end"]), 2)] for x in s],
                        words=[[c["text"], *c["timestamp"]] for c in pipe(wave(n), return_timestamps="word", generate_kwargs=dict(language="en", task="transcribe"))["chunks"]])
    meta = dict(wave=FORMULA, language="en", said=SAID, clips=clips)
    gen = m.generation_config; save(out, "whisper_words", m, {}, meta, fe); gen.save_pretrained(f"{out}/whisper_words"); tk.save_pretrained(f"{out}/whisper_words"); os.remove(f"{out}/whisper_words/golden.safetensors")
def whisper_tail(out):
    """A recording in two windows, for the model of whisper_words: its text ends at the first token after a pair of timestamps at 2 s, so that transformers goes on with the rest of the features. Writes OUT/whisper_words/tail.json: ids, segments and
    words, and every 25th encoder row of the second window. The features of the samples from 2 s on alone give other rows and words, which is checked here."""
    d = f"{out}/whisper_words"; m = T.WhisperForConditionalGeneration.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval(); fe = T.WhisperFeatureExtractor.from_pretrained(d); tk = T.AutoTokenizer.from_pretrained(d)
    end = tk.convert_tokens_to_ids("ba"); m.generation_config.eos_token_id = end; how = dict(language="en", task="transcribe"); pipe = T.pipeline("automatic-speech-recognition", model=m, tokenizer=tk, feature_extractor=fe); clips = {}
    rows = lambda f: m.model.encoder(f).last_hidden_state[0][::25]; said = lambda w: [[c["text"], *c["timestamp"]] for c in pipe(w, return_timestamps="word", generate_kwargs=how)["chunks"]]
    for n in (64000, 60000):
        F = fe(wave(n), sampling_rate=16000, return_tensors="pt", return_attention_mask=True); s = m.generate(F["input_features"], attention_mask=F["attention_mask"], return_timestamps=True, return_token_timestamps=True, return_segments=True, **how)["segments"][0]
        tail = torch.nn.functional.pad(F["input_features"][:, :, 200:], (0, 200)); alone = fe(wave(n)[32000:], sampling_rate=16000, return_tensors="pt")["input_features"]; words = said(wave(n)); half = len(words) // 2
        assert (rows(tail) - rows(alone)).norm() > 0.05 * rows(tail).norm() and [[w, a - 2, b - 2] for w, a, b in words[half:]] != said(wave(n)[32000:])[:half]
        clips[n] = dict(ids=torch.cat([x["tokens"] for x in s]).tolist(), segments=[[round(float(x["start"]), 2), round(float(x["end"]), 2)] for x in s], words=[[w, round(a, 2), round(b, 2)] for w, a, b in words], rows=[[round(float(v), 6) for v in r] for r in rows(tail)])
    json.dump(dict(end=end, first_frame=200, row_step=25, clips=clips), open(f"{d}/tail.json", "w"), separators=(",", ":")); print("OK", "whisper_tail", {n: len(c["segments"]) for n, c in clips.items()})
MAKERS = dict(moonshine=moonshine, moonshine_streaming=moonshine_streaming, whisper=whisper, whisper_words=whisper_words, whisper_tail=whisper_tail)
if __name__ == "__main__":
    for n, f in MAKERS.items():
        if not sys.argv[2:] or n in sys.argv[2:]: f(sys.argv[1])
