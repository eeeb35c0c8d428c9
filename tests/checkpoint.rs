//! Golden checkpoints whose tensors a test changes.

use crate::bytes;
use jerboa::format::Float;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A tensor in f32.
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values.
    pub values: Vec<f32>,
}

fn tensors(file: &SafeTensors<'_>) -> Vec<Tensor> {
    let float = |dtype| match dtype {
        Dtype::F32 => Float::F32,
        Dtype::BF16 => Float::BF16,
        Dtype::F16 => Float::F16,
        other => panic!("{other:?}"),
    };
    let read = |(name, view): (String, TensorView<'_>)| {
        let count = view.shape().iter().product();
        let value = |at| float(view.dtype()).get(view.data(), at).expect("a value");
        Tensor {
            name,
            shape: view.shape().to_vec(),
            values: (0..count).map(value).collect(),
        }
    };
    file.tensors().into_iter().map(read).collect()
}

/// A copy of a checkpoint's folder that is deleted with it.
pub struct ChangedCheckpoint(PathBuf);

impl ChangedCheckpoint {
    /// Copies a folder; `change` gets each tensor, and `label` names the copy.
    pub fn new(model: &Path, label: &str, change: impl Fn(&mut Tensor)) -> Self {
        let folder = std::env::temp_dir().join(format!("jerboa-{}-{label}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for file in fs::read_dir(model).expect("the model").flatten() {
            fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
        }
        let stored = fs::read(model.join("model.safetensors")).expect("model.safetensors");
        let mut all = tensors(&SafeTensors::deserialize(&stored).expect("a safetensors file"));
        all.iter_mut().for_each(change);
        let data: Vec<Vec<u8>> = all.iter().map(|tensor| bytes(&tensor.values)).collect();
        let views = all.iter().zip(&data).map(|(tensor, data)| {
            let view = TensorView::new(Dtype::F32, tensor.shape.clone(), data).expect("a tensor");
            (tensor.name.clone(), view)
        });
        let file = serialize(views, None).expect("a file");
        fs::write(folder.join("model.safetensors"), file).expect("a file");
        Self(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ChangedCheckpoint {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
