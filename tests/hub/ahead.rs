//! Files and weights that are requested before the load asks for them.

use super::server::Server;
use super::{
    CONFIG, PART, Tensors, WEIGHTS, content, file_of, load, model, open, options, single, tensors,
};
use futures_util::future::{join, ready};
use jerboa::hub::{AbortFlag, Phase, Progress, ProgressEvent, Source};
use jerboa::{Error, Result};
use pollster::block_on;
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn files_read_ahead_are_requested_once() {
    let (server, _) = single();
    let requests = |seen: usize| {
        let all = server.log(seen).into_iter();
        all.filter(|r| r.path.ends_with("/config.json")).count()
    };
    block_on(async {
        let source = open(&options(&server)).await.expect("a source");
        let seen = server.log(0).len();
        source.read_ahead(&["config.json", "missing.json"]).await;
        let ahead = requests(seen);
        assert!(ahead > 0);
        let config = source.read("config.json").await.expect("a file");
        assert_eq!((config.as_slice(), requests(seen)), (CONFIG, ahead));
        let missing = source.read_optional("missing.json").await;
        assert_eq!(missing.expect("an answer"), None);
        // A read that was dropped does not delay the file.
        drop(source.read_ahead(&["config.json"]));
        let config = source.read("config.json").await.expect("a file");
        assert_eq!(config, CONFIG);
        // The read goes on while another future waits for it.
        let (_, config) = join(
            source.read_ahead(&["config.json"]),
            source.read("config.json"),
        )
        .await;
        assert_eq!(config.expect("a file"), CONFIG);
    });
}

#[test]
fn stored_weights_are_read_ahead() {
    let (server, expected) = single();
    let read = async |is_ahead: bool| {
        let source = open(&options(&server)).await?;
        let seen = server.log(0).len();
        let read = if is_ahead {
            let (_, read) = join(source.read_weights_ahead(ready(())), tensors(&source)).await;
            read
        } else {
            tensors(&source).await
        };
        source.drop_reads_ahead();
        Ok::<_, Error>((read?, server.log(seen).len()))
    };
    // Nothing is requested ahead of a load that may need something else.
    block_on(async {
        let source = open(&options(&server)).await.expect("a source");
        let seen = server.log(0).len();
        source.read_weights_ahead(ready(())).await;
        assert_eq!(server.log(seen).len(), 0);
    });
    let (first, _) = block_on(read(false)).expect("the first load");
    assert_eq!(first, expected);
    let (usual, requests) = block_on(read(false)).expect("a load");
    let (ahead, ahead_requests) = block_on(read(true)).expect("a load");
    assert_eq!((&usual, &ahead), (&expected, &expected));
    assert_eq!(ahead_requests, requests);

    // A file that has changed since is not mixed with the parts that were read ahead.
    let changed = content(50);
    let source = block_on(open(&options(&server))).expect("a source");
    block_on(source.read_weights_ahead(ready(())));
    server.change(WEIGHTS, &file_of(&changed));
    let mixed = block_on(tensors(&source)).expect("a load");
    assert!(mixed == expected || mixed == changed);
    let (read, _) = block_on(read(true)).expect("a load");
    assert_eq!(read, changed);
}

/// A first load, with the weights read ahead once config.json is there.
pub async fn first_load_ahead(source: &Source) -> Result<(Vec<u8>, Tensors)> {
    let ahead = source.read_weights_ahead(source.read_ahead(&["config.json"]));
    join(ahead, load(source)).await.1
}

fn weight_bytes(server: &Server, seen: usize) -> u64 {
    let all = server.log(seen).into_iter();
    let weights = all.filter(|r| r.path.contains(WEIGHTS));
    weights.map(|r| r.bytes).sum()
}

#[test]
fn weights_of_a_first_load_are_downloaded_ahead_and_once() {
    let (server, expected) = single();
    let size = file_of(&expected).len() as u64;
    let reports = Rc::new(RefCell::new(Vec::new()));
    let sink = reports.clone();
    let progress =
        Progress::new(move |event: &ProgressEvent| sink.borrow_mut().push(event.clone()));
    let opened =
        async { Source::open(&model(), &options(&server), AbortFlag::new(), progress).await };
    let source = block_on(opened).expect("a source");

    // With all parts there before the load asks for them, it asks for nothing.
    let seen = server.log(0).len();
    let config = source.read_ahead(&["config.json"]);
    block_on(source.read_weights_ahead(config));
    let requests = server.log(seen).len();
    assert_eq!(weight_bytes(&server, seen), size);
    source.progress().phase(Phase::Weights);
    let found = block_on(tensors(&source)).expect("the first load");
    assert_eq!((&found, server.log(seen).len()), (&expected, requests));
    let last = reports.borrow().last().cloned().expect("a report");
    assert_eq!((last.loaded, last.from_cache), (last.total, false));

    // They are stored as those of any other load.
    block_on(source.flush());
    let seen = server.log(0).len();
    block_on(async { load(&open(&options(&server)).await?).await }).expect("the second load");
    assert_eq!(weight_bytes(&server, seen), 0);
}

#[test]
fn faults_while_weights_are_downloaded_ahead_are_those_of_the_load() {
    // The load asks while the parts arrive; the connection breaks; the server has none of it.
    for fault in [
        None,
        Some(json!({"match": WEIGHTS, "kind": "drop", "after": 50_000, "times": 2})),
        Some(json!({"match": WEIGHTS, "kind": "status", "status": 503, "times": 2})),
    ] {
        let (server, expected) = single();
        if let Some(fault) = &fault {
            server.fault(fault);
        }
        let source = block_on(open(&options(&server))).expect("a source");
        let (config, found) = block_on(first_load_ahead(&source)).expect("a load");
        assert_eq!(
            (config.as_slice(), &found),
            (CONFIG, &expected),
            "{fault:?}"
        );
    }

    // The file changes after the header and some parts were read.
    let (server, expected) = single();
    let source = block_on(open(&options(&server))).expect("a source");
    let config = source.read_ahead(&["config.json"]);
    block_on(source.read_weights_ahead(config));
    let changed = content(50);
    server.change(WEIGHTS, &file_of(&changed));
    let found = block_on(tensors(&source)).expect("a load");
    assert!(found == expected || found == changed);

    // Without config.json nothing is asked for, and the load says what is missing.
    let server = Server::start();
    server.file(WEIGHTS, &file_of(&expected));
    let source = block_on(open(&options(&server))).expect("a source");
    let seen = server.log(0).len();
    let refused = block_on(first_load_ahead(&source));
    assert!(
        matches!(refused, Err(Error::NotFound { .. })),
        "{refused:?}"
    );
    assert_eq!(weight_bytes(&server, seen), 0);
}

#[test]
fn downloads_that_were_dropped_do_not_hold_up_the_load() {
    let (server, expected) = single();
    let source = block_on(open(&options(&server))).expect("a source");
    let config = source.read_ahead(&["config.json"]);
    let mut ahead = Box::pin(source.read_weights_ahead(config));
    // Until the first part has begun.
    while weight_bytes(&server, 0) < PART {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if ahead.as_mut().poll(&mut context).is_ready() {
            break;
        }
    }
    drop(ahead);
    let found = block_on(tensors(&source)).expect("a load");
    assert_eq!(found, expected);
}
