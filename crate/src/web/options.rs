//! Converts the options of a load to the engine's types: device, run options, file sources,
//! progress callback.

use super::values::{property, string_property, to_plain_js};
use crate::exec::{
    ExpertBudget, Precision, PrecisionOptions, RunOptions, TuneMode, quantize_inputs_from_name,
};
use crate::gpu::{DeviceOptions, SubmitGrouping, VariantOverride};
use crate::hub::{AbortFlag, HubOptions, ModelRef, PickedFile, Progress, ProgressEvent, Source};
use crate::kernels::attention::Kv;
use crate::{Error, Result};
use js_sys::{Array, Function};
use serde_json::json;
use wasm_bindgen::prelude::*;

pub(super) fn parse_variant_override(text: &str) -> Result<VariantOverride> {
    let reason = || {
        format!(
            "'{text}' is not a constant of shaders/variants.toml. Use a form such as gemm.BM=32."
        )
    };
    VariantOverride::from_name(text).ok_or_else(|| Error::Request {
        parameter: "features.force".into(),
        reason: reason(),
    })
}

pub(super) fn parse_submit_group(name: &str) -> Result<SubmitGrouping> {
    let reason = || format!("'{name}' is not valid. Use 'free', 'all' or a number of dispatches.");
    SubmitGrouping::from_name(name).ok_or_else(|| Error::Request {
        parameter: "group".into(),
        reason: reason(),
    })
}

pub(super) fn abort_flag(options: &JsValue) -> AbortFlag {
    match property(options, "signal").dyn_into::<web_sys::AbortSignal>() {
        Ok(signal) => AbortFlag::from_signal(&signal),
        Err(_) => AbortFlag::new(),
    }
}

pub(super) fn run_options(options: &JsValue) -> Result<RunOptions> {
    let mut run = RunOptions {
        overrides: PrecisionOptions::default(),
        ..RunOptions::default()
    };
    if let Some(context) = property(options, "maxContext").as_f64() {
        if !(1.0..=16_777_216.0).contains(&context) {
            let reason = format!("{context} is not valid. Use 1 to 16777216 tokens.");
            return Err(Error::Request {
                parameter: "maxContext".into(),
                reason,
            });
        }
        run.max_context = Some(context as usize);
    }
    let bytes = |name: &str| {
        property(options, name)
            .as_f64()
            .filter(|n| *n >= 1.0)
            .map(|n| n as u64)
    };
    (run.memory, run.max_weight_buffer) = (bytes("maxMemory"), bytes("maxWeightBuffer"));
    let count = |name: &str| {
        property(options, name)
            .as_f64()
            .map(|n| n.max(0.0) as usize)
    };
    run.kv_growth = count("kvGrowth").unwrap_or(run.kv_growth);
    run.experts = count("experts")
        .map(ExpertBudget::PerLayer)
        .or(bytes("expertBytes").map(ExpertBudget::MaxBytes));
    run.prefetch_experts = property(options, "prefetchExperts").as_bool() != Some(false);
    run.page_embeddings = property(options, "pageEmbeddings").as_bool();
    run.must_fit = property(options, "mustFit").is_truthy();
    if let Some(weights) = string_property(options, "weights") {
        run.overrides.precision = Precision::from_name("weights", &weights)?;
    }
    if let Some(tables) = string_property(options, "embeddingWeights") {
        run.overrides.tables = Precision::from_name("embeddingWeights", &tables)?;
    }
    if let Some(activations) = string_property(options, "activations") {
        run.overrides.activations = quantize_inputs_from_name("activations", &activations)?;
    }
    if let Some(tune) = string_property(options, "tune") {
        run.tune = TuneMode::from_name("tune", &tune)?;
    }
    run.short_prefill = property(options, "shortPrefill").as_bool();
    if let Some(kv) = string_property(options, "kv").filter(|kv| kv != "auto") {
        let reason = || format!("'{kv}' is not one of auto, f32, f16, packed, int8");

        run.overrides.kv_type = Some(Kv::from_name(&kv).ok_or_else(|| Error::Request {
            parameter: "kv".into(),
            reason: reason(),
        })?);
    }
    Ok(run)
}

pub(super) fn progress_callback(callback: Function) -> Progress {
    Progress::new(move |event: &ProgressEvent| {
        let report = json!({
            "phase": event.phase.name(),
            "file": event.file,
            "loaded": event.loaded,
            "total": event.total,
            "progress": event.progress,
            "bytesPerSecond": event.bytes_per_second,
            "secondsLeft": event.seconds_left,
            "fromCache": event.from_cache,
            "waitingFor": event.waiting_for,
        });
        // An exception in the callback must not stop the load.
        let _ = callback.call1(&JsValue::NULL, &to_plain_js(&report));
    })
}

/// The download options of `loadModel`.
pub(super) fn hub_options(options: &JsValue) -> HubOptions {
    HubOptions {
        revision: string_property(options, "revision"),
        token: string_property(options, "token"),
        endpoint: string_property(options, "endpoint"),
        cache: property(options, "cache").as_bool() != Some(false),
        defer_finalize: true,
        ..HubOptions::default()
    }
}

/// The name of a model whose files were selected.
pub(super) const SELECTED_FILES_NAME: &str = "selected files";

/// Opens the source of a model's files from the options of `loadModel`.
pub(super) async fn open_source(options: &JsValue, progress: Progress) -> Result<Source> {
    let hub = hub_options(options);
    let abort = abort_flag(options);
    let model = property(options, "model");
    if let Some(name) = model.as_string() {
        Source::open(&ModelRef::parse(&name)?, &hub, abort, progress).await
    } else {
        let mut files = Vec::new();
        for entry in Array::from(&model).iter() {
            let file: web_sys::Blob =
                property(&entry, "file")
                    .dyn_into()
                    .map_err(|_| Error::ModelName {
                        name: "the files".into(),
                        reason: "an entry has no 'file'".into(),
                    })?;
            files.push(PickedFile {
                name: string_property(&entry, "name").unwrap_or_default(),
                blob: file,
            });
        }
        Source::from_picked_files(files, &hub, abort, progress).await
    }
}

/// The device options of a load.
pub(super) fn device_options(options: &JsValue) -> Result<DeviceOptions> {
    let features = property(options, "features");
    let wanted = |name: &str| !matches!(property(&features, name).as_bool(), Some(false));
    Ok(DeviceOptions {
        f16: wanted("f16"),
        subgroups: wanted("subgroups"),
        matrix: wanted("matrix"),
        min_limits: string_property(&features, "limits").as_deref() == Some("minimum"),
        submit_grouping: string_property(&features, "group")
            .map(|name| parse_submit_group(&name))
            .transpose()?,
        variant_override: string_property(&features, "force")
            .map(|text| parse_variant_override(&text))
            .transpose()?,
        touch_points: property(options, "touchPoints")
            .as_f64()
            .map_or(0, |n| n as u32),
        ..DeviceOptions::default()
    })
}
