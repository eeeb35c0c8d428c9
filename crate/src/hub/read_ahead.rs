//! Small files that are read before anything asks for them, while a load waits for something else.

use super::Source;
use crate::Result;
use crate::util::latch::Latch;
use crate::util::map::SortedMap;
use futures_util::future::join_all;
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
struct EndOfRead(Rc<ReadingFile>);

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
}

impl Source {
    /// Starts to read these small files: [`Self::read_optional`] waits for their bytes, once. The
    /// returned future reads them; if it is dropped, they are read when they are asked for.
    pub fn read_ahead(&self, files: &[&str]) -> impl Future<Output = ()> + 'static {
        let reads: Vec<_> = files
            .iter()
            .map(|file| {
                let reading = Rc::new(ReadingFile::default());
                let end = EndOfRead(reading.clone());
                self.files_ahead()
                    .0
                    .borrow_mut()
                    .insert((*file).to_owned(), reading);
                let (source, file) = (self.clone(), (*file).to_owned());
                async move {
                    let bytes = source.read_now(&file).await;
                    *end.0.bytes.borrow_mut() = Some(bytes);
                }
            })
            .collect();
        async move {
            join_all(reads).await;
        }
    }
}
