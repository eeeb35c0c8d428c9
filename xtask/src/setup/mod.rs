//! Sets up a machine: each part is left alone where it is there. Knows the order and who needs what; the parts know how.

mod debian;
mod tools;
mod wasm;

pub use wasm::Toolchain;

use crate::command::{ask, command, exists, say};
use crate::npm;
use anyhow::{Result, bail};

/// What building the package and the page needs.
pub fn for_build() -> Result<Toolchain> {
    npm::install()?;
    let toolchain = wasm::install()?;
    tools::install(&toolchain)?;
    Ok(toolchain)
}

/// What the tests need, too: a browser with its driver, and a Vulkan adapter for the native ones.
pub fn everything() -> Result<Toolchain> {
    let toolchain = for_build()?;
    if !(exists("chromium") && exists("chromedriver")) {
        debian::install(&["chromium", "chromium-driver"])?;
    }
    if cfg!(target_os = "linux") && !has_vulkan_driver() {
        debian::install(&["mesa-vulkan-drivers"])?;
    }
    if !exists("chromium") {
        bail!("the tests in the browser need Chromium as `chromium` on PATH, with `chromedriver`");
    }
    say(&format!("ready: {}", toolchain.describe()));
    Ok(toolchain)
}

/// Whether a Vulkan driver announces itself: a GPU's, or Mesa's on the CPU.
fn has_vulkan_driver() -> bool {
    let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
    folders.iter().any(|folder| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()))
}

/// The version line of a program, for a message.
fn version(program: &str) -> String {
    ask(command(program).arg("--version")).unwrap_or_else(|| format!("no {program}"))
}
