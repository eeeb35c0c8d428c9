//! Parses `model.safetensors.index.json`, which maps tensors to shards. Does not read the shards.

use crate::util::map::SortedMap;
use serde::Deserialize;

use crate::{Error, Result};

/// The index of a sharded checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    /// File name of the index, for messages.
    pub file: String,
    /// The shard file of each tensor.
    pub weight_map: SortedMap<String, String>,
    /// `metadata.total_size`, if present.
    pub total_size: Option<u64>,
}

#[derive(Deserialize)]
struct RawShardIndex {
    weight_map: SortedMap<String, String>,
    #[serde(default)]
    metadata: serde_json::Value,
}

impl ShardIndex {
    /// Parses the index. A shard name must be a plain path inside the repository.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<ShardIndex> {
        let malformed = |reason| Error::Malformed {
            file: file.to_string(),
            format: "safetensors index",
            reason,
        };
        let raw: RawShardIndex =
            serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        if raw.weight_map.is_empty() {
            return Err(malformed("its 'weight_map' is empty".to_string()));
        }
        if let Some((tensor, shard)) = raw.weight_map.iter().find(|(_, shard)| !is_inside(shard)) {
            return Err(malformed(format!(
                "'weight_map' puts {tensor} in '{shard}', which is not a path inside the repository"
            )));
        }
        let total_size = raw.metadata["total_size"].as_u64();
        Ok(ShardIndex {
            file: file.to_string(),
            weight_map: raw.weight_map,
            total_size,
        })
    }

    /// The shard file names, sorted and unique.
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
        && path
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}
