//! The commands `inspect`, `plan` and `load-bench`: a model's structure, memory and load time.

use crate::bench::checkpoint;
use crate::open::{with_optional_model, with_required_model};
use crate::options::{CliArgs, Result, flag, format_error, list, parsed, value};
use crate::out;
use clap::{ArgGroup, Command, value_parser};
use jerboa::device::Caps;
use jerboa::exec::ModelFiles;
use jerboa::gpu::Backend;
use jerboa::hub::Progress;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Instant;

pub fn inspect_command(command: Command) -> Command {
    with_required_model(command)
}

pub async fn inspect(given: &CliArgs) -> Result<()> {
    let files = ModelFiles::open_unchecked(&given.source().await?, None)
        .await
        .map_err(format_error)?;
    out::print_text(files.inspect(given.run_options()?.overrides));
    Ok(())
}

pub fn plan_command(command: Command) -> Command {
    with_optional_model(command)
        .args([
            flag("profile", "Time each kernel of a decode step and of a prefill step"),
            value("shape", "NAME", "Estimate the minimum time per token of a model shape")
                .long_help(
                    "A shape of www/bench/shapes.json, or a config.json. Needs neither a GPU nor weights. Prints the kernels of a \
                     decode step on a GPU with all features, with the quantization of `bench`; the minimum time of that step; \
                     and the state bytes of a sequence that fills --context.",
                ),
            list("position", "N,…", value_parser!(usize), "Positions of that step").default_value("256,1152"),
            parsed("dispatch-us", "µs", value_parser!(f64), "Time of a dependent dispatch")
                .default_value("3.55"),
            parsed("read-gbs", "GB/s", value_parser!(f64), "Read bandwidth of the GPU").default_value("5150"),
        ])
        .group(ArgGroup::new("which").args(["MODEL", "model", "shape"]).required(true))
}

/// Capabilities of a typical desktop GPU.
fn desktop_gpu() -> Caps {
    Caps {
        vendor: "nvidia".into(),
        f16: true,
        subgroups: true,
        subgroup_size: (32, 32),
        max_buffer_size: 4 << 30,
        max_binding_size: 2 << 30,
        max_workgroup_storage: 32768,
        max_invocations: 1024,
        packed_dot: true,
        ..Caps::default()
    }
}

/// Prints the minimum time per token of a shape: dependent dispatches plus one read of its bytes.
async fn min_step_time(given: &CliArgs, shape: &str) -> Result<()> {
    let made = checkpoint::make_checkpoint(shape, true, true)?;
    let source = given
        .source_of(&made.path().to_string_lossy(), Progress::silent())
        .await?;
    let files = ModelFiles::open(&source, None)
        .await
        .map_err(format_error)?;
    let step = files
        .estimate(&desktop_gpu(), &given.run_options()?)
        .map_err(format_error)?;
    let mut kernels: BTreeMap<String, usize> = BTreeMap::new();
    for launch in step.step.launches.iter().chain(&step.sampling.launches) {
        let name = launch.variant.to_string();
        *kernels
            .entry(name.split(' ').next().unwrap_or_default().to_string())
            .or_default() += 1;
    }
    for (kernel, count) in kernels {
        out::print_line(format_args!("{count:4} {kernel}"));
    }
    let (dispatch_us, read_gbs): (f64, f64) =
        (given.require("dispatch-us")?, given.require("read-gbs")?);
    let dispatches = step.dispatches();
    for position in given.values::<usize>("position") {
        let bytes = step.bytes_per_token(position) as f64;
        let [waiting, reading] = [
            dispatches as f64 * dispatch_us / 1e3,
            bytes / read_gbs / 1e6,
        ];
        out::print_line(format_args!(
            "{shape} at {position}: {dispatches} dispatches {waiting:.3} ms, {:.0} MB {reading:.3} ms: at most {:.0} tokens a second",
            bytes / 1e6,
            1e3 / (waiting + reading)
        ));
    }
    let states = step.state_bytes();
    let [kv, full, other] =
        [states.kv, states.kv_without_window, states.other].map(|bytes| bytes as f64 / 1e6);
    out::print_line(format_args!(
        "{shape}, {} tokens: keys and values {kv:.1} MB (full caches {full:.1} MB), other states {other:.1} MB",
        states.positions
    ));
    Ok(())
}

pub async fn plan(given: &CliArgs) -> Result<()> {
    if let Some(shape) = given.text("shape") {
        return min_step_time(given, &shape).await;
    }
    let mut model = given.model().await?;
    out::print_text(model.model().graph());
    out::print_line(format_args!(
        "dispatches per decode token: {}",
        model.model().dispatches()
    ));
    let bytes = model.model().bytes();
    out::print_line(format_args!(
        "bytes: weights {}, KV cache {} (at most {}), activations {}",
        bytes.weights,
        bytes.kv,
        model.model().state_bytes(model.capacity()),
        bytes.activations
    ));
    out::print_line(format_args!("tuning: {}", json!(model.model().tuning)));
    if given.is_set("profile") {
        for rows in [1, 128] {
            let profile = model
                .profile_kernels(rows.min(model.capacity()), 0)
                .await
                .map_err(format_error)?;
            let dispatches: usize = profile.kernels.values().map(|share| share.dispatches).sum();
            out::print_line(format_args!(
                "{} rows, {:.3} ms in {dispatches} dispatches",
                profile.rows, profile.ms
            ));
            for (kernel, share) in profile.kernels {
                out::print_line(format_args!(
                    "  {kernel}: {} dispatches, {:.3} ms",
                    share.dispatches, share.ms
                ));
            }
        }
    }
    Ok(())
}

pub fn load_command(command: Command) -> Command {
    with_required_model(command)
}

pub async fn load(given: &CliArgs) -> Result<()> {
    let begin = Instant::now();
    let model = given.model().await?;
    let all_ms = begin.elapsed().as_secs_f64() * 1000.0;
    let load = model.model().load;
    let share = |ms: f64| (ms / all_ms * 1000.0).round() / 1000.0;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = |line: &str| {
        line.strip_prefix("VmHWM:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    };
    out::print_line(json!({
        "device": model.gpu().caps().description, "weights": model.model().precision.name(), "notes": model.model().notes,
        "all_ms": all_ms.round(), "load": load, "tuning": model.model().tuning,
        "tuning_share": share(load.tuning_ms),
        "network_share": share(load.reading_ms),
        "transcoding_share": share(load.writing_ms + load.transcoding_ms),
        "compiling_share": share(load.compiling_ms),
        "weight_bytes": model.model().bytes().weights, "gpu_bytes": model.gpu().resource_counts().bytes,
        "peak_gpu_bytes": load.peak_bytes,
        "peak_host_bytes": status.lines().find_map(kilobytes).map(|kb| kb * 1024),
    }));
    Ok(())
}
