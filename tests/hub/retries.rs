//! Faults that pass, and those that last.

use super::server::{base64, pattern};
use super::{CONFIG, Tensors, WEIGHTS, content, file_of, load, open, options, single, tensors};
use jerboa::hub::{HubOptions, RetryPolicy};
use pollster::block_on;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

#[test]
fn temporary_faults_are_retried() {
    for fault in [
        json!({ "kind": "status", "match": "config.json", "status": 429, "retryAfter": 1, "times": 1 }),
        json!({ "kind": "status", "match": WEIGHTS, "status": 429, "times": 2 }),
        json!({ "kind": "status", "match": WEIGHTS, "status": 503, "times": 3 }),
        json!({ "kind": "status", "match": "config.json", "status": 500, "times": 2 }),
        json!({ "kind": "drop", "match": "cdn", "after": 1000, "times": 5 }),
        json!({ "kind": "drop", "match": "config.json", "after": 0, "times": 2 }),
        json!({ "kind": "short", "match": "cdn", "after": 5000, "times": 3 }),
        json!({ "kind": "stall", "match": "cdn", "after": 20_000, "times": 1 }),
        json!({ "kind": "noRange" }),
        json!({ "kind": "noEtag" }),
        json!({ "kind": "noHead" }),
        json!({ "kind": "noLength" }),
        json!({ "kind": "noCommit" }),
    ] {
        let (server, expected) = single();
        server.fault(&fault);
        for visit in ["first", "second"] {
            let begin = Instant::now();
            let result = block_on(async { load(&open(&options(&server)).await?).await });
            let (config, found) =
                result.unwrap_or_else(|e| panic!("{visit} load with {fault}: {e}"));
            assert!(
                config == CONFIG && found == expected,
                "{visit} load with {fault}"
            );
            assert!(
                fault["retryAfter"].is_null()
                    || visit == "second"
                    || begin.elapsed().as_millis() >= 1000
            );
        }
    }
}

#[test]
fn a_body_without_ranges_and_without_end_is_resumed_too() {
    let (server, expected) = single();
    server.fault(&json!({ "kind": "noRange" }));
    server.fault(&json!({ "kind": "drop", "match": "cdn", "after": 100_000, "times": 1 }));
    let found =
        block_on(async { tensors(&open(&options(&server)).await?).await }).expect("a model");
    assert_eq!(found, expected);
}

#[test]
fn a_dropped_connection_is_resumed_from_the_byte() {
    let (server, expected) = single();
    let size = file_of(&expected).len() as u64;
    server.fault(&json!({ "kind": "drop", "match": "cdn", "after": 9000, "times": 8 }));
    let found =
        block_on(async { tensors(&open(&options(&server)).await?).await }).expect("a model");
    assert_eq!(found, expected);
    let sent: u64 = server
        .log(0)
        .iter()
        .filter(|r| r.origin == "cdn")
        .map(|r| r.bytes)
        .sum();
    // Nothing is requested twice, except what a closed connection lost.
    assert!(
        sent < size + 9 * 9000,
        "{sent} bytes sent for a file of {size}"
    );
    let starts = server
        .log(0)
        .iter()
        .filter(|r| r.range.as_deref() == Some("bytes=0-16383"))
        .count();
    assert!(starts <= 2, "began again {starts} times");
}

#[test]
fn persistent_faults_end_in_an_error_with_the_cause() {
    for (fault, reason) in [
        (
            json!({ "kind": "short", "match": "cdn", "after": 0 }),
            "attempts",
        ),
        (
            json!({ "kind": "drop", "match": "cdn", "after": 0 }),
            "attempts",
        ),
        (
            json!({ "kind": "status", "match": "cdn", "status": 503 }),
            "HTTP 503",
        ),
        (
            json!({ "kind": "status", "match": "cdn", "status": 429, "retryAfter": 3600 }),
            "retry after 3600 s",
        ),
        (
            json!({ "kind": "status", "match": "cdn", "status": 418 }),
            "HTTP 418",
        ),
    ] {
        let (server, _) = single();
        server.fault(&fault);
        let error = block_on(async { tensors(&open(&options(&server)).await?).await })
            .expect_err("a fault");
        assert_eq!(error.code(), "network", "{fault}: {error}");
        assert!(error.to_string().contains(reason), "{fault}: {error}");
    }
}

#[test]
fn a_silent_server_times_out() {
    let socket = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = |socket: &std::net::TcpListener| socket.local_addr().expect("an address").port();
    let (server, _) = single();
    let unreachable = |port: u16| {
        let options = HubOptions {
            endpoint: Some(format!("http://127.0.0.1:{port}")),
            ..options(&server)
        };
        let error = block_on(open(&options)).expect_err("no server");
        assert_eq!(error.code(), "network");
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    };
    // Each connection is closed immediately.
    let silent = socket();
    let silent_port = port(&silent);
    let tries = Arc::new(AtomicU32::new(0));
    let counter = tries.clone();
    std::thread::spawn(move || {
        for connection in silent.incoming() {
            counter.fetch_add(1, Ordering::SeqCst);
            drop(connection);
        }
    });
    // At once: each waits between its attempts.
    std::thread::scope(|scope| {
        // No server listens on the port of a closed socket.
        scope.spawn(|| unreachable(port(&socket())));
        unreachable(silent_port);
    });
    assert_eq!(
        tries.load(Ordering::SeqCst),
        RetryPolicy::default().first_attempts
    );
}

#[test]
fn a_file_that_changes_midway_is_restarted() {
    // The same header: delivered bytes are delivered again. On a branch without commits, so that
    // the change is visible.
    let (server, _) = single();
    let changed = content(70);
    let to = json!({ "kind": "change", "match": "cdn", "after": 12_000, "times": 1, "path": format!("org/model/{WEIGHTS}"),
        "base64": base64(&file_of(&changed)) });
    server.fault(&json!({ "kind": "noCommit" }));
    let source = block_on(open(&options(&server))).expect("a source");
    let checkpoint = block_on(source.checkpoint()).expect("a header");
    server.fault(&to);
    let wanted: Vec<_> = checkpoint.tensors.values().collect();
    let mut found: Tensors = wanted
        .iter()
        .map(|t| (t.name.clone(), vec![0; t.bytes() as usize]))
        .collect();
    block_on(
        source.stream_tensors(&checkpoint, &wanted, async |tensor, offset, chunk| {
            let bytes = found.get_mut(&tensor.name).expect("a wanted tensor");
            bytes[offset as usize..offset as usize + chunk.len()].copy_from_slice(chunk.as_slice());
            Ok(())
        }),
    )
    .expect("the new file");
    assert_eq!(found, changed);

    // Another header: the load fails, and the next one reads the new file.
    let (server, _) = single();
    let other: Tensors = [("x".to_string(), pattern(3, 100_000))].into();
    server.fault(&json!({ "kind": "noCommit" }));
    let source = block_on(open(&options(&server))).expect("a source");
    let checkpoint = block_on(source.checkpoint()).expect("a header");
    server.fault(
        &json!({ "kind": "change", "match": "cdn", "after": 12_000, "times": 1,
        "path": format!("org/model/{WEIGHTS}"), "base64": base64(&file_of(&other)) }),
    );
    let wanted: Vec<_> = checkpoint.tensors.values().collect();
    let error = block_on(source.stream_tensors(&checkpoint, &wanted, async |_, _, _| Ok(())));
    assert_eq!(error.expect_err("another file").code(), "changed");
    let found =
        block_on(async { tensors(&open(&options(&server)).await?).await }).expect("the new model");
    assert_eq!(found, other);
}
