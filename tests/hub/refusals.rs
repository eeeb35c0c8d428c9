//! What a server refuses, and pages in place of files.

use super::{CONFIG, WEIGHTS, load, model, open, options, single, tensors};
use jerboa::Error;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use pollster::block_on;
use serde_json::json;

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
