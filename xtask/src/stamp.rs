//! Stamps: a step whose inputs are as they were when it last succeeded is skipped. Knows files, not what is built from them.

use crate::workspace;
use anyhow::{Context, Result};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Folders that hold products, not sources.
const PRODUCTS: [&str; 4] = ["target", "node_modules", "dist", "pkg"];

/// Does the work unless the inputs (files and folders of the repository, and a text) are those of the last success and the product is there.
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
    // Gone before the work begins: an interrupted step is not taken for a finished one.
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
            file.hash(&mut hasher);
            std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?.hash(&mut hasher);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The files under a folder, sorted, or the file itself; none where there is nothing.
pub fn files(from: &Path) -> Result<Vec<PathBuf>> {
    if from.is_file() {
        return Ok(vec![from.to_path_buf()]);
    }
    let mut found = Vec::new();
    if from.is_dir() {
        for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| PRODUCTS.iter().any(|product| name == *product)) {
                continue;
            }
            found.append(&mut files(&path)?);
        }
    }
    found.sort();
    Ok(found)
}
