//! The shader registry that build.rs generates from shaders/, and the expansion of one kernel
//! variant. Which variant fits a device is decided by the kernel families.

use super::preprocess::{self, BindingDecl};
use crate::util::map::{SortedMap, SortedSet};
use crate::{Error, Result};
use std::fmt;

struct KernelSource {
    path: &'static str,
    flags: &'static [&'static str],
    one_of: &'static [&'static [&'static str]],
    consts: &'static [(&'static str, &'static [u32])],
    choices: &'static [&'static str],
}

include!(concat!(env!("OUT_DIR"), "/registry.rs"));

impl Kernel {
    /// All kernels, sorted by name.
    pub fn all() -> impl Iterator<Item = Kernel> {
        ALL.iter().copied()
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kernel with its flags and constants: the key of a pipeline. Other crates have kernels of
/// their own, of type `K`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant<K = Kernel> {
    /// The kernel.
    pub kernel: K,
    /// The flags that are set.
    pub flags: SortedSet<&'static str>,
    /// The constants that differ from their defaults.
    pub consts: SortedMap<&'static str, u32>,
}

impl<K> Variant<K> {
    /// The kernel with no flag set and all constants at their defaults.
    pub fn new(kernel: K) -> Self {
        Self {
            kernel,
            flags: SortedSet::new(),
            consts: SortedMap::new(),
        }
    }

    /// Sets a flag.
    pub fn flag(self, name: &'static str) -> Self {
        self.flag_if(name, true)
    }

    /// Sets a flag if `on`.
    pub fn flag_if(mut self, name: &'static str, on: bool) -> Self {
        if on {
            self.flags.insert(name);
        }
        self
    }

    /// Sets a constant.
    pub fn set(mut self, name: &'static str, value: u32) -> Self {
        self.consts.insert(name, value);
        self
    }
}

impl<K: fmt::Display> Variant<K> {
    /// Expands the WGSL file `path`, and reads its bindings and parameters. `read` returns the code
    /// of a file, `defaults` are all constants that it may compare.
    ///
    /// # Errors
    /// `Error::Internal` for a file that does not exist, or a directive that does not expand.
    pub fn expand(
        &self,
        path: &str,
        read: &dyn Fn(&str) -> Result<String, String>,
        defaults: impl Iterator<Item = (&'static str, u32)>,
        browser: bool,
    ) -> Result<Shader> {
        let consts: Vec<(&str, u32)> = defaults
            .map(|(name, value)| (name, self.consts.get(name).copied().unwrap_or(value)))
            .collect();
        let has = |flag: &str| self.flags.contains(flag);
        let body = preprocess::flatten(path, read, &mut Vec::new())
            .and_then(|text| preprocess::expand(&text, &has, &consts))
            .map_err(|e| Error::Internal(format!("{self}: {e}")))?;
        Ok(Shader {
            label: self.to_string(),
            text: preprocess::complete(browser, &has, &consts, &body),
            bindings: preprocess::bindings(&body),
            params: preprocess::params(&body),
        })
    }
}

impl Variant {
    /// The value of a constant of this variant.
    pub fn constant(&self, name: &str) -> u32 {
        self.consts.get(name).copied().unwrap_or_else(|| {
            source(self.kernel)
                .consts
                .iter()
                .find(|(n, _)| *n == name)
                .map_or(0, |(_, v)| v[0])
        })
    }

    /// Expands the WGSL source for a device and reads its bindings and parameters.
    ///
    /// # Errors
    /// `Error::Internal` when variants.toml does not declare the variant: only sources that the
    /// build validated reach a device.
    pub fn shader(&self, browser: bool) -> Result<Shader> {
        let source = source(self.kernel);
        self.check(source)?;
        let defaults = source
            .consts
            .iter()
            .map(|(name, values)| (*name, values[0]));
        let shader = self.expand(source.path, &shader_file, defaults, browser)?;
        #[cfg(not(target_arch = "wasm32"))]
        log_kernel(&shader.label)?;
        Ok(shader)
    }

