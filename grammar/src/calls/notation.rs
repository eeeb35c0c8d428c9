//! Arguments in the notations of the families, by a JSON schema.
//!
//! Objects, lists, alternatives and constants are rules of the notation. What has no rule here is
//! written in JSON, which the parser of every notation reads as well.

use super::lark::{LarkWriter, literal, regex};
use super::{Notation, Part, Spelling, raw};
use crate::schema;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Keywords without effect on values.
const ANNOTATIONS: [&str; 12] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
];

/// Maximum references and `allOf` inside each other that are followed.
const MAX_REFERENCES: usize = 16;

/// Maximum schemas that are merged into one.
const MAX_PARTS: usize = 1_000;

/// Maximum nesting in which the type of a schema without a merger is found.
const MAX_TYPE_DEPTH: usize = 4;

const UNCLEAR: &str =
    "only some of its alternatives are strings; list them with 'anyOf', each with a 'type'";

const NO_VALUE: &str = "no value matches its schema. Change its 'type', 'enum' or 'const'.";

/// A function's arguments.
pub struct Arguments<'a> {
    pub spelling: &'a Spelling,
    /// The function's schema.
    pub root: &'a Value,
    /// Whether a keyword that cannot be enforced is an error.
    pub is_strict: bool,
}

/// How values are written.
struct Words {
    truth: [&'static str; 2],
    null: &'static str,
    comma: &'static str,
    colon: &'static str,
}

const PYTHON: Words = Words {
    truth: ["True", "False"],
    null: "None",
    comma: ", ",
    colon: ": ",
};

const DELIMITED: Words = Words {
    truth: ["true", "false"],
    null: "null",
    comma: ",",
    colon: ":",
};

impl Arguments<'_> {
    /// Writes the rules and returns the expression of the arguments.
    ///
    /// # Errors
    /// Names what cannot be enforced.
    pub fn write(&self, lark: &mut LarkWriter) -> Result<String, String> {
        if self.spelling.notation == Notation::Json {
            return Ok(lark.json(self.root, self.is_strict));
        }
        let mut root = self.root.clone();
        schema::replace_formats(&mut root);
        let mut writer = ValueWriter {
            spelling: self.spelling,
            root: &root,
            is_strict: self.is_strict,
            words: match self.spelling.notation {
                Notation::Python if self.spelling.has_json_words => Words {
                    truth: DELIMITED.truth,
                    null: DELIMITED.null,
                    ..PYTHON
                },
                Notation::Python => PYTHON,
                _ => DELIMITED,
            },
            references: HashMap::new(),
            lark,
        };
        let object = &writer.flattened(&root).unwrap_or_else(|| root.clone());
        let is_listed = ["anyOf", "oneOf", "allOf", "patternProperties", "if", "not"]
            .iter()
            .all(|key| object.get(key).is_none());
        if !is_listed && self.is_strict {
            return Err(format!(
                "the format '{}' names each argument, so 'parameters' must list 'properties', without alternatives",
                self.spelling.format
            ));
        }
        let members = members(object);
        for member in &members {
            self.check_name(member.name)?;
        }
        match self.spelling.notation {
            Notation::Tags => writer.tags(&members),
            Notation::Python => writer.members(&members, "=", ", "),
            _ => writer.members(&members, ":", ","),
        }
    }

