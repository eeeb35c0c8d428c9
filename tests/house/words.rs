//! The words of comments, messages and documents: a list of terms that readers would stop at, each
//! with the term to use instead.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Terms that comments, messages and documents do not use, and what they say instead.
const AVOIDED: &[(&str, &str)] = &[
    ("picture", "image"),
    ("pictures", "images"),
    ("film", "video"),
    ("films", "videos"),
    ("tower", "vision encoder"),
    ("towers", "vision encoders"),
    ("ear", "audio encoder"),
    ("hears", "transcribes"),
    ("speaks", "synthesizes speech"),
    ("twin", "CPU reference, counterpart"),
    ("twins", "CPU references, counterparts"),
    ("matrix unit", "subgroup matrix"),
    ("matrix units", "subgroup matrices"),
    ("run of keys", "KV split"),
    ("runs of keys", "KV splits"),
    ("run of rows", "range, chunk, shard"),
    ("runs of rows", "ranges, chunks, shards"),
    ("drawn", "sampled"),
    ("picked", "selected, sampled"),
    ("picks", "selects, samples, selected experts"),
    ("told", "reported, passed"),
    ("beside", "besides, with, against, next to"),
    ("dear", "expensive, slow"),
    ("on the processor", "on the CPU"),
    ("somebody", "the caller, the user"),
    ("nobody", "no caller, no user"),
    ("whoever", "the caller, the user"),
    ("who asks", "the caller"),
    ("to be had", "available"),
    ("at hand", "available"),
    ("by need", "on demand, lazily"),
    ("in its place", "instead"),
    ("in the midst", "during"),
    ("at the most", "at most"),
    ("speed of decode", "decode throughput"),
];

/// A file, a term that it may use, and why.
const ALLOWED: &[(&str, &str, &str)] = &[];

/// Folders and files that people read.
const SCANNED: &[&str] = &[
    "README.md",
    "CONTRIBUTING.md",
    "crate",
    "docs",
    "grammar",
    "pkg-template",
    "shaders",
    "tests",
    "train",
    "www",
    "xtask",
];

/// Folders of data, of builds and of other people's code.
const SKIPPED: &[&str] = &[
    "cache",
    "dist",
    "golden",
    "node_modules",
    "public",
    "seeds",
    "target",
];

/// The lists above.
const THIS_FILE: &str = "tests/house/words.rs";

#[test]
fn comments_messages_and_documents_use_common_terms() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for name in SCANNED {
        collect(&root.join(name), name, &mut files);
    }
    assert!(files.len() > 500, "only {} files found", files.len());

    let mut found = Vec::new();
    let mut allowed = BTreeSet::new();
    for (name, path) in files {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (line, term, instead) in avoided(&name, &text) {
            match ALLOWED.iter().find(|a| (a.0, a.1) == (name.as_str(), term)) {
                Some(entry) => drop(allowed.insert(entry)),
                None => found.push(format!("  {name}:{line}: \"{term}\", better: {instead}")),
            }
        }
    }
    assert!(
        found.is_empty(),
        "terms to avoid (the list is in {THIS_FILE}):\n{}",
        found.join("\n")
    );
    for entry in ALLOWED {
        assert!(
            allowed.contains(entry),
            "unused entry of ALLOWED: {entry:?}"
        );
    }
}

#[test]
fn terms_are_found_in_comments_strings_and_documents() {
    let terms = |name: &str, text: &str| -> Vec<(usize, &str)> {
        let found = avoided(name, text).into_iter();
        found.map(|(line, term, _)| (line, term)).collect()
    };
    let rust = "fn a<'a>() {\n    // A dear\n    // thing at\n    // hand.\n    let dear = ('\"', \"dear \\\" twin\");\n}";
    assert_eq!(
        terms("a.rs", rust),
        [(2, "dear"), (3, "at hand"), (5, "dear"), (5, "twin")]
    );
    assert_eq!(
        terms("a.rs", "let a = r#\"a \"dear\" b\"#; // told"),
        [(1, "dear"), (1, "told")]
    );
    assert_eq!(
        terms(
            "a.rs",
            "/// `dear`, `a dear b`, a::dear and dear_b\nlet a = \"{dear} of\";"
        ),
        []
    );
    assert_eq!(
        terms(
            "a.mjs",
            "const a = /[\"/]/, b = 'dear';\n/** One\n * dear. */"
        ),
        [(3, "dear")]
    );
    assert_eq!(
        terms("a.ts", "x = `a ${b} dear`; // https://dear/"),
        [(1, "dear")]
    );
    assert_eq!(terms("a.wgsl", "let dear = 1; // dear"), [(1, "dear")]);
    assert_eq!(
        terms("a.py", "dear = \"\"\"A\ndear one\"\"\"  # told"),
        [(2, "dear"), (2, "told")]
    );
    assert_eq!(
        terms("a.html", "<picture>dear<!-- a\n twin --></picture>"),
        [(2, "twin")]
    );
    assert_eq!(
        terms("a.md", "Dear <picture>\n```\ntwin\n```\ntwin's"),
        [(1, "dear"), (5, "twin")]
    );
}

fn collect(path: &Path, name: &str, files: &mut Vec<(String, PathBuf)>) {
    if path.is_file() {
        let extension = name.rsplit('.').next().unwrap_or_default();
        let scanned = extension == "md" || !delimiters(extension).is_empty();
        if scanned && name != THIS_FILE {
            files.push((name.to_owned(), path.to_owned()));
        }
        return;
    }
    let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for entry in entries.map(|e| e.expect("an entry")) {
        let file = entry.file_name().to_string_lossy().into_owned();
        if !file.starts_with('.') && !SKIPPED.contains(&file.as_str()) {
            collect(&entry.path(), &format!("{name}/{file}"), files);
        }
    }
}

