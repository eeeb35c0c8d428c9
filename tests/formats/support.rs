//! Reads the golden files of tests/golden/quant.

use jerboa::format::{Encoding, PackedMatrix, PartBytes, PartRole, WeightSource, transcode};
use jerboa::reference::dequant::dequant_in_order;
use safetensors::SafeTensors;
use std::path::PathBuf;

/// A file under tests/golden/quant.
pub fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("golden/quant")
        .join(path)
}

/// The bytes of a golden file.
pub fn read(path: &str) -> Vec<u8> {
    std::fs::read(golden(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A safetensors file in memory.
pub struct Tensors(Vec<u8>);

impl Tensors {
    pub fn open(name: &str) -> Tensors {
        Tensors(read(&format!("{name}/tensors.safetensors")))
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let file = SafeTensors::deserialize(&self.0).expect("golden file");
        file.tensor(name)
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .data()
            .to_vec()
    }

    pub fn f32(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let file = SafeTensors::deserialize(&self.0).expect("golden file");
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let values = tensor
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        (tensor.shape().to_vec(), values)
    }

    pub fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).expect("golden file");
        file.names().into_iter().map(String::from).collect()
    }

    /// Transcodes a case and compares every value with `<case>.expected`, bit for bit.
    pub fn check(
        &self,
        case: &str,
        encoding: Encoding,
        parts: &[(PartRole, &str)],
        layout: Option<&str>,
    ) -> PackedMatrix {
        let dotted = |part: &str| {
            if case.is_empty() {
                part.to_string()
            } else {
                format!("{case}.{part}")
            }
        };
        let (shape, expected) = self.f32(&dotted("expected"));
        let source = WeightSource::new(case, shape, encoding, Vec::new());
        let data: Vec<(PartRole, Vec<u8>)> = parts
            .iter()
            .map(|(role, part)| (*role, self.bytes(&dotted(part))))
            .collect();
        let bytes = data
            .iter()
            .fold(PartBytes::new(), |all, (role, data)| all.with(*role, data));
        let packed = transcode(&source, &bytes, true).unwrap_or_else(|e| panic!("{case}: {e}"));
        if let Some(layout) = layout {
            assert_eq!(packed.layout.name(), layout, "{case}");
        }
        let planes = packed.planes.each_ref().map(|p| p.len() as u64 * 4);
        assert_eq!(
            planes,
            packed.layout.plane_bytes(packed.rows, packed.cols),
            "{case}"
        );
        assert_bits(case, &dequant_in_order(&packed), &expected);
        packed
    }
}

/// Asserts that every value has the expected bits.
pub fn assert_bits(case: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{case}");
    let wrong: Vec<_> = (0..found.len())
        .filter(|&i| found[i].to_bits() != expected[i].to_bits())
        .collect();
    if let Some(&i) = wrong.first() {
        panic!(
            "{case}: {} of {} values differ, first {i}: {} != {}",
            wrong.len(),
            found.len(),
            found[i],
            expected[i]
        );
    }
}
