//! Audio codec decoder: codes to samples, in chunks with the same samples as a single pass.

use super::codec_files;
use crate::arch::{self, LoadConfig};
use crate::audio::fsq::{CONTEXT_FRAMES, dequantize};
use crate::exec::{ModelFiles, RowRunner, RunOptions, flatten_convolutions};
use crate::format::Dtype;
use crate::gpu::Gpu;
use crate::hub::Source;
use crate::ir::Graph;
use crate::{Error, Result};
use serde_json::Value;

/// Maximum frames decoded at once, including context frames.
const MAX_DECODE_FRAMES: usize = 64;

/// A loaded codec decoder.
pub struct AudioCodec {
    /// Sample rate in Hz.
    pub rate: u32,
    /// Samples per frame.
    pub hop: usize,
    /// Codes per frame.
    pub groups: usize,
    /// Quantization levels of each dimension of a code.
    pub levels: Vec<u32>,
    runner: RowRunner,
}

/// Open files of a codec decoder.
pub(super) struct CodecFiles {
    files: ModelFiles,
    graph: Graph,
    levels: Vec<u32>,
    groups: usize,
    rate: u32,
}

impl CodecFiles {
    /// Opens the files of a codec decoder: safetensors or a NeMo archive.
    ///
    /// # Errors
    /// Errors of the files or the configuration.
    pub async fn open(source: &Source) -> Result<Self> {
        let fault = |reason: String| Error::Config {
            file: "config.json".into(),
            reason,
        };
        let mut files = codec_files::open_codec(source).await?;
        flatten_convolutions(&mut files.weights);
        let mut config = files.config.json().clone();
        if config.get("model_type").and_then(Value::as_str) != Some(arch::CODEC_MODEL_TYPE) {
            // Published configurations lack fields that the tensors imply.
            config = arch::codec_config(&config, &files.checkpoint)?;
            let stored = files
                .checkpoint
                .get("vector_quantizer.fsqs.0.num_levels")
                .filter(|t| t.dtype == Dtype::I32);
            if let (Some(tensor), None) = (stored, config.get("num_levels")) {
                let file = &files.checkpoint.files[tensor.file].name;
                let bytes = source.read_range(file, tensor.range.clone()).await?;
                let levels = bytes
                    .chunks_exact(4)
                    .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                config["num_levels"] = levels.collect::<Vec<u32>>().into();
            }
        }
        let config = LoadConfig::from(config);
        let graph = arch::codec_graph(&config)?;
        let number = |name: &str, fallback: u64| {
            config.get(name).and_then(Value::as_u64).unwrap_or(fallback)
        };
        let levels: Vec<u32> = match config.get("num_levels").and_then(Value::as_array) {
            Some(list) => list
                .iter()
                .filter_map(|n| n.as_u64().map(|n| n as u32))
                .collect(),
            None => vec![9, 8, 8, 7],
        };
        let cols = graph.inputs[0].cols;
        let groups = number("num_groups", (cols / levels.len().max(1)) as u64) as usize;
        if levels.iter().any(|n| !(2..=4096).contains(n)) || groups * levels.len() != cols {
            return Err(fault(format!(
                "{groups} groups of {} levels do not give {cols} input columns",
                levels.len()
            )));
        }
        let rate = number("sample_rate", 22_050) as u32;
        Ok(Self {
            files,
            graph,
            levels,
            groups,
            rate,
        })
    }

    /// Adds the weights to the progress total.
    pub fn add_to_progress(&self, source: &Source) {
        self.files.add_to_progress(source, &[&self.graph]);
    }

    /// Loads the weights.
    ///
    /// # Errors
    /// Errors of the files or the device.
    pub async fn load(self, gpu: &Gpu, source: &Source, options: RunOptions) -> Result<AudioCodec> {
        let Self {
            files,
            graph,
            levels,
            groups,
            rate,
        } = self;
        let side = RowRunner::load(gpu, source, &files, (&graph, None), options).await?;
        Ok(AudioCodec {
            rate,
            hop: side.rows_of(1),
            groups,
            levels,
            runner: side,
        })
    }
}

impl AudioCodec {
    /// Loads a codec decoder.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub async fn load(gpu: &Gpu, source: &Source, options: RunOptions) -> Result<Self> {
        CodecFiles::open(source)
            .await?
            .load(gpu, source, options)
            .await
    }

    /// Number of codes per group.
    pub fn codes_per_group(&self) -> u32 {
        self.levels.iter().product()
    }

    /// GPU bytes of the weights.
    pub fn bytes(&self) -> u64 {
        self.runner.bytes()
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.runner.parameters()
    }

    /// Decodes `codes`, `[frames, groups]` from the first frame on, and returns the samples of the
    /// frames from `first` on.
    ///
    /// # Errors
    /// `Request` for a code out of range; `NotFinite`; errors of the device.
    pub async fn decode(&mut self, gpu: &Gpu, codes: &[u32], first: usize) -> Result<Vec<f32>> {
        let frames = codes.len() / self.groups;
        let most = self.codes_per_group();
        if let Some(code) = codes.iter().find(|code| **code >= most) {
            let reason = format!(
                "code {code} is not below this codec's {most} codes. Use codes of this codec."
            );
            return Err(Error::Request {
                parameter: "codes".into(),
                reason,
            });
        }
        let mut samples = Vec::with_capacity(frames.saturating_sub(first) * self.hop);
        let mut at = first;
        while at < frames {
            let from = at.saturating_sub(CONTEXT_FRAMES);
            let end = frames.min(from + MAX_DECODE_FRAMES);
            let rows: Vec<f32> = codes[from * self.groups..end * self.groups]
                .chunks_exact(self.groups)
                .flat_map(|frame| dequantize(frame, &self.levels))
                .collect();
            // Powers of two, so that few plans are built.
            self.runner
                .prepare(
                    gpu,
                    (end - from).next_power_of_two().min(MAX_DECODE_FRAMES),
                    &Default::default(),
                )
                .await?;
            self.runner.write(gpu, 0, &rows)?;
            self.runner.run(gpu, end - from)?;
            let made = self
                .runner
                .read(gpu, (at - from) * self.hop, (end - at) * self.hop)
                .await?;
            samples.extend(made.iter().map(|s| s.clamp(-1.0, 1.0)));
            at = end;
        }
        Ok(samples)
    }
}
