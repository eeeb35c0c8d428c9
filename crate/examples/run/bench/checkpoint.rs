//! A checkpoint of a shape with random weights, as the bench page makes it: the same shapes, the same encodings.
//! The speed of a dense model does not depend on its weights.

use half::f16;
use jerboa::ir::{Graph, WeightKind};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

const SHAPES: &str = include_str!("../../../../www/bench/shapes.json");
const SOUNDS: &str = include_str!("../../../../www/bench/sounds.json");
/// The weights are pieces of one block of so many bytes.
const BLOCK: usize = 16 << 20;
/// Weights that share a scale and a bias.
const GROUP: usize = 64;
/// The standard deviation that transformers initialises with: logits stay finite and are not all alike.
const DEVIATION: f32 = 0.02;

/// A folder that goes when this does.
pub struct Made(PathBuf);

impl Made {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What cannot be removed stays among the temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The kinds of bytes that tensors are made of.
struct Blocks {
    random: Vec<u8>,
    /// Four ternary weights a byte, as BitNet packs them.
    ternary: Vec<u8>,
    /// Exponents that make 4-bit floats spread like the rest.
    exponents: Vec<u8>,
    normal: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    ones: Vec<u8>,
    zeros: Vec<u8>,
}

impl Blocks {
    fn new() -> Self {
        let mut state = 88_172_645_463_325_252u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        };
        let halves = |value: &mut dyn FnMut() -> f32, count: usize| -> Vec<u8> {
            (0..count).flat_map(|_| f16::from_f32(value()).to_le_bytes()).collect()
        };
        let random: Vec<u8> = (0..BLOCK / 4).flat_map(|_| next().to_le_bytes()).collect();
        let digits = |byte: u8| (0..4).map(|i| (((byte >> (2 * i)) & 3) % 3) << (2 * i)).sum();
        let ternary = random.iter().map(|byte| digits(*byte)).collect();
        let exponents = random[..1 << 20].iter().map(|byte| 119 + byte % 3).collect();
        // Twelve uniform numbers are near enough to a normal one.
        let mut normal = || ((0..12).map(|_| next() as f32 / u32::MAX as f32).sum::<f32>() - 6.0) * DEVIATION;
        let normal = halves(&mut normal, BLOCK / 2);
        let spread = |factor: f32| -> Vec<u8> {
            let mut index = 0u32;
            let mut value = || {
                index = index.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                DEVIATION / 4.61 * (0.9 + 0.2 * (index >> 8) as f32 / (1 << 24) as f32) * factor
            };
            halves(&mut value, 1 << 19)
        };
        let (scales, biases) = (spread(1.0), spread(-7.5));
        Self {
            random,
            ternary,
            exponents,
            normal,
            scales,
            biases,
            ones: halves(&mut || 1.0, 1 << 19),
            zeros: vec![0; 1 << 20],
        }
    }
}

/// Tensors in the order of the file.
struct Tensors<'a> {
    header: Map<String, Value>,
    parts: Vec<(&'a [u8], usize)>,
    offset: usize,
}

impl<'a> Tensors<'a> {
    fn add(&mut self, name: &str, dtype: &str, width: usize, shape: &[usize], block: &'a [u8]) {
        let bytes = shape.iter().product::<usize>() * width;
        let end = self.offset + bytes;
        self.header.insert(name.into(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [self.offset, end] }));
        self.parts.push((block, bytes));
        self.offset = end;
    }

    fn matrix(&mut self, name: &str, [rows, cols]: [usize; 2], stored: Stored, blocks: &'a Blocks) {
        let base = name.trim_end_matches(".weight");
        match stored {
            Stored::Half => self.add(name, "F16", 2, &[rows, cols], &blocks.normal),
            Stored::Mlx4 => {
                self.add(name, "U32", 4, &[rows, cols / 8], &blocks.random);
                self.add(&format!("{base}.scales"), "F16", 2, &[rows, cols / GROUP], &blocks.scales);
                self.add(&format!("{base}.biases"), "F16", 2, &[rows, cols / GROUP], &blocks.biases);
            }
            Stored::Mxfp4 => {
                self.add(&format!("{name}_blocks"), "U8", 1, &[rows, cols / 32, 16], &blocks.random);
                self.add(&format!("{name}_scales"), "U8", 1, &[rows, cols / 32], &blocks.exponents);
            }
            Stored::Ternary => {
                self.add(name, "U8", 1, &[rows / 4, cols], &blocks.ternary);
                self.add(&format!("{base}.weight_scale"), "F16", 2, &[1], &blocks.scales);
            }
        }
    }

    /// `hollow`: without the bytes of the tensors.
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
            // Each tensor begins elsewhere in its block, so that no two are alike.
            let start = (index * 7 * 256 * 1024) % block.len();
            let mut left = bytes;
            let pieces = std::iter::once(block.get(start..).unwrap_or(block)).chain(std::iter::repeat(block));
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

/// How the matrices of a checkpoint are stored.
#[derive(Clone, Copy, PartialEq)]
enum Stored {
    /// 16-bit floats.
    Half,
    /// MLX's 4-bit codes.
    Mlx4,
    /// The same, with experts in MXFP4 as GPT-OSS has them.
    Mxfp4,
    /// BitNet's packed ternary weights; what is looked up by row at 16 bits.
    Ternary,
}

