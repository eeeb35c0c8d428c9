//! Expands shaders/ into a typed registry and validates every declared variant with naga. A typo in
//! a shader is a cargo error with its file and line.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{env, fs, process};

#[path = "src/device/preprocess.rs"]
#[allow(dead_code)]
mod preprocess;
mod units;
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
    let mut valid = ValidatedShaders::read(&crate_dir);
    for (name, spec) in &specs {
        let path = spec.file.trim_end_matches(".wgsl");
        let text = preprocess::flatten(path, &read, &mut Vec::new())?;
        let count = validate_all(name, spec, &text, &mut valid)?;
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

/// Validates every flag combination with default constants, then each other constant value with
/// each choice of `one_of`. The values in `choices` are also validated with each flag. Returns the
/// number of variants.
fn validate_all(
    name: &str,
    spec: &KernelEntry,
    text: &str,
    valid: &mut ValidatedShaders,
) -> Result<usize, String> {
    if let Some(unknown) = spec.choices.iter().find(|c| !spec.consts.contains_key(*c)) {
        return Err(format!(
            "variants.toml: kernel {name}: 'choices' names {unknown}, which 'consts' does not declare"
        ));
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
    let mut count = 0;
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
                count += 1;
                validate(name, text, &flags, &defaults, valid)?;
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
                        count += 1;
                        validate(name, text, &flags, &consts, valid)?;
                    }
                }
            }
        }
    }
    Ok(count)
}

/// Hashes of shader sources that this build or an earlier one validated. Builds for other targets
/// and profiles produce the same sources. Stored in cargo's target folder and discarded when the
/// rules or the naga version change.
struct ValidatedShaders {
    file: Option<PathBuf>,
    rules: u64,
    hashes: HashSet<u64>,
    new: bool,
}

impl ValidatedShaders {
    fn read(crate_dir: &Path) -> Self {
        let lock = fs::read_to_string(crate_dir.join("../Cargo.lock"));
        let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default());
        // A packaged crate has no lock file, so the naga version is unknown and nothing is cached.
        let target = out
            .ancestors()
            .filter(|folder| folder.join("CACHEDIR.TAG").is_file())
            .last();
        let file = target
            .filter(|_| lock.is_ok())
            .map(|folder| folder.join("valid-shaders"));
        let rules = hash(&(
            include_str!("build.rs"),
            include_str!("units.rs"),
            include_str!("variants.rs"),
            include_str!("src/device/preprocess.rs"),
            lock.unwrap_or_default(),
        ));
        let mut kept = file
            .as_ref()
            .and_then(|file| fs::read(file).ok())
            .unwrap_or_default()
            .into_iter();
        let mut next = || {
            (0..8)
                .map(|_| kept.next())
                .collect::<Option<Vec<u8>>>()?
                .try_into()
                .ok()
                .map(u64::from_le_bytes)
        };
        let hashes = if next() == Some(rules) {
            std::iter::from_fn(next).collect()
        } else {
            HashSet::new()
        };
        Self {
            file,
            rules,
            hashes,
            new: false,
        }
    }

    /// Whether the source was validated before.
    fn has(&self, source: &str) -> bool {
        self.hashes.contains(&hash(source))
    }

    fn add(&mut self, source: &str) {
        self.new |= self.hashes.insert(hash(source));
    }

    /// Writes the cache. A failed write is ignored because the cache can be rebuilt.
    fn write(&self) {
        let Some(file) = self.file.as_ref().filter(|_| self.new) else {
            return;
        };
        let bytes: Vec<u8> = std::iter::once(&self.rules)
            .chain(&self.hashes)
            .flat_map(|hash| hash.to_le_bytes())
            .collect();
        let fresh = file.with_extension(process::id().to_string());
        if fs::write(&fresh, bytes).is_ok() && fs::rename(&fresh, file).is_err() {
            let _ = fs::remove_file(&fresh);
        }
    }
}

fn hash<T: Hash + ?Sized>(what: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// Validates one variant unless the same source was validated before; unused constants do not
/// change the source.
fn validate(
    name: &str,
    text: &str,
    flags: &[&str],
    consts: &preprocess::Constants<'_>,
    valid: &mut ValidatedShaders,
) -> Result<(), String> {
    let has = |f: &str| flags.contains(&f);
    let body = preprocess::expand(text, &has, consts)
        .map_err(|e| format!("shaders: kernel {name} {flags:?}: {e}"))?;
    let label = format!("kernel {name} {flags:?} {consts:?}");
    // naga does not parse the browsers' subgroup matrix extensions. Both extension names lower to
    // the same source.
    let browsers = has("CHROMIUM") || has("STANDARD");
    let source = preprocess::with_prologue(browsers, &has, consts, &body);
    let source = if browsers {
        units::lower_matrix_dialect(&source).map_err(|e| format!("{label}: {e}"))?
    } else {
        source
    };
    if valid.has(&source) {
        return Ok(());
    }
    let module = naga::front::wgsl::parse_str(&source)
        .map_err(|e| format!("{label}:\n{}", e.emit_to_string(&source)))?;
    naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::all(),
    )
    .validate(&module)
    .map_err(|e| format!("{label}:\n{}", e.emit_to_string(&source)))?;
    // WebKit miscompiles select() when its result reaches a store, as almost every value does, so
    // no shader may use it.
    let functions = module
        .entry_points
        .iter()
        .map(|e| &e.function)
        .chain(module.functions.iter().map(|(_, f)| f));
    let mut expressions = functions.flat_map(|f| f.expressions.iter());
    if expressions.any(|(_, e)| matches!(e, naga::Expression::Select { .. })) {
        return Err(format!(
            "{label}: select() is miscompiled by WebKit; use if, an index or arithmetic instead"
        ));
    }
    let storage = preprocess::bindings(&body)
        .iter()
        .filter(|b| b.access != preprocess::Access::Uniform)
        .count();
    if storage > 8 {
        return Err(format!(
            "{label}: {storage} storage buffers; WebGPU guarantees 8"
        ));
    }
    valid.add(&source);
    Ok(())
}