    /// Refuses an argument's name that the parser of the format would read as another one.
    fn check_name(&self, name: &str) -> Result<(), String> {
        // The parsers drop blanks and quotes around a name.
        let has_ends = name.trim_matches(|c: char| c.is_whitespace() || c == '"') != name;
        let (is_legible, allowed) = match self.spelling.notation {
            Notation::Json => return Ok(()),
            Notation::Python => (is_word(name), "only letters, digits and '_'"),
            Notation::Delimited => (
                !has_ends && !name.contains([':', '{', '}']),
                "no ':', '{' or '}', and no blanks or quotes around it",
            ),
            Notation::Tags => {
                let close = match self.spelling.key_close.first() {
                    Some(Part::Text(text)) => text.chars().next(),
                    _ => None,
                };
                let is_closed_by_bracket = matches!(close, Some('>' | '"'));
                let has_end = match close {
                    Some(close @ ('>' | '"')) => name.contains(['>', close]),
                    _ => name.contains("</"),
                };
                (
                    !has_ends && !has_end && !name.contains(['\n', '\r']),
                    match is_closed_by_bracket {
                        true => "no '>' or line break, and no blanks or quotes around it",
                        false => "no '</' or line break, and no blanks or quotes around it",
                    },
                )
            }
        };
        match is_legible {
            true => Ok(()),
            false => Err(format!(
                "argument '{name}': a name in the format '{}' may contain {allowed}. Rename the argument.",
                self.spelling.format
            )),
        }
    }
}

/// Whether a key can stand without quotes.
fn is_word(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// A property: its name, its schema and whether it must be there.
struct Member<'a> {
    name: &'a str,
    schema: &'a Value,
    is_required: bool,
}

fn members(object: &Value) -> Vec<Member<'_>> {
    let required = object.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = object.get("properties").and_then(Value::as_object);
    let mut members: Vec<Member> = properties
        .into_iter()
        .flatten()
        .map(|(name, schema)| Member {
            name,
            schema,
            is_required: required.contains(&name.as_str()),
        })
        .collect();
    for name in required {
        if !members.iter().any(|member| member.name == name) {
            members.push(Member {
                name,
                schema: &Value::Bool(true),
                is_required: true,
            });
        }
    }
    members
}

struct ValueWriter<'a> {
    spelling: &'a Spelling,
    root: &'a Value,
    is_strict: bool,
    words: Words,
    /// Rules of schemas with `$ref` or `allOf`, by their JSON.
    references: HashMap<String, String>,
    lark: &'a mut LarkWriter,
}

impl<'a> ValueWriter<'a> {
    /// A schema with its `$ref` and `allOf` merged into it; None if they have no simple merger.
    fn flattened(&self, schema: &Value) -> Option<Value> {
        let mut left = MAX_PARTS;
        self.flattened_within(schema, MAX_REFERENCES, &mut left)
    }

