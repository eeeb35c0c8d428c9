//! Modules of crate/src and their dependencies, from the text of the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A path in a module, and the module that it leads to.
pub struct Use {
    /// As written, such as `crate::ir::Graph`.
    pub path: String,
    /// Such as `ir` or `ir/rope`.
    pub module: String,
}

/// A file of crate/src.
pub struct Module {
    /// Such as `ir` for ir/mod.rs and `ir/rope` for ir/rope.rs.
    pub name: String,
    /// The file's path in the repository.
    pub file: String,
    /// Its dependencies, without those of its tests and without its parent modules.
    pub uses: Vec<Use>,
    /// The types that it defines.
    pub types: Vec<String>,
    /// The types that it has inherent `impl` blocks of, outside its tests.
    pub impls: Vec<String>,
}

/// All files of crate/src: module, path in the repository, text.
pub fn files() -> Vec<(String, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crate/src");
    let mut files = Vec::new();
    collect(&root, "", &mut files);
    assert!(
        files.len() > 100,
        "crate/src is not where it was: {}",
        root.display()
    );
    files
}

/// All modules except the crate's root.
pub fn modules() -> Vec<Module> {
    let files = files();
    let names: BTreeSet<String> = files.iter().map(|(name, _, _)| name.clone()).collect();

    files
        .into_iter()
        .filter(|f| !f.0.is_empty())
        .map(|(name, file, text): (String, String, String)| {
            let used = paths(&text).into_iter().filter_map(|path| {
                let module = target(&name, &path, &names)?;
                let part_of = module == name || name.starts_with(&format!("{module}/"));
                (!part_of).then_some(Use { path, module })
            });
            let code = code(&text);
            Module {
                uses: used.collect(),
                types: types(&code),
                impls: inherent_impls(&code),
                name,
                file,
            }
        })
        .collect()
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, String, String)>) {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    for entry in entries.map(|e| e.expect("an entry").path()) {
        let stem = entry
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if entry.is_dir() {
            collect(&entry, &format!("{prefix}{stem}/"), files);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            let inner = !matches!(stem.as_str(), "mod" | "lib");
            let name = if inner {
                format!("{prefix}{stem}")
            } else {
                prefix.trim_end_matches('/').to_owned()
            };
            let file = format!("crate/src/{prefix}{stem}.rs");
            files.push((name, file, fs::read_to_string(&entry).expect("a source")));
        }
    }
}

/// A source without comments and tests.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or("");
    code.lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first name in `text`.
fn name(text: &str) -> String {
    let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
    text.chars().take_while(is_name).collect()
}

/// The names of the structs and enums of a source, whatever their visibility.
fn types(code: &str) -> Vec<String> {
    let words: Vec<&str> = code.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| matches!(pair[0], "struct" | "enum" | "union"))
        .map(|pair| name(pair[1]))
        .collect()
}

/// The types of the `impl` blocks without a trait.
pub fn inherent_impls(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines = code.match_indices("\nimpl");
    for head in lines.filter_map(|(at, impls)| code[at + impls.len()..].split('{').next()) {
        let of = after_generics(head).trim();
        if of.contains(" for ") || !head.starts_with(['<', ' ']) {
            continue;
        }
        let path = of.split(['<', ' ', '\n']).next().unwrap_or("");
        found.push(name(path.rsplit("::").next().unwrap_or("")));
    }
    found
}

/// What follows the generic parameters at the start of `head`.
fn after_generics(head: &str) -> &str {
    let mut depth = 0;
    for (at, c) in head.char_indices() {
        match c {
            '<' => depth += 1,
            // The arrow of a function type closes nothing.
            '>' if !head[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if c == '>' {
                &head[at + 1..]
            } else {
                &head[at..]
            };
        }
    }
    ""
}

/// Paths that begin at the crate or at a parent, outside comments and tests, with groups expanded.
fn paths(text: &str) -> Vec<String> {
    let code = code(text).replace('\n', " ");
    let mut found = Vec::new();
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if !before.is_alphanumeric() && before != '_' && before != ':' {
                expand("", &code[at..], &mut found);
            }
        }
    }
    found
}

/// Reads one path or group at the start of `text` and returns the rest.
fn expand<'a>(prefix: &str, text: &'a str, found: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        while !rest.trim_start().starts_with('}') && !rest.is_empty() {
            rest = expand(prefix, rest, found)
                .trim_start()
                .trim_start_matches(',')
                .trim_start();
        }
        return rest.trim_start().strip_prefix('}').unwrap_or("");
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
        .unwrap_or(text.len())
        .max(1);
    let end = text
        .char_indices()
        .map(|(at, _)| at)
        .find(|at| *at >= end)
        .unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    if word.ends_with("::") && rest.starts_with('{') {
        return expand(&format!("{prefix}{word}"), rest, found);
    }
    found.push(format!("{prefix}{word}"));
    // `a as b` is `a`.
    rest.trim_start().strip_prefix("as ").map_or(rest, |name| {
        let name = name.trim_start();
        &name[name
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(name.len())..]
    })
}

/// The module that `path` leads to from `module`.
fn target(module: &str, path: &str, names: &BTreeSet<String>) -> Option<String> {
    let mut at = module.to_owned();
    let mut steps = path.split("::").filter(|s| !s.is_empty()).peekable();
    if steps.next_if_eq(&"crate").is_some() {
        at.clear();
        if let Some(&("Error" | "Result")) = steps.peek() {
            return Some("error".to_owned());
        }
    }
    while steps.next_if_eq(&"super").is_some() {
        at = at
            .rsplit_once('/')
            .map_or(String::new(), |(parent, _)| parent.to_owned());
    }
    for step in steps {
        let next = if at.is_empty() {
            step.to_owned()
        } else {
            format!("{at}/{step}")
        };
        if !names.contains(&next) {
            break;
        }
        at = next;
    }
    names
        .contains(&at)
        .then_some(at)
        .filter(|at| !at.is_empty())
}
