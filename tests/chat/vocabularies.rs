//! Calls by a grammar over trained vocabularies: SentencePiece with byte fallback and byte-level
//! BPE, with markers as special and as plain tokens. What a random walk writes, forced text
//! included, is read back as calls.

use super::grammar::{FORMATS, allowed, assert_arguments, next_random};
use super::join;
use flate2::read::GzDecoder;
use jerboa::chat::{AnswerFormat, AnswerStart};
use jerboa::text::Tokenizer;
use jerboa_grammar::{Constraint, ForcedPart, Grammar, Vocabulary, with_source};
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::Path;

/// A format beyond [`FORMATS`]: its template has thoughts too.
const WITH_THOUGHTS: (&str, &[&str]) = (
    "<tool_call><think></think>",
    &["<tool_call>", "</tool_call>", "<think>", "</think>"],
);

/// Templates of the formats that are walked over published vocabularies.
const PUBLISHED: [&str; 5] = [
    "<tool_call>",
    "<function=",
    "<|tool_call> <|channel>",
    "<arg_key>",
    "<｜tool▁call▁begin｜>",
];

/// Words of each family's template, and its markers.
fn formats() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let known = FORMATS
        .iter()
        .map(|format| (format.template, format.tokens));
    known.chain([WITH_THOUGHTS])
}

/// The tools of a request.
fn tools() -> Value {
    json!([
        { "name": "weather", "strict": true, "parameters": {
            "type": "object",
            "properties": {
                "city": { "type": "string", "enum": ["Oslo", "Bergen"] },
                "days": { "type": "integer", "minimum": 0, "maximum": 14 },
                "note": { "type": ["string", "null"], "maxLength": 6 },
                "tags": { "type": "array", "items": { "enum": ["sun", "rain", true] }, "maxItems": 2 },
            },
            "required": ["city", "days"],
            "additionalProperties": false,
        } },
        { "name": "now", "parameters": { "type": "object", "properties": {} } },
    ])
}

/// A vocabulary with a format's markers.
struct Setup {
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    format: AnswerFormat,
    template: &'static str,
    end: u32,
}

/// Reads a tokenizer.json, compressed or not.
fn tokenizer_file(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut text = String::new();
    match path.extension().is_some_and(|name| name == "gz") {
        true => {
            GzDecoder::new(&bytes[..])
                .read_to_string(&mut text)
                .expect("a compressed file");
        }
        false => text = String::from_utf8(bytes).expect("text"),
    }
    serde_json::from_str(&text).expect("JSON")
}

