//! Generates checkpoints with random weights from model shapes, with the same shapes and encodings
//! as the bench page. The speed of a dense model does not depend on its weights.

use half::f16;
use jerboa::ir::{Graph, WeightKind};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

const SHAPES: &str = include_str!("../../../../www/bench/shapes.json");
const SPEECH_SHAPES: &str = include_str!("../../../../www/bench/speech-shapes.json");
/// Bytes of the random block from which all weights are cut.
const BLOCK_BYTES: usize = 16 << 20;
/// Weights that share a scale and a bias.
const GROUP_SIZE: usize = 64;
/// Standard deviation of the weights, as in transformers' initialization: logits stay finite and
/// differ from each other.
const STANDARD_DEVIATION: f32 = 0.02;

/// A temporary folder, removed on drop.
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // A folder that cannot be removed stays in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Byte blocks from which tensors are filled.
struct RandomBlocks {
    random: Vec<u8>,
    /// Four ternary weights per byte, packed as in BitNet.
    ternary: Vec<u8>,
    /// MXFP4 exponents that give FP4 codes the same spread as the other weights.
    exponents: Vec<u8>,
    normal: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    ones: Vec<u8>,
    zeros: Vec<u8>,
}

impl RandomBlocks {
    fn new() -> Self {
        let mut state = 88_172_645_463_325_252u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        };
        let f16_bytes = |value: &mut dyn FnMut() -> f32, count: usize| -> Vec<u8> {
            (0..count)
                .flat_map(|_| f16::from_f32(value()).to_le_bytes())
                .collect()
        };
        let random: Vec<u8> = (0..BLOCK_BYTES / 4)
            .flat_map(|_| next().to_le_bytes())
            .collect();
        let digits = |byte: u8| {
            (0..4)
                .map(|i| (((byte >> (2 * i)) & 3) % 3) << (2 * i))
                .sum()
        };
        let ternary = random.iter().map(|byte| digits(*byte)).collect();
        let exponents = random[..1 << 20]
            .iter()
            .map(|byte| 119 + byte % 3)
            .collect();
        // The sum of twelve uniform numbers approximates a normal distribution.
        let mut normal = || {
            ((0..12)
                .map(|_| next() as f32 / u32::MAX as f32)
                .sum::<f32>()
                - 6.0)
                * STANDARD_DEVIATION
        };
        let normal = f16_bytes(&mut normal, BLOCK_BYTES / 2);
        let spread = |factor: f32| -> Vec<u8> {
            let mut index = 0u32;
            let mut value = || {
                index = index.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                STANDARD_DEVIATION / 4.61
                    * (0.9 + 0.2 * (index >> 8) as f32 / (1 << 24) as f32)
                    * factor
            };
            f16_bytes(&mut value, 1 << 19)
        };
        let scales = spread(1.0);
        let biases = spread(-7.5);

        Self {
            random,
            ternary,
            exponents,
            normal,
            scales,
            biases,
            ones: f16_bytes(&mut || 1.0, 1 << 19),
            zeros: vec![0; 1 << 20],
        }
    }
}

/// Tensors in file order.
struct TensorFile<'a> {
    header: Map<String, Value>,
    parts: Vec<(&'a [u8], usize)>,
    offset: usize,
}

