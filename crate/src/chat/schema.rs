//! Argument types of the tools of a request, and conversion of untyped text by them.

use super::scan;
use super::value::{Dialect, ValueReader};
use crate::hub::percent_decode;
use serde_json::Value;

/// Nesting of schemas that is followed.
const MAX_SCHEMA_DEPTH: usize = 8;

/// The JSON types that an argument may have; empty if its schema does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Types(u8);

const STRING: u8 = 1;
const NUMBER: u8 = 2;
const BOOLEAN: u8 = 4;
const NULL: u8 = 8;
const ARRAY: u8 = 16;
const OBJECT: u8 = 32;

impl Types {
    /// Whether the schema says nothing.
    pub fn is_unknown(self) -> bool {
        self.0 == 0
    }

    /// Whether the argument is a string and nothing else.
    pub fn is_string(self) -> bool {
        self.0 == STRING
    }

    /// These types; a string if the schema says nothing and the call says so.
    pub fn or_string(self, is_string: bool) -> Self {
        match is_string && self.is_unknown() {
            true => Types(STRING),
            false => self,
        }
    }

    /// Whether the argument may be a string.
    pub fn allows_string(self) -> bool {
        self.0 == 0 || self.0 & STRING != 0
    }

    fn accepts(self, value: &Value) -> bool {
        self.0 & type_of(value) != 0
    }

