//! Finds and unpacks the recorded files.

use std::io::Read;
use std::path::{Path, PathBuf};

/// tests/golden/text
pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/text")
}

/// A folder of ../shared/refs next to the repository, if it exists.
pub fn refs(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = root
        .ancestors()
        .map(|dir| dir.join("shared/refs").join(name))
        .find(|dir| dir.is_dir());
    if found.is_none() {
        println!("shared/refs/{name} is not here: only the committed files are compared");
    }
    found
}

/// The bytes of a file, `.gz` and `.xz` unpacked.
pub fn read(path: &Path) -> Vec<u8> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("gz") => {
            let file =
                std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let mut out = Vec::new();
            flate2::read::GzDecoder::new(file)
                .read_to_end(&mut out)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            out
        }
        Some("xz") => {
            let run = std::process::Command::new("xz")
                .arg("-dc")
                .arg(path)
                .output();
            let run = run.unwrap_or_else(|e| panic!("xz is needed for {}: {e}", path.display()));
            assert!(
                run.status.success(),
                "xz: {}",
                String::from_utf8_lossy(&run.stderr)
            );
            run.stdout
        }
        _ => std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
    }
}

/// The entries of a folder, sorted.
pub fn list(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut out: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    out.sort();
    out
}
