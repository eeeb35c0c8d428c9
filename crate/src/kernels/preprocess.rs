//! The shader preprocessor: `#import`, `#ifdef`, `#ifndef`, `#else`, `#endif`, and the interface of a finished text.
//! Used by build.rs (which resolves imports and validates every variant) and at run time (which picks a variant).
//! It knows nothing of WGSL beyond the lines that declare bindings and the struct `Params`.

use std::collections::BTreeMap;

/// Inlines `#import path` (relative to the shader root, without `.wgsl`) once per file, comments and indentation dropped.
/// `read` gives the text of a path.
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
    for (number, line) in read(path)?.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("").trim();
        if let Some(import) = code.strip_prefix("#import ") {
            let inner = flatten(import.trim(), read, seen).map_err(|e| format!("{path}.wgsl:{}: {e}", number + 1))?;
            out.push_str(&inner);
        } else if !code.is_empty() {
            out.push_str(code);
            out.push('\n');
        }
    }
    Ok(out)
}

/// Keeps the lines whose conditions hold under `flags`; errors name the line of the flattened text.
pub fn expand(text: &str, flags: &dyn Fn(&str) -> bool) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut stack: Vec<bool> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fail = |what: &str| format!("line {}: {what}: {line}", number + 1);
        if let Some(name) = line.strip_prefix("#ifdef ") {
            stack.push(flags(name.trim()));
        } else if let Some(name) = line.strip_prefix("#ifndef ") {
            stack.push(!flags(name.trim()));
        } else if line == "#else" {
            let top = stack.last_mut().ok_or_else(|| fail("#else without #ifdef"))?;
            *top = !*top;
        } else if line == "#endif" {
            stack.pop().ok_or_else(|| fail("#endif without #ifdef"))?;
        } else if line.starts_with('#') {
            return Err(fail("unknown directive"));
        } else if stack.iter().all(|&s| s) {
            out.push_str(line);
            out.push('\n');
        }
    }
    if stack.is_empty() { Ok(out) } else { Err("#ifdef without #endif".into()) }
}

/// What a binding is for, as the shader declares it.
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

/// The bindings of an expanded text, in order of their numbers.
pub fn bindings(text: &str) -> Vec<BindingDecl> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("@group(0) @binding(") else { continue };
        let Some((number, rest)) = rest.split_once(')') else { continue };
        let access = if rest.contains("var<uniform>") {
            Access::Uniform
        } else if rest.contains("read_write>") {
            Access::ReadWrite
        } else {
            Access::Read
        };
        let name = rest.split_once('>').map_or("", |(_, r)| r).split(':').next().unwrap_or("").trim();
        if let Ok(binding) = number.trim().parse() {
            found.push(BindingDecl { binding, name: name.to_string(), access });
        }
    }
    found.sort_by_key(|b| b.binding);
    found
}

/// The fields of `struct Params` in order: name and whether it is an f32 (else u32). Every field is one word.
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

/// The lines before the body: language features as the target wants them, then the variant's numbers as constants.
pub fn header(target_needs_enable: bool, f16: bool, subgroups: bool, consts: &BTreeMap<String, u32>) -> String {
    let mut out = String::new();
    if f16 {
        out.push_str("enable f16;\n");
    }
    // naga knows subgroups without the line and rejects it; browsers need it.
    if subgroups && target_needs_enable {
        out.push_str("enable subgroups;\n");
    }
    for (name, value) in consts {
        out.push_str(&format!("const {name}: u32 = {value}u;\n"));
    }
    out
}
