//! Inputs that determine a test's result: the source of each kernel, and one hash of everything
//! else.

use crate::setup::Toolchain;
use crate::{command::command, command::output_of, stamp, workspace};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Mutex;
use std::time::SystemTime;

#[path = "../../crate/src/device/preprocess.rs"]
#[allow(dead_code)]
mod preprocess;
#[path = "../../crate/variants.rs"]
#[allow(dead_code)]
mod variants;

use variants::KernelEntry;

/// Prefixes of environment variables that affect tests.
const VARIABLE_PREFIXES: [&str; 7] = [
    "JERBOA_",
    "VK_",
    "RUST",
    "CHROME",
    "FIREFOX",
    "MINI_BROWSER",
    "WASM_BINDGEN_",
];

/// State of the repository and of the tools that run it.
pub struct TestInputs {
    rest: u64,
    specs: BTreeMap<String, KernelEntry>,
    /// Shader sources by path.
    files: BTreeMap<String, String>,
    /// Cache of kernel hashes, by kernel name.
    known: Mutex<HashMap<String, Option<u64>>>,
}

impl TestInputs {
    /// Reads the current state.
    pub fn read(toolchain: Toolchain) -> Result<Self> {
        let shaders = workspace::path("shaders");
        let variants = std::fs::read_to_string(shaders.join("variants.toml"))
            .context("shaders/variants.toml")?;
        let mut files = BTreeMap::new();
        for file in stamp::files(&shaders)?
            .iter()
            .filter(|file| is_shader(file))
        {
            let name = file
                .strip_prefix(&shaders)?
                .with_extension("")
                .to_string_lossy()
                .replace('\\', "/");
            files.insert(
                name,
                std::fs::read_to_string(file)
                    .with_context(|| format!("reading {}", file.display()))?,
            );
        }
        Self::of(hash_rest(toolchain)?, &variants, &files)
    }

    /// Whether both states are equal.
    pub fn equals(&self, other: &Self) -> bool {
        (self.rest, &self.files) == (other.rest, &other.files)
    }

    fn of(rest: u64, variants: &str, files: &BTreeMap<String, String>) -> Result<Self> {
        let specs = toml::from_str(variants).context("shaders/variants.toml")?;
        let files = files
            .iter()
            .map(|(path, text)| {
                (
                    path.clone(),
                    variants::code_lines(text)
                        .map(|line| format!("{line}\n"))
                        .collect(),
                )
            })
            .collect();
        Ok(Self {
            rest,
            specs,
            files,
            known: Mutex::default(),
        })
    }

    /// A fingerprint of a test's inputs, given the kernels it compiles; `None` if a name is not
    /// that of a kernel.
    pub fn fingerprint<'a>(&self, kernels: impl Iterator<Item = &'a str>) -> Option<String> {
        let mut hasher = DefaultHasher::new();
        self.rest.hash(&mut hasher);
        for name in kernels {
            (name, self.hash_of(name)?).hash(&mut hasher);
        }
        Some(format!("{:016x}", hasher.finish()))
    }

    fn hash_of(&self, name: &str) -> Option<u64> {
        let mut known = self.known.lock().ok()?;
        let hash = |text: String| {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            hasher.finish()
        };
        *known
            .entry(name.to_owned())
            .or_insert_with(|| self.kernel_source(name).map(hash))
    }

    /// The preprocessed source of a kernel, by its pipeline name, such as `gemv+w_f16+norm rows=2`.
    fn kernel_source(&self, name: &str) -> Option<String> {
        let mut words = name.split(' ');
        let mut conditions = words.next()?.split('+');
        let spec = self.specs.get(conditions.next()?)?;
        let is_known = |flag: &str| {
            spec.flags
                .iter()
                .chain(spec.one_of.iter().flatten())
                .any(|f| same_ignoring_case(f, flag))
        };
        let flags: Vec<&str> = conditions.collect();
        let mut consts: Vec<(&str, u32)> = spec
            .consts
            .iter()
            .map(|(n, v)| Some((n.as_str(), *v.first()?)))
            .collect::<Option<_>>()?;
        for word in words {
            let (number, value) = word.split_once('=')?;
            consts
                .iter_mut()
                .find(|(known, _)| same_ignoring_case(known, number))?
                .1 = value.parse().ok()?;
        }
        let has = |flag: &str| flags.iter().any(|each| same_ignoring_case(each, flag));
        let read = |path: &str| self.files.get(path).cloned().ok_or_else(String::new);
        let text = preprocess::flatten(spec.file.trim_end_matches(".wgsl"), &read, &mut Vec::new())
            .ok()?;
        let text = preprocess::expand(&text, &has, &consts).ok()?;
        flags.iter().all(|flag| is_known(flag)).then_some(text)
    }
}

