//! Functions about the device and the browser that need no model.

use super::JsResult;
use super::values::{to_js, to_plain_js};
use super::version;
use crate::Error;
use crate::device::memory::{RECORD_NAME, read_measured};
use crate::diag::{DiagnosticResult, chain::run_chain, run_device_checks};
use crate::gpu::{Backend, Caps, DeviceOptions, Gpu, SubmitGrouping, WebGpuImplementation};
use crate::hub::{CacheStore, KeyValueStore};
use crate::task::parse_submit_group;
use crate::util::clock::now_ms;
use crate::util::host;
use js_sys::{Object, Reflect};
use wasm_bindgen::prelude::*;

/// Detects the WebGPU implementation from the user agent and `navigator.maxTouchPoints`: `iphone`,
/// `ipad`, `webkit` or `other`.
#[wasm_bindgen]
pub fn implementation(touch_points: u32) -> String {
    WebGpuImplementation::from_user_agent(&host::user_agent(), touch_points)
        .name()
        .into()
}

/// Features and limits of this browser and GPU.
#[wasm_bindgen(js_name = deviceReport)]
pub async fn device_report(touch_points: u32) -> JsResult<JsValue> {
    let gpu = Gpu::open(&DeviceOptions {
        touch_points,
        ..DeviceOptions::default()
    })
    .await
    .map_err(|e| to_js(&e))?;
    let report = to_plain_js(gpu.caps());
    let (memory, is_limit) = model_memory(gpu.caps()).await;
    let _ = Reflect::set(&report, &"memory".into(), &(memory as f64).into());
    let _ = Reflect::set(&report, &"memoryIsLimit".into(), &is_limit.into());
    let _ = Reflect::set(&report, &"engine".into(), &version().into());
    Ok(Object::from(report).into())
}

/// Bytes that models can take, and whether more was refused or would end the page. Otherwise they
/// are an estimate, or what the device has held; it may have more.
async fn model_memory(caps: &Caps) -> (u64, bool) {
    if let Some(limit) = caps.memory {
        return (limit, true);
    }
    let record = match CacheStore::open().await {
        Ok(store) => store.get(RECORD_NAME, 0).await,
        Err(_) => None,
    };
    let record = record.map(|record| record.to_vec()).unwrap_or_default();
    let measured = read_measured(&record, caps, now_ms());
    match measured.limit {
        Some(limit) => (limit, true),
        None => (measured.held.max(caps.estimated_memory.unwrap_or(0)), false),
    }
}

/// Checks that a long chain of kernels gives the same result in submit groups of this size as one
/// by one. See the facade's calibration.
#[wasm_bindgen]
pub async fn calibrate(group: String) -> JsResult<bool> {
    let check = async {
        let one = DeviceOptions {
            submit_grouping: Some(SubmitGrouping::Dispatches(1)),
            ..DeviceOptions::default()
        };
        let gpu = Gpu::open(&one).await?;
        let expected = run_chain(&gpu).await?;
        gpu.set_submit_grouping(parse_submit_group(&group)?);
        match run_chain(&gpu).await {
            Ok(found) => Ok(found == expected),
            Err(Error::NotFinite { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    };
    check.await.map_err(|e| to_js(&e))
}

/// Runs the device checks: `[{ name, ok, ms, problem? }]`. Needs no model. `unasked` skips them on
/// software adapters, where they are slow.
#[wasm_bindgen(js_name = diagnose)]
pub async fn diagnose(touch_points: u32, unasked: bool) -> JsResult<JsValue> {
    let run = async {
        let gpu = Gpu::open(&DeviceOptions {
            touch_points,
            ..DeviceOptions::default()
        })
        .await?;
        if unasked && gpu.caps().software {
            Ok(Vec::new())
        } else {
            run_device_checks(&gpu).await
        }
    };
    run.await
        .map(|checks: Vec<DiagnosticResult>| to_plain_js(&checks))
        .map_err(|e| to_js(&e))
}
