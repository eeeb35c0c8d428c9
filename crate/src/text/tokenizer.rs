//! The tokenizer of a checkpoint: text to ids and ids to text. It knows the files, not who wrote the text.

mod added;
mod encode;
mod special;

use std::cell::RefCell;

use serde_json::Value;

use super::components::Normalizers;
use super::decode::{Decoder, Piece};
use super::file;
use super::guard::Prompt;
use super::load;
use super::model::Model;
use super::pair::Frame;
use super::split::Splitters;
use super::tokenizer_error;
use crate::Result;
use crate::util::lists;
use crate::util::map::SortedMap;
use added::{Added, Matcher, added_by_id, merge_added_tokens};
use encode::{Honour, Scratch};
pub use special::SpecialTokens;

/// The bytes of the files that a tokenizer is made of. Only the first must be there.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenizerFiles<'a> {
    /// tokenizer.json
    pub tokenizer: &'a [u8],
    /// tokenizer_config.json
    pub tokenizer_config: Option<&'a [u8]>,
    /// special_tokens_map.json
    pub special_tokens_map: Option<&'a [u8]>,
    /// generation_config.json
    pub generation_config: Option<&'a [u8]>,
}

/// How [`Tokenizer::encode_with_options`] reads a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Puts the tokens around the text that the file asks for (`<s>`, `[CLS]` and `[SEP]`, …).
    pub add_special: bool,
    /// Makes tokens of what is spelled like a special token, as a prompt for fill-in-the-middle needs; otherwise that is
    /// text like any other.
    pub parse_special: bool,
}

/// Turns text into the ids of a checkpoint and back, exactly as its `tokenizers` file says.
///
/// Truncation and padding of the file are not applied: the caller knows the length of the context.
pub struct Tokenizer {
    model: Model,
    matcher: Matcher,
    normalized_matcher: Matcher,
    added_by_id: SortedMap<u32, Added>,
    special_spellings: Vec<String>,
    normalizers: Normalizers,
    splitters: Splitters,
    frame: Frame,
    decoder: Decoder,
    vocab_size: usize,
    id_bound: u32,
    special_tokens: SpecialTokens,
    eos_ids: Vec<u32>,
    scratch: RefCell<Scratch>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size).field("eos_ids", &self.eos_ids).finish()
    }
}

impl Tokenizer {
    /// A tokenizer of tokenizer.json alone.
    pub fn from_json(tokenizer: &[u8]) -> Result<Tokenizer> {
        Tokenizer::load(TokenizerFiles { tokenizer, ..TokenizerFiles::default() })
    }

    /// A tokenizer of all the files that describe it.
    pub fn load(files: TokenizerFiles) -> Result<Tokenizer> {
        let config = json_file(files.tokenizer_config, "tokenizer_config.json")?;
        let map = json_file(files.special_tokens_map, "special_tokens_map.json")?;
        let generation = json_file(files.generation_config, "generation_config.json")?;

        let mut file = file::parse(files.tokenizer)?;
        merge_added_tokens(&mut file.added_tokens, &config)?;
        let decoder = file.decoder.take();
        let kind = file::model_kind(file.model)?;
        let normalizers = Normalizers::load(&file.normalizer)?;
        let splitters = Splitters::load(&file.pre_tokenizer, kind == "BPE")?;
        let frame = Frame::load(&file.post_processor)?;
        let model = load::model(file.model, &kind, splitters.byte_level)?;
        let decoder = Decoder::new(&decoder, splitters.byte_level)?;

        let added_by_id = added_by_id(file.added_tokens, &model.vocab, &normalizers)?;
        let mut special_tokens = SpecialTokens::default();
        special_tokens.fill(&config);
        special_tokens.fill(&map);
        let special_spellings = added_by_id.values().filter(|a| a.special).map(|a| a.content.clone()).collect();
        let mut tokenizer = Tokenizer {
            vocab_size: model.vocab.len() + added_by_id.keys().filter(|id| model.vocab.token(**id).is_none()).count(),
            id_bound: added_by_id.keys().map(|id| id + 1).max().unwrap_or(0).max(model.vocab.id_bound()),
            matcher: Matcher::new(&added_by_id, false),
            normalized_matcher: Matcher::new(&added_by_id, true),
            model,
            added_by_id,
            special_spellings,
            normalizers,
            splitters,
            frame,
            decoder,
            special_tokens,
            eos_ids: Vec::new(),
            scratch: RefCell::default(),
        };
        lists::sort_by(&mut tokenizer.special_spellings, Ord::cmp);
        tokenizer.eos_ids = tokenizer.find_eos_ids(&generation);
        Ok(tokenizer)
    }

