//! llama.cpp's pre-tokenizers by `tokenizer.ggml.pre`: the regexes that split text before BPE
//! merges, and the other settings that the name implies. Reference: llama.cpp
//! `src/llama-vocab.cpp`, `src/unicode.cpp`.

/// How the tokens of a vocabulary encode text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenAlphabet {
    /// GPT-2's byte-level alphabet: one character per byte.
    Bytes,
    /// Unicode characters, with U+2581 for a space.
    Spaces,
    /// Unicode characters.
    Plain,
}

/// A pre-tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GgufPreTokenizer {
    /// Regexes applied in order to the segments of the previous one: matches and gaps become
    /// segments.
    pub regexes: Vec<String>,
    /// Whether a segment that is a token skips the merges.
    pub ignore_merges: bool,
    /// Whether the beginning-of-sequence token is added by default.
    pub add_bos: bool,
    /// Whether a separator is added between two sequences by default.
    pub add_sep: bool,
    /// How tokens encode text.
    pub alphabet: TokenAlphabet,
}

/// GPT-2's regex. llama.cpp omits the last branch, which matches what would be a gap.
pub(super) const GPT2_REGEX: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// One digit.
pub(super) const DIGIT_REGEX: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}{1,3}";
/// Must equal the pattern of the tokenizer's specialized splitter.
const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const CONTRACTION: &str = "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])";
const WORD: &str = r"[^\r\n\p{L}\p{N}]?";
const SYMBOLS: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*";
const BLANKS: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
const LINES: &str = r"[^\n]+|[\n]+";
const CJK: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const PUNCTUATED: &str =
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##;
const SENTENCE: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// Scripts without spaces between words, as AFMoE splits them.
const UNSPACED: &str = "[一-\u{9FFF}㐀-\u{4DBF}\u{8C48}-\u{FAFF}\u{3040}-ゟ゠-ヿ\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\
    \u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+";
/// Youtu's first split: Hangul, CJK punctuation, Bopomofo, ideographs and kana.
const YOUTU: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[一-龥\u{3040}-ゟ゠-ヿ]+";
/// Cased letters of the scripts that DeepSeek LLM lists.
const CASED: &str = "A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\
    \u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\
    \u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\
    \u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\
    \u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\
    \u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\
    \u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\
    \u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\
    \u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\
    \u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\
    \u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\
    \u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\
    \u{118A0}-\u{118DF}\u{1E900}-\u{1E943}";

/// The cl100k regex with the given pattern for digits.
fn cl100k(digits: &str) -> String {
    format!(r"{CONTRACTIONS}|{WORD}\p{{L}}+|{digits}|{SYMBOLS}|{BLANKS}")
}

/// Words that end where their case changes, followed by `ending`.
fn split_at_case(upper: &str, lower: &str, ending: &str, digits: &str) -> String {
    let words = format!("{WORD}{upper}*{lower}+{ending}|{WORD}{upper}+{lower}*{ending}");
    format!(r"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS}")
}

/// llama.cpp distinguishes case by ASCII only: any other letter counts as both.
fn split_at_ascii_case(letters: &str, ending: &str, digits: &str) -> String {
    let not = |range: &str| format!("(?:(?={letters})[^{range}])");
    split_at_case(&not("a-z"), &not("A-Z"), ending, digits)
}

/// Words that end where their case changes, by Unicode classes.
fn split_at_unicode_case(digits: &str) -> String {
    let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";

    split_at_case(upper, lower, &format!("(?:{CONTRACTION})?"), digits)
}

fn byte_level<const N: usize>(splits: [&str; N]) -> GgufPreTokenizer {
    let splits = splits.iter().map(|s| (*s).to_string()).collect();
    GgufPreTokenizer {
        regexes: splits,
        ignore_merges: false,
        add_bos: false,
        add_sep: false,
        alphabet: TokenAlphabet::Bytes,
    }
}

