//! Model names: a Hub repository, a folder's URL or, natively, a local folder. Does not access the
//! network.

use crate::{Error, Result};

/// The Hub used for `org/name` unless another endpoint is given.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// A parsed model name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// A repository of a Hub.
    Repo {
        /// `org/name`.
        id: String,
        /// Branch, tag, commit or `refs/pr/N`; `main` when not given.
        revision: Option<String>,
        /// The subfolder with the model's files, without slashes at its ends; empty for the root.
        folder: String,
    },
    /// A folder of a web server, without a trailing slash.
    Folder {
        /// Its URL: absolute, or in the browser relative to the page.
        url: String,
    },
    /// A local folder or file (native only; in the browser the user selects files instead).
    Path {
        /// As the user wrote it.
        path: String,
    },
    /// One GGUF file of a repository or folder.
    File {
        /// The repository or folder.
        location: Box<ModelRef>,
        /// The file's path in it.
        file: String,
    },
}

impl ModelRef {
    /// Parses `org/name`, `org/name@revision`, the URL of a folder, a page of huggingface.co, or a
    /// path (`/…`, `./…`). A .gguf file name may follow each of them.
    pub fn parse(name: &str) -> Result<ModelRef> {
        let refuse = |reason: &str| Error::ModelName {
            name: without_credentials(name),
            reason: reason.to_string(),
        };
        let text = name.trim();
        // Suffix of the Hub's download links.
        let text = text.strip_suffix("?download=true").unwrap_or(text);
        if let Some(page) = hub_page(text) {
            let (path, suffix) = page.split_at(page.find(['?', '#']).unwrap_or(page.len()));
            check_url(path).map_err(refuse)?;
            let mut location = parse_hub_path(path.trim_matches('/')).ok_or_else(|| {
                refuse(unlisted_quant(path).unwrap_or("it is not the page of a model"))
            })?;
            // The page of a repository shows one of its files by this parameter.
            let shown = suffix
                .split(['?', '&', '#'])
                .find_map(|part| part.strip_prefix("show_file_info="));
            let shown = shown.and_then(percent_decode);
            let Some(file) = shown.filter(|file| is_gguf(file) && is_inside(file)) else {
                return Ok(location);
            };
            if let ModelRef::Repo { folder, .. } = &mut location {
                folder.clear();
            }
            return Ok(ModelRef::File {
                location: Box::new(location),
                file,
            });
        }
        // Checked first: a path or a file name may follow the URL.
        if let Err(reason) = check_url(text) {
            return Err(refuse(reason));
        }
        if is_gguf(text) {
            return parse_file(text)
                .ok_or_else(|| refuse("put the repository or folder before the file's name"))?;
        }
        if text.is_empty() {
            return Err(refuse("it is empty"));
        }
        if text.contains("://") {
            return Ok(ModelRef::Folder {
                url: text.trim_end_matches('/').to_string(),
            });
        }
        if text.starts_with(['/', '.', '~']) {
            // In a page, a path can only be a URL relative to that page.
            return Ok(if cfg!(target_arch = "wasm32") {
                ModelRef::Folder {
                    url: text.trim_end_matches('/').to_string(),
                }
            } else {
                ModelRef::Path {
                    path: text.to_string(),
                }
            });
        }
        let (id, revision) = match text.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (text, None),
        };
        if !is_repo_id(id) {
            return Err(refuse(unlisted_quant(text).unwrap_or(
                "a repository name has the form 'org/name', of letters, digits, '.', '_' and '-'",
            )));
        }
        if revision.is_some_and(|r| !is_revision(r)) {
            return Err(refuse(
                "the revision after '@' is not a valid branch, tag or commit",
            ));
        }
        Ok(ModelRef::Repo {
            id: id.to_string(),
            revision: revision.map(str::to_string),
            folder: String::new(),
        })
    }
}

impl std::fmt::Display for ModelRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ModelRef::Repo {
                id,
                revision,
                folder,
            } if !folder.is_empty() => {
                let revision = percent_encode(revision.as_deref().unwrap_or("main"), false);
                let folder = percent_encode(folder, true);
                write!(f, "{DEFAULT_ENDPOINT}/{id}/tree/{revision}/{folder}")
            }
            ModelRef::Repo {
                id, revision: None, ..
            } => f.write_str(id),
            ModelRef::Repo {
                id,
                revision: Some(revision),
                ..
            } => write!(f, "{id}@{revision}"),
            ModelRef::Folder { url } => f.write_str(url),
            ModelRef::Path { path } => f.write_str(path),
            ModelRef::File {
                location: place,
                file,
            } => write!(f, "{place}/{file}"),
        }
    }
}

