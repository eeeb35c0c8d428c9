//! What llama.cpp finds out about tokens beyond what a file says of them: the tokens that end a generation, kinds that their
//! spellings correct, and spaces beside them. Reference: llama.cpp `src/llama-vocab.cpp`.

use super::{Gguf, Value as Meta};

pub(super) const NORMAL: i64 = 1;
pub(super) const UNKNOWN: i64 = 2;
pub(super) const CONTROL: i64 = 3;
pub(super) const USER_DEFINED: i64 = 4;

/// Tokens that end a generation by their spelling.
const ENDS: [&str; 22] = [
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

/// Tokens around what is to be filled in, by key and spelling: those of the second half end a generation too.
const FILL_IN: [(&str, &[&str]); 6] = [
    (
        "fim_pre_token_id",
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
            "<PRE>",
            "\u{2581}<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        "fim_suf_token_id",
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
            "<SUF>",
            "\u{2581}<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        "fim_mid_token_id",
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
            "<MID>",
            "\u{2581}<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    ("fim_pad_token_id", &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    ("fim_rep_token_id", &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    ("fim_sep_token_id", &["<|file_sep|>"]),
];

/// The tokens of a vocabulary that are more than text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Special {
    /// The kind of each token, as `tokenizer.ggml.token_type` counts them.
    pub kinds: Vec<i64>,
    /// The tokens that end a generation, that of the sequence first.
    pub stops: Vec<u32>,
}

impl Special {
    /// Of a file with these tokens; `eos` ends a sequence.
    pub(super) fn of(gguf: &Gguf, tokens: &[String], eos: Option<usize>) -> Special {
        let listed = match gguf.metadata.get("tokenizer.ggml.token_type") {
            Some(Meta::Ints(kinds)) => kinds.as_slice(),
            _ => &[],
        };
        let kinds = (0..tokens.len()).map(|id| listed.get(id).copied().unwrap_or(NORMAL)).collect();
        let mut special = Special { kinds, stops: Vec::new() };
        let known = |key: &str| {
            let id = usize::try_from(gguf.int(&format!("tokenizer.ggml.{key}"))?).ok()?;
            (id < tokens.len()).then_some(id)
        };
        let ids = [eos, known("eot_token_id"), known("eom_token_id")];
        ids.into_iter().flatten().for_each(|id| special.stop(id));
        for (index, (key, spellings)) in FILL_IN.into_iter().enumerate() {
            let by_text = || tokens.iter().position(|token| spellings.contains(&token.as_str()));
            let named = known(key);
            if let (None, Some(id)) = (named, by_text()) {
                special.kinds[id] = CONTROL;
            }
            if let Some(id) = named.or_else(by_text).filter(|_| index >= 3) {
                special.stop(id);
            }
        }
        for (id, token) in tokens.iter().enumerate() {
            // Where it is no control token by the file, it is the end of what is struck out: Gemma 3 has it among its tags.
            let tag = token == "</s>" && special.kinds[id] != CONTROL;
            if ENDS.contains(&token.as_str()) && !tag {
                special.kinds[id] = CONTROL;
                special.stop(id);
            }
        }
        special.except(tokens);
        special
    }

    fn stop(&mut self, id: usize) {
        let id = id as u32;
        if !self.stops.contains(&id) {
            self.stops.push(id);
        }
    }

    /// Spellings that end a turn in one vocabulary and a part of it in another.
    fn except(&mut self, tokens: &[String]) {
        let text = |id: &u32| tokens.get(*id as usize).map(String::as_str).unwrap_or_default();
        let has = |stops: &[u32], spelling: &str| stops.iter().any(|id| text(id) == spelling);
        let called = has(&self.stops, "<|call|>") || has(&self.stops, "<|calls|>");
        if called && (has(&self.stops, "<|return|>") || has(&self.stops, "<|flush|>")) {
            // Harmony ends a message of several with it.
            self.stops.retain(|id| text(id) != "<|end|>");
        }
        if has(&self.stops, "<|tool_response>") || has(&self.stops, "<|plamo:eos|>") {
            self.stops.retain(|id| text(id) != "</s>");
            for (id, _) in tokens.iter().enumerate().filter(|(_, token)| *token == "</s>") {
                self.kinds[id] = NORMAL;
            }
        }
    }

    /// Whether the token is taken out of a text before the rest is cut.
    pub(super) fn is_added(&self, id: usize) -> bool {
        matches!(self.kinds.get(id), Some(&(UNKNOWN | CONTROL | USER_DEFINED)))
    }

    /// Whether the token is no text.
    pub(super) fn is_special(&self, id: usize) -> bool {
        matches!(self.kinds.get(id), Some(&(UNKNOWN | CONTROL)))
    }
}

/// Whether a token swallows the spaces before it and behind it, which files do not say: by the names of models.
pub(super) fn strips(gguf: &Gguf, token: &str) -> [bool; 2] {
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
