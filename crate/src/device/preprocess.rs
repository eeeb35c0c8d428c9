//! The WGSL preprocessor: `#import`, `#ifdef`, `#ifndef`, `#if`, `#else`, `#endif`, `#for`,
//! `#endfor`, and the interface of an expanded source. build.rs uses it to validate every variant,
//! the engine to expand one at run time. It parses only the lines that declare bindings and the
//! struct `Params`.

/// Constants: names with values.
pub type Constants<'a> = [(&'a str, u32)];

/// Inlines `#import path` (relative to the shader root, without `.wgsl`) once per file. `read`
/// returns the source of a path without comments and indentation.
pub fn flatten(
    path: &str,
    read: &dyn Fn(&str) -> Result<String, String>,
    seen: &mut Vec<String>,
) -> Result<String, String> {
    if seen.iter().any(|s| s == path) {
        return Ok(String::new());
    }
    seen.push(path.to_string());
    let mut out = String::new();
    for line in read(path)?.lines() {
        if let Some(import) = line.strip_prefix("#import ") {
            out.push_str(&flatten(import, read, seen).map_err(|e| format!("{path}.wgsl: {e}"))?);
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok(out)
}

/// Evaluates conditions under `flags` and unrolls `#for i in 0..N`, replacing `$i` in the body by
/// the number. Arrays indexed by literals stay in registers on every driver. `#if NAME == 4` (also
/// `!=`, `<`, `>=`) compares a constant of `consts`. Errors contain the line number of the
/// flattened source.
pub fn expand(
    text: &str,
    flags: &dyn Fn(&str) -> bool,
    consts: &Constants<'_>,
) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::with_capacity(text.len());
    let mut expansion = Expansion {
        lines: &lines,
        flags,
        consts,
        indices: Vec::new(),
    };
    expansion.block(0, lines.len(), &mut out)?;
    Ok(out)
}

struct Expansion<'a> {
    lines: &'a [&'a str],
    flags: &'a dyn Fn(&str) -> bool,
    consts: &'a Constants<'a>,
    /// The enclosing loops: index name and value.
    indices: Vec<(String, u32)>,
}

impl Expansion<'_> {
    fn block(&mut self, first: usize, end: usize, out: &mut String) -> Result<(), String> {
        let mut stack: Vec<bool> = Vec::new();
        let mut at = first;
        while at < end {
            let line = self.lines[at];
            let fail = |what: &str| format!("line {}: {what}: {line}", at + 1);
            if let Some(name) = line.strip_prefix("#ifdef ") {
                stack.push((self.flags)(name.trim()));
            } else if let Some(name) = line.strip_prefix("#ifndef ") {
                stack.push(!(self.flags)(name.trim()));
            } else if let Some(condition) = line.strip_prefix("#if ") {
                stack.push(
                    self.compare(condition)
                        .ok_or_else(|| fail("expected a comparison such as `N == 4`"))?,
                );
            } else if line == "#else" {
                let top = stack.last_mut().ok_or_else(|| fail("#else without #if"))?;
                *top = !*top;
            } else if line == "#endif" {
                stack.pop().ok_or_else(|| fail("#endif without #if"))?;
            } else if let Some(range) = line.strip_prefix("#for ") {
                let close = self
                    .find_endfor(at, end)
                    .ok_or_else(|| fail("#for without #endfor"))?;
                if stack.iter().all(|&s| s) {
                    let (name, from, to) = self
                        .range(range)
                        .ok_or_else(|| fail("expected `i in 0..N`"))?;
                    for index in from..to {
                        self.indices.push((format!("${name}"), index));
                        self.block(at + 1, close, out)?;
                        self.indices.pop();
                    }
                }
                at = close;
            } else if line.starts_with('#') {
                return Err(fail("unknown directive"));
            } else if stack.iter().all(|&s| s) {
                self.line(line, out);
            }
            at += 1;
        }
        if stack.is_empty() {
            Ok(())
        } else {
            Err("#if without #endif".into())
        }
    }

    fn line(&self, line: &str, out: &mut String) {
        if self.indices.is_empty() {
            out.push_str(line);
        } else {
            let text = self.indices.iter().fold(line.to_string(), |l, (name, n)| {
                l.replace(name, &n.to_string())
            });
            out.push_str(&text);
        }
        out.push('\n');
    }

    /// The line of the `#endfor` that closes the `#for` at `start`.
    fn find_endfor(&self, start: usize, end: usize) -> Option<usize> {
        let mut depth = 0;
        (start..end).find(|&i| {
            if self.lines[i].starts_with("#for ") {
                depth += 1;
            } else if self.lines[i] == "#endfor" {
                depth -= 1;
            }
            depth == 0
        })
    }

    /// Evaluates a literal, a constant, an index, or `*` and `/` of them from left to right.
    fn evaluate(&self, word: &str) -> Option<u32> {
        if let Some(at) = word.rfind(['*', '/']) {
            let a = self.evaluate(&word[..at])?;
            let b = self.evaluate(&word[at + 1..])?;

            return if word[at..].starts_with('*') {
                a.checked_mul(b)
            } else {
                a.checked_div(b)
            };
        }
        let word = word.trim();
        let index = || {
            self.indices
                .iter()
                .find(|(name, _)| name == word)
                .map(|(_, n)| *n)
        };

        word.parse()
            .ok()
            .or_else(|| {
                self.consts
                    .iter()
                    .find(|(name, _)| *name == word)
                    .map(|(_, n)| *n)
            })
            .or_else(index)
    }

    fn range(&self, text: &str) -> Option<(String, u32, u32)> {
        let (name, range) = text.split_once(" in ")?;
        let (from, to) = range.split_once("..")?;
        Some((
            name.trim().to_string(),
            self.evaluate(from)?,
            self.evaluate(to)?,
        ))
    }

    fn compare(&self, text: &str) -> Option<bool> {
        let mut words = text.split_whitespace();
        let left = words.next()?;
        let sign = words.next()?;
        let right = words.next()?;

        let left = self.evaluate(left)?;
        let right = self.evaluate(right)?;

        match sign {
            "==" => Some(left == right),
            "!=" => Some(left != right),
            "<" => Some(left < right),
            ">=" => Some(left >= right),
            _ => None,
        }
    }
}

