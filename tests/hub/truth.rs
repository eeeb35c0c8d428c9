//! What is stored is what the server has: answers that lie about their range, servers that deny a
//! cached model for a moment, checksums that do not come, and slow servers.

use super::server::{Server, pattern};
use super::{CONFIG, WEIGHTS, content, file_of, load, model, open, options, single};
use jerboa::hub::{AbortFlag, DirStore, HubOptions, ModelRef, Progress, Source, cached_models};
use jerboa::{Error, Result};
use pollster::block_on;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What a load read, and the codes of its warnings.
type Loaded = ((Vec<u8>, super::Tensors), Vec<&'static str>);

/// A folder of the server, without checksums.
fn folder(server: &Server) -> ModelRef {
    ModelRef::parse(&format!("{}/files/org/model", server.hub)).expect("a folder")
}

/// A load as the engine makes it, and its warnings.
fn load_folder(server: &Server) -> Result<Loaded> {
    load_from(&folder(server), &options(server))
}

fn load_from(model: &ModelRef, options: &HubOptions) -> Result<Loaded> {
    let warnings = RefCell::new(Vec::new());
    let found = block_on(Source::load(
        async || Source::open(model, options, AbortFlag::new(), Progress::silent()).await,
        async |source| {
            let found = source.load_verified(load(source)).await;
            *warnings.borrow_mut() = source.warnings().iter().map(Error::code).collect();
            found
        },
    ))?;
    Ok((found, warnings.into_inner()))
}

/// Bytes in the cache.
fn cached_bytes(server: &Server) -> u64 {
    let store = DirStore::new(server.root.join("cache"));
    block_on(cached_models(&store))
        .expect("a list")
        .iter()
        .map(|m| m.bytes)
        .sum()
}

#[test]
fn a_range_that_is_not_the_requested_one_is_refused_and_not_stored() {
    let shifted = json!({ "kind": "shift", "match": WEIGHTS, "lie": true });
    let hidden = json!({ "kind": "noContentRange", "match": WEIGHTS });
    for (faults, reason) in [
        (
            vec![shifted, hidden.clone()],
            "without a valid Content-Range",
        ),
        (vec![hidden], "without a valid Content-Range"),
        (
            vec![json!({ "kind": "shift", "match": WEIGHTS })],
            "the server sent from byte",
        ),
        (
            vec![json!({ "kind": "whole", "match": WEIGHTS })],
            "but sent",
        ),
        (
            vec![json!({ "kind": "whole", "match": WEIGHTS, "chunked": true })],
            "more bytes than its Content-Range",
        ),
        (
            vec![json!({ "kind": "gzip", "match": WEIGHTS })],
            "compresses byte ranges (Content-Encoding: gzip)",
        ),
    ] {
        let (server, expected) = single();
        faults.iter().for_each(|fault| server.fault(fault));
        let error = load_folder(&server).expect_err("a wrong range");
        assert_eq!(error.code(), "network", "{faults:?}: {error}");
        let message = error.to_string();
        assert!(
            message.contains(reason) && message.contains("Configure the server"),
            "{faults:?}: {message}"
        );
        assert_eq!(
            cached_bytes(&server),
            CONFIG.len() as u64,
            "{faults:?}: bytes of a wrong range are stored"
        );
        server.control("reset", &Value::Null);
        let ((_, found), _) = load_folder(&server).expect("a good server");
        assert_eq!(found, expected, "{faults:?} poisoned the cache");
    }
}

#[test]
fn a_load_that_ends_with_unusable_numbers_stores_nothing() {
    let (server, expected) = single();
    let server = &server;
    // Wrong weights with a right header, as a lying proxy sends them; the model's logits show it.
    let run = || {
        block_on(Source::load(
            async || {
                let (model, options) = (folder(server), options(server));
                Source::open(&model, &options, AbortFlag::new(), Progress::silent()).await
            },
            async |source| {
                let found = source.load_verified(load(source)).await?;
                if found.1 != expected {
                    return Err(Error::NotFinite {
                        step: "the first prompt".into(),
                        hint: String::new(),
                    });
                }
                Ok(found)
            },
        ))
    };
    server.fault(&json!({ "kind": "flip", "match": WEIGHTS, "after": 100_000 }));
    let error = run().expect_err("wrong weights");
    assert_eq!(error.code(), "not_finite");
    assert_eq!(cached_bytes(server), 0, "unusable files are stored");
    server.control("reset", &Value::Null);
    run().expect("a good server");

    // A cache that an earlier version poisoned is replaced by one more download.
    server.control("reset", &Value::Null);
    std::fs::remove_dir_all(server.root.join("cache")).expect("a cache");
    server.fault(&json!({ "kind": "flip", "match": WEIGHTS, "after": 100_000 }));
    load_folder(server).expect("wrong weights that load");
    server.control("reset", &Value::Null);
    run().expect("the files of a good server");
}

#[test]
fn a_server_that_denies_a_cached_model_does_not_delete_it() {
    for at_hub in [false, true] {
        for (fault, warned) in [
            (
                json!({ "kind": "status", "match": "org/model", "status": 404 }),
                true,
            ),
            (
                json!({ "kind": "status", "match": "org/model", "status": 410 }),
                true,
            ),
            (json!({ "kind": "portal", "match": "org/model" }), true),
            (
                json!({ "kind": "status", "match": "config.json", "status": 404 }),
                true,
            ),
            (
                json!({ "kind": "status", "match": WEIGHTS, "status": 404 }),
                !at_hub,
            ),
            (
                json!({ "kind": "portal", "match": "config.json", "times": 1 }),
                false,
            ),
            (
                json!({ "kind": "status", "match": "config.json", "status": 404, "times": 1 }),
                false,
            ),
        ] {
            let (server, expected) = single();
            let model = if at_hub { model() } else { folder(&server) };
            let options = options(&server);
            load_from(&model, &options).expect("the first load");
            let stored = cached_bytes(&server);
            server.fault(&fault);
            let ((config, found), warnings) = load_from(&model, &options)
                .unwrap_or_else(|e| panic!("{fault} at the Hub {at_hub}: {e}"));
            assert!(config == CONFIG && found == expected, "{fault}");
            assert_eq!(
                warnings.contains(&"unverified"),
                warned,
                "{fault}: {warnings:?}"
            );
            assert_eq!(cached_bytes(&server), stored, "{fault} deleted files");
            server.control("reset", &Value::Null);
            let seen = server.log(0).len();
            let ((_, found), warnings) = load_from(&model, &options).expect("a good server");
            assert!(
                found == expected && warnings.is_empty(),
                "{fault}: {warnings:?}"
            );
            let sent: u64 = server.log(seen).iter().map(|r| r.bytes).sum();
            assert_eq!(sent, 0, "{fault}: files were downloaded again");
        }
    }
}

#[test]
fn a_file_that_was_never_there_stays_not_found() {
    let (server, _) = single();
    let options = options(&server);
    load_from(&folder(&server), &options).expect("the first load");
    let source = block_on(Source::open(
        &folder(&server),
        &options,
        AbortFlag::new(),
        Progress::silent(),
    ));
    let error = block_on(source.expect("a source").read("tokenizer.json")).expect_err("no file");
    assert_eq!(error.code(), "not_found", "{error}");
    let nowhere = ModelRef::parse(&format!("{}/files/org/none", server.hub)).expect("a folder");
    let error = load_from(&nowhere, &options).expect_err("no model");
    assert_eq!(error.code(), "not_found", "{error}");
}

#[test]
fn missing_checksums_delay_a_load_by_seconds_and_are_reported() {
    let reported = |fault: &Value| {
        let (server, expected) = single();
        server.fault(fault);
        let begin = Instant::now();
        let mut options = options(&server);
        options.retry.stall_ms = 60_000.0;
        let ((_, found), warnings) = load_from(&model(), &options).expect("the weights");
        assert_eq!(found, expected);
        assert_eq!(warnings, ["unchecked"], "{fault}");
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{fault}: {:?}",
            begin.elapsed()
        );
    };
    // At once: each waits for seconds.
    std::thread::scope(|scope| {
        let reported = &reported;
        for fault in [
            json!({ "kind": "hang", "match": "/api/" }),
            json!({ "kind": "status", "match": "/api/", "status": 429, "retryAfter": 100 }),
        ] {
            scope.spawn(move || reported(&fault));
        }
    });
}

