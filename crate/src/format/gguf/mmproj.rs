//! Reads mmproj files (`mmproj-*.gguf`), the vision encoders of GGUF models. Converts llama.cpp's
//! `clip.*` metadata and `v.*`, `mm.*` tensors to the original's config.json, image processor and
//! weights. Family-specific facts are data from the caller ([`MmprojSpec`]).

use super::{Gguf, MetadataValue as Meta, weight_source};
use crate::format::Weights;
use crate::{Error, Result};
use serde_json::{Value, json};

/// How mmproj files store the vision encoder of a model family.
#[derive(Debug, Clone, Copy)]
pub struct MmprojSpec {
    /// `clip.projector_type`.
    pub name: &'static str,
    /// `general.architecture` of the compatible language models.
    pub architectures: &'static [&'static str],
    /// The class of the multimodal model, if the language model's class is text-only.
    pub class: Option<&'static str>,
    /// The image placeholder token.
    pub image_token: &'static str,
    /// Prefix of the layers in the original.
    pub layer_prefix: &'static str,
    /// Modules (of layers without `v.blk.N.`) or whole tensor names: GGUF's, the original's.
    pub names: &'static [(&'static str, &'static str)],
    /// Extra fields from the file: of the model's configuration, its `vision_config` and its image
    /// processor.
    pub extra_config: fn(&Gguf) -> [Value; 3],
}

/// Selects the mmproj file of a model: in the model's folder first, then 16 bits, then the next
/// best type.
pub fn find_mmproj(model: &str, names: &[String]) -> Option<String> {
    const ORDER: [&str; 4] = ["f16", "bf16", "q8_0", "f32"];
    let folder = |name: &str| name.rsplit_once('/').map_or(0, |(folder, _)| folder.len());
    let rank = |name: &&String| {
        let lower = name.to_lowercase();
        // "bf16" ends in "f16".
        let kind = ORDER
            .iter()
            .position(|kind| lower.contains(kind) && !(*kind == "f16" && lower.contains("bf16")));
        (
            name[..folder(name)] != model[..folder(model)],
            kind.unwrap_or(ORDER.len()),
        )
    };
    names
        .iter()
        .filter(|name| is_mmproj(name))
        .min_by_key(rank)
        .cloned()
}

/// Whether the file name is that of an mmproj file.
pub fn is_mmproj(name: &str) -> bool {
    let name = name.to_lowercase();
    name.ends_with(".gguf")
        && name
            .rsplit('/')
            .next()
            .is_some_and(|file| file.contains("mmproj"))
}

impl Gguf {
    /// The file's `clip.projector_type`, also for files with one projector for images and one for
    /// audio.
    pub fn projector_type(&self) -> &str {
        self.text("clip.vision.projector_type")
            .or(self.text("clip.projector_type"))
            .unwrap_or("(none)")
    }

    /// An integer of `clip.vision`.
    pub fn vision_int(&self, field: &str) -> Option<u64> {
        u64::try_from(self.int(&format!("clip.vision.{field}"))?).ok()
    }

    /// Rows of a tensor; 0 if it does not exist.
    pub fn tensor_rows(&self, tensor: &str) -> usize {
        self.tensors
            .get(tensor)
            .and_then(|t| t.shape.first().copied())
            .unwrap_or(0)
    }

    /// The layers whose features also feed the language model (DeepStack).
    pub fn deepstack_layers(&self) -> Vec<usize> {
        match self.metadata.get("clip.vision.is_deepstack_layers") {
            Some(Meta::Ints(flags)) => (0..flags.len()).filter(|i| flags[*i] != 0).collect(),
            _ => Vec::new(),
        }
    }

    /// Merges the mmproj file's metadata into a model's configuration.
    ///
    /// # Errors
    /// `Config` when a size is missing.
    pub fn merge_vision_config(&self, projector: &MmprojSpec, config: &mut Value) -> Result<Value> {
        let need = |field: &str| {
            let reason = || format!("{} has no 'clip.vision.{field}'", self.file);
            self.vision_int(field).ok_or_else(|| Error::Config {
                file: "GGUF metadata".into(),
                reason: reason(),
            })
        };
        let [whole, vision, extra] = (projector.extra_config)(self);
        let colors = |name: &str| match self.metadata.get(&format!("clip.vision.{name}")) {
            Some(Meta::Floats(list)) => json!(list),
            _ => Value::Null,
        };
        let layers = need("block_count")?;
        let heads = need("attention.head_count")?;

        let mut all = json!({
            "vision_config": {
                "hidden_size": need("embedding_length")?,
                "intermediate_size": need("feed_forward_length")?,
                "num_hidden_layers": layers, "depth": layers,
                "num_attention_heads": heads, "num_heads": heads,
                "patch_size": need("patch_size")?,
                "image_size": need("image_size")?,
                "out_hidden_size": need("projection_dim")?,
                "layer_norm_eps": self.float("clip.vision.attention.layer_norm_epsilon"),
            },
        });
        let mut processor =
            json!({ "image_mean": colors("image_mean"), "image_std": colors("image_std") });
        merge_object(&mut processor, extra);
        merge_object(&mut all["vision_config"], vision);
        merge_object(&mut all, whole);
        if let Some(class) = projector.class {
            merge_object(&mut all, json!({ "architectures": [class] }));
        }
        merge_object(config, all);
        Ok(processor)
    }

