//! Parses and validates the header of a safetensors file: tensor names, types, shapes and byte
//! ranges. Reads no tensor data; the input is untrusted.
//!
//! The rules are those of the format and of the `safetensors` crate (no gap, no overlap, no
//! trailing bytes). In addition it rejects duplicate names, names the tensor in every message, and
//! caps the header at [`MAX_HEADER`]. The crate stores offsets as `usize`, which has 32 bits in
//! wasm, while shards often exceed 4 GB, so it cannot be used here.

use crate::util::map::SortedMap;
use crate::util::sort::sort_by;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::lfs::refuse_pointer;
use super::{Dtype, TensorInfo};
use crate::{Error, Result};

/// Maximum header length in bytes. The largest published headers stay under 10 MB; the header is
/// parsed in wasm memory.
pub const MAX_HEADER_BYTES: u64 = 32 << 20;

/// Bytes before the header: its length as a little-endian u64.
pub const PREFIX_BYTES: u64 = 8;

/// A parsed header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SafetensorsHeader {
    /// The tensors in byte order; `file` is 0 and ranges count from the start of the file.
    pub tensors: Vec<TensorInfo>,
    /// The `__metadata__` entry.
    pub metadata: SortedMap<String, String>,
}

/// The byte range of the JSON header in a file of `file_size` bytes that begins with `start` (8
/// bytes are needed).
pub fn header_range(file: &str, start: &[u8], file_size: u64) -> Result<Range<u64>> {
    refuse_pointer(file, start)?;
    let prefix: Option<[u8; 8]> = start.get(..8).and_then(|bytes| bytes.try_into().ok());
    let Some(prefix) = prefix.filter(|_| file_size >= PREFIX_BYTES) else {
        return Err(malformed(
            file,
            format!("it has {file_size} bytes, too few for the 8 bytes of the header length"),
        ));
    };
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER_BYTES {
        return Err(malformed(
            file,
            format!("its header length is {length} bytes, the limit is {MAX_HEADER_BYTES}"),
        ));
    }
    if length < 2 {
        return Err(malformed(
            file,
            format!("its header length is {length} bytes, the minimum is 2"),
        ));
    }
    let end = PREFIX_BYTES + length;
    if end > file_size {
        return Err(malformed(
            file,
            format!("it is cut off: the header ends at byte {end} of {file_size}"),
        ));
    }
    Ok(PREFIX_BYTES..end)
}

/// Parses the JSON header, which ends where the data starts, and checks it against the file size.
pub fn parse_header(file: &str, header: &[u8], file_size: u64) -> Result<SafetensorsHeader> {
    let text = std::str::from_utf8(header).map_err(|e| {
        malformed(
            file,
            format!("its header is not UTF-8 after byte {}", e.valid_up_to()),
        )
    })?;
    if !text.starts_with('{') {
        return Err(malformed(
            file,
            "its header does not begin with '{'".to_string(),
        ));
    }
    let raw: RawHeader = serde_json::from_str(text)
        .map_err(|e| malformed(file, format!("its header is not a valid JSON header: {e}")))?;

    let data_start = PREFIX_BYTES + header.len() as u64;
    let data_size = file_size.checked_sub(data_start).ok_or_else(|| {
        malformed(
            file,
            format!("it is cut off: the header ends at byte {data_start} of {file_size}"),
        )
    })?;
    let mut tensors = Vec::with_capacity(raw.tensors.len());
    for (name, info) in raw.tensors {
        tensors.push(check_tensor(file, name, &info, data_start, data_size)?);
    }
    sort_by(&mut tensors, |a, b| {
        (a.range.start, a.range.end).cmp(&(b.range.start, b.range.end))
    });
    check_layout(file, &tensors, data_start..file_size)?;
    Ok(SafetensorsHeader {
        tensors,
        metadata: raw.metadata,
    })
}

/// Checks one tensor: known element type, a shape without overflow, offsets that match the shape.
fn check_tensor(
    file: &str,
    name: String,
    info: &RawTensor,
    data_start: u64,
    data_size: u64,
) -> Result<TensorInfo> {
    let dtype = Dtype::from_name(&info.dtype).ok_or_else(|| Error::UnsupportedEncoding {
        tensor: name.clone(),
        encoding: info.dtype.clone(),
        hint: "Convert the checkpoint to a type of the safetensors format, such as F16 or BF16."
            .to_string(),
    })?;
    let shape: Option<Vec<usize>> = info
        .shape
        .iter()
        .map(|d| u32::try_from(*d).ok().and_then(|d| usize::try_from(d).ok()))
        .collect();
    let elements = info
        .shape
        .iter()
        .try_fold(1u64, |product, d| product.checked_mul(*d));
    let bits = elements.and_then(|n| n.checked_mul(dtype.bits()));
    let (Some(shape), Some(bits)) = (shape, bits) else {
        return Err(malformed(
            file,
            format!("the shape {:?} of {name} overflows", info.shape),
        ));
    };
    let (begin, end) = info.data_offsets;
    if begin > end {
        return Err(malformed(
            file,
            format!("{name} ends at {end}, before its start at {begin}"),
        ));
    }
    if end > data_size {
        return Err(malformed(
            file,
            format!("{name} ends at byte {end} of the data, out of range of its {data_size} bytes"),
        ));
    }
    if bits % 8 != 0 || end - begin != bits / 8 {
        let needed = bits.div_ceil(8);
        return Err(malformed(
            file,
            format!(
                "{name} has {} bytes, but shape {shape:?} of {dtype} needs {needed}",
                end - begin
            ),
        ));
    }
    Ok(TensorInfo {
        name,
        dtype,
        shape,
        file: 0,
        range: data_start + begin..data_start + end,
    })
}

/// Checks that the tensors fill the data without gaps or overlaps.
fn check_layout(file: &str, tensors: &[TensorInfo], data: Range<u64>) -> Result<()> {
    let mut expected = data.start;
    let mut previous = "the header";
    for tensor in tensors {
        let start = tensor.range.start;
        if start < expected {
            return Err(malformed(
                file,
                format!(
                    "{} overlaps {previous} by {} bytes",
                    tensor.name,
                    expected - start
                ),
            ));
        }
        if start > expected {
            let gap = start - expected;
            return Err(malformed(
                file,
                format!(
                    "there is a gap of {gap} bytes between {previous} and {}",
                    tensor.name
                ),
            ));
        }
        expected = tensor.range.end;
        previous = &tensor.name;
    }
    if expected != data.end {
        let left = data.end - expected;
        return Err(malformed(
            file,
            format!("{left} bytes after the last tensor {previous} belong to no tensor"),
        ));
    }
    Ok(())
}

fn malformed(file: &str, reason: String) -> Error {
    Error::Malformed {
        file: file.to_string(),
        format: "safetensors",
        reason,
    }
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    metadata: SortedMap<String, String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    // A map type would silently drop one of two tensors with the same name, so entries are read one
    // by one.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        use serde::de::Error as _;
        let mut header = RawHeader {
            tensors: Vec::new(),
            metadata: SortedMap::new(),
        };
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("the name {name} occurs twice")));
            }
            if name == "__metadata__" {
                let metadata: Option<SortedMap<String, String>> = map
                    .next_value()
                    .map_err(|e| A::Error::custom(format!("__metadata__: {e}")))?;
                header.metadata = metadata.unwrap_or_default();
            } else {
                let tensor = map
                    .next_value()
                    .map_err(|e| A::Error::custom(format!("tensor {name}: {e}")))?;
                header.tensors.push((name, tensor));
            }
        }
        Ok(header)
    }
}
