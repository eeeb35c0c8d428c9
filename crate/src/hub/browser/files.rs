//! Files that the user selected, and records of other engines' stores.

use std::cell::RefCell;
use std::ops::Range;

use js_sys::{Function, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::Blob;

use super::super::chunk::Chunk;
use super::super::parts::{self, FileInfo, PartSource};
use super::super::progress::Progress;
use super::super::remote::ReadFault;
use super::exception_message;
use crate::util::map::SortedMap;
use crate::{Error, Result};

/// A file that the user selected or dropped.
#[derive(Clone, Debug)]
pub struct PickedFile {
    /// Its name, with folders if the user selected a folder (`webkitRelativePath`).
    pub name: String,
    /// The file.
    pub blob: Blob,
}

/// Where a file's bytes are stored.
#[derive(Debug)]
enum FileStorage {
    Blob(Blob),
    /// A function that reads the whole record, called as rarely as possible, and the record's
    /// length.
    Record(Function, u64),
}

/// The selected files, presented as a model folder.
#[derive(Debug)]
pub struct PickedFiles {
    files: SortedMap<String, FileStorage>,
    /// The last record read: parts of a file are requested in order.
    last_record: RefCell<Option<(String, Chunk)>>,
    /// Their name in messages.
    pub(in crate::hub) name: String,
    /// Whether the files come from a cache (WebLLM's).
    pub(in crate::hub) from_cache: bool,
    part_size: u64,
    progress: Progress,
}

impl PickedFiles {
    /// Creates the folder. Its root is the folder that holds config.json, or the topmost one.
    pub fn new(files: Vec<PickedFile>, part_size: u64, progress: Progress) -> Result<PickedFiles> {
        if files.is_empty() {
            return Err(Error::ModelName {
                name: String::new(),
                reason: "no file was selected".to_string(),
            });
        }
        let folder = |name: &str| name.rfind('/').map_or(0, |slash| slash + 1);
        let config = files
            .iter()
            .filter(|f| f.name.ends_with("config.json"))
            .map(|f| f.name.as_str());
        let config = config
            .filter(|name| &name[folder(name)..] == "config.json")
            .min_by_key(|name| name.len());
        let root = match config {
            Some(name) => name[..folder(name)].to_string(),
            None => files
                .iter()
                .map(|f| &f.name[..folder(&f.name)])
                .min_by_key(|f| f.len())
                .unwrap_or("")
                .to_string(),
        };

        let files = files
            .into_iter()
            .filter_map(|f: PickedFile| {
                f.name
                    .strip_prefix(&root)
                    .map(|name| (name.to_string(), FileStorage::Blob(f.blob.clone())))
            })
            .collect();
        Ok(PickedFiles {
            files,
            last_record: RefCell::default(),
            name: "the selected files".to_string(),
            from_cache: false,
            part_size: part_size.max(1),
            progress,
        })
    }

    /// Adds a file of `size` bytes. `read` returns all of it: a promise of a Uint8Array, or of
    /// null.
    pub(in crate::hub) fn add_record(&mut self, name: String, read: Function, size: u64) {
        self.files.insert(name, FileStorage::Record(read, size));
    }

    async fn read(&self, file: &str, range: Range<u64>) -> Result<Chunk> {
        let unreadable = |error: JsValue| Error::MissingFile {
            file: file.to_string(),
            location: self.source_name().to_string(),
            hint: format!(
                "The browser reports: {}. Pick the files again.",
                exception_message(&error)
            ),
        };
        let blob = match self
            .files
            .get(file)
            .ok_or_else(|| self.missing_error(file))?
        {
            FileStorage::Blob(blob) => blob,
            FileStorage::Record(read, size) => {
                let whole = self.read_record(file, read, *size).await?;
                return Ok(whole.slice(range.start as usize..range.end as usize));
            }
        };
        let slice = blob
            .slice_with_f64_and_f64(range.start as f64, range.end as f64)
            .map_err(unreadable)?;
        let bytes = JsFuture::from(slice.array_buffer())
            .await
            .map_err(unreadable)?;
        Ok(Chunk::from_js(Uint8Array::new(&bytes)))
    }

    async fn read_record(&self, file: &str, read: &Function, size: u64) -> Result<Chunk> {
        let last = self
            .last_record
            .borrow()
            .as_ref()
            .filter(|last| last.0 == file)
            .map(|last| last.1.clone());
        if let Some(last) = last {
            return Ok(last);
        }
        // Never hold two records in memory.
        self.last_record.replace(None);
        let read = read
            .call0(&JsValue::NULL)
            .and_then(|promise| promise.dyn_into::<Promise>());
        let bytes = match read {
            Ok(promise) => JsFuture::from(promise)
                .await
                .ok()
                .and_then(|bytes| bytes.dyn_into::<Uint8Array>().ok()),
            Err(_) => None,
        };
        let whole = bytes
            .map(Chunk::from_js)
            .filter(|whole| whole.len() as u64 == size);
        let whole = whole.ok_or_else(|| Error::Changed {
            file: format!("{}/{file}", self.source_name()),
        })?;
        self.last_record
            .replace(Some((file.to_string(), whole.clone())));
        Ok(whole)
    }

    /// The names of the files.
    pub(in crate::hub) fn list(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    /// Whether a file exists.
    pub(in crate::hub) fn contains(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }

    fn size(&self, file: &str) -> Option<u64> {
        self.files.get(file).map(|held| match held {
            FileStorage::Blob(blob) => blob.size() as u64,
            FileStorage::Record(_, size) => *size,
        })
    }
}

impl PartSource for PickedFiles {
    type Reader = ();

    fn source_name(&self) -> &str {
        &self.name
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn part_size(&self) -> u64 {
        self.part_size
    }

    async fn info(&self, file: &str) -> Result<Option<FileInfo>> {
        self.progress.file(file);
        Ok(self.size(file).map(|size| FileInfo {
            size,
            etag: None,
            from_cache: self.from_cache,
        }))
    }

    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, ReadFault> {
        Ok(self.read(file, range).await?)
    }

    async fn part(
        &self,
        file: &str,
        part: u64,
        _run_end: u64,
        _reader: &mut Option<()>,
    ) -> Result<Chunk, ReadFault> {
        let size = self.size(file).ok_or_else(|| self.missing_error(file))?;
        let range = (part * self.part_size).min(size)..((part + 1) * self.part_size).min(size);
        let chunk = self.read(file, range).await?;
        parts::count_part(self, file, part, chunk.len(), self.from_cache);
        Ok(chunk)
    }

    fn missing_error(&self, file: &str) -> Error {
        Error::MissingFile {
            file: file.to_string(),
            location: self.source_name().to_string(),
            hint: "Pick the model's complete folder.".to_string(),
        }
    }
}