/// Returns the terms to avoid in a file: line, term, and what to use instead.
fn avoided(name: &str, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let words = match name.rsplit('.').next().unwrap_or_default() {
        "md" => document_words(text),
        extension => source_words(extension, text),
    };
    let mut found = Vec::new();
    for (at, (line, _)) in words.iter().enumerate() {
        for (term, instead) in AVOIDED {
            let mut rest = words[at..].iter().map(|(_, word)| word.as_str());
            if term.split(' ').all(|word| rest.next() == Some(word)) {
                found.push((*line, *term, *instead));
            }
        }
    }
    found
}

/// Words of a Markdown document outside code, with their lines.
fn document_words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            add_words(index + 1, line, &mut words);
        }
    }
    words
}

/// Start and end of the comments and strings of a language.
fn delimiters(extension: &str) -> &'static [(&'static str, &'static str)] {
    match extension {
        "rs" => &[
            ("//", "\n"),
            ("/*", "*/"),
            ("r#\"", "\"#"),
            ("r\"", "\""),
            ("\"", "\""),
        ],
        "ts" | "tsx" | "js" | "mjs" => &[
            ("//", "\n"),
            ("/*", "*/"),
            ("\"", "\""),
            ("'", "'"),
            ("`", "`"),
        ],
        "wgsl" => &[("//", "\n"), ("/*", "*/")],
        "css" => &[("/*", "*/")],
        "html" => &[("<!--", "-->")],
        "py" => &[("#", "\n"), ("\"\"\"", "\"\"\""), ("\"", "\""), ("'", "'")],
        "toml" | "sh" => &[("#", "\n"), ("\"", "\"")],
        _ => &[],
    }
}

/// Words of a source's comments and of its strings with spaces, with their lines. An empty word
/// separates fragments, except line comments that follow each other.
fn source_words(extension: &str, text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let mut at = 0;
    let mut line = 1;
    let mut last_comment = 0;
    while at < text.len() {
        let rest = &text[at..];
        let opaque = opaque_literal(extension, &text[..at], rest);
        let found = delimiters(extension)
            .iter()
            .find(|(start, _)| rest.starts_with(start));
        let length = match found {
            _ if opaque > 0 => opaque,
            None => rest.chars().next().map_or(1, char::len_utf8),
            Some((start, end)) => {
                let length = content_length(extension, start, end, &rest[start.len()..]);
                let content = &rest[start.len()..start.len() + length];
                let is_string = start.contains(['"', '\'', '`']);
                if !is_string || content.contains(' ') {
                    if *end != "\n" || line != last_comment + 1 {
                        words.push((line, String::new()));
                    }
                    add_words(line, content, &mut words);
                }
                if *end == "\n" {
                    last_comment = line;
                }
                (start.len() + length + end.len()).min(rest.len())
            }
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    words
}

/// Returns the length of a comment or string from its start to its end, `text` being what follows
/// the start.
fn content_length(extension: &str, start: &str, end: &str, text: &str) -> usize {
    let escapes = matches!(start, "\"" | "'" | "`");
    let one_line = matches!(start, "\"" | "'") && extension != "rs";
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if escapes && letter == '\\' {
            escaped = true;
        } else if text[at..].starts_with(end) || (one_line && letter == '\n') {
            return at;
        }
    }
    text.len()
}

/// Returns the length of a character of Rust or a regular expression of JavaScript at the start of
/// `rest`, whose quotes begin no string; else 0.
fn opaque_literal(extension: &str, before: &str, rest: &str) -> usize {
    let mut letters = rest.char_indices();
    match (extension, letters.next().map(|(_, letter)| letter)) {
        ("rs", Some('\'')) => {
            let escaped = letters.next().is_some_and(|(_, letter)| letter == '\\');
            if escaped {
                letters.next();
                return letters
                    .find(|(_, c)| *c == '\'')
                    .map_or(0, |(at, _)| at + 1);
            }
            letters
                .next()
                .filter(|(_, c)| *c == '\'')
                .map_or(0, |(at, _)| at + 1)
        }
        ("ts" | "tsx" | "js" | "mjs", Some('/')) if !rest.starts_with("//") => {
            let before = before.trim_end().chars().next_back().unwrap_or(';');
            if rest.starts_with("/*") || !"(,=:[!&|?{};>".contains(before) {
                return 0;
            }
            let mut in_class = false;
            let mut escaped = false;
            for (at, letter) in letters {
                match letter {
                    '\n' => return 0,
                    _ if escaped => escaped = false,
                    '\\' => escaped = true,
                    '[' => in_class = true,
                    ']' => in_class = false,
                    '/' if !in_class => return at + 1,
                    _ => {}
                }
            }
            0
        }
        _ => 0,
    }
}

/// Adds the words of a text that begins in `line`, in lower case; an empty one for code.
fn add_words(line: usize, text: &str, words: &mut Vec<(usize, String)>) {
    const CODE: [char; 11] = ['`', '{', '}', '<', '>', '$', '/', '_', '=', '\\', '#'];
    let mut in_code = false;
    for (index, row) in text.split('\n').enumerate() {
        // Doc comments begin with another slash, exclamation mark or star.
        let row = row.trim_start().trim_start_matches(['/', '!', '*']);
        for token in row.split_whitespace() {
            let word = token.trim_matches(|letter: char| !letter.is_alphanumeric());
            let word = word.strip_suffix("'s").unwrap_or(word);
            let is_code = in_code || token.contains(CODE) || word.contains(['.', ':']);
            in_code ^= token.matches('`').count() % 2 == 1;
            let word = if is_code {
                String::new()
            } else {
                word.to_lowercase()
            };
            words.push((line + index, word));
        }
    }
}
