//! Folders of checkpoints made by tests, and models loaded from folders.

use jerboa::exec::RunOptions;
use jerboa::gpu::DeviceOptions;
use jerboa::task::{Task, TaskModel};
use jerboa_tests::golden;
use pollster::block_on;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A temporary folder, removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty folder of that name.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("jerboa-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }

    /// Writes a file.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for the test");
        std::fs::write(path, bytes).expect("a file for the test");
    }

    /// Copies a file of tests/golden.
    pub fn copy(&self, from: &str, name: &str) {
        self.write(name, std::fs::read(golden::golden(from)).expect(from));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A temporary folder that cannot be removed is no failure.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The real tokenizer of all-MiniLM-L6-v2.
pub fn minilm_tokenizer() -> Vec<u8> {
    let packed = std::fs::read(golden::golden("text/tokenizers/minilm/tokenizer.json.gz"))
        .expect("the tokenizer");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut bytes)
        .expect("gzip");
    bytes
}

/// Loads a folder with the task of its files, or with the given task.
pub fn load(
    path: &Path,
    task: Option<Task>,
    device: &DeviceOptions,
    options: RunOptions,
) -> jerboa::Result<TaskModel> {
    block_on(async {
        let source = golden::open(path).await?;
        TaskModel::load(
            jerboa_tests::open(device),
            &source,
            &path.to_string_lossy(),
            task,
            options,
        )
        .await
    })
}
