//! Checks the package's raw and gzip sizes against the budget.

use crate::manifest::Budget;
use crate::package::{INTEGRATIONS, INTEGRATIONS_SHARED, NODE_FOLDER};
use crate::stamp::files;
use anyhow::{Context, Result, bail};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::path::Path;

/// Raw and gzip size in bytes.
#[derive(Default, Clone, Copy)]
struct FileSizes {
    raw: u64,
    gzip: u64,
}

/// Prints the sizes of WebAssembly and of JavaScript for pages; fails if one exceeds the budget.
pub fn check(package: &Path, budget: &Budget) -> Result<()> {
    let wasm = size_of(package, |name| name.ends_with("jerboa_bg.wasm"))?;
    let grammar = size_of(package, |name| name.ends_with("grammar_bg.wasm"))?;
    let train = size_of(package, |name| name.ends_with("train_bg.wasm"))?;
    // Integrations load only where they are imported, scripts for Node in no page.
    let js = size_of(package, |name| {
        is_script(name)
            && !name.starts_with(NODE_FOLDER)
            && !name.starts_with(INTEGRATIONS_SHARED)
            && !INTEGRATIONS.iter().any(|entry| name.starts_with(entry))
    })?;
    println!("    {:<12}{:>12}{:>12}{:>12}", "", "raw", "gzip", "budget");
    println!(
        "    {:<12}{:>12}{:>12}{:>12}",
        "wasm", wasm.raw, wasm.gzip, budget.wasm
    );
    println!(
        "    {:<12}{:>12}{:>12}{:>12}",
        "javascript", js.raw, js.gzip, budget.js
    );
    let raw = wasm.raw + js.raw;
    let gzip = wasm.gzip + js.gzip;

    println!(
        "    {:<12}{raw:>12}{gzip:>12}{:>12}",
        "all",
        budget.wasm + budget.js
    );
    for (name, size, limit) in [
        ("grammar", grammar, budget.grammar),
        ("training", train, budget.train),
    ] {
        println!("    {name:<12}{:>12}{:>12}{limit:>12}", size.raw, size.gzip);
    }
    for entry in INTEGRATIONS.into_iter().chain([INTEGRATIONS_SHARED]) {
        let size = size_of(package, |name| name.starts_with(entry) && is_script(name))?;
        println!("    {entry:<12}{:>12}{:>12}", size.raw, size.gzip);
    }
    for (name, size, limit) in [
        ("grammar module", grammar, budget.grammar),
        ("training module", train, budget.train),
        ("WebAssembly module", wasm, budget.wasm),
        ("JavaScript", js, budget.js),
    ] {
        if size.gzip > limit {
            let over = size.gzip - limit;
            bail!(
                "the {name} exceeds its gzip budget of {limit} bytes by {over}. Reduce it, or change [budget] in build.toml."
            );
        }
    }
    Ok(())
}

fn is_script(name: &Path) -> bool {
    name.extension().is_some_and(|extension| extension == "js")
}

/// Sizes of the files whose paths in the package `counts` accepts.
fn size_of(package: &Path, counts: impl Fn(&Path) -> bool) -> Result<FileSizes> {
    let mut sum = FileSizes::default();
    for file in files(package)? {
        if counts(file.strip_prefix(package)?) {
            let bytes =
                std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(&bytes)?;
            sum.raw += bytes.len() as u64;
            sum.gzip += encoder.finish()?.len() as u64;
        }
    }
    if sum.raw == 0 {
        bail!(
            "{} is incomplete. Delete it and build again.",
            package.display()
        );
    }
    Ok(sum)
}
