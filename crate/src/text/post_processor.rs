//! Sequence templates: the special tokens around and between one or two sequences, and their token
//! types.

use serde_json::Value;

use super::components::flatten;
use super::tokenizer_error;
use crate::Result;
use crate::util::limits::MAX_TEMPLATE_TOKENS;

/// Special tokens around a single sequence, and the encoding of a pair.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SequenceTemplate {
    /// Ids before a single sequence.
    pub prefix: Vec<u32>,
    /// Ids after a single sequence.
    pub suffix: Vec<u32>,
    /// Encoding of a pair; `None` if the file has no supported one.
    pub pair: Option<PairEncoding>,
}

/// Ids around and between two sequences, and all token types.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PairEncoding {
    pub prefix: Vec<(u32, u32)>,
    pub infix: Vec<(u32, u32)>,
    pub suffix: Vec<(u32, u32)>,
    pub token_types: [u32; 2],
}

/// Part of a template: ids with their token type, or a sequence (false: the first) with its type.
enum TemplatePart {
    Ids(Vec<u32>, u32),
    Text(bool, u32),
}

/// Looks up the id of a token.
type TokenIds<'a> = &'a dyn Fn(&str) -> Option<u32>;

impl SequenceTemplate {
    /// Reads `post_processor` of tokenizer.json. `id_of` returns the id of a token that a converted
    /// slow tokenizer names without its id.
    pub fn load(node: &Value, id_of: TokenIds) -> Result<SequenceTemplate> {
        let mut members = Vec::new();
        flatten(node, "processors", 0, &mut members)?;
        let plain = PairEncoding {
            token_types: [0, 1],
            ..PairEncoding::default()
        };
        let mut frame = SequenceTemplate {
            pair: Some(plain),
            ..SequenceTemplate::default()
        };
        let mut adding = 0;
        for member in members {
            let found = match member
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or_default()
            {
                // It only changes offsets, which are not computed here.
                "ByteLevel" => continue,
                "TemplateProcessing" => template(member, id_of)?,
                kind @ ("BertProcessing" | "RobertaProcessing") => {
                    bert_template(member, kind == "BertProcessing", id_of)?
                }
                other => {
                    return Err(tokenizer_error(format!(
                        "tokenizer.json: the post-processor {other:?} is not supported"
                    )));
                }
            };
            if found.prefix.is_empty()
                && found.suffix.is_empty()
                && found.pair.as_ref().is_some_and(PairEncoding::is_empty)
            {
                continue;
            }
            adding += 1;
            // Each post-processor wraps the output of the previous one; for pairs the result is not
            // defined.
            frame = SequenceTemplate {
                prefix: [found.prefix, frame.prefix].concat(),
                suffix: [frame.suffix, found.suffix].concat(),
                pair: found.pair.filter(|_| adding == 1),
            };
        }
        Ok(frame)
    }

    /// Refuses ids from `id_bound` on, which `owner` does not have, and too many ids.
    pub fn check(&self, owner: &str, id_bound: u32) -> Result<()> {
        let pair = self.pair.as_ref();
        let of_pair = pair.into_iter().flat_map(PairEncoding::ids);
        let all: Vec<u32> = (self.prefix.iter().chain(&self.suffix).copied())
            .chain(of_pair)
            .collect();
        if all.len() > MAX_TEMPLATE_TOKENS {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the post-processor adds more than {MAX_TEMPLATE_TOKENS} tokens"
            )));
        }
        match all.iter().find(|id| **id >= id_bound) {
            Some(id) => Err(tokenizer_error(format!(
                "tokenizer.json: the post-processor adds token {id}, but ids of {owner} end at {}",
                id_bound.saturating_sub(1)
            ))),
            None => Ok(()),
        }
    }
}

/// Reads BertProcessing, `[CLS] $A [SEP]` and `[CLS] $A [SEP] $B:1 [SEP]:1`, or RobertaProcessing,
/// `<s> $A </s>` and `<s> $A </s></s> $B </s>`.
fn bert_template(entry: &Value, bert: bool, id_of: TokenIds) -> Result<SequenceTemplate> {
    let id = |name: &str| {
        let id = match entry.get(name) {
            Some(Value::String(token)) => id_of(token),
            pair => pair
                .and_then(|pair| pair.get(1)?.as_u64())
                .and_then(|id| u32::try_from(id).ok()),
        };
        id.ok_or_else(|| {
            tokenizer_error(format!(
                "tokenizer.json: the post-processor has no usable `{name}`"
            ))
        })
    };
    let cls = id("cls")?;
    let sep = id("sep")?;

    let kind = u32::from(bert);
    let infix = if bert {
        vec![(sep, 0)]
    } else {
        vec![(sep, 0); 2]
    };
    let pair = PairEncoding {
        prefix: vec![(cls, 0)],
        infix,
        suffix: vec![(sep, kind)],
        token_types: [0, kind],
    };
    Ok(SequenceTemplate {
        prefix: vec![cls],
        suffix: vec![sep],
        pair: Some(pair),
    })
}

