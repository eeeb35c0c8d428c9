//! Node and the npm packages of package-lock.json: Vite, TypeScript, wasm-opt, playwright-core.

use crate::command::{command, output_of, run, run_step};
use crate::{stamp, workspace};
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Minimum version of node; required by the page's bundler.
const MIN_NODE_VERSION: u32 = 20;

/// Installs node_modules from package-lock.json, unless up to date.
pub fn install() -> Result<()> {
    let version = output_of(command("node").arg("--version")).unwrap_or_default();
    let major = version
        .trim_start_matches('v')
        .split('.')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    if major < MIN_NODE_VERSION {
        bail!(
            "node {MIN_NODE_VERSION} or newer is required, found '{version}'. Install it from https://nodejs.org."
        );
    }
    let inputs = [
        "package.json",
        "package-lock.json",
        "www/package.json",
        "tests/page/package.json",
    ];
    stamp::unless_fresh(
        "npm",
        &inputs,
        &version,
        &workspace::path("node_modules"),
        || {
            run_step(
                "installing the npm packages of package-lock.json (about 20 s)",
                || {
                    run(command("npm")
                        .args(["ci", "--no-audit", "--no-fund"])
                        .current_dir(workspace::root()))
                },
            )
        },
    )?;
    Ok(())
}

/// Installs the packages of the documentation site, unless up to date.
pub fn install_docs() -> Result<()> {
    let folder = workspace::path("www/docs");
    stamp::unless_fresh(
        "npm-docs",
        &["www/docs/package.json", "www/docs/package-lock.json"],
        "",
        &folder.join("node_modules"),
        || {
            run_step(
                "installing the npm packages of the documentation (about 15 s)",
                || {
                    run(command("npm")
                        .args(["ci", "--no-audit", "--no-fund"])
                        .current_dir(&folder))
                },
            )
        },
    )?;
    Ok(())
}

/// A command that runs a program of an installed package with node, in the repository's root.
pub fn program(script: &str) -> Command {
    let mut node = command("node");
    node.arg(path(script)).current_dir(workspace::root());
    node
}

/// A path inside node_modules.
pub fn path(script: &str) -> PathBuf {
    workspace::path("node_modules").join(script)
}