/// Parses the path of a .gguf file. In a repository without a revision, the file may be in a
/// subfolder. After a revision, and on web servers, everything before the last segment is the
/// repository or folder.
fn parse_file(text: &str) -> Option<Result<ModelRef>> {
    let made = |place: &str, file: &str| {
        ModelRef::parse(place).map(|place| ModelRef::File {
            location: Box::new(place),
            file: file.to_string(),
        })
    };
    let is_repo =
        !text.contains("://") && !text.contains('@') && !text.starts_with(['/', '.', '~']);
    if is_repo {
        let (at, _) = text.match_indices('/').nth(1)?;
        return Some(made(&text[..at], &text[at + 1..]));
    }
    let (place, file) = text.rsplit_once('/')?;
    Some(made(if place.is_empty() { "/" } else { place }, file))
}

/// The path of a page of huggingface.co, with or without a scheme, and what follows it.
fn hub_page(text: &str) -> Option<&str> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let rest = rest.unwrap_or(text);
    let rest = rest.strip_prefix("www.").unwrap_or(rest);
    ["huggingface.co/", "hf.co/"]
        .iter()
        .find_map(|host| rest.strip_prefix(host))
}

fn is_gguf(text: &str) -> bool {
    text.len() > 5 && text.to_ascii_lowercase().ends_with(".gguf")
}

/// What to do about a name with a quantization after a colon, as Ollama and llama.cpp take it; `None`
/// for other names.
fn unlisted_quant(text: &str) -> Option<&'static str> {
    let (id, quant) = text.rsplit_once(':')?;
    (is_repo_id(id) && !quant.contains('/')).then_some(
        "a quantization after ':' is not supported; write the file's name, as in 'org/name/FILE-Q4_K_M.gguf'",
    )
}

/// Parses the path of a page in the address bar: `org/name`, `org/name/tree/REVISION/FOLDER`, or a file
/// as `org/name/blob/REVISION/FILE`. A GGUF file is the model; of another file, its folder.
fn parse_hub_path(path: &str) -> Option<ModelRef> {
    let parts: Vec<&str> = path.split('/').collect();
    let id = parts.get(..2)?.join("/");
    let (page, revision, inner) = match &parts[2..] {
        [] => ("tree", None, &[][..]),
        [page, "refs", kind, number, inner @ ..] => {
            (*page, Some(format!("refs/{kind}/{number}")), inner)
        }
        [page, revision, inner @ ..] => (*page, Some(percent_decode(revision)?), inner),
        _ => return None,
    };
    let inner = percent_decode(&inner.join("/"))?;
    let is_valid = is_repo_id(&id)
        && revision.as_deref().is_none_or(is_revision)
        && (inner.is_empty() || is_inside(&inner));
    let is_file = match page {
        _ if !is_valid => return None,
        "tree" => false,
        "resolve" | "blob" => true,
        _ => return None,
    };
    let (outer, last) = inner.rsplit_once('/').unwrap_or(("", &inner));
    let folder = match is_file && last.contains('.') {
        true if is_gguf(last) => "",
        true => outer,
        false => &inner,
    };
    let repo = ModelRef::Repo {
        id,
        revision,
        folder: folder.to_string(),
    };
    if !(is_file && is_gguf(last)) {
        return Some(repo);
    }
    Some(ModelRef::File {
        location: Box::new(repo),
        file: inner,
    })
}

