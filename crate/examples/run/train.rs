//! The command `train`: a LoRA adapter of a text or embedding model.

use crate::open::with_required_model;
use crate::options::{CliArgs, Result, flag, format_error, list, parsed, value};
use crate::out;
use clap::{Command, value_parser};
use jerboa::exec::{ModelFiles, Precision, PrecisionOptions};
use jerboa::gpu::{Backend, Gpu};
use jerboa::hub::Source;
use jerboa::task::TextPipeline;
use jerboa_train::adapter::{CONFIG_FILE, LoraAdapter, WEIGHTS_FILE};
use jerboa_train::checkpointing::Checkpointing;
use jerboa_train::embedding::{DEFAULT_SCALE, EmbeddingData, EmbeddingSetup, check_task};
use jerboa_train::embedding_data::{file_examples, is_examples_file};
use jerboa_train::lora::{LoraOptions, LoraTrainer, TrainProgress};
use jerboa_train::preference::PreferenceMetrics;
use jerboa_train::preference_data::{TrainData, file_data};
use jerboa_train::run::{Evaluation, RunData};
use jerboa_train::schedule::Decay;
use jerboa_train::session::{TrainPlan, TrainSession};
use jerboa_train::trainer::StepReport;
use serde_json::json;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

pub fn command(command: Command) -> Command {
    let defaults = LoraOptions::default();
    with_required_model(command)
        .args([
            value(
                "data",
                "FILE",
                "Text, or .jsonl lines with 'text', 'messages', 'chosen' and 'rejected', or 'query' and 'positive'",
            )
            .required(true),
            value("out", "FOLDER", "Folder of the adapter, in peft's format").required(true),
            value("resume", "FOLDER", "Adapter to continue training"),
            parsed(
                "rank",
                "N",
                value_parser!(usize),
                "Rank of the updates [default: 8]",
            ),
            parsed(
                "alpha",
                "X",
                value_parser!(f32),
                "Updates are multiplied by alpha / rank [default: 16]",
            ),
            list(
                "targets",
                "NAME,…",
                value_parser!(String),
                "Weight matrices to train, such as q_proj [default: all]",
            ),
            parsed(
                "epochs",
                "N",
                value_parser!(usize),
                "Passes over the data [default: 1]",
            ),
            parsed(
                "batch-size",
                "N",
                value_parser!(usize),
                "Sequences or pairs per step [default: 8, for embedding models 32]",
            ),
            parsed(
                "learning-rate",
                "X",
                value_parser!(f32),
                "Maximum learning rate, after the warm-up [default: 0.0002, for preference pairs 0.00005]",
            ),
            parsed(
                "schedule",
                "NAME",
                ["constant", "linear", "cosine"],
                "Learning rate schedule after the warm-up",
            )
            .default_value("linear"),
            parsed(
                "warm-up",
                "X",
                value_parser!(f32),
                "Fraction of the steps in which the learning rate rises [default: 0.05]",
            ),
            parsed(
                "weight-decay",
                "X",
                value_parser!(f32),
                "Weight decay [default: 0]",
            ),
            parsed(
                "max-length",
                "N",
                value_parser!(usize),
                "Maximum tokens of a sequence [default: 512]",
            ),
            parsed(
                "seed",
                "N",
                value_parser!(u64),
                "Seed of the initial weights and of the shuffling",
            ),
            parsed(
                "evaluation",
                "X",
                value_parser!(f32),
                "Fraction of the sequences or pairs held out for evaluation [default: 0]",
            ),
            parsed(
                "beta",
                "X",
                value_parser!(f32),
                "How much DPO weighs log-ratios, for preference pairs [default: 0.1]",
            ),
            parsed(
                "checkpointing",
                "WHEN",
                ["auto", "true", "false"],
                "Compute activations again in the backward pass, to save memory",
            )
            .default_value("auto"),
            parsed(
                "scale",
                "X",
                value_parser!(f32),
                "Factor of the cosine similarities, for embedding models [default: 20]",
            ),
            flag("json", "Print steps as JSON lines"),
        ])
        .after_help(format!(
            "A step trains {} sequences by default, in one submit.",
            defaults.batch_size
        ))
}

const BETA_WITHOUT_PAIRS: &str =
    "'--beta' applies to preference pairs: .jsonl lines with 'chosen' and 'rejected'";

