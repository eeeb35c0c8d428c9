//! The multi-token-prediction head of Qwen3.5 against a reference, and generations with it: ids are
//! equal with and without, greedy and sampled, whatever the head proposes.

use super::draft::{Ask, draft, generate};
use super::{exact, greedy, halves, start, with_kv};
use jerboa::arch;
use jerboa::exec::{DecodeBatch, DraftSession, Model, RunOptions, SequenceParams, Session};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::kernels::attention::Kv;
use jerboa::sample::SamplingParams;
use jerboa_tests::golden::{Golden, add_mtp_head, golden, load};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::LazyLock;

/// models/qwen3_5 with a head.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("mtp-{}", std::process::id());
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&to).expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        let from = golden("models/qwen3_5").join(file);
        std::fs::copy(from, to.join(file)).expect("a copy");
    }
    add_mtp_head(&to);
    to
});

async fn source(folder: &Path) -> Source {
    let model = ModelRef::parse(&folder.to_string_lossy()).expect("a folder");
    let hub = HubOptions::default();
    let source = Source::open(&model, &hub, AbortFlag::new(), Progress::silent());
    source.await.expect("a source")
}

fn storing_hidden() -> RunOptions {
    RunOptions {
        stores_hidden: true,
        prefill_chunk: 32,
        ..with_kv(Kv::F32)
    }
}

/// The tiny model with its head, and the ids of its prompt.
fn with_head(options: RunOptions) -> (Session, Rc<Model>, Vec<u32>) {
    with_head_on(&exact(), options)
}

fn with_head_on(device: &DeviceOptions, options: RunOptions) -> (Session, Rc<Model>, Vec<u32>) {
    let model = load(open(device), &FOLDER, options);
    let model = model.expect("a model");
    let head = block_on(async {
        let source = source(&FOLDER).await;
        let options = RunOptions {
            max_context: Some(model.capacity()),
            stores_hidden: false,
            ..options
        };
        model.model().load_mtp_head(&source, options).await
    });
    let ids = Golden::read(&golden("models/qwen3_5/golden.safetensors")).ids("input_ids");
    (model, head.expect("a head"), ids)
}

#[test]
fn logits_equal_the_reference() {
    let (mut model, head, ids) = with_head(storing_hidden());
    let reference = Golden::read(&golden("mtp/golden.safetensors"));
    let mut head = draft(&head, &mut model);
    block_on(model.prefill(&ids, 0)).expect("prefill");
    let expected = reference.floats("logits");
    let vocabulary = model.vocab();
    let proposal = expected[expected.len() - vocabulary..].iter().enumerate();
    let proposal = proposal
        .max_by(|a, b| a.1.total_cmp(b.1))
        .expect("a token")
        .0;
    let found = block_on(head.head_logits(&ids, proposal as u32)).expect("logits");
    assert_eq!(found.len(), ids.len() * vocabulary);
    let rows = reference.ids("rows");
    let picked = rows
        .iter()
        .flat_map(|row| &found[*row as usize * vocabulary..][..vocabulary]);
    let picked: Vec<f32> = picked.copied().collect();
    let error = relative_l2(&picked, &expected);
    assert!(error < 1e-5, "{error:e}");
    let again = &found[found.len() - vocabulary..];
    let error = relative_l2(again, &reference.floats("again"));
    assert!(error < 1e-5, "from its own hidden state: {error:e}");
}

/// Requests whose proposals are never, sometimes and always accepted.
fn requests() -> Vec<SamplingParams> {
    let default = SamplingParams::default();
    let sampled = SamplingParams {
        greedy: false,
        temperature: 0.9,
        ..default.clone()
    };
    let bias = |strength: f64| [(13, strength), (32, strength - 1.0), (77, strength)].into();
    vec![
        default.clone(),
        sampled.clone(),
        SamplingParams {
            top_k: 20,
            top_p: 0.9,
            repetition_penalty: 1.2,
            ..sampled.clone()
        },
        SamplingParams {
            logit_bias: bias(4.0),
            ..sampled.clone()
        },
        SamplingParams {
            logit_bias: bias(7.0),
            ..sampled
        },
        SamplingParams {
            logit_bias: [(13, 50.0)].into(),
            ..default
        },
    ]
}

