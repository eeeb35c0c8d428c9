#!/usr/bin/env python3
"""Writes a GGUF file with every tensor in f32, so that `run --weights q4` has something to quantize.

usage: dequantize_gguf.py FROM.gguf TO.gguf        needs numpy and gguf (pip)
"""
import sys

import gguf
import numpy as np
from gguf.quants import dequantize

SKIPPED = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def main(source, target):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith(SKIPPED):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub)
    for tensor in reader.tensors:
        shape = tuple(reversed(tensor.shape.tolist()))
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
