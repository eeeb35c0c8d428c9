//! Builds the npm package in dist/jerboa, and the demo page with its documentation in dist/www.
//! Skips stages whose inputs are unchanged.

use crate::bindings::{self, Purpose};
use crate::command::{command, print_heading, run, run_step};
use crate::manifest::{self, Manifest};
use crate::setup::{self, TARGET, Toolchain};
use crate::stamp::{files, unless_fresh};
use crate::{npm, sizes, workspace};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Sources of every WebAssembly module besides its own folders.
const MODULE_INPUTS: [&str; 5] = [
    "Cargo.toml",
    "Cargo.lock",
    ".cargo/config.toml",
    "build.toml",
    "xtask/src/bindings.rs",
];
/// Further sources of the npm package.
const FACADE_INPUTS: [&str; 9] = [
    "pkg-template",
    "xtask/src/package.rs",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "package-lock.json",
    "target/xtask/module.stamp",
    "target/xtask/grammar.stamp",
    "target/xtask/train.stamp",
    "Cargo.toml",
];
/// Sources of the demo page.
const PAGE_INPUTS: [&str; 3] = ["www", "package-lock.json", "target/xtask/package.stamp"];

/// Sources of the documentation site.
const DOCS_INPUTS: [&str; 5] = [
    "www/docs",
    "www/public/favicon.svg",
    "docs/architecture.md",
    "pkg-template/src",
    "pkg-template/tsconfig.json",
];

/// `cargo xtask build`.
pub fn run_task() -> Result<()> {
    let toolchain = setup::for_build()?;
    build(toolchain)
}

/// Builds the package, the documentation and the page; fails if the package exceeds its size budget.
pub fn build(toolchain: Toolchain) -> Result<()> {
    let manifest = manifest::read()?;
    let engine = build_module(toolchain, &manifest, &ENGINE)?;
    let grammar = build_module(toolchain, &manifest, &GRAMMAR)?;
    let train = build_module(toolchain, &manifest, &TRAIN)?;
    let package = workspace::package();
    unless_fresh(
        "package",
        &FACADE_INPUTS,
        "",
        &package.join("index.js"),
        || {
            run_step("filling the npm package: dist/jerboa", || {
                assemble([&engine, &grammar], &train, &package)
            })
        },
    )?;
    sizes::check(&package, &manifest.budget)?;
    let docs = unless_fresh(
        "docs",
        &DOCS_INPUTS,
        &env::var("JERBOA_DOCS_BASE").unwrap_or_default(),
        &docs_site().join("index.html"),
        || {
            npm::install_docs()?;
            run_step("building the documentation: dist/docs", || {
                run(command("npm")
                    .args(["run", "--silent", "build"])
                    .current_dir(workspace::path("www/docs")))
            })
        },
    )?;
    let page = unless_fresh(
        "page",
        &PAGE_INPUTS,
        "",
        &workspace::page().join("index.html"),
        || {
            run_step("bundling the demo page: dist/www", || {
                run(npm::program("vite/bin/vite.js")
                    .arg("build")
                    .current_dir(workspace::path("www")))
            })
        },
    )?;
    if page || docs {
        // Vite empties dist/www, so the site is copied into every new page.
        copy_folder(&docs_site(), &workspace::page().join("docs"))?;
    } else {
        print_heading("dist/ is up to date");
    }
    Ok(())
}

/// The built documentation site.
fn docs_site() -> PathBuf {
    workspace::path("dist/docs")
}

/// Features of the engine in a page: its default ones without `shader-checks`.
pub const PAGE_FEATURES: &[&str] = &["engine-api"];

/// Flags for cargo that enable these features only.
pub fn only_features(features: &[&str]) -> Vec<String> {
    let mut flags = vec!["--no-default-features".to_owned()];
    flags.extend(manifest::feature_flags(features));
    flags
}

/// A crate that is compiled to WebAssembly.
struct ModuleSource {
    /// Names the stamp and the folder under target/xtask.
    stamp: &'static str,
    /// Name of the crate.
    package: &'static str,
    /// Stem of the module's files.
    stem: &'static str,
    /// Its features.
    features: &'static [&'static str],
    /// Folders of its sources.
    sources: &'static [&'static str],
    /// What is compiled, for the progress lines.
    what: &'static str,
}

const ENGINE: ModuleSource = ModuleSource {
    stamp: "module",
    package: "jerboa",
    stem: "jerboa",
    features: PAGE_FEATURES,
    sources: &["crate", "shaders"],
    what: "the engine",
};

const GRAMMAR: ModuleSource = ModuleSource {
    stamp: "grammar",
    package: "jerboa-grammar",
    stem: "grammar",
    features: &[],
    sources: &["grammar"],
    what: "the grammar module",
};