/// The access mode of a binding, as the shader declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<uniform>`
    Uniform,
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    ReadWrite,
}

/// One `@group(0) @binding(n) var<…> name: type;` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingDecl {
    /// The binding's number.
    pub binding: u32,
    /// The variable's name.
    pub name: String,
    /// How the shader uses it.
    pub access: Access,
}

/// The bindings of an expanded source, by number.
pub fn bindings(text: &str) -> Vec<BindingDecl> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("@group(0) @binding(") else {
            continue;
        };
        let Some((number, rest)) = rest.split_once(')') else {
            continue;
        };
        let access = if rest.contains("var<uniform>") {
            Access::Uniform
        } else if rest.contains("read_write>") {
            Access::ReadWrite
        } else {
            Access::Read
        };
        let name = rest
            .split_once('>')
            .map_or("", |(_, r)| r)
            .split(':')
            .next()
            .unwrap_or("")
            .trim();
        if let Ok(binding) = number.trim().parse() {
            let place = found.partition_point(|b: &BindingDecl| b.binding < binding);
            found.insert(
                place,
                BindingDecl {
                    binding,
                    name: name.to_string(),
                    access,
                },
            );
        }
    }
    found
}

/// The fields of `struct Params` in order: name and whether it is an f32 (else u32). Every field is
/// one word.
pub fn params(text: &str) -> Vec<(String, bool)> {
    let mut fields = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("struct Params") {
            inside = true;
        } else if inside && line.starts_with('}') {
            break;
        } else if inside {
            for field in line.split(',').filter(|f| f.contains(':')) {
                if let Some((name, ty)) = field.split_once(':') {
                    fields.push((name.trim().to_string(), ty.trim() == "f32"));
                }
            }
        }
    }
    fields
}

/// Flags that require directives before the source: flag, whether only browsers need them, and the
/// lines.
const DIRECTIVES_BY_FLAG: [(&str, bool, &str); 5] = [
    ("F16", false, "enable f16;\n"),
    // naga supports subgroups without this line and rejects it.
    ("SUBGROUPS", true, "enable subgroups;\n"),
    ("COOP", false, "enable wgpu_cooperative_matrix;\n"),
    // The browsers' uniformity analysis does not know values that are uniform in a subgroup but not
    // in a workgroup.
    (
        "CHROMIUM",
        true,
        "enable chromium_experimental_subgroup_matrix;\ndiagnostic(off, chromium.subgroup_matrix_uniformity);\n",
    ),
    (
        "STANDARD",
        true,
        "enable subgroup_matrix;\ndiagnostic(off, subgroup_matrix_uniformity);\n",
    ),
];

