//! LoRA adapters against peft (tests/golden/scripts/make_train.py): losses, weights, logits.

use super::models::sequences;
use jerboa::exec::{ModelFiles, Precision, PrecisionOptions, RunOptions, Session};
use jerboa::gpu::DeviceOptions;
use jerboa::kernels::attention::Kv;
use jerboa::task::TextPipeline;
use jerboa_tests::golden::{Golden, golden, open};
use jerboa_tests::relative_l2;
use jerboa_train::adapter::{CONFIG_FILE, LoraAdapter, WEIGHTS_FILE};
use jerboa_train::batch::TrainSequence;
use jerboa_train::dataset::{file_sequences, text_sequences};
use jerboa_train::lora::{LoraOptions, LoraTrainer, TrainProgress};
use jerboa_train::schedule::Decay;
use pollster::block_on;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn stories() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../www/public/models/stories260K")
}

pub fn trainer(folder: &Path, options: LoraOptions) -> jerboa::Result<LoraTrainer> {
    block_on(async {
        let gpu = Rc::new(jerboa_tests::open(&DeviceOptions::default()));
        let source = open(folder).await?;
        let files = ModelFiles::open(&source, None).await?;
        LoraTrainer::load(gpu, &source, &files, "stories260K", options).await
    })
}

fn read_adapter(name: &str) -> LoraAdapter {
    let folder = golden("train/stories260K").join(name);
    let read = |file: &str| std::fs::read(folder.join(file)).expect("an adapter's file");
    LoraAdapter::parse(&read(CONFIG_FILE), &read(WEIGHTS_FILE)).expect("peft's adapter")
}

/// The options of make_train.py.
fn options() -> LoraOptions {
    LoraOptions {
        rank: 4,
        alpha: 8.0,
        batch_size: 4,
        max_length: 48,
        ..LoraOptions::default()
    }
}

/// The logits of a sequence with an adapter, computed by the engine.
fn engine_logits(
    folder: &Path,
    adapter: &LoraAdapter,
    ids: &[u32],
    precision: Precision,
) -> Vec<f32> {
    // Tests of one process run at once.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let out = std::env::temp_dir().join(format!(
        "jerboa-adapter-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&out).expect("a folder");
    std::fs::write(out.join(CONFIG_FILE), adapter.config()).expect("settings");
    std::fs::write(out.join(WEIGHTS_FILE), adapter.safetensors()).expect("weights");
    let options = RunOptions {
        overrides: PrecisionOptions {
            kv_type: Some(Kv::F32),
            precision,
            ..PrecisionOptions::default()
        },
        ..RunOptions::default()
    };
    let gpu = jerboa_tests::open(&DeviceOptions {
        matrix: false,
        ..DeviceOptions::default()
    });
    let logits = block_on(async {
        let source = open(folder).await?;
        let files = ModelFiles::open(&source, None).await?;
        let base = Session::load_files(gpu, &source, files, options).await?;
        let source = open(&out).await?;
        let overlay = base.model().load_adapter(&source, false).await?;
        Session::with_adapter(base.model(), overlay)?
            .all_rows(ids, false)
            .await
    });
    std::fs::remove_dir_all(out).expect("the folder is removed");
    logits.expect("logits")
}

#[test]
fn an_adapter_learns_as_pefts_does() {
    let file = Golden::read(&golden("train/stories260K/golden.safetensors"));
    let all = sequences(&file, "");
    let mut lora = trainer(&stories(), options()).expect("a trainer");
    lora.set_adapter(&read_adapter("adapter"))
        .expect("the same matrices");
    let close = |found: f32, expected: f32, what: &str| {
        assert!(
            (found / expected - 1.0).abs() < 5e-3,
            "{what}: {found}, not {expected}"
        );
    };
    let before = block_on(lora.evaluate(&all[16..])).expect("a loss");
    close(before, file.floats("before")[0], "before");
    let losses = file.floats("losses");
    for (step, expected) in losses.iter().enumerate() {
        let first = step * 4 % 16;
        let report = block_on(lora.step(&all[first..first + 4], 5e-3)).expect("a step");
        close(report.loss, *expected, &format!("step {step}"));
    }
    let after = block_on(lora.evaluate(&all[16..])).expect("a loss");
    close(after, file.floats("after")[0], "after");
    assert!(
        after < 0.5 * before,
        "what was not trained on is learned too"
    );

    let ids = &all[0].ids;
    let adapter = block_on(lora.adapter()).expect("an adapter");
    let trained = block_on(lora.trainer().logits(ids)).expect("logits");
    let error = relative_l2(&trained, &file.floats("logits"));
    assert!(error < 5e-3, "logits of peft's adapter: {error:e}");
    let found = engine_logits(&stories(), &adapter, ids, Precision::F32);
    let error = relative_l2(&found, &trained);
    assert!(
        error < 1e-4,
        "the engine's logits with the adapter: {error:e}"
    );

    let peft = read_adapter("trained");
    assert_eq!(adapter.tensors.len(), peft.tensors.len());
    lora.set_adapter(&peft).expect("peft's weights");
    let logits = block_on(lora.trainer().logits(ids)).expect("logits");
    let error = relative_l2(&logits, &file.floats("logits"));
    assert!(error < 1e-4, "peft's logits with its adapter: {error:e}");
}

