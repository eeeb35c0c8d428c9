//! Native version of the bench page: measures a loaded model and reports with the page's field
//! names.

pub mod checkpoint;
mod command;

pub use command::{command, make, make_command, run};

use jerboa::exec::{DecodeBatch, MeasureOptions, Measurement, Roofline, SequenceParams};
use jerboa::gpu::Backend;
use jerboa::hub::AbortFlag;
use jerboa::task::{ChatModel, GenerateRequest, ServesTask, TokenEvent};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

type Result<T> = std::result::Result<T, String>;

/// Settings of a measurement, with the page's field names.
#[derive(Serialize)]
pub struct BenchSettings {
    /// Shape of a generated checkpoint; `None` for an existing model.
    pub shape: Option<String>,
    /// Encoding of the generated checkpoint: mlx4 or f16.
    pub stored: String,
    /// Precision of unquantized weights in the engine.
    pub weights: String,
    /// Prompt lengths in tokens.
    pub prompts: Vec<usize>,
    /// Tokens to generate.
    pub tokens: usize,
    /// Numbers of sequences to decode in one step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<usize>,
    /// The draft model to measure with too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// Chance that a proposal of the draft model is accepted, for random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acceptance: Option<f64>,
    /// Tokens that the draft model proposes in every step; by default as many as pay off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_length: Option<usize>,
    /// Number of measured runs.
    pub runs: usize,
    /// Tokens to generate in the warm-up run.
    pub warm: usize,
    /// Whether programs that an idle model compiles, such as short prefill, are compiled before
    /// measuring.
    pub settled: bool,
    /// Whether to measure time by kernel, hardware limits and host overhead.
    pub profile: bool,
}

fn error_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Token ids that differ between runs, so that no prefix cache applies. The page generates the same
/// ids.
fn prompt_ids(length: usize, vocab: usize, seed: usize) -> Vec<u32> {
    let mut state = (seed as u32).wrapping_mul(7919).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12345) & 0x7fff_ffff;
        (state >> 8) % vocab.max(1) as u32
    };
    (0..length).map(|_| next()).collect()
}

async fn generate(
    loaded: &mut ChatModel,
    prompt: usize,
    tokens: usize,
    seed: usize,
    speculation: &str,
) -> Result<Value> {
    let ids = prompt_ids(prompt, loaded.session.vocab(), seed);
    let request = json!({
        "ids": ids, "maxTokens": tokens, "temperature": 0, "ignoreEos": true, "speculation": speculation,
    });
    let request = GenerateRequest::from_json(&request.to_string()).map_err(error_text)?;
    let start = Instant::now();
    let mut first = None;
    let mut last = 0.0;
    let mut count = 0;

    let abort = AbortFlag::new();

    let outcome = loaded
        .generate(&request, &abort, |event: &TokenEvent| {
            if !event.ids.is_empty() {
                last = start.elapsed().as_secs_f64() * 1e3;
                first.get_or_insert(last);
                count += event.ids.len();
            }
        })
        .await
        .map_err(error_text)?;
    let first = first.ok_or("the model generated no tokens")?;
    Ok(json!({
        "prompt_tokens": prompt,
        "tokens": count,
        "ttft_ms": first,
        "decode_ms": last - first,
        "total_ms": last,
        "prefill_tps": prompt as f64 / first * 1e3,
        "decode_tps": (count.max(1) - 1) as f64 / (last - first).max(1e-6) * 1e3,
        "engine_prefill_ms": outcome.prefill_ms,
        "engine_decode_ms": outcome.decode_ms,
        "drafted": outcome.drafted_tokens,
        "accepted": outcome.accepted_tokens,
        "last_ids": outcome.ids[outcome.ids.len().saturating_sub(LAST_IDS)..],
    }))
}

/// Tokens at the end of an answer that a run reports, to compare answers; www/bench/run.ts has the same.
const LAST_IDS: usize = 16;

/// A field of all runs with one prompt length, in order.
fn run_values(runs: &[Value], prompt: usize, field: &str) -> Vec<f64> {
    let mine = runs
        .iter()
        .filter(|r| r.get("prompt_tokens").and_then(Value::as_u64) == Some(prompt as u64));
    mine.filter_map(|r| r.get(field).and_then(Value::as_f64))
        .collect()
}

/// Median, minimum and maximum of the values as JSON, and the median alone.
fn median_range(mut values: Vec<f64>) -> (Value, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        values
            .get((share * (values.len().max(1) - 1) as f64) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    };
    (
        json!({ "median": at(0.5), "min": at(0.0), "max": at(1.0) }),
        at(0.5),
    )
}

/// Median read bandwidth in GB/s (10^9 bytes) and median time of a dispatch in microseconds.
fn median_limits(limits: &[Roofline]) -> (f64, f64) {
    let of = |each: fn(&Roofline) -> f64| median_range(limits.iter().map(each).collect()).1;
    (
        of(|limits| limits.read_gbs),
        of(|limits| limits.dispatch_us),
    )
}