    fn flattened_within(&self, schema: &Value, depth: usize, left: &mut usize) -> Option<Value> {
        if schema == &Value::Bool(true) {
            return Some(json!({}));
        }
        let fields = schema.as_object()?;
        let depth = depth.checked_sub(1)?;
        *left = left.checked_sub(1)?;
        let mut parts = Vec::new();
        if let Some(reference) = fields.get("$ref") {
            parts.push(self.root.pointer(reference.as_str()?.strip_prefix('#')?)?);
        }
        if let Some(all) = fields.get("allOf") {
            parts.extend(all.as_array()?);
        }
        let own = fields
            .iter()
            .filter(|(name, _)| !["$ref", "allOf"].contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()));
        let mut merged: Map<String, Value> = own.collect();
        for part in parts {
            merge(&mut merged, self.flattened_within(part, depth, left)?)?;
        }
        Some(Value::Object(merged))
    }

    /// JSON by a schema inside the function's.
    fn json(&mut self, schema: &Value) -> String {
        let mut alone = schema.clone();
        if has_reference(&alone) {
            let mut root = self.root.clone();
            schema::move_references(&mut root, "root");
            schema::move_references(&mut alone, "root");
            alone["$defs"] = json!({ "root": root });
        }
        self.lark.json(&alone, self.is_strict)
    }

    /// `key=value, …`: members in order, of which some may be missing.
    fn members(&mut self, members: &[Member], colon: &str, comma: &str) -> Result<String, String> {
        // Rules of the members from here on: as the first one, and behind another.
        let [mut first, mut next] = [String::new(), String::new()];
        for member in members.iter().rev() {
            let value = self
                .value(member.schema)
                .map_err(|error| format!("argument '{}': {error}", member.name))?;
            let key = self.key(member.name);
            let written = format!("{key} {} {value} {next}", literal(colon));
            let mut alone = written.clone();
            let mut behind = format!("{} {written}", literal(comma));
            if !member.is_required {
                alone = format!("{alone} | {}", or_empty(&first));
                behind = format!("{behind} | {}", or_empty(&next));
            }
            first = self.lark.rule(&alone);
            next = self.lark.rule(&behind);
        }
        Ok(first)
    }

    /// A key: a word where it can be one.
    fn key(&mut self, name: &str) -> String {
        match self.spelling.notation {
            Notation::Delimited if !is_word(name) => {
                let delimiter = &self.spelling.delimiter;
                let parts = [delimiter, &[Part::Text(name.to_owned())][..], delimiter].concat();
                self.lark.sequence(&parts)
            }
            _ => literal(name),
        }
    }

    /// A value in the notation.
    fn value(&mut self, schema: &Value) -> Result<String, String> {
        let flat = match is_composed(schema) {
            true => self.flattened(schema),
            false => Some(schema.clone()),
        };
        let Some(flat) = flat else {
            return Ok(self.json(schema));
        };
        if flat != *schema {
            let key = schema.to_string();
            if let Some(name) = self.references.get(&key) {
                return Ok(name.clone());
            }
            let name = self.lark.name();
            self.references.insert(key, name.clone());
            let value = self.value(&flat)?;
            self.lark.define(&name, &value);
            return Ok(name);
        }
        let Some(keywords) = keywords(schema) else {
            return Ok(self.json(schema));
        };
        let has_only = |names: &[&str]| keywords.iter().all(|key| names.contains(key));
        if let Some(values) = constants(schema) {
            if !has_only(&["const", "enum", "type"]) {
                return Ok(self.json(schema));
            }
            if values.is_empty() {
                return Err(NO_VALUE.to_owned());
            }
            let alternatives: Vec<String> = values.iter().map(|v| self.constant(v)).collect();
            return Ok(self.lark.rule(&alternatives.join(" | ")));
        }
        for key in ["anyOf", "oneOf"] {
            // Branches of oneOf exclude each other, or their JSON is refused.
            if has_only(&[key]) && (key == "anyOf" || !self.is_strict) {
                return self.alternatives(schema[key].as_array());
            }
        }
        if ["anyOf", "oneOf"].iter().any(|key| keywords.contains(key)) {
            return Ok(self.json(schema));
        }
        match schema.get("type") {
            Some(Value::Array(types)) => {
                let branches: Vec<Value> =
                    types.iter().map(|kind| with_type(schema, kind)).collect();
                self.alternatives(Some(&branches))
            }
            Some(Value::String(kind)) => self.typed(kind, schema, &keywords),
            _ => Ok(self.json(schema)),
        }
    }

    fn alternatives(&mut self, branches: Option<&Vec<Value>>) -> Result<String, String> {
        let branches = branches.into_iter().flatten();
        let values = branches.map(|branch| self.value(branch));
        let values = values.collect::<Result<Vec<String>, String>>()?;
        Ok(self.lark.rule(&values.join(" | ")))
    }

    fn typed(&mut self, kind: &str, schema: &Value, keywords: &[&str]) -> Result<String, String> {
        let has_only = |names: &[&str]| keywords.iter().all(|key| names.contains(key));
        match kind {
            "boolean" if has_only(&["type"]) => {
                let [yes, no] = self.words.truth.map(literal);
                Ok(self.lark.rule(&format!("{yes} | {no}")))
            }
            "null" if has_only(&["type"]) => Ok(literal(self.words.null)),
            "string" if self.spelling.notation == Notation::Delimited => self.delimited(schema),
            "array" if has_only(&["type", "items", "minItems", "maxItems"]) => self.list(schema),
            "object" if has_only(&["type", "properties", "required", "additionalProperties"]) => {
                match (schema.get("properties"), schema.get("additionalProperties")) {
                    (Some(_), None | Some(Value::Bool(false))) => {
                        let colon = self.words.colon;
                        let comma = self.words.comma;
                        let inner = members(schema);
                        let members = self.nested_members(&inner, colon, comma)?;
                        Ok(self.lark.rule(&format!("\"{{\" {members} \"}}\"")))
                    }
                    _ => Ok(self.json(schema)),
                }
            }
            _ => Ok(self.json(schema)),
        }
    }

    /// Members of an object inside the arguments: Python quotes their keys.
    fn nested_members(
        &mut self,
        members: &[Member],
        colon: &str,
        comma: &str,
    ) -> Result<String, String> {
        if self.spelling.notation == Notation::Delimited {
            return self.members(members, colon, comma);
        }
        let quoted: Vec<String> = members.iter().map(|member| literal(member.name)).collect();
        let quoted: Vec<Member> = members
            .iter()
            .zip(&quoted)
            .map(|(member, name)| Member { name, ..*member })
            .collect();
        self.members(&quoted, colon, comma)
    }

    fn list(&mut self, schema: &Value) -> Result<String, String> {
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        let item = match schema.get("items") {
            Some(items) => self.value(items)?,
            None => self.json(&json!({})),
        };
        let least = bound("minItems").unwrap_or(0);
        let most = bound("maxItems");
        if most == Some(0) {
            return Ok(literal("[]"));
        }
        let more = format!(
            "({} {item}){{{},{}}}",
            literal(self.words.comma),
            least.saturating_sub(1),
            most.map_or_else(String::new, |most| (most - 1).to_string())
        );
        let items = format!("\"[\" {item} {more} \"]\"");
        Ok(self.lark.rule(&match least {
            0 => format!("{items} | \"[]\""),
            _ => items,
        }))
    }

    /// A string between delimiters.
    fn delimited(&mut self, schema: &Value) -> Result<String, String> {
        let string = raw::string(schema, self.is_strict)?;
        let mark = self.lark.sequence(&self.spelling.delimiter);
        let ends = without(&self.spelling.string_ends);
        // A delimiter that is text ends the terminal: terminals are greedy.
        if let [Part::Text(text)] = &self.spelling.delimiter[..] {
            let until = format!("({string}{ends}) {}", literal(text));
            let body = self.lark.terminal(&until);
            return Ok(self.lark.rule(&format!("{mark} {body}")));
        }
        let body = self.lark.terminal(&format!("{string}{ends}"));
        Ok(self.lark.rule(&format!("{mark} {body} {mark}")))
    }

    /// A constant in the notation.
    fn constant(&mut self, value: &Value) -> String {
        let expression = match value {
            Value::Bool(true) => literal(self.words.truth[0]),
            Value::Bool(false) => literal(self.words.truth[1]),
            Value::Null => literal(self.words.null),
            Value::String(text) if self.spelling.notation == Notation::Delimited => {
                let delimiter = &self.spelling.delimiter;
                let parts = [delimiter, &[Part::Text(text.clone())][..], delimiter].concat();
                self.lark.sequence(&parts)
            }
            value => literal(&value.to_string()),
        };
        self.lark.rule(&expression)
    }

    /// Arguments between tags.
    fn tags(&mut self, members: &[Member]) -> Result<String, String> {
        let mut all = Vec::new();
        for member in members {
            let value = self
                .tagged(member.schema)
                .map_err(|error| format!("argument '{}': {error}", member.name))?;
            let key = [
                &self.spelling.key_open[..],
                &[Part::Text(member.name.to_owned())],
                &self.spelling.key_close,
            ]
            .concat();
            let body = format!("{} {value}", self.lark.sequence(&key));
            let rule = self.lark.rule(&body);
            all.push(if member.is_required {
                rule
            } else {
                format!("{rule}?")
            });
        }
        Ok(self.lark.rule(&all.join(" ")))
    }

    /// A value and its closing tag: strings as they are, others in JSON.
    fn tagged(&mut self, schema: &Value) -> Result<String, String> {
        let close = self.lark.sequence(&self.spelling.value_close);
        let mut branches = Vec::new();
        self.branches(schema, &mut branches, 0)?;
        if branches.is_empty() {
            return Err(NO_VALUE.to_owned());
        }
        let others: Vec<Value> = branches.iter().filter(|b| !is_string(b)).cloned().collect();
        let misread = misread_as(&others);
        let mut alternatives = Vec::new();
        for branch in branches.iter().filter(|branch| is_string(branch)) {
            let mut string = raw::string(branch, self.is_strict)?;
            if let Some(text) = branch.get("const").and_then(Value::as_str) {
                string = match string.as_str() {
                    raw::ANY => regex(&escaped(text)),
                    _ => format!("{} & {string}", regex(&escaped(text))),
                };
            }
            alternatives.push(self.tagged_string(&format!("{string}{misread}")));
        }
        if !others.is_empty() {
            let schema = match &others[..] {
                [one] => one.clone(),
                _ => json!({ "anyOf": others }),
            };
            alternatives.push(format!("{} {close}", self.json(&schema)));
        }
        Ok(self.lark.rule(&alternatives.join(" | ")))
    }

    /// A string without quotes and its closing tag.
    fn tagged_string(&mut self, string: &str) -> String {
        let ends = without(&self.spelling.string_ends);
        let close = &self.spelling.value_close;
        match close.split_first() {
            Some((Part::Text(text), rest)) => {
                let until = format!("({string}{ends}) {}", literal(text));
                format!(
                    "{} {}",
                    self.lark.terminal(&until),
                    self.lark.sequence(rest)
                )
            }
            _ => {
                let body = self.lark.terminal(&format!("{string}{ends}"));
                format!("{body} {}", self.lark.sequence(close))
            }
        }
    }

    /// Splits a schema into alternatives that are strings, or none. Constants are one each.
    fn branches(&self, schema: &Value, out: &mut Vec<Value>, depth: usize) -> Result<(), String> {
        if depth > MAX_REFERENCES {
            return Err("its references are nested too deeply".to_owned());
        }
        let flat = match is_composed(schema) {
            true => self.flattened(schema),
            false => None,
        };
        let schema = flat.as_ref().unwrap_or(schema);
        let Some(keywords) = keywords(schema).filter(|keywords| !keywords.is_empty()) else {
            out.extend([json!({ "type": "string" }), json!({ "type": "number" })]);
            out.extend([json!({ "type": "object" }), json!({ "type": "array" })]);
            out.extend([json!({ "type": "boolean" }), json!({ "type": "null" })]);
            return Ok(());
        };
        if let Some(values) = constants(schema) {
            out.extend(values.into_iter().map(|value| {
                let mut one = without_key(schema, "enum");
                one.insert("const".to_owned(), value.clone());
                if value.is_string() {
                    one.insert("type".to_owned(), "string".into());
                }
                Value::Object(one)
            }));
            return Ok(());
        }
        let kind = self.kind(schema, 0);
        if let Some(kind) = kind.filter(|kind| *kind != "string") {
            out.push(with_type(schema, &kind.into()));
            return Ok(());
        }
        for key in ["anyOf", "oneOf"] {
            let Some(branches) = schema.get(key).and_then(Value::as_array) else {
                continue;
            };
            if keywords.len() == 1 {
                return branches
                    .iter()
                    .try_for_each(|branch| self.branches(branch, out, depth + 1));
            }
            let merged = branches.iter().map(|branch| {
                let mut merged = without_key(schema, key);
                merge(&mut merged, self.flattened(branch)?)?;
                Some(Value::Object(merged))
            });
            if let Some(branches) = merged.collect::<Option<Vec<Value>>>() {
                return branches
                    .iter()
                    .try_for_each(|branch| self.branches(branch, out, depth + 1));
            }
        }
        let is_unclear = ["$ref", "anyOf", "oneOf"]
            .iter()
            .any(|key| schema.get(key).is_some());
        match schema.get("type") {
            _ if is_unclear && self.is_strict => return Err(UNCLEAR.to_owned()),
            Some(Value::Array(types)) => {
                out.extend(types.iter().map(|kind| with_type(schema, kind)));
            }
            Some(Value::String(_)) => out.push(schema.clone()),
            None if keywords
                .iter()
                .any(|key| ["properties", "items"].contains(key)) =>
            {
                out.push(schema.clone());
            }
            _ if self.is_strict => return Err(UNCLEAR.to_owned()),
            _ => out.push(json!({ "type": "string" })),
        }
        Ok(())
    }

    /// The only type that a schema, its `$ref` or a member of its `allOf` allows.
    fn kind<'s>(&'s self, schema: &'s Value, depth: usize) -> Option<&'s str> {
        if depth > MAX_TYPE_DEPTH {
            return None;
        }
        let target = schema.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|reference| self.root.pointer(reference.strip_prefix('#')?));
        let all = schema.get("allOf").and_then(Value::as_array);
        let kind = schema.get("type").and_then(Value::as_str);
        kind.or_else(|| {
            let parts = target.into_iter().chain(all.into_iter().flatten());
            parts
                .into_iter()
                .find_map(|part| self.kind(part, depth + 1))
        })
    }
}

