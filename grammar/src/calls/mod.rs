//! Answers with tool calls: a grammar in the format of a model family, with each function's
//! arguments limited by its JSON schema.
//!
//! The engine describes the format ([`Spelling`]); this module knows no family. Markers that are
//! single tokens come as ids, so that no other tokens can spell them.

mod lark;
mod notation;
mod raw;

use crate::schema;
use lark::LarkWriter;
pub use lark::literal;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use notation::Arguments;
use serde::Deserialize;
use serde_json::{Value, json};

/// Maximum calls of an answer: a model that keeps calling would otherwise never end.
const MAX_CALLS: usize = 32;

/// Maximum functions of a request, as in OpenAI's API.
const MAX_TOOLS: usize = 128;

/// Part of a spelling.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Part {
    /// Text.
    Text(String),
    /// The token with this id.
    Token(u32),
    /// Text that matches a regular expression.
    Pattern { pattern: String },
}

/// How arguments are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Notation {
    /// A JSON object.
    Json,
    /// `key=value, …` with literals of Python.
    Python,
    /// `key:value,…` with strings between delimiters and keys without quotes.
    Delimited,
    /// Tags around keys and values; strings without quotes.
    Tags,
}

/// A family's format of tool calls.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spelling {
    /// Name for errors.
    format: String,
    notation: Notation,
    /// Whether [`Notation::Python`] writes `true` and `null` as JSON does.
    #[serde(default)]
    has_json_words: bool,
    /// Before the first call.
    open: Vec<Part>,
    /// Before a function's name.
    head: Vec<Part>,
    /// Between a name and its arguments.
    middle: Vec<Part>,
    /// Behind the arguments.
    tail: Vec<Part>,
    between: Vec<Part>,
    /// Behind the last call.
    close: Vec<Part>,
    /// Whether an answer can have several calls.
    is_parallel: bool,
    /// Around strings, for [`Notation::Delimited`].
    #[serde(default)]
    delimiter: Vec<Part>,
    /// Before a key, for [`Notation::Tags`].
    #[serde(default)]
    key_open: Vec<Part>,
    #[serde(default)]
    key_close: Vec<Part>,
    /// Behind a value.
    #[serde(default)]
    value_close: Vec<Part>,
    /// Texts that end a string without quotes.
    #[serde(default)]
    string_ends: Vec<String>,
    /// Regular expression of texts that would be read as the beginning of a call.
    opener: String,
}

/// The text around an answer without calls.
#[derive(Debug, Clone, Default, Deserialize)]
struct Frame {
    open: Vec<Part>,
    close: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Choice {
    /// Text, calls, or text and calls.
    Auto,
    /// At least one call.
    Required,
}

/// A function that may be called.
#[derive(Debug, Clone, Deserialize)]
struct Tool {
    name: String,
    #[serde(default)]
    parameters: Value,
    /// Whether a keyword that cannot be enforced is an error; otherwise it has no effect.
    #[serde(default)]
    strict: bool,
}

/// A grammar for the answer instead of text.
#[derive(Debug, Clone, Deserialize)]
pub struct AnswerSource {
    /// Kind of the grammar, as in [`crate::Constraint`].
    pub kind: String,
    /// Its text.
    pub source: String,
}

/// What an answer may be.
#[derive(Debug, Clone, Deserialize)]
pub struct AnswerSpec {
    spelling: Option<Spelling>,
    #[serde(default)]
    frame: Frame,
    tools: Vec<Tool>,
    choice: Choice,
    /// Whether several calls are allowed.
    parallel: bool,
    /// The answer if it has no calls.
    answer: Option<AnswerSource>,
}

/// Name of the answer's grammar.
const ANSWER: &str = "answer";

impl AnswerSpec {
    /// The grammar of an answer without calls.
    pub fn answer(&self) -> Option<&AnswerSource> {
        self.answer.as_ref()
    }

    /// The same with one tool, to find the one at fault.
    fn with_tool(&self, index: usize) -> Self {
        Self {
            tools: vec![self.tools[index].clone()],
            ..self.clone()
        }
    }

