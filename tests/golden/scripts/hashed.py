"""Numbers from a counter-based integer hash, so that other languages can make the same weights bit for bit. Knows no model."""

import numpy as np


def mix(x):
    """lowbias32: a bijection of 32-bit words whose output bits look independent."""
    x = np.asarray(x, dtype=np.uint32)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def seed_of(name):
    """FNV-1a of a name's UTF-8 bytes."""
    h = 0x811C9DC5
    for byte in name.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def uniform(name, count):
    """`count` f32 in [-1, 1), exact multiples of 2^-23: element i is mix(mix(i) ^ seed) >> 8, scaled."""
    h = mix(mix(np.arange(count, dtype=np.uint32)) ^ np.uint32(seed_of(name)))
    return (h >> np.uint32(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1)


def tensor(name, shape, scale, offset=0.0):
    """offset + scale * uniform, each step rounded to f32."""
    return (np.float32(offset) + np.float32(scale) * uniform(name, int(np.prod(shape)))).reshape(shape)
