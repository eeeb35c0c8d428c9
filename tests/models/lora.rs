//! LoRA adapters against peft: logits and greedy ids with an adapter, next to sessions with another
//! adapter or none.

use super::{exact, start, stepwise, with_kv};
use jerboa::Error;
use jerboa::exec::{
    DecodeParams, OverlayId, Precision, PrecisionOptions, PromptLookup, RunOptions, Session,
};
use jerboa::format::{Float, WeightLayout};
use jerboa::gpu::Backend;
use jerboa::kernels::attention::Kv;
use jerboa::plan::Fusions;
use jerboa_tests::golden::{Golden, decode_to_end, golden, greedy, open};
use jerboa_tests::relative_l2;
use pollster::block_on;

/// `adapter` targets every matmul of a layer, `query_value` what peft targets by default.
const ADAPTERS: [&str; 2] = ["adapter", "query_value"];

fn load_adapter(session: &Session, path: &str) -> Result<OverlayId, Error> {
    load_adapter_with(session, path, false)
}

fn load_adapter_with(session: &Session, path: &str, merge: bool) -> Result<OverlayId, Error> {
    block_on(async {
        let source = open(&golden(path)).await?;
        session.model().load_adapter(&source, merge).await
    })
}

fn with_adapter(session: &Session, name: &str) -> Session {
    let adapter = load_adapter(session, &format!("lora/{name}")).expect(name);
    Session::with_adapter(session.model(), adapter).expect(name)
}

/// A cache in f32, and weights in 8 bits.
fn with_8_bits() -> RunOptions {
    RunOptions {
        overrides: PrecisionOptions {
            kv_type: Some(Kv::F32),
            precision: Precision::Q8,
            ..PrecisionOptions::default()
        },
        ..RunOptions::default()
    }
}

/// Greedy ids by steps with drafts.
fn with_drafts(session: &mut Session, ids: &[u32], count: usize) -> Vec<u32> {
    block_on(async {
        session.prepare_speculation().await.expect("drafts");
        session.prefill(ids, 0).await.expect("prefill");
        let lookup = Some(PromptLookup {
            context: ids,
            prediction: &[],
            draft_always: true,
        });
        let params = DecodeParams {
            lookup,
            ..DecodeParams::greedy(ids.len(), count)
        };
        decode_to_end(session, params).await
    })
}

#[test]
fn adapters_equal_peft_and_leave_the_model_as_it_was() {
    let expected = Golden::read(&golden("lora/golden.safetensors"));
    for fusions in [Fusions::ALL, Fusions::NONE] {
        let options = RunOptions {
            fusions,
            // Sequences grow while they run.
            kv_growth: 8,
            ..with_kv(Kv::F32)
        };
        let (mut base, golden) = start("llama", &exact(), options);
        let ids = golden.ids("input_ids");
        let before = base.model().bytes().weights;
        let mut sessions = ADAPTERS.map(|name| (name, with_adapter(&base, name)));
        assert!(base.model().bytes().weights > before);
        for (name, session) in &mut sessions {
            let logits = expected.floats(&format!("logits.{name}"));
            let tokens: Vec<u32> = expected
                .ints(&format!("greedy.{name}"))
                .into_iter()
                .map(|id| id as u32)
                .collect();
            let found = block_on(session.all_rows(&ids, false)).expect(name);
            let error = relative_l2(&found, &logits);
            assert!(error < 2e-4, "{name}: prefill {error:e}");
            assert_eq!(greedy(session, &ids, 32), tokens, "{name}");
            let error = relative_l2(&stepwise(session, &ids), &logits);
            assert!(error < 2e-4, "{name}: token by token {error:e}");
            let mut fork = session.fork().expect(name);
            assert_eq!(greedy(&mut fork, &ids, 32), tokens, "{name}, forked");
            assert_eq!(with_drafts(session, &ids, 32), tokens, "{name}, drafts");
        }
        assert_eq!(greedy(&mut base, &ids, 32), golden.ids("greedy"));
        let found = block_on(base.all_rows(&ids, false)).expect("logits");
        let error = relative_l2(&found, &golden.floats("logits"));
        assert!(error < 2e-4, "without an adapter {error:e}");
    }
}

