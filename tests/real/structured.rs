//! Answers of a real model under JSON schemas: every one that ends is valid.
//!
//! `cargo xtask test real smollm2-structured` runs it; `JERBOA_SCHEMAS` sets the number of schemas, 24
//! by default: a few minutes on a software adapter.

use super::{Report, load};
use jerboa::exec::RunOptions;
use jerboa::hub::AbortFlag;
use jerboa::sample::TokenConstraint;
use jerboa::task::{ChatModel, FinishReason, GenerateRequest, TaskModel};
use jerboa::{Error, Result};
use jerboa_grammar::{Constraint, Grammar, GrammarError, Vocabulary};
use jerboa_tests::grammar::{GrammarLimit, vocabulary};
use pollster::block_on;
use serde_json::{Value, json};
use std::time::Instant;

/// A grammar as the engine's constraint, with the time of each mask in milliseconds.
struct Timed {
    grammar: Grammar,
    mask_ms: Vec<f64>,
}

fn refused(error: &GrammarError) -> Error {
    Error::Internal(error.to_string())
}

impl TokenConstraint for Timed {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        let start = Instant::now();
        let written = self.grammar.write_mask(words);
        self.mask_ms.push(start.elapsed().as_secs_f64() * 1e3);
        written.map_err(|e| refused(&e))
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        self.grammar.accept(token).map_err(|e| refused(&e))
    }
}

/// Schemas of records: each combines field types, bounds and optional fields differently.
fn schema(number: usize) -> Value {
    let fields = [
        json!({ "type": "string", "maxLength": 16 }),
        json!({ "type": "integer", "minimum": -5, "maximum": 120 }),
        json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1.5 }),
        json!({ "type": "boolean" }),
        json!({ "enum": ["red", "dark blue", 7, null] }),
        json!({ "type": ["string", "null"], "pattern": "^[A-Z]{2}-[0-9]{3}$" }),
        json!({ "type": "string", "format": "date" }),
        json!({ "type": "string", "format": "email" }),
        json!({ "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1, "maxItems": 3 }),
        json!({ "anyOf": [{ "const": "none" }, { "type": "object", "properties": { "x": { "type": "integer" } }, "required": ["x"], "additionalProperties": false }] }),
        json!({ "$ref": "#/$defs/node" }),
    ];
    let names = [
        "name", "age", "share", "done", "color", "code", "day", "mail", "items", "point", "tree",
    ];
    let chosen = [
        number % 11,
        (number / 11 + number * 3 + 1) % 11,
        (number * 5 + 4) % 11,
    ];
    let properties = chosen.map(|at| (names[at].to_owned(), fields[at].clone()));
    let required = &names[chosen[0]..=chosen[0]];
    json!({
        "type": "object",
        "properties": serde_json::Map::from_iter(properties),
        "required": required,
        "additionalProperties": false,
        "$defs": { "node": { "type": "object", "properties": { "leaf": { "type": "boolean" }, "next": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] } }, "required": ["leaf"], "additionalProperties": false } },
    })
}

