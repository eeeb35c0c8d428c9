//! What shaders/variants.toml says of a kernel, and what counts of a shader's text. Used by build.rs and by `cargo xtask test`, which
//! asks whether a kernel has changed; it knows no engine.

use std::collections::BTreeMap;

/// One kernel of shaders/variants.toml.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its text, below shaders/.
    pub file: String,
    /// Conditions that may hold or not, independently.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Groups of conditions of which exactly one holds.
    #[serde(default)]
    pub one_of: Vec<Vec<String>>,
    /// Numbers, each with the values that the engine uses; the first is the default.
    #[serde(default)]
    pub consts: BTreeMap<String, Vec<u32>>,
    /// Numbers that the kernel's family chooses by itself: any of their values gives the same result.
    #[serde(default)]
    pub choices: Vec<String>,
    /// Pairs of conditions of which the first never holds without the second.
    #[serde(default)]
    pub needs: Vec<[String; 2]>,
    /// Pairs of conditions that never hold together.
    #[serde(default)]
    pub exclude: Vec<[String; 2]>,
}

impl Spec {
    /// Whether conditions may hold together.
    pub fn allows(&self, flags: &[&str]) -> bool {
        let has = |flag: &String| flags.contains(&flag.as_str());
        self.needs.iter().all(|[flag, needed]| !has(flag) || has(needed))
            && !self.exclude.iter().any(|pair| pair.iter().all(has))
    }

    /// Conditions with those that they need, and that these need.
    pub fn with_needed<'a>(&'a self, mut flags: Vec<&'a str>) -> Vec<&'a str> {
        let mut next = 0;
        while let Some(&flag) = flags.get(next) {
            let needed = self.needs.iter().filter(|pair| pair[0] == flag).map(|pair| pair[1].as_str());
            let new: Vec<&str> = needed.filter(|f| !flags.contains(f)).collect();
            flags.extend(new);
            next += 1;
        }
        flags
    }
}

/// The lines of a shader without comments and indentation, and no empty ones.
pub fn code(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or("").trim());
    lines.filter(|line| !line.is_empty())
}
