//! A Rust compiler that builds for wasm32: rustup's, or Debian's with a standard library that is built once. Knows no crate of ours.

use super::{debian, version};
use crate::command::{as_root, ask, command, run, say, step};
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";
/// Where Debian's compiler looks for the standard library of the target.
const DEBIAN_LIBRARIES: &str = "/usr/lib/rustlib/wasm32-unknown-unknown/lib";
/// Beside the libraries: the compiler that built them. Written last, so an interrupted installation is done again.
const DEBIAN_STAMP: &str = "/usr/lib/rustlib/wasm32-unknown-unknown/lib/built-by";
/// The name under which rustup knows Debian's compiler.
const LINKED: &str = "debian";

/// The compiler that builds for wasm32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Toolchain {
    /// The one on PATH, with the target installed.
    Ordinary,
    /// Debian's in /usr/bin, beside the one on PATH.
    Debian,
}

impl Toolchain {
    /// A command that finds this compiler, wasm-pack and the tools of node_modules first on its PATH.
    pub fn command(self, program: &str) -> Command {
        let mut folders: Vec<PathBuf> = Vec::new();
        if self == Toolchain::Debian {
            folders.push("/usr/bin".into());
        }
        folders.extend(cargo_bin());
        folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
        let mut command = command(program);
        if let Ok(joined) = std::env::join_paths(folders) {
            command.env("PATH", joined);
        }
        command
    }

    /// The compiler's version line.
    pub fn describe(self) -> String {
        ask(self.command("rustc").arg("--version")).unwrap_or_else(|| "no rustc".to_owned())
    }
}

/// Where `cargo install` puts programs.
fn cargo_bin() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).map(|home| home.join("bin"))
}

/// Finds or installs a compiler for wasm32: the ordinary way first, Debian's packages where it fails.
pub fn install() -> Result<Toolchain> {
    if ordinary_has_target() {
        return Ok(Toolchain::Ordinary);
    }
    if debian_is_built() {
        return Ok(Toolchain::Debian);
    }
    let added = step(&format!("adding Rust's target {TARGET}"), || {
        run(command("rustup").args(["target", "add", TARGET]).current_dir(workspace::root()))
    });
    match added {
        Ok(()) if ordinary_has_target() => return Ok(Toolchain::Ordinary),
        Ok(()) => say("rustup added the target, but not to the rustc on PATH"),
        Err(error) => say(&format!("rustup cannot add it ({error:#}); Debian's compiler will do")),
    }
    install_debian()?;
    Ok(Toolchain::Debian)
}

fn ordinary_has_target() -> bool {
    // /usr/bin/rustc is Debian's own, whose library is ours to build: only its stamp tells whether it is whole.
    let folder = ask(command("rustc").args(["--print", "target-libdir", "--target", TARGET]));
    folder.is_some_and(|folder| folder != DEBIAN_LIBRARIES && has_library(Path::new(&folder), "libcore-"))
}

fn debian_is_built() -> bool {
    let compiler = ask(command("/usr/bin/rustc").arg("-vV"));
    compiler.is_some() && std::fs::read_to_string(DEBIAN_STAMP).ok().map(|text| text.trim().to_owned()) == compiler
}

fn has_library(folder: &Path, prefix: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
}

fn install_debian() -> Result<()> {
    debian::install(&["rustc-web", "cargo-web", "rust-web-src", "lld-22"])?;
    let linker = "/usr/lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld";
    run(as_root("ln").args(["-sfn", "/usr/lib/llvm-22/bin/lld", linker]))?;
    let what =
        format!("building the standard library for {TARGET} with Debian's {} (a minute)", version("/usr/bin/rustc"));
    step(&what, || {
        let built = build_library()?;
        install_library(&built)
    })?;
    use_by_hand()
}

/// Builds std and test in an empty crate; the folder of their .rlib files.
fn build_library() -> Result<PathBuf> {
    let folder = workspace::path("target/xtask/wasm-std");
    std::fs::create_dir_all(folder.join("src"))?;
    // `[workspace]` keeps it out of the one that it lies in.
    let manifest = "[package]\nname = \"empty\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n";
    std::fs::write(folder.join("Cargo.toml"), manifest)?;
    std::fs::write(folder.join("src/lib.rs"), "")?;
    run(Toolchain::Debian
        .command("/usr/bin/cargo")
        .args(["build", "--release", "-Z", "build-std=std,panic_abort,test", "--target", TARGET])
        // Without the bitcode a build with `lto = "fat"` ends in "failed to get bitcode from object file".
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
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.ends_with(".rlib") && !name.starts_with("libempty-") {
            libraries.push(path);
        }
    }
    if libraries.is_empty() {
        bail!("cargo left no library in {}", built.display());
    }
    run(as_root("rm").args(["-rf", DEBIAN_LIBRARIES]))?;
    run(as_root("install").args(["-m", "644", "-D", "-t", DEBIAN_LIBRARIES]).args(&libraries))?;
    let stamp = workspace::path("target/xtask/built-by");
    std::fs::write(&stamp, ask(command("/usr/bin/rustc").arg("-vV")).unwrap_or_default())?;
    run(as_root("install").args(["-m", "644"]).arg(&stamp).arg(DEBIAN_STAMP))
}

/// Lets `wasm-pack` find Debian's compiler when it is called by hand in crate/, where rustup's would come first.
fn use_by_hand() -> Result<()> {
    if ask(command("rustup").arg("--version")).is_none() {
        return Ok(());
    }
    run(command("rustup").args(["toolchain", "link", LINKED, "/usr"]))?;
    run(command("rustup").args(["override", "set", LINKED, "--path"]).arg(workspace::path("crate")))
}
