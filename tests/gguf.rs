//! GGUF files made by tests: metadata and f32 tensors, in one file or in parts as gguf-split writes
//! them.

use jerboa::format::gguf::MetadataValue;

const ALIGNMENT: usize = 32;

/// A file under construction.
#[derive(Default)]
pub struct GgufFile {
    pairs: Vec<(String, MetadataValue)>,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl GgufFile {
    /// A file of an architecture.
    pub fn new(architecture: &str) -> Self {
        let mut file = Self::default();
        file.set(
            "general.architecture",
            MetadataValue::Text(architecture.into()),
        );
        file
    }

    /// Sets a value; integers become 32 bits, and lists of them too.
    pub fn set(&mut self, key: &str, value: MetadataValue) -> &mut Self {
        self.pairs.retain(|(known, _)| known != key);
        self.pairs.push((key.into(), value));
        self
    }

    /// Adds a tensor with its outermost dimension first.
    pub fn tensor(&mut self, name: &str, shape: &[usize], values: Vec<f32>) -> &mut Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{name}");
        self.tensors.push((name.into(), shape.to_vec(), values));
        self
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        encode(&self.pairs, &self.tensors)
    }

    /// The file in this many parts: metadata in the first, tensors distributed in turn.
    pub fn parts(&self, count: usize) -> Vec<Vec<u8>> {
        let share = self.tensors.len().div_ceil(count);
        let part = |number: usize| {
            let mut pairs = if number == 0 {
                self.pairs.clone()
            } else {
                Vec::new()
            };
            let numbers = [
                ("split.no", number),
                ("split.count", count),
                ("split.tensors.count", self.tensors.len()),
            ];
            pairs.extend(numbers.map(|(key, n)| (key.to_string(), MetadataValue::Int(n as i64))));
            let first = (number * share).min(self.tensors.len());
            encode(
                &pairs,
                &self.tensors[first..(first + share).min(self.tensors.len())],
            )
        };
        (0..count).map(part).collect()
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn value(out: &mut Vec<u8>, value: &MetadataValue) {
    let number = |out: &mut Vec<u8>, n: u32| out.extend(n.to_le_bytes());
    let mut array = |kind: u32, length: usize| {
        number(out, 9);
        number(out, kind);
        out.extend((length as u64).to_le_bytes());
    };
    match value {
        MetadataValue::Ints(list) => {
            array(5, list.len());
            list.iter()
                .for_each(|n| out.extend((*n as i32).to_le_bytes()));
        }
        MetadataValue::Floats(list) => {
            array(6, list.len());
            list.iter()
                .for_each(|x| out.extend((*x as f32).to_le_bytes()));
        }
        MetadataValue::Texts(list) => {
            array(8, list.len());
            list.iter().for_each(|t| text(out, t));
        }
        MetadataValue::Int(n) => {
            number(out, 5);
            out.extend((*n as i32).to_le_bytes());
        }
        MetadataValue::Float(x) => {
            number(out, 6);
            out.extend((*x as f32).to_le_bytes());
        }
        MetadataValue::Bool(flag) => {
            number(out, 7);
            out.push(u8::from(*flag));
        }
        MetadataValue::Text(t) => {
            number(out, 8);
            text(out, t);
        }
    }
}

fn encode(
    pairs: &[(String, MetadataValue)],
    tensors: &[(String, Vec<usize>, Vec<f32>)],
) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    for (key, pair) in pairs {
        text(&mut out, key);
        value(&mut out, pair);
    }
    let mut data: Vec<u8> = Vec::new();
    for (name, shape, values) in tensors {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape
            .iter()
            .rev()
            .for_each(|n| out.extend((*n as u64).to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out.extend(data);
    out
}
