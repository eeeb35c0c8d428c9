//! Streaming detokenizer: the decoders of tokenizer.json as a chain with bounded state, so the cost
//! per token does not grow with the sequence. Its input is token strings, not ids.

use serde_json::Value;

use super::alphabet::char_to_byte;
use super::components::flatten;
use super::tokenizer_error;
use crate::Result;
use crate::util::limits::{MAX_DECODER_GROWTH, MAX_STRIPPED_CHARS};

pub(super) const REPLACEMENT: char = '\u{FFFD}';

/// A token string on its way through the decoders.
pub(super) struct TokenPiece {
    pub text: String,
    /// Added tokens are plain text, not in the model's byte alphabet.
    pub added: bool,
}

/// A decoder with its state.
#[derive(Debug, Clone)]
enum DecoderStage {
    /// GPT-2's byte alphabet; `tail` holds an incomplete character. `strict`: added tokens are not
    /// in the alphabet.
    Bytes {
        strict: bool,
        tail: Vec<u8>,
    },
    /// `<0x41>` is a byte. A run of bytes becomes text only if the whole run is valid UTF-8.
    ByteFallback {
        run: Vec<u8>,
    },
    Replace {
        from: String,
        to: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
        fused: bool,
        cut: usize,
        buffered: usize,
    },
    WordPiece {
        prefix: String,
        cleanup: bool,
        first: bool,
    },
    Metaspace {
        replacement: char,
        drop_first: bool,
        first: bool,
    },
    Suffix {
        suffix: String,
        last: Option<String>,
    },
    Ctc {
        pad: String,
        delimiter: String,
        cleanup: bool,
        last: Option<String>,
    },
    /// No decoder: joins tokens with spaces.
    Join {
        first: bool,
    },
}

/// The decoder chain of a tokenizer with its state.
#[derive(Debug, Clone)]
pub(super) struct TokenDecoder {
    stages: Vec<DecoderStage>,
}

impl TokenDecoder {
    /// Reads `decoder` of tokenizer.json, which a byte-level BPE model overrides.
    pub fn new(decoder: &Value, byte_level_model: bool) -> Result<TokenDecoder> {
        let mut stages = Vec::new();
        if byte_level_model {
            stages.push(DecoderStage::Bytes {
                strict: true,
                tail: Vec::new(),
            });
        } else if decoder.is_null() {
            stages.push(DecoderStage::Join { first: true });
        } else {
            let mut members = Vec::new();
            flatten(decoder, "decoders", 0, &mut members)?;
            let mut fused = false;
            for member in members {
                add_stage(member, &mut stages, &mut fused)?;
            }
        }
        let growth: f64 = stages.iter().map(DecoderStage::growth).product();
        if growth > MAX_DECODER_GROWTH {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the decoders can make a token {growth:.0} times as long; at most {MAX_DECODER_GROWTH} is supported"
            )));
        }
        Ok(TokenDecoder { stages })
    }

    /// Decodes one token and appends the final text to `out`.
    pub fn push(&mut self, piece: TokenPiece, out: &mut String) {
        run_stages(&mut self.stages, piece, out);
    }

    /// Appends the text that is still buffered.
    pub fn finish(&mut self, out: &mut String) {
        finish(&mut self.stages, out);
    }

    /// Returns the bytes of a token in the middle of a sequence.
    pub fn bytes_of(&self, piece: TokenPiece) -> Vec<u8> {
        let mapped = || {
            piece
                .text
                .chars()
                .map(char_to_byte)
                .collect::<Option<Vec<u8>>>()
        };
        match self.stages.first() {
            Some(DecoderStage::Bytes { strict, .. }) if !(piece.added && *strict) => {
                mapped().unwrap_or_else(|| piece.text.clone().into_bytes())
            }
            Some(DecoderStage::Bytes { .. }) => piece.text.into_bytes(),
            _ => {
                let has_bytes = self
                    .stages
                    .iter()
                    .any(|s| matches!(s, DecoderStage::ByteFallback { .. }));
                if let Some(byte) = fallback_byte(&piece.text).filter(|_| has_bytes) {
                    return vec![byte];
                }
                // A preceding token absorbs the special handling of the first token; its text is
                // cut off again.
                let first = || TokenPiece {
                    text: "x".to_owned(),
                    added: false,
                };
                let mut alone = String::new();
                let mut both = String::new();

                let mut decoder = self.clone();
                decoder.push(first(), &mut alone);
                decoder.finish(&mut alone);
                let mut decoder = self.clone();
                decoder.push(first(), &mut both);
                decoder.push(piece, &mut both);
                decoder.finish(&mut both);
                both.strip_prefix(alone.as_str())
                    .unwrap_or(&both)
                    .as_bytes()
                    .to_vec()
            }
        }
    }

    /// Appends the text that can be shown now; returns whether it ends inside a character.
    pub fn flush_complete(&mut self, out: &mut String) -> bool {
        for i in 0..self.stages.len() {
            let Some((stage, rest)) = self
                .stages
                .get_mut(i..)
                .and_then(<[DecoderStage]>::split_first_mut)
            else {
                break;
            };
            match stage {
                DecoderStage::Bytes { tail, .. } if !tail.is_empty() => return true,
                DecoderStage::ByteFallback { run } if !run.is_empty() => {
                    match String::from_utf8(std::mem::take(run)) {
                        Ok(text) => run_stages(rest, TokenPiece { text, added: false }, out),
                        Err(broken) => {
                            *run = broken.into_bytes();
                            return true;
                        }
                    }
                }
                _ => {}
            }
        }
        false
    }
}