impl Setup {
    /// Every second marker is special: the even ones, or the odd ones.
    fn new(
        file: &Value,
        end: &str,
        (template, markers): (&'static str, &[&str]),
        parity: usize,
    ) -> Self {
        let plain = Tokenizer::from_json(file.to_string().as_bytes()).expect("a tokenizer");
        let first = plain.id_bound();
        let mut file = file.clone();
        let added = file["added_tokens"].as_array_mut().expect("a list");
        for (at, marker) in markers.iter().enumerate() {
            added.push(json!({
                "id": first + at as u32, "content": marker, // This decoder writes a blank for ▁ in plain tokens.
                "special": at % 2 == parity || marker.contains('▁'),
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            }));
        }
        let tokenizer = Tokenizer::from_json(file.to_string().as_bytes()).expect("a tokenizer");
        let end = tokenizer.token_to_id(end).expect("an end token");
        let format = AnswerFormat::detect(template, &|name| tokenizer.token_to_id(name).is_some());
        let marker_ids: Vec<u32> = markers
            .iter()
            .filter_map(|marker| tokenizer.token_to_id(marker))
            .collect();
        let bytes = (0..tokenizer.id_bound()).map(|id| match marker_ids.contains(&id) {
            true => Vec::new(),
            false => tokenizer.text_bytes(id),
        });
        Self {
            vocabulary: Vocabulary::new(bytes.collect(), &[end]).expect("a vocabulary"),
            tokenizer,
            format,
            template,
            end,
        }
    }

    fn grammar(&self) -> Grammar {
        let mut spec = self
            .format
            .spelling(self.template, &|marker| self.tokenizer.token_to_id(marker));
        spec["tools"] = tools();
        spec["choice"] = "required".into();
        spec["parallel"] = true.into();
        with_source("answer", &spec.to_string(), |constraint| {
            self.vocabulary.grammar(constraint)
        })
        .flatten()
        .unwrap_or_else(|error| panic!("{}: {error}", self.template))
    }

    /// Forced parts as tokens.
    fn encoded(&self, parts: &[ForcedPart]) -> Vec<u32> {
        let mut ids = Vec::new();
        for part in parts {
            match part {
                ForcedPart::Token(id) => ids.push(*id),
                ForcedPart::Text(bytes) => {
                    let text = String::from_utf8_lossy(bytes);
                    let text = text.trim_end_matches('\u{fffd}');
                    ids.extend(self.tokenizer.encode_continuation(text).expect("tokens"));
                }
            }
        }
        if matches!(parts.last(), Some(ForcedPart::Text(_))) {
            ids.pop();
        }
        ids
    }

    /// A random answer and how many of its tokens were forced; None if it does not end in time.
    fn walk(&self, random: &mut u64) -> Option<(Vec<u32>, usize)> {
        let mut grammar = self.grammar();
        let mut ids = Vec::new();
        let mut forced = 0;
        while ids.len() < 600 {
            let next = self.encoded(&grammar.forced());
            let count = grammar.valid_prefix(&next).expect("a prefix");
            if count >= 2 {
                forced += count;
                for id in &next[..count] {
                    let accepted = grammar.accept(*id);
                    accepted
                        .unwrap_or_else(|e| panic!("{}: {next:?}, {count}: {e}", self.template));
                }
                ids.extend_from_slice(&next[..count]);
                continue;
            }
            let allowed = allowed(&mut grammar, &self.vocabulary);
            assert!(
                !allowed.is_empty(),
                "{}: {}",
                self.template,
                self.tokenizer.decode(&ids, false)
            );
            if allowed.contains(&self.end)
                && (allowed.len() == 1 || next_random(random).is_multiple_of(2))
            {
                return Some((ids, forced));
            }
            let others: Vec<u32> = allowed.into_iter().filter(|id| *id != self.end).collect();
            let id = others[next_random(random) as usize % others.len()];
            grammar.accept(id).expect("an allowed token");
            ids.push(id);
        }
        None
    }

    /// The answer's text as a stream gives it to the parser.
    fn check(&self, ids: &[u32]) {
        let request = tools();
        let request = request.as_array().expect("a list");
        let mut parser = self.format.parser(AnswerStart {
            tools: request,
            ..AnswerStart::default()
        });
        let mut decoder = self.tokenizer.stream_decoder(true);
        let mut parts = Vec::new();
        let mut whole = String::new();
        for id in ids {
            let mut text = decoder.push(&self.tokenizer, *id);
            if let Some(special) = self.tokenizer.special_spelling(*id)
                && parser.wants(special)
            {
                text += special;
            }
            parts.extend(parser.push(&text));
            whole += &text;
        }
        let rest = decoder.finish();
        parts.extend(parser.push(&rest));
        parts.extend(parser.finish());
        let answer = join(&parts);
        let place = format!("{}: {whole:?}", self.template);
        assert_eq!(answer.content.trim(), "", "{place}");
        assert!(!answer.calls.is_empty(), "{place}");
        assert_arguments(&answer.calls, request, &place, |schema, arguments| {
            let found: Value = serde_json::from_str(arguments)
                .unwrap_or_else(|e| panic!("{e}: {arguments} of {place}"));
            let mut grammar = bytes_vocabulary()
                .grammar(Constraint::JsonSchema(schema))
                .expect("a schema");
            // The compiler writes no DEL, which JSON allows.
            let text = found.to_string().replace('\u{7f}', "?");
            let refused = text.bytes().position(|b| grammar.accept(b.into()).is_err());
            refused.or((!grammar.is_complete()).then_some(text.len()))
        });
    }
}

fn bytes_vocabulary() -> Vocabulary {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    tokens.push(b"<eos>".to_vec());
    Vocabulary::new(tokens, &[256]).expect("a vocabulary")
}

/// Walks `count` times through a format's calls; some must end, and some tokens be forced.
fn walk_all(setup: &Setup, count: usize) {
    let mut random = 5;
    let mut ended = 0;
    let mut forced = 0;
    for _ in 0..count {
        if let Some((ids, forced_here)) = setup.walk(&mut random) {
            setup.check(&ids);
            ended += 1;
            forced += forced_here;
        }
    }
    let counts = format!("{}: {ended} of {count} ended", setup.template);
    assert!(ended >= 2, "{counts}");
    assert!(forced > 2 * ended, "{counts}, {forced} tokens forced");
}

#[test]
fn calls_over_a_small_vocabulary_are_read_back() {
    let file = tokenizer_file("../www/public/models/stories260K/tokenizer.json");
    for format in formats() {
        for parity in [0, 1] {
            walk_all(&Setup::new(&file, "</s>", format, parity), 6);
        }
    }
}

#[test]
fn calls_over_published_vocabularies_are_read_back() {
    for (name, end) in [("smollm2", "<|im_end|>"), ("phi3-mini", "<|end|>")] {
        let file = tokenizer_file(&format!("golden/text/tokenizers/{name}/tokenizer.json.gz"));
        for published in PUBLISHED {
            let format = formats().find(|(template, _)| *template == published);
            let format = format.expect("a format");
            walk_all(&Setup::new(&file, end, format, 0), 4);
        }
    }
}