#[test]
fn ids_are_those_without_the_head() {
    let (mut plain, _) = start("models/qwen3_5", &exact(), with_kv(Kv::F32));
    let (mut model, head, ids) = with_head(storing_hidden());
    for length in [1, 2, 7] {
        let mut head = draft(&head, &mut model);
        head.fix_length(length);
        let mut shares = Vec::new();
        for (number, params) in requests().into_iter().enumerate() {
            let ask = Ask {
                params,
                seed: 3 + number as u64,
                ..Ask::greedy(&ids, 40)
            };
            let expected = generate(&mut plain, None, &ask).tokens;
            let found = generate(&mut model, Some(&mut head), &ask);
            assert_eq!(
                found.tokens, expected,
                "{length} proposals, request {number}"
            );
            assert!(found.drafted > 0);
            shares.push(found.accepted as f64 / found.drafted as f64);
            // The states are those of the tokens: the answer goes on from them.
            let all = [&ids[..], &expected].concat();
            assert!(model.tokens().len() >= all.len() - 1);
            let expected = greedy(&mut plain, &all, 12);
            let found = generate(&mut model, None, &Ask::greedy(&all, 12));
            assert_eq!(
                found.tokens, expected,
                "after {length} proposals, request {number}"
            );
        }
        assert!(shares[5] > 0.95, "{shares:?}");
        assert!(
            shares.iter().any(|share| (0.1..0.9).contains(share)),
            "{shares:?}"
        );
    }
}

/// A chat goes on, goes back and changes: the states of both follow.
#[test]
fn later_prompts_reuse_both_states() {
    let (mut plain, _) = start("models/qwen3_5", &exact(), with_kv(Kv::F32));
    let (mut model, head, ids) = with_head(storing_hidden());
    let mut head = draft(&head, &mut model);
    let params = &requests()[4];
    let mut text = ids.clone();
    for turn in 0..6 {
        let ask = Ask {
            params: params.clone(),
            seed: 40 + u64::from(turn),
            ..Ask::greedy(&text, 17)
        };
        let expected = generate(&mut plain, None, &ask).tokens;
        let found = generate(&mut model, Some(&mut head), &ask);
        assert_eq!(found.tokens, expected, "turn {turn}");
        text.extend(found.tokens);
        if turn % 3 == 2 {
            // Another answer from the middle.
            text.truncate(ids.len() + 11);
        }
        text.extend([5 + turn, 9, 40]);
    }
}

/// Plain steps and steps with proposals take turns: the head runs what it lacks.
#[test]
fn proposals_follow_the_controller() {
    let (mut plain, _) = start("models/qwen3_5", &exact(), with_kv(Kv::F32));
    let (mut model, head, ids) = with_head(storing_hidden());
    for params in [&requests()[0], &requests()[5]] {
        let ask = Ask {
            params: params.clone(),
            ..Ask::greedy(&ids, 120)
        };
        let expected = generate(&mut plain, None, &ask).tokens;
        let mut head = block_on(DraftSession::new(&head, &mut model)).expect("a draft");
        let found = generate(&mut model, Some(&mut head), &ask);
        assert_eq!(found.tokens, expected);
        assert!(found.drafted > 0, "a trial");
    }
}

/// Sequences in one step store no hidden states; a session that goes on alone has drafts again.
#[test]
fn sequences_of_a_batch_go_on_with_the_head() {
    let (mut model, head, ids) = with_head(storing_hidden());
    let prompts = [&ids[..30], &ids[..41]];
    let expected = prompts.map(|prompt| greedy(&mut model, prompt, 30));
    let mut sessions = prompts.map(|prompt| {
        let mut session = Session::new(model.model()).expect("a session");
        block_on(session.prefill(prompt, 0)).expect("prefill");
        session
    });
    let mut batch = block_on(DecodeBatch::new(model.model(), 2)).expect("a batch");
    let sequences = sessions
        .each_ref()
        .map(|session| block_on(batch.join(session, SequenceParams::greedy(12))).expect("join"));
    let mut tokens = BTreeMap::<_, Vec<u32>>::new();
    loop {
        let next = block_on(batch.next()).expect("a step");
        if next.is_empty() {
            break;
        }
        next.into_iter()
            .for_each(|(id, new)| tokens.entry(id).or_default().extend(new));
    }
    for ((session, id), (prompt, expected)) in sessions
        .iter_mut()
        .zip(sequences)
        .zip(prompts.iter().zip(&expected))
    {
        assert_eq!(tokens[&id], expected[..12]);
        block_on(batch.leave(id, session)).expect("leave");
        let all = [prompt, &expected[..12]].concat();
        let mut head = draft(&head, session);
        let found = generate(session, Some(&mut head), &Ask::greedy(&all, 18));
        assert_eq!(found.tokens, expected[12..]);
        assert!(found.drafted > 0);
    }
}