/// Compares names ignoring case: kernel names are lower case, names in variants.toml are not.
fn same_ignoring_case(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b)
}

fn is_shader(file: &Path) -> bool {
    file.extension().is_some_and(|kind| kind == "wgsl")
}

/// Whether a test's kernels say if it depends on a file: a shader of the engine that no other crate
/// imports.
fn is_known_by_kernels(name: &str) -> bool {
    let imported = ["shaders/weights/", "shaders/common/activation"];
    is_shader(Path::new(name))
        && name.starts_with("shaders/")
        && !imported.iter().any(|path| name.starts_with(path))
}

/// Hashes all files except shaders of the engine, the programs that build and run tests, and the environment
/// variables they read.
fn hash_rest(toolchain: Toolchain) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    let list = output_of(
        command("git")
            .args(["ls-files", "-z", "-co", "--exclude-standard"])
            .current_dir(workspace::root()),
    );
    if list.is_none() {
        // Without git the repository's files are unknown, so no two runs are comparable.
        SystemTime::now().hash(&mut hasher);
    }
    for name in list
        .iter()
        .flat_map(|all| all.split('\0'))
        .filter(|name| !is_known_by_kernels(name))
    {
        // A tracked file that was deleted is a change too.
        (name, std::fs::read(workspace::path(name)).ok()).hash(&mut hasher);
    }
    toolchain.describe().hash(&mut hasher);
    for program in ["rustc", "node", "chromium"] {
        output_of(command(program).arg("--version")).hash(&mut hasher);
    }
    // A driver update changes these files.
    for folder in ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"] {
        for file in stamp::files(Path::new(folder))? {
            (
                &file,
                file.metadata().and_then(|about| about.modified()).ok(),
            )
                .hash(&mut hasher);
        }
    }
    let mut variables: Vec<_> = std::env::vars_os()
        .filter(|(name, _)| {
            VARIABLE_PREFIXES
                .iter()
                .any(|v| name.to_string_lossy().starts_with(v))
        })
        .collect();
    variables.sort();
    variables.hash(&mut hasher);
    Ok(hasher.finish())
}

#[cfg(test)]
pub mod tests {
    use super::TestInputs;

    /// A repository of two kernels that share a file.
    pub fn inputs(rest: u64, changed: &[(&str, &str)]) -> TestInputs {
        let variants = "[sum]\nfile = 'sum.wgsl'\nflags = ['NORM']\nconsts = { ROWS = [4, 2] }\n\
                        [cut]\nfile = 'cut.wgsl'\none_of = [['W_F16', 'W_F32']]";
        let mut files: std::collections::BTreeMap<String, String> = [
            ("sum", "#import shared\nsum // of all\n#ifdef NORM\nnorm\n#endif\n#if ROWS == 2\ntwo\n#endif"),
            ("cut", "#import shared\n#ifdef W_F16\nhalf\n#endif\n"),
            ("shared", "all\n"),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
        files.extend(
            changed
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned())),
        );
        TestInputs::of(rest, variants, &files).unwrap()
    }

    #[test]
    fn a_fingerprint_covers_the_kernels_of_a_test() {
        let plain = inputs(1, &[]);
        let normed = [(
            "sum",
            "#import shared\nsum\n\n#ifdef NORM\nother\n#endif\n#if ROWS == 2\ntwo\n#endif",
        )];
        let changes = [
            (inputs(2, &[]), [true, true, true, true]),
            (
                inputs(1, &[("sum", "#import shared\nanother")]),
                [false, true, true, true],
            ),
            (inputs(1, &normed), [false, false, true, false]),
            (
                inputs(1, &[("cut", "#import shared\n")]),
                [false, false, true, false],
            ),
            (inputs(1, &[("shared", "some")]), [false, true, true, true]),
            (inputs(1, &[("shared", "all // of them")]), [false; 4]),
        ];
        let tests: [&[&str]; 4] = [&[], &["sum"], &["cut+w_f16", "sum+norm"], &["sum rows=2"]];
        for (now, expected) in changes {
            let differs = |kernels: &&[&str]| {
                plain.fingerprint(kernels.iter().copied())
                    != now.fingerprint(kernels.iter().copied())
            };
            assert_eq!(tests.each_ref().map(differs), expected);
        }
    }

    #[test]
    fn unknown_kernels_have_no_fingerprint() {
        for name in ["*", "", "none", "sum+none", "sum none=1", "sum rows"] {
            assert_eq!(
                inputs(1, &[]).fingerprint(["sum", name].into_iter()),
                None,
                "{name}"
            );
        }
    }
}