/// Refuses what starts like a URL, but cannot be the URL of a folder or a Hub. Repository names and
/// paths pass.
pub(crate) fn check_url(text: &str) -> Result<(), &'static str> {
    if text.chars().any(char::is_control) {
        return Err("it contains control characters");
    }
    // Browsers read a backslash in a URL as a slash.
    if text.starts_with("//") || text.starts_with("/\\") || text.starts_with('\\') {
        return Err("the URL has no scheme; write https://");
    }
    let Some((scheme, rest)) = text.split_once(':') else {
        return Ok(());
    };
    if scheme.contains(['/', '@', '.']) {
        return Ok(());
    }
    if !scheme.eq_ignore_ascii_case("https") && !scheme.eq_ignore_ascii_case("http") {
        return Err("only http and https URLs can be loaded");
    }
    let Some(rest) = rest.strip_prefix("//") else {
        return Err("the URL has no '//' after its scheme");
    };
    if rest.is_empty() || rest.starts_with(['/', '\\']) {
        return Err("the URL has no host");
    }
    let host = rest.split(['/', '\\', '?', '#']).next().unwrap_or(rest);
    if host.contains('@') {
        return Err("the URL must not contain a user name or password; pass a token instead");
    }
    if rest.contains(['?', '#']) {
        return Err("a folder's URL must not contain '?' or '#'");
    }
    Ok(())
}

/// Removes user name and password from a URL, so that messages do not show them.
pub(crate) fn without_credentials(text: &str) -> String {
    let start = text.find("//").map_or(0, |slashes| slashes + 2);
    let end = text[start..]
        .find(['/', '\\', '?', '#'])
        .map_or(text.len(), |end| start + end);
    match text[start..end].rfind('@') {
        Some(at) if start > 0 => format!("{}{}", &text[..start], &text[start + at + 1..]),
        _ => text.to_string(),
    }
}

fn is_repo_id(id: &str) -> bool {
    let segment = |s: &str| {
        (1..=96).contains(&s.len())
            && s.chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
            && !s.starts_with(['.', '-'])
            && !s.contains("..")
    };
    matches!(id.split_once('/'), Some((org, name)) if segment(org) && segment(name))
}

/// Whether this can be a revision: printable, without spaces or the characters that git forbids.
pub(crate) fn is_revision(revision: &str) -> bool {
    !revision.is_empty()
        && revision.len() <= 255
        && !revision.contains("..")
        && revision.chars().all(|c| {
            c.is_ascii_graphic() && !matches!(c, '?' | '#' | '\\' | '*' | '[' | '^' | '~' | ':')
        })
}

