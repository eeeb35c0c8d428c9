//! Progress of a load, and aborting it.

use super::{WEIGHTS, file_of, model, open, options, single, tensors};
use jerboa::hub::{
    AbortFlag, DirStore, HubOptions, Phase, Progress, ProgressEvent, RetryPolicy, Source,
    cached_models,
};
use pollster::block_on;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs an action and returns the maximum delay of this machine's thread wake-ups meanwhile: on a
/// busy machine everything is late.
fn beside<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let over = Arc::new(AtomicBool::new(false));
    let end = over.clone();
    let sleeper = std::thread::spawn(move || {
        let nap = Duration::from_millis(20);
        let mut latest = Duration::ZERO;
        while !end.load(Ordering::SeqCst) {
            let begin = Instant::now();
            std::thread::sleep(nap);
            latest = latest.max(begin.elapsed() - nap);
        }
        latest
    });
    let result = work();
    over.store(true, Ordering::SeqCst);
    (result, sleeper.join().expect("a thread"))
}

#[test]
fn an_abort_leaves_no_incomplete_file_in_the_cache() {
    let (server, expected) = single();
    let size = file_of(&expected).len() as u64;
    for after in [0, 1, 5] {
        let abort = AbortFlag::new();
        let pieces = Cell::new(0);
        let result = block_on(async {
            let source = Source::open(
                &model(),
                &options(&server),
                abort.clone(),
                Progress::silent(),
            )
            .await?;
            let checkpoint = source.checkpoint().await?;
            let wanted: Vec<_> = checkpoint.tensors.values().collect();
            if after == 0 {
                abort.abort();
            }
            source
                .stream_tensors(&checkpoint, &wanted, async |_, _, _| {
                    pieces.set(pieces.get() + 1);
                    if pieces.get() == after {
                        abort.abort();
                    }
                    Ok(())
                })
                .await
        });
        assert_eq!(result.expect_err("an abort").code(), "aborted");
        assert!(pieces.get() <= after + 1);
        let store = DirStore::new(server.root.join("cache"));
        let models = block_on(cached_models(&store)).expect("a list");
        assert!(
            models.iter().all(|m| !m.complete),
            "half a model looks whole"
        );
    }
    // Bytes that arrived are not fetched again. Requests of the aborted load may not be in the
    // server's log yet.
    let mut seen = usize::MAX;
    while seen != server.log(0).len() {
        seen = server.log(0).len();
        std::thread::sleep(Duration::from_millis(300));
    }
    let found =
        block_on(async { tensors(&open(&options(&server)).await?).await }).expect("a model");
    assert_eq!(found, expected);
    let sent: u64 = server
        .log(seen)
        .iter()
        .filter(|r| r.origin == "cdn")
        .map(|r| r.bytes)
        .sum();
    assert!(
        sent < size,
        "{sent} of {size} bytes were fetched after the abort"
    );
}

#[test]
fn an_abort_ends_a_wait() {
    let (server, _) = single();
    server.fault(&json!({ "kind": "stall", "match": "config.json", "after": 0 }));
    // Without the abort the stalled request would time out after five minutes.
    let retry = RetryPolicy {
        stall_ms: 300_000.0,
        ..RetryPolicy::default()
    };
    let options = HubOptions {
        retry,
        ..options(&server)
    };
    let abort = AbortFlag::new();
    let other = abort.clone();
    let begin = Instant::now();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        other.abort();
    });
    let (result, late) = beside(|| {
        block_on(async {
            Source::open(&model(), &options, abort, Progress::silent())
                .await?
                .read("config.json")
                .await
        })
    });
    assert_eq!(result.expect_err("an abort").code(), "aborted");
    assert!(begin.elapsed() < Duration::from_millis(1500) + 2 * late);
}

#[test]
fn progress_never_decreases() {
    let (server, _) = single();
    server.fault(&json!({ "kind": "slow", "match": "cdn", "rate": 400_000 }));
    server.fault(&json!({ "kind": "drop", "match": "cdn", "after": 40_000, "times": 2 }));
    let events = Rc::new(RefCell::new(Vec::<(Instant, ProgressEvent)>::new()));
    let sink = events.clone();
    let progress = Progress::new(move |e| sink.borrow_mut().push((Instant::now(), e.clone())));
    let (loaded, late) = beside(|| {
        block_on(async {
            let source = Source::open(
                &model(),
                &options(&server),
                AbortFlag::new(),
                progress.clone(),
            )
            .await?;
            progress.phase(Phase::Weights);
            tensors(&source).await
        })
    });
    loaded.expect("a model");
    let events = events.borrow();
    let weights: Vec<_> = events
        .iter()
        .filter(|(_, e)| e.phase == Phase::Weights)
        .collect();
    for pair in weights.windows(2) {
        assert!(pair[1].1.loaded >= pair[0].1.loaded, "progress fell");
        assert!(
            pair[1].0 - pair[0].0 < Duration::from_millis(400) + 2 * late,
            "a silence of {:?}",
            pair[1].0 - pair[0].0
        );
    }
    let last = &weights.last().expect("events").1;
    assert!(
        last.loaded == last.total && last.total > 0 && last.seconds_left == Some(0.0),
        "{last:?}"
    );
    assert!(
        weights
            .iter()
            .any(|(_, e)| e.bytes_per_second > 0.0 && e.seconds_left.is_some_and(|s| s > 0.0))
    );
    assert!(weights.iter().any(|(_, e)| e.file == WEIGHTS));
}

/// A model of two graphs reads the same file twice: its bytes count once, and bytes that this load
/// cached do not count as cached. A second load reads everything from the cache.
#[test]
fn bytes_read_by_several_graphs_count_once() {
    let (server, expected) = single();
    let size = file_of(&expected).len() as u64;
    for again in [false, true] {
        let events = Rc::new(RefCell::new(Vec::<ProgressEvent>::new()));
        let sink = events.clone();
        let progress = Progress::new(move |e| sink.borrow_mut().push(e.clone()));
        block_on(async {
            let source = Source::open(
                &model(),
                &options(&server),
                AbortFlag::new(),
                progress.clone(),
            )
            .await?;
            let checkpoint = source.checkpoint().await?;
            progress.phase(Phase::Weights);
            let all: Vec<_> = checkpoint.tensors.values().collect();
            source.expect_tensors(&checkpoint, &all);
            // The second graph needs only parts that the first one needed too.
            for wanted in [&all[..1], &all[..], &all[2..]] {
                source
                    .stream_tensors(&checkpoint, wanted, async |_, _, _| Ok(()))
                    .await?;
            }
            source.flush().await;
            Ok::<_, jerboa::Error>(())
        })
        .expect("a model");
        let events = events.borrow();
        let weights: Vec<_> = events
            .iter()
            .filter(|e| e.phase == Phase::Weights && e.total > 0)
            .collect();
        assert!(
            weights.iter().all(|e| e.total == size && e.loaded <= size),
            "{weights:?}"
        );
        assert!(
            weights
                .windows(2)
                .all(|two| two[0].progress <= two[1].progress)
        );
        assert_eq!(weights.last().map(|e| e.loaded), Some(size));
        assert!(
            weights
                .iter()
                .filter(|e| e.loaded > 0)
                .all(|e| e.from_cache == again),
            "{again}: {weights:?}"
        );
    }
}
