"""Transcribes long recordings with transformers' long form and published Whisper weights: tests/golden/real/whisper.json.

usage: make_real_whisper.py HUB AUDIO OUT.json
HUB holds openai/whisper-tiny.en and openai/whisper-base as on the Hub; AUDIO holds the clips of CLIPS at 16 kHz, as FLAC or WAV.
Recordings with a clip that is not there keep what OUT.json says of them.
A recording is a list of clips and of pauses in seconds; WAV files of them are written beside OUT.json with --wav DIR.
Needs torch, transformers, soundfile, numpy.
"""

import json
import os
import re
import sys

import numpy as np
import soundfile
import torch
import transformers

CLIPS = {
    "jfk.wav": "And so my fellow Americans, ask not what your country can do for you, ask what you can do for your country.",
    "beckett.wav": "Ever tried, ever failed. No matter. Try again. Fail again. Fail better.",
    "1272-141231-0002.wav": "the cut on his chest still dripping blood the ache of his overstrained eyes even the soaring arena around him with the thousands of spectators were trivialities not worth thinking about",
    "1272-128104-0004.flac": "linnell's pictures are a sort of up guards and at em paintings and mason's exquisite idylls are as national as a jingo poem mister birket foster's landscapes smile at one much in the same way that mister carker used to flash his teeth and mister john collier gives his sitter a cheerful slap on the back before he says like a shampooer in a turkish bath next man",
    "ls_test.flac": "Then the good soul openly shouldered the burden she had borne so long in secret, and bravely trudged on alone.",
}
RECORDINGS = {
    "long": ["jfk.wav", 1.0, "beckett.wav", 1.0, "1272-141231-0002.wav", 1.0, "1272-128104-0004.flac", 1.0, "ls_test.flac"],
    "committed": ["ls_test.flac", 3.0, "beckett.wav", 1.0, "jfk.wav", 1.0, "beckett.wav"],
    "other": ["1272-128104-0004.flac", 3.0, "beckett.wav", 0.5, "ls_test.flac", 6.0, "1272-141231-0002.wav", 0.5, "jfk.wav"],
}
RATE = 16_000


def words(text):
    text = text.lower().replace("mr.", "mister").replace("’", "'")
    return re.sub(r"[^a-z0-9' ]", " ", text).split()


def errors(found, expected):
    """Words that differ: substitutions, insertions and deletions."""
    row = list(range(len(expected) + 1))
    for i, word in enumerate(found, 1):
        before, row = row, [i]
        for j, other in enumerate(expected, 1):
            row.append(min(before[j - 1] + (word != other), before[j] + 1, row[j - 1] + 1))
    return row[-1]


def clip_file(audio, clip):
    """The clip under this name or as WAV."""
    wav = f"{clip.rsplit('.', 1)[0]}.wav"
    return next((path for path in (f"{audio}/{clip}", f"{audio}/{wav}") if os.path.exists(path)), None)


def samples(audio, recording):
    parts = []
    for part in recording:
        if isinstance(part, float):
            parts.append(np.zeros(int(part * RATE), dtype=np.float32))
        else:
            wave, rate = soundfile.read(clip_file(audio, part), dtype="float32")
            assert rate == RATE
            parts.append(wave)
    return np.concatenate(parts)


def main():
    hub, audio, out = sys.argv[1:4]
    torch.set_num_threads(2)
    made = {"transformers": transformers.__version__, "clips": CLIPS, "recordings": RECORDINGS, "models": {}}
    if os.path.exists(out):
        with open(out) as file:
            made["models"] = json.load(file)["models"]
    if "--wav" in sys.argv:
        folder = sys.argv[sys.argv.index("--wav") + 1]
        for title, recording in RECORDINGS.items():
            soundfile.write(f"{folder}/{title}.wav", samples(audio, recording), RATE, subtype="PCM_16")
    for name in ["openai/whisper-base", "openai/whisper-tiny.en"]:
        folder = os.path.join(hub, name)
        model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        processor = transformers.WhisperProcessor.from_pretrained(folder)
        language = {} if name.endswith(".en") else {"language": "en", "task": "transcribe"}
        for title, recording in RECORDINGS.items():
            if not all(clip_file(audio, part) for part in recording if not isinstance(part, float)):
                continue
            expected = words(" ".join(CLIPS[part] for part in recording if not isinstance(part, float)))
            long = {"truncation": False, "padding": "longest", "return_attention_mask": True}
            inputs = processor(samples(audio, recording), sampling_rate=RATE, return_tensors="pt", **long)
            with torch.no_grad():
                ids = model.generate(**inputs, return_timestamps=True, num_beams=1, do_sample=False, **language)[0]
            text = processor.tokenizer.decode(ids, skip_special_tokens=True).strip()
            row = {"text": text, "errors": errors(words(text), expected), "words": len(expected)}
            made["models"].setdefault(name, {})[title] = row
            print(name, title, row["errors"], "of", row["words"], text, flush=True)
            with open(out, "w") as file:
                json.dump(made, file, indent=1)
                file.write("\n")


main()
