//! The tokenizer of a checkpoint: text to ids and ids to text. It knows the files, not who wrote the text.

use std::cell::RefCell;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::pipeline::{
    Model as _, PipelineModel, PipelinePatternMatcher as _, PipelineToken, PreTokenizerScratch, Span,
};
use tokenizers::vocab::bucket_added_vocabulary::AddedVocabulary;

use super::components::{self, Normalizers, Splitters};
use super::decode::{Decoder, Piece};
use super::file::{self, AddedEntry};
use super::guard::Prompt;
use super::load;
use super::pair::Frame;
use super::tokenizer_error;
use crate::Result;
use crate::util::lists;
use crate::util::map::SortedMap;

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

/// The tokens with a name of their own, by that name (`bos_token`, `eos_token`, …): variables of the chat template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpecialTokens {
    named: Vec<(String, String)>,
}

impl SpecialTokens {
    /// The token of that name, such as `eos_token`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(n, _)| n == name).map(|(_, token)| token.as_str())
    }

    /// All names with their tokens.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, token)| (name.as_str(), token.as_str()))
    }

    /// Sets or replaces a token.
    pub fn set(&mut self, name: impl Into<String>, token: impl Into<String>) {
        let (name, token) = (name.into(), token.into());
        match self.named.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = token,
            None => self.named.push((name, token)),
        }
    }

    /// Takes the `*_token` fields of tokenizer_config.json or special_tokens_map.json that are not set yet.
    fn fill(&mut self, config: &Value) {
        for (name, value) in config.as_object().into_iter().flatten().filter(|(name, _)| name.ends_with("_token")) {
            let token = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
            if let (Some(token), None) = (token, self.get(name)) {
                self.named.push((name.clone(), token.to_owned()));
            }
        }
    }
}

/// An added token by its id.
struct Added {
    /// As it is written in a text.
    content: String,
    /// As it is decoded: normalized, if it is matched so.
    form: String,
    special: bool,
    normalized: bool,
}

/// Which special tokens of a text become their ids.
#[derive(Clone, Copy)]
enum Honour<'a> {
    None,
    /// All that cover none of these places.
    Except(&'a [usize]),
}

/// Buffers that encoding uses again and again.
struct Scratch {
    model: <PipelineModel as tokenizers::pipeline::Model>::Scratch,
    split: PreTokenizerScratch,
    spans: Vec<Span>,
}

/// Turns text into the ids of a checkpoint and back, exactly as its `tokenizers` file says.
///
/// Truncation and padding of the file are not applied: the caller knows the length of the context.
pub struct Tokenizer {
    model: PipelineModel,
    added: AddedVocabulary,
    added_by_id: HashMap<u32, Added>,
    special_spellings: Vec<String>,
    normalizers: Normalizers,
    metaspace: Normalizers,
    splitters: Splitters,
    prefix_space: bool,
    frame: Frame,
    unk: Option<u32>,
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

#[derive(Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    added_tokens_decoder: serde_json::Map<String, Value>,
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
        let mut parts = components::load_components(&mut file)?;
        let (normalizers, metaspace) = Normalizers::load(&mut parts)?;
        let splitters = Splitters::load(&mut parts)?;
        let frame = components::affixes(&mut parts)?;
        let load::Model { model, len, added, id_bound, unk } =
            load::model(file.model, &parts, &file.added_tokens, &normalizers)?;
        let decoder = Decoder::new(&decoder, parts.byte_level)?;

        let added_by_id = added_by_id(&added, &file.added_tokens, &normalizers)?;
        let mut special_tokens = SpecialTokens::default();
        special_tokens.fill(&config);
        special_tokens.fill(&map);
        let scratch = Scratch { model: model.init_scratch(), split: PreTokenizerScratch::default(), spans: Vec::new() };
        let special_spellings = added_by_id.values().filter(|a| a.special).map(|a| a.content.clone()).collect();
        let mut tokenizer = Tokenizer {
            vocab_size: len + added_by_id.keys().filter(|id| model.id_to_token(**id).is_none()).count(),
            id_bound: added_by_id.keys().map(|id| id + 1).max().unwrap_or(0).max(id_bound),
            model,
            added,
            added_by_id,
            special_spellings,
            normalizers,
            metaspace,
            splitters,
            prefix_space: parts.prefix_space,
            frame,
            unk,
            decoder,
            special_tokens,
            eos_ids: Vec::new(),
            scratch: RefCell::new(scratch),
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

    /// The id of a token as the vocabulary spells it. A search through the vocabulary: not for hot loops.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.added_by_id.iter().find(|(_, added)| added.content == token).map(|(id, _)| *id);
        added.or_else(|| (0..self.id_bound).find(|id| self.model.id_to_token(*id).as_deref() == Some(token)))
    }

