//! Prepares a JSON schema for the compiler: bounded whitespace, and formats by RFC 3339.

use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Whitespace between JSON tokens: a blank, or a line end with up to eight levels of indentation by
/// two blanks or a tab. A model that keeps writing whitespace would otherwise never end.
const WHITESPACE: &str = r"\x20|\r?\n(?:(?:\x20\x20){0,8}|\x09{0,8})";

/// Leap years have a 29th of February; the compiler's own patterns allow one in every year.
const DATE: &str = "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|\
    (?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|\
    (?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";

/// A second is never 60: a leap second is valid at one instant of a few days only.
const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?\
    (?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Mailboxes as validators accept them: atoms, and a domain of at least two labels.
const EMAIL: &str = "[A-Za-z0-9_%+-]{1,32}(?:\\.[A-Za-z0-9_%+-]{1,31})?\
    @(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?\\.){1,3}[A-Za-z]{2,12}";

/// Absolute addresses with a host, as validators accept them.
const URI: &str = "[a-z][a-z0-9+.-]{0,15}://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?\
    (?:/[A-Za-z0-9._~-]{0,64}){0,8}";

/// Paths without a scheme: a reference of the kinds that every validator accepts.
const URI_REFERENCE: &str = "(?:/[A-Za-z0-9._~-]{1,64}){1,8}(?:#[A-Za-z0-9._~/-]{0,64})?\
    |#[A-Za-z0-9._~/-]{0,64}";

/// RFC 6901.
const JSON_POINTER: &str = "(?:/(?:[^~/]|~[01])*)*";

/// Steps up, then a pointer or `#`.
const RELATIVE_JSON_POINTER: &str = "(?:0|[1-9][0-9]{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)";

/// Base64 with padding: OpenAPI's binary strings.
const BASE64: &str = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?";

/// Formats with a pattern in the compiler.
const COMPILER_FORMATS: [&str; 5] = ["duration", "hostname", "ipv4", "ipv6", "uuid"];

/// Refused, as no pattern stands for it. Names that neither JSON Schema nor OpenAPI defines have no
/// effect.
const UNSUPPORTED_FORMATS: [&str; 1] = ["regex"];

/// Largest integer that every reader of JSON represents.
const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// Maximum schemas inside a schema, `$ref` not followed.
const MAX_SCHEMAS: usize = 2_000;
/// Maximum nesting of schemas, `$ref` followed up to a cycle. The compiler recurses that deep.
const MAX_DEPTH: usize = 64;
/// Maximum schemas visited while the nesting is measured.
const MAX_VISITS: usize = 50_000;

/// Keywords whose value is an object of schemas by name.
const NAMED_SCHEMAS: [&str; 5] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "$defs",
    "definitions",
];

/// Rewrites each `$ref` as a plain pointer from the root, such as `#/$defs/day`: the compiler reads
/// neither escapes nor `$anchor`. A target that has no plain pointer is copied to `$defs`.
///
/// # Errors
/// Names a reference in use that has no target within the schema.
pub fn resolve_references(schema: &Value) -> Result<Value, String> {
    let mut root = schema.clone();
    let names = schema_names(schema);
    // Pointers of the targets, and the names of their copies.
    let mut copies: Vec<(String, String)> = Vec::new();
    each_schema(&mut root, &mut |fields| {
        let Some(Value::String(reference)) = fields.get_mut("$ref") else {
            return;
        };
        let Some(pointer) = pointer_of(schema, reference, &names) else {
            return;
        };
        if !pointer.contains(['~', '%']) && !pointer.ends_with('/') {
            *reference = format!("#{pointer}");
            return;
        }
        let known = copies.iter().find(|(target, _)| *target == pointer);
        let name = match known {
            Some((_, name)) => name.clone(),
            None => {
                let name = (copies.len()..)
                    .map(|number| format!("ref{number}"))
                    .find(|name| schema.pointer(&format!("/$defs/{name}")).is_none())
                    .unwrap_or_default();
                copies.push((pointer, name.clone()));
                name
            }
        };
        *reference = format!("#/$defs/{name}");
    });
    let copies: Vec<(String, Value)> = copies
        .into_iter()
        .filter_map(|(pointer, name)| Some((name, root.pointer(&pointer)?.clone())))
        .collect();
    if let Value::Object(fields) = &mut root
        && !copies.is_empty()
    {
        match fields.get_mut("$defs") {
            Some(Value::Object(definitions)) => definitions.extend(copies),
            _ => {
                fields.insert(
                    "$defs".to_owned(),
                    Value::Object(copies.into_iter().collect()),
                );
            }
        }
    }
    check_references(&root)?;
    Ok(root)
}

