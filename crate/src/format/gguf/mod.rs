//! Parses the GGUF container (header, metadata, tensor table) from the first bytes of a file.
//! Performs no I/O.
//!
//! Every length is checked against the available bytes before anything is allocated. The tensor
//! table is checked against the file size.

pub mod config;
mod file_choice;
pub mod mmproj;
mod names;
mod pretokenizer;
mod refusal;
mod special;
mod split_files;
mod text_settings;
pub mod tokenizer;

use crate::util::map::SortedMap;
pub use file_choice::{model_files, preferred_file};
pub use names::{GgufSpec, set_common_fields, set_layer_types};
pub use split_files::{parse_split_name, split_file_name};

use super::encoding::{Encoding, PartRole, StoredPart, WeightSource};
use super::ggml::GgmlType;
use super::lfs::refuse_pointer;
use super::{Checkpoint, CheckpointFile, Dtype, TensorInfo, Weights};
use crate::util::sort::sort_by;
use crate::{Error, Result};

/// The first bytes of a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Maximum header length in bytes: vocabularies of 256,000 tokens with merges take about 20 MB.
pub const MAX_HEADER_BYTES: u64 = 96 << 20;
const MAX_PAIRS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
const MAX_DIMS: u32 = 4;
const MAX_ALIGNMENT: u64 = 1 << 20;

/// A metadata value; arrays have one element type.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    /// Any integer.
    Int(i64),
    /// Any floating point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// An array of integers or booleans.
    Ints(Vec<i64>),
    /// An array of floating point numbers.
    Floats(Vec<f64>),
    /// An array of strings.
    Texts(Vec<String>),
}

/// An entry of the tensor table.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufTensor {
    /// Name in the file.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Element type, or the name of an unsupported one.
    pub kind: Result<GgmlType, String>,
    /// First byte in the file.
    pub start: u64,
    /// Number of bytes; for unsupported types, the distance to the next tensor or the end of the
    /// file.
    pub bytes: u64,
    /// The GGUF file of a split model that contains it, from 0.
    pub part: usize,
}

/// A parsed GGUF header.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// File name.
    pub file: String,
    /// File size in bytes.
    pub size: u64,
    /// The metadata by key.
    pub metadata: SortedMap<String, MetadataValue>,
    /// The tensors by name.
    pub tensors: SortedMap<String, GgufTensor>,
    /// The further files of a split model.
    pub parts: Vec<CheckpointFile>,
}

/// Parses the header from the first bytes of a file of `size` bytes. `None` means that more bytes
/// are needed (for example twice as many).
pub fn parse(file: &str, start: &[u8], size: u64) -> Result<Option<Gguf>> {
    refuse_pointer(file, start)?;
    let mut reader = HeaderReader {
        bytes: start,
        at: 0,
    };
    match read_header(&mut reader, file, size) {
        Ok(gguf) => Ok(Some(gguf)),
        Err(ParseStop::NeedMoreBytes) if (start.len() as u64) < size.min(MAX_HEADER_BYTES) => {
            Ok(None)
        }
        Err(ParseStop::NeedMoreBytes) => Err(malformed(
            file,
            format!(
                "it is cut off: its header continues after {} bytes",
                start.len()
            ),
        )),
        Err(ParseStop::Malformed(reason)) => Err(malformed(file, reason)),
        Err(ParseStop::Unusable(reason, hint)) => Err(Error::UnusableFile {
            file: file.into(),
            reason,
            hint: hint.into(),
        }),
    }
}

fn malformed(file: &str, reason: String) -> Error {
    Error::Malformed {
        file: file.into(),
        format: "GGUF",
        reason,
    }
}

/// Why reading stopped.
enum ParseStop {
    NeedMoreBytes,
    Malformed(String),
    /// Another format or version: the reason, and what to do.
    Unusable(String, &'static str),
}

type ParseResult<T> = Result<T, ParseStop>;

struct HeaderReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> HeaderReader<'a> {
    fn take(&mut self, n: u64) -> ParseResult<&'a [u8]> {
        let end = usize::try_from(n).ok().and_then(|n| self.at.checked_add(n));
        let bytes = end
            .and_then(|end| self.bytes.get(self.at..end))
            .ok_or(ParseStop::NeedMoreBytes)?;
        self.at += bytes.len();
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> ParseResult<[u8; N]> {
        self.take(N as u64)?
            .try_into()
            .map_err(|_| ParseStop::NeedMoreBytes)
    }

