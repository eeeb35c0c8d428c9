//! The native twin of the bench page: times a loaded model in the page's names.

pub mod checkpoint;
mod command;

pub use command::{command, make, make_command, run};

use jerboa::exec::{Limits, MeasureOptions, Measurement};
use jerboa::gpu::Backend;
use jerboa::hub::AbortFlag;
use jerboa::task::{Event, GenerateRequest, Loaded};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

type Result<T> = std::result::Result<T, String>;

/// What is measured, in the page's names.
#[derive(Serialize)]
pub struct Settings {
    /// A shape of the bench page's; nothing for a model that was there.
    pub shape: Option<String>,
    /// How the made checkpoint is stored: mlx4 or f16.
    pub stored: String,
    /// How the engine keeps unquantised weights.
    pub weights: String,
    /// Lengths of prompts.
    pub prompts: Vec<usize>,
    /// New tokens.
    pub tokens: usize,
    /// Runs that count.
    pub runs: usize,
    /// New tokens of a first run that does not count.
    pub warm: usize,
    /// Whether what an idle model makes ready, as the kernels of short prompts, is there from the beginning.
    pub settled: bool,
    /// Whether time by kernel, limits and the host's cost are taken.
    pub profile: bool,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Ids that differ from run to run, so that no cache of a prefix serves; the page makes the same ones.
fn prompt_ids(length: usize, vocab: usize, seed: usize) -> Vec<u32> {
    let mut state = (seed as u32).wrapping_mul(7919).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12345) & 0x7fff_ffff;
        (state >> 8) % vocab.max(1) as u32
    };
    (0..length).map(|_| next()).collect()
}

async fn generate(loaded: &mut Loaded, prompt: usize, tokens: usize, seed: usize) -> Result<Value> {
    let ids = prompt_ids(prompt, loaded.session.vocab(), seed);
    let request = json!({ "ids": ids, "maxTokens": tokens, "temperature": 0, "ignoreEos": true });
    let request = GenerateRequest::from_json(&request.to_string()).map_err(text)?;
    let start = Instant::now();
    let (mut first, mut last, mut count) = (None, 0.0, 0);
    let abort = AbortFlag::new();
    let each = |event: &Event| {
        if !event.ids.is_empty() {
            last = start.elapsed().as_secs_f64() * 1e3;
            first.get_or_insert(last);
            count += event.ids.len();
        }
    };
    let outcome = loaded.generate(&request, &abort, each).await.map_err(text)?;
    let first = first.ok_or("the model gave no token")?;
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
    }))
}

/// A field of the runs of one prompt, in their order.
fn values(runs: &[Value], prompt: usize, field: &str) -> Vec<f64> {
    let mine = runs.iter().filter(|r| r.get("prompt_tokens").and_then(Value::as_u64) == Some(prompt as u64));
    mine.filter_map(|r| r.get(field).and_then(Value::as_f64)).collect()
}

/// Middle, least and most of some values, and the middle alone.
fn range(mut values: Vec<f64>) -> (Value, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values.get((share * (values.len().max(1) - 1) as f64) as usize).copied().unwrap_or(f64::NAN);
    (json!({ "median": at(0.5), "min": at(0.0), "max": at(1.0) }), at(0.5))
}

/// The middle of each: 10^9 bytes a second of a plain read, microseconds of a dispatch.
fn middle(limits: &[Limits]) -> (f64, f64) {
    let of = |each: fn(&Limits) -> f64| range(limits.iter().map(each).collect()).1;
    (of(|limits| limits.read_gbs), of(|limits| limits.dispatch_us))
}