/// A source ready to compile: the directives that the target needs, the constants that the body
/// uses, and the body without functions that `main` does not reach.
pub fn complete(
    browser: bool,
    has: &dyn Fn(&str) -> bool,
    consts: &Constants<'_>,
    body: &str,
) -> String {
    let body = without_unused_functions(body);
    let wanted = DIRECTIVES_BY_FLAG
        .iter()
        .filter(|(flag, browsers, _)| has(flag) && (browser || !browsers));
    let mut out: String = wanted.map(|(_, _, lines)| *lines).collect();
    for (name, value) in consts.iter().filter(|(name, _)| body.contains(name)) {
        out.push_str(&format!("const {name}: u32 = {value}u;\n"));
    }
    out + &body
}

/// Drops functions that `main` does not reach: browsers validate them too.
fn without_unused_functions(text: &str) -> String {
    let items = module_items(text);
    let mut used: Vec<bool> = items
        .iter()
        .map(|(name, _)| name.is_none_or(|name| name == "main"))
        .collect();
    let mut unread: Vec<usize> = (0..items.len()).filter(|&i| used[i]).collect();
    while let Some(item) = unread.pop() {
        for word in items[item].1.split(|c| !is_word(c)) {
            let found = items.iter().position(|(name, _)| *name == Some(word));
            if let Some(found) = found.filter(|&found| !used[found]) {
                used[found] = true;
                unread.push(found);
            }
        }
    }
    let kept = items.iter().zip(used).filter(|(_, used)| *used);
    kept.map(|((_, item), _)| *item).collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Splits a source into its functions, with their names, and the lines between them.
fn module_items(text: &str) -> Vec<(Option<&str>, &str)> {
    let mut items = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let name = rest
            .strip_prefix("fn ")
            .and_then(|line| line.split('(').next());
        let mut depth = 0;
        let mut has_body = false;
        let end = rest.bytes().position(|byte| {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            has_body |= depth > 0;
            byte == b'\n' && depth == 0 && (name.is_none() || has_body)
        });
        let (item, after) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
        items.push((name, item));
        rest = after;
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        expand(text, &|flag| flag == "ON", &[("N", 2), ("M", 3)]).map(|t| t.replace('\n', ";"))
    }

    #[test]
    fn loops_unroll_and_nest() {
        assert_eq!(
            expanded("#for i in 0..N\na$i = $iu;\n#endfor").unwrap(),
            "a0 = 0u;;a1 = 1u;;"
        );
        assert_eq!(
            expanded("#for i in 1..N*M/2\n#for j in $i..3\n$i$j\n#endfor\n#endfor").unwrap(),
            "11;12;22;"
        );
        assert_eq!(
            expanded("#for i in 0..N\n#if $i == 1\none\n#else\nother\n#endif\n#endfor").unwrap(),
            "other;one;"
        );
        assert_eq!(
            expanded("#ifdef OFF\n#for i in 0..N\n$i\n#endfor\n#endif\nrest").unwrap(),
            "rest;"
        );
    }

    #[test]
    fn conditions_compare_numbers() {
        for (condition, holds) in [
            ("N == 2", true),
            ("N != 2", false),
            ("M < 3", false),
            ("M >= 3", true),
        ] {
            let found = expanded(&format!("#if {condition}\nyes\n#endif")).unwrap();
            assert_eq!(found == "yes;", holds, "{condition}");
        }
    }

    #[test]
    fn functions_that_nothing_calls_are_dropped() {
        let source = "const A = 1;\nfn spare() { other(); }\nfn other() {\nif true {\n}\n}\nfn used(\nx: u32,\n) {\n}\nfn near() -> u32 {\nreturn 1u;\n}\n@compute\nfn main() {\nused(near());\n}";
        let kept = "const A = 1;\nfn used(\nx: u32,\n) {\n}\nfn near() -> u32 {\nreturn 1u;\n}\n@compute\nfn main() {\nused(near());\n}";
        assert_eq!(without_unused_functions(source), kept);
    }

    #[test]
    fn errors_contain_the_line() {
        for text in [
            "x\n#endif",
            "#for i in 0..N\nx",
            "#for i of N\n#endfor",
            "#if N = 2\n#endif",
            "#what",
            "#else",
        ] {
            assert!(expanded(text).is_err(), "{text}");
        }
        assert!(expanded("x\n#what").unwrap_err().starts_with("line 2:"));
    }
}
