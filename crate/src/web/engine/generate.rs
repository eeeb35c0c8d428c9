//! Text generation, single steps and logits.

use super::Engine;
use crate::hub::AbortFlag;
use crate::sample::{LogitsProcessor, TokenConstraint};
use crate::task::{ChatPool, GenerateRequest, GenerationHooks, TokenEvent};
use crate::util::clock;
use crate::web::JsResult;
use crate::web::constraint::JsConstraint;
use crate::web::logits_processor::JsLogitsProcessor;
use crate::web::options::abort_flag;
use crate::web::values::{from_js, to_js, to_plain_js};
use js_sys::{Float32Array, Function};
use std::rc::{Rc, Weak};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;

/// Milliseconds without a request after which the model warms up.
const IDLE_WARM_UP_MS: f64 = 1000.0;

#[wasm_bindgen]
impl Engine {
    /// Generates text. `on_event` receives `{ text, ids, parts?, logprobs? }` for each batch of
    /// tokens. `seed` applies if the request has none. `next_mask(token, next)` limits the tokens: it
    /// returns the allowed ones as bits of a `Uint32Array`, or `{ forced: Uint32Array }` if only one
    /// continuation is left; see web/constraint.rs.
    /// `process_logits(logits, ids)` may change the logits of each token; see
    /// web/logits_processor.rs.
    pub async fn generate(
        &self,
        request: JsValue,
        on_event: Function,
        seed: Option<f64>,
        next_mask: Option<Function>,
        process_logits: Option<Function>,
    ) -> JsResult<JsValue> {
        let abort = abort_flag(&request);
        let mut constraint = next_mask.map(JsConstraint::new);
        let mut processor = process_logits.map(JsLogitsProcessor);
        let parsed =
            from_js::<GenerateRequest>("request", request).and_then(GenerateRequest::checked);
        let mut parsed = parsed.map_err(|e| to_js(&e))?;
        parsed.fallback_seed = seed.map(|s| s as u64);
        let hooks = GenerationHooks {
            constraint: constraint
                .as_mut()
                .map(|constraint| constraint as &mut dyn TokenConstraint),
            processor: processor
                .as_mut()
                .map(|processor| processor as &mut dyn LogitsProcessor),
        };
        let generate = async {
            let mut lease = self.lease_chat(Some(&parsed), &abort).await?;
            let on_event = |event: &TokenEvent| {
                let _ = on_event.call1(&JsValue::NULL, &to_plain_js(event));
            };
            let chat = lease.chat()?;
            chat.generate_with(&parsed, hooks, &abort, on_event).await
        };
        let outcome = generate.await;
        if let Some(chats) = &self.chats {
            spawn_local(warm_up_when_idle(Rc::downgrade(chats)));
        }
        outcome
            .map(|o| to_plain_js(&o))
            .map_err(|e| self.model_error(&e))
    }

    /// Makes `ids` the conversation and returns the logits after the last one; tokens that the
    /// conversation begins with are not run again. `options` may have a `signal`.
    pub async fn prefill(&self, ids: Vec<u32>, options: JsValue) -> JsResult<Float32Array> {
        let abort = abort_flag(&options);
        let prefill = async {
            let mut lease = self.lease_chat(None, &abort).await?;
            lease.chat()?.prefill(&ids, &abort).await
        };
        let logits = prefill.await;
        logits
            .map(|values| Float32Array::from(&values[..]))
            .map_err(|e| self.model_error(&e))
    }

    /// Logits of the last token, or of all tokens: for tests and tools.
    pub async fn logits(&self, ids: Vec<u32>, all: bool) -> JsResult<Float32Array> {
        let logits = async {
            let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
            lease.chat()?.logits(&ids, all).await
        };
        let result = logits.await;
        result
            .map(|values| Float32Array::from(&values[..]))
            .map_err(|e| to_js(&e))
    }
}

/// Warms the model up once it has been idle, if it still exists.
async fn warm_up_when_idle(chats: Weak<ChatPool>) {
    clock::sleep(IDLE_WARM_UP_MS).await;
    if let Some(chats) = chats.upgrade() {
        chats.warm_up();
    }
}