impl DecoderStage {
    /// How many times longer the stage can make a text, apart from a fixed number of characters.
    fn growth(&self) -> f64 {
        let replaced = |from: &str, to: &str| match from.len() {
            // Between all characters.
            0 => 1.0 + to.len() as f64,
            length => (to.len() as f64 / length as f64).max(1.0),
        };
        match self {
            DecoderStage::Replace { from, to } if !from.is_empty() => replaced(from, to),
            DecoderStage::Suffix { suffix, .. } => replaced(suffix, " "),
            DecoderStage::Ctc { delimiter, .. } => replaced(delimiter, " "),
            _ => 1.0,
        }
    }
}

fn add_stage(node: &Value, stages: &mut Vec<DecoderStage>, fused: &mut bool) -> Result<()> {
    let text = |key: &str| node.get(key).and_then(Value::as_str).map(str::to_owned);
    let missing =
        |key: &str| tokenizer_error(format!("tokenizer.json: a decoder has no usable {key:?}"));
    let character = |key: &str| {
        text(key)
            .and_then(|t| t.chars().next())
            .ok_or_else(|| missing(key))
    };
    let count = |key: &str| match node.get(key).and_then(Value::as_u64).unwrap_or(0) {
        count @ 0..=MAX_STRIPPED_CHARS => Ok(count as usize),
        count => Err(tokenizer_error(format!(
            "tokenizer.json: a decoder strips {count} characters; at most {MAX_STRIPPED_CHARS} are supported"
        ))),
    };
    let flag = |key: &str| node.get(key).and_then(Value::as_bool).unwrap_or(true);
    stages.push(
        match node.get("type").and_then(Value::as_str).unwrap_or_default() {
            "Fuse" => {
                *fused = true;
                return Ok(());
            }
            "ByteLevel" => DecoderStage::Bytes {
                strict: false,
                tail: Vec::new(),
            },
            "ByteFallback" => DecoderStage::ByteFallback { run: Vec::new() },
            "Replace" => {
                let from = node
                    .pointer("/pattern/String")
                    .and_then(Value::as_str)
                    .ok_or_else(|| missing("pattern"))?;
                DecoderStage::Replace {
                    from: from.to_owned(),
                    to: text("content").unwrap_or_default(),
                }
            }
            "Strip" => {
                let start = count("start")?;
                let stop = count("stop")?;

                DecoderStage::Strip {
                    content: character("content")?,
                    start,
                    stop,
                    fused: *fused,
                    cut: 0,
                    buffered: 0,
                }
            }
            "WordPiece" => DecoderStage::WordPiece {
                prefix: text("prefix").unwrap_or_else(|| "##".to_owned()),
                cleanup: flag("cleanup"),
                first: true,
            },
            "Metaspace" => {
                // Older files have add_prefix_space instead of a scheme: whether the tokenizer adds
                // the first space.
                let scheme = text("prepend_scheme").unwrap_or_else(|| "always".to_owned());
                DecoderStage::Metaspace {
                    replacement: character("replacement")?,
                    drop_first: scheme != "never" && flag("add_prefix_space"),
                    first: true,
                }
            }
            "BPEDecoder" => DecoderStage::Suffix {
                suffix: text("suffix").unwrap_or_else(|| "</w>".to_owned()),
                last: None,
            },
            "CTC" => DecoderStage::Ctc {
                pad: text("pad_token").unwrap_or_else(|| "<pad>".to_owned()),
                delimiter: text("word_delimiter_token").unwrap_or_else(|| "|".to_owned()),
                cleanup: flag("cleanup"),
                last: None,
            },
            other => {
                return Err(tokenizer_error(format!(
                    "tokenizer.json: the decoder {other:?} is not supported"
                )));
            }
        },
    );
    Ok(())
}

