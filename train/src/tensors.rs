//! Named f32 tensors in safetensors files.

use half::{bf16, f16};
use serde_json::{Map, Value, json};

/// A named tensor, f32.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// Name.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Values, row after row.
    pub values: Vec<f32>,
}

/// Writes the bytes of a safetensors file, tensors in order of their names.
pub fn write_safetensors(tensors: &[NamedTensor]) -> Vec<u8> {
    let mut tensors: Vec<&NamedTensor> = tensors.iter().collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut end = 0;
    for tensor in &tensors {
        let first = end;
        end += tensor.values.len() * 4;
        let entry = json!({
            "dtype": "F32",
            "shape": tensor.shape,
            "data_offsets": [first, end],
        });
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    // The data starts at a multiple of 8.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    for tensor in tensors {
        bytes.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes
}

/// Reads the tensors of a safetensors file: F32, F16 and BF16.
///
/// # Errors
/// The reason, for damaged files and other element types.
pub fn read_safetensors(bytes: &[u8]) -> Result<Vec<NamedTensor>, String> {
    let short = || "the file ends early".to_owned();
    let length = bytes.first_chunk::<8>().ok_or_else(short)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let data = length.checked_add(8).and_then(|start| bytes.get(start..));
    let data = data.ok_or_else(short)?;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length])
        .map_err(|e| format!("invalid header: {e}"))?;
    let mut tensors = Vec::new();
    for (name, entry) in header {
        if name == "__metadata__" {
            continue;
        }
        let number = |value: &Value| value.as_u64().map(|n| n as usize);
        let sizes = entry["shape"].as_array();
        let shape = sizes.and_then(|sizes| sizes.iter().map(number).collect::<Option<Vec<_>>>());
        let range = [0, 1].map(|side: usize| number(&entry["data_offsets"][side]));
        let (Some(shape), [Some(first), Some(end)]) = (shape, range) else {
            return Err(format!("{name} has no shape or no place in the file"));
        };
        let own = data.get(first..end).ok_or_else(short)?;
        let dtype = entry["dtype"].as_str().unwrap_or("none");
        let values = floats(own, dtype).ok_or_else(|| {
            format!("{name} has the element type {dtype}; F32, F16 and BF16 can be read")
        })?;
        let count = shape
            .iter()
            .try_fold(1, |n: usize, size| n.checked_mul(*size));
        if count != Some(values.len()) {
            return Err(format!("{name} is not {shape:?} of {dtype}"));
        }
        tensors.push(NamedTensor {
            name,
            shape,
            values,
        });
    }
    Ok(tensors)
}

/// Decodes elements of a type; `None` for other types.
fn floats(bytes: &[u8], dtype: &str) -> Option<Vec<f32>> {
    let halves = || {
        bytes
            .chunks_exact(2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
    };
    Some(match dtype {
        "F32" => bytemuck::pod_collect_to_vec(&bytes[..bytes.len() / 4 * 4]),
        "F16" => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        "BF16" => halves()
            .map(|bits| bf16::from_bits(bits).to_f32())
            .collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dtype: &str, data: &[u8]) -> Vec<u8> {
        let shape = [2, 1, 1];
        let header =
            json!({ "a": { "dtype": dtype, "shape": shape, "data_offsets": [0, data.len()] } });
        let header = header.to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn element_types_are_read_or_refused_by_name() {
        let read = |dtype: &str, data: &[u8]| read_safetensors(&file(dtype, data));
        let f32s: Vec<u8> = [1.5f32, -2.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        for (dtype, data) in [
            ("F32", f32s),
            ("F16", vec![0x00, 0x3e, 0x00, 0xc0]),
            ("BF16", vec![0xc0, 0x3f, 0x00, 0xc0]),
        ] {
            let tensors = read(dtype, &data).expect(dtype);
            assert_eq!(tensors[0].values, [1.5, -2.0], "{dtype}");
            assert_eq!(tensors[0].shape, [2, 1, 1]);
        }
        for dtype in [
            "F64", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2",
        ] {
            let error = read(dtype, &[0; 16]).expect_err("an element type that is not read");
            assert!(error.contains(dtype) && error.contains("F16"), "{error}");
        }
        assert!(read("F32", &[0; 4]).is_err(), "one value for two");
    }

    #[test]
    fn files_are_read_as_they_were_written() {
        let tensor = |name: &str, shape: Vec<usize>| NamedTensor {
            name: name.into(),
            values: (0..shape.iter().product())
                .map(|i| i as f32 - 2.5)
                .collect(),
            shape,
        };
        let tensors = [tensor("a.weight", vec![2, 3, 2]), tensor("b", vec![5])];
        let bytes = write_safetensors(&tensors);
        assert_eq!(read_safetensors(&bytes).expect("tensors"), tensors);
        for end in [0, 7, 8, 40, bytes.len() - 1] {
            assert!(read_safetensors(&bytes[..end]).is_err(), "{end} bytes");
        }
    }
}
