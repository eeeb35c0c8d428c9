//! Writes a grammar in Lark syntax, with JSON schemas as grammars of their own.

use super::Part;
use crate::schema;
use llguidance::api::GrammarWithLexer;
use llguidance::regex_to_lark;
use serde_json::Value;
use std::fmt::Write as _;

/// Text as a Lark string, which is a JSON string without control characters.
pub fn literal(text: &str) -> String {
    let json = Value::String(text.to_owned()).to_string();
    json.replace('\u{7f}', "\\u007f")
}

/// A regular expression between slashes, with the classes of JSON Schema's dialect.
pub fn regex(pattern: &str) -> String {
    // Two slashes begin a comment.
    let pattern = if pattern.is_empty() { "(?:)" } else { pattern };
    format!("/{}/", regex_to_lark(pattern, "dw"))
}

/// Joins neighbouring texts, so that names of which one begins with the other stay apart.
pub fn merged(parts: &[Part]) -> Vec<Part> {
    let mut merged: Vec<Part> = Vec::new();
    for part in parts {
        match (merged.last_mut(), part) {
            (_, Part::Text(text)) if text.is_empty() => {}
            (Some(Part::Text(last)), Part::Text(text)) => last.push_str(text),
            _ => merged.push(part.clone()),
        }
    }
    merged
}

/// Collects rules and schemas.
#[derive(Default)]
pub struct LarkWriter {
    rules: String,
    count: usize,
    schemas: Vec<GrammarWithLexer>,
}

impl LarkWriter {
    /// Returns an unused name.
    pub fn name(&mut self) -> String {
        self.count += 1;
        format!("r{}", self.count)
    }

    /// Defines a rule.
    pub fn define(&mut self, name: &str, body: &str) {
        let body = body.trim();
        let body = if body.is_empty() { "\"\"" } else { body };
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    /// Adds a rule and returns its name.
    pub fn rule(&mut self, body: &str) -> String {
        let name = self.name();
        self.define(&name, body);
        name
    }

    /// Adds a terminal and returns its name.
    pub fn terminal(&mut self, body: &str) -> String {
        let name = self.name().to_uppercase();
        self.define(&name, body);
        name
    }

    /// The expression of parts in a row.
    pub fn sequence(&self, parts: &[Part]) -> String {
        let parts = merged(parts);
        let items = parts.iter().map(|part| match part {
            Part::Text(text) => literal(text),
            Part::Token(id) => format!("<[{id}]>"),
            Part::Pattern { pattern } => regex(pattern),
        });
        items.collect::<Vec<_>>().join(" ")
    }

    /// JSON of a schema, as an expression.
    pub fn json(&mut self, schema: &Value, is_strict: bool) -> String {
        let name = format!("s{}", self.schemas.len());
        self.schemas.push(GrammarWithLexer {
            name: Some(name.clone()),
            json_schema: Some(schema::prepare(schema, is_strict)),
            ..GrammarWithLexer::default()
        });
        format!("@{name}")
    }

    /// The grammar with this start rule.
    pub fn finish(&mut self, start: &str) -> String {
        format!("start: {start}\n{}", std::mem::take(&mut self.rules))
    }

    /// The schemas that the grammar refers to.
    pub fn into_schemas(self) -> Vec<GrammarWithLexer> {
        self.schemas
    }
}