    fn u32(&mut self) -> ParseResult<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> ParseResult<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self, what: &str) -> ParseResult<String> {
        let length = self.u64()?;
        if length > MAX_HEADER_BYTES {
            return Err(ParseStop::Malformed(format!(
                "{what} claims {length} bytes, the limit is {MAX_HEADER_BYTES}"
            )));
        }
        // Vocabularies contain tokens that are not UTF-8. They are never matched against text, so
        // U+FFFD is sufficient.
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    /// Reads a scalar of a type.
    fn scalar(&mut self, kind: u32, key: &str) -> ParseResult<MetadataValue> {
        Ok(match kind {
            0 => MetadataValue::Int(i64::from(u8::from_le_bytes(self.array()?))),
            1 => MetadataValue::Int(i64::from(i8::from_le_bytes(self.array()?))),
            2 => MetadataValue::Int(i64::from(u16::from_le_bytes(self.array()?))),
            3 => MetadataValue::Int(i64::from(i16::from_le_bytes(self.array()?))),
            4 => MetadataValue::Int(i64::from(self.u32()?)),
            5 => MetadataValue::Int(i64::from(i32::from_le_bytes(self.array()?))),
            6 => MetadataValue::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => MetadataValue::Bool(self.array::<1>()? != [0]),
            8 => MetadataValue::Text(self.text(key)?),
            10 => MetadataValue::Int(i64::try_from(self.u64()?).unwrap_or(i64::MAX)),
            11 => MetadataValue::Int(i64::from_le_bytes(self.array()?)),
            12 => MetadataValue::Float(f64::from_le_bytes(self.array()?)),
            _ => {
                return Err(ParseStop::Malformed(format!(
                    "the value of {key} has the unknown type {kind}"
                )));
            }
        })
    }

    fn value(&mut self, key: &str) -> ParseResult<MetadataValue> {
        let kind = self.u32()?;
        if kind != 9 {
            return self.scalar(kind, key);
        }
        let kind = self.u32()?;
        let length = self.u64()?;

        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            _ => {
                return Err(ParseStop::Malformed(format!(
                    "{key} is an array of the unsupported type {kind}"
                )));
            }
        };
        if length
            .checked_mul(least)
            .is_none_or(|n| n > MAX_HEADER_BYTES)
        {
            return Err(ParseStop::Malformed(format!(
                "{key} claims {length} elements, more than a header of {MAX_HEADER_BYTES} bytes"
            )));
        }
        if length * least > (self.bytes.len() - self.at) as u64 {
            return Err(ParseStop::NeedMoreBytes);
        }
        self.elements(kind, length, key)
    }

    fn elements(&mut self, kind: u32, length: u64, key: &str) -> ParseResult<MetadataValue> {
        let n = length as usize;
        match kind {
            8 => {
                let mut texts = Vec::with_capacity(n);
                for _ in 0..n {
                    texts.push(self.text(key)?);
                }
                Ok(MetadataValue::Texts(texts))
            }
            6 | 12 => {
                let mut floats = Vec::with_capacity(n);
                for _ in 0..n {
                    if let MetadataValue::Float(x) = self.scalar(kind, key)? {
                        floats.push(x);
                    }
                }
                Ok(MetadataValue::Floats(floats))
            }
            _ => {
                let mut ints = Vec::with_capacity(n);
                for _ in 0..n {
                    ints.push(match self.scalar(kind, key)? {
                        MetadataValue::Int(x) => x,
                        MetadataValue::Bool(x) => i64::from(x),
                        _ => 0,
                    });
                }
                Ok(MetadataValue::Ints(ints))
            }
        }
    }
}