/// The options of a run, with the defaults of its data.
fn options(given: &CliArgs, defaults: &LoraOptions) -> Result<LoraOptions> {
    let precision = match given.text("weights") {
        Some(name) => Precision::from_name("weights", &name).map_err(format_error)?,
        None => Precision::Auto,
    };
    let options = LoraOptions {
        rank: given.get("rank").unwrap_or(defaults.rank),
        alpha: given.get("alpha").unwrap_or(defaults.alpha),
        targets: given.values("targets"),
        epochs: given.get("epochs").unwrap_or(defaults.epochs),
        batch_size: given.get("batch-size").unwrap_or(defaults.batch_size),
        learning_rate: given.get("learning-rate").unwrap_or(defaults.learning_rate),
        decay: Decay::from_name(&given.require::<String>("schedule")?).map_err(format_error)?,
        warm_up: given.get("warm-up").unwrap_or(defaults.warm_up),
        weight_decay: given.get("weight-decay").unwrap_or(defaults.weight_decay),
        max_length: given.get("max-length").unwrap_or(defaults.max_length),
        seed: given.get("seed").unwrap_or(defaults.seed),
        checkpointing: Checkpointing::from_name(&given.require::<String>("checkpointing")?)
            .map_err(format_error)?,
        precision: PrecisionOptions {
            precision,
            ..PrecisionOptions::default()
        },
        ..defaults.clone()
    };
    options.check().map_err(format_error)?;
    Ok(options)
}

/// Opens the model for the data and starts the training.
async fn open(given: &CliArgs, resume: Option<&LoraAdapter>) -> Result<(TrainSession, TrainPlan)> {
    let file: String = given.require("data")?;
    let content = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
    let source = given.source().await?;
    let name: String = given
        .get("MODEL")
        .or(given.get("model"))
        .unwrap_or_default();
    let is_embedding = is_examples_file(&file, &content);
    let check = check_task(&source, &name, is_embedding, None).await;
    check.map_err(format_error)?;
    if is_embedding {
        let setup = embedding_setup(given, &source, &name, (&file, &content)).await?;
        return TrainSession::embedding(setup, resume).map_err(format_error);
    }
    let (trainer, data) = text_setup(given, &source, &name, (&file, &content)).await?;
    TrainSession::text(trainer, data, resume).map_err(format_error)
}

/// Loads a text model and its data.
async fn text_setup(
    given: &CliArgs,
    source: &Source,
    name: &str,
    (file, content): (&str, &str),
) -> Result<(LoraTrainer, RunData)> {
    if given.get::<f32>("scale").is_some() {
        return Err(
            "'--scale' applies to embedding models: .jsonl lines with 'query' and 'positive'"
                .into(),
        );
    }
    let files = ModelFiles::open(source, None).await.map_err(format_error)?;
    let text = TextPipeline::open(source).await.map_err(format_error)?;
    let defaults = LoraOptions::default();
    let max_length = given.get("max-length").unwrap_or(defaults.max_length);
    let data = file_data(&text, file, content, max_length).map_err(format_error)?;
    let beta: Option<f32> = given.get("beta");
    let defaults = match (&data, beta) {
        (TrainData::Pairs(_), beta) => LoraOptions::for_pairs(beta),
        (TrainData::Sequences(_), None) => defaults,
        (TrainData::Sequences(_), Some(_)) => return Err(BETA_WITHOUT_PAIRS.into()),
    };
    let options = options(given, &defaults)?;
    let data = RunData::split(data, evaluation_share(given));
    let options = options.with_length_of(data.sequences());
    let gpu = given.gpu().await?;
    let trainer = LoraTrainer::load(Rc::new(gpu), source, &files, name, options).await;
    Ok((trainer.map_err(format_error)?, data))
}

/// Loads an embedding model and its data.
async fn embedding_setup(
    given: &CliArgs,
    source: &Source,
    name: &str,
    (file, content): (&str, &str),
) -> Result<EmbeddingSetup> {
    if given.get::<f32>("beta").is_some() {
        return Err(BETA_WITHOUT_PAIRS.into());
    }
    let options = options(given, &LoraOptions::for_embedding_pairs())?;
    let data = EmbeddingData {
        pairs: file_examples(file, content).map_err(format_error)?,
        share: evaluation_share(given),
        ..EmbeddingData::default()
    };
    let settings = (options, given.get("scale").unwrap_or(DEFAULT_SCALE));
    let device = given.device();
    let open_gpu = async || Gpu::open(&device).await;
    let setup = EmbeddingSetup::open(source, name, &data, settings, false, open_gpu).await;
    setup.map_err(format_error)
}

