//! Tests with a server of one file that changes between two parts, and with a slow store.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use pollster::block_on;

use super::HttpSource;
use crate::Error;
use crate::hub::cache::{KeyValueStore, StoreError, cached_models, delete_cached};
use crate::hub::parts::PartSource;
use crate::hub::remote::ReadFault;
use crate::hub::transport::{
    HttpHeaders, HttpRequest, HttpResponse, ResponseBody, Transport, TransportError,
};
use crate::hub::{AbortFlag, Chunk, DirStore, HubOptions, ModelRef, Progress};
use crate::util::map::SortedMap;

/// Answers each request with the range of its file, in one chunk. Names with `absent` have no file.
/// An empty file is a server that cannot be reached.
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
        if self.0.borrow().is_empty() {
            return Err(TransportError("offline".to_string()));
        }
        if request.url.contains("absent") {
            return Ok(HttpResponse {
                status: 404,
                headers: HttpHeaders::default(),
                body: OneChunkBody(None),
            });
        }
        let file = self.0.borrow();
        let range = request
            .range
            .as_deref()
            .and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        // Metadata is requested without a range.
        let (first, last) = range.unwrap_or(("0", ""));
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
#[derive(Clone, Debug, Default)]
struct BlockingStore {
    entries: Rc<RefCell<SortedMap<String, Vec<u8>>>>,
    open: Rc<Cell<bool>>,
    full: bool,
    /// Number of entries that still fit, if limited.
    room: Rc<Cell<Option<usize>>>,
    calls: Rc<StoreCalls>,
}

#[derive(Debug, Default)]
struct StoreCalls {
    /// How often the keys were listed.
    listings: Cell<usize>,
    /// Calls until the store cannot be listed or changed any more, if limited.
    left: Cell<Option<usize>>,
}

impl BlockingStore {
    fn check(&self) -> Result<(), StoreError> {
        let calls = self.calls.left.get();
        self.calls
            .left
            .set(calls.map(|calls| calls.saturating_sub(1)));
        match calls {
            Some(0) => Err(StoreError::Other("the disk is gone".to_string())),
            _ => Ok(()),
        }
    }
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
        let room = self.room.get();
        self.room.set(room.map(|room| room.saturating_sub(1)));
        if self.full || room == Some(0) {
            return Err(StoreError::Quota("no room is left".to_string()));
        }
        self.entries
            .borrow_mut()
            .insert(key.to_string(), value.to_vec());
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.check()?;
        self.entries.borrow_mut().remove(key);
        Ok(())
    }

    async fn keys(&self) -> Result<Vec<String>, StoreError> {
        self.check()?;
        self.calls.listings.set(self.calls.listings.get() + 1);
        Ok(self.entries.borrow().keys().cloned().collect())
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
        let names = block_on(store.keys()).expect("a list");
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
    let codes: Vec<&str> = source.warnings().iter().map(Error::code).collect();
    assert_eq!(codes, ["quota"]);
    assert!(store.entries.borrow().is_empty());
}

#[test]
fn a_quota_that_is_hit_midway_leaves_nothing_that_a_later_load_trusts() {
    for room in 0..5 {
        let store = BlockingStore::default();
        store.open.set(true);
        store.room.set(Some(room));
        let source = blocking_source(&store);
        read_last_file(&source, "x.bin");
        block_on(source.flush());
        // Three parts and the manifest fit into four entries.
        let whole = room >= 4;
        assert_eq!(source.warnings().is_empty(), whole, "room for {room}");
        let listed = block_on(cached_models(&store)).expect("a list");
        let complete = listed.iter().any(|model| model.complete);
        assert_eq!(complete, whole, "room for {room}: {listed:?}");

        // The next load has the right bytes, and then all of them are stored.
        store.room.set(None);
        let source = blocking_source(&store);
        let mut reader = None;
        for part in 0..3 {
            let bytes = block_on(source.part("x.bin", part, 3, &mut reader)).expect("a part");
            assert_eq!(bytes.to_vec(), vec![1; 100], "room for {room}");
        }
        block_on(source.finalize("x.bin", true));
        block_on(source.flush());
        assert!(
            block_on(cached_models(&store)).expect("a list")[0].complete,
            "room for {room}"
        );
    }
}

#[test]
fn a_store_that_cannot_be_listed_or_changed_is_an_error() {
    let store = BlockingStore::default();
    store.open.set(true);
    let source = blocking_source(&store);
    read_last_file(&source, "x.bin");
    block_on(source.flush());
    let name = block_on(cached_models(&store)).expect("a list")[0]
        .source
        .clone();
    let failures = [(0, "listed"), (1, "changed"), (2, "changed")];
    for (calls, action) in failures {
        store.calls.left.set(Some(calls));
        let error = block_on(delete_cached(&store, &name)).expect_err("an error");
        let start = format!("the cache cannot be {action}: the disk is gone. Close other tabs");
        assert!(error.to_string().starts_with(&start), "{error}");
    }
    store.calls.left.set(Some(0));
    assert!(block_on(cached_models(&store)).is_err());
    // A load reads from the network instead.
    let source = blocking_source(&store);
    read_last_file(&source, "x.bin");
    store.calls.left.set(None);
    block_on(delete_cached(&store, &name)).expect("an empty store");
    assert!(block_on(cached_models(&store)).expect("a list").is_empty());
}