/// Whether a schema has parts in other places.
fn is_composed(schema: &Value) -> bool {
    ["$ref", "allOf"]
        .iter()
        .any(|key| schema.get(key).is_some())
}

/// Values of `enum` and `const` that `type` allows; None without these keywords.
fn constants(schema: &Value) -> Option<Vec<&Value>> {
    let listed = schema.get("enum").and_then(Value::as_array);
    let constant = schema.get("const");
    let values: Vec<&Value> = match (listed, constant) {
        (None, None) => return None,
        (Some(values), None) => values.iter().collect(),
        (None, Some(value)) => vec![value],
        (Some(values), Some(value)) => values.iter().filter(|one| *one == value).collect(),
    };
    let types = schema.get("type").map(types_of);
    let is_allowed = |value: &&Value| {
        types
            .as_ref()
            .is_none_or(|types| types.iter().any(|kind| is_of_type(value, kind)))
    };
    Some(values.into_iter().filter(is_allowed).collect())
}

fn types_of(kinds: &Value) -> Vec<&str> {
    match kinds {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    }
}

fn is_of_type(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
        Value::Number(number) => {
            let is_whole = number.as_f64().is_some_and(|value| value.fract() == 0.0);
            kind == "number" || kind == "integer" && is_whole
        }
    }
}