/// Whether a revision is a commit and so can never change.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether a file's path stays inside its folder: relative, no `..`, no scheme, no query.
pub(crate) fn is_inside(file: &str) -> bool {
    !file.is_empty()
        && !file.contains(['\\', ':', '?', '#', '\0'])
        && file
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Percent-encodes everything but the unreserved characters; `/` too unless `keep_slash`.
pub(crate) fn percent_encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Decodes the output of [`percent_encode`]; `None` for invalid input.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo(id: &str, revision: Option<&str>) -> ModelRef {
        ModelRef::Repo {
            id: id.to_string(),
            revision: revision.map(str::to_string),
            folder: String::new(),
        }
    }

    fn subfolder(id: &str, revision: &str, folder: &str) -> ModelRef {
        ModelRef::Repo {
            id: id.to_string(),
            revision: Some(revision.to_string()),
            folder: folder.to_string(),
        }
    }

    fn file(place: ModelRef, file: &str) -> ModelRef {
        ModelRef::File {
            location: Box::new(place),
            file: file.to_string(),
        }
    }

    #[test]
    fn names_are_read() {
        let cases = [
            ("Qwen/Qwen3-0.6B", repo("Qwen/Qwen3-0.6B", None)),
            (" org/name@refs/pr/7 ", repo("org/name", Some("refs/pr/7"))),
            (
                "https://huggingface.co/Qwen/Qwen3-0.6B/",
                repo("Qwen/Qwen3-0.6B", None),
            ),
            ("https://hf.co/a/b/tree/v1.0", repo("a/b", Some("v1.0"))),
            ("hf.co/a/b", repo("a/b", None)),
            ("www.huggingface.co/a/b", repo("a/b", None)),
            ("huggingface.co/a/b?library=x#usage", repo("a/b", None)),
            (
                "https://huggingface.co/a/b/tree/refs%2Fpr%2F1",
                repo("a/b", Some("refs/pr/1")),
            ),
            (
                "https://huggingface.co/a/b/tree/refs/pr/1/",
                repo("a/b", Some("refs/pr/1")),
            ),
            (
                "https://huggingface.co/a/b/tree/main/small/x%20y",
                subfolder("a/b", "main", "small/x y"),
            ),
            (
                "https://huggingface.co/a/b/blob/main/small/config.json",
                subfolder("a/b", "main", "small"),
            ),
            (
                "https://huggingface.co/a/b/resolve/main/model.safetensors",
                repo("a/b", Some("main")),
            ),
            (
                "https://huggingface.co/a/b?show_file_info=x-Q8_0.gguf",
                file(repo("a/b", None), "x-Q8_0.gguf"),
            ),
            (
                "https://huggingface.co/a/b/blob/refs%2Fpr%2F1/s/x%20y.gguf",
                file(repo("a/b", Some("refs/pr/1")), "s/x y.gguf"),
            ),
            (
                "https://cdn.example/models/x/",
                ModelRef::Folder {
                    url: "https://cdn.example/models/x".to_string(),
                },
            ),
            (
                "./models/x",
                ModelRef::Path {
                    path: "./models/x".to_string(),
                },
            ),
            (
                "org/name/sub/x-Q4_K_M.gguf",
                file(repo("org/name", None), "sub/x-Q4_K_M.gguf"),
            ),
            (
                "org/name@refs/pr/7/x.gguf",
                file(repo("org/name", Some("refs/pr/7")), "x.gguf"),
            ),
            (
                "https://huggingface.co/org/name/resolve/main/a/x.gguf?download=true",
                file(repo("org/name", Some("main")), "a/x.gguf"),
            ),
            (
                "https://cdn.example/models/x.GGUF",
                file(
                    ModelRef::Folder {
                        url: "https://cdn.example/models".to_string(),
                    },
                    "x.GGUF",
                ),
            ),
            (
                "/models/x.gguf",
                file(
                    ModelRef::Path {
                        path: "/models".to_string(),
                    },
                    "x.gguf",
                ),
            ),
        ];
        for (text, expected) in cases {
            let found = ModelRef::parse(text).expect(text);
            assert_eq!(found, expected, "{text}");
            if matches!(found, ModelRef::Repo { .. }) {
                let shown = found.to_string();
                assert_eq!(ModelRef::parse(&shown).expect(text), expected, "{shown}");
            }
        }
    }

    #[test]
    fn a_quantization_after_a_colon_is_refused_with_advice() {
        for text in ["org/x-GGUF:Q8_0", "hf.co/org/x-GGUF:Q8_0"] {
            let message = ModelRef::parse(text).expect_err(text).to_string();
            assert!(message.contains("org/name/FILE"), "{message}");
        }
    }

    #[test]
    fn others_are_refused() {
        let bad = [
            "",
            "gpt2",
            "a/b/c",
            "a/b@",
            "a/b@x y",
            "a/b@../x",
            "a/../b",
            "a/b?x",
            "ftp://a/b",
            "https://",
            "https://h/x?y=1",
            "https://huggingface.co/org",
            "https://huggingface.co/models/org/name",
            "https://huggingface.co/a/b/tree/main/..%2F..%2Fc",
            "https://huggingface.co/a/b/tree/x%20y",
            "https://huggingface.co/a/b/blob/main/..%2Fx.gguf",
            "x.gguf",
            "a/x.gguf",
            "//host/m",
            "/\\host/m",
            "//host/m/x.gguf",
            "javascript:alert(1)",
            "javascript:alert(1)//a/x.gguf",
            "data:application/json,{}",
            "blob:https://h/1",
            "file:///etc/model",
            "https:/h/x",
            "https://h\n/x",
        ];
        for text in bad {
            assert_eq!(
                ModelRef::parse(text).expect_err(text).code(),
                "model_name",
                "{text}"
            );
        }
    }

    #[test]
    fn no_message_shows_a_password() {
        for text in [
            "http://user:p4ss@host/m",
            "https://user:p4ss@host/m/x.gguf",
            "ftp://user:p4ss@host/m",
            "//user:p4ss@host/m",
        ] {
            let error = ModelRef::parse(text).expect_err(text);
            assert_eq!(error.code(), "model_name", "{text}");
            assert!(!error.to_string().contains("p4ss"), "{error}");
        }
    }

    #[test]
    fn encoding_round_trips() {
        let text = "refs/pr/1 ä%";
        assert_eq!(percent_encode(text, false), "refs%2Fpr%2F1%20%C3%A4%25");
        assert_eq!(
            percent_decode(&percent_encode(text, false)).as_deref(),
            Some(text)
        );
        assert_eq!(percent_decode("%zz"), None);
    }
}
