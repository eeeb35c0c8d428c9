//! The tensors of a model by name, over one or several files. Does not read files.

use crate::util::map::SortedMap;
use std::ops::Range;

use super::{ShardIndex, safetensors};
use crate::{Error, Result};

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names are those of the safetensors format
pub enum Dtype {
    Bool,
    F4,
    F6E2M3,
    F6E3M2,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    F8E8M0,
    F8E4M3Fnuz,
    F8E5M2Fnuz,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl Dtype {
    /// Element type, name in a safetensors header, bits per element.
    const DTYPES: [(Dtype, &'static str, u32); 22] = [
        (Dtype::Bool, "BOOL", 8),
        (Dtype::F4, "F4", 4),
        (Dtype::F6E2M3, "F6_E2M3", 6),
        (Dtype::F6E3M2, "F6_E3M2", 6),
        (Dtype::U8, "U8", 8),
        (Dtype::I8, "I8", 8),
        (Dtype::F8E5M2, "F8_E5M2", 8),
        (Dtype::F8E4M3, "F8_E4M3", 8),
        (Dtype::F8E8M0, "F8_E8M0", 8),
        (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
        (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
        (Dtype::I16, "I16", 16),
        (Dtype::U16, "U16", 16),
        (Dtype::F16, "F16", 16),
        (Dtype::BF16, "BF16", 16),
        (Dtype::I32, "I32", 32),
        (Dtype::U32, "U32", 32),
        (Dtype::F32, "F32", 32),
        (Dtype::C64, "C64", 64),
        (Dtype::F64, "F64", 64),
        (Dtype::I64, "I64", 64),
        (Dtype::U64, "U64", 64),
    ];

    /// All element types.
    pub fn all() -> impl Iterator<Item = Dtype> {
        Self::DTYPES.iter().map(|(dtype, _, _)| *dtype)
    }

    /// The element type with this name in a safetensors header.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Self::DTYPES
            .iter()
            .find(|(_, n, _)| *n == name)
            .map(|(dtype, _, _)| *dtype)
    }

    /// Name in a safetensors header.
    pub fn name(self) -> &'static str {
        Self::DTYPES
            .iter()
            .find(|(dtype, _, _)| *dtype == self)
            .map_or("?", |(_, name, _)| name)
    }

    /// Bits per element.
    pub fn bits(self) -> u64 {
        Self::DTYPES
            .iter()
            .find(|(dtype, _, _)| *dtype == self)
            .map_or(0, |(_, _, bits)| u64::from(*bits))
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor of a checkpoint: type, shape and location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Row-major, outermost dimension first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Index into [`Checkpoint::files`].
    pub file: usize,
    /// Byte range in that file.
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Number of elements; the container readers have checked it for overflow.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|d| *d as u64).product()
    }

    /// Number of bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Checks the shape against the one that config.json implies.
    ///
    /// # Errors
    /// `Shape` if they differ.
    pub fn expect_shape(&self, expected: &[usize]) -> Result<()> {
        if self.shape == expected {
            return Ok(());
        }
        Err(Error::Shape {
            tensor: self.name.clone(),
            found: self.shape.clone(),
            expected: expected.to_vec(),
        })
    }
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFile {
    /// Path in the repository or folder.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
}

/// All tensors of a model by name, over one or several files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The files, indexed by [`TensorInfo::file`].
    pub files: Vec<CheckpointFile>,
    /// The tensors by name.
    pub tensors: SortedMap<String, TensorInfo>,
    /// String metadata of the files' headers (`__metadata__`); for duplicate keys the first file
    /// wins.
    pub metadata: SortedMap<String, String>,
}

impl Checkpoint {
    /// Creates a checkpoint from a single file.
    pub fn from_single(
        name: &str,
        size: u64,
        header: safetensors::SafetensorsHeader,
    ) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::default();
        checkpoint.push(name, size, header, None)?;
        Ok(checkpoint)
    }

    /// Creates a checkpoint from an index and its shards with their headers, in any order. Tensors
    /// that the index lists but their shard lacks are left out: converters leave stale entries.
    ///
    /// # Errors
    /// `Malformed` when a shard is missing, or has none of the tensors that the index lists for it.
    pub fn from_shards(
        index: &ShardIndex,
        shards: Vec<(String, u64, safetensors::SafetensorsHeader)>,
    ) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::default();
        for (name, size, header) in shards {
            checkpoint.push(&name, size, header, Some(index))?;
        }
        let mut has_listed = vec![false; checkpoint.files.len()];
        let mut absent: Vec<(&String, &String)> = Vec::new();
        for (tensor, file) in &index.weight_map {
            match checkpoint.tensors.get(tensor) {
                Some(info) => has_listed[info.file] = true,
                None => absent.push((tensor, file)),
            }
        }
        for (tensor, file) in absent {
            let place = checkpoint.files.iter().position(|f| f.name == *file);
            if place.is_some_and(|place| has_listed[place]) {
                continue;
            }
            let reason = if place.is_some() {
                format!("it lists the tensor {tensor} in {file}, which does not contain it")
            } else {
                format!("it lists {file}, which was not loaded")
            };
            return Err(Error::Malformed {
                file: index.file.clone(),
                format: "safetensors index",
                reason,
            });
        }
        Ok(checkpoint)
    }

    /// Adds another file and prefixes its tensor names with `prefix`.
    pub fn add(
        &mut self,
        name: &str,
        size: u64,
        mut header: safetensors::SafetensorsHeader,
        prefix: &str,
    ) -> Result<()> {
        for tensor in &mut header.tensors {
            tensor.name = format!("{prefix}{}", tensor.name);
        }
        self.push(name, size, header, None)
    }

    fn push(
        &mut self,
        name: &str,
        size: u64,
        header: safetensors::SafetensorsHeader,
        index: Option<&ShardIndex>,
    ) -> Result<(), Error> {
        let file = self.files.len();
        self.files.push(CheckpointFile {
            name: name.to_string(),
            size,
        });
        for mut tensor in header.tensors {
            // A copy of a tensor in a shard that the index does not name is ignored.
            if index
                .and_then(|i| i.weight_map.get(&tensor.name))
                .is_some_and(|owner| owner != name)
            {
                continue;
            }
            tensor.file = file;
            if let Some(other) = self.tensors.insert(tensor.name.clone(), tensor) {
                return Err(Error::Malformed {
                    file: name.to_string(),
                    format: "safetensors",
                    reason: format!(
                        "the tensor {} is also in {}, and no index says which one to use",
                        other.name, self.files[other.file].name
                    ),
                });
            }
        }
        for (key, value) in header.metadata {
            self.metadata.get_or_insert_with(key, || value);
        }
        Ok(())
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The tensor of this name, or `MissingTensor` with the architecture that needs it.
    pub fn require(&self, name: &str, architecture: &str) -> Result<&TensorInfo> {
        self.get(name).ok_or_else(|| Error::MissingTensor {
            tensor: name.to_string(),
            architecture: architecture.to_string(),
        })
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(TensorInfo::bytes).sum()
    }
}