/// Passes `piece` through the decoders.
fn run_stages(stages: &mut [DecoderStage], piece: TokenPiece, out: &mut String) {
    let Some((stage, rest)) = stages.split_first_mut() else {
        out.push_str(&piece.text);
        return;
    };
    let TokenPiece { text, added } = piece;
    let text = match stage {
        DecoderStage::Bytes { strict, tail } => {
            let mut bytes = std::mem::take(tail);
            match text.chars().map(char_to_byte).collect::<Option<Vec<u8>>>() {
                Some(mapped) if !(added && *strict) => bytes.extend(mapped),
                _ => bytes.extend(text.as_bytes()),
            }
            let mut decoded = String::new();
            *tail = decode_utf8(&bytes, &mut decoded);
            decoded
        }
        DecoderStage::ByteFallback { run } => match fallback_byte(&text) {
            Some(byte) => {
                run.push(byte);
                return;
            }
            None => {
                end_run(run, rest, out);
                text
            }
        },
        DecoderStage::Replace { from, to } if !from.is_empty() => text.replace(from.as_str(), to),
        DecoderStage::Replace { .. } => text,
        DecoderStage::Strip {
            content,
            start,
            stop,
            fused,
            cut,
            buffered: held,
        } => {
            if !*fused {
                (*cut, *held) = (0, 0);
            }
            let kept = text.trim_start_matches(|c| {
                let goes = c == *content && *cut < *start;
                *cut += usize::from(goes);
                goes
            });
            if !kept.is_empty() {
                *cut = *start;
            }
            let mut whole: String = std::iter::repeat_n(*content, *held)
                .chain(kept.chars())
                .collect();
            *held = 0;
            while *held < *stop && whole.ends_with(*content) {
                whole.pop();
                *held += 1;
            }
            whole
        }
        DecoderStage::WordPiece {
            prefix,
            cleanup,
            first,
        } => {
            let joined = match text.strip_prefix(prefix.as_str()) {
                _ if std::mem::take(first) => text,
                Some(rest) => rest.to_owned(),
                None => format!(" {text}"),
            };
            if *cleanup { clean_up(&joined) } else { joined }
        }
        DecoderStage::Metaspace {
            replacement,
            drop_first,
            first,
        } => {
            let to = if std::mem::take(first) && *drop_first {
                ""
            } else {
                " "
            };
            text.replace(*replacement, to)
        }
        DecoderStage::Suffix { suffix, last } => match last.replace(text) {
            Some(previous) => previous.replace(suffix.as_str(), " "),
            None => return,
        },
        DecoderStage::Ctc {
            pad,
            delimiter,
            cleanup,
            last,
        } => {
            if last.as_ref() == Some(&text) {
                return;
            }
            *last = Some(text.clone());
            let text = text.replace(pad.as_str(), "");
            if *cleanup {
                clean_up(&text).replace(delimiter.as_str(), " ")
            } else {
                text
            }
        }
        DecoderStage::Join { first } => {
            if std::mem::take(first) {
                text
            } else {
                format!(" {text}")
            }
        }
    };
    run_stages(rest, TokenPiece { text, added }, out);
}

/// Flushes every decoder, first to last.
fn finish(stages: &mut [DecoderStage], out: &mut String) {
    let Some((stage, rest)) = stages.split_first_mut() else {
        return;
    };
    match stage {
        DecoderStage::Bytes { tail, .. } if !tail.is_empty() => {
            tail.clear();
            run_stages(
                rest,
                TokenPiece {
                    text: REPLACEMENT.to_string(),
                    added: false,
                },
                out,
            );
        }
        DecoderStage::ByteFallback { run } => end_run(run, rest, out),
        DecoderStage::Suffix { suffix, last } => {
            if let Some(previous) = last.take() {
                run_stages(
                    rest,
                    TokenPiece {
                        text: previous.replace(suffix.as_str(), ""),
                        added: false,
                    },
                    out,
                );
            }
        }
        _ => {}
    }
    finish(rest, out);
}

