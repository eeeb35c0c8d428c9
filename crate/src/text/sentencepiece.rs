//! SentencePiece model files: reads the protobuf fields that a tokenizer needs.
//!
//! Source: `sentencepiece_model.proto` of google/sentencepiece, with its field numbers.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::tokenizer::spelling;
use super::tokenizer_error;
use crate::Result;
use crate::util::sort;

/// A SentencePiece model.
pub(super) struct SentencePieceModel {
    pub pieces: Vec<SentencePiece>,
    /// True for BPE, false for unigram.
    pub is_bpe: bool,
    pub byte_fallback: bool,
    pub unk_id: usize,
    bos_id: i64,
    eos_id: i64,
    pub unk_piece: String,
    bos_piece: String,
    eos_piece: String,
    /// SentencePiece's character map, in the file's binary format.
    pub charsmap: Vec<u8>,
    /// Whether text starts with an added space.
    pub add_dummy_prefix: bool,
    /// Whether normalization removes outer spaces and joins inner ones.
    pub remove_extra_whitespaces: bool,
    /// Whether spaces become `▁`.
    pub escape_whitespaces: bool,
}

/// A piece with its score.
#[derive(Debug, Default)]
pub(super) struct SentencePiece {
    pub text: String,
    pub score: f64,
    kind: u64,
}

impl SentencePiece {
    /// Whether the piece never occurs in text.
    pub fn is_control(&self) -> bool {
        self.kind == 3
    }

    fn is_normal(&self) -> bool {
        self.kind == 1
    }

    /// Whether the piece is matched wherever it occurs in text.
    pub fn is_user_defined(&self) -> bool {
        self.kind == 4
    }
}

/// A field of a protobuf message.
enum ProtoField<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl ProtoField<'_> {
    fn text(&self) -> String {
        match self {
            ProtoField::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            ProtoField::Number(_) => String::new(),
        }
    }

    fn number(&self) -> u64 {
        match self {
            ProtoField::Number(number) => *number,
            ProtoField::Bytes(_) => 0,
        }
    }
}

/// Reads a varint: 7 bits a byte, lowest first.
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// Passes the fields of a message to `each`; `None` if the message is damaged.
fn fields<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(u64, ProtoField<'a>) -> Option<()>,
) -> Option<()> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        let field = match key & 7 {
            0 => ProtoField::Number(varint(&mut bytes)?),
            1 => ProtoField::Number(number(take(&mut bytes, 8)?)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                ProtoField::Bytes(take(&mut bytes, length)?)
            }
            5 => ProtoField::Number(number(take(&mut bytes, 4)?)),
            _ => return None,
        };
        each(key >> 3, field)?;
    }
    Some(())
}

/// Whether a file has tiktoken's format: lines of a token in base64 and its rank.
fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let mut parts = line.trim_ascii_end().splitn(2, |byte| *byte == b' ');
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    let part = |part: Option<&[u8]>, of: &dyn Fn(&u8) -> bool| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(of))
    };
    part(parts.next(), &is_base64) && part(parts.next(), &u8::is_ascii_digit)
}

fn piece(bytes: &[u8]) -> Option<SentencePiece> {
    let mut piece = SentencePiece {
        kind: 1,
        ..SentencePiece::default()
    };
    fields(bytes, |at, field| {
        match at {
            1 => piece.text = field.text(),
            2 => piece.score = f64::from(f32::from_bits(field.number() as u32)),
            3 => piece.kind = field.number(),
            _ => {}
        }
        Some(())
    })?;
    Some(piece)
}

