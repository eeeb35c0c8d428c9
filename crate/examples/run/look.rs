//! `inspect`, `plan` and `load-bench`: what a model is made of and what it costs.

use crate::open::on_model;
use crate::options::{Given, Result, flag, told};
use crate::out;
use clap::Command;
use jerboa::exec::Files;
use jerboa::gpu::Backend;
use serde_json::json;
use std::time::Instant;

pub fn inspect_command(command: Command) -> Command {
    on_model(command)
}

pub async fn inspect(given: &Given) -> Result<()> {
    let files = Files::examine(&given.source().await?, None).await.map_err(told)?;
    out::text(files.inspect(given.run_options()?.overrides));
    Ok(())
}

pub fn plan_command(command: Command) -> Command {
    on_model(command).arg(flag("profile", "Time each kernel of a decode and of a prefill step"))
}

pub async fn plan(given: &Given) -> Result<()> {
    let mut model = given.model().await?;
    out::text(&model.graph);
    out::line(format_args!("dispatches per decode token: {}", model.dispatches()));
    let bytes = model.bytes();
    out::line(format_args!(
        "bytes: weights {}, KV cache {} (at most {}), activations {}",
        bytes.weights,
        bytes.kv,
        model.state_bytes(model.capacity),
        bytes.activations
    ));
    out::line(format_args!("tuning: {}", json!(model.tuning)));
    if given.has("profile") {
        for rows in [1, 128] {
            let profile = model.profile_kernels(rows.min(model.capacity), 0).await.map_err(told)?;
            let dispatches: usize = profile.kernels.values().map(|share| share.dispatches).sum();
            out::line(format_args!("{} rows, {:.3} ms in {dispatches} dispatches", profile.rows, profile.ms));
            for (kernel, share) in profile.kernels {
                out::line(format_args!("  {kernel}: {} dispatches, {:.3} ms", share.dispatches, share.ms));
            }
        }
    }
    Ok(())
}

pub fn load_command(command: Command) -> Command {
    on_model(command)
}

pub async fn load(given: &Given) -> Result<()> {
    let begin = Instant::now();
    let model = given.model().await?;
    let all_ms = begin.elapsed().as_secs_f64() * 1000.0;
    let load = model.load;
    let share = |ms: f64| (ms / all_ms * 1000.0).round() / 1000.0;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = |line: &str| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    out::line(json!({
        "device": model.gpu.caps().description, "weights": model.precision.name(), "notes": model.notes,
        "all_ms": all_ms.round(), "load": load, "tuning": model.tuning,
        "tuning_share": share(load.tuning_ms),
        "network_share": share(load.reading_ms),
        "transcoding_share": share(load.writing_ms + load.transcoding_ms),
        "compiling_share": share(load.compiling_ms),
        "weight_bytes": model.bytes().weights, "gpu_bytes": model.gpu.created().bytes,
        "peak_gpu_bytes": load.peak_bytes,
        "peak_host_bytes": status.lines().find_map(kilobytes).map(|kb| kb * 1024),
    }));
    Ok(())
}
