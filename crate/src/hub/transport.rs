//! HTTP interface of the hub: one request, one response, a body in chunks. Implementations follow
//! redirects. Retries, resuming and caching are implemented on top, so that browser and native
//! tests share that code.

use super::Chunk;

/// HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMethod {
    /// Headers and body.
    Get,
    /// Headers only.
    Head,
}

/// An HTTP request.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// GET or HEAD.
    pub method: HttpMethod,
    /// Absolute URL.
    pub url: String,
    /// Value of the `Range` header.
    pub range: Option<String>,
    /// Sent as `Authorization: Bearer` to the URL's own origin only, never after a redirect to
    /// another one.
    pub token: Option<String>,
}

/// The response headers that the hub reads. The browser hides those that the server does not expose
/// to the page.
#[derive(Debug, Clone, Default)]
pub struct HttpHeaders {
    /// `Content-Length`.
    pub content_length: Option<String>,
    /// `Content-Range`.
    pub content_range: Option<String>,
    /// `Content-Encoding`.
    pub content_encoding: Option<String>,
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `ETag`.
    pub etag: Option<String>,
    /// `Last-Modified`.
    pub last_modified: Option<String>,
    /// `Retry-After`.
    pub retry_after: Option<String>,
    /// `X-Repo-Commit`: the commit that the Hub resolved the revision to.
    pub commit: Option<String>,
    /// `X-Error-Code`: the Hub's error, such as RepoNotFound.
    pub error_code: Option<String>,
    /// Whether the browser may hide headers from the page, as it does for other origins.
    pub filtered: bool,
}

/// A parsed `Content-Range`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContentRange {
    /// First and last byte.
    pub bounds: Option<(u64, u64)>,
    /// Length of the whole file.
    pub total: Option<u64>,
}

impl HttpHeaders {
    /// Reads the headers through `get`, which takes a lower-case name.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> HttpHeaders {
        HttpHeaders {
            content_length: get("content-length"),
            content_range: get("content-range"),
            content_encoding: get("content-encoding"),
            content_type: get("content-type"),
            etag: get("etag"),
            last_modified: get("last-modified"),
            retry_after: get("retry-after"),
            commit: get("x-repo-commit"),
            error_code: get("x-error-code"),
            filtered: false,
        }
    }

    /// The body's length; `None` if a content encoding makes it differ from the number of bytes
    /// received.
    pub fn body_length(&self) -> Option<u64> {
        if self.encoding().is_some() {
            return None;
        }
        self.content_length.as_deref()?.trim().parse().ok()
    }

    /// Whether the response is a web page instead of a model file. Servers of single-page
    /// applications return one, with status 200, for every unknown URL.
    pub fn is_page(&self) -> bool {
        let kind = self
            .content_type
            .as_deref()
            .and_then(|value| value.split(';').next())
            .map(str::trim);
        kind.is_some_and(|kind| {
            ["text/html", "application/xhtml+xml"]
                .iter()
                .any(|page| kind.eq_ignore_ascii_case(page))
        })
    }

    /// The content encoding, if the body is encoded.
    pub fn encoding(&self) -> Option<&str> {
        self.content_encoding
            .as_deref()
            .map(str::trim)
            .filter(|encoding| !encoding.is_empty() && *encoding != "identity")
    }

    /// Parses `Content-Range`: `bytes 0-99/1234`, `bytes */1234`.
    pub fn content_range(&self) -> ContentRange {
        let Some((range, total)) = self
            .content_range
            .as_deref()
            .and_then(|v| v.trim().strip_prefix("bytes "))
            .and_then(|v| v.split_once('/'))
        else {
            return ContentRange::default();
        };
        let bounds = range.split_once('-').and_then(|(first, last)| {
            let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last).then_some((first, last))
        });
        ContentRange {
            bounds,
            total: total.trim().parse().ok(),
        }
    }

    /// The value that changes with the file: the ETag, or the date of the last change.
    pub fn validator(&self) -> Option<String> {
        let etag = self.etag.as_deref().map(|e| {
            e.trim()
                .trim_start_matches("W/")
                .trim_matches('"')
                .to_string()
        });
        etag.filter(|e| !e.is_empty())
            .or_else(|| self.last_modified.clone())
    }
}

/// A response whose body is not read yet.
#[derive(Debug)]
pub struct HttpResponse<B> {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HttpHeaders,
    /// The body.
    pub body: B,
}

/// A connection failure with its message.
#[derive(Debug, Clone)]
pub struct TransportError(pub String);

/// Sends requests. Dropping a future or a body cancels its request.
#[allow(async_fn_in_trait)] // single-threaded by design: no Send bound is wanted
pub trait Transport {
    /// The body of a response.
    type Body: ResponseBody;

    /// Sends the request, follows redirects and returns once the headers have arrived.
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse<Self::Body>, TransportError>;
}

/// A body, read in chunks as they arrive.
#[allow(async_fn_in_trait)]
pub trait ResponseBody {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Chunk>, TransportError>;
}