impl<'a> TensorFile<'a> {
    fn add(&mut self, name: &str, dtype: &str, width: usize, shape: &[usize], block: &'a [u8]) {
        let bytes = shape.iter().product::<usize>() * width;
        let end = self.offset + bytes;
        self.header.insert(
            name.into(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [self.offset, end] }),
        );
        self.parts.push((block, bytes));
        self.offset = end;
    }

    fn matrix(
        &mut self,
        name: &str,
        [rows, cols]: [usize; 2],
        stored: MatrixEncoding,
        blocks: &'a RandomBlocks,
    ) {
        let base = name.trim_end_matches(".weight");
        match stored {
            MatrixEncoding::F16 => self.add(name, "F16", 2, &[rows, cols], &blocks.normal),
            MatrixEncoding::Mlx4 => {
                self.add(name, "U32", 4, &[rows, cols / 8], &blocks.random);
                self.add(
                    &format!("{base}.scales"),
                    "F16",
                    2,
                    &[rows, cols / GROUP_SIZE],
                    &blocks.scales,
                );
                self.add(
                    &format!("{base}.biases"),
                    "F16",
                    2,
                    &[rows, cols / GROUP_SIZE],
                    &blocks.biases,
                );
            }
            MatrixEncoding::Mxfp4 => {
                self.add(
                    &format!("{name}_blocks"),
                    "U8",
                    1,
                    &[rows, cols / 32, 16],
                    &blocks.random,
                );
                self.add(
                    &format!("{name}_scales"),
                    "U8",
                    1,
                    &[rows, cols / 32],
                    &blocks.exponents,
                );
            }
            MatrixEncoding::Ternary => {
                self.add(name, "U8", 1, &[rows / 4, cols], &blocks.ternary);
                self.add(
                    &format!("{base}.weight_scale"),
                    "F16",
                    2,
                    &[1],
                    &blocks.scales,
                );
            }
        }
    }

    /// Writes the safetensors file. `hollow` omits the tensors' bytes (a sparse file).
    fn write(self, file: &Path, hollow: bool) -> io::Result<()> {
        let mut header = Value::Object(self.header).to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let file = File::create(file)?;
        file.set_len((8 + header.len() + self.offset) as u64)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        if hollow {
            return out.flush();
        }
        for (index, (block, bytes)) in self.parts.into_iter().enumerate() {
            // Each tensor starts at another offset of its block, so that no two are equal.
            let start = (index * 7 * 256 * 1024) % block.len();
            let mut left = bytes;
            let pieces = std::iter::once(block.get(start..).unwrap_or(block))
                .chain(std::iter::repeat(block));
            for piece in pieces {
                let piece = piece.get(..left).unwrap_or(piece);
                out.write_all(piece)?;
                left -= piece.len();
                if left == 0 {
                    break;
                }
            }
        }
        out.flush()
    }
}

/// Encoding of a checkpoint's matrices.
#[derive(Clone, Copy, PartialEq)]
enum MatrixEncoding {
    /// f16.
    F16,
    /// MLX's 4-bit affine quantization.
    Mlx4,
    /// MLX 4-bit, with MXFP4 experts as in GPT-OSS.
    Mxfp4,
    /// BitNet's packed ternary weights; embedding tables in f16.
    Ternary,
}

impl MatrixEncoding {
    /// The encoding with the fewest bits that the configuration allows; declares MLX 4-bit in the
    /// configuration.
    fn low_bit(config: &mut Value) -> Self {
        let method = config["quantization_config"]["quant_method"].as_str();
        let stored = match method {
            Some("bitnet") => return Self::Ternary,
            Some("mxfp4") => Self::Mxfp4,
            _ => Self::Mlx4,
        };
        config["quantization"] = json!({ "group_size": GROUP_SIZE, "bits": 4 });
        stored
    }

    /// The encoding of a matrix of this kind.
    fn for_weight(self, kind: WeightKind, cols: usize) -> Self {
        match (self, kind) {
            (_, WeightKind::Router) | (Self::Ternary, WeightKind::Table) => Self::F16,
            (Self::Ternary, _) | (Self::Mxfp4, WeightKind::Experts { .. }) => self,
            (Self::F16, _) => self,
            _ if !cols.is_multiple_of(GROUP_SIZE) => Self::F16,
            _ => Self::Mlx4,
        }
    }
}