fn read_header(r: &mut HeaderReader<'_>, file: &str, size: u64) -> ParseResult<Gguf> {
    if r.array::<4>()? != MAGIC {
        return Err(ParseStop::Malformed("it does not begin with 'GGUF'".into()));
    }
    match r.u32()? {
        2 | 3 => {}
        v if (1..=3).contains(&v.swap_bytes()) => {
            return Err(ParseStop::Unusable(
                "it is a big-endian GGUF file, which is not supported".into(),
                "Convert it to little-endian with llama.cpp's gguf_convert_endian.py, or choose another file.",
            ));
        }
        v => {
            let hint = match v {
                1 => {
                    "Convert the original model again with a current llama.cpp, or choose another file."
                }
                _ => "Choose a file of a supported version.",
            };
            let reason = format!("its GGUF version is {v}; versions 2 and 3 are supported");
            return Err(ParseStop::Unusable(reason, hint));
        }
    }
    let tensors = r.u64()?;
    let pairs = r.u64()?;

    if tensors > MAX_TENSORS || pairs > MAX_PAIRS {
        return Err(ParseStop::Malformed(format!(
            "it claims {tensors} tensors (limit {MAX_TENSORS}) and {pairs} metadata pairs (limit {MAX_PAIRS})"
        )));
    }
    let mut metadata = SortedMap::new();
    for _ in 0..pairs {
        let key = r.text("a metadata key")?;
        let value = r.value(&key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(ParseStop::Malformed(format!(
                "the metadata key {key} occurs twice"
            )));
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(MetadataValue::Int(a)) => u64::try_from(*a)
            .ok()
            .filter(|a| a.is_power_of_two() && *a <= MAX_ALIGNMENT)
            .ok_or_else(|| {
                ParseStop::Malformed(format!(
                    "its alignment is {a}, not a power of two up to {MAX_ALIGNMENT}"
                ))
            })?,
        Some(_) => {
            return Err(ParseStop::Malformed(
                "its alignment is not an integer".into(),
            ));
        }
    };
    let mut table = Vec::new();
    for _ in 0..tensors {
        table.push(read_tensor_entry(r, alignment)?);
    }
    let data = (r.at as u64).next_multiple_of(alignment);
    let tensors = check_ranges(table, data, size)?;
    Ok(Gguf {
        file: file.into(),
        size,
        metadata,
        tensors,
        parts: Vec::new(),
    })
}

/// Reads one entry of the tensor table; `start` is still relative to the data section.
fn read_tensor_entry(r: &mut HeaderReader<'_>, alignment: u64) -> ParseResult<GgufTensor> {
    let name = r.text("a tensor's name")?;
    let dims = r.u32()?;
    if dims > MAX_DIMS {
        return Err(ParseStop::Malformed(format!(
            "the tensor {name} has {dims} dimensions, the limit is {MAX_DIMS}"
        )));
    }
    let mut shape = Vec::new();
    let mut elements = 1u64;
    for _ in 0..dims {
        let d = r.u64()?;
        elements = elements.checked_mul(d).unwrap_or(0);
        let d = usize::try_from(d).ok().filter(|_| elements > 0);
        shape.push(d.ok_or_else(|| {
            ParseStop::Malformed(format!(
                "the tensor {name} is empty or has too many elements"
            ))
        })?);
    }
    let kind = GgmlType::from_number(r.u32()?);
    let start = r.u64()?;
    if start % alignment != 0 {
        return Err(ParseStop::Malformed(format!(
            "the tensor {name} begins at byte {start}, not at a multiple of {alignment}"
        )));
    }
    let cols = shape.first().copied().unwrap_or(1) as u64;
    let bytes = match &kind {
        Ok(kind) => kind.bytes(elements / cols, cols).ok_or_else(|| {
            ParseStop::Malformed(format!(
                "the rows of {name} have {cols} elements, not a multiple of the {} block size",
                kind.name()
            ))
        })?,
        Err(_) => 0,
    };
    shape.reverse();
    Ok(GgufTensor {
        name,
        shape,
        kind,
        start,
        bytes,
        part: 0,
    })
}

/// Checks that the tensors are inside the file and do not overlap, and makes their offsets
/// absolute.
fn check_ranges(
    mut table: Vec<GgufTensor>,
    data: u64,
    size: u64,
) -> ParseResult<SortedMap<String, GgufTensor>> {
    sort_by(&mut table, |a, b| a.start.cmp(&b.start));
    let starts: Vec<u64> = table.iter().map(|t| t.start).collect();
    let mut out = SortedMap::new();
    for (i, mut tensor) in table.into_iter().enumerate() {
        let start = data.checked_add(tensor.start);
        let next = starts
            .get(i + 1)
            .and_then(|s| data.checked_add(*s))
            .unwrap_or(size);
        if tensor.kind.is_err() {
            tensor.bytes = start.map_or(0, |start| next.min(size).saturating_sub(start));
        }
        let end = start
            .and_then(|start| start.checked_add(tensor.bytes))
            .filter(|end| *end <= size);
        let (Some(start), Some(end)) = (start, end) else {
            return Err(ParseStop::Malformed(format!(
                "the tensor {} ends beyond the file's {size} bytes",
                tensor.name
            )));
        };
        if i + 1 < starts.len() && end > next {
            return Err(ParseStop::Malformed(format!(
                "the tensor {} overlaps the next one",
                tensor.name
            )));
        }
        tensor.start = start;
        if out.insert(tensor.name.clone(), tensor).is_some() {
            return Err(ParseStop::Malformed("a tensor name occurs twice".into()));
        }
    }
    Ok(out)
}

impl Gguf {
    /// A string of the metadata.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(MetadataValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// An integer of the metadata.
    pub fn int(&self, key: &str) -> Option<i64> {
        match self.metadata.get(key) {
            Some(MetadataValue::Int(n)) => Some(*n),
            _ => None,
        }
    }

    /// A number of the metadata.
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key) {
            Some(MetadataValue::Float(x)) => Some(*x),
            Some(MetadataValue::Int(n)) => Some(*n as f64),
            _ => None,
        }
    }

    /// A boolean of the metadata.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.metadata.get(key) {
            Some(MetadataValue::Bool(b)) => Some(*b),
            _ => None,
        }
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> &str {
        self.text("general.architecture").unwrap_or_default()
    }

    /// The tensors as a checkpoint; quantized tensors appear as rows of U8 bytes.
    pub fn checkpoint(&self) -> Checkpoint {
        let file = CheckpointFile {
            name: self.file.clone(),
            size: self.size,
        };
        let files = [file]
            .into_iter()
            .chain(self.parts.iter().cloned())
            .collect();
        let tensors = self
            .tensors
            .values()
            .map(|t| (t.name.clone(), tensor_info(t)))
            .collect();
        Checkpoint {
            files,
            tensors,
            metadata: SortedMap::new(),
        }
    }

    /// The weights by HuggingFace name.
    pub fn weights(&self, architecture: &GgufSpec) -> Weights {
        let heads = |key: &str| {
            let key = format!("{}.attention.{key}", self.architecture());
            match self.metadata.get(&key) {
                Some(MetadataValue::Int(n)) => usize::try_from(*n).ok(),
                // One value per layer, 0 for layers without attention.
                Some(MetadataValue::Ints(list)) => {
                    list.iter().max().and_then(|n| usize::try_from(*n).ok())
                }
                _ => None,
            }
        };
        let q = heads("head_count");
        let names = names::GgufNameMap {
            architecture,
            heads: q,
            kv_heads: heads("head_count_kv").or(q),
        };
        let mut out = Weights::default();
        for tensor in self.tensors.values() {
            names.add_weights(tensor, &mut out);
        }
        out
    }
}