    /// The ids that end a text: those of generation_config.json, and the `eos_token`.
    fn find_eos_ids(&self, generation: &Value) -> Vec<u32> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let mut ids: Vec<u32> = match generation.get("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
            Some(one) => id(one).into_iter().collect(),
            None => Vec::new(),
        };
        let eos = self.special_tokens.get("eos_token").and_then(|token| self.token_to_id(token));
        ids.extend(eos.filter(|eos| !ids.contains(eos)));
        ids
    }

    /// Encodes a text that anyone may have written: what looks like a special token in it is plain text.
    ///
    /// `add_special` puts the tokens around it that the file asks for (`<s>`, `[CLS]` and `[SEP]`, …).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_with(text, add_special, Honour::None)
    }

    /// Encodes a text whose author may write special tokens, as transformers does by default.
    pub fn encode_trusted(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_with(text, add_special, Honour::Except(&[]))
    }

    /// Encodes a text with special tokens parsed or not, as the options say.
    pub fn encode_with_options(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let honour = if options.parse_special { Honour::Except(&[]) } else { Honour::None };
        self.encode_with(text, options.add_special, honour)
    }

    /// Encodes a text for an encoder: with the tokens around it, cut so that there are at most `most` of them in all, and
    /// with special tokens honoured as transformers does.
    pub fn encode_text(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        let Frame { prefix, suffix, .. } = &self.frame;
        let mut ids = self.encode_trusted(text, false)?;
        ids.truncate(most.saturating_sub(prefix.len() + suffix.len()));
        Ok(prefix.iter().copied().chain(ids).chain(suffix.iter().copied()).take(most).collect())
    }

    /// How many tokens `encode_text` puts before a text.
    pub fn prefix_len(&self) -> usize {
        self.frame.prefix.len()
    }

    /// Encodes two texts as one sequence of at most `most` tokens, and the tokens' kinds.
    ///
    /// # Errors
    /// `Tokenizer` when the tokenizer has no form for pairs.
    pub fn encode_pair(&self, first: &str, second: &str, most: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        let refuse = || tokenizer_error("tokenizer.json has no form for pairs of texts that can be read");
        let pair = self.frame.pair.as_ref().ok_or_else(refuse)?;
        Ok(pair.join(self.encode_trusted(first, false)?, self.encode_trusted(second, false)?, most))
    }

    /// Encodes a rendered conversation: the template's special tokens are honoured, those in the messages are text.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        self.encode_with(&prompt.text, false, Honour::Except(&prompt.protected))
    }

    /// The text of `ids`. Ids that do not exist are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut decoder = self.decoder.clone();
        let mut out = String::new();
        for piece in ids.iter().filter_map(|id| self.piece(*id, skip_special)) {
            decoder.push(piece, &mut out);
        }
        decoder.finish(&mut out);
        out
    }

    /// A decoder of its own, which nothing was pushed to.
    pub(super) fn decoder(&self) -> Decoder {
        self.decoder.clone()
    }

    /// The id of a token as the vocabulary spells it.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.added_by_id.iter().find(|(_, added)| added.content == token).map(|(id, _)| *id);
        added.or_else(|| self.model.vocab.get(token))
    }

    /// A token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match self.added_by_id.get(&id) {
            Some(added) => Some(added.content.clone()),
            None => self.model.vocab.token(id).map(str::to_owned),
        }
    }

    /// The bytes that a token stands for in the middle of a text; not always whole characters.
    pub fn id_to_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let piece = self.piece(id, false)?;
        Some(self.decoder.bytes_of(piece))
    }

    /// How a special token is written that [`super::StreamDecoder`] skips; nothing for other tokens.
    pub fn special_spelling(&self, id: u32) -> Option<&str> {
        let added = self.added_by_id.get(&id).filter(|added| added.special && added.form == added.content)?;
        Some(&added.content)
    }

    /// Whether `id` is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.added_by_id.get(&id).is_some_and(|added| added.special)
    }

    /// The number of tokens, added ones included. The rows of the embedding may be more.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// One more than the largest id.
    pub fn id_bound(&self) -> u32 {
        self.id_bound
    }

    /// The ids that end a text.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The tokens with a name of their own.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    /// How the special tokens are written, for [`super::ChatTemplate::render`].
    pub fn special_spellings(&self) -> &[String] {
        &self.special_spellings
    }

    /// The token of an id on its way to text.
    pub(super) fn piece(&self, id: u32, skip_special: bool) -> Option<Piece> {
        match self.added_by_id.get(&id) {
            // The reference knows special tokens by their spelling, so one whose decoded form differs is not skipped.
            Some(added) if added.special && skip_special && added.form == added.content => None,
            Some(added) => Some(Piece { text: added.form.clone(), added: true }),
            None => self.model.vocab.token(id).map(|text| Piece { text: text.to_owned(), added: false }),
        }
    }
}

fn json_file(bytes: Option<&[u8]>, name: &str) -> Result<Value> {
    match bytes {
        None => Ok(Value::Null),
        Some(bytes) => serde_json::from_slice(bytes)
            .map_err(|e| crate::Error::Config { file: name.to_owned(), reason: format!("is not JSON: {e}") }),
    }
}
