//! Converts the options of a load to the engine's types: device, run options, file sources, progress callback.

use super::values::{get, plain, text_of};
use crate::exec::{Overrides, Precision, Resident, RunOptions, Tune};
use crate::gpu::{DeviceOptions, Force, Group};
use crate::hub::{AbortFlag, HubOptions, ModelRef, PickedFile, Progress, ProgressEvent, Source};
use crate::kernels::attention::Kv;
use crate::{Error, Result};
use js_sys::{Array, Function};
use serde_json::json;
use wasm_bindgen::prelude::*;

pub(super) fn force_named(text: &str) -> Result<Force> {
    let reason = || format!("'{text}' is not a constant of shaders/variants.toml. Use a form such as gemm.BM=32.");
    Force::from_name(text).ok_or_else(|| Error::Request { parameter: "features.force".into(), reason: reason() })
}

pub(super) fn group_named(name: &str) -> Result<Group> {
    let reason = || format!("'{name}' is not valid. Use 'free', 'all' or a number of dispatches.");
    Group::from_name(name).ok_or_else(|| Error::Request { parameter: "group".into(), reason: reason() })
}

pub(super) fn abort_flag(options: &JsValue) -> AbortFlag {
    match get(options, "signal").dyn_into::<web_sys::AbortSignal>() {
        Ok(signal) => AbortFlag::from_signal(&signal),
        Err(_) => AbortFlag::new(),
    }
}

pub(super) fn run_options(options: &JsValue) -> Result<RunOptions> {
    let mut run = RunOptions { overrides: Overrides::default(), ..RunOptions::default() };
    if let Some(context) = get(options, "maxContext").as_f64() {
        if !(1.0..=16_777_216.0).contains(&context) {
            let reason = format!("{context} is not valid. Use 1 to 16777216 tokens.");
            return Err(Error::Request { parameter: "maxContext".into(), reason });
        }
        run.max_context = Some(context as usize);
    }
    let bytes = |name: &str| get(options, name).as_f64().filter(|n| *n >= 1.0).map(|n| n as u64);
    (run.memory, run.max_weight_buffer) = (bytes("maxMemory"), bytes("maxWeightBuffer"));
    let count = |name: &str| get(options, name).as_f64().map(|n| n.max(0.0) as usize);
    run.page = count("kvPage").unwrap_or(run.page);
    run.experts = count("experts").map(Resident::Count).or(bytes("expertBytes").map(Resident::Bytes));
    run.look_ahead = get(options, "lookAhead").as_bool() != Some(false);
    run.table_rows = get(options, "tableRows").as_bool();
    run.must_fit = get(options, "mustFit").is_truthy();
    if let Some(weights) = text_of(options, "weights") {
        run.overrides.precision = Precision::from_name("weights", &weights)?;
    }
    if let Some(tables) = text_of(options, "embeddingWeights") {
        run.overrides.tables = Precision::from_name("embeddingWeights", &tables)?;
    }
    if let Some(tune) = text_of(options, "tune") {
        run.tune = Tune::from_name("tune", &tune)?;
    }
    run.short = get(options, "shortPrompts").as_bool();
    if let Some(kv) = text_of(options, "kv").filter(|kv| kv != "auto") {
        let reason = || format!("'{kv}' is not one of auto, f32, f16, packed, int8");
        let refuse = || Error::Request { parameter: "kv".into(), reason: reason() };
        run.overrides.kv = Some(Kv::from_name(&kv).ok_or_else(refuse)?);
    }
    Ok(run)
}

pub(super) fn progress_to(callback: Function) -> Progress {
    Progress::new(move |event: &ProgressEvent| {
        let report = json!({
            "phase": event.phase.name(),
            "file": event.file,
            "loaded": event.loaded,
            "total": event.total,
            "share": event.share,
            "bytesPerSecond": event.bytes_per_second,
            "secondsLeft": event.seconds_left,
            "fromCache": event.from_cache,
        });
        // An exception in the callback must not stop the load.
        let _ = callback.call1(&JsValue::NULL, &plain(&report));
    })
}

/// The download options of `loadModel`.
pub(super) fn hub_options(options: &JsValue) -> HubOptions {
    HubOptions {
        revision: text_of(options, "revision"),
        token: text_of(options, "token"),
        endpoint: text_of(options, "endpoint"),
        cache: get(options, "cache").as_bool() != Some(false),
        defer_seal: true,
        ..HubOptions::default()
    }
}

/// The name of a model whose files were picked.
pub(super) const PICKED: &str = "picked files";

/// Opens the source of a model's files from the options of `loadModel`.
pub(super) async fn open_source(options: &JsValue, progress: Progress) -> Result<Source> {
    let hub = hub_options(options);
    let abort = abort_flag(options);
    let model = get(options, "model");
    if let Some(name) = model.as_string() {
        Source::open(&ModelRef::parse(&name)?, &hub, abort, progress).await
    } else {
        let mut files = Vec::new();
        for entry in Array::from(&model).iter() {
            let file: web_sys::Blob = get(&entry, "file")
                .dyn_into()
                .map_err(|_| Error::ModelName { name: "the files".into(), reason: "an entry has no 'file'".into() })?;
            files.push(PickedFile { name: text_of(&entry, "name").unwrap_or_default(), blob: file });
        }
        Source::picked(files, &hub, abort, progress).await
    }
}

/// The device options of a load.
pub(super) fn device_options(options: &JsValue) -> Result<DeviceOptions> {
    let features = get(options, "features");
    let wanted = |name: &str| !matches!(get(&features, name).as_bool(), Some(false));
    Ok(DeviceOptions {
        f16: wanted("f16"),
        subgroups: wanted("subgroups"),
        matrix: wanted("matrix"),
        least: text_of(&features, "limits").as_deref() == Some("least"),
        group: text_of(&features, "group").map(|name| group_named(&name)).transpose()?,
        force: text_of(&features, "force").map(|text| force_named(&text)).transpose()?,
        touch_points: get(options, "touchPoints").as_f64().map_or(0, |n| n as u32),
        ..DeviceOptions::default()
    })
}