impl SentencePieceModel {
    /// Reads a tokenizer.model.
    pub fn read(bytes: &[u8]) -> Result<SentencePieceModel> {
        let mut spm = SentencePieceModel {
            pieces: Vec::new(),
            is_bpe: false,
            byte_fallback: false,
            unk_id: 0,
            bos_id: 1,
            eos_id: 2,
            unk_piece: "<unk>".to_owned(),
            bos_piece: "<s>".to_owned(),
            eos_piece: "</s>".to_owned(),
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        let mut kind = 1;
        let read = fields(bytes, |at, field| {
            let ProtoField::Bytes(message) = field else {
                return Some(());
            };
            match at {
                1 => spm.pieces.push(piece(message)?),
                2 => fields(message, |at, field| {
                    match at {
                        3 => kind = field.number(),
                        35 => spm.byte_fallback = field.number() != 0,
                        40 => spm.unk_id = field.number() as u32 as usize,
                        41 => spm.bos_id = i64::from(field.number() as i32),
                        42 => spm.eos_id = i64::from(field.number() as i32),
                        45 => spm.unk_piece = field.text(),
                        46 => spm.bos_piece = field.text(),
                        47 => spm.eos_piece = field.text(),
                        _ => {}
                    }
                    Some(())
                })?,
                3 => fields(message, |at, field| {
                    match (at, field) {
                        (2, ProtoField::Bytes(map)) => spm.charsmap = map.to_vec(),
                        (3, field) => spm.add_dummy_prefix = field.number() != 0,
                        (4, field) => spm.remove_extra_whitespaces = field.number() != 0,
                        (5, field) => spm.escape_whitespaces = field.number() != 0,
                        _ => {}
                    }
                    Some(())
                })?,
                _ => {}
            }
            Some(())
        });
        spm.is_bpe = kind == 2;
        if is_tiktoken(bytes) {
            return Err(tokenizer_error(
                "tokenizer.model is a tiktoken vocabulary, which is not supported. Load it with transformers, and add \
                 the tokenizer.json that its `save_pretrained` writes",
            ));
        }
        if read.is_none() || spm.pieces.is_empty() {
            return Err(tokenizer_error(
                "tokenizer.model is not a valid SentencePiece model. Download it again, or add tokenizer.json",
            ));
        }
        if !matches!(kind, 1 | 2) {
            return Err(tokenizer_error(
                "tokenizer.model is a word or character model; use a SentencePiece model of type unigram or bpe",
            ));
        }
        Ok(spm)
    }

    /// Named tokens with their ids; negative ids are absent.
    pub fn named(&self) -> [(&'static str, i64, &str); 3] {
        [
            ("bos_token", self.bos_id, &self.bos_piece),
            ("eos_token", self.eos_id, &self.eos_piece),
            ("unk_token", self.unk_id as i64, &self.unk_piece),
        ]
    }

    /// Gives pieces the names that tokenizer_config.json's `added_tokens_decoder` has for their ids,
    /// as in models whose unused pieces became special tokens. A name that another piece keeps is
    /// not given twice.
    pub fn rename(&mut self, names: &Map<String, Value>) {
        let pieces = self.pieces.iter().enumerate();
        let kept: HashMap<&str, usize> = pieces
            .filter(|(id, _)| !names.contains_key(&id.to_string()))
            .map(|(id, piece)| (piece.text.as_str(), id))
            .collect();
        let mut renamed: Vec<(usize, String)> = Vec::new();
        for (id, token) in names {
            if let (Ok(id), Some(name)) = (id.parse(), spelling(token))
                && !kept.contains_key(name)
            {
                renamed.push((id, name.to_owned()));
            }
        }
        for (id, name) in renamed {
            if let Some(piece) = self.pieces.get_mut(id) {
                piece.text = name;
            }
        }
    }

    /// Builds a BPE model with merges: all pairs of pieces that form a piece, by descending score,
    /// then longer left and right parts first. With `own_settings`, as SentencePiece itself encodes:
    /// only ordinary pieces merge, by descending score, then ascending id, and user-defined pieces
    /// are whole words.
    ///
    /// Published files have the first order (transformers' `generate_merges` with scores). The order
    /// of ids is another in the models of Llama and Mistral, whose runs of spaces have low scores:
    /// `"\n    return"` would not end in `▁return`.
    pub fn bpe(&self, unk: Option<&str>, byte_fallback: bool, own_settings: bool) -> String {
        let pieces = || self.pieces.iter().enumerate();
        let ids: HashMap<&str, usize> = pieces()
            .filter(|(_, piece)| !own_settings || piece.is_normal())
            .map(|(id, piece)| (piece.text.as_str(), id))
            .collect();
        let mut merges: Vec<([&str; 2], usize)> = Vec::new();
        for (id, piece) in pieces() {
            if ids.get(piece.text.as_str()) != Some(&id) {
                continue;
            }
            let cuts = piece
                .text
                .char_indices()
                .skip(1)
                .map(|(at, _)| piece.text.split_at(at));
            let known =
                cuts.filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right));
            merges.extend(known.map(|(left, right)| ([left, right], id)));
        }
        let score = |id: usize| self.pieces.get(id).map_or(0.0, |piece| piece.score);
        let lengths = |[left, right]: [&str; 2]| (left.chars().count(), right.chars().count());
        sort::sort_by(&mut merges, |a, b| {
            let by_score = score(b.1).total_cmp(&score(a.1));
            by_score.then_with(|| match own_settings {
                true => (a.1, a.0).cmp(&(b.1, b.0)),
                false => lengths(b.0).cmp(&lengths(a.0)),
            })
        });
        let merges: Vec<[&str; 2]> = merges.into_iter().map(|(pair, _)| pair).collect();
        let whole = own_settings && self.pieces.iter().any(SentencePiece::is_user_defined);
        let vocab: Map<String, Value> = pieces()
            .map(|(id, piece)| (piece.text.clone(), Value::from(id)))
            .collect();
        format!(
            r#"{{"type":"BPE","unk_token":{},"fuse_unk":true,"byte_fallback":{byte_fallback},"ignore_merges":{whole},"vocab":{},"merges":{}}}"#,
            Value::from(unk),
            Value::Object(vocab),
            json!(merges)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_models_are_rejected() {
        for wrong in [
            &b""[..],
            b"\x0a",
            b"\x0a\x05\x0a\x03abc",
            b"{}",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ] {
            let read = SentencePieceModel::read(wrong);
            assert_eq!(read.is_ok(), wrong.len() == 7, "{wrong:?}");
        }
        // One piece "abc" with score 0.5, and the model type WORD.
        assert!(
            SentencePieceModel::read(b"\x0a\x0a\x0a\x03abc\x15\x00\x00\x00\x3f\x12\x02\x18\x03")
                .is_err()
        );
        let spm =
            SentencePieceModel::read(b"\x0a\x0a\x0a\x03abc\x15\x00\x00\x00\x3f\x12\x02\x18\x02")
                .expect("a model");
        assert!(spm.is_bpe && spm.pieces[0].score == 0.5 && spm.pieces[0].text == "abc");
    }
}