/// A server that hides Content-Range from the page, and sends other bytes than the requested ones
/// for ranges that do not start the file.
struct HiddenRanges {
    shift: usize,
    length: Option<usize>,
}

impl Transport for HiddenRanges {
    type Body = OneChunkBody;

    async fn send(
        &self,
        request: HttpRequest,
    ) -> Result<HttpResponse<OneChunkBody>, TransportError> {
        let content: Vec<u8> = (0..400).map(|i| (i % 251) as u8).collect();
        let range = request.range.as_deref().unwrap_or_default();
        let (first, last) = range
            .trim_start_matches("bytes=")
            .split_once('-')
            .expect("a range");
        let first: usize = first.parse().expect("a number");
        let end = last.parse().map_or(400, |last: usize| 400.min(last + 1));
        let shift = if first > 0 {
            self.shift.min(400 - end)
        } else {
            0
        };
        let count = self.length.filter(|_| first > 0).unwrap_or(end - first);
        let body: Vec<u8> = content
            .into_iter()
            .skip(first + shift)
            .take(count)
            .collect();
        let whole = range == "bytes=0-";
        let headers = HttpHeaders {
            content_length: Some(body.len().to_string()),
            etag: Some("\"one\"".to_string()),
            filtered: true,
            ..HttpHeaders::default()
        };
        Ok(HttpResponse {
            status: if whole { 200 } else { 206 },
            headers,
            body: OneChunkBody(Some(body)),
        })
    }
}

#[test]
fn ranges_are_checked_where_the_browser_hides_content_range() {
    let read = |shift, length| {
        let folder = ModelRef::Folder {
            url: "http://localhost/model".to_string(),
        };
        let options = HubOptions {
            part_size: 100,
            ..HubOptions::default()
        };
        let store = BlockingStore::default();
        store.open.set(true);
        let source = block_on(HttpSource::open(
            &folder,
            &options,
            HiddenRanges { shift, length },
            Some(store.clone()),
            AbortFlag::new(),
            Progress::silent(),
        ))
        .expect("a source");
        let mut reader = None;
        let mut bytes = Vec::new();
        for part in 0..4 {
            match block_on(source.part("x.bin", part, 4, &mut reader)) {
                Ok(chunk) => bytes.extend(chunk.to_vec()),
                Err(ReadFault::Failed(error)) => return Err((error, store)),
                Err(ReadFault::Changed) => panic!("the file does not change"),
            }
        }
        Ok(bytes)
    };
    let expected: Vec<u8> = (0..400).map(|i| (i % 251) as u8).collect();
    assert_eq!(read(0, None).expect("honest ranges"), expected);
    for (shift, length, reason) in [
        (1, None, "other bytes"),
        (0, Some(400), "but the server sent"),
    ] {
        let (error, store) = read(shift, length).expect_err("wrong bytes");
        assert_eq!(error.code(), "network");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(store.entries.borrow().is_empty(), "wrong bytes are stored");
    }
}

#[test]
fn a_load_lists_the_store_once_and_a_later_one_never() {
    let store = BlockingStore::default();
    store.open.set(true);
    for expected in [1, 1] {
        let source = blocking_source(&store);
        for file in ["x.bin", "y.bin", "z.bin"] {
            read_last_file(&source, file);
            block_on(source.flush());
        }
        assert_eq!(store.calls.listings.get(), expected);
    }
}

#[test]
fn a_file_known_to_be_absent_needs_no_listing() {
    let store = BlockingStore::default();
    store.open.set(true);
    for expected in [1, 1] {
        let source = blocking_source(&store);
        for file in ["absent.json", "absent.txt"] {
            assert!(block_on(source.info(file)).expect("an answer").is_none());
        }
        block_on(source.flush());
        assert_eq!(store.calls.listings.get(), expected);
        assert_eq!(block_on(store.keys()).expect("a list").len(), 2);
        store.calls.listings.set(expected);
    }
}

/// Files of a folder have no commit. Offline, optional files that were absent still are.
#[test]
fn a_file_known_to_be_absent_is_not_needed_offline() {
    let store = BlockingStore::default();
    store.open.set(true);
    let folder = ModelRef::Folder {
        url: "http://localhost/model".to_string(),
    };
    let content = Rc::new(RefCell::new(vec![1; 400]));
    let open = || {
        block_on(HttpSource::open(
            &folder,
            &HubOptions::default(),
            OneFile(content.clone()),
            Some(store.clone()),
            AbortFlag::new(),
            Progress::silent(),
        ))
        .expect("a source")
    };
    let source = open();
    assert!(
        block_on(source.info("absent.jinja"))
            .expect("an answer")
            .is_none()
    );
    block_on(source.flush());
    content.borrow_mut().clear();
    let source = open();
    assert!(
        block_on(source.info("absent.jinja"))
            .expect("an answer")
            .is_none()
    );
    let warnings = source.warnings();
    assert!(
        matches!(warnings[..], [Error::Unverified { .. }]),
        "{warnings:?}"
    );
    let error = block_on(source.info("absent.new")).expect_err("it was never asked for");
    assert_eq!(error.code(), "network");
}
