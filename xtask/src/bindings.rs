//! JavaScript around a module that rustc made, by wasm-bindgen.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use wasm_bindgen_cli_support::Bindgen;

/// For whom a module is bound.
pub enum Purpose {
    /// A page that downloads it.
    Package,
    /// A page that calls its tests: with checks of what JavaScript passes, and without its `main`.
    Tests,
}

/// Writes `STEM.js` and `STEM_bg.wasm` of a module into an empty folder.
///
/// # Errors
/// A module that wasm-bindgen does not read; errors of the file system.
pub fn write(module: &Path, stem: &str, folder: &Path, purpose: &Purpose) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let is_test = matches!(purpose, Purpose::Tests);
    let mut bindgen = Bindgen::new();
    bindgen
        .web(true)?
        .input_path(module)
        .out_name(stem)
        // The script finds the module next to it.
        .omit_default_module_path(false)
        // The facade declares the types of the raw module.
        .typescript(false)
        .debug(is_test)
        .emit_start(!is_test);
    bindgen
        .generate(folder)
        .with_context(|| format!("binding {}", module.display()))
}