fn template(entry: &Value, id_of: TokenIds) -> Result<SequenceTemplate> {
    let mut frame = SequenceTemplate::default();
    let mut seen = false;
    for part in parts(entry, "single", id_of)? {
        match part {
            TemplatePart::Text(false, _) if !seen => seen = true,
            TemplatePart::Text(..) => {
                return Err(tokenizer_error(
                    "tokenizer.json: the template `single` has two sequences",
                ));
            }
            TemplatePart::Ids(ids, _) if seen => frame.suffix.extend(ids),
            TemplatePart::Ids(ids, _) => frame.prefix.extend(ids),
        }
    }
    if !seen {
        return Err(tokenizer_error(
            "tokenizer.json: the template `single` has no sequence",
        ));
    }
    // Single sequences work without a supported template for pairs.
    frame.pair = parts(entry, "pair", id_of).ok().and_then(pair);
    Ok(frame)
}

fn pair(parts: Vec<TemplatePart>) -> Option<PairEncoding> {
    let mut pair = PairEncoding::default();
    let mut seen = 0;
    for part in parts {
        match (part, seen) {
            (TemplatePart::Text(second, kind), 0 | 1) if second == (seen == 1) => {
                pair.token_types[seen] = kind;
                seen += 1;
            }
            (TemplatePart::Text(..), _) => return None,
            (TemplatePart::Ids(ids, kind), _) => {
                let run = [&mut pair.prefix, &mut pair.infix, &mut pair.suffix]
                    .into_iter()
                    .nth(seen)?;
                run.extend(ids.into_iter().map(|id| (id, kind)));
            }
        }
    }
    (seen == 2).then_some(pair)
}

/// Reads the parts of a template, in the spelling of the files or of the library's version 1.
/// `{"token": "<s>"}` is a token without its id.
fn parts(entry: &Value, name: &str, id_of: TokenIds) -> Result<Vec<TemplatePart>> {
    let wrong = |what: &Value| {
        tokenizer_error(format!(
            "tokenizer.json: the template `{name}` has an unsupported part {what:.80}"
        ))
    };
    let list = entry.get(name).and_then(Value::as_array);
    let list = list.ok_or_else(|| {
        tokenizer_error(format!(
            "tokenizer.json: the post-processor has no `{name}`"
        ))
    })?;
    let read = |part: &Value| {
        let body = part
            .get("Sequence")
            .or_else(|| part.get("SpecialToken"))
            .unwrap_or(part);
        let kind = body.get("type_id").and_then(Value::as_u64).unwrap_or(0) as u32;
        if let Some(text) = part
            .pointer("/Sequence/id")
            .or_else(|| part.get("seq"))
            .and_then(Value::as_str)
        {
            return match text {
                "A" | "B" => Ok(TemplatePart::Text(text == "B", kind)),
                _ => Err(wrong(part)),
            };
        }
        if let Some(token) = part.get("token").and_then(Value::as_str) {
            let id = id_of(token).ok_or_else(|| wrong(part))?;
            return Ok(TemplatePart::Ids(vec![id], kind));
        }
        let spelling = part.pointer("/SpecialToken/id").and_then(Value::as_str);
        let token = spelling
            .and_then(|spelling| entry.get("special_tokens")?.get(spelling))
            .unwrap_or(part);
        let ids = token
            .get("ids")
            .and_then(Value::as_array)
            .ok_or_else(|| wrong(part))?;
        let ids: Option<Vec<u32>> = ids
            .iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect();
        Ok(TemplatePart::Ids(ids.ok_or_else(|| wrong(part))?, kind))
    };
    list.iter().map(read).collect()
}

impl PairEncoding {
    fn ids(&self) -> impl Iterator<Item = u32> {
        let parts = [&self.prefix, &self.infix, &self.suffix];
        parts.into_iter().flatten().map(|(id, _)| *id)
    }

    fn is_empty(&self) -> bool {
        self.prefix.is_empty()
            && self.infix.is_empty()
            && self.suffix.is_empty()
            && self.token_types == [0, 1]
    }

