//! Expands shaders/ into a typed registry. With the feature `shader-checks` it validates every
//! declared variant with naga, so that a typo in a shader is a cargo error with its file and line.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

#[path = "src/device/preprocess.rs"]
#[allow(dead_code)]
mod preprocess;
#[cfg(feature = "shader-checks")]
mod shader_checks;
mod variants;

use variants::KernelEntry;

fn main() {
    if let Err(message) = run() {
        eprintln!("{message}");
        process::exit(1);
    }
}

fn run() -> Result<(), String> {
    let crate_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(|e| e.to_string())?);
    // shaders/ is next to the crate in the workspace and inside the crate when it is packaged.
    let root = [crate_dir.join("../shaders"), crate_dir.join("shaders")];
    let root = root
        .iter()
        .find(|p| p.is_dir())
        .ok_or("shaders/ not found: expected next to the crate or inside it")?
        .clone();
    println!("cargo:rerun-if-changed={}", root.display());
    let toml = fs::read_to_string(root.join("variants.toml"))
        .map_err(|e| format!("variants.toml: {e}"))?;
    let specs: BTreeMap<String, KernelEntry> =
        toml::from_str(&toml).map_err(|e| format!("variants.toml: {e}"))?;
    let mut registry = String::new();
    let mut variants = String::new();
    let mut names = String::new();

    // Each file is stored once and imports are resolved at run time, which halves the shader bytes
    // in the package.
    let files = RefCell::new(BTreeMap::new());
    let page = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "wasm32");
    let read = |path: &str| {
        let text = minify(&read_shader(&root, path)?);
        let kept = if page {
            strip_branch(&text, NATIVE_ONLY_FLAG)
        } else {
            text.clone()
        };
        files.borrow_mut().insert(path.to_string(), kept);
        Ok(text)
    };
    #[cfg(feature = "shader-checks")]
    let mut valid = shader_checks::ValidatedShaders::read(&crate_dir);
    for (name, spec) in &specs {
        let path = spec.file.trim_end_matches(".wgsl");
        let text = preprocess::flatten(path, &read, &mut Vec::new())?;
        let declared = declared_variants(name, spec)?;
        #[cfg(feature = "shader-checks")]
        for (flags, consts) in &declared {
            valid.validate(name, &text, flags, consts)?;
        }
        #[cfg(not(feature = "shader-checks"))]
        drop(text);
        let count = declared.len();
        let variant = camel_case(name);
        let _ = writeln!(
            variants,
            "    /// `shaders/{}`, {count} variants.\n    {variant},",
            spec.file
        );
        let _ = writeln!(names, "            Kernel::{variant} => {name:?},");
        let _ = writeln!(
            registry,
            "    KernelSource {{ path: {path:?}, flags: &{:?}, one_of: &{}, consts: &{}, choices: &{:?} }},",
            spec.flags,
            array_literal(spec.one_of.iter().map(|g| format!("&{g:?}"))),
            array_literal(spec.consts.iter().map(|(n, v)| format!("({n:?}, &{v:?})"))),
            spec.choices,
        );
    }
    #[cfg(feature = "shader-checks")]
    valid.write();
    let files = array_literal(
        files
            .borrow()
            .iter()
            .map(|(path, text)| format!("({path:?}, {text:?})")),
    );
    let all = specs
        .keys()
        .map(|n| format!("Kernel::{}", camel_case(n)))
        .collect::<Vec<_>>()
        .join(", ");
    let code = format!(
        "/// The kernels of shaders/variants.toml.\n#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]\n\
         pub enum Kernel {{\n{variants}}}\n\nimpl Kernel {{\n    /// Its name in variants.toml.\n    pub fn name(self) -> &'static str {{\n        \
         match self {{\n{names}        }}\n    }}\n}}\n\nstatic ALL: &[Kernel] = &[{all}];\n\nstatic SOURCES: &[KernelSource] = &[\n{registry}];\n\n\
         /// Shader sources by path, sorted by path.\nstatic FILES: &[(&str, &str)] = &{files};\n"
    );
    let out = Path::new(&env::var("OUT_DIR").map_err(|e| e.to_string())?).join("registry.rs");
    fs::write(out, code).map_err(|e| e.to_string())
}

