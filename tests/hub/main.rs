//! Loading from a simulated Hub, with every known fault of the Hub and the network.

mod faults;
mod malformed;
mod progress;
mod server;
mod truth;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use futures_util::future::{join, ready};
use jerboa::hub::{
    AbortFlag, DirStore, HubOptions, ModelRef, Phase, Progress, ProgressEvent, RetryPolicy, Source,
    cached_models, delete_cached,
};
use jerboa::task::TextPipeline;
use jerboa::{Error, Result};
use pollster::block_on;
use serde_json::json;
use server::{Server, pattern, safetensors};

const CONFIG: &[u8] = br#"{"model_type":"llama"}"#;
const WEIGHTS: &str = "model.safetensors";
/// Small, so that a model of a few hundred kilobytes has many parts.
const PART: u64 = 16 << 10;

fn options(server: &Server) -> HubOptions {
    HubOptions {
        endpoint: Some(server.hub.clone()),
        part_size: PART,
        retry: RetryPolicy {
            base_ms: 5.0,
            max_ms: 40.0,
            stall_ms: 2000.0,
            ..RetryPolicy::default()
        },
        cache_dir: Some(server.root.join("cache")),
        ..HubOptions::default()
    }
}

fn model() -> ModelRef {
    ModelRef::parse("org/model").expect("a name")
}

async fn open(options: &HubOptions) -> Result<Source> {
    Source::open(&model(), options, AbortFlag::new(), Progress::silent()).await
}

type Tensors = BTreeMap<String, Vec<u8>>;

/// Reads all tensors and checks the guarantees of chunks.
async fn tensors(source: &Source) -> Result<Tensors> {
    let checkpoint = source.checkpoint().await?;
    let wanted: Vec<_> = checkpoint.tensors.values().collect();
    let mut found: Tensors = wanted
        .iter()
        .map(|t| (t.name.clone(), vec![0; t.bytes() as usize]))
        .collect();
    source
        .stream_tensors(&checkpoint, &wanted, async |tensor, offset, chunk| {
            let end = offset + chunk.len() as u64;
            assert!(
                offset % 4 == 0 && (chunk.len() % 4 == 0 || end == tensor.bytes()),
                "{} at {offset}",
                tensor.name
            );
            let bytes = found.get_mut(&tensor.name).expect("a wanted tensor");
            bytes[offset as usize..end as usize].copy_from_slice(chunk.as_slice());
            Ok(())
        })
        .await?;
    Ok(found)
}

/// Requests of a loader: configuration, an optional file, tensors.
async fn load(source: &Source) -> Result<(Vec<u8>, Tensors)> {
    let config = source.read("config.json").await?;
    source.read_optional("chat_template.jinja").await?;
    Ok((config, tensors(source).await?))
}

fn content(seed: u64) -> Tensors {
    let sizes = [
        ("a.weight", 70_001),
        ("b.bias", 3),
        ("c.weight", 150_002),
        ("d.empty", 0),
        ("e.weight", 40_000),
    ];
    sizes
        .iter()
        .enumerate()
        .map(|(i, (name, size))| (name.to_string(), pattern(seed + i as u64, *size)))
        .collect()
}

fn file_of(content: &Tensors) -> Vec<u8> {
    let list: Vec<(&str, Vec<u8>)> = content
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    safetensors(&list)
}

/// A server with a model in one file.
fn single() -> (Server, Tensors) {
    let server = Server::start();
    let content = content(1);
    server.file("config.json", CONFIG);
    server.file(WEIGHTS, &file_of(&content));
    (server, content)
}

#[test]
fn a_model_is_loaded_over_a_redirect_to_another_origin() {
    let (server, expected) = single();
    server.gate("secret");
    let options = HubOptions {
        token: Some("secret".to_string()),
        ..options(&server)
    };
    let (config, found) = block_on(async { load(&open(&options).await?).await }).expect("a model");
    assert_eq!((config.as_slice(), found), (CONFIG, expected));
    let log = server.log(0);
    assert!(log.iter().any(|r| r.origin == "cdn" && r.status == 206));
    assert!(
        log.iter()
            .filter(|r| r.origin == "cdn")
            .all(|r| !r.authorization),
        "the token went to another origin"
    );
    assert!(
        log.iter()
            .filter(|r| r.origin == "hub")
            .all(|r| r.authorization)
    );
}

