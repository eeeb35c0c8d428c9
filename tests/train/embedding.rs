//! Contrastive training of embedding models against PyTorch
//! (tests/golden/scripts/make_train_embedding.py), and what its adapters do in the engine.

use crate::models::compare_gradients;
use crate::page::{WRITE as WRITE_LOSSES, options as page_options};
use jerboa::SortedSet;
use jerboa::exec::{
    EncoderInput, EncoderModel, GraphWeights, Precision, PrecisionOptions, RunOptions,
};
use jerboa::gpu::{DeviceOptions, Gpu};
use jerboa::hub::{AbortFlag, Source};
use jerboa::ir::WeightId;
use jerboa::task::{EmbedRequest, Embedder, EmbedderFiles, Task, TaskModel};
use jerboa_tests::golden::{Golden, golden, open};
use jerboa_tests::relative_l2;
use jerboa_train::adapter::{CONFIG_FILE, LoraAdapter, WEIGHTS_FILE};
use jerboa_train::checkpointing::Checkpointing;
use jerboa_train::embedding::{EmbeddingData, EmbeddingSetup, EmbeddingTrainer, check_task};
use jerboa_train::embedding_data::{EmbeddingExample, EmbeddingPair};
use jerboa_train::kernels::update::Optimizer;
use jerboa_train::lora::{LoraOptions, TrainProgress};
use jerboa_train::schedule::Decay;
use jerboa_train::tape::TrainLoss;
use jerboa_train::trainer::contrastive::{Contrastive, ContrastiveBatch, ContrastiveOptions};
use jerboa_train::trainer::{Trainer, TrainerOptions};
use pollster::block_on;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn f32_weights() -> PrecisionOptions {
    PrecisionOptions {
        precision: Precision::F32,
        tables: Precision::F32,
        ..PrecisionOptions::default()
    }
}

/// A random BERT with a tokenizer and prompts.
pub fn tiny_model() -> PathBuf {
    golden("train/embedding/model")
}

fn inputs(file: &Golden) -> Vec<EncoderInput> {
    let mut ids = file.ints("ids").into_iter().map(|id| id as u32);
    let lengths = file.ints("lengths").into_iter();
    let input = |length: i32| EncoderInput {
        ids: ids.by_ref().take(length as usize).collect(),
        ..EncoderInput::default()
    };
    lengths.map(input).collect()
}

/// The trainer of all weights of an encoder, in f32, with micro-batches of up to `max_tokens`.
fn train_all(folder: &Path, max_tokens: usize) -> (Trainer, Contrastive) {
    block_on(async {
        let gpu = Rc::new(jerboa_tests::open(&DeviceOptions::default()));
        let source = open(folder).await.expect("a folder");
        let mut embedder = EmbedderFiles::open(&source, "model", true)
            .await
            .expect("a model");
        let head = embedder.config.head();
        let encoder = embedder.files.take_encoder_graph(&head).expect("a graph");
        let (files, graph) = (&embedder.files, encoder.graph);
        let plans = GraphWeights::plan(&gpu, files, &graph, f32_weights()).expect("plans");
        let weights = GraphWeights::load(&gpu, &source, files, &graph, plans).await;
        let trained: SortedSet<WeightId> = graph.used_weights().into_iter().collect();
        let options = TrainerOptions {
            optimizer: Optimizer::Sgd { momentum: 0.0 },
            weight_decay: 0.0,
            max_norm: 0.0,
            max_tokens,
            checkpointing: false,
            loss: TrainLoss::CrossEntropy,
        };
        let trainer = Trainer::new(gpu, graph, weights.expect("weights"), trained, options);
        let mut trainer = trainer.await.expect("a trainer");
        let options = ContrastiveOptions {
            scale: 20.0,
            positions: encoder.positions,
            max_anchors: 4,
            max_sequences: 10,
        };
        let contrastive = Contrastive::new(&mut trainer, options).expect("buffers");
        (trainer, contrastive)
    })
}