    /// Each tool's name, with a grammar of that tool only.
    pub fn each_tool(&self) -> impl Iterator<Item = (&str, Result<TopLevelGrammar, String>)> {
        self.tools.iter().enumerate().map(|(index, tool)| {
            let alone = self.with_tool(index);
            (tool.name.as_str(), alone.compile(None))
        })
    }

    /// Builds the grammar. `answer` is that of [`Self::answer`].
    ///
    /// # Errors
    /// Names the tool or the part that cannot be enforced.
    pub fn compile(&self, answer: Option<TopLevelGrammar>) -> Result<TopLevelGrammar, String> {
        if self.tools.len() > MAX_TOOLS {
            return Err(format!(
                "the request has {} tools; at most {MAX_TOOLS} are supported",
                self.tools.len()
            ));
        }
        if let Some(schema) = self.joint_schema()? {
            return Ok(TopLevelGrammar::from_json_schema(schema::prepare(
                &schema, true,
            )));
        }
        let mut lark = LarkWriter::default();
        let calls = match &self.spelling {
            Some(spelling) if !self.tools.is_empty() => Some(self.calls(spelling, &mut lark)?),
            _ => None,
        };
        let open = lark.sequence(&self.frame.open);
        let close = lark.sequence(&self.frame.close);
        let start = match (self.choice, calls, &answer) {
            (Choice::Required, Some(calls), _) => calls.whole,
            (Choice::Auto, Some(calls), Some(_)) => {
                format!("{} | {open} @{ANSWER} {close}", calls.whole)
            }
            (Choice::Auto, Some(calls), None) if self.frame.open.is_empty() => calls.behind_text,
            (Choice::Auto, Some(calls), None) => {
                let text = match self.frame.close.split_first() {
                    // A mark that is text ends the terminal: terminals are greedy.
                    Some((Part::Text(mark), rest)) => {
                        let end = notation::without(std::slice::from_ref(mark));
                        let until = format!("({}{end}) {}", calls.text, literal(mark));
                        format!("{} {}", lark.terminal(&until), lark.sequence(rest))
                    }
                    _ => format!("{} {close}", lark.terminal(&calls.text)),
                };
                format!("{} | {open} {text}", calls.whole)
            }
            (_, None, Some(_)) => format!("{open} @{ANSWER} {close}"),
            (_, None, None) => return Err("there are no tools to call".to_owned()),
        };
        let mut grammars = vec![GrammarWithLexer {
            lark_grammar: Some(lark.finish(&start)),
            ..GrammarWithLexer::default()
        }];
        grammars.extend(lark.into_schemas());
        if let Some(answer) = answer {
            grammars.extend(answer.grammars.into_iter().map(|grammar| GrammarWithLexer {
                name: Some(ANSWER.to_owned()),
                ..grammar
            }));
        }
        Ok(TopLevelGrammar {
            grammars,
            max_tokens: None,
        })
    }

    /// One schema for an answer and calls that are JSON objects without a marker. Two grammars could
    /// not begin with the same brace.
    fn joint_schema(&self) -> Result<Option<Value>, String> {
        let (Some(spelling), Some(answer)) = (&self.spelling, &self.answer) else {
            return Ok(None);
        };
        let is_object =
            matches!(spelling.head.first(), Some(Part::Text(text)) if text.starts_with('{'));
        if !is_object
            || !spelling.open.is_empty()
            || self.tools.is_empty()
            || self.choice == Choice::Required
        {
            return Ok(None);
        }
        let mut answer = match answer.kind.as_str() {
            "json_object" => json!({ "type": "object" }),
            "json_schema" => {
                let schema = serde_json::from_str(&answer.source).map_err(|e| e.to_string())?;
                schema::resolve_references(&schema)?
            }
            _ => return Ok(None),
        };
        schema::move_references(&mut answer, ANSWER);
        let mut branches = vec![json!({ "$ref": format!("#/$defs/{ANSWER}") })];
        let mut definitions = serde_json::Map::new();
        definitions.insert(ANSWER.to_owned(), answer);
        for (index, tool) in self.tools.iter().enumerate() {
            let named = |error: String| format!("tool '{}': {error}", tool.name);
            let mut parameters = parameters_of(tool).map_err(named)?;
            let name = format!("tool{index}");
            schema::move_references(&mut parameters, &name);
            branches.push(json!({
                "type": "object",
                "properties": {
                    "name": { "const": tool.name },
                    "parameters": { "$ref": format!("#/$defs/{name}") },
                },
                "required": ["name", "parameters"],
                "additionalProperties": false,
            }));
            definitions.insert(name, parameters);
        }
        Ok(Some(json!({ "anyOf": branches, "$defs": definitions })))
    }