#[test]
fn half_precision_and_subgroups() {
    let options = |stores_hidden| RunOptions {
        stores_hidden,
        ..with_kv(halves())
    };
    let device = DeviceOptions::default();
    let (mut plain, _) = start("models/qwen3_5", &device, options(false));
    let (mut model, head, ids) = with_head_on(&device, options(true));
    let expected = greedy(&mut plain, &ids, 30);
    let mut head = draft(&head, &mut model);
    let found = generate(&mut model, Some(&mut head), &Ask::greedy(&ids, 30));
    assert_eq!(found.tokens, expected);
}

#[test]
fn stops_and_short_prompts() {
    let (mut plain, _) = start("models/qwen3_5", &exact(), with_kv(Kv::F32));
    let (mut model, head, ids) = with_head(storing_hidden());
    for prompt in [&ids[..1], &ids[..2], &ids[..33]] {
        let mut head = draft(&head, &mut model);
        let free = greedy(&mut plain, prompt, 24);
        for at in [0, 1, 5, 23] {
            let stops = [free[at]];
            let end = free
                .iter()
                .position(|token| *token == free[at])
                .expect("a stop");
            let ask = Ask {
                stops: &stops,
                ..Ask::greedy(prompt, 24)
            };
            let found = generate(&mut model, Some(&mut head), &ask);
            assert_eq!(
                found.tokens,
                free[..=end],
                "{} tokens, stop {at}",
                prompt.len()
            );
            let found = generate(&mut model, Some(&mut head), &Ask::greedy(prompt, at + 1));
            assert_eq!(
                found.tokens,
                free[..=at],
                "{} tokens, budget {at}",
                prompt.len()
            );
        }
    }
}

#[test]
fn a_context_is_filled_to_its_end() {
    let ids = Golden::read(&golden("models/qwen3_5/golden.safetensors")).ids("input_ids");
    for room in [0, 1, 9] {
        let options = RunOptions {
            max_context: Some(ids.len() + room),
            ..storing_hidden()
        };
        let (mut model, head, _) = with_head(options);
        let expected = greedy(&mut model, &ids, 100);
        assert_eq!(expected.len(), room + 1);
        let mut head = draft(&head, &mut model);
        let found = generate(&mut model, Some(&mut head), &Ask::greedy(&ids, 100));
        assert_eq!(found.tokens, expected, "{room}");
    }
}

#[test]
fn the_head_shares_the_embedding() {
    let (model, head, _) = with_head(storing_hidden());
    let plans = head.weights().values();
    let all: u64 = plans.map(|plan| plan.bytes()).sum();
    let hidden = model
        .model()
        .graph()
        .value(model.model().graph().hidden)
        .cols;
    let embedding = (2 * model.vocab() * hidden) as u64;
    let bytes = head.bytes().weights;
    assert!(bytes + embedding <= all + 4096, "{bytes} of {all}");
}

/// Heads of models with experts have them too; other families have no head.
#[test]
fn families_with_heads() {
    let head_of = |name: &str| {
        let config = std::fs::read(golden("models").join(name).join("config.json"));
        let config: serde_json::Value =
            serde_json::from_slice(&config.expect("a file")).expect("json");
        arch::mtp_graph(&config.into()).expect("a configuration")
    };
    for (name, tensor) in [
        ("qwen3_5", "mtp.layers.0.mlp.up_proj.weight"),
        (
            "qwen3_5_moe",
            "mtp.layers.0.mlp.shared_expert.up_proj.weight",
        ),
        ("qwen3_next", "mtp.layers.0.mlp.gate.weight"),
    ] {
        let head = head_of(name).expect(name);
        let mut names = head.weights.iter().flat_map(|weight| &weight.parts);
        assert!(names.any(|(name, _)| name == tensor), "{name}");
        assert_eq!(head.states.len(), 1, "{name}: a KV cache");
    }
    assert!(head_of("llama").is_none());
}

#[test]
fn checkpoints_without_a_head_are_refused() {
    let folder = golden("models/qwen3_5");
    let refused = load(open(&exact()), &folder, storing_hidden()).err();
    let refused = refused.expect("a refusal");
    assert_eq!(refused.code(), "unsupported_option");
    assert!(refused.to_string().contains("'mtp.fc.weight'"), "{refused}");
    let plain = load(open(&exact()), &FOLDER, with_kv(Kv::F32));
    let plain = plain.expect("a model");
    let refused = block_on(async {
        let source = source(&FOLDER).await;
        plain
            .model()
            .load_mtp_head(&source, with_kv(Kv::F32))
            .await
            .err()
    });
    let refused = refused.expect("a refusal");
    assert!(refused.to_string().contains("'stores_hidden'"), "{refused}");
}
