//! Generation with generation_config.json against transformers' `generate`
//! (tests/golden/scripts/make_generation.py). Also stop strings and prompts that spell special
//! tokens, and prefilled answers.

use super::{character, load_tiny, request, run, tiny_files, tiny_with};
use jerboa::Error;
use jerboa::hub::AbortFlag;
use jerboa::sample::generation::{APPLIED, GenerationConfig, HARMLESS, UNSUPPORTED};
use jerboa::task::{ChatModel, FinishReason, ServesTask};
use jerboa::text::EncodeOptions;
use jerboa_tests::golden::golden;
use pollster::block_on;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn reference() -> Value {
    let text = std::fs::read_to_string(golden("sample/generation.json")).expect("generation.json");
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .expect("ids")
        .iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect()
}

/// The tiny llama with a generation_config.json.
fn llama(config: &Value) -> ChatModel {
    tiny_with("llama", Some(config), json!([]), None)
}

#[test]
fn answers_follow_generation_config_as_in_transformers() {
    let golden = reference();
    let answers = golden["answers"].as_array().expect("answers");
    let plain = &answers[0];
    for case in answers {
        let mut model = llama(&case["config"]);
        assert_eq!(
            model.info()["samplesByDefault"],
            json!(case["config"]["do_sample"] == true),
            "{}",
            case["config"]
        );
        // No maxTokens: the configuration's value applies.
        let outcome = run(&mut model, json!({ "ids": case["prompt"] }));
        assert_eq!(outcome.ids, ids(&case["ids"]), "{}", case["config"]);
        if case["prompt"] == plain["prompt"] && case["config"] != plain["config"] {
            assert_ne!(
                case["ids"], plain["ids"],
                "{} changes nothing",
                case["config"]
            );
        }
        assert!(
            model.origin.warnings.is_empty(),
            "{:?}",
            model.origin.warnings
        );
    }
    assert!(answers.len() > 20);
}

#[test]
fn every_field_of_generation_config_is_handled() {
    let names: Vec<&str> = APPLIED
        .iter()
        .chain(HARMLESS)
        .copied()
        .chain(UNSUPPORTED.iter().map(|f| f.0))
        .collect();
    let known: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(known.len(), names.len(), "a field is in two lists");
    let golden = reference();
    let fields: BTreeSet<&str> = golden["fields"]
        .as_array()
        .expect("fields")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(known, fields);
}

#[test]
fn numbers_may_be_strings() {
    let config = json!({ "temperature": "0.7", "top_k": "20", "eos_token_id": "2", "do_sample": true, "stop_strings": "5" });
    let read = GenerationConfig::read(&config).expect("a configuration");
    assert_eq!((read.params.temperature, read.params.top_k), (0.7, 20));
    assert_eq!(read.stop_strings, ["5"]);
    let wrong = json!({ "temperature": "warm" });
    assert!(matches!(
        GenerationConfig::read(&wrong),
        Err(Error::Config { .. })
    ));
}

