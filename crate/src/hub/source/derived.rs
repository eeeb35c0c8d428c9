//! What loads compute from a model's files and keep for the next load.

use super::Source;
use crate::Result;
use crate::hub::{Chunk, KeyValueStore, cache};
use crate::util::fnv1a;

/// Smallest file whose form is kept, in bytes: a smaller one is read as fast.
const MIN_FILE_BYTES: u64 = 1 << 20;

/// A form of a small file that is read instead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileForm {
    /// The file.
    pub file: &'static str,
    /// Name of the form, without `-`.
    pub name: &'static str,
    /// Forms of another version are not read.
    pub version: u32,
}

/// The forms that a load has read or made.
#[derive(Default)]
pub(super) struct StoredForms {
    /// Forms that were read instead of their files.
    used: Vec<FileForm>,
    /// Forms that are stored after the load.
    made: Vec<(FileForm, Vec<u8>)>,
}

impl Source {
    fn derived_chunk_key(&self, set: &str, rest: &str) -> String {
        cache::derived_key(self.name(), &format!("{set}-{rest}"))
    }

    /// Whether all chunks of a set derived from this model's files are stored.
    pub(crate) async fn has_derived_set(&self, set: &str) -> bool {
        match &self.store {
            Some(store) => store
                .get(&self.derived_chunk_key(set, "whole"), 0)
                .await
                .is_some(),
            None => false,
        }
    }

    /// Reads a stored chunk of a derived set; it must have `size` bytes.
    pub(crate) async fn read_derived_chunk(
        &self,
        set: &str,
        index: usize,
        size: u64,
    ) -> Option<Chunk> {
        let key = self.derived_chunk_key(set, &format!("{index}-{size}"));
        self.store
            .as_ref()?
            .get(&key, size)
            .await
            .filter(|chunk| chunk.len() as u64 == size)
    }

    /// Stores a chunk of a derived set; false if there was no space.
    pub(crate) async fn write_derived_chunk(&self, set: &str, index: usize, chunk: &Chunk) -> bool {
        let Some(store) = &self.store else {
            return false;
        };
        store
            .put(
                &self.derived_chunk_key(set, &format!("{index}-{}", chunk.len())),
                chunk,
            )
            .await
            .is_ok()
    }

    /// Marks a derived set as complete; `note` is text that a reader of the set needs.
    pub(crate) async fn complete_derived_set(&self, set: &str, note: &str) {
        if let Some(store) = &self.store {
            let _ = store
                .put(
                    &self.derived_chunk_key(set, "whole"),
                    &Chunk::from_vec(note.into()),
                )
                .await;
        }
    }

    /// Removes the chunks of all derived sets of this model whose names start with `group`.
    pub(crate) async fn clear_derived_sets(&self, group: &str) {
        if let Some(store) = &self.store {
            cache::clear_derived(store, self.name(), group).await;
        }
    }

    /// Reads a stored form of a file, or else the file; `None` if the file does not exist.
    ///
    /// # Errors
    /// Errors of the source.
    pub async fn read_form(&self, form: FileForm) -> Result<Option<Vec<u8>>> {
        match self.ahead.files.take(form.name).await {
            Some(bytes) => bytes,
            None => self.read_form_now(form).await,
        }
    }

    /// Starts to read a form, as [`Self::read_ahead`] does files.
    pub fn read_form_ahead(&self, form: FileForm) -> impl Future<Output = ()> + 'static {
        let end = self.ahead.files.begin(form.name);
        let source = self.clone();
        async move { end.finish(source.read_form_now(form).await) }
    }

    async fn read_form_now(&self, form: FileForm) -> Result<Option<Vec<u8>>> {
        if let Some(bytes) = self.stored_form(form).await? {
            self.forms.borrow_mut().used.push(form);
            return Ok(Some(bytes));
        }
        self.read_now(form.file).await
    }

    async fn stored_form(&self, form: FileForm) -> Result<Option<Vec<u8>>> {
        let Some(set) = self.form_set(form).await? else {
            return Ok(None);
        };
        let mark = match &self.store {
            Some(store) => store.get(&self.derived_chunk_key(&set, "whole"), 0).await,
            None => None,
        };
        let size = mark.and_then(|mark| String::from_utf8(mark.to_vec()).ok()?.parse().ok());
        let Some(size) = size else {
            return Ok(None);
        };
        let chunk = self.read_derived_chunk(&set, 0, size).await;
        Ok(chunk.map(|chunk| chunk.to_vec()))
    }

    /// Name of the derived set with the form of the file's content; `None` if the file is small,
    /// does not exist or may change unnoticed.
    async fn form_set(&self, form: FileForm) -> Result<Option<String>> {
        if !self.is_persistent() {
            return Ok(None);
        }
        let info = self.info(form.file).await?;
        let info = info.filter(|info| info.size >= MIN_FILE_BYTES);
        Ok(info.and_then(|info| {
            let content = format!("{} {} {}", form.version, info.size, info.etag?);
            Some(format!("{}-{:016x}", form.name, fnv1a(&content)))
        }))
    }

    /// Keeps a form of a file that was read: [`Self::flush`] stores it.
    pub fn keep_form(&self, form: FileForm, bytes: Vec<u8>) {
        self.forms.borrow_mut().made.push((form, bytes));
    }

    /// Whether [`Self::flush`] would store a form.
    pub async fn keeps_form(&self, form: FileForm) -> bool {
        matches!(self.form_set(form).await, Ok(Some(_)))
    }

    /// Stores the forms that this load has made. Without space for one, the next load makes it
    /// again.
    pub(super) async fn store_forms(&self) {
        let made = std::mem::take(&mut self.forms.borrow_mut().made);
        for (form, bytes) in made {
            let Ok(Some(set)) = self.form_set(form).await else {
                continue;
            };
            self.clear_derived_sets(&format!("{}-", form.name)).await;
            let chunk = Chunk::from_vec(bytes);
            if self.write_derived_chunk(&set, 0, &chunk).await {
                let size = chunk.len().to_string();
                self.complete_derived_set(&set, &size).await;
            }
        }
    }

    /// Removes the forms that this load has read. Returns whether there were any.
    pub(super) async fn evict_forms(&self) -> bool {
        let used = std::mem::take(&mut self.forms.borrow_mut().used);
        for form in &used {
            self.clear_derived_sets(&format!("{}-", form.name)).await;
        }
        !used.is_empty()
    }
}