#[test]
fn shards_are_found_through_their_index() {
    let server = Server::start();
    let content = content(5);
    let mut first = content.clone();
    let mut second = Tensors::new();

    second.extend(
        first
            .remove("c.weight")
            .map(|bytes| ("c.weight".to_string(), bytes)),
    );
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    server.file(names[0], &file_of(&first));
    server.file(names[1], &file_of(&second));
    let map: BTreeMap<_, _> = content
        .keys()
        .map(|n| (n, names[usize::from(second.contains_key(n))]))
        .collect();
    server.file(
        "model.safetensors.index.json",
        json!({ "weight_map": map }).to_string().as_bytes(),
    );
    let found =
        block_on(async { tensors(&open(&options(&server)).await?).await }).expect("a model");
    assert_eq!(found, content);

    // A missing shard, and a tensor that its shard does not contain.
    server.change(names[1], &file_of(&Tensors::new()));
    let error = block_on(async { tensors(&open(&options(&server)).await?).await })
        .expect_err("no such tensor");
    assert!(
        matches!(&error, Error::Malformed { reason, .. } if reason.contains("c.weight")),
        "{error}"
    );
    server.fault(&json!({ "kind": "status", "match": names[1], "status": 404 }));
    let uncached = HubOptions {
        cache: false,
        ..options(&server)
    };
    let error =
        block_on(async { tensors(&open(&uncached).await?).await }).expect_err("no such shard");
    assert_eq!(error.code(), "missing_file", "{error}");
}

#[test]
fn the_second_load_uses_no_network() {
    let (server, expected) = single();
    block_on(async { load(&open(&options(&server)).await?).await }).expect("the first load");
    let commit = block_on(open(&options(&server)))
        .expect("a source")
        .commit()
        .expect("a commit");

    let seen = server.log(0).len();
    let events = Rc::new(RefCell::new(Vec::<ProgressEvent>::new()));
    let sink = events.clone();
    let progress = Progress::new(move |e| sink.borrow_mut().push(e.clone()));
    let source = block_on(Source::open(
        &model(),
        &options(&server),
        AbortFlag::new(),
        progress.clone(),
    ));
    progress.phase(Phase::Weights);
    let (_, found) = block_on(load(&source.expect("a source"))).expect("the second load");
    assert_eq!(found, expected);
    assert!(
        events
            .borrow()
            .last()
            .is_some_and(|e| e.from_cache && e.loaded == e.total && e.total > 0)
    );
    let log = server.log(seen);
    assert_eq!(log.iter().map(|r| r.bytes).sum::<u64>(), 0, "{log:?}");
    assert_eq!(
        (log.len(), log[0].method.as_str()),
        (1, "HEAD"),
        "one question for the commit: {log:?}"
    );

    // No request is made if the revision is a commit or if revalidation is off.
    let pinned = HubOptions {
        revision: Some(commit),
        ..options(&server)
    };
    block_on(async { load(&open(&pinned).await?).await }).expect("the commit's first load");
    let seen = server.log(0).len();
    for silent in [
        pinned,
        HubOptions {
            revalidate: false,
            ..options(&server)
        },
    ] {
        let (_, found) =
            block_on(async { load(&open(&silent).await?).await }).expect("a silent load");
        assert_eq!(found, expected);
    }
    assert_eq!(server.log(seen).len(), 0);
}

#[test]
fn a_subfolder_of_a_repository_is_a_model() {
    let (server, _) = single();
    let content = content(9);
    server.file("small/config.json", b"{\"model_type\":\"small\"}");
    server.file("small/model.safetensors", &file_of(&content));
    let page = "https://huggingface.co/org/model/tree/main/small";
    let small = ModelRef::parse(page).expect("a page");
    let source = block_on(Source::open(
        &small,
        &options(&server),
        AbortFlag::new(),
        Progress::silent(),
    ))
    .expect("a source");
    let (config, found) =
        block_on(source.load_verified(load(&source))).expect("the subfolder's model");
    assert_eq!(
        (&config[..], found),
        (&b"{\"model_type\":\"small\"}"[..], content)
    );
    assert!(source.commit().is_some());
    let listed = block_on(source.list()).expect("a list");
    assert_eq!(listed, ["config.json", "model.safetensors"]);
    assert!(
        source.name().ends_with("/org/model/tree/main/small"),
        "{}",
        source.name()
    );
}

