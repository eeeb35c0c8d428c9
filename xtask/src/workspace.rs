//! Paths in the repository.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// A path inside the repository.
pub fn path(inside: &str) -> PathBuf {
    root().join(inside)
}

/// The npm package that `cargo xtask build` writes.
pub fn package() -> PathBuf {
    path("dist/jerboa")
}

/// The built demo page.
pub fn page() -> PathBuf {
    path("dist/www")
}

/// The version of a crate in Cargo.lock.
pub fn locked_version(name: &str) -> Result<String> {
    #[derive(serde::Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(serde::Deserialize)]
    struct Locked {
        name: String,
        version: String,
    }
    let file = path("Cargo.lock");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let lock: Lock = toml::from_str(&text).context("Cargo.lock")?;
    let found = lock.package.into_iter().find(|each| each.name == name);
    Ok(found
        .with_context(|| format!("Cargo.lock has no package {name}"))?
        .version)
}