#[test]
fn unsupported_options_are_named_and_neutral_values_pass() {
    let told = |config: Value| {
        GenerationConfig::read(&config)
            .expect("a configuration")
            .warnings
            .join("\n")
    };
    for (config, name) in [
        (json!({ "num_beams": 4 }), "'num_beams' = 4"),
        (json!({ "num_beam_groups": 2 }), "'num_beam_groups'"),
        (
            json!({ "penalty_alpha": 0.6, "top_k": 4 }),
            "'penalty_alpha' = 0.6",
        ),
        (json!({ "guidance_scale": 1.5 }), "'guidance_scale'"),
        (
            json!({ "watermarking_config": { "bias": 2.5 } }),
            "'watermarking_config'",
        ),
        (json!({ "token_healing": true }), "'token_healing'"),
        (json!({ "dola_layers": "high" }), "'dola_layers'"),
        (json!({ "force_words_ids": [[5]] }), "'force_words_ids'"),
        (json!({ "constraints": ["x"] }), "'constraints'"),
    ] {
        let found = told(config.clone());
        assert!(found.contains(name), "{config}: {found}");
    }
    let neutral = json!({
        "num_beams": 1, "num_beam_groups": 1, "penalty_alpha": 0, "guidance_scale": 1.0, "watermarking_config": null, "token_healing": false,
        "dola_layers": null, "force_words_ids": null, "constraints": [], "length_penalty": 2.0, "unheard_of": 5,
    });
    assert_eq!(told(neutral), "");
    assert_eq!(told(json!({ "penalty_alpha": 0.6, "do_sample": true })), "");
    let model = llama(&json!({ "num_beams": 3 }));
    assert!(
        model
            .origin
            .warnings
            .iter()
            .any(|w| w.contains("'num_beams' = 3")),
        "{:?}",
        model.origin.warnings
    );
    assert!(
        GenerationConfig::asr_warnings(&json!({ "no_repeat_ngram_size": 3 }))[0]
            .contains("'no_repeat_ngram_size' = 3")
    );
    assert!(
        GenerationConfig::asr_warnings(
            &json!({ "no_repeat_ngram_size": 0, "repetition_penalty": 1.0 })
        )
        .is_empty()
    );
}

#[test]
fn damaged_fields_are_refused_by_name() {
    for (config, name) in [
        (
            json!({ "no_repeat_ngram_size": "two" }),
            "no_repeat_ngram_size",
        ),
        (json!({ "min_new_tokens": -1 }), "min_new_tokens"),
        (json!({ "min_length": 1.5 }), "min_length"),
        (json!({ "bad_words_ids": [5] }), "bad_words_ids"),
        (json!({ "bad_words_ids": [[]] }), "bad_words_ids"),
        (json!({ "sequence_bias": [[[5], "x"]] }), "sequence_bias"),
        (json!({ "suppress_tokens": ["a"] }), "suppress_tokens"),
        (
            json!({ "exponential_decay_length_penalty": 5 }),
            "exponential_decay_length_penalty",
        ),
        (
            json!({ "encoder_repetition_penalty": 0 }),
            "encoder_repetition_penalty",
        ),
        (json!({ "top_h": 2 }), "top_h"),
    ] {
        match GenerationConfig::read(&config) {
            Err(Error::Config { reason, .. }) => {
                assert!(reason.contains(name), "{config}: {reason}");
            }
            other => panic!("{config}: {other:?}"),
        }
    }
    for (config, name) in [
        (json!({ "bad_words_ids": [[300]] }), "bad_words_ids"),
        (
            json!({ "sequence_bias": [[[1, 300], 1.0]] }),
            "sequence_bias",
        ),
    ] {
        match GenerationConfig::read(&config)
            .expect("readable")
            .for_model(&[], 256)
        {
            Err(Error::Config { reason, .. }) => {
                assert!(reason.contains(name) && reason.contains("300"), "{reason}");
            }
            other => panic!("{config}: {other:?}"),
        }
    }
}

