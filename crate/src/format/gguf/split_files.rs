//! Split GGUF models, as gguf-split writes them: file names, and merging the headers.

use super::{Gguf, GgufTensor, malformed};
use crate::format::CheckpointFile;
use crate::{Error, Result};

/// Parses the file name of a shard, `NAME-00001-of-00003.gguf`: `NAME`, shard number from 1, number
/// of shards.
pub fn parse_split_name(file: &str) -> Option<(&str, usize, usize)> {
    let (stem, end) = file.split_at_checked(file.len().checked_sub(5)?)?;
    let (rest, count) = stem
        .rsplit_once("-of-")
        .filter(|_| end.eq_ignore_ascii_case(".gguf"))?;
    let (name, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        (text.len() == 5)
            .then(|| text.parse::<usize>().ok())
            .flatten()
    };
    let number = digits(number)?;
    let count = digits(count)?;

    (1..=count)
        .contains(&number)
        .then_some((name, number, count))
}

/// The file name of another shard of the same model.
pub fn split_file_name(file: &str, number: usize) -> Option<String> {
    let (name, _, count) = parse_split_name(file)?;
    Some(format!(
        "{name}-{number:05}-of-{count:05}{}",
        &file[file.len() - 5..]
    ))
}

impl Gguf {
    /// The number of files of the model.
    pub fn file_count(&self) -> usize {
        self.int("split.count")
            .and_then(|n| usize::try_from(n).ok())
            .map_or(1, |n| n.max(1))
    }

    /// Adds the header of the next file of a split model.
    ///
    /// # Errors
    /// `UnusableFile` for the wrong shard; `Malformed` for a shard of another model, or a duplicate
    /// tensor.
    pub fn append_file(&mut self, part: Gguf) -> Result<()> {
        let number = self.parts.len() + 1;
        let same = part.file_count() == self.file_count()
            && part.int("split.no") == i64::try_from(number).ok();
        if !same {
            let no = part.int("split.no").unwrap_or(0) + 1;
            let count = part.file_count();

            let wanted = format!("part {} of {}", number + 1, self.file_count());
            return Err(Error::UnusableFile {
                file: part.file,
                reason: format!("it is part {no} of {count}, expected {wanted}"),
                hint: "Give the parts their original names, and load parts of one model only."
                    .into(),
            });
        }
        for (name, tensor) in part.tensors {
            if self
                .tensors
                .insert(
                    name.clone(),
                    GgufTensor {
                        part: number,
                        ..tensor
                    },
                )
                .is_some()
            {
                return Err(malformed(
                    &part.file,
                    format!("the tensor {name} is also in an earlier part"),
                ));
            }
        }
        self.parts.push(CheckpointFile {
            name: part.file,
            size: part.size,
        });
        let expected = self
            .int("split.tensors.count")
            .and_then(|n| usize::try_from(n).ok());
        match expected {
            Some(count)
                if self.parts.len() + 1 == self.file_count() && count != self.tensors.len() =>
            {
                let reason = format!(
                    "its parts contain {} tensors, expected {count}",
                    self.tensors.len()
                );
                Err(malformed(&self.file, reason))
            }
            _ => Ok(()),
        }
    }
}
