//! Audio encoder of an encoder-decoder model: samples in, encoder states and cross-attention keys
//! and values out. The features (log-mel or raw samples) come from the family's frontend
//! description.

use super::batch::MAX_SEQUENCES;
use super::files::ModelFiles;
use super::options::RunOptions;
use super::row_runner::RowRunner;
use super::step::{Buffers, STATE_BYTES, rows_bytes, state_words};
use crate::arch::speech::{AudioFrontend, SpeechGraphs};
use crate::audio::mel;
use crate::gpu::{Backend, Buffer, BufferUsage, Command, DispatchDesc, Gpu, Program};
use crate::hub::Source;
use crate::ir::InputId;
use crate::kernels::audio_conv::Mel;
use crate::kernels::matmul::View;
use crate::plan::Slot;
use crate::{Error, Result};

/// Minimum rows of audio that a step is built for.
const MIN_ENCODER_ROWS: usize = 1024;

/// An encoder with the cross-attention keys and values computed from its rows.
pub struct AudioEncoder {
    /// The audio frontend and its limits.
    pub frontend: AudioFrontend,
    encoder: RowRunner,
    keys: RowRunner,
    values: RowRunner,
    /// Cross-attention buffers that the decoder's session reads.
    cross_kv: Buffers,
    states: Buffer,
    features: Option<MelFrontend>,
    /// Entries of `Slot::Memory`.
    max_query_rows: usize,
    /// Rows of the last encoded audio.
    rows: usize,
}

/// Computes log-mel features on the device.
struct MelFrontend {
    samples: Buffer,
    cursor: Buffer,
    program: Program,
}

impl AudioEncoder {
    /// Loads the encoder of a model; `files` must be flattened (see
    /// [`flatten_convolutions`](super::flatten_convolutions)).
    ///
    /// # Errors
    /// Errors of the checkpoint, the source or the device.
    pub async fn load(
        gpu: &Gpu,
        source: &Source,
        files: &ModelFiles,
        speech: &SpeechGraphs,
        options: RunOptions,
    ) -> Result<Self> {
        files.add_to_progress(
            source,
            &[
                &speech.encoder,
                &speech.keys,
                &speech.values,
                &speech.decoder,
            ],
        );
        let load = |graph| RowRunner::load(gpu, source, files, (graph, None), options);
        let encoder = load(&speech.encoder).await?;
        let keys = load(&speech.keys).await?;
        let values = load(&speech.values).await?;
        let input = |name: &str| {
            let found = speech
                .decoder
                .inputs
                .iter()
                .position(|input| input.name == name);
            found
                .map(|index| Slot::Input(InputId(index)))
                .ok_or_else(|| Error::Internal(format!("no input {name}")))
        };
        let most = speech.max_states;
        let max_query_rows = options.prefill_chunk(gpu.caps()).max(MAX_SEQUENCES);
        let mut memory = Buffers::new();
        for (name, side) in [("keys", &keys), ("values", &values)] {
            memory.insert(
                input(name)?,
                gpu.buffer(name, rows_bytes(most, side.cols()), BufferUsage::Storage)?,
            );
        }
        memory.insert(
            Slot::CrossSpans,
            gpu.buffer("memory", max_query_rows as u64 * 8, BufferUsage::Storage)?,
        );
        let states = gpu.buffer(
            "states",
            rows_bytes(most, speech.state_cols),
            BufferUsage::Storage,
        )?;
        let mut loaded = Self {
            frontend: speech.frontend,
            encoder,
            keys,
            values,
            cross_kv: memory,
            states,
            features: None,
            max_query_rows,
            rows: 0,
        };
        let key_slot = input("keys")?;
        let value_slot = input("values")?;

        for (side, slot) in [
            (&mut loaded.keys, key_slot),
            (&mut loaded.values, value_slot),
        ] {
            let given = [
                (Slot::Input(InputId(0)), loaded.states.clone()),
                (Slot::Output, loaded.cross_kv[&slot].clone()),
            ];
            side.prepare(gpu, most, &given.into()).await?;
        }
        Ok(loaded)
    }

    /// The cross-attention buffers to share with a decoder session.
    pub fn cross_kv(&self) -> &Buffers {
        &self.cross_kv
    }

    /// Number of encoder rows of the last audio.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of weights.
    pub fn bytes(&self) -> u64 {
        self.encoder.bytes() + self.keys.bytes() + self.values.bytes()
    }

    /// Number of weight elements.
    pub fn parameters(&self) -> u64 {
        self.encoder.parameters() + self.keys.parameters() + self.values.parameters()
    }

    /// Encodes audio at 16 kHz and returns the number of encoder rows. Sessions that share
    /// [`Self::cross_kv`] see the new rows.
    ///
    /// # Errors
    /// `Request` for audio that is too short for one row, or longer than the model accepts.
    pub async fn encode(&mut self, gpu: &Gpu, samples: &[f32]) -> Result<usize> {
        self.encode_from(gpu, samples, 0).await
    }

