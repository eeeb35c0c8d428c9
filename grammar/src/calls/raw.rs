//! Strings without quotes and escapes, as regular expressions.

use super::lark::regex;
use serde_json::Value;

/// Formats that JSON Schema names, where the string stands without quotes. Dates, times and
/// addresses are patterns already; see [`crate::schema`].
const FORMATS: [(&str, &str); 4] = [
    (
        "uuid",
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ),
    (
        "ipv4",
        "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    ),
    (
        "hostname",
        "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?(?:\\.[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?){0,3}",
    ),
    (
        "duration",
        "P(?:[0-9]{1,4}D(?:T[0-9]{1,2}H)?|T[0-9]{1,4}[HMS])",
    ),
];

/// The terminal of any string.
pub const ANY: &str = "/(?s:.*)/";

/// The terminal of a string that its schema allows.
///
/// # Errors
/// Names the format that is not known.
pub fn string(schema: &Value, is_strict: bool) -> Result<String, String> {
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
    let most = bound("maxLength").map_or_else(String::new, |most| most.to_string());
    let mut terms = vec![match (bound("minLength").unwrap_or(0), most.as_str()) {
        (0, "") => ANY.to_owned(),
        (least, most) => format!("/(?s:.){{{least},{most}}}/"),
    }];
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
        terms.push(regex(&search(pattern)));
    }
    for part in schema
        .get("allOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        terms.push(string(part, is_strict)?);
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str) {
        match FORMATS.iter().find(|(name, _)| *name == format) {
            Some((_, pattern)) => terms.push(regex(pattern)),
            None if is_strict => return Err(format!("the format '{format}' cannot be enforced")),
            None => {}
        }
    }
    Ok(terms.join(" & "))
}

/// The expression of whole strings in which `pattern` is found.
fn search(pattern: &str) -> String {
    let branches = branches(pattern).into_iter().map(|branch| {
        let start = match branch.strip_prefix('^') {
            Some(_) => "",
            None => "(?s:.*)",
        };
        let body = branch.strip_prefix('^').unwrap_or(branch);
        match body.strip_suffix('$').filter(|body| !body.ends_with('\\')) {
            Some(body) => format!("{start}(?:{body})"),
            None => format!("{start}(?:{body})(?s:.*)"),
        }
    });
    branches.collect::<Vec<_>>().join("|")
}

/// Splits an expression at the bars outside groups and classes.
fn branches(pattern: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut depth, mut is_class, mut is_escaped, mut start) = (0usize, false, false, 0);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' => is_class = false,
            _ if is_class => {}
            '[' => is_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                found.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&pattern[start..]);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_search() {
        for (pattern, whole) in [
            ("^a$", "(?:a)"),
            ("b", "(?s:.*)(?:b)(?s:.*)"),
            ("^a|b$", "(?:a)(?s:.*)|(?s:.*)(?:b)"),
            ("^(a|[|)])\\|$", "(?:(a|[|)])\\|)"),
            ("a\\$", "(?s:.*)(?:a\\$)(?s:.*)"),
        ] {
            assert_eq!(search(pattern), whole, "{pattern}");
        }
    }
}
