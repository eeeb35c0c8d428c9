//! Installs wasm-pack and the wasm-bindgen programs with `cargo install` into cargo's own folder.

use super::Toolchain;
use crate::command::{command, output_of, print_heading, run, run_step};
use crate::{manifest, workspace};
use anyhow::Result;

/// A crate with programs to install.
struct Tool {
    /// Name on crates.io.
    name: &'static str,
    /// Program that reports the version.
    program: &'static str,
    version: String,
    /// Additional flags of `cargo install`.
    flags: &'static [&'static str],
}

/// Installs both tools, unless the required versions are present.
pub fn install(toolchain: &Toolchain) -> Result<()> {
    let bindgen = workspace::locked_version("wasm-bindgen")?;
    // The default features add TLS for remote drivers; ours is local.
    let flags = &["--no-default-features"];
    let tools = [
        Tool {
            name: "wasm-pack",
            program: "wasm-pack",
            version: manifest::read()?.tools.wasm_pack,
            flags: &[],
        },
        Tool {
            name: "wasm-bindgen-cli",
            program: "wasm-bindgen-test-runner",
            version: bindgen,
            flags,
        },
    ];
    for tool in tools {
        let found = output_of(toolchain.command(tool.program).arg("--version")).unwrap_or_default();
        if found.split_whitespace().nth(1) != Some(tool.version.as_str()) {
            let what = format!(
                "installing {} {} (about 2 minutes, once)",
                tool.name, tool.version
            );
            run_step(&what, || tool.install())?;
        }
    }
    Ok(())
}

impl Tool {
    fn install(&self) -> Result<()> {
        let attempt = |locked: &[&str]| {
            run(command("cargo")
                .args([
                    "install",
                    self.name,
                    "--version",
                    &format!("={}", self.version),
                    "--force",
                ])
                .args(locked)
                .args(self.flags)
                // The tools run for seconds, so a fast build matters more than fast code. They
                // share crates, so they share one target folder.
                .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
                .env("CARGO_TARGET_DIR", workspace::path("target/xtask/tools"))
                .current_dir(std::env::temp_dir()))
        };
        attempt(&["--locked"]).or_else(|_| {
            print_heading(
                "installing with the crate's lock file failed (the registry may lack a version): retrying without it",
            );
            attempt(&[])
        })
    }
}
