//! Text of an answer: decodes tokens, holds back text that may become a stop string, and splits the
//! answer into parts.

use crate::chat::{AnswerParser, AnswerPart};
use crate::sample::LogProbs;
use crate::text::{StopStrings, StreamDecoder, Tokenizer};
use serde::Serialize;

/// A token with its log-probability.
#[derive(Debug, Clone, Serialize)]
pub struct TokenInfo {
    /// Its text.
    pub token: String,
    /// Its id.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens at its position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<TokenInfo>>,
}

/// Decodes tokens to text, holds back text that may become a stop string, and parses the answer.
pub(super) struct TextStream<'a> {
    tokenizer: Option<&'a Tokenizer>,
    decoder: Option<StreamDecoder>,
    /// The checkpoint's stop strings, which end the answer anywhere.
    ends: StopStrings,
    /// The caller's stop strings, which end its content: neither reasoning nor calls.
    stops: StopStrings,
    /// None if the answer is plain text.
    parser: Option<AnswerParser>,
    /// Tokens of the reasoning so far.
    pub reasoning_tokens: usize,
    /// The text so far.
    pub output: String,
}

/// Text that can be shown, and what it is.
#[derive(Default)]
pub(super) struct ParsedText {
    pub text: String,
    pub parts: Vec<AnswerPart>,
}

impl<'a> TextStream<'a> {
    /// `before` is the sequence to continue, so that a space after it is not stripped as a leading
    /// space.
    pub fn new(
        tokenizer: Option<&'a Tokenizer>,
        ends: &[String],
        stops: &[String],
        before: &[u32],
        parser: Option<AnswerParser>,
    ) -> Self {
        let mut decoder = tokenizer.map(|t| t.stream_decoder(true));
        if let (Some(tokenizer), Some(decoder)) = (tokenizer, &mut decoder) {
            before
                .iter()
                .for_each(|id| drop(decoder.push(tokenizer, *id)));
        }
        Self {
            tokenizer,
            decoder,
            ends: StopStrings::new(ends.iter().cloned()),
            stops: StopStrings::new(stops.iter().cloned()),
            parser,
            reasoning_tokens: 0,
            output: String::new(),
        }
    }

    pub fn push(&mut self, id: u32) -> ParsedText {
        let (Some(tokenizer), Some(decoder)) = (self.tokenizer, &mut self.decoder) else {
            return ParsedText::default();
        };
        let piece = decoder.push(tokenizer, id);
        let mut text = self.ends.push(&piece);
        // Stop strings may match special tokens, which are not part of the text. Those of the
        // answer's format are.
        let mut hidden = None;
        if let Some(special) = tokenizer.special_spelling(id) {
            let is_wanted = self.parser.as_ref().is_some_and(|p| p.wants(special));
            hidden = (!is_wanted).then_some(special);
            text += &match hidden {
                None => self.ends.push(special),
                Some(special) => self.ends.push_hidden(special),
            };
        }
        let was_reasoning = self.is_reasoning();
        let parts = self.parse(text);
        let parsed = self.stop(parts, hidden);
        self.output.push_str(&parsed.text);
        self.reasoning_tokens += usize::from(was_reasoning || self.is_reasoning());
        parsed
    }

    /// Whether the text so far ends inside reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.parser.as_ref().is_some_and(AnswerParser::is_reasoning)
    }

    /// The stop string that ended the answer.
    pub fn stopped(&self) -> Option<&str> {
        self.ends.stopped().or(self.stops.stopped())
    }

    fn parse(&mut self, text: String) -> Vec<AnswerPart> {
        match &mut self.parser {
            Some(parser) => parser.push(&text),
            None => vec![AnswerPart::Content { text }],
        }
    }

    /// Ends the parts at a stop string in their content. Content continues until another part
    /// starts.
    fn stop(&mut self, parts: Vec<AnswerPart>, hidden: Option<&str>) -> ParsedText {
        let mut parsed = ParsedText::default();
        for part in parts {
            match part {
                AnswerPart::Content { text } => self.show(|stops| stops.push(&text), &mut parsed),
                _ if self.stops.stopped().is_some() => {}
                part => {
                    self.show(StopStrings::finish, &mut parsed);
                    parsed.parts.push(part);
                }
            }
        }
        if let Some(special) = hidden {
            self.show(|stops| stops.push_hidden(special), &mut parsed);
        }
        parsed
    }

    /// Adds content that the caller's stop strings release.
    fn show(&mut self, release: impl FnOnce(&mut StopStrings) -> String, parsed: &mut ParsedText) {
        let text = release(&mut self.stops);
        if text.is_empty() {
            return;
        }
        parsed.text += &text;
        if self.parser.is_some() {
            parsed.parts.push(AnswerPart::Content { text });
        }
    }

    /// Ends the answer; `is_cut` as in [`AnswerParser::cut`].
    pub fn finish(&mut self, is_cut: bool) -> ParsedText {
        let rest = self
            .decoder
            .as_mut()
            .map(StreamDecoder::finish)
            .unwrap_or_default();
        let mut text = self.ends.push(&rest);
        text.push_str(&self.ends.finish());
        let mut parts = self.parse(text);
        if let Some(parser) = &mut self.parser {
            parts.extend(if is_cut {
                parser.cut()
            } else {
                parser.finish()
            });
        }
        let mut parsed = self.stop(parts, None);
        self.show(StopStrings::finish, &mut parsed);
        self.output.push_str(&parsed.text);
        parsed
    }

    /// Whether the answer has tool calls.
    pub fn has_calls(&self) -> bool {
        self.parser.as_ref().is_some_and(AnswerParser::has_calls)
    }

    pub fn token_info(&self, logprobs: &LogProbs) -> TokenInfo {
        let one = |id: u32, logprob: f32| {
            // Raw bytes: decoding the token alone would strip its leading space.
            let bytes = self.tokenizer.and_then(|t| t.id_to_bytes(id));
            let token = bytes
                .as_deref()
                .map(|b| String::from_utf8_lossy(b).into_owned())
                .unwrap_or_default();
            TokenInfo {
                token,
                id,
                logprob,
                bytes,
                top: None,
            }
        };
        let top = logprobs
            .top
            .iter()
            .map(|t| one(t.token, t.logprob))
            .collect();
        TokenInfo {
            top: Some(top),
            ..one(logprobs.sampled.token, logprobs.sampled.logprob)
        }
    }
}