fn array_literal(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn camel_case(name: &str) -> String {
    name.split('_')
        .map(|p: &str| p[..1].to_uppercase() + &p[1..])
        .collect()
}

/// The flag that is never set in a browser build.
const NATIVE_ONLY_FLAG: &str = "COOP";

/// Removes the `#ifdef condition` branches from a shader source; each must have an `#else`.
fn strip_branch(text: &str, condition: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Nesting depth inside the condition, and whether its #else was reached.
    let mut depth = 0;
    let mut otherwise = false;

    for line in text.lines() {
        let begins = depth == 0 && line.strip_prefix("#ifdef ") == Some(condition);
        if depth > 0 || begins {
            let step =
                |line: &str| i32::from(line.starts_with("#if")) - i32::from(line == "#endif");
            depth += step(line);
            otherwise = !begins && (otherwise || depth == 1 && line == "#else");
            if begins || depth == 0 || !otherwise || depth == 1 && line == "#else" {
                continue;
            }
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Minifies a shader source: no comments, indentation, empty lines or optional spaces.
fn minify(text: &str) -> String {
    // Directives and bindings are read line by line.
    let tight = |code: &str| {
        if code.starts_with(['#', '@']) {
            code.to_string()
        } else {
            minify_line(code)
        }
    };
    variants::code_lines(text)
        .map(|code| tight(code) + "\n")
        .collect()
}

fn minify_line(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut signs = code.chars().peekable();
    while let Some(sign) = signs.next() {
        let last = out.chars().last().unwrap_or(';');
        let next = signs.peek().copied().unwrap_or(';');

        // `array<f32> =` needs its space: `>=` is another token.
        let free = ",;:{}()=+-*/%^|&<".contains(last)
            || ",;:{}()+-*/%^|&<".contains(next)
            || (next == '=' && last != '>');
        // `& &` is not `&&`.
        if sign != ' ' || !free || (last == next && "/|&-<".contains(last)) {
            out.push(sign);
        }
    }
    out
}

fn read_shader(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(format!("{path}.wgsl")))
        .map_err(|e| format!("shaders/{path}.wgsl: {e}"))
}

/// A kernel's flags and constants.
type ShaderVariant<'a> = (Vec<&'a str>, Vec<(&'a str, u32)>);

/// Every flag combination with default constants, then each other constant value with each choice
/// of `one_of`. The values in `choices` are also combined with each flag.
fn declared_variants<'a>(
    name: &str,
    spec: &'a KernelEntry,
) -> Result<Vec<ShaderVariant<'a>>, String> {
    if let Some(unknown) = spec.choices.iter().find(|c| !spec.consts.contains_key(*c)) {
        return Err(format!(
            "variants.toml: kernel {name}: 'choices' names {unknown}, which 'consts' does not declare"
        ));
    }
    let is_flag = |flag: &String| spec.flags.contains(flag) || spec.one_of.concat().contains(flag);
    let conditions = [("needs", &spec.needs), ("exclude", &spec.exclude)];
    for (key, flags) in conditions {
        if let Some(unknown) = flags.iter().flatten().find(|flag| !is_flag(flag)) {
            return Err(format!(
                "variants.toml: kernel {name}: '{key}' names {unknown}, which is not one of its flags"
            ));
        }
    }
    let mut choices: Vec<Vec<&str>> = vec![vec![]];
    for group in &spec.one_of {
        choices = choices
            .iter()
            .flat_map(|c| group.iter().map(|g| [c.clone(), vec![g.as_str()]].concat()))
            .collect();
    }
    let defaults: Vec<(&str, u32)> = spec
        .consts
        .iter()
        .map(|(n, v)| (n.as_str(), v[0]))
        .collect();
    let mut declared = Vec::new();
    for choice in &choices {
        for bits in 0..1u32 << spec.flags.len() {
            let on = spec
                .flags
                .iter()
                .enumerate()
                .filter(|(i, _)| bits >> i & 1 == 1)
                .map(|(_, f)| f.as_str());
            let flags: Vec<&str> = choice.iter().copied().chain(on).collect();
            if spec.allows(&flags) {
                declared.push((flags, defaults.clone()));
            }
        }
        for (place, (constant, values)) in spec.consts.iter().enumerate() {
            let chosen = if spec.choices.contains(constant) {
                &spec.flags[..]
            } else {
                &[]
            };
            for &value in &values[1..] {
                let mut consts = defaults.clone();
                consts[place].1 = value;
                for flag in std::iter::once(None).chain(chosen.iter().map(|f| Some(f.as_str()))) {
                    let flags = spec.with_required(choice.iter().copied().chain(flag).collect());
                    if spec.allows(&flags) {
                        declared.push((flags, consts.clone()));
                    }
                }
            }
        }
    }
    Ok(declared)
}