/// Ends a run of bytes: appends text, or one replacement character per byte.
fn end_run(run: &mut Vec<u8>, rest: &mut [DecoderStage], out: &mut String) {
    if run.is_empty() {
        return;
    }
    let bytes = std::mem::take(run);
    let text = String::from_utf8(bytes).unwrap_or_else(|broken| {
        std::iter::repeat_n(REPLACEMENT, broken.as_bytes().len()).collect()
    });
    run_stages(rest, TokenPiece { text, added: false }, out);
}

fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2)
        .then(|| u8::from_str_radix(hex, 16).ok())
        .flatten()
}

/// Appends `bytes` as UTF-8 with broken characters replaced; returns an incomplete character at the
/// end.
fn decode_utf8(mut bytes: &[u8], out: &mut String) -> Vec<u8> {
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return Vec::new();
            }
            Err(error) => error,
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        out.push_str(&String::from_utf8_lossy(valid));
        match error.error_len() {
            None => return rest.to_vec(),
            Some(n) => {
                out.push(REPLACEMENT);
                bytes = rest.get(n..).unwrap_or_default();
            }
        }
    }
}

/// Clean-up of WordPiece, in the order of the reference.
fn clean_up(text: &str) -> String {
    const RULES: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    RULES
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decode(decoder: &Value, tokens: &[&str]) -> String {
        let mut decoder = TokenDecoder::new(decoder, false).expect("supported");
        let mut out = String::new();
        for token in tokens {
            decoder.push(
                TokenPiece {
                    text: (*token).to_owned(),
                    added: false,
                },
                &mut out,
            );
        }
        decoder.finish(&mut out);
        out
    }

    #[test]
    fn llama_like() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        assert_eq!(
            decode(
                &llama,
                &["\u{2581}", "\u{2581}Hi", "<0xE5>", "<0x8F>", "<0xAB>"]
            ),
            " Hi\u{53eb}"
        );
        assert_eq!(
            decode(&llama, &["<0xE5>", "a", "<0xE5>", "<0x8F>"]),
            "\u{fffd}a\u{fffd}\u{fffd}"
        );
        assert_eq!(decode(&llama, &[]), "");
    }

    #[test]
    fn other_decoders() {
        assert_eq!(
            decode(
                &json!({"type": "WordPiece", "prefix": "##"}),
                &["do", "##n", "'", "t", "."]
            ),
            "don ' t."
        );
        assert_eq!(
            decode(
                &json!({"type": "Metaspace", "replacement": "_"}),
                &["_a_", "_b"]
            ),
            "a b"
        );
        assert_eq!(
            decode(
                &json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"}),
                &["_a"]
            ),
            " a"
        );
        assert_eq!(
            decode(
                &json!({"type": "BPEDecoder", "suffix": "</w>"}),
                &["a", "b</w>", "c</w>"]
            ),
            "ab c"
        );
        assert_eq!(
            decode(
                &json!({"type": "CTC"}),
                &["<pad>", "h", "h", "|", "i", "<pad>", "i"]
            ),
            "h ii"
        );
        assert_eq!(decode(&Value::Null, &["a", "b"]), "a b");
        let strip = json!({"type": "Strip", "content": "x", "start": 1, "stop": 2});
        assert_eq!(decode(&strip, &["xxaxxx", "x", ""]), "xax");
        let fused = json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, strip]});
        assert_eq!(
            decode(&fused, &["x", "xa", "x", "xx", "b", "xx", "x"]),
            "xaxxxbx"
        );
        assert!(TokenDecoder::new(&json!({"type": "Unheard"}), false).is_err());
        assert!(TokenDecoder::new(&json!({"type": "Strip"}), false).is_err());
    }

    #[test]
    fn broken_utf8_is_replaced_as_the_standard_library_does() {
        let bytes = b"a\xE5\x8F\xFFb\xF0\x9F\x98\x80\xC3";
        for cut in 0..bytes.len() {
            let mut out = String::new();
            let mut tail = decode_utf8(&bytes[..cut], &mut out);
            tail.extend(&bytes[cut..]);
            if !decode_utf8(&tail, &mut out).is_empty() {
                out.push(REPLACEMENT);
            }
            assert_eq!(out, String::from_utf8_lossy(bytes));
        }
    }
}
