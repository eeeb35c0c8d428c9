//! Tests with a server of one file that changes between two parts, and with a slow store.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use pollster::block_on;

use super::HttpSource;
use crate::hub::cache::{KeyValueStore, StoreError};
use crate::hub::parts::PartSource;
use crate::hub::transport::{
    HttpHeaders, HttpRequest, HttpResponse, ResponseBody, Transport, TransportError,
};
use crate::hub::{AbortFlag, Chunk, DirStore, HubOptions, ModelRef, Progress};
use crate::util::map::SortedMap;

/// Answers each request with the range of its file, in one chunk.
struct OneFile(Rc<RefCell<Vec<u8>>>);

struct OneChunkBody(Option<Vec<u8>>);

impl ResponseBody for OneChunkBody {
    async fn next(&mut self) -> Result<Option<Chunk>, TransportError> {
        Ok(self.0.take().map(Chunk::from_vec))
    }
}

impl Transport for OneFile {
    type Body = OneChunkBody;

    async fn send(
        &self,
        request: HttpRequest,
    ) -> Result<HttpResponse<OneChunkBody>, TransportError> {
        let file = self.0.borrow();
        let range = request
            .range
            .as_deref()
            .and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let (first, last) = range.expect("a range");
        let first: usize = first.parse().expect("a number");
        let end = last
            .parse()
            .map_or(file.len(), |last: usize| file.len().min(last + 1));
        let headers = HttpHeaders {
            content_range: Some(format!("bytes {first}-{}/{}", end - 1, file.len())),
            content_length: Some((end - first).to_string()),
            etag: Some(format!("\"{}\"", file[0])),
            ..HttpHeaders::default()
        };
        Ok(HttpResponse {
            status: 206,
            headers,
            body: OneChunkBody(Some(file[first..end].to_vec())),
        })
    }
}

#[test]
fn a_connection_to_the_old_file_gives_no_part_of_the_new_one() {
    let content = Rc::new(RefCell::new(vec![1; 400]));
    let folder = ModelRef::Folder {
        url: "http://localhost/model".to_string(),
    };
    let options = HubOptions {
        part_size: 100,
        ..HubOptions::default()
    };
    let opened = HttpSource::<OneFile, DirStore>::open(
        &folder,
        &options,
        OneFile(content.clone()),
        None,
        AbortFlag::new(),
        Progress::silent(),
    );
    let source = block_on(opened).expect("a source");
    let mut reader = None;
    let mut part = |index| {
        block_on(source.part("x.bin", index, 4, &mut reader))
            .expect("a part")
            .to_vec()
    };
    assert_eq!((part(0), part(1)), (vec![1; 100], vec![1; 100]));

    // Another request notices the change. This connection is positioned before part 2 of the old
    // file.
    *content.borrow_mut() = vec![2; 400];
    block_on(source.evict("x.bin"));
    assert_eq!((part(2), part(3)), (vec![2; 100], vec![2; 100]));
}

/// An in-memory store that blocks until released, then returns a preset result.
#[derive(Clone, Default)]
struct BlockingStore {
    entries: Rc<RefCell<SortedMap<String, Vec<u8>>>>,
    open: Rc<Cell<bool>>,
    full: bool,
}

impl KeyValueStore for BlockingStore {
    async fn get(&self, key: &str, _size: u64) -> Option<Chunk> {
        self.entries.borrow().get(key).cloned().map(Chunk::from_vec)
    }

    async fn put(&self, key: &str, value: &Chunk) -> Result<(), StoreError> {
        let open = self.open.clone();
        poll_fn(|_| {
            if open.get() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        if self.full {
            return Err(StoreError::Quota("no room is left".to_string()));
        }
        self.entries
            .borrow_mut()
            .insert(key.to_string(), value.to_vec());
        Ok(())
    }

    async fn delete(&self, key: &str) {
        self.entries.borrow_mut().remove(key);
    }

    async fn keys(&self) -> Vec<String> {
        self.entries.borrow().keys().cloned().collect()
    }

    async fn hash(
        &self,
        _key: &str,
        _size: u64,
        _state: [u32; 8],
        _end: Option<u64>,
    ) -> Option<[u32; 8]> {
        None
    }
}

fn blocking_source(store: &BlockingStore) -> HttpSource<OneFile, BlockingStore> {
    let folder = ModelRef::Folder {
        url: "http://localhost/model".to_string(),
    };
    let options = HubOptions {
        part_size: 100,
        defer_finalize: true,
        ..HubOptions::default()
    };
    let server = OneFile(Rc::new(RefCell::new(vec![1; 300])));
    let opened = HttpSource::open(
        &folder,
        &options,
        server,
        Some(store.clone()),
        AbortFlag::new(),
        Progress::silent(),
    );
    block_on(opened).expect("a source")
}

/// Reads the three parts of a file, as the last file of a load.
fn read_last_file(source: &HttpSource<OneFile, BlockingStore>, file: &str) {
    let mut reader = None;
    for part in 0..3 {
        block_on(source.part(file, part, 3, &mut reader)).expect("a part");
    }
    block_on(source.finalize(file, true));
}

#[test]
fn a_load_ends_before_its_last_file_is_written_and_can_be_waited_for() {
    let store = BlockingStore::default();
    let source = blocking_source(&store);
    read_last_file(&source, "x.bin");
    assert!(
        store.entries.borrow().is_empty(),
        "the store holds all writes back"
    );
    store.open.set(true);
    block_on(source.flush());
    let whole = |file: &str| {
        let names = block_on(store.keys());
        let ours: Vec<_> = names.iter().filter(|name| name.contains(file)).collect();
        ours.len() == 4 && ours.iter().any(|name| name.ends_with("manifest"))
    };
    assert!(whole("x.bin"), "{:?}", block_on(store.keys()));
    // Reads after that are not waited for by anyone.
    read_last_file(&source, "y.bin");
    assert!(whole("y.bin"), "{:?}", block_on(store.keys()));
}

#[test]
fn a_store_that_fills_up_after_a_load_says_so_by_the_time_that_it_settles() {
    let store = BlockingStore {
        full: true,
        ..BlockingStore::default()
    };
    let source = blocking_source(&store);
    read_last_file(&source, "x.bin");
    assert!(source.warnings().is_empty());
    store.open.set(true);
    block_on(source.flush());
    let codes: Vec<&str> = source.warnings().iter().map(crate::Error::code).collect();
    assert_eq!(codes, ["quota"]);
    assert!(store.entries.borrow().is_empty());
}