/// Writes the checkpoint of a shape into a temporary folder: f16, or the configuration's low-bit
/// encoding (MLX 4-bit by default). `hollow` checkpoints hold zeros and take no disk space.
pub fn make_checkpoint(shape: &str, four_bits: bool, hollow: bool) -> Result<TempFolder, String> {
    let shapes: Map<String, Value> = serde_json::from_str(SHAPES).map_err(|e| e.to_string())?;
    let names = || shapes.keys().cloned().collect::<Vec<_>>().join(", ");
    let known = shapes.get(shape).and_then(|s| s.get("config")).cloned();
    let mut config = match known {
        Some(config) => config,
        None if Path::new(shape).is_file() => {
            let text = std::fs::read(shape).map_err(|e| format!("{shape}: {e}"))?;
            serde_json::from_slice(&text).map_err(|e| format!("{shape}: {e}"))?
        }
        None => {
            return Err(format!(
                "unknown shape '{shape}', and no such config.json. Use one of: {}.",
                names()
            ));
        }
    };
    if config["model_type"] == "bert" {
        return Err(format!(
            "'{shape}' is an embedding model. Use the bench page instead."
        ));
    }
    if config.get("hidden_act").is_none() && config.get("hidden_activation").is_none() {
        config["hidden_act"] = json!("silu");
    }
    config["torch_dtype"] = json!("float16");
    let graph = jerboa::arch::graph(&(&config).into()).map_err(|e| e.to_string())?;
    let stored = if four_bits {
        MatrixEncoding::low_bit(&mut config)
    } else {
        MatrixEncoding::F16
    };
    if !four_bits && let Some(config) = config.as_object_mut() {
        config.remove("quantization_config");
    }
    let name = format!(
        "jerboa-bench-{}-{}",
        std::process::id(),
        shape.replace(['/', '.'], "-")
    );
    let made = TempFolder(std::env::temp_dir().join(name));
    write_checkpoint(made.path(), &config, &[graph], stored, hollow)?;
    Ok(made)
}

/// Writes the f16 checkpoint of a speech model. Its codec goes to the subfolder `codec`.
pub fn make_speech_checkpoint(shape: &str, folder: &Path) -> Result<(), String> {
    let shapes: Map<String, Value> =
        serde_json::from_str(SPEECH_SHAPES).map_err(|e| e.to_string())?;
    let names = || shapes.keys().cloned().collect::<Vec<_>>().join(", ");
    let found = shapes
        .get(shape)
        .ok_or_else(|| format!("unknown shape '{shape}'. Use one of: {}.", names()))?;
    let config = &found["config"];
    let graphs = match jerboa::arch::speech_graphs(&config.into()).map_err(|e| e.to_string())? {
        Some(speech) => vec![speech.decoder, speech.encoder, speech.keys, speech.values],
        None => vec![jerboa::arch::graph(&config.into()).map_err(|e| e.to_string())?],
    };
    write_checkpoint(folder, config, &graphs, MatrixEncoding::F16, false)?;
    let Some(codec) = found.get("codec") else {
        return Ok(());
    };
    let graph = jerboa::arch::codec_graph(&codec.into()).map_err(|e| e.to_string())?;
    write_checkpoint(
        &folder.join("codec"),
        codec,
        &[graph],
        MatrixEncoding::F16,
        false,
    )
}

/// Writes a configuration and random weights for graphs; weights shared by several graphs are
/// written once.
fn write_checkpoint(
    folder: &Path,
    config: &Value,
    graphs: &[Graph],
    stored: MatrixEncoding,
    hollow: bool,
) -> Result<(), String> {
    let blocks = RandomBlocks::new();
    let mut tensors = TensorFile {
        header: Map::new(),
        parts: Vec::new(),
        offset: 0,
    };
    let mut known = BTreeSet::new();
    for weight in graphs.iter().flat_map(|graph| &graph.weights) {
        for (name, rows) in weight
            .parts
            .iter()
            .filter(|part| known.insert(part.0.clone()))
        {
            if matches!(weight.kind, WeightKind::Vector | WeightKind::Order) {
                let block = if name.ends_with("bias") {
                    &blocks.zeros
                } else {
                    &blocks.ones
                };
                tensors.add(name, "F16", 2, &[*rows], block);
            } else {
                let stored = stored.for_weight(weight.kind, weight.cols);
                tensors.matrix(name, [*rows, weight.cols], stored, &blocks);
            }
        }
    }
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(folder.join("config.json"), config.to_string()))
        .and_then(|()| tensors.write(&folder.join("model.safetensors"), hollow));
    written.map_err(|e| format!("{}: {e}", folder.display()))
}