const TRAIN: ModuleSource = ModuleSource {
    stamp: "train",
    package: "jerboa-train",
    stem: "train",
    features: &[],
    // It has its own build of the engine.
    sources: &["crate", "shaders", "train"],
    what: "the training module",
};

/// Compiles and shrinks a module unless it is up to date; returns its folder.
fn build_module(
    toolchain: Toolchain,
    manifest: &Manifest,
    source: &ModuleSource,
) -> Result<PathBuf> {
    let folder = workspace::path("target/xtask").join(source.stamp);
    let wasm = folder.join(format!("{}_bg.wasm", source.stem));
    unless_fresh(
        source.stamp,
        &[&MODULE_INPUTS, source.sources].concat(),
        &toolchain.describe(),
        &wasm,
        || {
            let what = source.what;
            run_step(
                &format!("compiling {what} to WebAssembly (minutes the first time)"),
                || compile(toolchain, manifest, source, &folder),
            )?;
            run_step(&format!("shrinking {what} with wasm-opt"), || {
                shrink(manifest, &wasm)
            })
        },
    )?;
    Ok(folder)
}

fn compile(
    toolchain: Toolchain,
    manifest: &Manifest,
    source: &ModuleSource,
    folder: &Path,
) -> Result<()> {
    let settings = &manifest.package;
    run(toolchain
        .command("cargo")
        .args([
            "build",
            "--lib",
            "--package",
            source.package,
            "--target",
            TARGET,
        ])
        .args(["--profile", &settings.profile])
        .args(only_features(source.features))
        .env(
            "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS",
            remap_path_flags(),
        )
        .current_dir(workspace::root()))?;
    let library = source.package.replace('-', "_");
    let built = format!("target/{TARGET}/{}/{library}.wasm", settings.profile);
    bindings::write(
        &workspace::path(&built),
        source.stem,
        folder,
        &Purpose::Package,
    )
}