/// peft names the modules of a multimodal model as transformers does now, or as it did before.
#[test]
fn adapters_of_multimodal_models_are_read_by_all_their_names() {
    let expected = Golden::read(&golden("lora/golden.safetensors"));
    let (base, golden_llama) = start("llama", &exact(), with_kv(Kv::F32));
    let ids = golden_llama.ids("input_ids");
    for names in ["model.language_model.layers", "language_model.model.layers"] {
        let folder = std::env::temp_dir().join(format!(
            "jerboa-lora-{}-{}",
            std::process::id(),
            &names[..5]
        ));
        std::fs::create_dir_all(&folder).expect("a folder");
        let from = golden("lora/adapter");
        std::fs::copy(
            from.join("adapter_config.json"),
            folder.join("adapter_config.json"),
        )
        .expect("settings");
        let file = std::fs::read(from.join("adapter_model.safetensors")).expect("weights");
        let data = 8 + u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
        let header = std::str::from_utf8(&file[8..data]).expect("a header");
        let header = header.replace(
            "base_model.model.model.layers",
            &format!("base_model.model.{names}"),
        );
        assert!(header.contains(names), "{header}");
        let length = (header.len() as u64).to_le_bytes();
        let renamed = [&length[..], header.as_bytes(), &file[data..]].concat();
        std::fs::write(folder.join("adapter_model.safetensors"), renamed).expect("weights");
        for merge in [false, true] {
            let adapter = block_on(async {
                base.model()
                    .load_adapter(&open(&folder).await?, merge)
                    .await
            });
            let adapter = adapter.unwrap_or_else(|e| panic!("{names}: {e}"));
            let session = Session::with_adapter(base.model(), adapter);
            let mut session = session.expect(names);
            let found = block_on(session.all_rows(&ids, false)).expect(names);
            let error = relative_l2(&found, &expected.floats("logits.adapter"));
            assert!(error < 2e-4, "{names}: {error:e}");
            drop(session);
            base.model().unload_adapter(adapter);
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}

#[test]
fn an_adapter_runs_on_a_quantized_model() {
    let expected = Golden::read(&golden("lora/golden.safetensors"));
    let (base, golden) = start("llama", &exact(), with_8_bits());
    let ids = golden.ids("input_ids");
    for name in ADAPTERS {
        let mut session = with_adapter(&base, name);
        let found = block_on(session.all_rows(&ids, false)).expect(name);
        let error = relative_l2(&found, &expected.floats(&format!("logits.{name}")));
        // 8 bits of these 48 columns cost 3e-2; the adapters change the logits by far more.
        assert!(error < 5e-2, "{name}: {error:e}");
        let without = relative_l2(&found, &golden.floats("logits"));
        assert!(without > 0.5, "{name} changes the logits by {without:e}");
    }
}

/// A session with an adapter, its logits and greedy ids against peft's.
fn equals_peft(base: &Session, path: &str, names: [&str; 2], ids: &[u32], merge: bool) {
    let folder = golden(path);
    let folder = if names[0] == "logits" {
        folder
    } else {
        golden("lora")
    };
    let expected = Golden::read(&folder.join("golden.safetensors"));
    let adapter = load_adapter_with(base, path, merge).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut session = Session::with_adapter(base.model(), adapter).expect(path);
    let found = block_on(session.all_rows(ids, false)).expect(path);
    let error = relative_l2(&found, &expected.floats(names[0]));
    // Copies of weights that are not f32 are f16.
    let mut plans = base.model().weights().values();
    let is_exact = plans.all(|plan| plan.layout != WeightLayout::Dense(Float::BF16));
    let limit = if is_exact { 2e-4 } else { 1e-3 };
    assert!(error < limit, "{path}: {error:e}");
    let tokens = expected.ints(names[1]);
    let found = greedy(&mut session, ids, tokens.len());
    let found: Vec<i32> = found.into_iter().map(|id| id as i32).collect();
    assert_eq!(found, tokens, "{path}");
    drop(session);
    base.model().unload_adapter(adapter);
}

/// Norms of the rows of all matrices of a layer, of some with biases, and of rows stored by head.
#[test]
fn dora_equals_peft() {
    for name in ["llama", "qwen2", "gpt_neox"] {
        for fusions in [Fusions::ALL, Fusions::NONE] {
            let options = RunOptions {
                fusions,
                ..with_kv(Kv::F32)
            };
            let (base, own) = start(name, &exact(), options);
            let ids = own.ids("input_ids");
            let before = base.gpu().resource_counts().bytes;
            equals_peft(
                &base,
                &format!("lora/dora/{name}"),
                ["logits", "greedy"],
                &ids,
                false,
            );
            assert_eq!(
                base.gpu().resource_counts().bytes,
                before,
                "{name}: something stays"
            );
        }
    }
}

#[test]
fn merged_adapters_equal_peft() {
    let (mut base, own) = start("llama", &exact(), with_kv(Kv::F32));
    let ids = own.ids("input_ids");
    for name in ADAPTERS {
        let names = ["logits", "greedy"].map(|kind| format!("{kind}.{name}"));
        let names = names.each_ref().map(String::as_str);
        equals_peft(&base, &format!("lora/{name}"), names, &ids, true);
    }
    assert_eq!(greedy(&mut base, &ids, 32), own.ids("greedy"));
    // Copies in f32.
    let options = RunOptions {
        overrides: PrecisionOptions {
            kv_type: Some(Kv::F32),
            precision: Precision::F32,
            ..PrecisionOptions::default()
        },
        ..with_kv(Kv::F32)
    };
    for name in ["phi3", "gpt2", "gpt_neox", "qwen2_untied"] {
        let (base, own) = start(name, &exact(), options);
        let path = format!("lora/families/{name}");
        equals_peft(
            &base,
            &path,
            ["logits", "greedy"],
            &own.ids("input_ids"),
            true,
        );
    }
}

/// The norms are those of the dequantized rows.
#[test]
fn dora_runs_on_a_quantized_model() {
    let (base, own) = start("llama", &exact(), with_8_bits());
    let ids = own.ids("input_ids");
    let expected = Golden::read(&golden("lora/dora/llama/golden.safetensors"));
    let adapter = load_adapter(&base, "lora/dora/llama").expect("an adapter");
    let mut session = Session::with_adapter(base.model(), adapter).expect("a session");
    let found = block_on(session.all_rows(&ids, false)).expect("logits");
    let error = relative_l2(&found, &expected.floats("logits"));
    assert!(error < 5e-2, "{error:e}");
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let (session, _) = start("gpt2", &exact(), with_kv(Kv::F32));
    let error = load_adapter(&session, "lora/adapter").expect_err("another family");
    assert_eq!(error.code(), "unsupported_option", "{error}");
    assert!(error.to_string().contains("0 name a matmul"), "{error}");
    let error = load_adapter(&session, "models/llama").expect_err("a model");
    assert_eq!(error.code(), "missing_file", "{error}");
}

/// Targets in one matrix of the checkpoint (Phi-3), transposed (GPT-2), by head (GPT-NeoX), of convolution layers (LFM2),
/// of a mixture's attention and of a head; ranks and alphas by layer, rank-stabilized scaling.
#[test]
fn adapters_of_other_families_equal_peft() {
    for name in [
        "qwen3",
        "phi3",
        "gemma3",
        "gpt2",
        "gpt_neox",
        "mixtral",
        "qwen2_untied",
        "lfm2",
        "phi2",
    ] {
        let path = format!("lora/families/{name}");
        let expected = Golden::read(&golden(&path).join("golden.safetensors"));
        let (base, own) = start(name, &exact(), with_kv(Kv::F32));
        let ids = own.ids("input_ids");
        let adapter = load_adapter(&base, &path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut session = Session::with_adapter(base.model(), adapter).expect(name);
        let found = block_on(session.all_rows(&ids, false)).expect(name);
        let error = relative_l2(&found, &expected.floats("logits"));
        assert!(error < 2e-4, "{name}: {error:e}");
        let tokens: Vec<u32> = expected
            .ints("greedy")
            .into_iter()
            .map(|id| id as u32)
            .collect();
        assert_eq!(greedy(&mut session, &ids, 24), tokens, "{name}");
    }
}

#[test]
fn an_unloaded_adapter_frees_its_memory() {
    let (mut base, golden) = start("llama", &exact(), with_kv(Kv::F32));
    let ids = golden.ids("input_ids");
    let before = (base.model().bytes(), base.gpu().resource_counts().bytes);
    for _ in 0..3 {
        let adapter = load_adapter(&base, "lora/adapter").expect("an adapter");
        let mut session = Session::with_adapter(base.model(), adapter).expect("a session");
        let tokens = greedy(&mut session, &ids, 4);
        assert_ne!(tokens, golden.ids("greedy")[..4]);
        assert!(base.model().bytes().weights > before.0.weights);
        drop(session);
        base.model().unload_adapter(adapter);
        assert_eq!(base.model().bytes().weights, before.0.weights);
    }
    assert_eq!(base.gpu().resource_counts().bytes, before.1);
    assert_eq!(greedy(&mut base, &ids, 32), golden.ids("greedy"));
}