#[test]
fn a_folder_is_requested_file_by_file() {
    let (server, expected) = single();
    let folder = ModelRef::parse(&format!("{}/files/org/model/", server.hub)).expect("a folder");
    let all = async || {
        let source = Source::open(
            &folder,
            &options(&server),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        load(&source).await
    };
    assert_eq!(block_on(all()).expect("the first load").1, expected);
    let seen = server.log(0).len();
    assert_eq!(block_on(all()).expect("the second load").1, expected);
    assert_eq!(server.log(seen).iter().map(|r| r.bytes).sum::<u64>(), 0);
    // Same length, different content.
    let changed = content(50);
    server.change(WEIGHTS, &file_of(&changed));
    assert_eq!(block_on(all()).expect("the third load").1, changed);
}

/// A browser reports each file that is missing in the console.
#[test]
fn files_that_others_replace_are_not_requested() {
    let (server, _) = single();
    let folder = ModelRef::parse(&format!("{}/files/org/model/", server.hub)).expect("a folder");
    let requested = || -> BTreeSet<String> {
        let seen = server.log(0).len();
        block_on(async {
            let options = HubOptions {
                cache: false,
                ..options(&server)
            };
            let source =
                Source::open(&folder, &options, AbortFlag::new(), Progress::silent()).await?;
            TextPipeline::open(&source).await
        })
        .expect("a tokenizer");
        let names = server.log(seen).into_iter();
        names
            .filter_map(|r| Some(r.path.rsplit_once('/')?.1.to_owned()))
            .collect()
    };
    let replaced = ["special_tokens_map.json", "chat_template.json"];
    let tokenizer = br#"{"model":{"type":"WordLevel","vocab":{"a":0,"<e>":1},"unk_token":"a"}}"#;
    server.file("tokenizer.json", tokenizer);
    server.file("tokenizer_config.json", br#"{"eos_token":"<e>"}"#);
    let names = requested();
    assert!(
        replaced.iter().all(|name| names.contains(*name)),
        "{names:?}"
    );
    let config = br#"{"eos_token":"<e>","added_tokens_decoder":{}}"#;
    server.change("tokenizer_config.json", config);
    server.file("chat_template.jinja", b"{{ messages }}");
    let names = requested();
    assert!(
        replaced.iter().all(|name| !names.contains(*name)),
        "{names:?}"
    );
}

/// Entries of the cache with compact tokenizers.
fn compact_tokenizers(server: &Server) -> Vec<PathBuf> {
    let sources = std::fs::read_dir(server.root.join("cache")).expect("a cache");
    let folders = sources.flatten().map(|source| source.path().join("~made"));
    let entries = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.to_string_lossy().contains("tokenizer-"));
    paths.sort();
    paths
}

/// A tokenizer.json of more than a megabyte, and the text of its token 7.
fn large_tokenizer(prefix: &str) -> (Vec<u8>, String) {
    let vocab = (0..60_000).map(|id| format!("\"{prefix}{id:08}\":{id}"));
    let vocab: Vec<_> = vocab.collect();
    let json = format!(
        r#"{{"model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"{prefix}00000000"}}}}"#,
        vocab.join(",")
    );
    (json.into_bytes(), format!("{prefix}00000007"))
}

#[test]
fn a_large_tokenizer_is_kept_in_its_compact_form() {
    let (server, _) = single();
    let (json, word) = large_tokenizer("a");
    server.file("tokenizer.json", &json);
    let load = |word: &str| {
        block_on(async {
            let open = async || open(&options(&server)).await;
            let text = Source::load(open, async |source| {
                let text = TextPipeline::open(source).await?;
                Ok((source.clone(), text))
            });
            let (source, text) = text.await.expect("a tokenizer");
            assert_eq!(text.tokenizer().expect("it").token_to_id(word), Some(7));
            source.flush().await;
        });
    };
    load(&word);
    let first = compact_tokenizers(&server);
    assert_eq!(first.len(), 2, "{first:?}");

    // The next load does not read the file: its parts may even be missing.
    let folder = first[0].parent().and_then(|folder| folder.parent());
    let folder = folder.expect("a folder").join("tokenizer.json");
    let entries = std::fs::read_dir(&folder)
        .expect("the file's parts")
        .flatten();
    let parts = entries
        .map(|entry| entry.path())
        .filter(|path| !path.ends_with("manifest"));
    let removed = parts
        .map(|part| std::fs::remove_file(part).expect("a part"))
        .count();
    assert!(removed > 0);
    let seen = server.log(0).len();
    load(&word);
    let bytes: u64 = server.log(seen).iter().map(|request| request.bytes).sum();
    assert_eq!(bytes, 0);

    // A damaged form is replaced by a new one.
    let entry = first
        .iter()
        .find(|path| !path.to_string_lossy().ends_with("-whole"));
    let entry = entry.expect("an entry");
    let mut damaged = std::fs::read(entry).expect("its bytes");
    damaged[40] ^= 0xff;
    std::fs::write(entry, &damaged).expect("written");
    load(&word);
    assert_ne!(std::fs::read(entry).expect("its bytes"), damaged);

    // Another file has another form, and the first one goes.
    let (json, word) = large_tokenizer("b");
    server.change("tokenizer.json", &json);
    load(&word);
    let second = compact_tokenizers(&server);
    assert!(second.len() == 2 && second != first, "{second:?}");

    // Small files have none.
    server.change(
        "tokenizer.json",
        br#"{"model":{"type":"WordLevel","vocab":{"b":7},"unk_token":"b"}}"#,
    );
    load("b");
    assert_eq!(compact_tokenizers(&server), second);
}

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
async fn first_load_ahead(source: &Source) -> Result<(Vec<u8>, Tensors)> {
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

#[test]
fn changed_files_are_detected_and_the_rest_stay_cached() {
    let (server, expected) = single();
    block_on(async { load(&open(&options(&server)).await?).await }).expect("the first load");
    server.change("config.json", b"{}");
    let seen = server.log(0).len();
    let (config, found) =
        block_on(async { load(&open(&options(&server)).await?).await }).expect("the second load");
    assert_eq!((config.as_slice(), found), (b"{}".as_slice(), expected));
    let weights: u64 = server
        .log(seen)
        .iter()
        .filter(|r| r.path.contains(WEIGHTS))
        .map(|r| r.bytes)
        .sum();
    assert_eq!(weights, 0, "the weights have not changed");

    let changed = content(90);
    server.change(WEIGHTS, &file_of(&changed));
    let (_, found) =
        block_on(async { load(&open(&options(&server)).await?).await }).expect("the third load");
    assert_eq!(found, changed);
}

#[test]
fn the_cache_serves_without_the_server() {
    let (mut server, expected) = single();
    block_on(async { load(&open(&options(&server)).await?).await }).expect("the first load");
    server.stop();
    let source = block_on(open(&options(&server))).expect("a source");
    assert_eq!(
        block_on(load(&source)).expect("the cached model").1,
        expected
    );
    assert_eq!(
        source
            .warnings()
            .iter()
            .map(Error::code)
            .collect::<Vec<_>>(),
        ["unverified"]
    );
    let uncached = HubOptions {
        cache: false,
        ..options(&server)
    };
    assert_eq!(
        block_on(open(&uncached)).expect_err("no server").code(),
        "network"
    );
}

#[test]
fn refusals_have_their_own_errors() {
    let (server, _) = single();
    server.gate("secret");
    let code = |options: &HubOptions| match block_on(async { load(&open(options).await?).await }) {
        Err(Error::Gated { status, .. }) => format!("gated {status}"),
        Err(error) => error.code().to_string(),
        Ok(_) => "loaded".to_string(),
    };
    let with = |token: Option<&str>| HubOptions {
        token: token.map(str::to_string),
        ..options(&server)
    };
    assert_eq!(code(&with(None)), "gated 401");
    assert_eq!(code(&with(Some("wrong"))), "gated 403");
    assert_eq!(code(&with(Some("secret"))), "loaded");
    let nowhere = ModelRef::parse("org/other").expect("a name");
    let error = block_on(async {
        Source::open(
            &nowhere,
            &options(&server),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?
        .read("config.json")
        .await
    });
    assert_eq!(error.expect_err("no such repository").code(), "not_found");
    let error = block_on(async { open(&with(Some("secret"))).await?.read("../secret").await });
    assert_eq!(error.expect_err("outside").code(), "model_name");
}

/// Only a Hub has private repositories and terms to accept.
#[test]
fn refusals_of_an_own_server_do_not_speak_of_repositories() {
    let (server, _) = single();
    let message = |name: &str, token: Option<&str>| {
        let model = ModelRef::parse(name).expect("a name");
        let options = HubOptions {
            token: token.map(str::to_string),
            ..options(&server)
        };
        let read = async {
            let source = Source::open(&model, &options, AbortFlag::new(), Progress::silent());
            source.await?.read("config.json").await
        };
        let error = block_on(read).expect_err("a refusal");
        (error.code(), error.to_string())
    };
    let missing = format!("{}/files/org/other", server.hub);
    let (code, text) = message(&missing, None);
    assert_eq!(code, "not_found");
    let url = format!("{missing}/config.json was not found (HTTP 404). Check the folder's address");
    assert!(text.starts_with(&url), "{text}");
    for word in ["repositor", "token", "revision"] {
        assert!(!text.contains(word), "{text}");
    }
    let (code, text) = message("org/other", None);
    assert!(
        code == "not_found" && text.contains("private repositories"),
        "{text}"
    );

    server.fault(&json!({ "kind": "status", "match": "config.json", "status": 401 }));
    let (code, text) = message(&format!("{}/files/org/model", server.hub), None);
    assert_eq!(code, "gated");
    assert!(text.contains("refuses access (HTTP 401)"), "{text}");
    assert!(!text.contains("terms"), "{text}");
    let (code, text) = message("org/model", Some("wrong"));
    assert!(code == "gated" && text.contains("terms"), "{text}");
}

/// Servers of single-page applications return a page for every address; it is not a file of the
/// model.
#[test]
fn html_pages_are_not_model_files() {
    let (server, expected) = single();
    server.fault(&json!({ "kind": "fallback" }));
    let folder = ModelRef::parse(&format!("{}/files/org/model", server.hub)).expect("a folder");
    let open = async |model: &ModelRef| {
        Source::open(
            model,
            &options(&server),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await
    };
    for model in [&model(), &folder] {
        for visit in ["first", "second"] {
            let source = block_on(open(model)).expect("a source");
            let (config, found) =
                block_on(load(&source)).unwrap_or_else(|e| panic!("{visit} load: {e}"));
            assert!(config == CONFIG && found == expected, "{visit} load");
            for optional in [
                "chat_template.jinja",
                "modules.json",
                "model.safetensors.index.json",
            ] {
                assert_eq!(
                    block_on(source.read_optional(optional)).expect("an answer"),
                    None,
                    "{visit} load: {optional}"
                );
            }
        }
        // A required file is requested by name, at any stage of the load.
        let source = block_on(open(model)).expect("a source");
        for needed in ["tokenizer.json", "x.gguf"] {
            let error = block_on(source.read(needed)).expect_err("a page");
            assert_eq!(error.code(), "not_found");
            let message = error.to_string();
            assert!(
                message.contains(needed) && message.contains("returned a web page"),
                "{message}"
            );
        }
    }
    // A file that became a page between loads is missing; one that became a file exists.
    server.control(
        "file",
        &json!({ "path": "org/model/config.json", "base64": null }),
    );
    server.change("chat_template.jinja", b"{{ messages }}");
    let source = block_on(open(&folder)).expect("a source");
    let error = block_on(source.read("config.json")).expect_err("a page");
    assert!(error.to_string().contains("web page"), "{error}");
    let template = block_on(source.read_optional("chat_template.jinja")).expect("an answer");
    assert_eq!(template.as_deref(), Some(b"{{ messages }}".as_slice()));
    server.change(WEIGHTS, b"");
    server.control(
        "file",
        &json!({ "path": format!("org/model/{WEIGHTS}"), "base64": null }),
    );
    let error = block_on(async { tensors(&open(&folder).await?).await }).expect_err("no weights");
    assert_eq!(error.code(), "missing_file", "{error}");
}

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
    // No server listens on the port of a closed socket.
    unreachable(port(&socket()));
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
    unreachable(silent_port);
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
        "base64": server::base64(&file_of(&changed)) });
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
        "path": format!("org/model/{WEIGHTS}"), "base64": server::base64(&file_of(&other)) }),
    );
    let wanted: Vec<_> = checkpoint.tensors.values().collect();
    let error = block_on(source.stream_tensors(&checkpoint, &wanted, async |_, _, _| Ok(())));
    assert_eq!(error.expect_err("another file").code(), "changed");
    let found =
        block_on(async { tensors(&open(&options(&server)).await?).await }).expect("the new model");
    assert_eq!(found, other);
}