    fn check(&self, source: &KernelSource) -> Result<()> {
        let grouped = |f: &&str| source.one_of.iter().any(|g| g.contains(f));
        let bad_flag = self
            .flags
            .iter()
            .find(|f| !source.flags.contains(*f) && !grouped(f));
        let bad_group = source
            .one_of
            .iter()
            .find(|g| g.iter().filter(|f| self.flags.contains(**f)).count() != 1);
        let known = |n: &str, v: u32| {
            source
                .consts
                .iter()
                .any(|(name, values)| *name == n && values.contains(&v))
        };
        let bad_const = self.consts.iter().find(|(n, v)| !known(n, **v));
        let problem = bad_flag
            .map(|f| format!("unknown flag {f}"))
            .or(bad_group.map(|g| format!("needs exactly one of {g:?}")))
            .or(bad_const.map(|(n, v)| format!("{n} = {v} is not declared")));
        problem.map_or(Ok(()), |p| {
            Err(Error::Internal(format!(
                "kernel {self}: {p} in variants.toml"
            )))
        })
    }
}

impl<K: fmt::Display> fmt::Display for Variant<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kernel)?;
        for flag in &self.flags {
            write!(f, "+{}", flag.to_lowercase())?;
        }
        for (name, value) in &self.consts {
            write!(f, " {}={value}", name.to_lowercase())?;
        }
        Ok(())
    }
}

/// A WGSL source ready to compile, with its interface.
#[derive(Debug, Clone)]
pub struct Shader {
    /// The variant's name.
    pub label: String,
    /// WGSL; the entry point is `main`.
    pub text: String,
    /// Its bindings in group 0.
    pub bindings: Vec<BindingDecl>,
    /// The u32 words of its `Params`: name, and whether it is an f32.
    pub params: Vec<(String, bool)>,
}

/// Appends a kernel's name to the file `JERBOA_KERNELS`, from which the test runner learns the
/// kernels that a test uses.
#[cfg(not(target_arch = "wasm32"))]
fn log_kernel(label: &str) -> Result<()> {
    use std::io::Write;
    let Some(path) = std::env::var_os("JERBOA_KERNELS") else {
        return Ok(());
    };
    let file = std::fs::OpenOptions::new().append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(format!("{label}\n").as_bytes()));
    written.map_err(|e| Error::Internal(format!("{}: {e}", path.display())))
}

fn source(kernel: Kernel) -> &'static KernelSource {
    &SOURCES[kernel as usize]
}

/// Returns the code of a file of shaders/, by its path without the suffix: for kernels of other
/// crates that import it.
///
/// # Errors
/// A message for a file that does not exist.
pub fn shader_file(path: &str) -> Result<String, String> {
    let found = FILES.binary_search_by_key(&path, |(name, _)| name);
    found
        .map(|index| FILES[index].1.to_string())
        .map_err(|_| format!("shaders/{path}.wgsl is missing"))
}

/// The constants that the kernel family tunes, with their values.
pub fn tunable_constants(kernel: Kernel) -> impl Iterator<Item = (&'static str, &'static [u32])> {
    let source = source(kernel);
    source
        .consts
        .iter()
        .copied()
        .filter(|(name, _)| source.choices.contains(name))
}

#[cfg(test)]
mod tests {
    use super::{Kernel, Variant};
    use std::path::Path;
    use std::process::Command;

    fn some() -> Variant {
        Variant::new(Kernel::Gemv)
            .flag("W_F16")
            .flag("NORM")
            .set("ROWS", 2)
    }

    #[test]
    fn a_kernel_has_a_text() {
        assert!(
            some()
                .shader(false)
                .is_ok_and(|shader| shader.label == "gemv+norm+w_f16 rows=2")
        );
    }

    #[test]
    fn used_kernels_are_logged_to_a_file() {
        let file = Path::new(env!("OUT_DIR")).join(format!("kernels-{}", std::process::id()));
        let asks = || {
            let mut test = Command::new(std::env::current_exe().expect("a program"));
            test.args(["--exact", "device::registry::tests::a_kernel_has_a_text"])
                .env("JERBOA_KERNELS", &file);
            test.output().expect("the test starts").status.success()
        };
        assert!(!asks(), "an unwritable file is an error");
        std::fs::write(&file, "one\n").expect("a file");
        assert!(asks());
        let noted = std::fs::read_to_string(&file).expect("a file");
        std::fs::remove_file(&file).expect("it is there");
        assert_eq!(noted, "one\ngemv+norm+w_f16 rows=2\n");
    }
}