/// Keywords whose meaning depends on the others of their group in the same schema.
const GROUPS: [&[&str]; 3] = [
    &["properties", "patternProperties", "additionalProperties"],
    &["items", "prefixItems", "additionalItems"],
    &["if", "then", "else"],
];

/// Adds the keywords of a schema to those of another, so that both limit values. A contradiction
/// becomes an empty `enum`. None if the two have no simple merger.
fn merge(merged: &mut Map<String, Value>, part: Value) -> Option<()> {
    let Value::Object(part) = part else {
        return None;
    };
    let part: Map<String, Value> = part
        .into_iter()
        .filter(|(name, value)| {
            !ANNOTATIONS.contains(&name.as_str()) && merged.get(name) != Some(value)
        })
        .collect();
    let has_both = |group: &&[&str]| {
        group.iter().any(|key| merged.contains_key(*key))
            && group.iter().any(|key| part.contains_key(*key))
    };
    if GROUPS.iter().any(has_both) {
        return None;
    }
    let mut is_contradiction = false;
    for (name, value) in part {
        let Some(own) = merged.get_mut(&name) else {
            merged.insert(name, value);
            continue;
        };
        let number = |value: &Value| value.as_f64();
        match name.as_str() {
            "type" => {
                let both = common_types(own, &value);
                is_contradiction |= both.is_empty();
                *own = match &both[..] {
                    [one] => one.as_str().into(),
                    _ => both.into(),
                };
            }
            "enum" => own.as_array_mut()?.retain(|one| {
                let values = value.as_array();
                values.is_some_and(|values| values.contains(one))
            }),
            "const" => is_contradiction = true,
            "required" => own
                .as_array_mut()?
                .extend(value.as_array()?.iter().cloned()),
            "minLength" | "minItems" | "minProperties" | "minimum" | "exclusiveMinimum" => {
                if number(own)? < number(&value)? {
                    *own = value;
                }
            }
            "maxLength" | "maxItems" | "maxProperties" | "maximum" | "exclusiveMaximum" => {
                if number(own)? > number(&value)? {
                    *own = value;
                }
            }
            "allOf" => own
                .as_array_mut()?
                .extend(value.as_array()?.iter().cloned()),
            "pattern" | "format" => {
                let one = json!({ name: value });
                match merged.get_mut("allOf") {
                    Some(all) => all.as_array_mut()?.push(one),
                    None => {
                        merged.insert("allOf".to_owned(), json!([one]));
                    }
                }
            }
            _ => return None,
        }
    }
    if is_contradiction {
        merged.insert("enum".to_owned(), json!([]));
    }
    Some(())
}