    fn calls(&self, spelling: &Spelling, lark: &mut LarkWriter) -> Result<Calls, String> {
        let mut first = Vec::new();
        let mut next = Vec::new();
        let mut behind = Vec::new();
        let opener = lark::regex(&format!("(?s:.*)(?:{})(?s:.*)", spelling.opener));
        let text = format!("/(?s:.*)/ & ~{opener}");
        for tool in &self.tools {
            let named = |error: String| format!("tool '{}': {error}", tool.name);
            check_name(&tool.name).map_err(named)?;
            let arguments = Arguments {
                spelling,
                root: &parameters_of(tool).map_err(named)?,
                is_strict: tool.strict,
            }
            .write(lark)
            .map_err(named)?;
            let arguments = lark.rule(&format!("{arguments} {}", lark.sequence(&spelling.tail)));
            let lead = |before: &[Part]| {
                let name = [Part::Text(tool.name.clone())];
                lark::merged(&[before, &spelling.head, &name, &spelling.middle].concat())
            };
            let opened = lead(&spelling.open);
            first.push(format!("{} {arguments}", lark.sequence(&opened)));
            next.push(format!(
                "{} {arguments}",
                lark.sequence(&lead(&spelling.between))
            ));
            // Text up to a marker that is text is one terminal with it: terminals are greedy.
            behind.push(match opened.split_first() {
                Some((Part::Text(start), rest)) => {
                    let until = format!("({text}) {}", literal(start));
                    format!(
                        "{} {} {arguments}",
                        lark.terminal(&until),
                        lark.sequence(rest)
                    )
                }
                _ => format!(
                    "{} {} {arguments}",
                    lark.terminal(&text),
                    lark.sequence(&opened)
                ),
            });
        }
        let close = lark.sequence(&spelling.close);
        let more = match self.parallel && spelling.is_parallel {
            true => {
                let next = lark.rule(&next.join(" | "));
                format!("{next}{{0,{}}}", MAX_CALLS - 1)
            }
            false => String::new(),
        };
        let first = lark.rule(&first.join(" | "));
        let behind = lark.rule(&behind.join(" | "));
        let plain = lark.terminal(&text);
        Ok(Calls {
            whole: lark.rule(&format!("{first} {more} {close}")),
            behind_text: format!("{plain} | {behind} {more} {close}"),
            text,
        })
    }
}

/// Expressions of an answer's calls.
struct Calls {
    /// The calls and nothing else.
    whole: String,
    /// Text, then calls; or text alone.
    behind_text: String,
    /// A terminal of text without calls.
    text: String,
}

fn check_name(name: &str) -> Result<(), String> {
    let is_word = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    match !name.is_empty() && name.chars().all(is_word) {
        true => Ok(()),
        false => Err("a name may contain only letters, digits, '_', '-' and '.'".to_owned()),
    }
}

/// The schema of a function's arguments. A function takes no arguments but those it lists, unless
/// the schema says so.
fn parameters_of(tool: &Tool) -> Result<Value, String> {
    let mut parameters = match &tool.parameters {
        Value::Null => json!({ "properties": {} }),
        Value::Object(_) => schema::resolve_references(&tool.parameters)?,
        _ => return Err("'parameters' must be a JSON schema".to_owned()),
    };
    schema::check_size(&parameters)?;
    match parameters.get("type") {
        None => parameters["type"] = "object".into(),
        Some(kind) if kind == "object" => {}
        Some(_) => return Err("'parameters' must be a schema of type 'object'".to_owned()),
    }
    if parameters.get("properties").is_some() && parameters.get("additionalProperties").is_none() {
        parameters["additionalProperties"] = false.into();
    }
    Ok(parameters)
}