/// Summarizes all runs of one prompt length. `limits` has one entry per round of runs, or none.
async fn summarize_prompt(
    loaded: &mut ChatModel,
    prompt: usize,
    settings: &BenchSettings,
    runs: &[Value],
    limits: &[Roofline],
) -> Result<Value> {
    let rates = run_values(runs, prompt, "decode_tps");
    let (decode, rate) = median_range(rates.clone());
    let step_ms = 1e3 / rate;
    let mut row = json!({
        "prompt": prompt,
        "decode_tps": decode,
        "prefill_tps": median_range(run_values(runs, prompt, "prefill_tps")).0,
        "ttft_ms": median_range(run_values(runs, prompt, "ttft_ms")).0,
        "step_ms": step_ms,
    });
    if !limits.is_empty() {
        let position =
            (prompt + settings.tokens / 2).min(loaded.session.capacity().saturating_sub(64));
        let profile = if prompt > 1 {
            vec![1, prompt.min(1024)]
        } else {
            vec![1]
        };
        let options = MeasureOptions {
            position,
            profile,
            sequences: settings.sequences.clone(),
            steps: 32,
            ..MeasureOptions::default()
        };
        let measured: Measurement = loaded.measure(&options).await.map_err(error_text)?;
        let limit_ms = |read_gbs: f64, dispatch_us: f64| {
            measured.dispatches_per_token as f64 * dispatch_us / 1e3
                + measured.bytes_per_token as f64 / read_gbs / 1e6
        };
        let shares = rates
            .iter()
            .zip(limits)
            .map(|(rate, of)| limit_ms(of.read_gbs, of.dispatch_us) * rate / 1e3);
        let (read_gbs, dispatch_us) = median_limits(limits);
        row["limit_ms"] = json!(limit_ms(read_gbs, dispatch_us));
        row["share_of_limit"] = median_range(shares.collect()).0;
        row["share_of_bandwidth"] = json!(limit_ms(read_gbs, 0.0) / step_ms);
        row["measured"] = serde_json::to_value(&measured).map_err(error_text)?;
    }
    Ok(row)
}

/// Timings of the load.
pub struct LoadTimings {
    /// Milliseconds from opening the files to a runnable model.
    pub ms: f64,
    /// Milliseconds from the start to the begin of each phase.
    pub phases: BTreeMap<&'static str, f64>,
}

/// Peak memory of this process in bytes, if the system reports it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?
            * 1024,
    )
}

/// One line with load time by phase and peak memory.
pub fn load_line(result: &Value) -> String {
    let of = |path: &str| result.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
    let all = of("/load_ms");
    let shares: Vec<String> = ["reading", "writing", "transcoding", "tuning", "compiling"]
        .iter()
        .map(|part| {
            format!(
                "{part} {:.0} %",
                100.0 * of(&format!("/info/load/{part}Ms")) / all
            )
        })
        .collect();
    let megabytes = |path: &str| of(path) / 1e6;
    format!(
        "loaded {:.0} MB in {all:.0} ms: {}; at most {:.0} MB on the GPU, {:.0} MB in this process",
        megabytes("/info/load/bytes"),
        shares.join(", "),
        megabytes("/info/load/peakBytes"),
        megabytes("/memory/processBytes")
    )
}

/// Runs an unmeasured generation.
async fn warm_up(loaded: &mut ChatModel, prompt: usize, settings: &BenchSettings) -> Result<()> {
    if settings.warm > 0 {
        generate(loaded, prompt, settings.warm, 99, "off").await?;
    }
    Ok(())
}

/// Measures a loaded model.
pub async fn bench(
    loaded: &mut ChatModel,
    name: &str,
    load: &LoadTimings,
    settings: &BenchSettings,
) -> Result<Value> {
    let memory = json!({ "processBytes": peak_bytes(), "gpuBytes": loaded.session.gpu().resource_counts().bytes });
    let first = *settings
        .prompts
        .first()
        .ok_or("--prompt requires at least one length")?;
    if settings.settled {
        loaded.warm_up();
    }
    warm_up(loaded, first, settings).await?;
    let mut runs = Vec::new();
    let mut limits = Vec::new();

    for round in 0..settings.runs {
        for prompt in &settings.prompts {
            let seed = 100 * prompt + round;
            runs.push(generate(loaded, *prompt, settings.tokens, seed, "off").await?);
        }
        if settings.profile {
            let options = MeasureOptions {
                limits: true,
                ..MeasureOptions::default()
            };
            limits.extend(loaded.measure(&options).await.map_err(error_text)?.limits);
            // The next run pays for freeing the memory of this measurement, so do a warm-up first.
            warm_up(loaded, first, settings).await?;
        }
    }
    let mut rows = Vec::new();
    for prompt in &settings.prompts {
        rows.push(summarize_prompt(loaded, *prompt, settings, &runs, &limits).await?);
    }
    let mut batches = Vec::new();
    for count in &settings.sequences {
        for prompt in &settings.prompts {
            batches.push(summarize_batch(loaded, *count, *prompt, settings).await?);
        }
    }
    let mut drafts = Vec::new();
    if settings.draft.is_some() {
        for prompt in &settings.prompts {
            drafts.push(summarize_draft(loaded, *prompt, settings).await?);
        }
    }
    let (read_gbs, dispatch_us) = median_limits(&limits);
    let limits =
        (!limits.is_empty()).then(|| json!({ "readGbs": read_gbs, "dispatchUs": dispatch_us }));
    let info = loaded.info();
    let mut result = json!({
        "engine": "jerboa", "model": name, "settings": settings,
        "agent": concat!("native, jerboa ", env!("CARGO_PKG_VERSION")), "adapter": info.get("device"),
        "load_ms": load.ms, "load_phases": load.phases, "load_bytes": loaded.session.model().load.bytes, "memory": memory,
        "runs": runs, "rows": rows, "limits": limits, "info": info,
    });
    if !batches.is_empty() {
        result["batches"] = json!(batches);
    }
    if !drafts.is_empty() {
        result["drafts"] = json!(drafts);
    }
    Ok(result)
}