/// The types that both values of `type` allow.
fn common_types(one: &Value, other: &Value) -> Vec<String> {
    let mut common = Vec::new();
    for kind in types_of(one) {
        for other in types_of(other) {
            let both = match (kind, other) {
                ("number", "integer") | ("integer", "number") => "integer",
                (kind, other) if kind == other => kind,
                _ => continue,
            };
            if !common.iter().any(|known| known == both) {
                common.push(both.to_owned());
            }
        }
    }
    common
}

fn or_empty(expression: &str) -> &str {
    match expression {
        "" => "\"\"",
        expression => expression,
    }
}

/// The keywords of a schema that limit values; None if it is not an object.
fn keywords(schema: &Value) -> Option<Vec<&str>> {
    let fields = schema.as_object()?;
    let names = fields.keys().map(String::as_str);
    Some(names.filter(|name| !ANNOTATIONS.contains(name)).collect())
}

fn is_string(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "string")
}

/// The keywords of a schema but this one.
fn without_key(schema: &Value, key: &str) -> Map<String, Value> {
    let fields = schema.as_object().into_iter().flatten();
    fields
        .filter(|(name, _)| *name != key)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn with_type(schema: &Value, kind: &Value) -> Value {
    let mut one: Map<String, Value> = schema.as_object().cloned().unwrap_or_default();
    one.insert("type".to_owned(), kind.clone());
    Value::Object(one)
}

/// A term that excludes texts in which one of `ends` occurs.
pub fn without(ends: &[String]) -> String {
    if ends.is_empty() {
        return String::new();
    }
    let ends: Vec<String> = ends.iter().map(|end| escaped(end)).collect();
    let pattern = regex(&format!("(?s:.*)(?:{})(?s:.*)", ends.join("|")));
    format!(" & ~{pattern}")
}

/// A text as a regular expression.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Terms that exclude strings which would be read as one of the other alternatives.
fn misread_as(others: &[Value]) -> String {
    let mut terms = String::new();
    let mut exclude = |pattern: &str| {
        terms.push_str(" & ~");
        terms.push_str(&regex(pattern));
    };
    let is_one = |kind: &str, constant: fn(&Value) -> bool| {
        others.iter().any(|other| {
            other.get("type").is_some_and(|name| name == kind)
                || other.get("const").is_some_and(constant)
        })
    };
    if is_one("null", Value::is_null) {
        exclude("\\s*(?:null|None|nan|NaN|-?inf|-?Infinity)\\s*");
    }
    if is_one("boolean", Value::is_boolean) {
        exclude("\\s*(?:true|false|True|False)\\s*");
    }
    if is_one("number", Value::is_number) || is_one("integer", Value::is_number) {
        exclude("\\s*[-+]?[0-9_.]+(?:[eE][-+]?[0-9]+)?\\s*");
    }
    let nested = |other: &Value| other.get("properties").is_some() || other.get("items").is_some();
    if is_one("array", Value::is_array)
        || is_one("object", Value::is_object)
        || others.iter().any(nested)
    {
        exclude("\\s*[\\[({](?s:.*)");
    }
    terms
}

fn has_reference(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key("$ref") || fields.values().any(has_reference),
        Value::Array(items) => items.iter().any(has_reference),
        _ => false,
    }
}
