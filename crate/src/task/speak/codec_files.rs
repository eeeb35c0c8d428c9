//! Published codec files: safetensors with a config.json, or an NVIDIA NeMo archive, of which only
//! headers and needed tensors are read.

use crate::exec::ModelFiles;
use crate::format::{Checkpoint, detect, nemo};
use crate::hub::Source;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::ops::Range;

/// Maximum bytes of a checkpoint's directory and pickle; thousands of tensors take less than 1 MB.
const MAX_HEADER: u64 = 64 << 20;

/// Opens the files of a codec.
///
/// # Errors
/// Errors of the source and the container formats.
pub(super) async fn open_codec(source: &Source) -> Result<ModelFiles> {
    let missing = match source.read_optional("config.json").await? {
        Some(config) => {
            let config: Value = serde_json::from_slice(&config).map_err(|e| Error::Config {
                file: "config.json".into(),
                reason: format!("is not JSON: {e}"),
            })?;
            match ModelFiles::safetensors(source, config.into()).await {
                Err(error @ Error::MissingFile { .. }) => Some(error),
                found => return found,
            }
        }
        None => None,
    };
    let file = source
        .list()
        .await?
        .into_iter()
        .find(|name| name.ends_with(".nemo"));
    // If the repository cannot be listed, try its own name.
    let own = source
        .name()
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .and_then(|name| name.split('@').next());
    let file = file.unwrap_or_else(|| format!("{}.nemo", own.unwrap_or_default()));
    let Some(info) = source.info(&file).await? else {
        return Err(missing.unwrap_or_else(|| Error::MissingFile {
            file: format!("config.json or {file}"),
            location: source.name().into(),
            hint: "A codec needs safetensors with a config.json, or a .nemo archive.".into(),
        }));
    };
    open_archive(source, &file, info.size).await
}

async fn open_archive(source: &Source, file: &str, size: u64) -> Result<ModelFiles> {
    let fault = |reason: &str| Error::Malformed {
        file: file.into(),
        format: "NeMo",
        reason: reason.into(),
    };
    let mut at = 0;
    let mut found = SortedMap::new();

    while at + nemo::TAR_BLOCK_BYTES <= size {
        let header = source
            .read_range(file, at..at + nemo::TAR_BLOCK_BYTES)
            .await?;
        let Some((name, length)) = nemo::tar_entry(file, &header)? else {
            break;
        };
        let data = at + nemo::TAR_BLOCK_BYTES..at + nemo::TAR_BLOCK_BYTES + length;
        if data.end > size {
            return Err(fault(&format!(
                "it is truncated: {name} ends at byte {} of {size}",
                data.end
            )));
        }
        at = data.end.next_multiple_of(nemo::TAR_BLOCK_BYTES);
        found.insert(name, data);
    }
    let entry = |name: &str| {
        found
            .get(name)
            .cloned()
            .ok_or_else(|| fault(&format!("it has no entry {name}")))
    };
    let settings = entry("model_config.yaml")?;
    let zip = entry("model_weights.ckpt")?;

    let small = |range: Range<u64>| {
        let within = range.end - range.start <= MAX_HEADER;
        within
            .then_some(range)
            .ok_or_else(|| fault("its headers exceed 64 MiB"))
    };
    let read = async |range: Range<u64>| source.read_range(file, small(range)?).await;
    let strange = || fault("its weights are not a PyTorch checkpoint");
    let length = zip.end - zip.start;
    let tail = read(zip.end - length.min(nemo::ZIP_TAIL_BYTES)..zip.end).await?;
    let place = nemo::zip_directory(&tail, length).ok_or_else(strange)?;
    let directory = read(zip.start + place.start..zip.start + place.end).await?;
    let entries = nemo::zip_entries(&directory, place.start).ok_or_else(strange)?;
    let pickle = entries
        .iter()
        .find(|(name, _)| name.ends_with("/data.pkl"))
        .ok_or_else(strange)?
        .1;
    let pickle = read(zip.start + pickle.start..zip.start + pickle.end).await?;
    let tensors = nemo::state_dict(&pickle).ok_or_else(strange)?;
    let checkpoint: Checkpoint = nemo::checkpoint((file, size), zip.start, &entries, tensors)?;
    let settings = read(settings).await?;
    let rate = String::from_utf8_lossy(&settings).lines().find_map(|line| {
        line.strip_prefix("sample_rate:")?
            .trim()
            .parse::<u32>()
            .ok()
    });
    let config = json!({ "sample_rate": rate });
    let weights = detect(&config, &checkpoint, &SortedMap::new());
    Ok(ModelFiles::new(config.into(), checkpoint, weights))
}
