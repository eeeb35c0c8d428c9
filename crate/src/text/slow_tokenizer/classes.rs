//! Tokenizer classes of transformers: their named tokens, and which are converted.

/// Named tokens of GPT2's class.
pub const GPT2_DEFAULTS: &[(&str, &str)] = &[
    ("unk_token", "<|endoftext|>"),
    ("bos_token", "<|endoftext|>"),
    ("eos_token", "<|endoftext|>"),
];
/// Named tokens of QWEN's class.
pub const QWEN_DEFAULTS: &[(&str, &str)] = &[
    ("unk_token", "<|endoftext|>"),
    ("eos_token", "<|endoftext|>"),
    ("pad_token", "<|endoftext|>"),
];
/// Named tokens of GPT_NEOX's class.
pub const GPT_NEOX_DEFAULTS: &[(&str, &str)] = &[
    ("unk_token", "<|endoftext|>"),
    ("bos_token", "<|endoftext|>"),
    ("eos_token", "<|endoftext|>"),
    ("pad_token", "<|padding|>"),
];
/// Named tokens of ROBERTA's class.
pub const ROBERTA_DEFAULTS: &[(&str, &str)] = &[
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
    ("sep_token", "</s>"),
    ("cls_token", "<s>"),
    ("unk_token", "<unk>"),
    ("pad_token", "<pad>"),
    ("mask_token", "<mask>"),
];
/// Named tokens of BERT's class.
pub const BERT_DEFAULTS: &[(&str, &str)] = &[
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];
/// Named tokens of DEBERTA's class.
pub const DEBERTA_DEFAULTS: &[(&str, &str)] = &[
    ("bos_token", "[CLS]"),
    ("eos_token", "[SEP]"),
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];
/// Named tokens of LLAMA's class.
pub const LLAMA_DEFAULTS: &[(&str, &str)] = &[
    ("unk_token", "<unk>"),
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
];
/// Named tokens of GEMMA's class.
pub const GEMMA_DEFAULTS: &[(&str, &str)] = &[
    ("unk_token", "<unk>"),
    ("bos_token", "<bos>"),
    ("eos_token", "<eos>"),
    ("pad_token", "<pad>"),
    ("mask_token", "<mask>"),
];
/// Named tokens of T5's class.
pub const T5_DEFAULTS: &[(&str, &str)] = &[
    ("eos_token", "</s>"),
    ("unk_token", "<unk>"),
    ("pad_token", "<pad>"),
];

/// Classes whose SentencePiece models are converted by the rules of the class.
pub const SENTENCEPIECE_CLASSES: [&str; 7] = [
    "CamembertTokenizer",
    "CodeLlamaTokenizer",
    "DebertaV2Tokenizer",
    "GemmaTokenizer",
    "LlamaTokenizer",
    "T5Tokenizer",
    "XLMRobertaTokenizer",
];

/// Classes of transformers, and types of models, with rules of their own.
pub const OWN_RULES: [&str; 34] = [
    "albert",
    "barthez",
    "bartpho",
    "bertgeneration",
    "bigbird",
    "chameleon",
    "cpm",
    "erniem",
    "fnet",
    "gptsw3",
    "layoutxlm",
    "m2m100",
    "marian",
    "mbart",
    "mbart50",
    "mluke",
    "nllb",
    "nllbmoe",
    "pegasus",
    "pegasusx",
    "plbart",
    "reformer",
    "rembert",
    "seamlessm4t",
    "seamlessm4tv2",
    "siglip",
    "speech2text",
    "speecht5",
    "udop",
    "xglm",
    "xlmprophetnet",
    "xlnet",
    "xmod",
    "bigbirdpegasus",
];

/// Whether a tokenizer class, or a model's type, has ids or normalization that a SentencePiece model
/// does not describe, and which are not implemented.
pub fn has_own_rules(class: &str) -> bool {
    let name = class.strip_suffix("Tokenizer").unwrap_or(class);
    let name = name.to_ascii_lowercase().replace(['-', '_'], "");
    OWN_RULES.contains(&name.as_str())
}
