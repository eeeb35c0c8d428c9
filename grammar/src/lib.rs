//! Constrained decoding: which tokens may follow, so that the output matches a JSON schema, a
//! regular expression or a grammar.
//!
//! A [`Vocabulary`] holds the bytes of a model's tokens and is built once a model. A [`Grammar`]
//! follows one generation: it gives a mask of one bit a token before each step and advances with
//! each sampled token. The crate does not depend on the engine; pages load it as a WebAssembly
//! module of its own when the first request asks for structured output.

mod calls;
mod gbnf;
mod masks;
mod schema;
#[cfg(target_arch = "wasm32")]
mod web;

pub use calls::AnswerSpec;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory, TokenParser};
use masks::{MaskComputer, PlainTokens};
use serde_json::Value;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

/// A fault of a schema, a grammar or a token.
#[derive(Debug, thiserror::Error)]
pub enum GrammarError {
    /// The schema or grammar cannot be compiled.
    #[error("{kind}: {reason}")]
    Invalid {
        /// What was compiled, such as `JSON schema`.
        kind: &'static str,
        /// The compiler's reason.
        reason: String,
    },
    /// The vocabulary has no tokens or no end-of-text token.
    #[error("vocabulary: {0}")]
    Vocabulary(&'static str),
    /// A token does not continue the output, or a limit on work a step was exceeded.
    #[error("constrained decoding stopped: {0}")]
    Step(String),
}

/// Maximum strings of a [`Constraint::Choice`].
pub const MAX_CHOICES: usize = 10_000;

/// What the output must match.
#[derive(Debug, Clone, Copy)]
pub enum Constraint<'a> {
    /// A JSON schema (draft 2020-12, `$ref` within the document).
    JsonSchema(&'a Value),
    /// Any JSON object.
    JsonObject,
    /// A regular expression over the whole output, in the syntax of Rust's `regex` crate.
    Regex(&'a str),
    /// A grammar in Lark syntax with the start rule `start`.
    Lark(&'a str),
    /// A grammar in llama.cpp's GBNF with the start rule `root`.
    Gbnf(&'a str),
    /// One of these strings.
    Choice(&'a [String]),
    /// An answer with tool calls in a family's format: see [`AnswerSpec`].
    Answer(&'a AnswerSpec),
}

impl Constraint<'_> {
    fn kind(self) -> &'static str {
        match self {
            Constraint::JsonSchema(_) | Constraint::JsonObject => "JSON schema",
            Constraint::Regex(_) => "regular expression",
            Constraint::Lark(_) => "Lark grammar",
            Constraint::Gbnf(_) => "GBNF grammar",
            Constraint::Choice(_) => "choice",
            Constraint::Answer(_) => "tools",
        }
    }

    fn compile(self) -> Result<TopLevelGrammar, GrammarError> {
        let invalid = |reason: String| GrammarError::Invalid {
            kind: self.kind(),
            reason,
        };
        Ok(match self {
            Constraint::JsonSchema(schema) => {
                let schema = &schema::resolve_references(schema).map_err(invalid)?;
                schema::check_size(schema).map_err(invalid)?;
                if schema == &Value::Bool(false) {
                    return Err(invalid(
                        "no value matches the schema 'false'. Use another schema.".to_owned(),
                    ));
                }
                TopLevelGrammar::from_json_schema(schema::prepare(schema, true))
            }
            Constraint::JsonObject => TopLevelGrammar::from_json_schema(schema::prepare(
                &serde_json::json!({ "type": "object" }),
                true,
            )),
            Constraint::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Constraint::Lark(text) => TopLevelGrammar::from_lark(text.to_owned()),
            Constraint::Gbnf(text) => {
                TopLevelGrammar::from_lark(gbnf::to_lark(text).map_err(invalid)?)
            }
            Constraint::Choice([]) => {
                return Err(invalid(
                    "the list is empty. Add at least one string.".to_owned(),
                ));
            }
            Constraint::Choice(strings) if strings.len() > MAX_CHOICES => {
                return Err(invalid(format!(
                    "it has {} strings; at most {MAX_CHOICES} are supported",
                    strings.len()
                )));
            }
            Constraint::Choice(strings) => {
                let alternatives: Vec<String> = strings.iter().map(|s| calls::literal(s)).collect();
                // One terminal, which is compiled to one expression.
                TopLevelGrammar::from_lark(format!(
                    "start: CHOICE\nCHOICE: {}",
                    alternatives.join(" | ")
                ))
            }
            Constraint::Answer(spec) => {
                let answer = match spec.answer() {
                    Some(answer) => {
                        Some(with_source(&answer.kind, &answer.source, |c| c.compile())??)
                    }
                    None => None,
                };
                spec.compile(answer).map_err(invalid)?
            }
        })
    }
}

/// Calls `f` with the constraint of a kind's name (`json_schema`, `json_object`, `regex`, `lark`,
/// `gbnf`, `choice` or `answer`) and its text, which is JSON for schemas, choices and answers.
///
/// # Errors
/// If the kind is not known or the JSON is invalid.
pub fn with_source<T>(
    kind: &str,
    source: &str,
    f: impl FnOnce(Constraint) -> T,
) -> Result<T, GrammarError> {
    fn json<'a, T: serde::Deserialize<'a>>(
        kind: &'static str,
        source: &'a str,
    ) -> Result<T, GrammarError> {
        serde_json::from_str(source).map_err(|e| GrammarError::Invalid {
            kind,
            reason: format!("invalid JSON: {e}"),
        })
    }
    Ok(match kind {
        "json_schema" => f(Constraint::JsonSchema(&json("JSON schema", source)?)),
        "json_object" => f(Constraint::JsonObject),
        "regex" => f(Constraint::Regex(source)),
        "lark" => f(Constraint::Lark(source)),
        "gbnf" => f(Constraint::Gbnf(source)),
        "choice" => f(Constraint::Choice(&json::<Vec<String>>("choice", source)?)),
        "answer" => f(Constraint::Answer(&json("tools", source)?)),
        _ => {
            return Err(GrammarError::Invalid {
                kind: "grammar",
                reason: format!("unknown kind '{kind}'"),
            });
        }
    })
}

/// Maximum number of compiled constraints in a vocabulary's cache: programs use the same ones again.
const MAX_RECENT: usize = 4;
/// Maximum bytes of the lexer of a cached constraint.
const MAX_RECENT_BYTES: usize = 16 << 20;

/// Maximum fuel of the lexer for a mask, about 0.15 s natively. Beyond it the answer stops with an
/// error; a mask of words in all scripts needs more than llguidance's own 200,000.
const STEP_FUEL: u64 = 2_000_000;

/// A compiled constraint before its first token. Its copies share the lexer and the cache of masks.
#[derive(Clone)]
struct Compiled {
    parser: TokenParser,
    forces_text: bool,
}

impl Compiled {
    /// Whether it stays in the cache: its lexer has not failed, and is not too large.
    fn is_usable(&self) -> bool {
        let lexer = self.parser.parser.lexer_stats();
        !lexer.error && lexer.num_bytes < MAX_RECENT_BYTES
    }
}

/// A compiled constraint by its kind and source.
struct Recent {
    kind: String,
    source: String,
    compiled: Compiled,
}

/// The tokens of a model as bytes, in a trie.
pub struct Vocabulary {
    factory: ParserFactory,
    tokens: Arc<PlainTokens>,
    /// The last one first.
    recent: Mutex<VecDeque<Recent>>,
    size: usize,
    ends: Arc<[u32]>,
}

impl Vocabulary {
    /// Builds the trie from each token's bytes, by id.
    ///
    /// A token without bytes, such as a special token, is never allowed. `end_ids` end the output:
    /// they are allowed where the output is complete.
    ///
    /// # Errors
    /// If there are no tokens, or no end id is among them.
    pub fn new(mut tokens: Vec<Vec<u8>>, end_ids: &[u32]) -> Result<Vocabulary, GrammarError> {
        let size = tokens.len();
        let ends: Vec<TokenId> = end_ids
            .iter()
            .copied()
            .filter(|&id| (id as usize) < size)
            .collect();
        let &first = ends.first().ok_or(GrammarError::Vocabulary(
            "it has no end-of-text token, so structured output would never end",
        ))?;
        // The trie takes tokens that begin with this byte for special ones. No text contains it.
        for token in &mut tokens {
            if token.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                token.clear();
            }
        }
        for &id in &ends {
            tokens[id as usize] = format!("\u{ff}<end {id}>").into_bytes();
            tokens[id as usize].drain(..1);
            tokens[id as usize][0] = TokTrie::SPECIAL_TOKEN_MARKER;
        }
        let trie =
            TokTrie::from(&TokRxInfo::new(size as u32, first), &tokens).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(TokenBytes { trie });
        let tokens = Arc::new(PlainTokens::new(env.tok_trie()));
        let slices = masks::slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| GrammarError::Step(e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            step_lexer_fuel: STEP_FUEL,
            ..ParserLimits::default()
        };
        Ok(Vocabulary {
            factory,
            tokens,
            recent: Mutex::default(),
            size,
            ends: ends.into(),
        })
    }

    /// Number of 32-bit words in a mask.
    pub fn mask_words(&self) -> usize {
        self.size.div_ceil(32)
    }

    /// Compiles a constraint for one generation.
    ///
    /// # Errors
    /// If the schema or grammar is invalid, unsatisfiable, or uses a keyword that cannot be
    /// enforced.
    pub fn grammar(&self, constraint: Constraint) -> Result<Grammar, GrammarError> {
        Ok(self.start(self.compile(constraint)?))
    }

    /// Compiles a constraint given as the name of a kind and its text (see [`with_source`]), or reuses a
    /// recent one.
    ///
    /// # Errors
    /// As [`Self::grammar`] and [`with_source`].
    pub fn grammar_from(&self, kind: &str, source: &str) -> Result<Grammar, GrammarError> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|one| one.compiled.is_usable());
        let known = recent
            .iter()
            .position(|one| one.kind == kind && one.source == source)
            .and_then(|at| recent.remove(at));
        let known = match known {
            Some(known) => known,
            None => Recent {
                kind: kind.to_owned(),
                source: source.to_owned(),
                compiled: with_source(kind, source, |constraint| self.compile(constraint))
                    .flatten()?,
            },
        };
        let compiled = known.compiled.clone();
        recent.push_front(known);
        recent.truncate(MAX_RECENT);
        Ok(self.start(compiled))
    }

    fn start(&self, compiled: Compiled) -> Grammar {
        Grammar {
            matcher: Matcher::new(Ok(compiled.parser)),
            forces_text: compiled.forces_text,
            size: self.size,
            words: self.mask_words(),
            ends: Arc::clone(&self.ends),
        }
    }

    fn compile(&self, constraint: Constraint) -> Result<Compiled, GrammarError> {
        let invalid = |reason: String| GrammarError::Invalid {
            kind: constraint.kind(),
            reason,
        };
        let forces_text = match &constraint {
            Constraint::Lark(text) => self.names_no_text(text),
            _ => true,
        };
        let parser = match self.parser(constraint.compile()?) {
            Ok(parser) => parser,
            Err(error) => {
                if let Constraint::JsonSchema(schema) = constraint {
                    return Err(invalid(with_empty_list(error, schema)));
                }
                let Constraint::Answer(spec) = constraint else {
                    return Err(invalid(error));
                };
                // The tool at fault, if it is one.
                let found = spec.each_tool().find_map(|(name, grammar)| {
                    let error = self.parser(grammar.ok()?).err()?;
                    Some(format!("tool '{name}': {error}"))
                });
                return Err(invalid(found.unwrap_or(error)));
            }
        };
        Ok(Compiled {
            parser,
            forces_text,
        })
    }

    /// Whether every token that a Lark grammar names by its id is without bytes.
    fn names_no_text(&self, lark: &str) -> bool {
        let trie = self.factory.tok_env().tok_trie();
        lark.split("<[").skip(1).all(|rest| {
            let id = rest.split(']').next().and_then(|id| id.parse().ok());
            id.is_some_and(|id: TokenId| (id as usize) < self.size && trie.token(id).is_empty())
        })
    }

    /// Builds a parser, and its first mask, which finds grammars that nothing matches.
    fn parser(&self, grammar: TopLevelGrammar) -> Result<TokenParser, String> {
        let created = self.factory.create_parser(grammar);
        let mut parser = created.map_err(|error| reason(&error.to_string()))?;
        parser.bias_computer = Arc::new(MaskComputer::new(
            self.factory.tok_env().clone(),
            Arc::clone(&self.tokens),
            self.factory.slicer(),
        ));
        parser.start_without_prompt();
        let mask = catch_unwind(AssertUnwindSafe(|| parser.compute_mask()));
        match mask {
            Ok(_) => Ok(parser),
            Err(error) => Err(reason(&error.to_string())),
        }
    }
}

/// Part of what must come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForcedPart {
    /// Text, in tokens of the caller's choice. Its last character may be cut off.
    Text(Vec<u8>),
    /// The token with this id.
    Token(u32),
}