/// BERT with token types, learned positions and mean pooling; the first token with an offset of
/// positions; a decoder and its last token; dense layers after pooling. In one micro-batch, and in
/// several.
#[test]
fn gradients_of_encoders_equal_those_of_pytorch() {
    for (name, count) in [
        ("bert", 37),
        ("xlm_roberta_cls", 37),
        ("qwen3_embedding", 24),
        ("embeddinggemma", 43),
    ] {
        let file = Golden::read(&golden(&format!("train/embedding/{name}.safetensors")));
        let all = inputs(&file);
        let all: Vec<&EncoderInput> = all.iter().collect();
        let anchors = file.ints("anchors")[0] as usize;
        let batch = ContrastiveBatch {
            anchors: all[..anchors].to_vec(),
            candidates: all[anchors..].to_vec(),
        };
        for max_tokens in [128, 24] {
            let folder = golden(&format!("models/{name}"));
            let (mut trainer, mut contrastive) = train_all(&folder, max_tokens);
            let evaluated = contrastive.evaluate(&mut trainer, &batch);
            let evaluated = block_on(evaluated).expect("a loss");
            let embeddings = contrastive.embeddings(&mut trainer, &batch);
            let error = relative_l2(
                &block_on(embeddings).expect("embeddings"),
                &file.floats("embeddings"),
            );
            assert!(error < 2e-5, "{name}: embeddings {error:e}");
            let loss = contrastive.compute_gradients(&mut trainer, &batch);
            let loss = block_on(loss).expect("gradients");
            assert_eq!(loss, evaluated, "{name}: an evaluation has the same loss");
            let expected = file.floats("loss")[0];
            assert!(
                (loss - expected).abs() < 1e-4,
                "{name}: loss {loss}, not {expected}"
            );
            let what = format!("{name}, {max_tokens} tokens");
            // A softmax does not depend on what all its scores share.
            let is_zero = |tensor: &str| tensor.ends_with("key.bias");
            let compared = compare_gradients(&what, &trainer, &file, is_zero);
            assert_eq!(compared, count, "{name}: tensors");
        }
    }
}

fn read_adapter(name: &str) -> LoraAdapter {
    let folder = golden("train/embedding/bert_lora").join(name);
    let read = |file: &str| std::fs::read(folder.join(file)).expect("an adapter's file");
    LoraAdapter::parse(&read(CONFIG_FILE), &read(WEIGHTS_FILE)).expect("peft's adapter")
}

/// The folder of an adapter's files; removed with the value.
pub struct AdapterFolder(PathBuf);

impl AdapterFolder {
    pub fn new(adapter: &LoraAdapter) -> Self {
        // Tests of one process run at once.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let out = std::env::temp_dir().join(format!(
            "jerboa-embedding-adapter-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir_all(&out).expect("a folder");
        std::fs::write(out.join(CONFIG_FILE), adapter.config()).expect("settings");
        std::fs::write(out.join(WEIGHTS_FILE), adapter.safetensors()).expect("weights");
        Self(out)
    }

    fn source(&self) -> Source {
        block_on(open(&self.0)).expect("the adapter's folder")
    }
}

impl Drop for AdapterFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("the folder is removed");
    }
}

fn open_gpu() -> Gpu {
    jerboa_tests::open(&DeviceOptions {
        matrix: false,
        ..DeviceOptions::default()
    })
}

/// The engine's model of a golden encoder, in f32.
fn encoder(folder: &Path) -> EncoderModel {
    let options = RunOptions {
        overrides: f32_weights(),
        ..RunOptions::default()
    };
    block_on(async {
        let source = open(folder).await?;
        let EmbedderFiles { files, config, .. } =
            EmbedderFiles::open(&source, "model", true).await?;
        EncoderModel::load(open_gpu(), &source, files, &config.head(), None, options).await
    })
    .expect("an encoder")
}

fn trainer(
    folder: &Path,
    options: LoraOptions,
    max_sequences: usize,
) -> jerboa::Result<EmbeddingTrainer> {
    block_on(async {
        let gpu = Rc::new(jerboa_tests::open(&DeviceOptions::default()));
        let source = open(folder).await?;
        let embedder = EmbedderFiles::open(&source, "model", true).await?;
        let sizes = (20.0, max_sequences);
        EmbeddingTrainer::load(gpu, &source, embedder, "model", options, sizes).await
    })
}

fn lora_options() -> LoraOptions {
    LoraOptions {
        rank: 4,
        alpha: 8.0,
        batch_size: 5,
        max_length: 48,
        precision: f32_weights(),
        ..LoraOptions::default()
    }
}

/// Embeddings of the engine, with an adapter or without.
fn engine_embeddings(
    encoder: &EncoderModel,
    adapter: Option<jerboa::exec::OverlayId>,
    inputs: &[&EncoderInput],
) -> Vec<f32> {
    block_on(async { encoder.submit_with(inputs, adapter)?.wait().await }).expect("embeddings")
}

