//! A logits processor that JavaScript supplies.

use crate::sample::LogitsProcessor;
use crate::{Error, Result};
use futures_util::future::LocalBoxFuture;
use js_sys::{Float32Array, Function, Promise, Uint32Array};
use std::ops::ControlFlow::{self, Break, Continue};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

/// Calls `processLogits(logits, ids)` before each token: with a copy of the `[vocabulary]` logits
/// and the ids of the answer so far. It returns, or resolves to, the logits to use as a
/// `Float32Array`, `false` to end the answer, or `undefined` to change nothing.
pub(super) struct JsLogitsProcessor(pub Function);

impl JsLogitsProcessor {
    async fn call(&self, logits: &mut Vec<f32>, tokens: &[u32]) -> Result<ControlFlow<()>> {
        let given = Float32Array::from(&logits[..]);
        let called = self
            .0
            .call2(&JsValue::NULL, &given, &Uint32Array::from(tokens));
        let answer = match called {
            Ok(answer) => JsFuture::from(Promise::resolve(&answer)).await,
            Err(thrown) => Err(thrown),
        };
        let answer = answer.map_err(|thrown| {
            let error = thrown.dyn_ref::<js_sys::Error>();
            Error::Request {
                parameter: "logitsProcessor".into(),
                reason: error.map_or_else(|| format!("{thrown:?}"), |e| e.message().into()),
            }
        })?;
        if answer.as_bool() == Some(false) {
            return Ok(Break(()));
        }
        if let Some(changed) = answer.dyn_ref::<Float32Array>() {
            *logits = changed.to_vec();
        }
        Ok(Continue(()))
    }
}

impl LogitsProcessor for JsLogitsProcessor {
    fn process<'a>(
        &'a mut self,
        logits: &'a mut Vec<f32>,
        tokens: &'a [u32],
    ) -> LocalBoxFuture<'a, Result<ControlFlow<()>>> {
        Box::pin(self.call(logits, tokens))
    }
}