/// A compiled constraint and how much of the output it has seen.
pub struct Grammar {
    matcher: Matcher,
    /// Whether [`Self::forced`] looks ahead. The matcher cannot follow a token that it forces by its
    /// id and that is text as well.
    forces_text: bool,
    /// Number of tokens of the vocabulary.
    size: usize,
    words: usize,
    ends: Arc<[u32]>,
}

impl Grammar {
    /// Writes the mask of the next token: bit `id % 32` of word `id / 32` is 1 where token `id`
    /// may follow. Words beyond the vocabulary are 0.
    ///
    /// # Errors
    /// If the grammar is too ambiguous to compute the mask within its limits.
    pub fn write_mask(&mut self, words: &mut [u32]) -> Result<(), GrammarError> {
        // The matcher has no mask before a token that it forces by its id.
        if let Some(&ForcedPart::Token(id)) = self.forced().first() {
            words.fill(0);
            if let Some(word) = words.get_mut(id as usize / 32) {
                *word = 1 << (id % 32);
            }
            return Ok(());
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(step_error)?;
        let used = self.words.min(words.len());
        words[..used].copy_from_slice(&mask.as_slice()[..used]);
        words[used..].fill(0);
        Ok(())
    }

    /// Advances by a sampled token.
    ///
    /// # Errors
    /// If the token was not allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.matcher.is_stopped() && self.ends.contains(&token) && !self.matcher.is_error() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(step_error)
    }