#[test]
fn an_adapter_learns_pairs_as_pefts_does() {
    let file = Golden::read(&golden("train/embedding/bert_lora/golden.safetensors"));
    let mut all = inputs(&file).into_iter();
    let pairs: Vec<EmbeddingPair> = file
        .ints("counts")
        .into_iter()
        .map(|count| {
            let mut own = all.by_ref().take(count as usize);
            EmbeddingPair {
                query: own.next().expect("a query"),
                positive: own.next().expect("a positive"),
                negatives: own.collect(),
            }
        })
        .collect();
    let close = |found: f32, expected: f32, what: &str| {
        assert!(
            (found - expected).abs() < 1e-3,
            "{what}: {found}, not {expected}"
        );
    };
    let folder = golden("models/bert");
    let mut lora = trainer(&folder, lora_options(), 15).expect("a trainer");
    lora.lora()
        .set_adapter(&read_adapter("adapter"))
        .expect("the same matrices");
    let held = &pairs[15..];
    let before = block_on(lora.evaluate(held)).expect("a loss");
    close(before, file.floats("before")[0], "before");
    for (step, expected) in file.floats("losses").into_iter().enumerate() {
        let own: Vec<&EmbeddingPair> = pairs[step % 3 * 5..][..5].iter().collect();
        let report = block_on(lora.step(&own, 3e-3)).expect("a step");
        close(report.loss, expected, &format!("step {step}"));
    }
    let after = block_on(lora.evaluate(held)).expect("a loss");
    close(after, file.floats("after")[0], "after");

    // The engine's embeddings with the saved adapter are the trainer's and, with peft's, PyTorch's.
    let first: Vec<&EmbeddingPair> = pairs[..5].iter().collect();
    let queries: Vec<&EncoderInput> = pairs[..5].iter().map(|pair| &pair.query).collect();
    let trained = block_on(lora.embeddings(&first)).expect("embeddings");
    let trained = &trained[..file.floats("embeddings").len()];
    let encoder = encoder(&folder);
    let plain = engine_embeddings(&encoder, None, &queries);
    for (adapter, expected, limit) in [
        (
            block_on(lora.lora().adapter()).expect("an adapter"),
            trained,
            1e-4,
        ),
        (read_adapter("trained"), &file.floats("embeddings"), 1e-4),
    ] {
        let own = AdapterFolder::new(&adapter);
        for merge in [false, true] {
            let loaded = block_on(encoder.load_adapter(&own.source(), merge));
            let loaded = loaded.expect("the engine loads it");
            let found = engine_embeddings(&encoder, Some(loaded), &queries);
            let error = relative_l2(&found, expected);
            assert!(error < limit, "merged {merge}: {error:e}");
            encoder.unload_adapter(loaded);
        }
    }
    let error = relative_l2(trained, &file.floats("embeddings"));
    assert!(error < 5e-3, "embeddings of peft's training: {error:e}");
    assert!(relative_l2(trained, &plain) > 0.05, "it learns");
    let again = engine_embeddings(&encoder, None, &queries);
    assert_eq!(again, plain, "the model itself stays as it was");
}

/// Other poolings, fused projections, gated MLPs, windows, RoPE, dense layers.
#[test]
fn other_encoders_learn() {
    for name in [
        "roberta",
        "distilbert",
        "nomic_bert",
        "modernbert",
        "xlm_roberta_cls",
        "qwen3_embedding",
        "embeddinggemma",
    ] {
        let folder = golden(&format!("models/{name}"));
        let mut lora =
            trainer(&folder, lora_options(), 8).unwrap_or_else(|e| panic!("{name}: {e}"));
        let input = |seed: u32, length: u32| EncoderInput {
            ids: (0..length)
                .map(|i| 3 + (seed * 37 + i * 11) % 240)
                .collect(),
            ..EncoderInput::default()
        };
        let pairs: Vec<EmbeddingPair> = (0..4)
            .map(|index| EmbeddingPair {
                query: input(index, 5 + index),
                positive: input(index + 9, 12 - index),
                negatives: Vec::new(),
            })
            .collect();
        let own: Vec<&EmbeddingPair> = pairs.iter().collect();
        let mut losses = Vec::new();
        for _ in 0..4 {
            let report = block_on(lora.step(&own, 5e-3)).expect("a step");
            losses.push(report.loss);
        }
        assert!(losses[3] < losses[0], "{name}: {losses:?}");
        let adapter = block_on(lora.lora().adapter()).expect("an adapter");
        assert_eq!(adapter.task_type, "FEATURE_EXTRACTION");
        let trained = block_on(lora.embeddings(&own)).expect("embeddings");
        let encoder = encoder(&folder);
        let sequences = pairs.iter().map(|pair| &pair.query);
        let sequences: Vec<&EncoderInput> = sequences
            .chain(pairs.iter().map(|pair| &pair.positive))
            .collect();
        let own = AdapterFolder::new(&adapter);
        let loaded = block_on(encoder.load_adapter(&own.source(), false));
        let loaded = loaded.unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = engine_embeddings(&encoder, Some(loaded), &sequences);
        let error = relative_l2(&found, &trained);
        assert!(error < 2e-4, "{name}: the engine's embeddings {error:e}");
    }
}

