//! Validates shaders with naga, and by rules of this project.

use crate::preprocess;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{env, fs, process};

#[path = "units.rs"]
mod units;

/// Hashes of shader sources that this build or an earlier one validated. Builds for other targets
/// and profiles produce the same sources. Stored in cargo's target folder and discarded when the
/// rules or the naga version change.
pub struct ValidatedShaders {
    file: Option<PathBuf>,
    rules: u64,
    hashes: HashSet<u64>,
    new: bool,
}

impl ValidatedShaders {
    pub fn read(crate_dir: &Path) -> Self {
        let lock = fs::read_to_string(crate_dir.join("../Cargo.lock"));
        let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default());
        // A packaged crate has no lock file, so the naga version is unknown and nothing is cached.
        let target = out
            .ancestors()
            .filter(|folder| folder.join("CACHEDIR.TAG").is_file())
            .last();
        let file = target
            .filter(|_| lock.is_ok())
            .map(|folder| folder.join("valid-shaders"));
        let rules = hash(&(
            include_str!("build.rs"),
            include_str!("shader_checks.rs"),
            include_str!("units.rs"),
            include_str!("variants.rs"),
            include_str!("src/device/preprocess.rs"),
            lock.unwrap_or_default(),
        ));
        let mut kept = file
            .as_ref()
            .and_then(|file| fs::read(file).ok())
            .unwrap_or_default()
            .into_iter();
        let mut next = || {
            (0..8)
                .map(|_| kept.next())
                .collect::<Option<Vec<u8>>>()?
                .try_into()
                .ok()
                .map(u64::from_le_bytes)
        };
        let hashes = if next() == Some(rules) {
            std::iter::from_fn(next).collect()
        } else {
            HashSet::new()
        };
        Self {
            file,
            rules,
            hashes,
            new: false,
        }
    }

    /// Whether the source was validated before.
    fn has(&self, source: &str) -> bool {
        self.hashes.contains(&hash(source))
    }

    fn add(&mut self, source: &str) {
        self.new |= self.hashes.insert(hash(source));
    }

    /// Writes the cache. A failed write is ignored because the cache can be rebuilt.
    pub fn write(&self) {
        let Some(file) = self.file.as_ref().filter(|_| self.new) else {
            return;
        };
        let bytes: Vec<u8> = std::iter::once(&self.rules)
            .chain(&self.hashes)
            .flat_map(|hash| hash.to_le_bytes())
            .collect();
        let fresh = file.with_extension(process::id().to_string());
        if fs::write(&fresh, bytes).is_ok() && fs::rename(&fresh, file).is_err() {
            let _ = fs::remove_file(&fresh);
        }
    }

    /// Validates one variant unless the same source was validated before; unused constants do not
    /// change the source.
    pub fn validate(
        &mut self,
        name: &str,
        text: &str,
        flags: &[&str],
        consts: &preprocess::Constants<'_>,
    ) -> Result<(), String> {
        let has = |f: &str| flags.contains(&f);
        let body = preprocess::expand(text, &has, consts)
            .map_err(|e| format!("shaders: kernel {name} {flags:?}: {e}"))?;
        let label = format!("kernel {name} {flags:?} {consts:?}");
        // naga does not parse the browsers' subgroup matrix extensions. Both extension names lower to
        // the same source.
        let browsers = has("CHROMIUM") || has("STANDARD");
        let source = preprocess::complete(browsers, &has, consts, &body);
        let source = if browsers {
            units::lower_matrix_dialect(&source).map_err(|e| format!("{label}: {e}"))?
        } else {
            source
        };
        if self.has(&source) {
            return Ok(());
        }
        let module = naga::front::wgsl::parse_str(&source)
            .map_err(|e| format!("{label}:\n{}", e.emit_to_string(&source)))?;
        naga::valid::Validator::new(
            naga::valid::ValidationFlags::all(),
            naga::valid::Capabilities::all(),
        )
        .validate(&module)
        .map_err(|e| format!("{label}:\n{}", e.emit_to_string(&source)))?;
        // WebKit miscompiles select() when its result reaches a store, as almost every value does, so
        // no shader may use it.
        let functions = module
            .entry_points
            .iter()
            .map(|e| &e.function)
            .chain(module.functions.iter().map(|(_, f)| f));
        let mut expressions = functions.flat_map(|f| f.expressions.iter());
        if expressions.any(|(_, e)| matches!(e, naga::Expression::Select { .. })) {
            return Err(format!(
                "{label}: select() is miscompiled by WebKit; use if, an index or arithmetic instead"
            ));
        }
        let storage = preprocess::bindings(&body)
            .iter()
            .filter(|b| b.access != preprocess::Access::Uniform)
            .count();
        if storage > 8 {
            return Err(format!(
                "{label}: {storage} storage buffers; WebGPU guarantees 8"
            ));
        }
        self.add(&source);
        Ok(())
    }
}

fn hash<T: Hash + ?Sized>(what: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
