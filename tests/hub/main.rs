//! Loading from a simulated Hub, with every known fault of the Hub and the network.

mod ahead;
mod faults;
mod malformed;
mod misnamed;
mod progress;
mod refusals;
mod retries;
mod server;
mod truth;

use jerboa::hub::{
    AbortFlag, DirStore, HubOptions, ModelRef, Phase, Progress, ProgressEvent, RetryPolicy, Source,
    cached_models, delete_cached,
};
use jerboa::task::TextPipeline;
use jerboa::{Error, Result};
use pollster::block_on;
use serde_json::json;
use server::{Server, pattern, safetensors};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

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
    server.file("imatrix.gguf", b"no model");
    server.file("stories-lora-Q4_K_M.gguf", b"an adapter");
    server.file("UD/stories-UD-Q4_K_XL.gguf", b"another");
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