/// Measures decoding with the draft model and without, in turns after a warm-up.
async fn summarize_draft(
    loaded: &mut ChatModel,
    prompt: usize,
    settings: &BenchSettings,
) -> Result<Value> {
    let mut runs = [Vec::new(), Vec::new()];
    for round in 0..=settings.runs {
        for (speculation, runs) in ["off", "draft"].iter().zip(&mut runs) {
            let seed = 100 * prompt + 1000 * round;
            let run = generate(loaded, prompt, settings.tokens, seed, speculation).await?;
            if round > 0 {
                runs.push(run);
            }
        }
    }
    let [without, with] = &runs;
    let rate = |runs: &[Value]| median_range(run_values(runs, prompt, "decode_tps"));
    let total = |field: &str| run_values(with, prompt, field).iter().sum::<f64>();
    Ok(json!({
        "prompt": prompt, "tokens": settings.tokens, "decode_tps": rate(with).0,
        "decode_tps_without": rate(without).0, "drafted": total("drafted"), "accepted": total("accepted"),
        "gain": rate(with).1 / rate(without).1,
    }))
}

/// A line for each prompt length that was measured with a draft model.
pub fn draft_lines(result: &Value) -> Vec<String> {
    let rows = result["drafts"].as_array().into_iter().flatten();
    let line = |row: &Value| {
        let of = |path: &str| {
            row.pointer(path)
                .and_then(Value::as_f64)
                .unwrap_or(f64::NAN)
        };
        format!(
            "prompt of {}: {:.1} tok/s without a draft model, {:.1} with ({:.2} times); {} of {} proposals accepted",
            of("/prompt"),
            of("/decode_tps_without/median"),
            of("/decode_tps/median"),
            of("/gain"),
            of("/accepted"),
            of("/drafted"),
        )
    };
    rows.map(line).collect()
}

/// Decodes sequences of random prompts in one step; returns the tokens a second of all together.
async fn decode_batch(
    loaded: &mut ChatModel,
    count: usize,
    prompt: usize,
    tokens: usize,
    seed: usize,
) -> Result<f64> {
    let session = &mut loaded.session;
    let model = session.model().clone();
    let mut batch = DecodeBatch::new(&model, count).await.map_err(error_text)?;
    for index in 0..count {
        session.clear();
        let ids = prompt_ids(prompt, session.vocab(), seed + index);
        session.prefill(&ids, 0).await.map_err(error_text)?;
        let params = SequenceParams::greedy(tokens);
        batch.join(session, params).await.map_err(error_text)?;
    }
    // The first tokens come from the prompts' logits.
    let first = batch.next().await.map_err(error_text)?;
    let mut left = count * tokens - first.len();
    let decoded = left as f64;
    let start = Instant::now();
    while left > 0 {
        let next = batch.next().await.map_err(error_text)?;
        if next.is_empty() {
            return Err("the batch ended early".into());
        }
        left -= next.iter().map(|(_, tokens)| tokens.len()).sum::<usize>();
    }
    session.clear();
    Ok(decoded / start.elapsed().as_secs_f64())
}

/// Measures batched decoding after a warm-up.
async fn summarize_batch(
    loaded: &mut ChatModel,
    count: usize,
    prompt: usize,
    settings: &BenchSettings,
) -> Result<Value> {
    decode_batch(loaded, count, prompt, settings.warm.max(2), 99).await?;
    let mut speeds = Vec::new();
    for round in 0..settings.runs {
        let seed = 100 * prompt + 1000 * round;
        speeds.push(decode_batch(loaded, count, prompt, settings.tokens, seed).await?);
    }
    let (tps, _) = median_range(speeds);
    Ok(json!({
        "sequences": count, "prompt_tokens": prompt, "tokens": settings.tokens, "decode_tps": tps,
    }))
}
