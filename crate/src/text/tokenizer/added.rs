//! Added tokens of tokenizer.json and tokenizer_config.json by id, and a matcher that finds them in
//! text.

use super::super::budget::EncodeBudget;
use super::super::components::Normalizers;
use super::super::model::Vocab;
use super::super::regex::is_word;
use super::super::tokenizer_error;
use super::super::tokenizer_file::AddedTokenEntry;
use super::special::{special_tokens, spelling};
use crate::Result;
use crate::util::limits::MAX_ADDED_TOKEN_BYTES;
use crate::util::map::SortedMap;
use crate::util::sort::sort_by;
use serde::Deserialize;
use serde_json::Value;

/// An added token.
pub(super) struct AddedToken {
    /// Spelling in text.
    pub content: String,
    /// Form that is matched and decoded; normalized if the token is matched in normalized text.
    pub matched_form: String,
    pub special: bool,
    pub normalized: bool,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
}

/// The field of tokenizer_config.json for a tokenizer whose special tokens are all marked, as GGUF
/// does. Its named tokens may be ordinary ones.
pub(crate) const MARKS_SPECIAL_TOKENS: &str = "marks_special_tokens";

/// Sorts tokens of which only the spelling is given behind those with ids.
const NO_ID: u32 = u32::MAX;

/// Adds the tokens of tokenizer_config.json that tokenizer.json lacks. If both have a token, the
/// flags in tokenizer_config.json's `added_tokens_decoder` win. A token that it
/// gives a name is special whatever its flags say. Special tokens that no file has get an id.
pub(super) fn merge_added_tokens(added: &mut Vec<AddedTokenEntry>, config: &Value) -> Result<()> {
    let bad = |e| crate::Error::Config {
        file: "tokenizer_config.json".to_owned(),
        reason: format!("added tokens: {e}"),
    };
    let decoder = match &config["added_tokens_decoder"] {
        Value::Null => serde_json::Map::new(),
        decoder => serde_json::Map::deserialize(decoder).map_err(|e| bad(e.to_string()))?,
    };
    let mut known = Vocab::default();
    for (index, entry) in added.iter().enumerate().rev() {
        known.insert(&entry.content, index as u32);
    }
    for (id, token) in decoder {
        let id: u32 = id
            .parse()
            .map_err(|_| bad(format!("{id:?} is not an id")))?;
        let entry = AddedTokenEntry {
            id,
            ..AddedTokenEntry::deserialize(token).map_err(|e| bad(e.to_string()))?
        };
        let place = known.get(&entry.content).map(|index| index as usize);
        match place.and_then(|index| added.get_mut(index)) {
            Some(old) => {
                *old = AddedTokenEntry {
                    id: old.id,
                    ..entry
                }
            }
            None => {
                known.insert(&entry.content, added.len() as u32);
                added.push(entry);
            }
        }
    }
    if config[MARKS_SPECIAL_TOKENS] == true {
        return Ok(());
    }
    for (token, is_named) in special_tokens(config) {
        let Some(content) = spelling(token) else {
            continue;
        };
        match known.get(content).and_then(|i| added.get_mut(i as usize)) {
            Some(old) => old.special |= is_named,
            None => {
                known.insert(content, added.len() as u32);
                let flags = AddedTokenEntry::deserialize(token).unwrap_or_default();
                added.push(AddedTokenEntry {
                    id: NO_ID,
                    content: content.to_owned(),
                    special: true,
                    ..flags
                });
            }
        }
    }
    Ok(())
}