/// `limits` has one of each round of runs, or none.
async fn row(
    loaded: &mut Loaded,
    prompt: usize,
    settings: &Settings,
    runs: &[Value],
    limits: &[Limits],
) -> Result<Value> {
    let rates = values(runs, prompt, "decode_tps");
    let (decode, rate) = range(rates.clone());
    let step_ms = 1e3 / rate;
    let mut row = json!({
        "prompt": prompt,
        "decode_tps": decode,
        "prefill_tps": range(values(runs, prompt, "prefill_tps")).0,
        "ttft_ms": range(values(runs, prompt, "ttft_ms")).0,
        "step_ms": step_ms,
    });
    if !limits.is_empty() {
        let position = (prompt + settings.tokens / 2).min(loaded.session.capacity.saturating_sub(64));
        let profile = if prompt > 1 { vec![1, prompt.min(1024)] } else { vec![1] };
        let options = MeasureOptions { position, profile, steps: 32, ..MeasureOptions::default() };
        let measured: Measurement = loaded.measure(&options).await.map_err(text)?;
        let limit_ms = |read_gbs: f64, dispatch_us: f64| {
            measured.dispatches_per_token as f64 * dispatch_us / 1e3 + measured.bytes_per_token as f64 / read_gbs / 1e6
        };
        let shares = rates.iter().zip(limits).map(|(rate, of)| limit_ms(of.read_gbs, of.dispatch_us) * rate / 1e3);
        let (read_gbs, dispatch_us) = middle(limits);
        row["limit_ms"] = json!(limit_ms(read_gbs, dispatch_us));
        row["share_of_limit"] = range(shares.collect()).0;
        row["share_of_bandwidth"] = json!(limit_ms(read_gbs, 0.0) / step_ms);
        row["measured"] = serde_json::to_value(&measured).map_err(text)?;
    }
    Ok(row)
}

/// What is known of the load.
pub struct Load {
    /// Milliseconds from the look at its files to a model that runs.
    pub ms: f64,
    /// Milliseconds from the start at which each phase began.
    pub phases: BTreeMap<&'static str, f64>,
}

/// Bytes that this process held at most, where the system tells.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

/// One line on where a load's time went and what it took of memory.
pub fn load_line(result: &Value) -> String {
    let of = |path: &str| result.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
    let all = of("/load_ms");
    let shares: Vec<String> = ["reading", "writing", "transcoding", "tuning", "compiling"]
        .iter()
        .map(|part| format!("{part} {:.0} %", 100.0 * of(&format!("/info/load/{part}Ms")) / all))
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

/// A run that does not count.
async fn warm(loaded: &mut Loaded, prompt: usize, settings: &Settings) -> Result<()> {
    if settings.warm > 0 {
        generate(loaded, prompt, settings.warm, 99).await?;
    }
    Ok(())
}

/// Measures a model that is loaded.
pub async fn bench(loaded: &mut Loaded, name: &str, load: &Load, settings: &Settings) -> Result<Value> {
    let memory = json!({ "processBytes": peak_bytes(), "gpuBytes": loaded.session.gpu.created().bytes });
    let first = *settings.prompts.first().ok_or("--prompt names no length")?;
    if settings.settled {
        loaded.settle();
    }
    warm(loaded, first, settings).await?;
    let (mut runs, mut limits) = (Vec::new(), Vec::new());
    for round in 0..settings.runs {
        for prompt in &settings.prompts {
            runs.push(generate(loaded, *prompt, settings.tokens, 100 * prompt + round).await?);
        }
        if settings.profile {
            let options = MeasureOptions { limits: true, ..MeasureOptions::default() };
            limits.extend(loaded.measure(&options).await.map_err(text)?.limits);
            // The memory that this took is given back at the next prompt's cost.
            warm(loaded, first, settings).await?;
        }
    }
    let mut rows = Vec::new();
    for prompt in &settings.prompts {
        rows.push(row(loaded, *prompt, settings, &runs, &limits).await?);
    }
    let (read_gbs, dispatch_us) = middle(&limits);
    let limits = (!limits.is_empty()).then(|| json!({ "readGbs": read_gbs, "dispatchUs": dispatch_us }));
    let info = loaded.info();
    Ok(json!({
        "engine": "jerboa", "model": name, "settings": settings,
        "agent": concat!("native, jerboa ", env!("CARGO_PKG_VERSION")), "adapter": info.get("device"),
        "load_ms": load.ms, "load_phases": load.phases, "load_bytes": loaded.session.load.bytes, "memory": memory,
        "runs": runs, "rows": rows, "limits": limits, "info": info,
    }))
}