#[test]
fn cached_models_are_listed_and_deleted() {
    let (server, _) = single();
    let source = block_on(open(&options(&server))).expect("a source");
    let (_, found) = block_on(load(&source)).expect("a model");
    let store = DirStore::new(server.root.join("cache"));
    let models = block_on(cached_models(&store)).expect("a list");
    let bytes = (file_of(&found).len() + CONFIG.len()) as u64;
    assert_eq!(models.len(), 1);
    assert_eq!(
        (models[0].source.as_str(), models[0].files),
        (source.name(), 2)
    );
    assert!(models[0].complete && models[0].bytes == bytes, "{models:?}");
    block_on(delete_cached(&store, source.name())).expect("a deletion");
    let models = block_on(cached_models(&store)).expect("a list");
    assert!(models.is_empty());
}

#[test]
fn ranges_and_streams_are_exact() {
    let (server, expected) = single();
    let file = file_of(&expected);
    let local = ModelRef::Path {
        path: server.root.join("org/model").display().to_string(),
    };
    for model in [model(), local] {
        let source = block_on(Source::open(
            &model,
            &options(&server),
            AbortFlag::new(),
            Progress::silent(),
        ));
        let source = source.expect("a source");
        for range in [
            0..10u64,
            16_380..16_390,
            100_000..200_000,
            260_000..10_000_000,
            5..5,
        ] {
            let end = (range.end as usize).min(file.len());
            let slice = &file[range.start as usize..end];
            assert_eq!(
                block_on(source.read_range(WEIGHTS, range.clone())).expect("a range"),
                slice
            );
            let mut at = range.start;
            block_on(source.stream(WEIGHTS, range, async |offset, chunk| {
                assert_eq!(offset, at);
                assert_eq!(
                    chunk.as_slice(),
                    &file[at as usize..at as usize + chunk.len()]
                );
                at += chunk.len() as u64;
                Ok(())
            }))
            .expect("a stream");
            assert_eq!(at as usize, end);
        }
        assert_eq!(block_on(tensors(&source)).expect("a model"), expected);
        assert_eq!(
            block_on(source.info("nothing.json")).expect("an answer"),
            None
        );
    }
}

#[test]
fn gguf_only_repository_loads_its_default_file() {
    let server = Server::start();
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/golden/quant/twin_stories/model.gguf"
    );
    let bytes = std::fs::read(file).expect("a GGUF file");
    server.file("README.md", b"a model");
    server.file("stories-Q8_0.gguf", b"another");
    server.file("stories-Q4_K_M.gguf", &bytes);
    server.file("stories-Q4_K_M-00001-of-00002.gguf", b"a part");
    let files = block_on(async {
        jerboa::exec::ModelFiles::open(&open(&options(&server)).await?, None).await
    });
    let files = files.expect("opens");
    assert_eq!(
        files.gguf.map(|gguf| gguf.file).as_deref(),
        Some("stories-Q4_K_M.gguf")
    );
    assert_eq!(files.config["model_type"], "llama");

    let empty = Server::start();
    empty.file("README.md", b"no model");
    let error = block_on(async {
        jerboa::exec::ModelFiles::open(&open(&options(&empty)).await?, None).await
    });
    assert_eq!(error.expect_err("nothing to open").code(), "not_found");
}