fn evaluation_share(given: &CliArgs) -> f32 {
    given.get("evaluation").unwrap_or(0.0_f32).clamp(0.0, 0.9)
}

pub async fn run(given: &CliArgs) -> Result<()> {
    let resume = given.text("resume");
    let resume = resume.map(|folder| read_adapter(Path::new(&folder)));
    let resume = resume.transpose()?;
    let (mut session, plan) = open(given, resume.as_ref()).await?;
    let as_json = given.is_set("json");
    if !as_json {
        print_plan(&plan);
    }
    let before = session.evaluate().await.map_err(format_error)?;
    let started = Instant::now();
    while let Some(done) = session.step().await.map_err(format_error)? {
        print_step(&done, started.elapsed().as_secs_f64(), as_json);
    }
    let after = session.evaluate().await.map_err(format_error)?;
    if let (Some(before), Some(after)) = (before, after) {
        print_evaluation([before, after], as_json);
    }
    let adapter = session.adapter().await.map_err(format_error)?;
    write_adapter(Path::new(&given.require::<String>("out")?), &adapter)
}

fn print_plan(plan: &TrainPlan) {
    let TrainPlan {
        items,
        evaluation_items,
        memory,
        ..
    } = plan;
    let megabytes = |bytes: u64| bytes.div_ceil(1 << 20);
    out::print_line(format_args!(
        "{items} sequences or pairs, {evaluation_items} for evaluation; {} MB of frozen weights, {} MB of trained ones, {} MB of activations{}",
        megabytes(memory.frozen),
        megabytes(memory.trained),
        megabytes(memory.activations),
        if memory.checkpointing {
            " with checkpointing"
        } else {
            ""
        }
    ));
}

fn print_step(done: &TrainProgress, seconds: f64, as_json: bool) {
    let TrainProgress {
        step,
        steps,
        epoch,
        report,
        learning_rate,
        preference,
        ..
    } = done;
    let StepReport {
        loss,
        gradient_norm,
    } = report;
    if as_json {
        let mut line = json!({
            "step": step, "steps": steps, "epoch": epoch, "loss": loss, "gradientNorm": gradient_norm,
            "learningRate": learning_rate, "seconds": seconds,
        });
        if let Some(pairs) = preference {
            line["rewardMargin"] = json!(pairs.reward_margin);
            line["rewardAccuracy"] = json!(pairs.reward_accuracy);
        }
        out::print_line(line);
        return;
    }
    let rewards = preference.as_ref().map_or(String::new(), rewards);
    out::print_line(format_args!(
        "step {step} of {steps}: loss {loss:.4}{rewards}, gradient norm {gradient_norm:.3}, \
         learning rate {learning_rate:.2e}, {seconds:.1} s"
    ));
}

fn rewards(pairs: &PreferenceMetrics) -> String {
    format!(
        ", reward margin {:.4}, accuracy {:.2}",
        pairs.reward_margin, pairs.reward_accuracy
    )
}

fn print_evaluation(both: [Evaluation; 2], as_json: bool) {
    if as_json {
        let [before, after] = both.map(|found| match found.preference {
            None => json!(found.loss),
            Some(pairs) => json!({
                "loss": found.loss, "rewardMargin": pairs.reward_margin,
                "rewardAccuracy": pairs.reward_accuracy,
            }),
        });
        out::print_line(json!({ "evaluation": { "before": before, "after": after } }));
        return;
    }
    let [before, after] = both.map(|found| {
        let rewards = found.preference.as_ref().map_or(String::new(), rewards);
        format!("loss {:.4}{rewards}", found.loss)
    });
    out::print_line(format_args!("evaluation: {before} before; {after} after"));
}

fn read_adapter(folder: &Path) -> Result<LoraAdapter> {
    let read = |file: &str| {
        let path = folder.join(file);
        std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    LoraAdapter::parse(&read(CONFIG_FILE)?, &read(WEIGHTS_FILE)?).map_err(format_error)
}

fn write_adapter(folder: &Path, adapter: &LoraAdapter) -> Result<()> {
    let fault = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(folder).map_err(fault)?;
    std::fs::write(folder.join(CONFIG_FILE), adapter.config()).map_err(fault)?;
    std::fs::write(folder.join(WEIGHTS_FILE), adapter.safetensors()).map_err(fault)
}