/// Refuses a reference without a target, unless only unused definitions have it.
fn check_references(root: &Value) -> Result<(), String> {
    let mut open = vec![root];
    let mut known = HashSet::new();
    while let Some(schema) = open.pop() {
        each_inside(schema, &mut |inner| open.push(inner));
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
            continue;
        };
        if !known.insert(reference) {
            continue;
        }
        let pointer = reference.strip_prefix('#').ok_or_else(|| {
            format!("the '$ref' '{reference}' is outside the schema. Copy its target to '$defs'.")
        })?;
        open.push(root.pointer(pointer).ok_or_else(|| {
            format!("the '$ref' '{reference}' has no target in the schema. Define it in '$defs'.")
        })?);
    }
    Ok(())
}

/// The pointers of schemas that have a name: `#ANCHOR`, or the URI of an `$id`.
fn schema_names(schema: &Value) -> Vec<(String, String)> {
    let mut names = Vec::new();
    each_pointer(schema, |pointer, fields| {
        for key in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = fields.get(key).and_then(Value::as_str) {
                names.push((format!("#{name}"), pointer.to_owned()));
            }
        }
        // Drafts up to 7 write an anchor as an `$id` with a number sign.
        if let Some(name) = fields.get("$id").and_then(Value::as_str) {
            names.push((name.trim_end_matches('#').to_owned(), pointer.to_owned()));
        }
    });
    names
}

/// Where a schema lists no value: the keyword and the pointer of the schema inside it.
pub fn empty_list(schema: &Value) -> Option<(&'static str, String)> {
    let mut found = None;
    each_pointer(schema, |pointer, fields| {
        let is_empty = |key: &&str| fields.get(*key) == Some(&Value::Array(Vec::new()));
        if let Some(key) = ["enum", "anyOf", "oneOf"].into_iter().find(is_empty) {
            found = Some((key, pointer.to_owned()));
        }
    });
    found
}

/// Calls `f` with the pointer of a schema and of each schema inside it. Values of `const`, `enum`,
/// `default` and `examples` are data.
fn each_pointer<'a>(schema: &'a Value, mut f: impl FnMut(&str, &'a Map<String, Value>)) {
    let mut open = vec![(String::new(), schema)];
    while let Some((pointer, schema)) = open.pop() {
        let Value::Object(fields) = schema else {
            continue;
        };
        f(&pointer, fields);
        for (key, value) in fields {
            let inner = format!("{pointer}/{}", pointer_segment(key));
            match (key.as_str(), value) {
                ("const" | "enum" | "default" | "examples", _) => {}
                (key, Value::Object(schemas)) if NAMED_SCHEMAS.contains(&key) => {
                    open.extend(schemas.iter().map(|(name, schema)| {
                        (format!("{inner}/{}", pointer_segment(name)), schema)
                    }));
                }
                (_, Value::Array(schemas)) => {
                    open.extend(
                        schemas
                            .iter()
                            .enumerate()
                            .map(|(index, schema)| (format!("{inner}/{index}"), schema)),
                    );
                }
                (_, value) => open.push((inner, value)),
            }
        }
    }
}

