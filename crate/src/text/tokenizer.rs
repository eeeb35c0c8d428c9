//! The tokenizer of a checkpoint: text to ids, and ids to text.

mod added;
mod encode;
pub(crate) mod fim;
mod special;
mod stream;

use std::cell::RefCell;

use serde_json::Value;

use super::class_settings::apply_class_settings;
use super::compact;
use super::components::Normalizers;
use super::decode::{TokenDecoder, TokenPiece};
use super::model::{TokenizerModel, Vocab};
use super::model_loader;
use super::post_processor::SequenceTemplate;
use super::special_token_guard::RenderedPrompt;
use super::split::PreTokenizers;
use super::tokenizer_error;
use super::tokenizer_file::{self, TokenizerFile};
use crate::Result;
use crate::util::limits::MAX_EOS_TOKENS;
use crate::util::map::SortedMap;
use crate::util::sort;
pub(crate) use added::MARKS_SPECIAL_TOKENS;
use added::{AddedToken, AddedTokenMatcher, added_by_id, merge_added_tokens};
use encode::{EncodeScratch, SpecialTokenPolicy};
pub use fim::FimTokens;
pub use special::SpecialTokens;
use special::apply_converted_tokens;
pub(super) use special::{SPECIAL_TOKEN_NAMES, apply_special_tokens_map, spelling};
pub use stream::StreamDecoder;

/// The files of a tokenizer. Only tokenizer.json is required.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenizerFiles<'a> {
    /// tokenizer.json, or the compact form that [`Tokenizer::load_and_compact`] made of it.
    pub tokenizer: &'a [u8],
    /// tokenizer_config.json
    pub tokenizer_config: Option<&'a [u8]>,
    /// special_tokens_map.json
    pub special_tokens_map: Option<&'a [u8]>,
    /// generation_config.json
    pub generation_config: Option<&'a [u8]>,
}

/// Options of [`Tokenizer::encode_with_options`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Adds the special tokens that the file puts around text (`<s>`, `[CLS]` and `[SEP]`, …).
    pub add_special: bool,
    /// Encodes spellings of special tokens as special tokens, as fill-in-the-middle prompts need.
    /// Otherwise they are plain text.
    pub parse_special: bool,
}

/// Converts text to the ids of a checkpoint and back, exactly as tokenizer.json specifies.
///
/// Does not apply the file's truncation and padding: the caller knows the context length.
pub struct Tokenizer {
    model: TokenizerModel,
    matcher: AddedTokenMatcher,
    normalized_matcher: AddedTokenMatcher,
    added_by_id: SortedMap<u32, AddedToken>,
    special_spellings: Vec<String>,
    normalizers: Normalizers,
    pre_tokenizers: PreTokenizers,
    sequence_template: SequenceTemplate,
    decoder: TokenDecoder,
    vocab_size: usize,
    id_bound: u32,
    special_tokens: SpecialTokens,
    eos_ids: Vec<u32>,
    scratch: RefCell<EncodeScratch>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("eos_ids", &self.eos_ids)
            .finish()
    }
}

impl Tokenizer {
    /// Creates a tokenizer from tokenizer.json alone.
    pub fn from_json(tokenizer: &[u8]) -> Result<Tokenizer> {
        Tokenizer::load(TokenizerFiles {
            tokenizer,
            ..TokenizerFiles::default()
        })
    }

    /// Creates a tokenizer from all its files.
    ///
    /// # Errors
    /// `Tokenizer` if a file is not valid or needs something that is not supported.
    pub fn load(files: TokenizerFiles) -> Result<Tokenizer> {
        Self::build(files, |_| {})
    }

