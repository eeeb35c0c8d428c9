//! A file that changes between two parts, over a server of one file.

use std::cell::RefCell;
use std::rc::Rc;

use pollster::block_on;

use super::HttpSource;
use crate::hub::parts::PartSource;
use crate::hub::transport::{Body, Failure, Headers, Request, Response, Transport};
use crate::hub::{AbortFlag, Chunk, DirStore, HubOptions, ModelRef, Progress};

/// Answers each request with the range of its file, in one piece.
struct OneFile(Rc<RefCell<Vec<u8>>>);

struct Piece(Option<Vec<u8>>);

impl Body for Piece {
    async fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        Ok(self.0.take().map(Chunk::from_vec))
    }
}

impl Transport for OneFile {
    type Body = Piece;

    async fn send(&self, request: Request) -> Result<Response<Piece>, Failure> {
        let file = self.0.borrow();
        let range = request.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let (first, last) = range.expect("a range");
        let first: usize = first.parse().expect("a number");
        let end = last.parse().map_or(file.len(), |last: usize| file.len().min(last + 1));
        let headers = Headers {
            content_range: Some(format!("bytes {first}-{}/{}", end - 1, file.len())),
            content_length: Some((end - first).to_string()),
            etag: Some(format!("\"{}\"", file[0])),
            ..Headers::default()
        };
        Ok(Response { status: 206, headers, body: Piece(Some(file[first..end].to_vec())) })
    }
}

#[test]
fn a_connection_to_the_old_file_gives_no_part_of_the_new_one() {
    let content = Rc::new(RefCell::new(vec![1; 400]));
    let folder = ModelRef::Folder { url: "http://localhost/model".to_string() };
    let options = HubOptions { part_size: 100, ..HubOptions::default() };
    let opened = HttpSource::<OneFile, DirStore>::open(
        &folder,
        &options,
        OneFile(content.clone()),
        None,
        AbortFlag::new(),
        Progress::none(),
    );
    let source = block_on(opened).expect("a source");
    let mut reader = None;
    let mut part = |index| block_on(source.part("x.bin", index, 4, &mut reader)).expect("a part").to_vec();
    assert_eq!((part(0), part(1)), (vec![1; 100], vec![1; 100]));

    // Another request sees that the file is a new one. This connection stands before part 2 of the old one.
    *content.borrow_mut() = vec![2; 400];
    block_on(source.forget("x.bin"));
    assert_eq!((part(2), part(3)), (vec![2; 100], vec![2; 100]));
}
