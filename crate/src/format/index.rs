//! `model.safetensors.index.json`: which shard holds which tensor. Knows nothing of what the shards really hold.

use crate::util::map::SortedMap;
use serde::Deserialize;

use crate::{Error, Result};

/// The index of a sharded checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    /// The index's own file name, for messages.
    pub file: String,
    /// The shard of each tensor.
    pub weight_map: SortedMap<String, String>,
    /// `metadata.total_size`, where it is given.
    pub total_size: Option<u64>,
}

#[derive(Deserialize)]
struct Raw {
    weight_map: SortedMap<String, String>,
    #[serde(default)]
    metadata: SortedMap<String, serde_json::Value>,
}

impl ShardIndex {
    /// Reads the index. A shard's name must be a plain path inside the repository.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<ShardIndex> {
        let malformed = |reason| Error::Malformed { file: file.to_string(), format: "safetensors index", reason };
        let raw: Raw = serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        if raw.weight_map.is_empty() {
            return Err(malformed("its weight_map is empty".to_string()));
        }
        if let Some((tensor, shard)) = raw.weight_map.iter().find(|(_, shard)| !is_inside(shard)) {
            return Err(malformed(format!("it places {tensor} in '{shard}', which is not a file of the repository")));
        }
        let total_size = raw.metadata.get("total_size").and_then(serde_json::Value::as_u64);
        Ok(ShardIndex { file: file.to_string(), weight_map: raw.weight_map, total_size })
    }

    /// The names of the shards, sorted, each once.
    pub fn shards(&self) -> Vec<String> {
        let mut names: Vec<&String> = Vec::new();
        for name in self.weight_map.values() {
            if let Err(place) = names.binary_search(&name) {
                names.insert(place, name);
            }
        }
        names.into_iter().cloned().collect()
    }
}

/// Whether `path` stays inside the folder: relative, no `..`, no scheme, no backslash.
fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', ':', '?', '#', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}