    /// As [`Self::load`], and returns a compact form of tokenizer.json, which loads several times
    /// as fast. It is of this version of the library: keep it in a cache only.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_and_compact(files: TokenizerFiles) -> Result<(Tokenizer, Vec<u8>)> {
        let mut compact = Vec::new();
        let tokenizer = Self::build(files, |file| compact = compact::write(file))?;
        Ok((tokenizer, compact))
    }

    /// Builds the tokenizer; `look` sees tokenizer.json before it is taken apart.
    fn build(files: TokenizerFiles, look: impl FnOnce(&mut TokenizerFile)) -> Result<Tokenizer> {
        let mut config = json_file(files.tokenizer_config, "tokenizer_config.json")?;
        let map = json_file(files.special_tokens_map, "special_tokens_map.json")?;
        let generation = json_file(files.generation_config, "generation_config.json")?;

        let mut file = match compact::is_compact(files.tokenizer) {
            true => compact::read(files.tokenizer)?,
            false => tokenizer_file::parse(files.tokenizer)?,
        };
        look(&mut file);
        apply_special_tokens_map(&mut config, map);
        apply_converted_tokens(&mut config, file.special_tokens.take());
        apply_class_settings(&mut file, &config);
        merge_added_tokens(&mut file.added_tokens, &config)?;
        let decoder = file.decoder.take();
        let normalizers = Normalizers::load(&file.normalizer)?;
        let splitters = PreTokenizers::load(&file.pre_tokenizer, file.model.kind() == "BPE")?;
        let model = model_loader::load_model(file.model, splitters.byte_level)?;
        let decoder = TokenDecoder::new(&decoder, splitters.byte_level)?;

        let added_by_id = added_by_id(file.added_tokens, &model.vocab, &normalizers)?;
        let frame = SequenceTemplate::load(&file.post_processor, &|token| {
            id_of_token(&added_by_id, &model.vocab, token)
        })?;
        let mut special_tokens = SpecialTokens::default();
        special_tokens.fill(&config);
        special_tokens.fill(&config["extra_special_tokens"]);
        let special_spellings = added_by_id
            .values()
            .filter(|a| a.special)
            .map(|a| a.content.clone())
            .collect();
        let mut tokenizer = Tokenizer {
            vocab_size: model.vocab.len()
                + added_by_id
                    .keys()
                    .filter(|id| model.vocab.token(**id).is_none())
                    .count(),
            id_bound: added_by_id
                .keys()
                .map(|id| id + 1)
                .max()
                .unwrap_or(0)
                .max(model.vocab.id_bound()),
            matcher: AddedTokenMatcher::new(&added_by_id, false),
            normalized_matcher: AddedTokenMatcher::new(&added_by_id, true),
            model,
            added_by_id,
            special_spellings,
            normalizers,
            pre_tokenizers: splitters,
            sequence_template: frame,
            decoder,
            special_tokens,
            eos_ids: Vec::new(),
            scratch: RefCell::default(),
        };
        if tokenizer.vocab_size == 0 {
            return Err(tokenizer_error("tokenizer.json: the vocabulary is empty"));
        }
        tokenizer
            .sequence_template
            .check("the tokenizer", tokenizer.id_bound)?;
        sort::sort_by(&mut tokenizer.special_spellings, Ord::cmp);
        tokenizer.eos_ids = tokenizer.find_eos_ids(&generation)?;
        Ok(tokenizer)
    }

    /// Returns the ids that end a text: those of generation_config.json, and the `eos_token`.
    fn find_eos_ids(&self, generation: &Value) -> Result<Vec<u32>> {
        let mut ids = eos_token_ids("generation_config.json", generation)?;
        let eos = self
            .special_tokens
            .get("eos_token")
            .and_then(|token| self.token_to_id(token));
        ids.extend(eos.filter(|eos| !ids.contains(eos)));
        Ok(ids)
    }

    /// Encodes untrusted text: spellings of special tokens are plain text.
    ///
    /// `add_special` adds the special tokens that the file puts around text (`<s>`, `[CLS]` and
    /// `[SEP]`, …).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_with(text, add_special, SpecialTokenPolicy::None)
    }

    /// Encodes trusted text: spellings of special tokens become special tokens, transformers'
    /// default.
    pub fn encode_trusted(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_with(text, add_special, SpecialTokenPolicy::Except(&[]))
    }

    /// Encodes text; `options` select the treatment of special tokens.
    pub fn encode_with_options(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let honour = if options.parse_special {
            SpecialTokenPolicy::Except(&[])
        } else {
            SpecialTokenPolicy::None
        };
        self.encode_with(text, options.add_special, honour)
    }

    /// Encodes text for an encoder model: adds the special tokens around it, truncates the result
    /// to this length, and parses special tokens as transformers does.
    pub fn encode_text(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        let SequenceTemplate { prefix, suffix, .. } = &self.sequence_template;
        let mut ids = self.encode_trusted(text, false)?;
        ids.truncate(most.saturating_sub(prefix.len() + suffix.len()));
        Ok(prefix
            .iter()
            .copied()
            .chain(ids)
            .chain(suffix.iter().copied())
            .take(most)
            .collect())
    }

    /// Number of ids that `encode_text` adds before the text.
    pub fn prefix_len(&self) -> usize {
        self.sequence_template.prefix.len()
    }

    /// Encodes two texts as one sequence, truncated to this length; returns ids and token types.
    ///
    /// # Errors
    /// `Tokenizer` if the tokenizer has no supported template for pairs.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        most: usize,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let pair = self.sequence_template.pair.as_ref().ok_or_else(|| {
            tokenizer_error("tokenizer.json has no supported template for pairs of texts")
        })?;
        Ok(pair.join_pair(
            self.encode_trusted(first, false)?,
            self.encode_trusted(second, false)?,
            most,
        ))
    }

    /// Encodes a rendered conversation: special tokens of the template are parsed, those in
    /// messages are text.
    pub fn encode_prompt(&self, prompt: &RenderedPrompt) -> Result<Vec<u32>> {
        self.encode_with(
            &prompt.text,
            false,
            SpecialTokenPolicy::Except(&prompt.protected_offsets),
        )
    }

    /// Encodes text that continues a text: without the blank that some tokenizers write before the
    /// first word.
    pub fn encode_continuation(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text, false)?;
        let length: usize = ids.iter().map(|id| self.text_bytes(*id).len()).sum();
        let Some(first) = ids.first_mut().filter(|_| length == text.len() + 1) else {
            return Ok(ids);
        };
        let bytes = self.text_bytes(*first);
        if bytes == b" " {
            ids.remove(0);
        } else if bytes.starts_with(b" ")
            && let Some(id) = self.id_to_token(*first).and_then(|token| {
                let mut rest = token.chars();
                rest.next();
                self.model.vocab.get(rest.as_str())
            })
        {
            *first = id;
        }
        Ok(ids)
    }

    /// Decodes ids to text; skips ids that do not exist.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut decoder = self.decoder.clone();
        let mut out = String::new();
        for piece in ids.iter().filter_map(|id| self.piece(*id, skip_special)) {
            decoder.push(piece, &mut out);
        }
        decoder.finish(&mut out);
        out
    }

    /// Returns a decoder in its initial state.
    pub(super) fn decoder(&self) -> TokenDecoder {
        self.decoder.clone()
    }

    /// Returns the id of a token in the vocabulary's spelling.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        id_of_token(&self.added_by_id, &self.model.vocab, token)
    }

    /// Returns a token in the vocabulary's spelling (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match self.added_by_id.get(&id) {
            Some(added) => Some(added.content.clone()),
            None => self.model.vocab.token(id).map(str::to_owned),
        }
    }

    /// Returns the bytes of a token in the middle of a sequence; not always whole characters.
    pub fn id_to_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let piece = self.piece(id, false)?;
        Some(self.decoder.bytes_of(piece))
    }

    /// Returns the bytes that a token adds to a text; none for special tokens and unused ids.
    pub fn text_bytes(&self, id: u32) -> Vec<u8> {
        if self.added_by_id.get(&id).is_some_and(|added| added.special) {
            return Vec::new();
        }
        self.id_to_bytes(id).unwrap_or_default()
    }

    /// Returns the spelling of a special token that [`super::StreamDecoder`] skips; `None` for
    /// other tokens.
    pub fn special_spelling(&self, id: u32) -> Option<&str> {
        let added = self
            .added_by_id
            .get(&id)
            .filter(|added| added.special && added.matched_form == added.content)?;
        Some(&added.content)
    }

    /// Whether `id` is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.added_by_id.get(&id).is_some_and(|added| added.special)
    }

    /// Number of tokens, including added ones. The embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// One more than the largest id.
    pub fn id_bound(&self) -> u32 {
        self.id_bound
    }

    /// Refuses special tokens around a text that have no row in the model's embedding.
    ///
    /// # Errors
    /// `Tokenizer`.
    pub(crate) fn check_added_ids(&self, rows: usize) -> Result<()> {
        let bound = u32::try_from(rows).unwrap_or(u32::MAX);
        self.sequence_template.check("the model", bound)
    }

    /// Ids that end a text.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// Named special tokens.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    /// Spellings of the special tokens, for [`super::ChatTemplate::render`].
    pub fn special_spellings(&self) -> &[String] {
        &self.special_spellings
    }

    /// Returns the string of an id for the decoder.
    pub(super) fn piece(&self, id: u32, skip_special: bool) -> Option<TokenPiece> {
        match self.added_by_id.get(&id) {
            // The reference identifies special tokens by spelling; one with a different decoded
            // form is not skipped.
            Some(added) if added.special && skip_special && added.matched_form == added.content => {
                None
            }
            Some(added) => Some(TokenPiece {
                text: added.matched_form.clone(),
                added: true,
            }),
            None => self.model.vocab.token(id).map(|text| TokenPiece {
                text: text.to_owned(),
                added: false,
            }),
        }
    }
}