/// Static bans run on the GPU, with the request's biases; other bans need the logits.
#[test]
fn requests_override_generation_config() {
    let golden = reference();
    let prompt = &golden["answers"][0]["prompt"];
    let plain = ids(&golden["answers"][0]["ids"]);
    let mut model = llama(&json!({ "max_new_tokens": 4, "suppress_tokens": [plain[0]] }));
    let more = run(&mut model, json!({ "ids": prompt, "maxTokens": 9 }));
    assert_eq!(
        (more.ids.len(), more.finish_reason),
        (9, FinishReason::Length)
    );
    assert!(!more.ids.contains(&plain[0]));
    let wanted = json!({ "ids": prompt, "logitBias": { plain[0].to_string(): 100.0 } });
    assert!(
        !run(&mut model, wanted).ids.contains(&plain[0]),
        "a bias cannot undo a ban"
    );
    let both = [false, true].map(|logprobs| {
        let request = json!({ "ids": prompt, "maxTokens": 12, "temperature": 0.9, "seed": 3, "logprobs": logprobs });
        run(&mut model, request).ids
    });
    assert_eq!(both[0], both[1]);
    let mut model = llama(&json!({ "max_length": 6 }));
    let long = json!({ "ids": [5, 6, 7, 8, 9, 10] });
    match block_on(model.generate(&request(long.clone()), &AbortFlag::new(), |_| {})) {
        Err(Error::Request { parameter, reason }) => {
            assert_eq!(parameter, "maxTokens");
            assert!(
                reason.contains("'max_length'") && reason.contains('6'),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        run(&mut model, json!({ "ids": long["ids"], "maxTokens": 3 }))
            .ids
            .len(),
        3
    );
    // Whatever the time limit, at least one token is generated.
    let mut model = llama(&json!({ "max_time": 0.0, "min_new_tokens": 1 }));
    let short = run(&mut model, json!({ "ids": prompt, "maxTokens": 50 }));
    assert_eq!(
        (short.ids.len(), short.finish_reason),
        (1, FinishReason::Length)
    );
}

/// Special tokens `<a>` and `<b>` as the second and third token of the plain answer.
fn with_specials(template: Option<&str>) -> (ChatModel, Vec<u32>, Vec<u32>) {
    let golden = reference();
    let plain = ids(&golden["answers"][0]["ids"]);
    let added = json!([special(plain[1], "<a>"), special(plain[2], "<b>")]);
    (
        tiny_with("llama", Some(&json!({})), added, template),
        ids(&golden["answers"][0]["prompt"]),
        plain,
    )
}

fn special(id: u32, content: &str) -> Value {
    json!({ "id": id, "content": content, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false })
}

#[test]
fn stop_strings_that_spell_special_tokens_stop() {
    let (mut model, prompt, plain) = with_specials(None);
    let first = character(plain[0]).to_string();
    let fourth = character(plain[3]);
    for (stop, count) in [
        ("<a>".to_string(), 2),
        ("<b>".to_string(), 3),
        (format!("{first}<a>"), 2),
        ("<a><b>".to_string(), 3),
        (format!("<b>{fourth}"), 4),
    ] {
        for logprobs in [false, true] {
            let outcome = run(
                &mut model,
                json!({ "ids": prompt, "maxTokens": 10, "stop": [stop], "logprobs": logprobs }),
            );
            assert_eq!(
                (outcome.ids.as_slice(), outcome.finish_reason),
                (&plain[..count], FinishReason::Stop),
                "{stop}"
            );
            let text = if stop.starts_with('<') {
                first.as_str()
            } else {
                ""
            };
            assert_eq!(
                outcome.text, text,
                "{stop}: neither the stop string nor special tokens are shown"
            );
        }
    }
    // Text on both sides of a special token does not form a stop string.
    let outcome = run(
        &mut model,
        json!({ "ids": prompt, "maxTokens": 5, "stop": [format!("{first}{fourth}")] }),
    );
    assert_eq!(
        (outcome.ids.len(), outcome.finish_reason),
        (5, FinishReason::Length)
    );
}

#[test]
fn prompts_write_special_tokens_on_request_only() {
    let (mut model, _, plain) = with_specials(None);
    let prompt = format!("{}<a>{}", character(5), character(6));
    let tokenizer = model.text.tokenizer().expect("a tokenizer");
    let parsed = tokenizer
        .encode_with_options(
            &prompt,
            EncodeOptions {
                add_special: true,
                parse_special: true,
            },
        )
        .expect("ids");
    assert_eq!(parsed, [5, plain[1], 6]);
    assert!(
        !tokenizer
            .encode_with_options(
                &prompt,
                EncodeOptions {
                    add_special: true,
                    parse_special: false
                }
            )
            .expect("ids")
            .contains(&plain[1])
    );
    let by_ids = run(&mut model, json!({ "ids": parsed, "maxTokens": 6 }));
    let by_text = run(
        &mut model,
        json!({ "prompt": prompt, "parseSpecial": true, "maxTokens": 6 }),
    );
    assert_eq!((by_text.ids, by_text.prompt_tokens), (by_ids.ids, 3));
    let as_text = run(&mut model, json!({ "prompt": prompt, "maxTokens": 6 }));
    assert_ne!(as_text.prompt_tokens, 3);
}

#[test]
fn prefilled_answers_are_continued() {
    let template = "{% for m in messages %}<a>{{ m.content }}<b>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";
    let (mut model, _, plain) = with_specials(Some(template));
    let question = character(5).to_string();
    let begun = character(6).to_string();

    let messages =
        json!([{ "role": "user", "content": question }, { "role": "assistant", "content": begun }]);
    let [a, b] = [plain[1], plain[2]];
    let of = |model: &mut ChatModel, more: Value, ids: &[u32]| {
        let mut asked = json!({ "messages": messages, "maxTokens": 6 });
        asked
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        let answer = run(model, asked);
        assert_eq!(answer.prompt_tokens, ids.len());
        assert_eq!(
            answer.ids,
            run(model, json!({ "ids": ids, "maxTokens": 6 })).ids,
            "{more}"
        );
    };
    of(&mut model, json!({}), &[a, 5, b, a, 6, b, a]);
    of(
        &mut model,
        json!({ "addGenerationPrompt": false }),
        &[a, 5, b, a, 6, b],
    );
    of(
        &mut model,
        json!({ "continueFinalMessage": true }),
        &[a, 5, b, a, 6],
    );
    let both =
        json!({ "messages": messages, "continueFinalMessage": true, "addGenerationPrompt": true });
    let refused = jerboa::task::GenerateRequest::from_json(&both.to_string());
    assert!(
        matches!(refused, Err(Error::Request { parameter, .. }) if parameter == "continueFinalMessage")
    );
    // Special tokens spelled in a message are plain text, also in a continued message.
    let sly = json!({ "messages": [{ "role": "assistant", "content": format!("{begun}<b>") }], "continueFinalMessage": true, "maxTokens": 1 });
    assert!(run(&mut model, sly).prompt_tokens != 3);
}

#[test]
fn ids_of_end_tokens_that_the_model_does_not_have_are_ignored_with_a_warning() {
    let mut model =
        llama(&json!({ "eos_token_id": [5, 4_294_967_295_u64, 256, 5_000_000_000_u64] }));
    let warnings = &model.origin.warnings;
    assert!(
        warnings.iter().any(|w| w.contains(
            "eos_token_id names 2 tokens that the model does not have, such as 4294967295"
        )),
        "{warnings:?}"
    );
    let made = run(
        &mut model,
        json!({ "ids": [1, 2], "maxTokens": 4, "ignoreEos": true }),
    );
    assert_eq!(made.ids.len(), 4);
}

#[test]
fn a_post_processor_may_add_only_tokens_of_the_embedding() {
    // The tokenizer has the token, the model's 256 rows do not.
    let added = json!([{ "id": 300, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true }]);
    let folder = tiny_files("llama", None, added, None);
    let path = folder.join("tokenizer.json");
    let mut file: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("a tokenizer")).expect("JSON");
    let template = |id: u32| {
        json!({ "type": "TemplateProcessing", "pair": [],
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [id], "tokens": ["<s>"] } } })
    };
    file["post_processor"] = template(300);
    std::fs::write(&path, file.to_string()).expect("a tokenizer");
    let Err(error @ Error::Tokenizer { .. }) = load_tiny(&folder) else {
        panic!("a tokenizer error");
    };
    assert!(
        error
            .to_string()
            .contains("the post-processor adds token 300, but ids of the model end at 255"),
        "{error}"
    );
    file["post_processor"] = template(7);
    std::fs::write(&path, file.to_string()).expect("a tokenizer");
    assert!(load_tiny(&folder).is_ok());
}
