//! Parses the kernel entries of shaders/variants.toml and strips shader sources of comments. Used
//! by build.rs and by `cargo xtask test`, which detects changed kernels.

use std::collections::BTreeMap;

/// One kernel of shaders/variants.toml.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelEntry {
    /// Its WGSL file, relative to shaders/.
    pub file: String,
    /// Flags that are set or not, independently.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Groups of flags of which exactly one is set.
    #[serde(default)]
    pub one_of: Vec<Vec<String>>,
    /// Constants with every value that the engine uses; the first is the default.
    #[serde(default)]
    pub consts: BTreeMap<String, Vec<u32>>,
    /// Constants that the kernel family tunes: every value gives the same result.
    #[serde(default)]
    pub choices: Vec<String>,
    /// Pairs of flags where the first requires the second.
    #[serde(default)]
    pub needs: Vec<[String; 2]>,
    /// Pairs of flags that exclude each other.
    #[serde(default)]
    pub exclude: Vec<[String; 2]>,
}

impl KernelEntry {
    /// Whether the flags may be set together.
    pub fn allows(&self, flags: &[&str]) -> bool {
        let has = |flag: &String| flags.contains(&flag.as_str());
        self.needs
            .iter()
            .all(|[flag, needed]| !has(flag) || has(needed))
            && !self.exclude.iter().any(|pair| pair.iter().all(has))
    }

    /// Adds the flags that these require, transitively.
    pub fn with_required<'a>(&'a self, mut flags: Vec<&'a str>) -> Vec<&'a str> {
        let mut next = 0;
        while let Some(&flag) = flags.get(next) {
            let needed = self
                .needs
                .iter()
                .filter(|pair| pair[0] == flag)
                .map(|pair| pair[1].as_str());
            let new: Vec<&str> = needed.filter(|f| !flags.contains(f)).collect();
            flags.extend(new);
            next += 1;
        }
        flags
    }
}

/// The lines of a shader without comments, indentation and empty lines.
pub fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or("").trim());
    lines.filter(|line| !line.is_empty())
}
