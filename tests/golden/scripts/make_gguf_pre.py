#!/usr/bin/env python3
"""Ids of every pre-tokenizer of llama.cpp: usage: make_gguf_pre.py LLAMA_VOCAB_CPP OUT   (llama.cpp's src/llama-vocab.cpp;
OUT: tests/golden/text/gguf_pre.json)

Needs tokenizers 0.23. Reads names, flags and expressions out of the source, and cuts each text with the expressions one
after the other (`Split`, isolated). One vocabulary of bytes and one of characters serve all: their merges take no heed of any cut, so that
ids depend on the cuts. A vocabulary is its alphabet, what its merges make, and words that none makes. A text's ids are kept as a 32-bit FNV-1a hash of their 32-bit words.
"""
import collections, json, random, re, sys
import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

source, out = open(sys.argv[1], encoding="utf8").read(), sys.argv[2]

# Names to kinds and flags.
chain = source[source.index('tokenizer_pre == "default"'):source.index("unknown pre-tokenizer type")]
names = {}
for block in re.split(r"\}\s*else if \(", chain):
    kind = re.search(r"pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+)", block)
    for name in re.findall(r'tokenizer_pre == "([^"]+)"', block):
        names[name] = (kind.group(1), "ignore_merges = true" in block)

# Kinds to expressions.
unescape = lambda text: re.sub(r"\\(.)", lambda m: {"n": "\n", "r": "\r", "t": "\t"}.get(m.group(1), m.group(1)), text)
body = source[source.index("switch (vocab.get_pre_type())"):source.index("std::vector<std::string> regex_exprs;")]
kinds, spelled = {}, set()
for block in body.split("break;"):
    block = re.sub(r"^\s*//.*$", "", block, flags=re.M)
    found = [unescape(m) for m in re.findall(r'"((?:[^"\\]|\\.)*)"', block.split("regex_exprs = {", 1)[-1])]
    for kind in re.findall(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):", block) + (["DEFAULT"] if "default:" in block else []):
        kinds[kind] = found
        if "byte_encode = false" in block:
            spelled.add(kind)
# What src/unicode.cpp does by hand in place of an expression.
contraction = "(?:'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE]))?"
kinds["KIMI_K2"] = [
    r"\p{Han}+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})\p{L})+" + contraction
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
]
kinds["AFMOE"][0] = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"

texts = [
    "", " ", "  ", "\n", "\n\n\n", "\t", "\r\n", " \n \n", "   leading", "trailing   ", "a  b   c    d", "tab\tin\tline\n",
    "Hello, world!", "HELLO WORLD", "helloWorld HelloWORLD camelCaseXMLParser", "it's I'VE we'll You'D don't CAN'T o'clock 'tis",
    "1", "12", "123", "1234", "12345", "1234567890", "3.14159e-10", "1,234,567.89", "0x1F 0b101", "x1y22z333", "007 1e3 ½ ² Ⅷ ①②③",
    "٠١٢٣٤٥٦٧٨٩", "१२३४५६", "2024-01-31T23:59:59Z", "a1b2 c33d444", "100%", "$5.00 €7 £9", "#include <stdio.h>\nint main(void) {\n\treturn 0;\n}\n",
    "def f(x):\n    return x**2  # comment\n\n\nclass A:\n        pass\n", "if (a && b || !c) { x += 1; }", "let v: Vec<u8> = vec![0; 16];",
    "SELECT * FROM t WHERE id >= 10;", "https://example.org/a/b?c=d&e=f#g", "user@mail.example", "C:\\path\\to\\file.txt", "a/b//c///d",
    "<|im_start|>user\nhi<|im_end|>\n", "<sentinel:12> IMGIMGABZ IMGIMGABCDEZ", "</s><s>", "[INST] x [/INST]", "{\"k\": [1, 2, {\"z\": null}]}",
    "naïve café ÉCOLE Ñandú ÀÉÎõü straße GROẞ", "e\u0301 cafe\u0301 a\u0308\u0323 n\u0303", "ﬁ ﬂ ǅ ǈ ʰʷ ªº", "Привет, как дела? ПРИВЕТ Мир",
    "Ελληνικά ΑΒΓδεζ ώ", "Հայերեն ԲԱՐԵՎ", "ქართული ენა", "ᏣᎳᎩ", "שלום עולם! אבג", "مرحبا بالعالم، كيف الحال؟", "فارسی ۱۲۳۴ است.", "اردو زبان۔ ہے",
    "नमस्ते दुनिया 2024", "हिन्दी में लिखा हुआ पाठ।", "বাংলা ভাষা ১২৩", "தமிழ் மொழி", "తెలుగు భాష", "ಕನ್ನಡ", "മലയാളം", "ภาษาไทย สวัสดีครับ", "ພາສາລາວ", "ភាសាខ្មែរ",
    "မြန်မာဘာသာ", "བོད་སྐད་", "አማርኛ ቋንቋ", "你好，世界！", "中文字符没有空格123个", "漢字とひらがなとカタカナ。", "ｶﾀｶﾅ ＡＢＣ １２３", "한국어 텍스트입니다.", "ㄱㄴㄷ ㅏㅑ ㄅㄆㄇ",
    "混合mixed文字text１２３abc", "、。〃〄々〆〇〈〉《》", "…—–‘’“”•†‡‰′″", "！＂＃＄％＆＇（）", "😀😃😄", "👨‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷", "✈️ ❤️ ☺", "🤖beep🤖boop", "∑∫√∞≈≠≤≥", "←↑→↓ ★☆ ♠♣♥♦",
    "\u00a0nbsp\u00a0\u00a0x", "\u3000全角\u3000空白", "\u2003em\u2009thin\u200bzero\ufeffbom", "\u200f\u202eRTL\u202c", "\x00\x01\x02\x7f", "\x0b\x0c\x1c\x85x", "a\u2028b\u2029c",
    "!!!???...", "---===___", "\"quoted\" 'single' `back`", "(a) [b] {c} <d>", "a-b_c.d:e;f", "~^|\\`@#", "x=+1;y<=2;z>=3", "~~~ ``` ###\n", "...\n\n\n...", "a\n b\n  c\n   d", "\n\n a\n\n\tb",
    " \t \t x", "x \n", "x\n ", "word\r\rword\r\n\r\nword", "ÅÅÅ ååå", "ÀB cÉD", "iPhone15Pro MacBook2023", "U.S.A. e.g. i.e.", "Mr. O'Brien's", "rock'n'roll", "'dog 'mars 'sat 'veal 'llama 'redo 'MARS 'tap", "a      x", "b       y        z", "'s 't 're", "’s it’s",
    "a" * 40, " " * 37, "\n" * 21, "ab" * 30, "9" * 23, "-" * 33, "ぁ" * 12, "\t" * 9, " a" * 15,
]
rng = random.Random(7)
pools = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "  \n\t\r\u00a0\u3000", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "äöüßÉÈñçŁş",
    "дружбаМИР", "αβγΔΩ", "שלוםعربي", "नमस्तेक्षि", "ภาษาไทย", "你好世界漢字", "ひらカタ", "한국어", "😀👍🏽\u200d❤️", "،।۔。、！…",
]
while len(texts) < 240:
    text = "".join("".join(rng.choice(rng.choice(pools)) for _ in range(1)) * rng.choice([1, 1, 1, 2, 3]) for _ in range(rng.randint(3, 30)))
    texts.append(text)