/// A name as part of a pointer, by RFC 6901.
fn pointer_segment(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The pointer of a reference's target.
fn pointer_of(root: &Value, reference: &str, names: &[(String, String)]) -> Option<String> {
    let named = |name: &str| {
        let found = names.iter().find(|(known, _)| known == name);
        found.map(|(_, pointer)| pointer.clone())
    };
    // Generators of schemas also write names as they are.
    [&percent_decoded(reference), reference]
        .into_iter()
        .find_map(|reference| {
            let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
            let start = match base {
                "" => String::new(),
                base => named(base)?,
            };
            let pointer = match fragment {
                "" => start,
                fragment if fragment.starts_with('/') => format!("{start}{fragment}"),
                fragment => named(&format!("#{fragment}"))?,
            };
            root.pointer(&pointer).is_some().then_some(pointer)
        })
}

/// A URI's text without percent-encoding.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = code.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            Some(code) if byte == b'%' => {
                bytes.push(code);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Checks the size of a schema, which the compiler's stack limits.
///
/// # Errors
/// Names the limit.
pub fn check_size(schema: &Value) -> Result<(), String> {
    let mut count = 0;
    count_schemas(schema, &mut count);
    if count > MAX_SCHEMAS {
        return Err(format!(
            "it has {count} schemas inside; at most {MAX_SCHEMAS} are supported"
        ));
    }
    let mut visits = MAX_VISITS;
    if depth_exceeds(schema, schema, MAX_DEPTH, &mut Vec::new(), &mut visits) {
        return Err(format!(
            "its schemas are nested deeper than {MAX_DEPTH} levels, '$ref' included"
        ));
    }
    Ok(())
}

fn count_schemas(schema: &Value, count: &mut usize) {
    *count += 1;
    each_inside(schema, &mut |inner| count_schemas(inner, count));
}

/// Whether schemas nest deeper than `left` levels. `open` holds the references that are being
/// followed; `visits` bounds the work where many references meet.
fn depth_exceeds<'a>(
    root: &'a Value,
    schema: &'a Value,
    left: usize,
    open: &mut Vec<&'a str>,
    visits: &mut usize,
) -> bool {
    if left == 0 || *visits == 0 {
        return left == 0;
    }
    *visits -= 1;
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str)
        && !open.contains(&reference)
        && let Some(target) = reference.strip_prefix('#').and_then(|p| root.pointer(p))
    {
        open.push(reference);
        let exceeds = depth_exceeds(root, target, left - 1, open, visits);
        open.pop();
        if exceeds {
            return true;
        }
    }
    let mut exceeds = false;
    each_inside(schema, &mut |inner| {
        exceeds = exceeds || depth_exceeds(root, inner, left - 1, open, visits);
    });
    exceeds
}

/// Calls `f` with each schema directly inside, definitions excluded.
fn each_inside<'a>(schema: &'a Value, f: &mut dyn FnMut(&'a Value)) {
    let Value::Object(fields) = schema else {
        return;
    };
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "dependentSchemas", Value::Object(schemas)) => {
                schemas.values().for_each(&mut *f);
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                schemas.iter().for_each(&mut *f);
            }
            (
                "items"
                | "additionalProperties"
                | "additionalItems"
                | "propertyNames"
                | "contains"
                | "not"
                | "if"
                | "then"
                | "else",
                inner,
            ) => f(inner),
            _ => {}
        }
    }
}

/// Returns the schema in the compiler's form. Keywords that cannot be enforced are refused if
/// `is_strict`; otherwise they have no effect.
pub fn prepare(schema: &Value, is_strict: bool) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => other.clone(),
    };
    replace_formats(&mut schema);
    if let Value::Object(fields) = &mut schema {
        fields.insert(
            "x-guidance".to_owned(),
            json!({ "whitespace_pattern": WHITESPACE, "lenient": !is_strict }),
        );
    }
    schema
}

/// Replaces formats by patterns in a schema and the schemas inside it.
pub fn replace_formats(schema: &mut Value) {
    each_schema(schema, &mut replace_format);
}

/// Points references into the copy of their schema at `#/$defs/NAME`.
pub fn move_references(schema: &mut Value, name: &str) {
    each_schema(schema, &mut |fields| {
        if let Some(Value::String(reference)) = fields.get_mut("$ref")
            && let Some(pointer) = reference.strip_prefix('#')
        {
            *reference = format!("#/$defs/{name}{pointer}");
        }
    });
}

