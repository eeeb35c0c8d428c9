//! Parser of wasm-pack.toml: build settings, tool versions and size budgets.

use crate::workspace;
use anyhow::{Context, Result};
use serde::Deserialize;

/// The whole manifest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Versions of the tools to install.
    pub tools: Tools,
    /// The npm package.
    pub package: Package,
    /// Size budget of the package.
    pub budget: Budget,
    /// The browser tests.
    pub test: Test,
    /// The native runner.
    pub bench: Bench,
}

/// Versions of the tools to install.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tools {
    /// wasm-pack's version.
    pub wasm_pack: String,
}

/// How the npm package is built.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Package {
    /// wasm-pack's `--target`.
    pub target: String,
    /// Profile of the workspace's Cargo.toml.
    pub profile: String,
    /// Cargo features of the crate.
    pub features: Vec<String>,
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

/// How the browser tests are built.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// Cargo features of the crate.
    pub features: Vec<String>,
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

/// Reads wasm-pack.toml.
pub fn read() -> Result<Manifest> {
    let file = workspace::path("wasm-pack.toml");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    toml::from_str(&text).context("wasm-pack.toml")
}

/// `--features a,b` for cargo, or nothing.
pub fn feature_flags(features: &[String]) -> Vec<String> {
    if features.is_empty() {
        Vec::new()
    } else {
        vec!["--features".to_owned(), features.join(",")]
    }
}