impl Stored {
    /// As few bits as the configuration's own encoding has, with the configuration told of it.
    fn few_bits(config: &mut Value) -> Self {
        let method = config["quantization_config"]["quant_method"].as_str();
        let stored = match method {
            Some("bitnet") => return Self::Ternary,
            Some("mxfp4") => Self::Mxfp4,
            _ => Self::Mlx4,
        };
        config["quantization"] = json!({ "group_size": GROUP, "bits": 4 });
        stored
    }

    /// How a matrix of this kind is stored.
    fn of(self, kind: WeightKind, cols: usize) -> Self {
        match (self, kind) {
            (_, WeightKind::Router) | (Self::Ternary, WeightKind::Table) => Self::Half,
            (Self::Ternary, _) | (Self::Mxfp4, WeightKind::Experts { .. }) => self,
            (Self::Half, _) => self,
            _ if !cols.is_multiple_of(GROUP) => Self::Half,
            _ => Self::Mlx4,
        }
    }
}

/// Writes the checkpoint of a shape, at 16 bits or in as few as its configuration says (MLX's 4-bit codes otherwise), into a
/// folder of its own; `hollow` ones say what there is and have zeros, which take no room on the disk.
pub fn make(shape: &str, four_bits: bool, hollow: bool) -> Result<Made, String> {
    let shapes: Map<String, Value> = serde_json::from_str(SHAPES).map_err(|e| e.to_string())?;
    let names = || shapes.keys().cloned().collect::<Vec<_>>().join(", ");
    let known = shapes.get(shape).and_then(|s| s.get("config")).cloned();
    let mut config = match known {
        Some(config) => config,
        None if Path::new(shape).is_file() => {
            let text = std::fs::read(shape).map_err(|e| format!("{shape}: {e}"))?;
            serde_json::from_slice(&text).map_err(|e| format!("{shape}: {e}"))?
        }
        None => return Err(format!("there is no shape '{shape}' and no config.json of that name: {}", names())),
    };
    if config["model_type"] == "bert" {
        return Err(format!("'{shape}' makes vectors of texts: the bench page measures it"));
    }
    if config.get("hidden_act").is_none() && config.get("hidden_activation").is_none() {
        config["hidden_act"] = json!("silu");
    }
    config["torch_dtype"] = json!("float16");
    let graph = jerboa::arch::graph(&config).map_err(|e| e.to_string())?;
    let stored = if four_bits { Stored::few_bits(&mut config) } else { Stored::Half };
    if !four_bits && let Some(config) = config.as_object_mut() {
        config.remove("quantization_config");
    }
    let name = format!("jerboa-bench-{}-{}", std::process::id(), shape.replace(['/', '.'], "-"));
    let made = Made(std::env::temp_dir().join(name));
    write(made.path(), &config, &[graph], stored, hollow)?;
    Ok(made)
}

/// Writes the checkpoint of a model that hears or speaks, at 16 bits, with its codec's in a folder `codec` of it.
pub fn make_sound(shape: &str, folder: &Path) -> Result<(), String> {
    let shapes: Map<String, Value> = serde_json::from_str(SOUNDS).map_err(|e| e.to_string())?;
    let names = || shapes.keys().cloned().collect::<Vec<_>>().join(", ");
    let found = shapes.get(shape).ok_or_else(|| format!("there is no shape '{shape}': {}", names()))?;
    let config = &found["config"];
    let graphs = match jerboa::arch::speech(config).map_err(|e| e.to_string())? {
        Some(speech) => vec![speech.decoder, speech.encoder, speech.keys, speech.values],
        None => vec![jerboa::arch::graph(config).map_err(|e| e.to_string())?],
    };
    write(folder, config, &graphs, Stored::Half, false)?;
    let Some(codec) = found.get("codec") else { return Ok(()) };
    let graph = jerboa::arch::codec(codec).map_err(|e| e.to_string())?;
    write(&folder.join("codec"), codec, &[graph], Stored::Half, false)
}

/// Writes a configuration and random weights of some graphs, each weight once.
fn write(folder: &Path, config: &Value, graphs: &[Graph], stored: Stored, hollow: bool) -> Result<(), String> {
    let blocks = Blocks::new();
    let mut tensors = Tensors { header: Map::new(), parts: Vec::new(), offset: 0 };
    let mut known = BTreeSet::new();
    for weight in graphs.iter().flat_map(|graph| &graph.weights) {
        for (name, rows) in weight.parts.iter().filter(|part| known.insert(part.0.clone())) {
            if matches!(weight.kind, WeightKind::Vector | WeightKind::Order) {
                let block = if name.ends_with("bias") { &blocks.zeros } else { &blocks.ones };
                tensors.add(name, "F16", 2, &[*rows], block);
            } else {
                let stored = stored.of(weight.kind, weight.cols);
                tensors.matrix(name, [*rows, weight.cols], stored, &blocks);
            }
        }
    }
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(folder.join("config.json"), config.to_string()))
        .and_then(|()| tensors.write(&folder.join("model.safetensors"), hollow));
    written.map_err(|e| format!("{}: {e}", folder.display()))
}
