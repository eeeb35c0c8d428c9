//! The Rust API: what the crate's root exports, as a list under version control.

use super::sources::files;
use std::fs;
use std::path::Path;

/// Where the list is, from this crate.
const LIST: &str = "../docs/rust-api.txt";

/// Kinds of declarations.
const KINDS: [&str; 6] = ["struct", "enum", "trait", "type", "async fn", "fn"];

/// Names that lib.rs exports for users, sorted.
fn exported(root: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (index, _) in root.match_indices("pub use ") {
        let is_hidden = root[..index].trim_end().ends_with("#[doc(hidden)]");
        let end = root[index..]
            .find(';')
            .map_or(root.len(), |end| index + end);
        let path = root[index..end].trim_start_matches("pub use ");
        let list = path
            .split_once('{')
            .map(|(_, list)| list.trim_end_matches('}'));
        let last = path.rsplit("::").next().unwrap_or(path);
        if !is_hidden {
            let listed = list.unwrap_or(last).split(',').map(str::trim);
            names.extend(listed.filter(|name| !name.is_empty()).map(str::to_string));
        }
    }
    names.sort();
    names
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The lines of a block in braces, after its first line.
fn block<'a>(lines: &'a [&'a str], first: usize) -> &'a [&'a str] {
    let end = format!("{}}}", " ".repeat(indent(lines[first])));
    let length = lines[first + 1..].iter().position(|line| **line == end);
    &lines[first + 1..first + 1 + length.unwrap_or(0)]
}

/// A declaration from its first line on, without its body.
fn signature(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(line.trim());
        if line.ends_with(['{', ';', '}']) || line.ends_with("where") {
            break;
        }
        text.push(' ');
    }
    let text = text.trim_end_matches("where").trim_end_matches(['{', ';']);
    let text = text.trim().trim_start_matches("pub ");
    text.replace("( ", "(").replace(", )", ")")
}

/// Members of a declaration's block: public fields, variants, a trait's methods, options of requests.
fn members(lines: &[&str], first: usize) -> Vec<String> {
    let depth = indent(lines[first]) + 4;
    if lines[first].contains("fn ") || lines[first].ends_with([';', '}']) {
        return Vec::new();
    }
    let of_block = block(lines, first);
    let at_depth = of_block.iter().filter(|line| indent(line) == depth);
    at_depth
        .filter_map(|line| {
            let line = line.trim();
            if line.starts_with("fn ") || line.starts_with("async fn ") {
                return Some(line.trim_end_matches([' ', '{', ';']).to_string());
            }
            if let Some(field) = line.strip_prefix("pub ") {
                return Some(field.trim_end_matches(',').to_string());
            }
            if line.starts_with(|c: char| c.is_ascii_uppercase()) {
                let end = line.find(|c: char| !c.is_alphanumeric());
                return Some(line[..end.unwrap_or(line.len())].to_string());
            }
            let (name, rest) = line.split_once(": ")?;
            let (kind, _) = rest.split_once(" = ")?;
            let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            is_name.then(|| format!("{name}: {kind}"))
        })
        .collect()
}

/// The declaration of a name, and its public methods.
fn describe(name: &str, sources: &[(String, String, String)]) -> Option<Vec<String>> {
    let declares = |line: &str| {
        let line = line.trim_start().strip_prefix("pub ")?;
        let rest = KINDS.iter().find_map(|kind| line.strip_prefix(*kind))?;
        let rest = rest.strip_prefix(' ')?.strip_prefix(name)?;
        (!rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')).then_some(())
    };
    let mut found: Option<Vec<String>> = None;
    let mut methods = Vec::new();
    for (_, _, text) in sources {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            if found.is_none() && declares(line).is_some() {
                let mut entry = vec![signature(&lines[index..])];
                entry.extend(members(&lines, index).iter().map(|m| format!("    {m}")));
                found = Some(entry);
            }
            let of_type = line.trim_start().strip_prefix("impl ");
            if of_type.and_then(|head| head.strip_suffix(" {")) == Some(name) {
                let depth = indent(line) + 4;
                let body = block(&lines, index);
                let public = (0..body.len()).filter(|at| {
                    let line = body[*at];
                    indent(line) == depth && line.trim_start().starts_with("pub ")
                });
                methods.extend(public.map(|at| format!("    {}", signature(&body[at..]))));
            }
        }
    }
    methods.sort();
    methods.dedup();
    found.map(|mut entry| {
        entry.extend(methods);
        entry
    })
}

#[test]
fn rust_api_is_as_listed() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = fs::read_to_string(crate_root.join("../crate/src/lib.rs")).expect("the root");
    let sources = files();
    let mut list = String::from(
        "// What jerboa's root exports. After a change: JERBOA_WRITE_API=1 cargo test -p jerboa-tests --test house rust_api\n",
    );
    let names = exported(&root);
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        // The device has another type in browsers.
        let declared = if name == "Gpu" { "NativeGpu" } else { &name };
        let entry = describe(declared, &sources);
        let entry = entry.unwrap_or_else(|| panic!("no source declares {name}"));
        list.push('\n');
        list.push_str(&entry.join("\n").replace("NativeGpu", "Gpu"));
        list.push('\n');
    }
    let path = crate_root.join(LIST);
    if std::env::var_os("JERBOA_WRITE_API").is_some() {
        fs::write(&path, &list).expect("docs is writable");
    }
    let listed = fs::read_to_string(&path).expect("docs/rust-api.txt");
    assert!(
        list == listed,
        "the Rust API changed. If that is meant, write docs/rust-api.txt with JERBOA_WRITE_API=1 and mention it in CHANGELOG.md"
    );
}

#[test]
fn declarations_are_read_correctly() {
    let text = "\
/// A thing.
pub struct Thing {
    /// Size.
    pub size: usize,
    hidden: u8,
}

impl Thing {
    /// Makes one.
    pub async fn open(
        size: usize,
    ) -> Result<Self> {
        todo()
    }
    pub(crate) fn inner(&self) {}
}

options! {
    pub struct Wish, WISH_OPTIONS {
        top_k: Option<u32> = None => count(0.0)
            .default(\"none\");
    }
}

pub enum Kind {
    One,
    Two { a: u8 },
}
";
    let sources = [(String::new(), String::new(), text.to_string())];
    let of = |name: &str| describe(name, &sources).expect("declared");
    assert_eq!(
        of("Thing"),
        [
            "struct Thing",
            "    size: usize",
            "    async fn open(size: usize) -> Result<Self>"
        ]
    );
    assert_eq!(of("Wish")[1], "    top_k: Option<u32>");
    assert_eq!(of("Kind"), ["enum Kind", "    One", "    Two"]);
    assert_eq!(describe("Thin", &sources), None);
    let root = "#[doc(inline)]\npub use a::{Thing,\n    Kind};\n#[doc(hidden)]\npub use b::Other;\npub use c::Wish;";
    assert_eq!(exported(root), ["Kind", "Thing", "Wish"]);
}
