//! HTTP through fetch.

use js_sys::{Object, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortController, ReadableStreamDefaultReader};

use super::super::chunk::Chunk;
use super::super::transport::{
    HttpHeaders, HttpMethod, HttpRequest, HttpResponse, ResponseBody, Transport, TransportError,
};
use super::{exception_message, get_property};
use crate::util::host;

/// HTTP through fetch. The browser follows redirects and drops the token when one leads to another
/// origin.
#[derive(Clone, Copy, Debug, Default)]
pub struct BrowserTransport {}

/// Aborts its request when dropped.
#[derive(Debug)]
struct AbortOnDrop(AbortController);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A response body, read through its stream.
#[derive(Debug)]
pub struct BrowserBody {
    /// `None` if the response has no body.
    reader: Option<ReadableStreamDefaultReader>,
    _cancel: AbortOnDrop,
}

impl Transport for BrowserTransport {
    type Body = BrowserBody;

    async fn send(
        &self,
        request: HttpRequest,
    ) -> Result<HttpResponse<BrowserBody>, TransportError> {
        let failure = |error: JsValue| TransportError(exception_message(&error));
        let cancel = AbortOnDrop(AbortController::new().map_err(failure)?);
        let headers = Object::new();
        let set = |object: &Object, name: &str, value: &JsValue| {
            Reflect::set(object, &name.into(), value)
                .map(|_| ())
                .map_err(|error| TransportError(exception_message(&error)))
        };
        if let Some(range) = &request.range {
            set(&headers, "range", &range.into())?;
        }
        if let Some(token) = &request.token {
            set(&headers, "authorization", &format!("Bearer {token}").into())?;
        }
        let init = Object::new();
        set(
            &init,
            "method",
            &if request.method == HttpMethod::Head {
                "HEAD"
            } else {
                "GET"
            }
            .into(),
        )?;
        set(&init, "headers", &headers)?;
        // Files are stored by `CacheStore`; a second copy in the HTTP cache would waste its space.
        set(&init, "cache", &"no-store".into())?;
        set(&init, "signal", &cancel.0.signal())?;
        let response = JsFuture::from(host::request(&request.url, &init))
            .await
            .map_err(|error| fetch_failure(&error))?;
        let response: web_sys::Response = response.dyn_into().map_err(failure)?;
        let visible = response.headers();
        let headers = HttpHeaders {
            filtered: get_property(&response, "type") != Some("basic".into()),
            ..HttpHeaders::read(|name| visible.get(name).ok().flatten())
        };
        let reader = match response.body() {
            Some(stream) => Some(ReadableStreamDefaultReader::new(&stream).map_err(failure)?),
            None => None,
        };
        Ok(HttpResponse {
            status: response.status(),
            headers,
            body: BrowserBody {
                reader,
                _cancel: cancel,
            },
        })
    }
}

/// Describes a failed fetch.
fn fetch_failure(error: &JsValue) -> TransportError {
    TransportError(match host::member("onLine").as_bool() {
        Some(false) => "this device is offline".to_string(),
        _ => {
            let reason = host::member("fetchFailure").as_string().unwrap_or_default();
            format!("{}: {reason}", exception_message(error))
        }
    })
}

impl ResponseBody for BrowserBody {
    async fn next(&mut self) -> Result<Option<Chunk>, TransportError> {
        let Some(reader) = &self.reader else {
            return Ok(None);
        };
        let result = JsFuture::from(reader.read())
            .await
            .map_err(|error| TransportError(exception_message(&error)))?;
        if get_property(&result, "done").is_some_and(|done| done.is_truthy()) {
            return Ok(None);
        }
        let value =
            get_property(&result, "value").and_then(|value| value.dyn_into::<Uint8Array>().ok());
        value
            .map(|bytes| Some(Chunk::from_js(bytes)))
            .ok_or_else(|| TransportError("the response stream returned no bytes".to_string()))
    }
}
