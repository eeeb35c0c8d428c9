//! Git LFS pointers, which a clone without Git LFS has in place of large files.

use crate::{Error, Result};

const POINTER_START: &[u8] = b"version https://git-lfs";

/// Refuses a file that begins as a pointer.
///
/// # Errors
/// `UnusableFile` for a pointer.
pub fn refuse_pointer(file: &str, start: &[u8]) -> Result<()> {
    if !start.starts_with(POINTER_START) {
        return Ok(());
    }
    Err(Error::UnusableFile {
        file: file.into(),
        reason: "it is a Git LFS pointer instead of the file".into(),
        hint: "The repository was cloned without Git LFS: run 'git lfs pull' in its folder.".into(),
    })
}