/// Converts a table entry to [`TensorInfo`].
fn tensor_info(tensor: &GgufTensor) -> TensorInfo {
    let (dtype, shape) = match &tensor.kind {
        Ok(GgmlType::F32) => (Dtype::F32, tensor.shape.clone()),
        Ok(GgmlType::F16) => (Dtype::F16, tensor.shape.clone()),
        Ok(GgmlType::BF16) => (Dtype::BF16, tensor.shape.clone()),
        Ok(kind) if *kind != GgmlType::I2S => {
            let mut shape = tensor.shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = *last / kind.block_elements() * kind.block_bytes();
            }
            (Dtype::U8, shape)
        }
        _ => (Dtype::U8, vec![tensor.bytes as usize]),
    };
    let range = tensor.start..tensor.start + tensor.bytes;
    TensorInfo {
        name: tensor.name.clone(),
        dtype,
        shape,
        file: tensor.part,
        range,
    }
}

/// Builds the weight of a tensor under a HuggingFace name.
fn weight_source(tensor: &GgufTensor, name: &str) -> Result<WeightSource> {
    match &tensor.kind {
        Ok(kind) => {
            let part = StoredPart {
                role: PartRole::Weight,
                info: tensor_info(tensor),
            };
            Ok(WeightSource::new(
                name,
                tensor.shape.clone(),
                Encoding::Ggml(*kind),
                vec![part],
            ))
        }
        Err(kind) => Err(Error::UnsupportedEncoding {
            tensor: tensor.name.clone(),
            encoding: kind.clone(),
            hint: "Use a file with another quantization, for example Q4_K_M or Q8_0.".into(),
        }),
    }
}