texts = list(dict.fromkeys(texts))

whole = lambda: Tokenizer(models.BPE())
byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# Pairs of bytes wherever they stand, the frequent ones first, and words that no merge makes.
pairs = collections.Counter()
for text in texts:
    spelled_bytes = "".join(piece for piece, _ in byte_level.pre_tokenize_str(text))
    pairs.update(zip(spelled_bytes, spelled_bytes[1:]))
bytes_merges = [pair for pair, _ in sorted(pairs.items(), key=lambda kv: (-kv[1], kv[0]))][:2400] + [("\u0120\u0120", "\u0120"), ("\u0120\u0120", "\u0120\u0120")]
bytes_words = ["\u0120world", "Hello", "123", "\u0120\u0120\u0120", "return", "\u010a\u010a\u010a", "def", "word", "\u0120d", "naive"]
bytes_alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
bytes_vocab = list(dict.fromkeys(bytes_alphabet + ["".join(m) for m in bytes_merges] + bytes_words))

maker = whole()
maker.normalizer = normalizers.Replace(" ", "\u2581")
maker.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=420, limit_alphabet=160, show_progress=False, max_token_length=6))
state = json.loads(maker.to_str())["model"]
chars_merges = [tuple(m) for m in state["merges"]]
joined = {"".join(m) for m in chars_merges}
letters = sorted(set(state["vocab"]) - joined)
chars_alphabet = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + letters
chars_vocab = list(dict.fromkeys(chars_alphabet + ["".join(m) for m in chars_merges]))


def fnv(ids):
    h = 0x811C9DC5
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{h:08x}"


def ids(kind, ignore):
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in kinds[kind]]
    if kind in spelled:
        model = models.BPE({t: i for i, t in enumerate(chars_vocab)}, chars_merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True, ignore_merges=ignore)
        t = Tokenizer(model)
        if kind != "WHITESPACE":
            t.normalizer = normalizers.Replace(" ", "\u2581")
        t.pre_tokenizer = pre_tokenizers.Sequence(splits)
    else:
        t = Tokenizer(models.BPE({t: i for i, t in enumerate(bytes_vocab)}, bytes_merges, ignore_merges=ignore))
        t.pre_tokenizer = pre_tokenizers.Sequence(splits + [byte_level])
    return "".join(fnv(t.encode(text, add_special_tokens=False).ids) for text in texts)


made = {}
for name, (kind, ignore) in sorted(names.items()):
    made.setdefault(ids(kind if kind in kinds else "DEFAULT", ignore), []).append((name, kind in spelled))
json.dump({
    "made_with": f"tokenizers {tokenizers.__version__}",
    "texts": texts,
    "bytes": {"alphabet": bytes_alphabet, "merges": [" ".join(m) for m in bytes_merges], "words": bytes_words},
    "chars": {"alphabet": chars_alphabet, "merges": [" ".join(m) for m in chars_merges], "words": []},
    "cases": [{"names": [n for n, _ in group], "vocabulary": "chars" if group[0][1] else "bytes", "hashes": hashes} for hashes, group in made.items()],
}, open(out, "w", encoding="utf8"), ensure_ascii=True, separators=(",", ":"))
print(len(names), "names,", len(made), "different,", len(texts), "texts")
