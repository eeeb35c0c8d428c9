//! `cargo xtask lint`: formatting, clippy, advisories, TypeScript and shaders; every warning is an
//! error. The rules are in the tools' settings.

use crate::command::{command, output_of, print_heading, run, run_step};
use crate::setup::{self, Toolchain};
use crate::{audit, npm, package, workspace};
use anyhow::Result;
use std::process::Command;

/// Runs all checks, fast ones first.
pub fn run_all() -> Result<()> {
    run_step("rustfmt", || run(cargo().args(["fmt", "--all", "--check"])))?;
    let toolchain = setup::for_build()?;
    // crate/build.rs expands every shader variant and validates it with naga. Errors show file and
    // line.
    run_step("clippy and the shader variants", || {
        run(cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    wasm_clippy(toolchain)?;
    audit::run()?;
    run_step("tsc: the facade", || {
        run(npm::program("typescript/bin/tsc")
            .args(["--noEmit", "-p"])
            .arg(workspace::path("pkg-template")))
    })?;
    // The page is type-checked against the built package.
    package::build(toolchain)?;
    run_step("tsc: the page", || {
        run(npm::program("typescript/bin/tsc")
            .args(["--noEmit", "-p"])
            .arg(workspace::path("www")))
    })
}

/// Lints the browser-only part of the engine.
fn wasm_clippy(toolchain: Toolchain) -> Result<()> {
    let target = [
        "--package",
        "jerboa",
        "--target",
        setup::TARGET,
        "--all-targets",
        "--quiet",
    ];
    let features = package::only_features(package::PAGE_FEATURES);
    if output_of(toolchain.command("cargo").args(["clippy", "--version"])).is_none()
        || toolchain == Toolchain::Debian
    {
        print_heading("no clippy for the wasm32 compiler: running cargo check instead");
        return run_step("cargo check for wasm32", || {
            run(toolchain
                .command("cargo")
                .arg("check")
                .args(target)
                .args(&features)
                .current_dir(workspace::root()))
        });
    }
    run_step("clippy for wasm32", || {
        run(toolchain
            .command("cargo")
            .arg("clippy")
            .args(target)
            .args(&features)
            .args(["--", "-D", "warnings"])
            .current_dir(workspace::root()))
    })
}

fn cargo() -> Command {
    let mut cargo = command("cargo");
    cargo.current_dir(workspace::root());
    cargo
}