    /// A token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match self.added_by_id.get(&id) {
            Some(added) => Some(added.content.clone()),
            None => self.model.id_to_token(id),
        }
    }

    /// The bytes that a token stands for in the middle of a text; not always whole characters.
    pub fn id_to_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let piece = self.piece(id, false)?;
        Some(self.decoder.bytes_of(piece))
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
            None => self.model.id_to_token(id).map(|text| Piece { text, added: false }),
        }
    }

    fn encode_with(&self, text: &str, add_special: bool, honour: Honour) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + self.frame.prefix.len() + self.frame.suffix.len());
        let mut scratch = self.scratch.borrow_mut();
        let keep = |start, end, _: u32| honour.allows(start, end);
        self.each_part(text, false, honour, keep, |part| match part {
            Part::Token(id) => {
                out.push(PipelineToken::from(id));
                Ok(())
            }
            Part::Text { text: chunk, start } => self.encode_chunk(chunk, start, honour, &mut scratch, &mut out),
        })?;
        drop(scratch);
        let ids = out.iter().map(|token| token.id());
        Ok(if add_special {
            self.frame.prefix.iter().copied().chain(ids).chain(self.frame.suffix.iter().copied()).collect()
        } else {
            ids.collect()
        })
    }

    /// Encodes what lies between the tokens that are matched before normalization. `start` is its place in the text.
    fn encode_chunk(
        &self,
        chunk: &str,
        start: usize,
        honour: Honour,
        scratch: &mut Scratch,
        out: &mut Vec<PipelineToken>,
    ) -> Result<()> {
        let normalized = components::normalize(&self.normalizers, chunk, start)?;
        let normalized = components::normalize(&self.metaspace, &normalized, start)?;
        let mut verdicts = self.normalized_verdicts(chunk, start, honour);
        let keep = |_, _, id: u32| verdicts.get_mut(&id).is_none_or(|queue| queue.next().unwrap_or(false));
        self.each_part(&normalized, true, honour, keep, |part| match part {
            Part::Token(id) => {
                out.push(PipelineToken::from(id));
                Ok(())
            }
            Part::Text { text, .. } => self.encode_plain(text, honour, scratch, out),
        })
    }

    /// For special tokens that are matched in normalized text, where the places of the original are lost: whether their
    /// first, second, … occurrence in `chunk` is honoured.
    fn normalized_verdicts(
        &self,
        chunk: &str,
        start: usize,
        honour: Honour,
    ) -> SortedMap<u32, std::vec::IntoIter<bool>> {
        if matches!(honour, Honour::None | Honour::Except([])) {
            return SortedMap::new();
        }
        let specials = self.added_by_id.iter().filter(|(_, added)| added.special && added.normalized);
        let verdicts = specials.map(|(id, added)| {
            let found = chunk.match_indices(added.content.as_str());
            let allowed = |(at, token): (usize, &str)| honour.allows(start + at, start + at + token.len());
            (*id, found.map(allowed).collect::<Vec<_>>().into_iter())
        });
        verdicts.collect()
    }

    /// Encodes text without added tokens.
    fn encode_plain(
        &self,
        text: &str,
        honour: Honour,
        scratch: &mut Scratch,
        out: &mut Vec<PipelineToken>,
    ) -> Result<()> {
        let spaced;
        let text = if self.prefix_space && !text.starts_with(' ') {
            spaced = format!(" {text}");
            &spaced
        } else {
            text
        };
        if u32::try_from(text.len()).is_err() {
            return Err(tokenizer_error("the text is longer than 4 GB"));
        }
        let Scratch { model, split, spans } = scratch;
        let failed = |e: tokenizers::Error| tokenizer_error(format!("encoding failed: {e}"));
        self.splitters.split(text, split, spans).map_err(failed)?;
        let before = out.len();
        self.model.tokenize_spans(text, spans, model, out).map_err(failed)?;
        // Unigram models know `</s>` as a piece like any other; where it is not honoured, a cut keeps them from it.
        let made_special = out.iter().skip(before).any(|t| Some(t.id()) != self.unk && self.is_special(t.id()));
        if made_special && !honour.is_everything() {
            out.truncate(before);
            self.cut_at_specials(text, spans);
            self.model.tokenize_spans(text, spans, model, out).map_err(failed)?;
        }
        Ok(())
    }

    /// Cuts the spans after the first character of everything that is spelled like a special token.
    fn cut_at_specials(&self, text: &str, spans: &mut Vec<Span>) {
        let mut cuts: Vec<usize> = Vec::new();
        for special in self.special_spellings.iter().filter_map(|s| s.chars().next().map(|c| (s, c.len_utf8()))) {
            cuts.extend(text.match_indices(special.0.as_str()).map(|(at, _)| at + special.1));
        }
        cuts.sort_unstable();
        cuts.dedup();
        for span in std::mem::take(spans) {
            let mut start = span.start;
            for cut in cuts.iter().map(|cut| *cut as u32).filter(|cut| (span.start + 1..span.end).contains(cut)) {
                spans.push(Span::new(start, cut));
                start = cut;
            }
            spans.push(Span::new(start, span.end));
        }
    }

    /// Cuts `text` at the added tokens and hands out the parts. `keep` decides on special tokens by place and id.
    fn each_part(
        &self,
        text: &str,
        normalized: bool,
        honour: Honour,
        mut keep: impl FnMut(usize, usize, u32) -> bool,
        mut part: impl FnMut(Part) -> Result<()>,
    ) -> Result<()> {
        let plain = matches!(honour, Honour::None);
        let (mut done, mut search) = (0, 0);
        while let Some(((start, end), id)) = self.added.extract_next(text.as_bytes(), search, normalized, plain) {
            let added = self.added_by_id.get(&id);
            // A token may take the white space beside it along; who wrote that does not matter.
            let form = added.map_or("", |a| a.form.as_str());
            let matched = text.get(start..end).unwrap_or_default();
            let core = start + matched.find(form).unwrap_or(0);
            let core_end = (core + form.len()).min(text.len());
            if added.is_some_and(|a| a.special) && !keep(core, core_end, id) {
                search = core_end.max(search + 1);
                continue;
            }
            if let Some(before) = text.get(done..start).filter(|t| !t.is_empty()) {
                part(Part::Text { text: before, start: done })?;
            }
            part(Part::Token(id))?;
            (done, search) = (end, end.max(search + 1));
        }
        match text.get(done..) {
            Some(rest) if !rest.is_empty() => part(Part::Text { text: rest, start: done }),
            _ => Ok(()),
        }
    }
}