    /// Joins two sequences and truncates them to this total length, the longer one first. Returns
    /// ids and token types.
    pub fn join_pair(&self, mut a: Vec<u32>, mut b: Vec<u32>, most: usize) -> (Vec<u32>, Vec<u32>) {
        let frame = self.prefix.len() + self.infix.len() + self.suffix.len();
        let (first, second) = longest_first(a.len(), b.len(), most.saturating_sub(frame));
        a.truncate(first);
        b.truncate(second);
        let of_kind = |ids: Vec<u32>, kind: u32| ids.into_iter().map(move |id| (id, kind));
        let all = self
            .prefix
            .iter()
            .copied()
            .chain(of_kind(a, self.token_types[0]))
            .chain(self.infix.iter().copied());
        all.chain(of_kind(b, self.token_types[1]))
            .chain(self.suffix.iter().copied())
            .unzip()
    }
}

/// Returns the lengths to which the tokenizers library truncates two sequences (`longest_first`).
fn longest_first(a: usize, b: usize, most: usize) -> (usize, usize) {
    if a + b <= most {
        return (a, b);
    }
    let mut short = a.min(b);
    let mut long = short.max(most.saturating_sub(short));
    if short + long > most {
        short = most / 2;
        long = short + most % 2;
    }
    if a > b { (long, short) } else { (short, long) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_longer_sequence_is_truncated_first() {
        assert_eq!(longest_first(3, 4, 10), (3, 4));
        assert_eq!(longest_first(3, 40, 10), (3, 7));
        assert_eq!(longest_first(40, 3, 10), (7, 3));
        assert_eq!(longest_first(40, 30, 11), (6, 5));
        assert_eq!(longest_first(30, 40, 11), (5, 6));
        assert_eq!(longest_first(30, 40, 0), (0, 0));
    }

    fn load(node: &Value) -> Result<SequenceTemplate> {
        SequenceTemplate::load(node, &|token| (token == "<s>").then_some(7))
    }

    #[test]
    fn tokens_without_ids_are_looked_up() {
        let named = load(&json!({"type": "TemplateProcessing",
            "single": [{"token": "<s>"}, {"seq": "A"}], "pair": []}))
        .expect("a frame");
        assert_eq!((named.prefix, named.suffix), (vec![7], vec![]));
        let roberta = load(&json!({"type": "RobertaProcessing", "sep": "<s>", "cls": ["<s>", 0]}));
        let roberta = roberta.expect("a frame");
        assert_eq!((roberta.prefix, roberta.suffix), (vec![0], vec![7]));
        let unknown =
            json!({"type": "TemplateProcessing", "single": [{"token": "<x>"}, {"seq": "A"}]});
        assert!(load(&unknown).is_err());
    }

    #[test]
    fn old_and_new_spellings() {
        let bert =
            load(&json!({"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}));
        let old = load(&json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [101], "tokens": ["[CLS]"]}, "[SEP]": {"id": "[SEP]", "ids": [102], "tokens": ["[SEP]"]}}}));
        let new = load(
            &json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
            "single": [{"ids": [101]}, {"seq": "A"}, {"ids": [102]}],
            "pair": [{"ids": [101]}, {"seq": "A"}, {"ids": [102]}, {"seq": "B", "type_id": 1}, {"ids": [102], "type_id": 1}]}]}),
        );
        let [bert, old, new] = [bert, old, new].map(|frame| frame.expect("a frame"));
        assert_eq!((&bert, &new), (&old, &old));
        assert_eq!((old.prefix, old.suffix), (vec![101], vec![102]));
        let roberta =
            load(&json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}));
        let pair = roberta.expect("a frame").pair.expect("a pair");
        assert_eq!(
            pair.join_pair(vec![7], vec![8], 9),
            (vec![0, 7, 2, 2, 8, 2], vec![0; 6])
        );
        let two = load(&json!({"type": "Sequence", "processors": [
            {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]},
            {"type": "TemplateProcessing", "single": [{"ids": [5]}, {"seq": "A"}], "pair": []}]}));
        assert_eq!(
            two.expect("a frame"),
            SequenceTemplate {
                prefix: vec![5, 0],
                suffix: vec![2],
                pair: None
            }
        );
        for wrong in [
            json!({"type": "Elephant"}),
            json!({"type": "BertProcessing"}),
            json!({"type": "TemplateProcessing"}),
            json!({"type": "TemplateProcessing", "single": []}),
            json!({"type": "TemplateProcessing", "single": [{"seq": "A"}, {"seq": "A"}]}),
            json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}]}),
        ] {
            assert!(load(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pairs_have_token_types() {
        let pair = PairEncoding {
            prefix: vec![(101, 0)],
            infix: vec![(102, 0)],
            suffix: vec![(102, 1)],
            token_types: [0, 1],
        };
        let (ids, kinds) = pair.join_pair(vec![1, 2], vec![3, 4, 5, 6], 8);
        assert_eq!(
            (ids, kinds),
            (
                vec![101, 1, 2, 102, 3, 4, 5, 102],
                vec![0, 0, 0, 0, 1, 1, 1, 1]
            )
        );
    }
}
