#!/usr/bin/env python3
"""Writes the files of this folder from a folder of tokenizers and one of recorded chat templates.

    pip install tokenizers==0.23.3
    make.py TOKENIZERS TEMPLATES

TOKENIZERS/<name>/tokenizer.json.xz are the files to record; TEMPLATES/<name>.jinja and <name>.json are copied.
Only files under licences that allow it are taken: see the table in README.md.
"""

import gzip
import json
import lzma
import pathlib
import sys

from tokenizers import Tokenizer

TOKENIZERS = ["gpt2", "minilm", "moonshine", "phi2", "t5-small"]
TEMPLATES = [
    "chatml-community", "deepseek-v3.1", "gpt-oss", "granite3.3", "granite4.0", "hermes2-pro-tool", "mistral-nemo",
    "ministral-3", "phi4-mini", "qwen2.5", "qwen3-coder", "qwen3", "smollm3", "zephyr-community",
]

HERE = pathlib.Path(__file__).parent

# Beside the shared strings: more of every kind, so that the committed set has over 200.
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈 flag", "🇳🇴🇯🇵", "x😀y😀z", "☃️❄", "👩🏿‍🚀 in space", "🤷‍♂️?!", "1️⃣2️⃣3️⃣", "🫠🫡🪿", "🦀🦀🦀🦀🦀🦀🦀🦀"]
CJK = ["你好，世界", "日本語のテキストです。", "한국어 문장입니다.", "汉字漢字かなカナ", "㍿㊗㊙", "𠮷野家", "「引用」『二重』", "１２３ＡＢＣ", "中文 English 混合", "ｶﾞｷﾞｸﾞ", "가각간갇", "吃了吗？吃了。"]
RTL = ["שלום עולם", "مرحبا بالعالم", "العربية ١٢٣", "עִבְרִית עם ניקוד", "فارسی و اردو", "\u200fRTL mark\u200e", "a שלום b", "\u202bembedded\u202c", "ܫܠܡܐ", "ދިވެހި"]
CODE = ["def f(x):\n    return x ** 2\n", "int main(void) { return 0; }", "<div class=\"a\">&amp;</div>", "SELECT * FROM t WHERE a='b';", "\tif (a && b) {\n\t\tc++;\n\t}", "let x = &mut *y?;", "#!/bin/sh\necho \"$HOME\"\n", "{\"a\": [1, 2.5e-3, null]}", "a->b::c<d>>e", "https://example.org/a?b=c&d=%20#e", "x=1;y=2;;;", "/* c */ // d", "f\"{x!r:>10}\"", "`code` **bold** _it_", "C:\\path\\file.txt", "for(;;){}", "λx. x x", "a\\nb\\tc", "{{ jinja }} {% if %}"]
CONTROL = ["\x00", "a\x00b", "\x01\x02\x1b[31mred\x1b[0m", "\x7f", "\r\n", "\n\n\n", "\t\t", "a\r\nb\rc\nd", "\u2028x\u2029y", "\x0b\x0c", "\ufeffbom", "a\u200bb\u200cc\u200dd", "\u00a0nbsp\u3000wide", "\x85next", "\ufffd", "\ufffdx", "x\ufffd", "\U0010ffff", "\ue000private", "  \n  \n", " ", "          ten"]
SPECIALS = ["<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "<|im_start|>system\nevil<|im_end|>", "<s>", "</s>", "<s>x</s>", "<unk>", "[CLS] a [SEP]", "[MASK]", "[PAD][UNK]", "<pad>", "<extra_id_0>", "<|endof", "text|>", "<<ST_1>>", "<|begin_of_text|>", "<bos>", "[INST] x [/INST]", "< s >", "<|ENDOFTEXT|>", "<0x0A>", "<0xE5><0x8F>", "▁x", "Ġx", "##ing"]
WORDS = ["", "a", "A", "hello world", "Hello World", "don't won't I'll we've", "DON'T", "ﬁﬂ ligatures ½ ² Ⅷ", "naïve café", "e\u0301 vs é", "ẞß ſ", "İstanbul ıI", "Ελληνικά", "Русский язык", "हिन्दी में", "ภาษาไทย", "Tiếng Việt", "ქართული", "አማርኛ", "1234567890", "3.14159", "1,000,000", "0x1F", "٣٫١٤", "a" * 200, "ab" * 60, "!?!?!?", "...", "-- --- –—", "\"quotes\" 'single' “curly”", "mid  double   triple", " leading", "trailing ", "x_y_z", "CamelCaseWordsHere", "e.g. i.e. etc.", "50% off!", "$5.00 €10 £3 ¥7", "a+b=c", "@user #tag", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘"]


def stream(tokenizer, ids):
    """The pieces of a stream: nothing while the text ends in half a character, the rest with the last id."""
    pieces, shown = [], ""
    for n in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:n], skip_special_tokens=True)
        if text.endswith("\ufffd") and n < len(ids):
            continue
        if not text.startswith(shown):
            return None
        if text != shown:
            pieces.append(text[len(shown):])
        shown = text
    return pieces


def record(source, texts):
    tokenizer = Tokenizer.from_str(source)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cases = []
    for text in texts:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text, add_special_tokens=True).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({
            "text": text, "ids": ids, "ids_special": special, "ids_plain": plain,
            "decoded": tokenizer.decode(ids, skip_special_tokens=True),
            "decoded_special": tokenizer.decode(special, skip_special_tokens=False),
            "stream": stream(tokenizer, ids),
        })
    return {"vocab_size": tokenizer.get_vocab_size(with_added_tokens=True), "cases": cases}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0) as out:
        out.write(data)


def main():
    tokenizers, templates = map(pathlib.Path, sys.argv[1:3])
    texts = json.loads((tokenizers / "strings_shared.json").read_text())
    texts = [t if isinstance(t, str) else t["text"] for t in texts]
    texts += EMOJI + CJK + RTL + CODE + CONTROL + SPECIALS + WORDS
    texts = list(dict.fromkeys(texts))
    for name in TOKENIZERS:
        source = lzma.decompress((tokenizers / name / "tokenizer.json.xz").read_bytes())
        compact = json.dumps(json.loads(source), ensure_ascii=False, separators=(",", ":"))
        write(HERE / "tokenizers" / name / "tokenizer.json.gz", compact.encode())
        recording = json.dumps(record(compact, texts), ensure_ascii=False, separators=(",", ":"))
        write(HERE / "tokenizers" / name / "strings.json.gz", recording.encode())
    for name in TEMPLATES:
        for ext in ("jinja", "json"):
            write(HERE / "templates" / f"{name}.{ext}.gz", (templates / f"{name}.{ext}").read_bytes())
    print(len(texts), "strings")


if __name__ == "__main__":
    main()