/// The pre-tokenizer that llama.cpp uses for a name; `None` for an unknown name.
pub(super) fn pre_tokenizer(name: &str) -> Option<GgufPreTokenizer> {
    let ending = || format!("(?:{CONTRACTION})?");
    Some(match name {
        "default" => byte_level([
            r"[\p{P}\$\+<=>\^~\|]+",
            GPT2_REGEX,
            r"\p{N}+",
            "[0-9][0-9][0-9]",
        ]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" => GgufPreTokenizer {
            ignore_merges: true,
            add_bos: true,
            ..byte_level([&cl100k(DIGITS)])
        },
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => byte_level([&cl100k(DIGITS)]),
        "glm4" | "glm5" => GgufPreTokenizer {
            ignore_merges: true,
            ..byte_level([&cl100k(DIGITS)])
        },
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => byte_level([&cl100k(DIGIT_REGEX)]),
        "qwen35" => byte_level([&format!(
            r"{CONTRACTION}|{WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANKS}"
        )]),
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de"
        | "a.x-4.0" | "mellum" | "modern-bert" | "mpt" | "olmo" | "jais" | "exaone4"
        | "trillion" | "granite-docling" => byte_level([GPT2_REGEX]),
        "jina-v1-en" | "jina-v2-code" | "roberta-bpe" => GgufPreTokenizer {
            add_sep: true,
            ..byte_level([GPT2_REGEX])
        },
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => byte_level([DIGIT_REGEX, GPT2_REGEX]),
        "falcon" => byte_level([r"[\p{P}\$\+<=>\^~\|`]+", GPT2_REGEX, "[0-9][0-9][0-9]"]),
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => {
            byte_level([&split_at_ascii_case(r"\p{L}", &ending(), DIGITS)])
        }
        "granite-embed-multi-97m" => GgufPreTokenizer {
            ignore_merges: true,
            ..byte_level([&split_at_ascii_case(r"[\p{L}\p{M}]", &ending(), DIGITS)])
        },
        "tekken" => GgufPreTokenizer {
            ignore_merges: true,
            add_bos: true,
            ..byte_level([&split_at_ascii_case(r"\p{L}", "", DIGIT_REGEX)])
        },
        // After a digit, a word ends where no word character follows.
        "tiny_aya" | "cohere2moe" => byte_level([
            r"\d{1,3}(?=(?:\d{3})*(?!\w))",
            &split_at_unicode_case(DIGITS),
        ]),
        "youtu" => GgufPreTokenizer {
            ignore_merges: true,
            ..byte_level([YOUTU, &split_at_unicode_case(DIGIT_REGEX)])
        },
        "deepseek-llm" => byte_level([
            "[\r\n]",
            &format!(r"\s?[{CASED}]+"),
            r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-\uD7FF]+",
            r"\p{N}+",
        ]),
        "deepseek-coder" => byte_level([
            "[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            r"[一-龥ࠀ-一가-\uD7FF]+",
            DIGIT_REGEX,
        ]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => byte_level([
            DIGITS,
            CJK,
            &format!(r"{PUNCTUATED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}"),
        ]),
        "spark2_5" => byte_level([
            DIGITS,
            CJK,
            &format!(r"{PUNCTUATED}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"),
            DIGIT_REGEX,
        ]),
        // Digits in groups of three, counted from the end.
        "afmoe" => byte_level([
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            UNSPACED,
            &format!(r"{PUNCTUATED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}"),
        ]),
        "superbpe" => byte_level([r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
        "poro-chat" | "bloom" | "gpt3-finnish" => byte_level([SENTENCE]),
        "viking" => byte_level([SENTENCE, DIGIT_REGEX]),
        "jais-2" => {
            let cascade: String = [512, 256, 128, 64, 32, 16, 8, 4]
                .map(|n| format!(r"\s{{{n}}}(?!\S)|"))
                .concat();
            byte_level([&format!(
                r"{CONTRACTION}|{WORD}\p{{L}}+|{DIGITS}|{SYMBOLS}|\s*[\r\n]+|{cascade}\s{{1,2}}(?!\S)|\s"
            )])
        }
        "chameleon" => GgufPreTokenizer {
            add_bos: true,
            ..byte_level([
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                DIGIT_REGEX,
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2_REGEX,
            ])
        },
        // Unlike the model's own regex, words are not split at case changes.
        "kimi-k2" => byte_level([&format!(
            r"\p{{Han}}+|{WORD}(?:(?!\p{{Han}})\p{{L}})+(?:{CONTRACTION})?|{DIGITS}|{SYMBOLS}|{BLANKS}"
        )]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => byte_level([&format!(
            r"{CONTRACTION}|{WORD}\p{{L}}+|\p{{N}}|{SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+"
        )]),
        "seed-coder" => byte_level([&format!(
            r"{CONTRACTION}|{WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{BLANKS}"
        )]),
        "ufakzeka" => byte_level([&format!(r"{WORD}\p{{L}}+|\p{{N}}|{SYMBOLS}|{BLANKS}")]),
        "laguna" => byte_level([LINES, &cl100k(DIGIT_REGEX)]),
        "minicpm5" => GgufPreTokenizer {
            ignore_merges: true,
            ..byte_level([DIGITS, &cl100k(r"\p{N}+")])
        },
        "exaone-moe" => byte_level([&format!(
            r"{CONTRACTION}|{WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        )]),
        "gemma4" | "granite-embed-multi-311m" => GgufPreTokenizer {
            add_bos: true,
            alphabet: TokenAlphabet::Spaces,
            ..byte_level([LINES])
        },
        "sarvam-moe" => GgufPreTokenizer {
            alphabet: TokenAlphabet::Spaces,
            ..byte_level([LINES])
        },
        "whitespace" => GgufPreTokenizer {
            alphabet: TokenAlphabet::Plain,
            ..byte_level([r"\S+"])
        },
        _ => return None,
    })
}
