//! Small files that are read before anything asks for them, while a load waits for something else.

use crate::Result;
use crate::util::latch::Latch;
use crate::util::map::SortedMap;
use std::cell::RefCell;
use std::rc::Rc;

type FileBytes = Result<Option<Vec<u8>>>;

/// A file that is being read.
#[derive(Default)]
struct ReadingFile {
    has_ended: Latch,
    bytes: RefCell<Option<FileBytes>>,
}

/// Ends the wait for a file when its read ends or is dropped.
pub(super) struct EndOfRead(Rc<ReadingFile>);

impl Drop for EndOfRead {
    fn drop(&mut self) {
        self.0.has_ended.open();
    }
}

/// The files that are being read, by name.
#[derive(Default)]
pub(super) struct FilesAhead(RefCell<SortedMap<String, Rc<ReadingFile>>>);

impl FilesAhead {
    /// Waits for a file's read and takes its bytes; `None` if none was started or it was dropped.
    pub async fn take(&self, file: &str) -> Option<FileBytes> {
        let reading = self.0.borrow_mut().remove(file)?;
        reading.has_ended.wait().await;
        reading.bytes.take()
    }

    /// Notes that a file is being read: [`Self::take`] waits for it from now on.
    pub fn begin(&self, file: &str) -> EndOfRead {
        let reading = Rc::new(ReadingFile::default());
        self.0.borrow_mut().insert(file.to_owned(), reading.clone());
        EndOfRead(reading)
    }
}

impl EndOfRead {
    /// Hands over what was read.
    pub fn finish(self, bytes: FileBytes) {
        *self.0.bytes.borrow_mut() = Some(bytes);
    }
}
