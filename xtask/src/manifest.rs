//! Parser of build.toml: build settings and size budgets.

use crate::workspace;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::borrow::Borrow;

/// The whole manifest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The npm package.
    pub package: Package,
    /// Size budget of the package.
    pub budget: Budget,
    /// The native runner.
    pub bench: Bench,
}

/// How the npm package is built.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Package {
    /// Profile of the workspace's Cargo.toml.
    pub profile: String,
    /// Flags of wasm-opt.
    pub wasm_opt: Vec<String>,
}

/// Maximum sizes in bytes after gzip.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The engine's WebAssembly module.
    pub wasm: u64,
    /// The grammar module, which is not a part of the first load.
    pub grammar: u64,
    /// The training module with its build of the engine, which is not a part of the first load.
    pub train: u64,
    /// All JavaScript of the package.
    pub js: u64,
}

/// How the native runner is built.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bench {
    /// Profile of the workspace's Cargo.toml.
    pub profile: String,
    /// Cargo features of the crate.
    pub features: Vec<String>,
}

/// Reads build.toml.
pub fn read() -> Result<Manifest> {
    let file = workspace::path("build.toml");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    toml::from_str(&text).context("build.toml")
}

/// `--features a,b` for cargo, or nothing.
pub fn feature_flags(features: &[impl Borrow<str>]) -> Vec<String> {
    if features.is_empty() {
        Vec::new()
    } else {
        vec!["--features".to_owned(), features.join(",")]
    }
}
