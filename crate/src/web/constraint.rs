//! A token constraint that JavaScript supplies, such as a grammar in another WebAssembly module.

use super::values::property;
use crate::sample::TokenConstraint;
use crate::{Error, Result};
use js_sys::{Function, Uint32Array};
use std::collections::VecDeque;
use wasm_bindgen::prelude::*;

/// What may come next.
enum Allowed {
    /// The tokens with a bit.
    Mask(Uint32Array),
    /// These tokens, in order.
    Forced(VecDeque<u32>),
}

/// Calls `nextMask(token, next)`: with the sampled token, or `undefined` at the start, after forced
/// tokens and after `true`. It returns a `Uint32Array` with a bit per token (token `i` is bit `i % 32`
/// of word `i / 32`; missing words allow nothing), or `{ forced: Uint32Array }` with the only
/// tokens that may follow, which it counts as accepted. With `next` it may return `true`: nothing is
/// forced, and this token may follow.
pub(super) struct JsConstraint {
    next_mask: Function,
    token: JsValue,
    allowed: Option<Allowed>,
}

impl JsConstraint {
    pub(super) fn new(next_mask: Function) -> Self {
        Self {
            next_mask,
            token: JsValue::UNDEFINED,
            allowed: None,
        }
    }

    fn allowed(&mut self) -> Result<&mut Allowed> {
        if self.allowed.is_none() {
            let answer = self.ask(&JsValue::UNDEFINED)?;
            self.allowed = Some(allowed_by(&answer)?);
        }
        let missing = || Error::Internal("the constraint has no answer".into());
        self.allowed.as_mut().ok_or_else(missing)
    }

    fn ask(&mut self, next: &JsValue) -> Result<JsValue> {
        let token = std::mem::replace(&mut self.token, JsValue::UNDEFINED);
        let answer = self.next_mask.call2(&JsValue::NULL, &token, next);
        answer.map_err(|thrown| {
            let error = thrown.dyn_ref::<js_sys::Error>();
            refuse(error.map_or_else(|| format!("{thrown:?}"), |e| e.message().into()))
        })
    }
}

fn allowed_by(answer: &JsValue) -> Result<Allowed> {
    if let Some(mask) = answer.dyn_ref::<Uint32Array>() {
        return Ok(Allowed::Mask(mask.clone()));
    }
    match property(answer, "forced").dyn_into::<Uint32Array>() {
        Ok(tokens) if tokens.length() > 0 => Ok(Allowed::Forced(tokens.to_vec().into())),
        _ => Err(refuse(
            "it returned neither a Uint32Array nor { forced } with at least one token".into(),
        )),
    }
}

impl TokenConstraint for JsConstraint {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        if let Allowed::Mask(mask) = self.allowed()? {
            let count = words.len().min(mask.length() as usize);
            mask.subarray(0, count as u32).copy_to(&mut words[..count]);
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        match &mut self.allowed {
            Some(Allowed::Forced(tokens)) if tokens.len() > 1 => {
                tokens.pop_front();
            }
            Some(Allowed::Forced(_)) => self.allowed = None,
            _ => {
                self.allowed = None;
                self.token = token.into();
            }
        }
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        Ok(match self.allowed()? {
            Allowed::Mask(_) => Vec::new(),
            Allowed::Forced(tokens) => tokens.iter().copied().collect(),
        })
    }

    fn may_follow(&mut self, token: u32) -> Result<Option<bool>> {
        if self.allowed.is_none() {
            let answer = self.ask(&token.into())?;
            if answer.is_truthy() && answer.as_bool().is_some() {
                return Ok(Some(true));
            }
            self.allowed = Some(allowed_by(&answer)?);
        }
        Ok(Some(match self.allowed()? {
            Allowed::Mask(mask) => {
                token / 32 < mask.length() && mask.get_index(token / 32) >> (token % 32) & 1 == 1
            }
            Allowed::Forced(tokens) => tokens.front() == Some(&token),
        }))
    }

    fn known_forced(&self) -> usize {
        match &self.allowed {
            Some(Allowed::Forced(tokens)) => tokens.len(),
            _ => 0,
        }
    }
}

fn refuse(reason: String) -> Error {
    Error::Request {
        parameter: "nextMask".into(),
        reason,
    }
}
