//! Golden files: tiny checkpoints with what transformers computed on them.

use jerboa::exec::{Model, RunOptions};
use jerboa::gpu::Gpu;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use std::path::{Path, PathBuf};

/// A folder of tests/golden.
pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(path)
}

/// The tensors of one golden.safetensors.
pub struct Golden(Vec<u8>);

impl Golden {
    /// Reads a file.
    pub fn read(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn tensor(&self, name: &str) -> Vec<u8> {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("a safetensors file");
        file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data().to_vec()
    }

    /// An F32 tensor.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.tensor(name))
    }

    /// An I64 tensor as token ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let values: Vec<i64> = bytemuck::pod_collect_to_vec(&self.tensor(name));
        values.into_iter().map(|v| v as u32).collect()
    }
}

/// Loads the model of a folder.
pub fn load(gpu: Gpu, folder: &Path, options: RunOptions) -> jerboa::Result<Model> {
    pollster::block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let source = Source::open(&model, &HubOptions::default(), AbortFlag::new(), Progress::none()).await?;
        let config = source.read("config.json").await?;
        let config = serde_json::from_slice(&config).expect("config.json");
        Model::load(gpu, &source, config, options).await
    })
}
