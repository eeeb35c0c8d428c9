//! Links of doc comments name items that exist. rustdoc checks only items that it documents.

use super::sources::files;
use std::collections::BTreeSet;

/// First segments of paths that are no names of items.
const ROOTS: [&str; 5] = ["Self", "crate", "self", "std", "super"];

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Identifiers of code, and those of types among them.
struct Names<'a> {
    all: BTreeSet<&'a str>,
    types: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn new(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut names = Self {
            all: BTreeSet::new(),
            types: BTreeSet::new(),
        };
        for line in texts.flat_map(str::lines).filter(|line| !is_comment(line)) {
            let mut last = "";
            for word in words(line) {
                names.all.insert(word);
                if matches!(last, "struct" | "enum" | "trait" | "type" | "union" | "as") {
                    names.types.insert(word);
                }
                last = word;
            }
        }
        names
    }

    /// Whether each part of a path exists, and what its members are of is a type.
    fn contains(&self, path: &str) -> bool {
        let parts: Vec<&str> = path.split("::").collect();
        let is_type = |part: &str| part.starts_with(|c: char| c.is_ascii_uppercase());
        parts.iter().enumerate().all(|(index, part)| {
            let owns_member = index + 1 < parts.len() && is_type(part);
            ROOTS.contains(part)
                || if owns_member {
                    self.types.contains(part)
                } else {
                    self.all.contains(part)
                }
        })
    }
}

/// The paths that the links of a comment name.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("[`").filter_map(|(at, mark)| {
        let rest = &line[at + mark.len()..];
        let end = rest.find("`]")?;
        let has_target = rest[end + 2..].starts_with(['(', ':']);
        let path = rest[..end].trim_end_matches("()");
        let is_path = path
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == ':');
        (is_path && !has_target).then_some(path)
    })
}

#[test]
fn links_of_comments_name_existing_items() {
    let sources = files();
    let names = Names::new(sources.iter().map(|(_, _, text)| text.as_str()));
    let mut broken = Vec::new();
    let mut count = 0;
    for (_, file, text) in &sources {
        for (line, comment) in text
            .lines()
            .enumerate()
            .filter(|(_, line)| is_comment(line))
        {
            for path in links(comment) {
                count += 1;
                if !names.contains(path) {
                    broken.push(format!("  {file}:{}: [`{path}`]", line + 1));
                }
            }
        }
    }
    assert!(count > 200, "{count} links");
    assert!(
        broken.is_empty(),
        "links to items that do not exist:\n{}",
        broken.join("\n")
    );
}

#[test]
fn broken_links_are_found() {
    let code = "struct Plan;\nimpl Plan { fn size() {} }\nenum Mask { Packed }\n// struct Gone";
    let names = Names::new([code].into_iter());
    let found: Vec<bool> = links(
        "/// [`Plan`], [`Plan::size`], [`Plan::length`], [`Packed::size`], [`Gone`], [`Self::size()`], [`x`](url)",
    )
    .map(|path| names.contains(path))
    .collect();
    assert_eq!(found, [true, true, false, false, false, true]);
}
