#!/usr/bin/env python3
"""Fixtures of tests/audio: a piece of a real recording with Whisper's log-mel features of it, and what Silero VAD says.
usage: make_audio.py RECORDING.wav SILERO_MODEL.safetensors SILERO_GOLDEN.safetensors OUT
RECORDING is whisper.cpp's samples/jfk.wav (US government speech, public domain). SILERO_MODEL holds the initializers of silero_vad_16k_op15.onnx (snakers4/silero-vad
806dcba3, MIT), SILERO_GOLDEN what onnxruntime 1.31.1 gave on silero_vad.onnx for 2.9 s of the repository's tests/data/test.wav and 2 s of made sound. Weights are stored in 16 bits.
transformers 5.23.0, torch 2.15.0, numpy, safetensors."""
import struct, sys
import numpy as np, torch, transformers as T
from safetensors.numpy import load_file, save_file

recording, model, golden, out = sys.argv[1:]
data = open(recording, "rb").read()
at = data.index(b"data")
pcm = np.frombuffer(data[at + 8:at + 8 + struct.unpack("<I", data[at + 4:at + 8])[0]], dtype="<i2")[5000:45000]
gold = {"pcm": pcm.copy()}
wave = pcm.astype(np.float32) / 32768
for mels in (80, 128):
    extractor = T.WhisperFeatureExtractor(feature_size=mels)
    for name, sound in (("whole", wave), ("long", np.tile(wave, 13)[:488000])):
        features = extractor(sound, sampling_rate=16000, return_tensors="np")["input_features"][0].T.reshape(-1)
        gold[f"{name}.{mels}"] = features[(np.arange(3000) * 7919 + 13) % features.size].astype(np.float32)
    gold[f"filters.{mels}"] = np.ascontiguousarray(extractor.mel_filters.T.astype(np.float16))
save_file(gold, f"{out}/logmel.safetensors")
save_file({k: v.astype(np.float16) for k, v in load_file(model).items()}, f"{out}/../../../www/public/models/silero-vad/model.safetensors")
g = load_file(golden)
save_file({k: g[k] for k in ("speech.pcm_i16", "speech.prob", "synthetic.wave", "synthetic.prob")}, f"{out}/silero_golden.safetensors")
