//! Sets up a machine: installs the missing tools for building and testing.

mod debian;
mod wasm;

pub use wasm::{TARGET, Toolchain};

use crate::command::{command, is_installed, output_of, print_heading};
use crate::npm;
use anyhow::{Result, bail};

/// Installs what building the package and the page requires.
pub fn for_build() -> Result<Toolchain> {
    npm::install()?;
    wasm::install()
}

/// Installs what the tests require too: a browser, and a Vulkan adapter for native tests.
pub fn everything() -> Result<Toolchain> {
    let toolchain = for_build()?;
    if !is_installed("chromium") {
        debian::install(&["chromium"])?;
    }
    if cfg!(target_os = "linux") && !has_vulkan_driver() {
        debian::install(&["mesa-vulkan-drivers"])?;
    }
    if !is_installed("chromium") {
        bail!("the browser tests require `chromium` on PATH. Install it.");
    }
    print_heading(&format!("ready: {}", toolchain.describe()));
    Ok(toolchain)
}

/// Installs the browser of a runner of `cargo xtask test`, if it is missing; its tests say what to
/// do where apt cannot.
pub fn browser(runner: &str) -> Result<()> {
    let present = |variable: &str, programs: &[&str]| {
        std::env::var_os(variable).is_some() || programs.iter().any(|name| is_installed(name))
    };
    match runner {
        "firefox" if !present("FIREFOX", &["firefox-esr", "firefox"]) => {
            debian::install(&["firefox-esr"])
        }
        "webkit" if cfg!(target_os = "linux") => debian::install(&["webkit2gtk-driver", "xvfb"]),
        _ => Ok(()),
    }
}

/// Whether a Vulkan driver is registered: a GPU's, or Mesa's on the CPU.
fn has_vulkan_driver() -> bool {
    let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
    folders
        .iter()
        .any(|folder| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()))
}

/// The version line of a program, for messages.
fn version(program: &str) -> String {
    output_of(command(program).arg("--version")).unwrap_or_else(|| format!("no {program}"))
}
