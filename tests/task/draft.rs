//! A draft model of a text model: the text is that without it, and models that cannot propose
//! tokens are refused by name.

use super::{character, events, folder, golden, reference, request, run, stories, tiny_files};
use jerboa::exec::{PrecisionOptions, RunOptions};
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::kernels::attention::Kv;
use jerboa::task::{ChatModel, FinishReason, LoadRequest, MTP_DRAFT, ServesTask};
use jerboa_tests::golden::add_mtp_head;
use pollster::block_on;
use serde_json::{Value, json};
use std::path::Path;

fn load_draft(target: &mut ChatModel, folder: &Path, name: &str) -> jerboa::Result<()> {
    let overrides = PrecisionOptions {
        kv_type: Some(Kv::F32),
        ..PrecisionOptions::default()
    };
    let options = RunOptions {
        overrides,
        ..RunOptions::default()
    };
    block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let hub = HubOptions::default();
        let source = Source::open(&model, &hub, AbortFlag::new(), Progress::silent()).await?;
        target.load_draft(&source, name, options).await
    })
}

/// The bundled model with itself as its draft model.
fn with_itself(context: usize) -> ChatModel {
    let mut model = stories(context);
    load_draft(&mut model, folder(), "stories260K").expect("a draft model");
    model
}

fn ask(max: usize, more: &Value) -> Value {
    let ids = &reference().prompt_ids;
    let mut ask = json!({ "ids": ids, "temperature": 0, "maxTokens": max, "ignoreEos": true });
    for (name, value) in more.as_object().expect("an object") {
        ask[name] = value.clone();
    }
    ask
}

#[test]
fn the_text_is_the_same_and_proposals_are_counted() {
    let mut plain = stories(256);
    let mut model = with_itself(256);
    let mut other = model.create_session().expect("a session");
    for more in [
        json!({}),
        json!({ "temperature": 0.8, "seed": 3 }),
        json!({ "temperature": 1.1, "seed": 4, "topP": 0.9, "repetitionPenalty": 1.2 }),
        json!({ "stop": ["garden"] }),
    ] {
        let expected = run(&mut plain, ask(180, &more));
        let mut more = more;
        more["speculation"] = json!("draft");
        let (found, events) = events(&mut model, ask(180, &more)).expect("an answer");
        assert_eq!(
            (&found.ids, &found.text),
            (&expected.ids, &expected.text),
            "{more}"
        );
        let emitted = events.iter().flat_map(|event| event.ids.clone());
        assert_eq!(emitted.collect::<Vec<_>>(), found.ids, "{more}");
        assert!(found.accepted_tokens <= found.drafted_tokens);
        assert!(
            found.accepted_tokens > 0,
            "{more}: {}",
            found.drafted_tokens
        );
        // A conversation of its own, and one that goes on from the first.
        assert_eq!(run(&mut other, ask(180, &more)).ids, expected.ids, "{more}");
        let mut fork = model.fork().expect("a fork");
        assert_eq!(run(&mut fork, ask(180, &more)).ids, expected.ids, "{more}");
    }
    for more in [
        json!({ "speculation": "off" }),
        json!({ "logprobs": true }),
        json!({ "temperature": 0.9, "seed": 2, "typicalP": 0.9 }),
    ] {
        let expected = run(&mut plain, ask(60, &more));
        let found = run(&mut model, ask(60, &more));
        assert_eq!(
            (found.ids, found.drafted_tokens),
            (expected.ids, 0),
            "{more}"
        );
    }
}

#[test]
fn full_and_rolling_contexts_give_the_same_text() {
    for overflow in ["error", "rolling"] {
        let more = json!({ "overflow": overflow });
        let expected = run(&mut stories(96), ask(160, &more));
        let found = run(&mut with_itself(96), ask(160, &more));
        assert_eq!(found.ids, expected.ids, "{overflow}");
        assert_eq!(found.finish_reason, FinishReason::Length);
    }
}

#[test]
fn looked_up_drafts_replace_proposals() {
    let mut model = with_itself(256);
    let ids = &reference().ids;
    let repetitive = [&ids[..90], &ids[..30]].concat();
    let more = json!({ "ids": repetitive, "speculation": "prompt-lookup" });
    let expected = run(&mut stories(256), ask(60, &more));
    let found = run(&mut model, ask(60, &more));
    assert_eq!(found.ids, expected.ids);
    assert!(found.drafted_tokens > 0 && found.accepted_tokens > 0);
}

