//! Golden files: tiny checkpoints with results of transformers.

use jerboa::arch::{EncoderHead, LoadConfig};
use jerboa::exec::{DecodeLoop, DecodeParams, EncoderModel, ModelFiles, RunOptions, Session};
use jerboa::gpu::Gpu;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use std::path::{Path, PathBuf};

/// A folder of tests/golden.
pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(path)
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
        file.tensor(name)
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .data()
            .to_vec()
    }

    /// An F32 tensor.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.tensor(name))
    }

    /// A U8 tensor.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.tensor(name)
    }

    /// An I32 tensor.
    pub fn ints(&self, name: &str) -> Vec<i32> {
        bytemuck::pod_collect_to_vec(&self.tensor(name))
    }

    /// An F16 tensor.
    pub fn halves(&self, name: &str) -> Vec<f32> {
        let values: Vec<u16> = bytemuck::pod_collect_to_vec(&self.tensor(name));
        values
            .into_iter()
            .map(|v| half::f16::from_bits(v).to_f32())
            .collect()
    }

    /// An I16 tensor.
    pub fn shorts(&self, name: &str) -> Vec<i16> {
        bytemuck::pod_collect_to_vec(&self.tensor(name))
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("a safetensors file");
        file.tensor(name)
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .shape()
            .to_vec()
    }

    /// An I64 tensor as numbers of tokens, if it exists.
    pub fn optional_ids(&self, name: &str) -> Option<Vec<u32>> {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("a safetensors file");
        file.tensor(name).is_ok().then(|| self.ids(name))
    }

    /// An I64 tensor as token ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let values: Vec<i64> = bytemuck::pod_collect_to_vec(&self.tensor(name));
        values.into_iter().map(|v| v as u32).collect()
    }
}

/// Computes the hashed numbers of tests/golden/scripts/hashed.py: element i of a tensor is
/// `offset + scale * u(name, i)`.
pub fn hashed(name: &str, count: usize, scale: f32, offset: f32) -> Vec<f32> {
    let seed = name.bytes().fold(0x811c_9dc5u32, |h, b| {
        (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
    });
    let uniform =
        |i: usize| (lowbias32(lowbias32(i as u32) ^ seed) >> 8) as f32 / (1u32 << 23) as f32 - 1.0;
    (0..count).map(|i| offset + scale * uniform(i)).collect()
}

fn lowbias32(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Loads the encoder of a folder, with the modules in their own folders.
pub fn load_encoder(
    gpu: Gpu,
    folder: &Path,
    head: &EncoderHead,
    options: RunOptions,
) -> jerboa::Result<EncoderModel> {
    let modules: Vec<&str> = match head {
        EncoderHead::Vector { dense, .. } => dense.iter().map(|d| d.path.as_str()).collect(),
        _ => Vec::new(),
    };
    pollster::block_on(async {
        let source = open(folder).await?;
        let config = source.read("config.json").await?;
        let config: serde_json::Value = serde_json::from_slice(&config).expect("config.json");
        let config = LoadConfig::from(config);
        let files = ModelFiles::encoder(&source, config, &modules).await?;
        EncoderModel::load(gpu, &source, files, head, None, options).await
    })
}

/// The files of a folder.
pub async fn open(folder: &Path) -> jerboa::Result<Source> {
    let model = ModelRef::parse(&folder.to_string_lossy())?;
    Source::open(
        &model,
        &HubOptions::default(),
        AbortFlag::new(),
        Progress::silent(),
    )
    .await
}

/// Loads the model of a folder.
pub fn load(gpu: Gpu, folder: &Path, options: RunOptions) -> jerboa::Result<Session> {
    pollster::block_on(async {
        let source = open(folder).await?;
        let config = source.read("config.json").await?;
        let config: serde_json::Value = serde_json::from_slice(&config).expect("config.json");
        let config = LoadConfig::from(config);
        Session::load(gpu, &source, config, options).await
    })
}

/// Adds the multi-token-prediction head of tests/golden/mtp to a folder with the model
/// models/qwen3_5, as a second shard.
pub fn add_mtp_head(folder: &Path) {
    let shards = [1, 2].map(|number| format!("model-0000{number}-of-00002.safetensors"));
    std::fs::rename(folder.join("model.safetensors"), folder.join(&shards[0])).expect("a model");
    std::fs::copy(golden("mtp/weights.safetensors"), folder.join(&shards[1])).expect("a copy");
    let mut map = serde_json::Map::new();
    for shard in &shards {
        let Golden(bytes) = Golden::read(&folder.join(shard));
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let names = file.names().into_iter();
        map.extend(names.map(|name| (name.to_string(), shard.as_str().into())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    std::fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .expect("an index");
}

/// Generates greedily after a prompt.
pub fn greedy(session: &mut Session, ids: &[u32], count: usize) -> Vec<u32> {
    pollster::block_on(session.prefill(ids, 0)).expect("prefill");
    go_on(session, count)
}

/// Generates greedily from a session's current state.
pub fn go_on(session: &mut Session, count: usize) -> Vec<u32> {
    let params = DecodeParams::greedy(session.tokens().len(), count);
    pollster::block_on(decode_to_end(session, params))
}

/// Decodes until a stop token or the budget.
pub async fn decode_to_end(session: &mut Session, params: DecodeParams<'_>) -> Vec<u32> {
    let mut decode = DecodeLoop::start(session, params).expect("start");
    let mut tokens = Vec::new();
    loop {
        let next = decode.next(session).await.expect("decode");
        if next.is_empty() {
            break;
        }
        tokens.extend(next);
    }
    decode.finish(session).await.expect("finish");
    tokens
}
