//! Rust compilers for wasm32: rustup's, or Debian's with a standard library that is built once.

use super::{debian, version};
use crate::command::{as_root, command, output_of, print_heading, run, run_step};
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rust's name of WebAssembly in a page.
pub const TARGET: &str = "wasm32-unknown-unknown";
/// Folder where Debian's compiler looks for the target's standard library.
const DEBIAN_LIBRARIES: &str = "/usr/lib/rustlib/wasm32-unknown-unknown/lib";
/// File next to the libraries that names their compiler. Written last, so that an interrupted
/// installation is repeated.
const DEBIAN_STAMP: &str = "/usr/lib/rustlib/wasm32-unknown-unknown/lib/built-by";

/// The compiler that builds for wasm32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Toolchain {
    /// The compiler on PATH, with the target installed.
    OnPath,
    /// Debian's in /usr/bin, independent of the one on PATH.
    Debian,
}

impl Toolchain {
    /// A command with a PATH that starts with this compiler and cargo's bin folder.
    pub fn command(self, program: &str) -> Command {
        let mut folders: Vec<PathBuf> = Vec::new();
        if self == Toolchain::Debian {
            folders.push("/usr/bin".into());
        }
        folders.extend(cargo_bin());
        folders.extend(
            std::env::var_os("PATH")
                .iter()
                .flat_map(std::env::split_paths),
        );
        let mut command = command(program);
        if let Ok(joined) = std::env::join_paths(folders) {
            command.env("PATH", joined);
        }
        command
    }

    /// The compiler's version line.
    pub fn describe(self) -> String {
        output_of(self.command("rustc").arg("--version")).unwrap_or_else(|| "no rustc".to_owned())
    }
}

/// Folder of programs installed by `cargo install`.
fn cargo_bin() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .map(|home| home.join("bin"))
}

/// Finds or installs a compiler for wasm32: rustup first, then Debian's packages.
pub fn install() -> Result<Toolchain> {
    if ordinary_has_target() {
        return Ok(Toolchain::OnPath);
    }
    if debian_is_built() {
        return Ok(Toolchain::Debian);
    }
    let added = run_step(&format!("adding Rust's target {TARGET}"), || {
        run(command("rustup")
            .args(["target", "add", TARGET])
            .current_dir(workspace::root()))
    });
    match added {
        Ok(()) if ordinary_has_target() => return Ok(Toolchain::OnPath),
        Ok(()) => {
            print_heading("rustup added the target to a toolchain other than the rustc on PATH");
        }
        Err(error) => print_heading(&format!(
            "rustup cannot add the target ({error:#}); using Debian's compiler"
        )),
    }
    install_debian()?;
    Ok(Toolchain::Debian)
}

fn ordinary_has_target() -> bool {
    // For /usr/bin/rustc, Debian's own, setup builds the library; only the stamp shows that it is
    // complete.
    let folder = output_of(command("rustc").args(["--print", "target-libdir", "--target", TARGET]));
    folder.is_some_and(|folder| {
        folder != DEBIAN_LIBRARIES && has_library(Path::new(&folder), "libcore-")
    })
}

fn debian_is_built() -> bool {
    let compiler = output_of(command("/usr/bin/rustc").arg("-vV"));
    compiler.is_some()
        && std::fs::read_to_string(DEBIAN_STAMP)
            .ok()
            .map(|text| text.trim().to_owned())
            == compiler
}

fn has_library(folder: &Path, prefix: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
}

fn install_debian() -> Result<()> {
    debian::install(&["rustc-web", "cargo-web", "rust-web-src", "lld-22"])?;
    let linker = "/usr/lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld";
    run(as_root("ln").args(["-sfn", "/usr/lib/llvm-22/bin/lld", linker]))?;
    let what = format!(
        "building the standard library for {TARGET} with Debian's {} (a minute)",
        version("/usr/bin/rustc")
    );
    run_step(&what, || {
        let built = build_library()?;
        install_library(&built)
    })
}

/// Builds std and test in an empty crate. Returns the folder of their .rlib files.
fn build_library() -> Result<PathBuf> {
    let folder = workspace::path("target/xtask/wasm-std");
    std::fs::create_dir_all(folder.join("src"))?;
    // `[workspace]` keeps the crate out of the enclosing workspace.
    let manifest =
        "[package]\nname = \"empty\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n";
    std::fs::write(folder.join("Cargo.toml"), manifest)?;
    std::fs::write(folder.join("src/lib.rs"), "")?;
    run(Toolchain::Debian
        .command("/usr/bin/cargo")
        .args([
            "build",
            "--release",
            "-Z",
            "build-std=std,panic_abort,test",
            "--target",
            TARGET,
        ])
        // Without bitcode, a build with `lto = "fat"` fails with "failed to get bitcode from object
        // file".
        .env("RUSTFLAGS", "-C embed-bitcode=yes")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .current_dir(&folder))?;
    Ok(folder.join("target").join(TARGET).join("release/deps"))
}

fn install_library(built: &Path) -> Result<()> {
    let mut libraries = Vec::new();
    for entry in std::fs::read_dir(built).with_context(|| format!("reading {}", built.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if name.ends_with(".rlib") && !name.starts_with("libempty-") {
            libraries.push(path);
        }
    }
    if libraries.is_empty() {
        bail!("cargo built no library in {}", built.display());
    }
    run(as_root("rm").args(["-rf", DEBIAN_LIBRARIES]))?;
    run(as_root("install")
        .args(["-m", "644", "-D", "-t", DEBIAN_LIBRARIES])
        .args(&libraries))?;
    let stamp = workspace::path("target/xtask/built-by");
    std::fs::write(
        &stamp,
        output_of(command("/usr/bin/rustc").arg("-vV")).unwrap_or_default(),
    )?;
    run(as_root("install")
        .args(["-m", "644"])
        .arg(&stamp)
        .arg(DEBIAN_STAMP))
}
