//! Converts what JavaScript passes to the engine's types: load options, file sources, abort signals,
//! progress callback.

use super::values::{from_js, property, string_property, to_plain_js};
use crate::hub::{AbortFlag, HubOptions, ModelRef, PickedFile, Progress, ProgressEvent, Source};
use crate::task::LoadRequest;
use crate::{Error, Result};
use js_sys::{Array, Function};
use serde_json::json;
use wasm_bindgen::prelude::*;

/// The flag that the `signal` of options sets.
pub fn abort_flag(options: &JsValue) -> AbortFlag {
    match property(options, "signal").dyn_into::<web_sys::AbortSignal>() {
        Ok(signal) => AbortFlag::from_signal(&signal),
        Err(_) => AbortFlag::new(),
    }
}

/// Reads the options of a load.
///
/// # Errors
/// `Request`, which names the wrong option.
pub fn load_request(options: &JsValue) -> Result<LoadRequest> {
    from_js("options", options.clone())
}

/// Reports progress to a function of the page.
pub fn progress_callback(callback: Function) -> Progress {
    Progress::new(progress_reports(callback))
}

/// Passes reports of progress to a function of the page.
pub(super) fn progress_reports(callback: Function) -> impl FnMut(&ProgressEvent) + 'static {
    move |event: &ProgressEvent| {
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
    }
}

/// The download options of a load. Its last file may be cached after it has ended.
pub fn hub_options(request: &LoadRequest) -> HubOptions {
    HubOptions {
        defer_finalize: true,
        ..request.hub_options()
    }
}

/// The name of a model whose files were selected.
pub const SELECTED_FILES_NAME: &str = "selected files";

/// Opens the source of a model's files from the options of `loadModel`.
///
/// # Errors
/// `ModelName` for what names no model; errors of the source.
pub async fn open_source(options: &JsValue, progress: Progress) -> Result<Source> {
    let hub = hub_options(&load_request(options)?);
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
        let path = string_property(options, "path");
        Source::from_picked_files(files, path, &hub, abort, progress).await
    }
}
