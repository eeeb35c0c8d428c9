//! Named f32 tensors in safetensors files.

use crate::elements::{READABLE, as_f32};
use jerboa::Error;
use jerboa::format::TensorInfo;
use jerboa::format::safetensors::{header_range, parse_header};
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

/// Reads the tensors of a safetensors file, rounded to f32: see [`as_f32`].
///
/// # Errors
/// The reason, for damaged files and other element types.
pub fn read_safetensors(bytes: &[u8]) -> Result<Vec<NamedTensor>, String> {
    let reason = |error: Error| match error {
        Error::Malformed { reason, .. } => reason,
        error => error.to_string(),
    };
    let size = bytes.len() as u64;
    let range = header_range("", bytes, size).map_err(reason)?;
    let header = &bytes[range.start as usize..range.end as usize];
    let header = parse_header("", header, size).map_err(reason)?;
    let tensor = |info: TensorInfo| {
        let TensorInfo {
            name, dtype, shape, ..
        } = info;
        let own = &bytes[info.range.start as usize..info.range.end as usize];
        let values = as_f32(dtype, own)
            .ok_or_else(|| format!("{name} has dtype {dtype}; supported are {READABLE}"))?;
        Ok(NamedTensor {
            name,
            shape,
            values,
        })
    };
    header.tensors.into_iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jerboa::format::Dtype;

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
            ("F8_E4M3", vec![0x3c, 0xc0]),
            ("F64", [1.5f64, -2.0].map(f64::to_le_bytes).concat()),
        ] {
            let tensors = read(dtype, &data).expect(dtype);
            assert_eq!(tensors[0].values, [1.5, -2.0], "{dtype}");
            assert_eq!(tensors[0].shape, [2, 1, 1]);
        }
        for dtype in ["F4", "C64"] {
            let bits = Dtype::from_name(dtype).expect(dtype).bits();
            let data = vec![0; bits as usize / 4];
            let error = read(dtype, &data).expect_err("an element type that is not read");
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