    /// As [`Self::encode`], from the frame `first` of [`mel::HOP`] samples on. Log-mel features are
    /// those of all samples, padded with silence to the model's length; zeros follow them.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub async fn encode_from(&mut self, gpu: &Gpu, samples: &[f32], first: usize) -> Result<usize> {
        let refuse = |reason: String| {
            Err(Error::Request {
                parameter: "audio".into(),
                reason,
            })
        };
        let longest = self.frontend.max_samples();
        if samples.len() > longest {
            return refuse(format!(
                "{} samples exceed the model's limit of {longest}. Split the audio.",
                samples.len()
            ));
        }
        let rest = samples.get(first * mel::HOP..).unwrap_or_default();
        let inside = self.frontend.rows(rest.len());
        let rows = self.encoder.rows_of(inside);
        if rows == 0 {
            return refuse(format!(
                "{} samples are too short: less than a tenth of a second. Pass longer audio.",
                rest.len()
            ));
        }
        let given = [(Slot::Output, self.states.clone())].into();
        // Other lengths will follow: round up so that steps are rebuilt only a few times.
        let room = inside
            .next_power_of_two()
            .max(MIN_ENCODER_ROWS)
            .min(self.frontend.rows(longest));
        self.encoder.prepare(gpu, room, &given).await?;
        match self.frontend {
            AudioFrontend::Samples {
                cols,
                use_partial_row: partial,
                ..
            } => {
                let whole = rest.len() / cols * cols;
                let mut all =
                    rest[..if partial { rest.len() } else { whole }.min(inside * cols)].to_vec();
                all.resize(inside * cols, 0.0);
                self.encoder.write(gpu, 0, &all)?;
            }
            AudioFrontend::Mel { mels, frames } => {
                self.compute_mel(gpu, samples, first, (mels, frames))
                    .await?;
            }
        }
        self.encoder.run(gpu, inside)?;
        self.keys.run(gpu, rows)?;
        self.values.run(gpu, rows)?;
        let seen = vec![[0u32, rows as u32]; self.max_query_rows];
        gpu.write(
            &self.cross_kv[&Slot::CrossSpans],
            0,
            bytemuck::cast_slice(&seen),
        );
        self.rows = rows;
        Ok(rows)
    }

    /// Computes the features of samples from the frame `first` on into the encoder's input.
    async fn compute_mel(
        &mut self,
        gpu: &Gpu,
        samples: &[f32],
        first: usize,
        (mels, frames): (usize, usize),
    ) -> Result<()> {
        // The encoder has a fixed feature length, so its input buffer stays valid.
        let features = match self.features.take() {
            Some(features) => features,
            None => MelFrontend::new(gpu, mels, frames, self.encoder.input()?).await?,
        };
        let mut rows = samples.to_vec();
        rows.resize(rows.len().next_multiple_of(mel::HOP), 0.0);
        gpu.write(&features.samples, 0, bytemuck::cast_slice(&rows));
        let count = rows.len() / mel::HOP;
        gpu.write(
            &features.cursor,
            0,
            bytemuck::cast_slice(&state_words(first, count, 0, 0)),
        );
        gpu.submit(&[Command::Run {
            program: &features.program,
            grids: None,
        }])?;
        self.features = Some(features);
        Ok(())
    }

    /// Reads the encoder rows of the last audio, `[rows, states]`.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity.
    pub async fn states(&self, gpu: &Gpu) -> Result<Vec<f32>> {
        self.encoder.read(gpu, 0, self.rows).await
    }

    /// Reads the cross-attention keys of all decoder layers, `[rows, layers * heads * columns]`.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity.
    pub async fn keys(&self, gpu: &Gpu) -> Result<Vec<f32>> {
        self.keys.read(gpu, 0, self.rows).await
    }
}

impl MelFrontend {
    async fn new(gpu: &Gpu, mels: usize, frames: usize, out: &Buffer) -> Result<Self> {
        let upload = |values: &[f32]| -> Result<Buffer> {
            let buffer = gpu.buffer("mel", values.len() as u64 * 4, BufferUsage::Storage)?;
            gpu.write(&buffer, 0, bytemuck::cast_slice(values));
            Ok(buffer)
        };
        let samples = gpu.buffer(
            "samples",
            (frames * mel::HOP * 4) as u64,
            BufferUsage::Storage,
        )?;
        let cursor = gpu.buffer("cursor", STATE_BYTES, BufferUsage::Storage)?;
        let kernel = Mel {
            mels: mels as u32,
            frames: frames as u32,
            table: upload(&mel::window_table().concat())?,
            filters: upload(&mel::filters(mels))?,
            peaks: gpu.buffer("mel", frames as u64 * 4, BufferUsage::Storage)?,
        };
        let view = |buffer: &Buffer, stride: usize| View {
            buffer: buffer.clone(),
            offset: 0,
            stride: stride as u32,
        };
        let x = view(&samples, mel::HOP);
        let out = view(out, mels.next_multiple_of(4));

        let mut steps = Vec::new();
        for launch in kernel.launches("mel", &x, cursor.clone(), &out) {
            let shader = launch.variant.shader(cfg!(target_arch = "wasm32"))?;
            let made = gpu.pipelines(std::slice::from_ref(&shader)).await?.pop();
            let pipeline = made.ok_or_else(|| Error::Internal("mel: no pipeline".into()))?;
            let resolved = launch.resolve(&shader)?;
            let buffers = resolved.buffers;
            let params = resolved.params;

            steps.push(DispatchDesc {
                label: launch.label.clone(),
                pipeline,
                buffers,
                params,
                grid: launch.grid.at(1),
            });
        }
        Ok(Self {
            samples,
            cursor,
            program: gpu.program("mel", steps)?,
        })
    }
}