fn text_pair(query: &str, positive: &str, negatives: &[&str]) -> EmbeddingExample {
    EmbeddingExample {
        query: query.into(),
        positive: positive.into(),
        negatives: negatives.iter().map(|text| text.to_string()).collect(),
    }
}

/// Words and what they mean, which share nothing that a random model could know.
pub fn translations() -> Vec<EmbeddingExample> {
    [
        ("chien", "a dog that barks"),
        ("chat", "a cat that sleeps"),
        ("maison", "a house with a garden"),
        ("pain", "bread from the baker"),
        ("fleur", "a flower in the field"),
        ("lune", "the moon at night"),
    ]
    .into_iter()
    .map(|(query, positive)| text_pair(query, positive, &["a stone"]))
    .collect()
}

fn setup(data: &EmbeddingData, options: LoraOptions) -> jerboa::Result<EmbeddingSetup> {
    block_on(async {
        let source = open(&tiny_model()).await?;
        let open_gpu = async || Ok(jerboa_tests::open(&DeviceOptions::default()));
        EmbeddingSetup::open(&source, "tiny", data, (options, 20.0), false, open_gpu).await
    })
}

#[test]
fn texts_are_learned_by_the_model_that_embeds_them() {
    let run = |seed: u64, most: usize| {
        let data = EmbeddingData {
            pairs: translations(),
            evaluation: translations(),
            ..EmbeddingData::default()
        };
        let options = LoraOptions {
            epochs: 12,
            learning_rate: 5e-3,
            decay: Decay::Cosine,
            batch_size: 4,
            seed,
            precision: f32_weights(),
            ..LoraOptions::default()
        };
        let EmbeddingSetup {
            mut trainer,
            pairs,
            evaluation,
            max_length,
        } = setup(&data, options).expect("a training");
        assert!((16..32).contains(&max_length), "{max_length}");
        let before = block_on(trainer.evaluate(&evaluation)).expect("a loss");
        let mut seen: Vec<TrainProgress> = Vec::new();
        let mut progress = |done: TrainProgress| {
            seen.push(done);
            match done.step == most {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        block_on(trainer.train(pairs, &mut progress)).expect("a run");
        let after = block_on(trainer.evaluate(&evaluation)).expect("a loss");
        let adapter = block_on(trainer.lora().adapter()).expect("an adapter");
        (seen, [before, after], adapter)
    };
    let (seen, [before, after], adapter) = run(3, usize::MAX);
    let last = seen[seen.len() - 1];
    assert_eq!((last.step, last.steps, last.epoch), (24, 24, 11));
    assert!(last.report.loss < 0.5 * seen[0].report.loss, "{seen:?}");
    assert!(after < before, "{after}, before {before}");
    let (again, _, same) = run(3, usize::MAX);
    assert_eq!((&seen, &adapter), (&again, &same), "the same bits twice");
    let (short, _, other) = run(4, 2);
    assert_eq!(short.len(), 2);
    assert_ne!(adapter, other);

    let source = block_on(open(&tiny_model())).expect("a folder");
    let options = RunOptions {
        overrides: f32_weights(),
        ..RunOptions::default()
    };
    let model = TaskModel::load(open_gpu(), &source, "tiny", Some(Task::Embed), options);
    let Ok(TaskModel::Embed(mut model)) = block_on(model) else {
        panic!("an embedding model");
    };
    let own = AdapterFolder::new(&adapter);
    block_on(model.load_adapter("french", &own.source(), false)).expect("it loads");
    let taken = block_on(model.load_adapter("french", &own.source(), false));
    assert!(taken.is_err_and(|e| e.to_string().contains("taken")));
    let similarity = |model: &mut Embedder, adapter: Option<&str>| {
        let request = EmbedRequest {
            normalize: Some(true),
            adapter: adapter.map(str::to_owned),
            ..EmbedRequest::default()
        };
        let abort = AbortFlag::new();
        let mut vectors = Vec::new();
        for (task, text) in [
            ("query", "chien"),
            ("document", "a dog that barks"),
            ("document", "a stone"),
        ] {
            let request = EmbedRequest {
                task: Some(task.into()),
                ..request.clone()
            };
            let texts = [text.to_owned()];
            vectors.extend(block_on(model.embed(&texts, &request, &abort, |_, _| {}))?);
        }
        let cosine = |other: usize| -> f32 {
            let products = vectors[0].iter().zip(&vectors[other]);
            products.map(|(a, b)| a * b).sum()
        };
        // How much nearer the query is to its positive than to another text.
        Ok::<f32, jerboa::Error>(cosine(1) - cosine(2))
    };
    let plain = similarity(&mut model, None).expect("vectors");
    let trained = similarity(&mut model, Some("french")).expect("vectors");
    assert!(
        trained > plain + 0.2,
        "{trained}, without the adapter {plain}"
    );
    assert_eq!(similarity(&mut model, None).expect("vectors"), plain);
    model.unload_adapter("french").expect("it was loaded");
    let error = similarity(&mut model, Some("french")).expect_err("it is gone");
    assert!(error.to_string().contains("no adapter 'french'"), "{error}");
}

#[test]
fn a_run_goes_on_with_an_earlier_adapter() {
    let data = EmbeddingData {
        pairs: translations(),
        share: 0.3,
        ..EmbeddingData::default()
    };
    let options = || LoraOptions {
        learning_rate: 1e-2,
        batch_size: 3,
        precision: f32_weights(),
        ..LoraOptions::default()
    };
    let mut first = setup(&data, options()).expect("a training");
    assert_eq!((first.pairs.len(), first.evaluation.len()), (5, 1));
    let pairs = first.pairs.clone();
    let mut progress = |_| ControlFlow::Continue(());
    block_on(first.trainer.train(pairs, &mut progress)).expect("a run");
    let end = block_on(first.trainer.evaluate(&first.evaluation)).expect("a loss");
    let adapter = block_on(first.trainer.lora().adapter()).expect("an adapter");
    let mut second = setup(&data, options()).expect("a training");
    second
        .trainer
        .lora()
        .set_adapter(&adapter)
        .expect("the same rank");
    let start = block_on(second.trainer.evaluate(&second.evaluation)).expect("a loss");
    assert_eq!(start, end);
    let other = LoraOptions {
        rank: 3,
        ..options()
    };
    let other = setup(&data, other).expect("a training");
    let error = other
        .trainer
        .lora()
        .set_adapter(&adapter)
        .expect_err("rank 8");
    assert!(error.to_string().contains("same rank"), "{error}");
}

/// Steps of micro-batches have the loss of one: it needs all embeddings at once.
#[test]
fn micro_batches_do_not_change_the_loss() {
    let data = EmbeddingData {
        pairs: translations(),
        ..EmbeddingData::default()
    };
    let losses = |max_memory: Option<u64>| {
        let options = LoraOptions {
            max_memory,
            precision: f32_weights(),
            ..LoraOptions::default()
        };
        let mut setup = setup(&data, options)?;
        let own: Vec<&EmbeddingPair> = setup.pairs.iter().collect();
        let mut losses = Vec::new();
        for _ in 0..3 {
            let report = block_on(setup.trainer.step(&own, 1e-2))?;
            losses.push((report.loss, report.gradient_norm));
        }
        Ok::<_, jerboa::Error>((losses, setup.trainer.memory()))
    };
    let (whole, memory) = losses(None).expect("steps");
    let (parts, less) = losses(Some(memory.total() - memory.activations / 2)).expect("steps");
    assert!(
        less.activations < memory.activations,
        "{less:?}, {memory:?}"
    );
    for ((a, x), (b, y)) in whole.iter().zip(&parts) {
        assert!(
            (a - b).abs() < 1e-4 * a.abs().max(1.0),
            "{whole:?}, {parts:?}"
        );
        assert!((x - y).abs() < 1e-3 * x, "{whole:?}, {parts:?}");
    }
    let error = losses(Some(memory.frozen)).expect_err("no memory");
    assert_eq!(error.code(), "out_of_memory");
}

#[test]
fn models_and_data_that_do_not_fit_are_refused() {
    let one = |pairs: &[EmbeddingExample], batch_size: usize| {
        let data = EmbeddingData {
            pairs: pairs.to_vec(),
            ..EmbeddingData::default()
        };
        let options = LoraOptions {
            batch_size,
            ..LoraOptions::default()
        };
        let setup = setup(&data, options)?;
        setup.trainer.start(setup.pairs).map(|run| run.steps())
    };
    let pair = text_pair("a", "b", &[]);
    for (pairs, batch_size, expected) in [
        (vec![], 8, "compared with other texts"),
        (vec![pair.clone()], 8, "compared with other texts"),
        (vec![pair; 3], 1, "at least 2"),
    ] {
        let error = one(&pairs, batch_size).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(one(&[text_pair("a", "b", &["c"])], 1).ok(), Some(1));
    let data = EmbeddingData {
        pairs: translations(),
        ..EmbeddingData::default()
    };
    let refused = |options: LoraOptions| setup(&data, options).err().expect("refused").to_string();
    let error = refused(LoraOptions {
        checkpointing: Checkpointing::Always,
        ..LoraOptions::default()
    });
    assert!(
        error.contains("does not apply to embedding models"),
        "{error}"
    );
    let error = refused(LoraOptions {
        max_memory: Some(1),
        ..LoraOptions::default()
    });
    assert!(
        error.contains("MB") && !error.contains("checkpointing"),
        "{error}"
    );
    let task = |folder: &Path, has_pairs: bool, wanted: Option<Task>| {
        block_on(async {
            let source = open(folder).await?;
            check_task(&source, "the model", has_pairs, wanted).await
        })
    };
    let llama = golden("models/llama");
    assert!(task(&llama, false, None).is_ok());
    assert!(task(&llama, true, Some(Task::Embed)).is_ok());
    assert!(task(&tiny_model(), true, None).is_ok());
    for (folder, has_pairs, expected) in [
        (llama, true, "not from pairs"),
        (tiny_model(), false, "learns from pairs"),
        (golden("models/bert_reranker"), true, "cannot be trained"),
        (golden("speech/whisper"), false, "cannot be trained"),
    ] {
        let error = task(&folder, has_pairs, None).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    }
    for name in ["mpnet", "t5_encoder"] {
        let error = trainer(&golden(&format!("models/{name}")), lora_options(), 8).err();
        let error = error.expect(name).to_string();
        assert!(error.contains("training through"), "{error}");
    }
}

/// The losses that tests/page/train.test.mjs expects of pairs in a page.
#[test]
fn losses_of_pairs_are_those_expected_of_a_page() {
    let path = golden("train/embedding/page.json");
    let text = std::fs::read_to_string(&path).expect("the expected losses");
    let mut expected: Value = serde_json::from_str(&text).expect("JSON");
    let pairs = expected["pairs"].as_array().expect("pairs");
    let data = EmbeddingData {
        pairs: pairs
            .iter()
            .map(|pair| EmbeddingExample::from_json(pair).expect("a pair"))
            .collect(),
        share: 0.2,
        ..EmbeddingData::default()
    };
    let options = LoraOptions {
        precision: PrecisionOptions::default(),
        ..page_options(&expected["options"])
    };
    let EmbeddingSetup {
        mut trainer,
        pairs,
        evaluation,
        ..
    } = setup(&data, options).expect("a training");
    let before = block_on(trainer.evaluate(&evaluation)).expect("a loss");
    let mut losses = Vec::new();
    let mut progress = |done: TrainProgress| {
        losses.push(done.report.loss);
        ControlFlow::Continue(())
    };
    block_on(trainer.train(pairs, &mut progress)).expect("a run");
    let after = block_on(trainer.evaluate(&evaluation)).expect("a loss");
    let found = [[before, after].to_vec(), losses].concat();
    if std::env::var_os(WRITE_LOSSES).is_some() {
        expected["losses"] = json!(found);
        std::fs::write(&path, format!("{expected:#}\n")).expect("the file is written");
        return;
    }
    let wanted = expected["losses"].as_array().expect("losses");
    assert_eq!(found.len(), wanted.len());
    for (found, expected) in found.iter().zip(wanted) {
        let difference = f64::from(*found) - expected.as_f64().expect("a loss");
        assert!(
            difference.abs() < 1e-3,
            "{found}, not {expected}: {WRITE_LOSSES}=1 writes them"
        );
    }
}
