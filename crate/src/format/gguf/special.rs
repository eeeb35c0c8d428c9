//! Token properties that llama.cpp derives beyond the file's metadata: stop tokens, token types
//! corrected by spelling, and whitespace stripping. Reference: llama.cpp `src/llama-vocab.cpp`.

use super::{Gguf, MetadataValue as Meta};
use crate::text::fim;

pub(super) const TYPE_NORMAL: i64 = 1;
pub(super) const TYPE_UNKNOWN: i64 = 2;
pub(super) const TYPE_CONTROL: i64 = 3;
pub(super) const TYPE_USER_DEFINED: i64 = 4;

/// Tokens that end a generation, by spelling.
const STOP_SPELLINGS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
];

/// Fill-in-the-middle tokens by key and spelling. Those of the second half also end a generation.
const FIM_SPELLINGS: [(&str, &[&str]); 6] = [
    ("fim_pre_token_id", fim::FIM_PREFIX_SPELLINGS),
    ("fim_suf_token_id", fim::FIM_SUFFIX_SPELLINGS),
    ("fim_mid_token_id", fim::FIM_MIDDLE_SPELLINGS),
    (
        "fim_pad_token_id",
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        "fim_rep_token_id",
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    ("fim_sep_token_id", &["<|file_sep|>"]),
];

/// The special tokens of a vocabulary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GgufSpecialTokens {
    /// The type of each token, as in `tokenizer.ggml.token_type`.
    pub types: Vec<i64>,
    /// The tokens that end a generation, end-of-sequence first.
    pub stops: Vec<u32>,
}

impl GgufSpecialTokens {
    /// Derives the special tokens of a file; `eos` is the end-of-sequence token.
    pub(super) fn derive_from(
        gguf: &Gguf,
        tokens: &[String],
        eos: Option<usize>,
    ) -> GgufSpecialTokens {
        let listed = match gguf.metadata.get("tokenizer.ggml.token_type") {
            Some(Meta::Ints(kinds)) => kinds.as_slice(),
            _ => &[],
        };
        let kinds = (0..tokens.len())
            .map(|id| listed.get(id).copied().unwrap_or(TYPE_NORMAL))
            .collect();
        let mut special = GgufSpecialTokens {
            types: kinds,
            stops: Vec::new(),
        };
        let known = |key: &str| {
            let id = usize::try_from(gguf.int(&format!("tokenizer.ggml.{key}"))?).ok()?;
            (id < tokens.len()).then_some(id)
        };
        let ids = [eos, known("eot_token_id"), known("eom_token_id")];
        ids.into_iter()
            .flatten()
            .for_each(|id| special.add_stop(id));
        for (index, (key, spellings)) in FIM_SPELLINGS.into_iter().enumerate() {
            let by_text = || {
                tokens
                    .iter()
                    .position(|token| spellings.contains(&token.as_str()))
            };
            let named = known(key);
            if let (None, Some(id)) = (named, by_text()) {
                special.types[id] = TYPE_CONTROL;
            }
            if let Some(id) = named.or_else(by_text).filter(|_| index >= 3) {
                special.add_stop(id);
            }
        }
        for (id, token) in tokens.iter().enumerate() {
            // Unless it is a control token, `</s>` is an HTML tag: the end of strikethrough in
            // Gemma 3.
            let tag = token == "</s>" && special.types[id] != TYPE_CONTROL;
            if STOP_SPELLINGS.contains(&token.as_str()) && !tag {
                special.types[id] = TYPE_CONTROL;
                special.add_stop(id);
            }
        }
        special.remove_false_stops(tokens);
        special
    }

    fn add_stop(&mut self, id: usize) {
        let id = id as u32;
        if !self.stops.contains(&id) {
            self.stops.push(id);
        }
    }

    /// Removes spellings that end a turn in one vocabulary but only a part of it in another.
    fn remove_false_stops(&mut self, tokens: &[String]) {
        let text = |id: &u32| {
            tokens
                .get(*id as usize)
                .map(String::as_str)
                .unwrap_or_default()
        };
        let has = |stops: &[u32], spelling: &str| stops.iter().any(|id| text(id) == spelling);
        let called = has(&self.stops, "<|call|>") || has(&self.stops, "<|calls|>");
        if called && (has(&self.stops, "<|return|>") || has(&self.stops, "<|flush|>")) {
            // In Harmony it ends one message of several.
            self.stops.retain(|id| text(id) != "<|end|>");
        }
        if has(&self.stops, "<|tool_response>") || has(&self.stops, "<|plamo:eos|>") {
            self.stops.retain(|id| text(id) != "</s>");
            for (id, _) in tokens
                .iter()
                .enumerate()
                .filter(|(_, token)| *token == "</s>")
            {
                self.types[id] = TYPE_NORMAL;
            }
        }
    }

    /// Whether the token is matched in the input before the rest is split.
    pub(super) fn is_added(&self, id: usize) -> bool {
        matches!(
            self.types.get(id),
            Some(&(TYPE_UNKNOWN | TYPE_CONTROL | TYPE_USER_DEFINED))
        )
    }

    /// Whether the token is a control token, not text.
    pub(super) fn is_special(&self, id: usize) -> bool {
        matches!(self.types.get(id), Some(&(TYPE_UNKNOWN | TYPE_CONTROL)))
    }
}

/// Whether a token strips whitespace on its left and right. Files do not record this; it follows
/// from model names.
pub(super) fn strips_whitespace(gguf: &Gguf, token: &str) -> [bool; 2] {
    let text = |key: &str| gguf.text(key).unwrap_or_default();
    let pre = text("tokenizer.ggml.pre");
    let name = text("general.name").to_lowercase();
    let among = |all: &[&str], of: &str| all.iter().any(|part| of.contains(part));
    if among(&["jina-v2-de", "jina-v2-es", "jina-v2-code"], pre)
        || among(&["nomic-bert-moe", "jina-bert-v3"], gguf.architecture())
    {
        [token == "<mask>", false]
    } else if among(&["phi-3", "phi3"], &name) {
        [false, !matches!(token, "<unk>" | "<s>" | "<|endoftext|>")]
    } else {
        [token == "[MASK]" && name.contains("modern-bert"), false]
    }
}