    /// Adds the vision encoder's weights under the original's names; `file` is the index of the
    /// mmproj file in the checkpoint.
    pub fn vision_weights(&self, projector: &MmprojSpec, file: usize, out: &mut Weights) {
        let deep = self.deepstack_layers();
        // Early conversions swap the names of an MLP's two matrices.
        let hidden = self.vision_int("embedding_length").unwrap_or(0) as usize;
        let up = self.tensor_rows("v.blk.0.ffn_up.weight");
        let down = self.tensor_rows("v.blk.0.ffn_down.weight");

        let swapped = up == hidden && down != hidden;
        for tensor in self.tensors.values() {
            let name = match tensor.name.split_once(".ffn_") {
                Some((block, rest)) if swapped => {
                    let (part, kind) = rest.split_once('.').unwrap_or((rest, ""));
                    let other = [("up", "down"), ("down", "up")]
                        .into_iter()
                        .find(|(own, _)| *own == part);
                    format!(
                        "{block}.ffn_{}.{kind}",
                        other.map_or(part, |(_, other)| other)
                    )
                }
                _ => tensor.name.clone(),
            };
            let Some(name) = projector.original_name(&name, &deep) else {
                continue;
            };
            let found = weight_source(tensor, &name).map(|mut found| {
                if let [rows, .., _] = found.shape[..] {
                    // Patch convolutions run as matmuls.
                    found.shape = vec![rows, found.shape[1..].iter().product()];
                    found.stored_rows = rows;
                }
                if tensor.name == "mm.soft_emb_norm.weight" {
                    found.offset = -1.0;
                }
                found
                    .parts
                    .iter_mut()
                    .for_each(|part| part.info.file = file);
                found
            });
            out.insert(&name, found);
        }
    }
}

impl MmprojSpec {
    /// The original's name of a tensor; `None` for tensors that are not weights.
    fn original_name(&self, tensor: &str, deep: &[usize]) -> Option<String> {
        let find = |module: &str| self.names.iter().find(|n| n.0 == module).map(|n| n.1);
        if let Some(name) = find(tensor) {
            return Some(name.into());
        }
        let numbered = |rest: &str| {
            let (layer, rest) = rest.split_once('.')?;
            let (module, kind) = rest.rsplit_once('.')?;
            Some((
                layer.parse::<usize>().ok()?,
                find(module)?,
                kind.to_string(),
            ))
        };
        if let Some(rest) = tensor.strip_prefix("v.blk.") {
            let (layer, module, kind) = numbered(rest)?;
            return Some(format!("{}.{layer}.{module}.{kind}", self.layer_prefix));
        }
        if let Some(rest) = tensor.strip_prefix("v.deepstack.") {
            let (layer, module, kind) = numbered(rest)?;
            let at = deep.iter().position(|l| *l == layer)?;
            return Some(format!("deepstack_merger_list.{at}.{module}.{kind}"));
        }
        let (module, kind) = tensor.rsplit_once('.')?;
        Some(format!("{}.{kind}", find(module)?))
    }
}

/// Merges the non-null fields of an object into another.
fn merge_object(to: &mut Value, from: Value) {
    if let (Some(to), Value::Object(from)) = (to.as_object_mut(), from) {
        to.extend(from.into_iter().filter(|(_, value)| !value.is_null()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mmproj_with_16_bits_in_the_model_folder_is_preferred() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_string()).collect::<Vec<_>>();
        let all = names(&[
            "a-Q4_K_M.gguf",
            "mmproj-a-BF16.gguf",
            "mmproj-a-f16.gguf",
            "b/mmproj-f32.gguf",
        ]);
        assert_eq!(
            find_mmproj("a-Q4_K_M.gguf", &all).as_deref(),
            Some("mmproj-a-f16.gguf")
        );
        assert_eq!(
            find_mmproj("b/b.gguf", &all).as_deref(),
            Some("b/mmproj-f32.gguf")
        );
        assert_eq!(
            find_mmproj(
                "a.gguf",
                &names(&["a.gguf", "mmproj/a.gguf", "a-mmproj.txt"])
            ),
            None
        );
    }
}