#[test]
fn an_endpoint_that_is_no_url_is_refused_before_any_request() {
    let server = Server::start();
    let host = server.hub.trim_start_matches("http://");
    for endpoint in [
        &format!("http://user:p4ss@{host}"),
        &format!("//{host}"),
        "javascript:alert(1)",
        "data:text/plain,x",
        &format!("ftp://{host}"),
        "huggingface.co",
    ] {
        let options = HubOptions {
            endpoint: Some(endpoint.to_string()),
            ..options(&server)
        };
        let error = block_on(open(&options)).expect_err(endpoint);
        assert_eq!(error.code(), "request", "{endpoint}: {error}");
        let message = error.to_string();
        assert!(
            message.starts_with("endpoint: ") && !message.contains("p4ss"),
            "{message}"
        );
    }
    assert!(server.log(0).is_empty());
}

#[test]
fn a_slow_server_is_named_and_given_up() {
    let (server, _) = single();
    server.fault(&json!({ "kind": "slow", "match": "config.json", "rate": 4, "piece": 1 }));
    let mut options = options(&server);
    options.retry.stall_ms = 4500.0;
    let reports = Rc::new(RefCell::new(Vec::new()));
    let sink = reports.clone();
    let progress = Progress::new(move |event| sink.borrow_mut().extend(event.waiting_for.clone()));
    let begin = Instant::now();
    let result = block_on(async {
        let source = Source::open(&model(), &options, AbortFlag::new(), progress).await?;
        source.read("config.json").await
    });
    let error = result.expect_err("a slow server");
    assert_eq!(error.code(), "network", "{error}");
    assert!(error.to_string().contains("bytes a second"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(30));
    let named = reports
        .borrow()
        .iter()
        .any(|what| what.contains("very slowly"));
    assert!(named, "{:?}", reports.borrow());
}

#[test]
fn a_wait_for_a_retry_is_named() {
    let (server, _) = single();
    server.fault(
        &json!({ "kind": "status", "match": "config.json", "status": 429, "retryAfter": 1, "times": 1 }),
    );
    let reports = Rc::new(RefCell::new(Vec::new()));
    let sink = reports.clone();
    let progress = Progress::new(move |event| sink.borrow_mut().extend(event.waiting_for.clone()));
    let options = options(&server);
    let source = block_on(Source::open(&model(), &options, AbortFlag::new(), progress));
    block_on(source.expect("a source").read("config.json")).expect("a file");
    let named = |part: &str| reports.borrow().iter().any(|what| what.contains(part));
    assert!(
        named("HTTP 429") && named("retrying in 1 s"),
        "{:?}",
        reports.borrow()
    );
}

#[test]
fn a_model_is_complete_only_with_its_weights() {
    let complete = |server: &Server| {
        let store = DirStore::new(server.root.join("cache"));
        let models = block_on(cached_models(&store)).expect("a list");
        assert_eq!(models.len(), 1);
        models[0].complete
    };
    let (server, _) = single();
    let source = block_on(open(&options(&server))).expect("a source");
    block_on(source.read("config.json")).expect("a file");
    assert!(!complete(&server), "a configuration alone");
    block_on(super::tensors(&source)).expect("the weights");
    assert!(complete(&server));

    // An index and one of its two shards.
    let server = Server::start();
    let all = content(5);
    let (first, second): (super::Tensors, super::Tensors) =
        all.into_iter().partition(|(name, _)| name != "c.weight");
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    server.file("config.json", CONFIG);
    server.file(names[0], &file_of(&first));
    server.file(names[1], &file_of(&second));
    let place = |name: &String| (name.clone(), names[usize::from(second.contains_key(name))]);
    let map: std::collections::BTreeMap<_, _> =
        first.keys().chain(second.keys()).map(place).collect();
    let index = json!({ "weight_map": map }).to_string();
    server.file("model.safetensors.index.json", index.as_bytes());
    let source = block_on(open(&options(&server))).expect("a source");
    for file in ["config.json", "model.safetensors.index.json", names[0]] {
        block_on(source.read(file)).expect(file);
    }
    assert!(!complete(&server), "the second shard is missing");
    block_on(source.read(names[1])).expect("the second shard");
    assert!(complete(&server));

    // The first part of a split GGUF file.
    let server = Server::start();
    let names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    names
        .iter()
        .for_each(|name| server.file(name, &pattern(3, 40_000)));
    let source = block_on(open(&options(&server))).expect("a source");
    block_on(source.read(names[0])).expect("a part");
    assert!(!complete(&server), "the second file is missing");
    block_on(source.read(names[1])).expect("a part");
    assert!(complete(&server));
}