/// A trainer of a golden checkpoint, its ids, and its logits before training, which are those of
/// the reference within `limit`.
fn untrained(folder: &Path, limit: f64) -> (LoraTrainer, Vec<u32>, Vec<f32>) {
    let own = Golden::read(&folder.join("golden.safetensors"));
    let ids = own.ids("input_ids");
    let name = folder.display();
    let mut lora = trainer(folder, options()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let logits = block_on(lora.trainer().logits(&ids)).expect("logits");
    let error = relative_l2(&logits, &own.floats("logits"));
    assert!(error < limit, "{name}: before training {error:e}");
    (lora, ids, logits)
}

/// Head norms, windows, soft caps, `1 + w` norms, scaled embeddings, fused projections, short
/// convolutions, parallel residuals, learned positions.
#[test]
fn other_families_learn() {
    for name in [
        "qwen3",
        "gemma3",
        "gemma2",
        "phi3",
        "mistral",
        "qwen2",
        "llama_bias",
        "lfm2",
        "lfm2_bias",
        "granite",
        "olmo2",
        "starcoder2",
        "smollm3",
        "exaone4",
        "glm4",
        "helium",
        "hunyuan_dense",
        "ernie4_5",
        "gpt_neox",
        "phi2",
        "gpt2",
        "gemma",
        "phi4_mini",
        "llama3",
        "llama_yarn",
    ] {
        let folder = golden(&format!("models/{name}"));
        let (mut lora, ids, untrained) = untrained(&folder, 2e-4);
        let sequences = [TrainSequence::whole(ids.clone())];
        let mut losses = Vec::new();
        for _ in 0..3 {
            let report = block_on(lora.step(&sequences, 1e-2)).expect("a step");
            losses.push(report.loss);
        }
        assert!(losses[2] < losses[0], "{name}: {losses:?}");
        let adapter = block_on(lora.adapter()).expect("an adapter");
        let trained = block_on(lora.trainer().logits(&ids)).expect("logits");
        assert!(
            relative_l2(&trained, &untrained) > 1e-3,
            "{name} did not change"
        );
        let found = engine_logits(&folder, &adapter, &ids, Precision::F32);
        let error = relative_l2(&found, &trained);
        assert!(error < 2e-4, "{name}: the engine's logits {error:e}");
    }
}

/// QLoRA: the base stays in 8 and 4 bits, and the adapter fits it.
#[test]
fn quantized_models_learn() {
    for precision in [Precision::Q8, Precision::Q4] {
        let file = Golden::read(&golden("train/stories260K/golden.safetensors"));
        let all = sequences(&file, "");
        let mut lora = trainer(
            &stories(),
            LoraOptions {
                precision: PrecisionOptions {
                    precision,
                    ..PrecisionOptions::default()
                },
                targets: vec!["q_proj".into(), "down_proj".into()],
                ..options()
            },
        )
        .expect("a trainer");
        let memory = lora.memory();
        assert!(
            memory.frozen < 600_000,
            "{precision:?}: {} bytes",
            memory.frozen
        );
        let mut losses = Vec::new();
        for _ in 0..4 {
            let report = block_on(lora.step(&all[..4], 5e-3)).expect("a step");
            losses.push(report.loss);
        }
        assert!(losses[3] < 0.9 * losses[0], "{precision:?}: {losses:?}");
        let adapter = block_on(lora.adapter()).expect("an adapter");
        assert_eq!(adapter.targets, ["q_proj", "down_proj"]);
        let ids = &all[0].ids;
        let trained = block_on(lora.trainer().logits(ids)).expect("logits");
        let found = engine_logits(&stories(), &adapter, ids, precision);
        let error = relative_l2(&found, &trained);
        assert!(error < 2e-3, "{precision:?}: {error:e}");
    }
}

/// Checkpoints keep their own quantization: MLX, AWQ, MXFP4, fp8, MLC and GGUF.
#[test]
fn quantized_checkpoints_learn() {
    for name in [
        "model_mlx",
        "qwen3_awq",
        "llama_mxfp4",
        "phi3_fp8",
        "llama_mlc",
        "gguf_q4_k_m",
        "gguf_q8_0",
    ] {
        let folder = golden(&format!("quant/{name}"));
        let (mut lora, ids, _) = untrained(&folder, 1e-3);
        let sequences = [TrainSequence::whole(ids.clone())];
        let first = block_on(lora.step(&sequences, 1e-2)).expect("a step");
        let second = block_on(lora.step(&sequences, 1e-2)).expect("a step");
        assert!(second.loss < first.loss, "{name}: {first:?}, {second:?}");
        let adapter = block_on(lora.adapter()).expect("an adapter");
        let trained = block_on(lora.trainer().logits(&ids)).expect("logits");
        let found = engine_logits(&folder, &adapter, &ids, Precision::Auto);
        let error = relative_l2(&found, &trained);
        assert!(error < 1e-3, "{name}: the engine's logits {error:e}");
    }
    let ordered = trainer(&golden("quant/llama_gptq_order"), options()).err();
    let error = ordered.expect("reordered columns").to_string();
    assert!(error.contains("desc_act"), "{error}");
}

#[test]
fn runs_repeat_and_end_on_request() {
    let run = |seed: u64, most: usize| {
        let text = block_on(async { TextPipeline::open(&open(&stories()).await?).await });
        let text = text.expect("a tokenizer");
        let data = "THE CAT SAT ON THE MAT. ".repeat(12);
        let sequences = text_sequences(&text, &data, 32).expect("sequences");
        let options = LoraOptions {
            epochs: 2,
            max_length: 32,
            learning_rate: 1e-2,
            decay: Decay::Cosine,
            seed,
            ..options()
        };
        let mut lora = trainer(&stories(), options).expect("a trainer");
        let mut seen: Vec<TrainProgress> = Vec::new();
        let mut progress = |done: TrainProgress| {
            seen.push(done);
            if done.step == most {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        block_on(lora.train(&sequences, &mut progress)).expect("a run");
        (seen, block_on(lora.adapter()).expect("an adapter"))
    };
    let (seen, adapter) = run(5, usize::MAX);
    let last = seen[seen.len() - 1];
    assert_eq!((last.step, last.epoch), (last.steps, 1));
    assert!(last.report.loss < 0.8 * seen[0].report.loss, "{seen:?}");
    let (again, same) = run(5, usize::MAX);
    assert_eq!(seen, again);
    assert_eq!(adapter, same, "the same bits twice");
    let (short, other) = run(6, 2);
    assert_eq!(short.len(), 2);
    assert_ne!(adapter, other);
}

#[test]
fn options_and_data_that_do_not_fit_are_refused() {
    let targets = |targets: &[&str]| LoraOptions {
        targets: targets.iter().map(|target| target.to_string()).collect(),
        ..options()
    };
    let error = trainer(&stories(), targets(&["q_proj", "qkv"]))
        .err()
        .expect("a target");
    assert!(error.to_string().contains("'qkv'"), "{error}");
    assert!(error.to_string().contains("gate_proj"), "{error}");
    let mut lora = trainer(&stories(), targets(&["q_proj"])).expect("a trainer");
    let error = lora.set_adapter(&LoraAdapter {
        tensors: Vec::new(),
        ..read_adapter("adapter")
    });
    assert!(error.is_err_and(|e| e.to_string().contains("lora_A")));
    let empty = [TrainSequence::whole(vec![3])];
    let error = block_on(lora.train(&empty, &mut |_| ControlFlow::Continue(())));
    assert!(error.is_err_and(|e| e.to_string().contains("no token contributes")));
}

/// The bundled model's tokenizer with a chat template.
pub(super) fn with_template() -> TextPipeline {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let out = std::env::temp_dir().join(format!(
        "jerboa-template-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&out).expect("a folder");
    std::fs::copy(stories().join("tokenizer.json"), out.join("tokenizer.json"))
        .expect("a tokenizer");
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}\
        {% if add_generation_prompt %}[assistant] {% endif %}";
    let config = serde_json::json!({ "eos_token": "</s>", "chat_template": template });
    std::fs::write(out.join("tokenizer_config.json"), config.to_string()).expect("a template");
    let text = block_on(async { TextPipeline::open(&open(&out).await?).await });
    std::fs::remove_dir_all(out).expect("the folder is removed");
    text.expect("a tokenizer and a template")
}

#[test]
fn conversations_count_answers_only() {
    let text = with_template();
    let lines = r#"{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The cat."},
        {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "At home."}]}
{"text": "Once upon a time"}
"#
    .replace(",\n        ", ", ");
    let found = file_sequences(&text, "data.jsonl", &lines, 64).expect("sequences");
    assert_eq!(found.len(), 3);
    let tokenizer = text.tokenizer().expect("a tokenizer");
    let answer =
        |sequence: &TrainSequence| tokenizer.decode(&sequence.ids[sequence.first_label..], true);
    assert_eq!(answer(&found[0]).trim(), "The cat.");
    assert_eq!(answer(&found[1]).trim(), "At home.");
    let whole = tokenizer.decode(&found[1].ids, true);
    assert!(
        whole.contains("[assistant] The cat.\n[user] Where?"),
        "{whole}"
    );
    assert_eq!(found[2].first_label, 0);
    for line in [
        "{}",
        "no JSON",
        r#"{"messages": [{"role": "user", "content": "a"}]}"#,
    ] {
        let error = file_sequences(&text, "data.jsonl", line, 64);
        assert!(error.is_err(), "{line}");
    }
    let plain = file_sequences(&text, "data.txt", &"Tom ran. ".repeat(40), 16).expect("sequences");
    assert!(plain.len() > 3 && plain.iter().all(|sequence| sequence.ids.len() <= 16));
}