    /// Reads a schema; `root` resolves `$ref`.
    fn of(schema: &Value, root: &Value, depth: usize) -> u8 {
        if depth > MAX_SCHEMA_DEPTH {
            return 0;
        }
        let named = match schema.get("type") {
            Some(Value::String(name)) => named(name),
            Some(Value::Array(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .fold(0, |all, name| all | named(name)),
            _ => 0,
        };
        let members = |key: &str| {
            schema
                .get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let listed = members("enum")
            .chain(schema.get("const"))
            .fold(0, |all, value| all | type_of(value));
        let mut types = types_of_both(named, listed);
        for key in ["anyOf", "oneOf"] {
            let any = members(key).fold(0, |all, one| all | Types::of(one, root, depth + 1));
            types = types_of_both(types, any);
        }
        let target = schema.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|reference| reference_target(root, reference));
        for part in members("allOf").chain(target) {
            types = types_of_both(types, Types::of(part, root, depth + 1));
        }
        if schema.get("nullable") == Some(&Value::Bool(true)) && types != 0 {
            types |= NULL;
        }
        if types == 0 && schema.get("properties").is_some() {
            types = OBJECT;
        }
        if types == 0 && schema.get("items").is_some() {
            types = ARRAY;
        }
        types
    }

    /// Converts the text of an argument to JSON.
    pub fn convert(self, text: &str) -> String {
        if self.is_string() {
            return scan::quoted(text);
        }
        match literal(text.trim()) {
            Some((json, value)) if self.is_unknown() || self.accepts(&value) => json,
            Some((json, _)) if !self.allows_string() => json,
            _ => scan::quoted(text),
        }
    }
}

/// The types of two limits on one value, each 0 if unknown.
fn types_of_both(one: u8, other: u8) -> u8 {
    match (one, other) {
        (0, types) | (types, 0) => types,
        (one, other) if one & other != 0 => one & other,
        (one, _) => one,
    }
}

/// Finds the schema of a `$ref`: a pointer or an `$anchor`, also with percent-encoding.
fn reference_target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let fragment = &reference[reference.find('#')? + 1..];
    let decoded = percent_decode(fragment);
    let mut names = decoded.as_deref().into_iter().chain([fragment]);
    names.find_map(|name| {
        root.pointer(name)
            .or_else(|| anchored(root, name).filter(|_| !name.is_empty()))
    })
}

fn anchored<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let is_named = ["$anchor", "$dynamicAnchor"]
        .iter()
        .any(|key| schema.get(key).is_some_and(|anchor| anchor == name));
    match schema {
        _ if is_named => Some(schema),
        Value::Object(fields) => fields.values().find_map(|inner| anchored(inner, name)),
        Value::Array(items) => items.iter().find_map(|inner| anchored(inner, name)),
        _ => None,
    }
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::String(_) => STRING,
        Value::Number(_) => NUMBER,
        Value::Bool(_) => BOOLEAN,
        Value::Null => NULL,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// Types by name, also by Python's and Gemma's names.
fn named(name: &str) -> u8 {
    match name.to_ascii_lowercase().as_str() {
        "string" | "str" | "text" => STRING,
        "number" | "integer" | "float" | "int" => NUMBER,
        "boolean" | "bool" => BOOLEAN,
        "null" => NULL,
        "array" | "list" => ARRAY,
        "object" | "dict" => OBJECT,
        _ => 0,
    }
}

/// Reads a literal of JSON or Python that is not a string; returns it as JSON.
fn literal(text: &str) -> Option<(String, Value)> {
    if text.starts_with(['"', '\'']) {
        return None;
    }
    let mut json = String::new();
    if !ValueReader::new(Dialect::PYTHON).read_all(text, &mut json) {
        return None;
    }
    let value = serde_json::from_str(&json).ok()?;
    Some((json, value))
}

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct ToolSchemas {
    tools: Vec<(String, Value)>,
}

impl ToolSchemas {
    /// Reads tools in OpenAI's format, or functions alone.
    pub fn new(tools: &[Value]) -> Self {
        let tools = tools.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?;
            let parameters = function.get("parameters").cloned();
            Some((name.to_owned(), parameters.unwrap_or_default()))
        });
        Self {
            tools: tools.collect(),
        }
    }

    fn parameters(&self, tool: &str) -> Option<&Value> {
        self.tools
            .iter()
            .find(|(name, _)| name == tool)
            .map(|(_, parameters)| parameters)
    }

    /// Whether there is a tool of this name.
    pub fn contains(&self, tool: &str) -> bool {
        self.parameters(tool).is_some()
    }

    /// Types of an argument.
    pub fn types(&self, tool: &str, argument: &str) -> Types {
        let Some(parameters) = self.parameters(tool) else {
            return Types::default();
        };
        let schema = parameters
            .get("properties")
            .and_then(|properties| properties.get(argument));
        Types(schema.map_or(0, |schema| Types::of(schema, parameters, 0)))
    }

    /// Name of the argument at a position, for calls without names.
    pub fn argument_at(&self, tool: &str, position: usize) -> Option<&str> {
        let properties = self.parameters(tool)?.get("properties")?.as_object()?;
        properties.keys().nth(position).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_converted_by_the_schema() {
        let parameters = json!({
            "$defs": { "day": { "enum": [1, 2] }, "A/B<C>": { "enum": ["1", "2"] }, "x": { "$anchor": "code", "type": "string" } },
            "properties": {
                "s": { "type": "string" }, "n": { "type": "integer" }, "b": { "type": "boolean" },
                "maybe": { "type": ["string", "null"] }, "either": { "anyOf": [{ "type": "string" }, { "type": "integer" }] },
                "list": { "items": {} }, "map": { "properties": {} }, "day": { "$ref": "#/$defs/day" }, "any": {},
                "null": { "type": "integer", "nullable": true },
                "digit": { "type": ["integer", "string"], "enum": ["7"] }, "word": { "type": ["string", "null"], "enum": ["null"] },
                "part": { "allOf": [{ "$ref": "#/$defs/A~1B%3CC%3E" }], "description": "" }, "code": { "$ref": "#code" },
                "both": { "type": ["string", "integer"], "anyOf": [{ "const": "7" }, { "type": "null" }] }
            }
        });
        let tools =
            [json!({ "type": "function", "function": { "name": "f", "parameters": parameters } })];
        let schemas = ToolSchemas::new(&tools);
        for (name, text, json) in [
            ("s", "7", r#""7""#),
            ("s", "true", r#""true""#),
            ("n", "7", "7"),
            ("n", " 7\n", "7"),
            ("n", "seven", r#""seven""#),
            ("b", "True", "true"),
            ("b", "false", "false"),
            ("maybe", "null", "null"),
            ("maybe", "7", r#""7""#),
            ("either", "7", "7"),
            ("either", "x 7", r#""x 7""#),
            ("list", "['a', 1]", r#"["a",1]"#),
            ("map", "{\"a\": null}", r#"{"a":null}"#),
            ("day", "2", "2"),
            ("any", "2.5", "2.5"),
            ("any", "two", r#""two""#),
            ("null", "None", "null"),
            ("digit", "7", r#""7""#),
            ("word", "null", r#""null""#),
            ("part", "2", r#""2""#),
            ("code", "7", r#""7""#),
            ("both", "7", r#""7""#),
            ("unlisted", "{}", "{}"),
        ] {
            assert_eq!(
                schemas.types("f", name).convert(text),
                json,
                "{name}: {text}"
            );
        }
        assert_eq!(schemas.argument_at("f", 1), Some("n"));
        assert!(schemas.contains("f") && !schemas.contains("g"));
    }
}
