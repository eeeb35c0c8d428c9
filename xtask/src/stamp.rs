//! Build stamps: skips a step whose inputs are unchanged since it last succeeded.

use crate::workspace;
use anyhow::{Context, Result};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Folders with build outputs, not sources.
const OUTPUT_FOLDERS: [&str; 4] = ["target", "node_modules", "dist", "pkg"];
/// The reference that typedoc writes among the pages of the documentation.
const GENERATED: &str = "www/docs/api";

/// Runs `work` unless the output exists and the inputs (files, folders and a text) equal those of
/// the last success.
pub fn unless_fresh(
    name: &str,
    inputs: &[&str],
    text: &str,
    product: &Path,
    work: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    let stamp = workspace::path("target/xtask").join(format!("{name}.stamp"));
    let now = fingerprint(inputs, text)?;
    if product.exists() && std::fs::read_to_string(&stamp).is_ok_and(|last| last == now) {
        return Ok(false);
    }
    // Remove the stamp first, so that an interrupted step does not count as finished.
    let _ = std::fs::remove_file(&stamp);
    work()?;
    std::fs::create_dir_all(workspace::path("target/xtask")).context("target/xtask")?;
    std::fs::write(&stamp, now).with_context(|| format!("writing {}", stamp.display()))?;
    Ok(true)
}

fn fingerprint(inputs: &[&str], text: &str) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    for input in inputs {
        for file in files(&workspace::path(input))? {
            if file.starts_with(workspace::path(GENERATED)) {
                continue;
            }
            file.hash(&mut hasher);
            std::fs::read(&file)
                .with_context(|| format!("reading {}", file.display()))?
                .hash(&mut hasher);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The files under a folder, sorted, or the file itself; empty if nothing exists.
pub fn files(from: &Path) -> Result<Vec<PathBuf>> {
    if from.is_file() {
        return Ok(vec![from.to_path_buf()]);
    }
    let mut found = Vec::new();
    if from.is_dir() {
        for entry in
            std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))?
        {
            let path = entry?.path();
            if path
                .file_name()
                .is_some_and(|name| OUTPUT_FOLDERS.iter().any(|product| name == *product))
            {
                continue;
            }
            found.append(&mut files(&path)?);
        }
    }
    found.sort();
    Ok(found)
}