/// The head of a checkpoint changes the number of steps, not the text; conversations share it.
#[test]
fn the_head_of_the_checkpoint_proposes_tokens() {
    let folder = tiny_files("qwen3_5", None, json!([]), None);
    let mut plain = super::load_tiny(&folder).expect("a model");
    let error = load_draft(&mut plain, &folder, MTP_DRAFT).expect_err("no hidden states");
    assert_eq!(error.code(), "request");
    add_mtp_head(&folder);
    let request = json!({ "draft": MTP_DRAFT });
    let request: LoadRequest = serde_json::from_value(request).expect("a request");
    let options = RunOptions {
        stores_hidden: request.run_options().expect("options").stores_hidden,
        ..super::tiny_options()
    };
    let mut model = super::load_tiny_with(&folder, options).expect("a model");
    load_draft(&mut model, &folder, MTP_DRAFT).expect("a head");
    assert_eq!(model.info()["draft"], json!(MTP_DRAFT));
    model.force_draft(None, Some(2));
    let mut other = model.create_session().expect("a session");
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    let bias = json!({ "77": 6, "13": 6, "32": 5 });
    for more in [
        json!({}),
        json!({ "temperature": 0.8, "seed": 3, "logitBias": bias }),
        json!({ "temperature": 1.1, "seed": 4, "topP": 0.9, "repetitionPenalty": 1.2 }),
    ] {
        let mut more = more;
        more["ids"] = json!(ids);
        let expected = run(&mut plain, ask(60, &more));
        let found = run(&mut model, ask(60, &more));
        assert_eq!(found.ids, expected.ids, "{more}");
        assert!(found.drafted_tokens > 0, "{more}");
        assert_eq!(run(&mut other, ask(60, &more)).ids, expected.ids, "{more}");
        let mut fork = model.fork().expect("a fork");
        assert_eq!(run(&mut fork, ask(60, &more)).ids, expected.ids, "{more}");
        more["speculation"] = json!("off");
        let found = run(&mut model, ask(60, &more));
        assert_eq!(
            (found.ids, found.drafted_tokens),
            (expected.ids, 0),
            "{more}"
        );
    }
}

#[test]
fn models_that_cannot_propose_tokens_are_refused_by_name() {
    let mut model = stories(64);
    let error =
        events(&mut model, ask(8, &json!({ "speculation": "draft" }))).expect_err("no draft model");
    assert_eq!(error.code(), "request");
    assert!(error.to_string().contains("needs a draft model"), "{error}");
    let tiny = tiny_files("llama", None, json!([]), None);
    for (folder, name, told) in [
        (
            tiny.as_path(),
            "tiny",
            "the vocabulary of tiny is not that of stories260K: token 0 is",
        ),
        (
            golden("models/qwen3_embedding").as_path(),
            "embedding",
            "embedding cannot propose tokens: it is an embedding model",
        ),
        (
            golden("models/bert").as_path(),
            "bert",
            "bert cannot propose tokens: it is an embedding model",
        ),
    ] {
        let error = load_draft(&mut model, folder, name).expect_err(name);
        assert_eq!(error.code(), "request", "{error}");
        assert!(error.to_string().contains(told), "{error}");
        assert!(error.to_string().contains("draft"), "{error}");
    }
    // Refused models leave the target as it was.
    assert!(model.draft_model().is_none());
    let request = request(ask(8, &json!({})));
    let found = block_on(model.generate(&request, &AbortFlag::new(), |_| {})).expect("an answer");
    assert_eq!(found.ids, reference().new_ids()[..8]);
}

#[test]
fn one_other_token_is_found_and_recurrent_draft_models_are_refused() {
    let template = json!([]);
    let plain = tiny_files("qwen3", None, template.clone(), None);
    let mut target = super::load_tiny(&plain).expect("a target");
    let same = tiny_files("llama", None, template.clone(), None);
    load_draft(&mut target, &same, "same").expect("the same vocabulary");
    let added = json!([{ "id": 77, "content": "<other>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true }]);
    let other = tiny_files("llama", None, added, None);
    let error = load_draft(&mut target, &other, "other").expect_err("another token");
    let told = format!("token 77 is '<other>' instead of '{}'", character(77));
    assert!(error.to_string().contains(&told), "{error}");
    // The draft model that was loaded before stays.
    assert!(target.draft_model().is_some());
    let recurrent = tiny_files("qwen3_5", None, template, None);
    let error = load_draft(&mut target, &recurrent, "recurrent").expect_err("a recurrent draft");
    assert_eq!(error.code(), "unsupported_option");
    assert!(error.to_string().contains("The draft model"), "{error}");
    let mut target = super::load_tiny(&recurrent).expect("a target");
    load_draft(&mut target, &plain, "plain").expect("a recurrent target");
    for speculation in ["draft", "prompt-lookup"] {
        let ids = [7, 8, 9].repeat(60);
        let mut asked =
            json!({ "ids": ids, "maxTokens": 120, "temperature": 0, "ignoreEos": true });
        asked["speculation"] = json!("off");
        let expected = run(&mut target, asked.clone());
        asked["speculation"] = json!(speculation);
        if speculation == "prompt-lookup" {
            asked["prediction"] = json!(expected.text);
        }
        let found = run(&mut target, asked);
        assert_eq!(found.ids, expected.ids, "{speculation}");
        assert!(found.drafted_tokens > 0, "{speculation}");
    }
}
