//! tokenizer.json in a form that loads several times as fast: its vocabulary and merges as flat
//! lists, the rest as JSON. Loads keep it in the cache, with the file that it was made from.
//!
//! Layout, all numbers little-endian: [`MAGIC`]; six lengths (u32: bytes of JSON, bytes of
//! text, tokens, ids, scores, merges); JSON; the
//! text of all tokens; end, id and by-id lists (u32); scores (f64); merges (three u32 each).

use super::model::{Merges, Vocab};
use super::model_loader::{MAX_ID, VocabFile};
use super::tokenizer_error;
use super::tokenizer_file::TokenizerFile;
use crate::Result;

/// First bytes of the form; no JSON begins so.
const MAGIC: &[u8; 8] = b"jbtokens";
/// Increase when the layout or the meaning of the JSON changes.
pub(crate) const COMPACT_VERSION: u32 = 1;

/// Whether bytes are a compact form rather than JSON.
pub(crate) fn is_compact(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Writes the compact form of a file.
pub(super) fn write(file: &mut TokenizerFile) -> Vec<u8> {
    file.model.name_kind();
    let json = serde_json::to_vec(&file).unwrap_or_default();
    let VocabFile { vocab, scores } = &file.model.vocab;
    let (text, lists) = vocab.lists();
    let scores = scores.as_deref().unwrap_or_default();
    let merges = file.model.merges.as_ref().map_or(&[][..], Merges::pairs);
    let mut out = MAGIC.to_vec();
    let lengths = [
        json.len(),
        text.len(),
        lists[0].len(),
        lists[2].len(),
        scores.len(),
        merges.len(),
    ];
    out.extend(lengths.iter().flat_map(|n| (*n as u32).to_le_bytes()));
    out.extend(json);
    out.extend(text.as_bytes());
    for list in lists {
        out.extend(list.iter().flat_map(|n| n.to_le_bytes()));
    }
    out.extend(scores.iter().flat_map(|n| n.to_le_bytes()));
    out.extend(merges.iter().flatten().flat_map(|n| n.to_le_bytes()));
    out
}

/// Reads a compact form.
///
/// # Errors
/// `Tokenizer` if the bytes are damaged.
pub(super) fn read(bytes: &[u8]) -> Result<TokenizerFile> {
    read_parts(bytes).ok_or_else(|| tokenizer_error("the stored form of tokenizer.json is damaged"))
}

fn read_parts(bytes: &[u8]) -> Option<TokenizerFile> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let mut lengths = [0; 6];
    for (length, number) in lengths.iter_mut().zip(numbers(take(&mut rest, 24)?)) {
        *length = number as usize;
    }
    let [json, text, tokens, bound, scores, merges] = lengths;
    if bound > MAX_ID as usize {
        return None;
    }
    let mut file: TokenizerFile = serde_json::from_slice(take(&mut rest, json)?).ok()?;
    let text = String::from_utf8(take(&mut rest, text)?.to_vec()).ok()?;
    let lists = [tokens, tokens, bound].map(|count| take_numbers(&mut rest, count));
    let [Some(ends), Some(ids), Some(by_id)] = lists else {
        return None;
    };
    file.model.vocab.vocab = Vocab::from_lists(text, [ends, ids, by_id])?;
    let scores: Vec<f64> = take(&mut rest, scores.checked_mul(8)?)?
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f64::from_le_bytes(*bytes))
        .collect();
    if !scores.is_empty() {
        if scores.len() < bound || !scores.iter().all(|score| score.is_finite()) {
            return None;
        }
        file.model.vocab.scores = Some(scores);
    }
    let merges = take_numbers(&mut rest, merges.checked_mul(3)?)?;
    if !rest.is_empty() || merges.iter().any(|id| *id as usize >= bound) {
        return None;
    }
    file.model.merges = Some(Merges::from_pairs(merges.as_chunks().0.to_vec()));
    Some(file)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn take_numbers(rest: &mut &[u8], count: usize) -> Option<Vec<u32>> {
    Some(numbers(take(rest, count.checked_mul(4)?)?).collect())
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u32::from_le_bytes(*word))
}