/// Whether another run of the grammar, over single bytes, takes the whole text.
fn is_valid(bytes: &Vocabulary, schema: &Value, text: &str) -> bool {
    let mut grammar = bytes
        .grammar(Constraint::JsonSchema(schema))
        .expect("a grammar");
    let takes = text
        .bytes()
        .all(|byte| grammar.accept(u32::from(byte)).is_ok());
    takes && grammar.is_complete() && serde_json::from_str::<Value>(text).is_ok()
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn smollm2() -> Box<ChatModel> {
    let name = "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF";
    match load(name, RunOptions::default()) {
        TaskModel::Generate(model) => model,
        _ => panic!("SmolLM2 is a language model"),
    }
}

#[test]
fn smollm2_structured() {
    let count = std::env::var("JERBOA_SCHEMAS").map_or(24, |n| n.parse().expect("a number"));
    let mut report = Report::new("smollm2");
    let mut model = smollm2();
    let text = model.text.clone();
    let tokenizer = text.tokenizer().expect("a tokenizer");
    let vocabulary = vocabulary(tokenizer);
    let bytes = (0..=255u8)
        .map(|byte| vec![byte])
        .chain([b"end".to_vec()])
        .collect();
    let bytes = Vocabulary::new(bytes, &[256]).expect("a vocabulary");
    let [mut compile_ms, mut mask_ms] = [Vec::new(), Vec::new()];
    let mut ended = 0;
    let mut invalid = Vec::new();
    for number in 0..count {
        let schema = schema(number);
        let start = Instant::now();
        let grammar = vocabulary.grammar(Constraint::JsonSchema(&schema));
        compile_ms.push(start.elapsed().as_secs_f64() * 1e3);
        let mut constraint = Timed {
            grammar: grammar.expect("a grammar"),
            mask_ms: Vec::new(),
        };
        let messages = json!([{ "role": "user", "content": "Describe a person as JSON." }]);
        let asked = json!({ "messages": messages, "maxTokens": 96, "temperature": f64::from(u8::from(number % 2 == 1)), "seed": number });
        let request = GenerateRequest::from_json(&asked.to_string()).expect("a request");
        let abort = AbortFlag::new();
        let running = model.generate_constrained(&request, Some(&mut constraint), &abort, |_| {});
        let answer = block_on(running).unwrap_or_else(|e| panic!("{schema}: {e}"));
        mask_ms.append(&mut constraint.mask_ms);
        if answer.finish_reason == FinishReason::Stop {
            ended += 1;
            if !is_valid(&bytes, &schema, &answer.text) {
                invalid.push(format!("{schema}: {}", answer.text));
            }
        }
    }
    report.check(
        "answers by schemas are valid",
        invalid.is_empty(),
        &invalid.join("\n"),
    );
    report.check(
        "answers end",
        ended * 10 >= count * 8,
        &format!("{ended} of {count}"),
    );
    println!(
        "compile ms: median {:.2}, 99 % {:.2}; mask ms a token: median {:.3}, 99 % {:.3}",
        quantile(&mut compile_ms, 0.5),
        quantile(&mut compile_ms, 0.99),
        quantile(&mut mask_ms, 0.5),
        quantile(&mut mask_ms, 0.99)
    );
    report.finish();
}

/// Documents that are sampled ahead of their masks are those of single steps. Prints how many tokens
/// a readback brings.
#[test]
fn smollm2_run_ahead() {
    let mut report = Report::new("smollm2");
    let mut model = smollm2();
    let text = model.text.clone();
    let tokenizer = text.tokenizer().expect("a tokenizer");
    let vocabulary = vocabulary(tokenizer);
    let schema = json!({ "type": "object", "properties": {
        "name": { "type": "string" }, "age": { "type": "integer", "minimum": 0, "maximum": 120 },
        "biography": { "type": "string" },
    }, "required": ["name", "age", "biography"], "additionalProperties": false });
    let messages = json!([{ "role": "user", "content": "Invent a person. Answer in JSON with the fields name, age and biography (a paragraph)." }]);
    for setting in [
        json!({ "temperature": 0 }),
        json!({ "temperature": 0.7, "topP": 0.9, "seed": 1 }),
    ] {
        let mut asked = setting.clone();
        asked["messages"] = messages.clone();
        asked["maxTokens"] = json!(96);
        let request = GenerateRequest::from_json(&asked.to_string()).expect("a request");
        let [steps, ahead] = [false, true].map(|runs_ahead| {
            let constraint = Constraint::JsonSchema(&schema);
            let mut limit = GrammarLimit::new(&vocabulary, tokenizer, constraint);
            limit.runs_ahead = runs_ahead;
            let abort = AbortFlag::new();
            let running = model.generate_constrained(&request, Some(&mut limit), &abort, |_| {});
            block_on(running).unwrap_or_else(|e| panic!("{setting}: {e}"))
        });
        let found = format!(
            "{setting}: {} tokens, {} readbacks ahead ({:.0} ms), {} in steps ({:.0} ms): {}",
            ahead.ids.len(),
            ahead.readbacks,
            ahead.decode_ms,
            steps.readbacks,
            steps.decode_ms,
            ahead.text
        );
        report.check(
            "the document is that of single steps",
            ahead.ids == steps.ids,
            &found,
        );
    }
    report.finish();
}