    /// Whether the output may end here.
    pub fn is_complete(&mut self) -> bool {
        self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// Whether nothing but an end token can follow.
    pub fn has_ended(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// What must come next, empty where there is a choice. The caller encodes the text,
    /// asks [`Self::valid_prefix`], and passes the tokens to [`Self::accept`].
    pub fn forced(&mut self) -> Vec<ForcedPart> {
        if !self.forces_text || self.matcher.is_stopped() {
            return Vec::new();
        }
        // A token named by its id is the marker and its id in brackets.
        let bytes = self.matcher.compute_ff_bytes();
        let mut pieces = bytes.split(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER);
        let mut parts = vec![ForcedPart::Text(pieces.next().unwrap_or_default().to_vec())];
        for piece in pieces {
            let end = piece.iter().position(|byte| *byte == b']');
            let (token, text) = piece.split_at(end.map_or(piece.len(), |end| end + 1));
            let id = std::str::from_utf8(token)
                .ok()
                .and_then(|token| token.strip_prefix('[')?.strip_suffix(']')?.parse().ok());
            let Some(id) = id else { break };
            parts.push(ForcedPart::Token(id));
            parts.push(ForcedPart::Text(text.to_vec()));
        }
        parts.retain(|part| !matches!(part, ForcedPart::Text(text) if text.is_empty()));
        parts
    }

    /// How many of these tokens may follow one after another. Does not advance.
    ///
    /// # Errors
    /// If the grammar exceeded its limits earlier.
    pub fn valid_prefix(&mut self, tokens: &[u32]) -> Result<usize, GrammarError> {
        // The matcher cannot be used again after a token beyond the vocabulary.
        let known = tokens.iter().take_while(|id| (**id as usize) < self.size);
        let known = &tokens[..known.count()];
        self.matcher.validate_tokens(known).map_err(step_error)
    }
}

fn step_error(error: impl std::fmt::Display) -> GrammarError {
    GrammarError::Step(reason(&error.to_string()))
}

/// Maximum characters of a reason.
const MAX_REASON: usize = 300;

/// The compiler's reason in one line, in words that help.
fn reason(text: &str) -> String {
    if text.contains("NoExtensionBias") {
        return "no finite text matches it. Allow a text that ends.".to_owned();
    }
    if text.contains("coerce_one_of") {
        return "oneOf is supported only where its branches exclude each other. Use anyOf."
            .to_owned();
    }
    if text.contains("Current row has") {
        return "it has too many alternatives at one position. Use fewer, or a regular expression."
            .to_owned();
    }
    if text.contains("anyOf is empty") {
        return "an 'enum' or 'anyOf' is empty, so no value matches. List at least one value."
            .to_owned();
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut line = words.join(" ");
    if line.starts_with("Unimplemented keys: ") {
        line += ". These keywords cannot be enforced. Remove them, and check the answer yourself.";
    }
    match line.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The reason, or the list without values inside a schema that nothing matches.
fn with_empty_list(reason: String, schema: &Value) -> String {
    let is_unmatched = reason.contains("nsatisfiable");
    match schema::empty_list(schema).filter(|(_, at)| is_unmatched && !at.is_empty()) {
        Some((key, at)) => {
            format!("the '{key}' at '{at}' is empty, so no value matches. List at least one value.")
        }
        None => reason,
    }
}

/// The trie alone. The engine encodes forced text with the model's own tokenizer, so none is
/// needed here, and the parser must not force tokens of its own encoding.
struct TokenBytes {
    trie: TokTrie,
}

impl TokenizerEnv for TokenBytes {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
