//! WebAssembly bindings of speech recognition and synthesis.

use super::Engine;
use super::wrong_task;
use crate::audio::stream_vad::VadStream;
use crate::audio::vad::Vad;
use crate::audio::{SampleReader, languages};
use crate::task::{SegmentEvent, SpeakRequest, Task, TaskModel, TranscribeRequest};
use crate::web::JsResult;
use crate::web::options::abort_flag;
use crate::web::values::{from_js, property, to_js, to_plain_js};
use crate::{Error, Result};
use js_sys::{Float32Array, Function, Uint8Array};
use serde_json::json;
use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// Samples in JavaScript memory: WebAssembly memory never shrinks, so it holds one window.
struct JsSamples(Float32Array);

impl SampleReader for JsSamples {
    fn count(&self) -> usize {
        self.0.length() as usize
    }

    fn read(&self, range: Range<usize>) -> Cow<'_, [f32]> {
        let part = self.0.subarray(range.start as u32, range.end as u32);
        Cow::Owned(part.to_vec())
    }
}

/// Voice activity detector and state of an audio stream.
#[derive(Default)]
pub(super) struct AudioInputState {
    vad: Option<Rc<Vad>>,
    vad_stream: VadStream,
}

impl AudioInputState {
    /// Creates the state with the VAD weights of the options, which the speech recognition model
    /// shares.
    pub(super) fn new(options: &JsValue, model: &mut TaskModel) -> Result<Self> {
        let TaskModel::Transcribe(model) = model else {
            return Ok(Self::default());
        };
        if let Ok(bytes) = property(options, "vad").dyn_into::<Uint8Array>() {
            model.vad = Some(Rc::new(Vad::new(&bytes.to_vec())?));
        }
        Ok(Self {
            vad: model.vad.clone(),
            vad_stream: VadStream::default(),
        })
    }
}

#[wasm_bindgen]
impl Engine {
    /// Transcribes samples at 16 kHz. `on_heard` receives `{ text, start, end, done, total }`; with
    /// `partials` also partial results as `{ …, stable }`.
    pub async fn transcribe(
        &self,
        samples: Float32Array,
        request: JsValue,
        on_heard: Function,
    ) -> JsResult<JsValue> {
        let running = async {
            let abort = abort_flag(&request);
            let request = from_js::<TranscribeRequest>("request", request)?.checked()?;
            let mut taken = self.acquire_model(Task::Transcribe)?;
            let Some(TaskModel::Transcribe(model)) = &mut taken.model else {
                return Err(wrong_task());
            };

            model
                .transcribe_windows(
                    &JsSamples(samples),
                    &request,
                    &abort,
                    |segment: &SegmentEvent| {
                        let _ = on_heard.call1(&JsValue::NULL, &to_plain_js(segment));
                    },
                )
                .await
        };
        let made = running.await.map_err(|e| to_js(&e))?;
        let mut all = made.to_verbose_json();
        (all["srt"], all["vtt"]) = (json!(made.srt()), json!(made.vtt()));
        all["languageName"] = json!(made.language.as_deref().and_then(languages::name_of));
        Ok(to_plain_js(&all))
    }

    /// Feeds samples at 16 kHz to the VAD and returns `{ level, start, ended }`, counted in
    /// samples. `fresh` starts a new stream; no samples end it.
    pub fn listen(&self, samples: &[f32], fresh: bool) -> JsResult<JsValue> {
        let ears = &mut *self
            .audio_input
            .try_borrow_mut()
            .map_err(|_| to_js(&wrong_task()))?;
        if fresh {
            ears.vad_stream = VadStream::default();
        }
        let mut turn = ears.vad_stream.push(ears.vad.as_deref(), samples);
        if samples.is_empty() {
            turn.ended.extend(ears.vad_stream.finish());
            turn.start = None;
        }
        let ended: Vec<[usize; 2]> = turn.ended.iter().map(|r| [r.start, r.end]).collect();
        Ok(to_plain_js(
            &json!({ "level": turn.level, "start": turn.start, "ended": ended }),
        ))
    }

    /// Synthesizes speech; `on_sound` receives samples as they are generated.
    pub async fn speak(&self, request: JsValue, on_sound: Function) -> JsResult<JsValue> {
        let speak = async {
            let abort = abort_flag(&request);
            let request = from_js::<SpeakRequest>("request", request)?.checked()?;
            let mut taken = self.acquire_model(Task::Speak)?;
            let Some(TaskModel::Speak(model)) = &mut taken.model else {
                return Err(wrong_task());
            };

            model
                .speak(&request, &abort, |samples: &[f32]| {
                    let _ = on_sound.call1(&JsValue::NULL, &Float32Array::from(samples));
                })
                .await
        };
        speak
            .await
            .map(|spoken| to_plain_js(&spoken))
            .map_err(|e| to_js(&e))
    }

    /// Benchmarks transcription: milliseconds to encode one window, and per decoded token.
    #[wasm_bindgen(js_name = measureAsr)]
    pub async fn measure_asr(&self, samples: Vec<f32>, tokens: usize) -> JsResult<JsValue> {
        let measure = async {
            let mut taken = self.acquire_model(Task::Transcribe)?;
            let Some(TaskModel::Transcribe(model)) = &mut taken.model else {
                return Err(wrong_task());
            };
            model.measure(&samples, tokens).await
        };
        let timed = measure.await.map_err(|e: Error| to_js(&e))?;
        Ok(to_plain_js(
            &json!({ "encodeMs": timed.encode_ms, "tokenMs": timed.token_ms }),
        ))
    }
}