/// Calls `f` with a schema and each schema inside it, definitions included. Values of `const`,
/// `enum`, `default` and `examples` are data.
fn each_schema(schema: &mut Value, f: &mut dyn FnMut(&mut Map<String, Value>)) {
    match schema {
        Value::Object(fields) => {
            f(fields);
            for (key, value) in fields.iter_mut() {
                match (key.as_str(), value) {
                    ("const" | "enum" | "default" | "examples", _) => {}
                    (key, Value::Object(schemas)) if NAMED_SCHEMAS.contains(&key) => {
                        schemas
                            .values_mut()
                            .for_each(|schema| each_schema(schema, f));
                    }
                    // A reference may point into a keyword that JSON Schema does not define.
                    (_, value) => each_schema(value, f),
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(|schema| each_schema(schema, f)),
        _ => {}
    }
}

/// International variants take the values of the plain ones.
fn pattern_of(format: &str) -> Option<String> {
    Some(match format {
        "date" => format!("^{DATE}$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^{DATE}[tT]{TIME}$"),
        "email" | "idn-email" => format!("^{EMAIL}$"),
        "uri" | "iri" | "uri-template" => format!("^{URI}$"),
        "uri-reference" | "iri-reference" => format!("^(?:{URI}|{URI_REFERENCE})$"),
        "json-pointer" => format!("^{JSON_POINTER}$"),
        "relative-json-pointer" => format!("^{RELATIVE_JSON_POINTER}$"),
        "byte" => format!("^{BASE64}$"),
        _ => return None,
    })
}

/// Limits numbers; a format of strings has no effect.
fn limit(fields: &mut Map<String, Value>, minimum: i64, maximum: i64) {
    if fields.get("type").and_then(Value::as_str) == Some("string") {
        return;
    }
    if !fields.contains_key("exclusiveMinimum") {
        fields.entry("minimum").or_insert(json!(minimum));
    }
    if !fields.contains_key("exclusiveMaximum") {
        fields.entry("maximum").or_insert(json!(maximum));
    }
}

fn replace_format(fields: &mut Map<String, Value>) {
    let Some(name) = fields.get("format").and_then(Value::as_str) else {
        return;
    };
    let Some(pattern) = pattern_of(name) else {
        match name {
            // OpenAPI's bounds of integers.
            "int32" => limit(fields, i64::from(i32::MIN), i64::from(i32::MAX)),
            "int64" => limit(fields, -MAX_SAFE_INTEGER, MAX_SAFE_INTEGER),
            "idn-hostname" => {
                fields.insert("format".to_owned(), json!("hostname"));
                return;
            }
            name if COMPILER_FORMATS.contains(&name) || UNSUPPORTED_FORMATS.contains(&name) => {
                return;
            }
            _ => {}
        }
        fields.remove("format");
        return;
    };
    fields.remove("format");
    if fields.contains_key("pattern") {
        let both = json!({ "pattern": pattern });
        match fields.get_mut("allOf") {
            Some(Value::Array(schemas)) => schemas.push(both),
            _ => {
                fields.insert("allOf".to_owned(), json!([both]));
            }
        }
    } else {
        fields.insert("pattern".to_owned(), Value::String(pattern));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_become_patterns_in_schemas_and_stay_in_data() {
        let prepared = prepare(
            &json!({
                "properties": {
                    "format": { "const": { "format": "date" } },
                    "day": { "format": "date", "pattern": "^2" },
                },
                "items": [{ "format": "time" }],
                "enum": [{ "format": "time" }],
            }),
            true,
        );
        assert_eq!(
            prepared["properties"]["format"],
            json!({ "const": { "format": "date" } })
        );
        assert_eq!(prepared["enum"], json!([{ "format": "time" }]));
        let day = &prepared["properties"]["day"];
        assert_eq!(day["pattern"], "^2");
        assert!(day.get("format").is_none() && day["allOf"][0]["pattern"].is_string());
        assert!(prepared["items"][0].get("format").is_none());
        assert!(prepare(&json!(true), true).is_object());
    }
}