/// A part of a text.
enum Part<'a> {
    Text { text: &'a str, start: usize },
    Token(u32),
}

impl Honour<'_> {
    fn is_everything(self) -> bool {
        matches!(self, Honour::Except([]))
    }

    fn allows(self, start: usize, end: usize) -> bool {
        match self {
            Honour::None => false,
            Honour::Except(places) => {
                let next = places.partition_point(|place| *place < start);
                places.get(next).is_none_or(|place| *place >= end)
            }
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

/// Adds the tokens of tokenizer_config.json that tokenizer.json lacks; where both have one, the former's flags count.
fn merge_added_tokens(added: &mut Vec<AddedEntry>, config: &Value) -> Result<()> {
    let bad =
        |e| crate::Error::Config { file: "tokenizer_config.json".to_owned(), reason: format!("added tokens: {e}") };
    if config.get("added_tokens_decoder").is_none_or(Value::is_null) {
        return Ok(());
    }
    let config = TokenizerConfig::deserialize(config).map_err(|e| bad(e.to_string()))?;
    for (id, token) in config.added_tokens_decoder {
        let id: u32 = id.parse().map_err(|_| bad(format!("{id:?} is not an id")))?;
        let entry = AddedEntry { id, ..AddedEntry::deserialize(token).map_err(|e| bad(e.to_string()))? };
        match added.iter_mut().find(|old| old.content == entry.content) {
            Some(old) => *old = AddedEntry { id: old.id, ..entry },
            None => added.push(entry),
        }
    }
    Ok(())
}

/// The added tokens by the ids that they got.
fn added_by_id(
    vocabulary: &AddedVocabulary,
    entries: &[AddedEntry],
    normalizers: &Normalizers,
) -> Result<HashMap<u32, Added>> {
    let mut by_id = HashMap::new();
    for entry in entries {
        let form = if entry.normalized {
            components::normalize(normalizers, &entry.content, 1)?.into_owned()
        } else {
            entry.content.clone()
        };
        if let Some(id) = vocabulary.token_to_id(&form) {
            let content = entry.content.clone();
            by_id.insert(id, Added { content, form, special: entry.special, normalized: entry.normalized });
        }
    }
    Ok(by_id)
}
