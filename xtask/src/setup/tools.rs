//! wasm-pack and wasm-bindgen's programs, by `cargo install` into cargo's own folder, where they stay. Knows no build.

use super::Toolchain;
use crate::command::{ask, command, run, say, step};
use crate::{manifest, workspace};
use anyhow::Result;

/// A crate whose programs are installed.
struct Tool {
    /// Name on crates.io.
    name: &'static str,
    /// Program that tells the version.
    program: &'static str,
    version: String,
    /// Further flags of `cargo install`.
    flags: &'static [&'static str],
}

/// Installs both where the version is not the one that is wanted.
pub fn install(toolchain: &Toolchain) -> Result<()> {
    let bindgen = workspace::locked_version("wasm-bindgen")?;
    // Its default features bring TLS for a driver on another machine; ours runs here.
    let flags = &["--no-default-features"];
    let tools = [
        Tool { name: "wasm-pack", program: "wasm-pack", version: manifest::read()?.tools.wasm_pack, flags: &[] },
        Tool { name: "wasm-bindgen-cli", program: "wasm-bindgen-test-runner", version: bindgen, flags },
    ];
    for tool in tools {
        let found = ask(toolchain.command(tool.program).arg("--version")).unwrap_or_default();
        if found.split_whitespace().nth(1) != Some(tool.version.as_str()) {
            let what = format!("installing {} {} (about 2 minutes, once)", tool.name, tool.version);
            step(&what, || tool.install())?;
        }
    }
    Ok(())
}

impl Tool {
    fn install(&self) -> Result<()> {
        let attempt = |locked: &[&str]| {
            run(command("cargo")
                .args(["install", self.name, "--version", &format!("={}", self.version), "--force"])
                .args(locked)
                .args(self.flags)
                // They run for seconds: a quick build counts for more than quick code. One folder, since they share crates.
                .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
                .env("CARGO_TARGET_DIR", workspace::path("target/xtask/tools"))
                .current_dir(std::env::temp_dir()))
        };
        attempt(&["--locked"]).or_else(|_| {
            say("not with the crate's own lock file (a registry may lack one of its versions); once more without it");
            attempt(&[])
        })
    }
}
