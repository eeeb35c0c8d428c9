#!/usr/bin/env python3
"""NanoCodec as NVIDIA NeMo publishes it: a tar of model_config.yaml and model_weights.ckpt, written by torch.save.

usage: make_nemo.py OUT.nemo    packs tests/golden/speech/nanocodec, whose goldens stay those of the archive
The archive holds more than the decoder, as the published one does: an encoder's tensor, a discriminator's, a transposed view.
"""

import collections
import io
import os
import sys
import tarfile

import torch
from safetensors.torch import load_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "speech", "nanocodec")
CONFIG = """sample_rate: 22050
samples_per_frame: 1764
vector_quantizer:
  _target_: nemo.collections.tts.modules.audio_codec_modules.GroupFiniteScalarQuantizer
  num_groups: 4
  num_levels_per_group: [9, 8, 8, 7]
audio_decoder:
  _target_: nemo.collections.tts.modules.audio_codec_modules.CausalHiFiGANDecoder
  sample_rate: 1
  activation: half_snake
"""


def main():
    generator = torch.Generator().manual_seed(5)
    state = collections.OrderedDict()
    state["audio_encoder.pre_conv.conv.bias"] = torch.randn(7, generator=generator)
    for name, tensor in load_file(f"{HERE}/model.safetensors").items():
        state[name] = tensor
    # Two tensors of one storage, of which the second begins within it; and one whose elements are not in order.
    both = torch.randn(64, generator=generator)
    state["discriminator.first"], state["discriminator.second"] = both[:24], both[24:].view(5, 8)
    state["discriminator.turned"] = torch.randn(3, 4, generator=generator).t()
    state["discriminator.steps"] = torch.tensor(3)
    weights = io.BytesIO()
    torch.save(state, weights)
    with tarfile.open(sys.argv[1], "w:", format=tarfile.GNU_FORMAT) as archive:
        folder = tarfile.TarInfo("./")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in [("./model_config.yaml", CONFIG.encode()), ("./model_weights.ckpt", weights.getvalue())]:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


main()