/// Compiler flags that strip build folders from the module, where panic messages contain file
/// paths.
fn remap_path_flags() -> String {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let registries = home
        .and_then(|home| fs::read_dir(home.join("registry/src")).ok())
        .into_iter()
        .flatten()
        .flatten();
    let flag = |from: &Path| format!("--remap-path-prefix={}/=", from.display());
    registries
        .map(|registry| flag(&registry.path()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn shrink(manifest: &Manifest, wasm: &Path) -> Result<()> {
    let small = wasm.with_extension("small.wasm");
    run(npm::program("binaryen/bin/wasm-opt")
        .args(&manifest.package.wasm_opt)
        .arg(wasm)
        .arg("-o")
        .arg(&small))?;
    fs::rename(&small, wasm).with_context(|| format!("renaming {}", small.display()))
}

/// Entry scripts that pages, bundlers and tests load: package.json's exports, and the engine's own.
const ENTRIES: [&str; 6] = [
    "index.js",
    "worker.js",
    "jerboa.js",
    "grammar.js",
    "memory/index.js",
    "memory/file.js",
];

/// Entry scripts on top of the package, for frameworks and workers: each loads only where it is
/// imported, and takes the package itself from index.js.
pub const INTEGRATIONS: [&str; 7] = [
    "ai",
    "langchain",
    "layers",
    "react",
    "router",
    "tabs",
    "train",
];

/// Folder of the training's entry, worker and module.
pub const TRAIN_FOLDER: &str = "train";

/// The training's worker: bundled apart, so that no code of a page's first load moves for it.
const TRAIN_ENTRIES: [&str; 1] = ["train/worker.js"];

/// Folder of the code that the integrations share.
pub const INTEGRATIONS_SHARED: &str = "shared";

/// Folder of the scripts for Node.
pub const NODE_FOLDER: &str = "node";

/// Entry scripts for Node: bundled apart, so that nothing of them is in a page's scripts.
const NODE_ENTRIES: [&str; 5] = [
    "node.js",
    "node-worker.js",
    "cli.js",
    "memory/index.js",
    "memory/file.js",
];

/// Assembles module, compiled facade and pkg-template files in the layout of the published package.
fn assemble(modules: [&Path; 2], train: &Path, package: &Path) -> Result<()> {
    let facade = workspace::path("target/xtask/facade");
    for folder in [&facade, package] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
        }
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    run(npm::program("typescript/bin/tsc")
        .arg("-p")
        .arg(workspace::path("pkg-template"))
        .arg("--outDir")
        .arg(&facade))?;
    let ends = |file: &Path, name: &str| file.to_string_lossy().ends_with(name);
    let [engine, grammar] = modules;
    for (module, folder) in [(engine, ""), (grammar, ""), (train, TRAIN_FOLDER)] {
        for file in files(module)? {
            let root = if ends(&file, ".wasm") {
                package
            } else {
                &facade
            };
            copy(&file, &root.join(folder).join(file.strip_prefix(module)?))?;
        }
    }
    for file in files(&facade)?.iter().filter(|file| ends(file, ".d.ts")) {
        copy(file, &package.join(file.strip_prefix(&facade)?))?;
    }
    bundle(&facade, package, &ENTRIES)?;
    bundle(&facade, package, &TRAIN_ENTRIES)?;
    lift_asset_urls(&facade)?;
    bundle(&facade, &package.join(NODE_FOLDER), &NODE_ENTRIES)?;
    bundle_integrations(&facade, package)?;
    for name in INTEGRATIONS {
        // In Node an integration finds the host that the package's own entry sets.
        let entry = format!("import \"./node.js\";\nexport * from \"../{name}/index.js\";\n");
        let path = package.join(NODE_FOLDER).join(format!("{name}.js"));
        fs::write(&path, entry).with_context(|| format!("writing {}", path.display()))?;
    }
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        copy(&workspace::path(name), &package.join(name))?;
    }
    copy(
        &workspace::path("pkg-template/README.md"),
        &package.join("README.md"),
    )?;
    let description = workspace::path("pkg-template/package.json");
    let description = fs::read_to_string(&description)
        .with_context(|| format!("reading {}", description.display()))?;
    fs::write(package.join("package.json"), with_version(&description)?)?;
    Ok(())
}

/// Bundles one minified script per entry and one for shared code, with source maps. Fewer requests
/// than one script per source file, and 20% fewer bytes.
fn bundle(facade: &Path, folder: &Path, entries: &[&str]) -> Result<()> {
    run(esbuild(facade, folder)
        .args(["--external:node:*", "--chunk-names=[hash]"])
        .args(entries.iter().map(|entry| facade.join(entry))))
}

/// The package's own files that modules of the facade name by URL.
const ASSET_URLS: [(&str, &str); 3] = [
    ("backend.js", "./worker.js"),
    ("jerboa.js", "jerboa_bg.wasm"),
    ("grammar.js", "grammar_bg.wasm"),
];

/// Points URLs of the package's files one folder up, where the scripts for Node find them: bundlers
/// resolve each `new URL(…, import.meta.url)`, also in scripts that a server renders with.
fn lift_asset_urls(facade: &Path) -> Result<()> {
    for (script, asset) in ASSET_URLS {
        let path = facade.join(script);
        let code =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let url = |path: &str| format!("new URL({path}, import.meta.url)");
        let name = asset.trim_start_matches("./");
        let from = [format!("\"{asset}\""), format!("'{asset}'")].map(|path| url(&path));
        let Some(from) = from.iter().find(|from| code.contains(*from)) else {
            bail!("{script} has no URL of {asset}")
        };
        fs::write(&path, code.replace(from, &url(&format!("\"../{name}\""))))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// The bundler of modules of the facade, which writes to `folder`.
fn esbuild(facade: &Path, folder: &Path) -> Command {
    // It installs a native binary, not a node script.
    let mut command = command(npm::path("esbuild/bin/esbuild"));
    command
        .args([
            "--bundle",
            "--splitting",
            "--format=esm",
            "--target=es2022",
            "--minify",
            "--sourcemap",
            "--log-level=warning",
        ])
        .args([
            format!("--outdir={}", folder.display()),
            format!("--outbase={}", facade.display()),
        ]);
    command
}

/// Bundles the integrations, which leave index.js and the packages of their frameworks to the page.
/// Written over the facade, so that the paths to index.js stay as they are.
fn bundle_integrations(facade: &Path, package: &Path) -> Result<()> {
    let entries = INTEGRATIONS.map(|name| facade.join(name).join("index.js"));
    run(esbuild(facade, facade)
        .args([
            "--packages=external",
            // The package itself, which every source and bundle of an integration is one folder
            // below.
            "--external:*./index.js",
            "--allow-overwrite",
        ])
        .arg(format!("--chunk-names={INTEGRATIONS_SHARED}/[hash]"))
        .args(&entries))?;
    let shared = files(&facade.join(INTEGRATIONS_SHARED)).unwrap_or_default();
    let maps = entries.iter().map(|entry| entry.with_extension("js.map"));
    for file in entries.iter().cloned().chain(maps).chain(shared) {
        copy(&file, &package.join(file.strip_prefix(facade)?))?;
    }
    Ok(())
}

/// Inserts the crate's version, so that the version number exists only in Cargo.toml.
fn with_version(description: &str) -> Result<String> {
    let line = description
        .lines()
        .find(|line| line.trim_start().starts_with("\"version\":"));
    let Some(line) = line else {
        bail!("pkg-template/package.json has no line \"version\"")
    };
    let version = workspace::locked_version("jerboa")?;
    Ok(description.replacen(line, &format!("  \"version\": \"{version}\","), 1))
}

/// Replaces a folder by a copy of another.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("removing {}", to.display()))?;
    }
    for file in files(from)? {
        copy(&file, &to.join(file.strip_prefix(from)?))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::copy(from, to)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}