/// Returns the id of a token in the vocabulary's spelling.
fn id_of_token(added: &SortedMap<u32, AddedToken>, vocab: &Vocab, token: &str) -> Option<u32> {
    let added = added
        .iter()
        .find(|(_, added)| added.content == token)
        .map(|(id, _)| *id);
    added.or_else(|| vocab.get(token))
}

/// Reads `eos_token_id` of a configuration: one id or a list.
///
/// # Errors
/// `Config` for a list that is longer than any model's.
pub(crate) fn eos_token_ids(file: &str, config: &Value) -> Result<Vec<u32>> {
    let id = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|id| u32::try_from(id).ok()),
    };
    Ok(match config.get("eos_token_id") {
        Some(Value::Array(ids)) if ids.len() > MAX_EOS_TOKENS => {
            return Err(crate::Error::Config {
                file: file.to_owned(),
                reason: format!(
                    "eos_token_id has {} ids; at most {MAX_EOS_TOKENS} are supported",
                    ids.len()
                ),
            });
        }
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    })
}

fn json_file(bytes: Option<&[u8]>, name: &str) -> Result<Value> {
    match bytes {
        None => Ok(Value::Null),
        Some(bytes) => serde_json::from_slice(bytes).map_err(|e| crate::Error::Config {
            file: name.to_owned(),
            reason: format!("is not valid JSON: {e}"),
        }),
    }
}
