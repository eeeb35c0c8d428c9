"""Writes crate/src/text/regex/scripts.bin: the characters of each script that `\\p{Name}` names, as the regular expressions
of tokenizers 0.23 have them. Prints each script's number of characters and the sum of their codes, for the test.

Each script: the length of its name and the name, the number of ranges, then for each range the distance from the end of the
previous one and its length less one. Numbers have 7 bits a byte, lowest first.

usage: make_regex_scripts.py
"""

import os

from tokenizers import Regex, pre_tokenizers

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "crate", "src", "text", "regex", "scripts.bin")
# Han is in the tables of the native splitters.
NAMES = """Arabic Armenian Bengali Bopomofo Cherokee Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Hangul Hebrew
Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Syriac Tamil Telugu Thaana Thai Tibetan""".split()
TEXT = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


def number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def main():
    out = b""
    for name in NAMES:
        others = pre_tokenizers.Split(Regex("[^\\p{%s}]+" % name), "removed")
        codes = sorted(ord(char) for word, _ in others.pre_tokenize_str(TEXT) for char in word)
        ranges = []
        for code in codes:
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
        out += number(len(name)) + name.encode() + number(len(ranges))
        end = 0
        for first, last in ranges:
            out += number(first - end) + number(last - first)
            end = last
        print(f'("{name}", {len(codes)}, {sum(codes)}),')
    open(OUT, "wb").write(out)
    print(len(out), "bytes")


main()