/// Assigns ids: tokens of the model keep the model's, others get the next free one in their order,
/// as in the library.
pub(super) fn added_by_id(
    mut entries: Vec<AddedTokenEntry>,
    vocab: &Vocab,
    normalizers: &Normalizers,
) -> Result<SortedMap<u32, AddedToken>> {
    sort_by(&mut entries, |a, b| a.id.cmp(&b.id));
    let length = entries.iter().map(|entry| entry.content.len()).sum();
    let budget = EncodeBudget::for_text(length);
    let mut by_id: Vec<(u32, AddedToken)> = Vec::with_capacity(entries.len());
    let mut ids = Vocab::default();
    let mut next = vocab.len() as u32;
    for entry in entries
        .into_iter()
        .filter(|entry| !entry.content.is_empty())
    {
        if entry.content.len() > MAX_ADDED_TOKEN_BYTES {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the added token {} is longer than {MAX_ADDED_TOKEN_BYTES} bytes",
                entry.id
            )));
        }
        let id = ids
            .get(&entry.content)
            .or_else(|| vocab.get(&entry.content))
            .unwrap_or_else(|| {
                next += 1;
                next - 1
            });
        ids.insert(&entry.content, id);
        let AddedTokenEntry {
            content,
            special,
            normalized,
            single_word,
            lstrip,
            rstrip,
            ..
        } = entry;
        let form = if normalized {
            normalizers.normalize(&content, &budget)?.into_owned()
        } else {
            content.clone()
        };
        if form.len() > MAX_ADDED_TOKEN_BYTES * 4 {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the normalizers make the added token {} longer than {} bytes",
                entry.id,
                MAX_ADDED_TOKEN_BYTES * 4
            )));
        }
        by_id.push((
            id,
            AddedToken {
                content,
                matched_form: form,
                special,
                normalized,
                single_word,
                lstrip,
                rstrip,
            },
        ));
    }
    // Of several tokens with an id the last one counts. In order, each is appended.
    sort_by(&mut by_id, |a, b| a.0.cmp(&b.0));
    Ok(by_id.into_iter().collect())
}

/// Finds added tokens in text: the longest one at each position.
pub(super) struct AddedTokenMatcher {
    /// Forms with their ids, in order.
    forms: Vec<(String, u32)>,
    /// Whether any token begins with this byte.
    first: [bool; 256],
}

/// An added token found in text.
pub(super) struct AddedTokenMatch {
    pub id: u32,
    /// Start, including the white space that the token absorbs.
    pub start: usize,
    pub end: usize,
    /// Range of the token alone.
    pub core: (usize, usize),
}

impl AddedTokenMatcher {
    /// Creates a matcher for the tokens matched in normalized text, or for the others.
    pub fn new(added: &SortedMap<u32, AddedToken>, normalized: bool) -> AddedTokenMatcher {
        let mut matcher = AddedTokenMatcher {
            forms: Vec::new(),
            first: [false; 256],
        };
        for (id, token) in added
            .iter()
            .filter(|(_, token)| token.normalized == normalized && !token.matched_form.is_empty())
        {
            matcher.forms.push((token.matched_form.clone(), *id));
            matcher.first[usize::from(token.matched_form.as_bytes()[0])] = true;
        }
        // Of several tokens of a form the last one counts.
        matcher.forms.reverse();
        sort_by(&mut matcher.forms, |a, b| a.0.cmp(&b.0));
        matcher.forms.dedup_by(|next, kept| next.0 == kept.0);
        matcher
    }

    /// Finds the first token from `from` on. White space before it is absorbed from `done` on.
    pub fn find(
        &self,
        text: &str,
        from: usize,
        done: usize,
        added: &SortedMap<u32, AddedToken>,
    ) -> Option<AddedTokenMatch> {
        let mut at = from;
        while at < text.len() {
            let Some((id, end)) = self.at(text, at) else {
                at += 1;
                continue;
            };
            let token = added.get(&id)?;
            let whole = |neighbour: Option<char>| neighbour.is_none_or(|c| !is_word(c));
            let before = &text[..at];
            let after = &text[end..];

            if token.single_word
                && !(whole(before.chars().next_back()) && whole(after.chars().next()))
            {
                at = end;
                continue;
            }
            let start = if token.lstrip {
                before.trim_end().len().max(done)
            } else {
                at
            };
            let stop = if token.rstrip {
                text.len() - after.trim_start().len()
            } else {
                end
            };
            return Some(AddedTokenMatch {
                id,
                start,
                end: stop,
                core: (at, end),
            });
        }
        None
    }

    /// Returns the longest token that begins at `at`, and its end.
    fn at(&self, text: &str, at: usize) -> Option<(u32, usize)> {
        if !self.first[usize::from(text.as_bytes()[at])] {
            return None;
        }
        // All forms of `left` begin with the bytes read so far; the shortest comes first.
        let mut left = self.forms.as_slice();
        let mut found = None;
        for (length, byte) in text.as_bytes()[at..].iter().enumerate() {
            let next = |form: &(String, u32)| form.0.as_bytes().get(length).copied();
            let start = left.partition_point(|form| next(form).is_none_or(|own| own < *byte));
            left = &left[start..];
            left = &left[..left.partition_point(|form| next(form) == Some(*byte))];
            match left.first() {
                None => break,
                Some((form, id)) if form.len() == length + 1 => {
                    found = Some((*id, at + form.len()));
                }
                Some(_) => {}
            }
        }
        found
    }
}
