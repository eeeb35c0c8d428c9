//! Reads one file of a server by ranges: retries, resumes at the byte where the connection broke,
//! and detects changes. Does not depend on repositories or the cache.

use std::cell::Cell;
use std::rc::Rc;

use super::abort::AbortFlag;
use super::chunk::{Chunk, ChunkBuffer};
use super::progress::{MIN_PROMPT_BYTES, Progress};
use super::retry::{RetryPolicy, is_transient};
use super::transport::{
    HttpHeaders, HttpMethod, HttpRequest, HttpResponse, ResponseBody, Transport,
};
use crate::Error;
use crate::util::clock;

/// Maximum file size accepted from a server; larger claims could overflow sums.
const MAX_FILE_BYTES: u64 = 1 << 50;

/// Why a web page counts as a missing file.
pub(crate) const PAGE_ANSWER: &str = "the server returned a web page instead of the file";
/// The Hub's error code for a repository that lacks a file.
pub(crate) const NO_ENTRY_CODE: &str = "EntryNotFound";

/// Identifies one content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileValidator {
    pub size: u64,
    /// ETag or `Last-Modified` date; `None` if the server exposes neither.
    pub validator: Option<String>,
}

impl FileValidator {
    /// Whether an answer with these properties has the same content, as far as both sides know.
    fn matches(&self, size: Option<u64>, validator: Option<&str>) -> bool {
        size.is_none_or(|s| s == self.size)
            && match (validator, self.validator.as_deref()) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            }
    }
}

/// Why a read failed.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// The file on the server is no longer the one whose read was started.
    Changed,
    /// Any other failure.
    Failed(Error),
}

impl From<Error> for ReadFault {
    fn from(error: Error) -> ReadFault {
        ReadFault::Failed(error)
    }
}

/// Metadata from the answer to HEAD.
#[derive(Debug, Clone)]
pub(crate) struct HeadReply {
    pub size: Option<u64>,
    pub validator: Option<String>,
    pub commit: Option<String>,
}

/// An answer, or the connection's error message.
type HttpResult<T> = Result<HttpResponse<<T as Transport>::Body>, String>;

/// A server and the state that its requests share.
pub(crate) struct RemoteServer<T: Transport> {
    pub transport: T,
    pub token: Option<String>,
    pub retry: RetryPolicy,
    pub abort: AbortFlag,
    pub progress: Progress,
    /// Earliest time of the next request: a 429 delays all streams, not only its own.
    pub earliest_request_ms: Cell<f64>,
    /// Set by a 429: the server does not accept parallel streams.
    pub throttled: Cell<bool>,
    /// Set by the first answer, whatever its status.
    pub reached: Cell<bool>,
}

impl<T: Transport> RemoteServer<T> {
    fn network(&self, url: &str, reason: impl Into<String>) -> Error {
        let url = url.to_string();
        let reason = reason.into();

        if self.reached.get() {
            Error::Network { url, reason }
        } else {
            Error::Unreachable { url, reason }
        }
    }

    /// Maximum number of failures in a row. Lower for a server that never answered, since it is
    /// unlikely to start.
    fn max_attempts(&self) -> u32 {
        let RetryPolicy {
            attempts,
            first_attempts,
            ..
        } = self.retry;
        if self.reached.get() {
            attempts
        } else {
            attempts.min(first_attempts)
        }
    }

    /// Waits before the next request; the progress says why.
    async fn pause(&self, url: &str, ms: f64, reason: &str) -> Result<(), Error> {
        let seconds = (ms / 1000.0).ceil();
        self.progress
            .wait_for(Some(format!("{reason}; retrying in {seconds} s")));
        let slept = self
            .abort
            .guard(&format!("downloading {url}"), clock::sleep(ms))
            .await;
        self.progress.wait_for(None);
        slept
    }

    /// Sends one request without retries. The caller handles error statuses.
    async fn send_once(
        &self,
        method: HttpMethod,
        url: &str,
        range: &str,
        limit_ms: f64,
    ) -> Result<HttpResult<T>, Error> {
        let wait = self.earliest_request_ms.get() - clock::now_ms();
        if wait > 0.0 {
            self.pause(url, wait, "the server accepts no requests (HTTP 429)")
                .await?;
        }
        let request = HttpRequest {
            method,
            url: url.to_string(),
            range: Some(range.to_string()),
            token: self.token.clone(),
        };
        let sent = clock::timeout(limit_ms, self.transport.send(request));
        self.progress.begin_wait();
        let answer = self.abort.guard(&format!("downloading {url}"), sent).await;
        // Headers alone are progress.
        self.progress.end_wait(MIN_PROMPT_BYTES);
        Ok(match answer? {
            Some(answer) => {
                self.reached.set(self.reached.get() || answer.is_ok());
                answer.map_err(|failure| failure.0)
            }
            None => Err(format!("no response within {} s", limit_ms / 1000.0)),
        })
    }

    /// The pause before retrying a refused answer, or the error that ends the retries. A successful
    /// status is refused when the body is a web page.
    fn retry_pause(
        &self,
        url: &str,
        status: u16,
        headers: &HttpHeaders,
        failures: u32,
    ) -> Result<f64, Error> {
        // For missing repositories the Hub answers 401 to clients without access; the error code
        // tells the cases apart.
        let missing = headers
            .error_code
            .as_deref()
            .is_some_and(|code| code.ends_with("NotFound"));
        match status {
            200 | 206 => {
                let answer = PAGE_ANSWER.to_string();
                Err(Error::NotFound {
                    url: url.to_string(),
                    answer,
                })
            }
            404 | 410 | 401 | 403 if missing || matches!(status, 404 | 410) => {
                let code = headers.error_code.as_deref();
                Err(Error::NotFound {
                    url: url.to_string(),
                    answer: code.map_or_else(
                        || format!("HTTP {status}"),
                        |code| format!("HTTP {status}, {code}"),
                    ),
                })
            }
            401 | 403 => Err(Error::Gated {
                url: url.to_string(),
                status,
            }),
            status if is_transient(status) => {
                let asked = headers
                    .retry_after
                    .as_deref()
                    .and_then(RetryPolicy::retry_after);
                if let Some(wait) = asked.filter(|wait| *wait > self.retry.max_retry_after_ms) {
                    let seconds = wait / 1000.0;
                    return Err(self.network(
                        url,
                        format!("HTTP {status}, the server asks to retry after {seconds:.0} s"),
                    ));
                }
                let pause = asked.unwrap_or(0.0).max(self.retry.pause(failures));
                if status == 429 {
                    self.throttled.set(true);
                    self.earliest_request_ms
                        .set(self.earliest_request_ms.get().max(clock::now_ms() + pause));
                }
                Ok(pause)
            }
            status => Err(self.network(url, format!("HTTP {status}"))),
        }
    }

    /// Requests size and validator of a file without its body. `patient` retries; otherwise the
    /// first failure is final.
    pub async fn head(&self, url: &str, patient: bool) -> Result<HeadReply, Error> {
        let limit_ms = if patient {
            self.retry.stall_ms
        } else {
            self.retry.stall_ms.min(8000.0)
        };
        let mut failures = 0;
        let mut method = HttpMethod::Head;
        loop {
            // The range header keeps the browser from asking for a compressed body, whose length is
            // of no use. Where HEAD is not allowed (signed URLs are signed for GET), the first byte
            // gives the same information.
            let range = if method == HttpMethod::Head {
                "bytes=0-"
            } else {
                "bytes=0-0"
            };
            failures += 1;
            let (reason, pause) = match self.send_once(method, url, range, limit_ms).await? {
                Ok(HttpResponse {
                    status: 200 | 206,
                    headers,
                    ..
                }) if !headers.is_page() => {
                    let total = headers.content_range().total;
                    let size = total
                        .or_else(|| headers.body_length().filter(|_| method == HttpMethod::Head));
                    return Ok(HeadReply {
                        size,
                        validator: headers.validator(),
                        commit: headers.commit,
                    });
                }
                Ok(HttpResponse {
                    status: 416,
                    headers,
                    ..
                }) => {
                    return Ok(HeadReply {
                        size: Some(0),
                        validator: headers.validator(),
                        commit: headers.commit,
                    });
                }
                Ok(HttpResponse {
                    status: 400 | 403 | 405 | 501,
                    ..
                }) if method == HttpMethod::Head => {
                    method = HttpMethod::Get;
                    failures -= 1;
                    continue;
                }
                Ok(answer) => {
                    let pause = self.retry_pause(url, answer.status, &answer.headers, failures)?;
                    (format!("HTTP {}", answer.status), pause)
                }
                Err(reason) => (reason, self.retry.pause(failures)),
            };
            if failures >= if patient { self.max_attempts() } else { 1 } {
                return Err(self.network(url, reason));
            }
            self.pause(url, pause, &reason).await?;
        }
    }
}

/// Bytes received, and the milliseconds spent waiting for them.
#[derive(Debug, Clone, Copy, Default)]
struct ReceiveRate {
    bytes: u64,
    wait_ms: f64,
}

/// Reads one range of a file in order; resumes a broken connection at the byte where it broke.
pub(crate) struct RangeReader<T: Transport> {
    remote: Rc<RemoteServer<T>>,
    url: String,
    /// Offset of the next byte to return.
    pub pos: u64,
    /// Offset after the last byte; `None` until the file's length is known.
    end: Option<u64>,
    /// The expected content; set by the first answer if the caller does not know it.
    pub identity: Option<FileValidator>,
    /// The validator of the first answer, even if that had no size.
    pub validator: Option<String>,
    /// The commit named by the last answer.
    pub commit: Option<String>,
    /// False if the server answers a range with the whole file.
    pub supports_ranges: bool,
    body: Option<T::Body>,
    /// Received bytes that were not returned yet.
    unread: Option<Chunk>,
    /// Bytes of the current body to skip until `pos`.
    skip: u64,
    /// Whether the last answer named the bytes that it holds.
    pub range_confirmed: bool,
    /// Bytes left of a partial answer without Content-Length.
    unread_of_range: Option<u64>,
    /// What arrived since the last check of the rate.
    rate: ReceiveRate,
    failures: u32,
    total_failures: u32,
}

impl<T: Transport> RangeReader<T> {
    pub fn new(
        remote: Rc<RemoteServer<T>>,
        url: String,
        start: u64,
        end: Option<u64>,
        identity: Option<FileValidator>,
    ) -> Self {
        let validator = identity.as_ref().and_then(|i| i.validator.clone());
        RangeReader {
            remote,
            url,
            pos: start,
            end,
            identity,
            validator,
            commit: None,
            supports_ranges: true,
            body: None,
            unread: None,
            skip: 0,
            range_confirmed: true,
            unread_of_range: None,
            rate: ReceiveRate::default(),
            failures: 0,
            total_failures: 0,
        }
    }

    /// The file's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the range is fully read.
    pub fn is_done(&self) -> bool {
        self.end == Some(self.pos)
    }

    /// Whether the reader serves this content of the file, as far as both sides know.
    pub fn matches_content(&self, content: &FileValidator) -> bool {
        self.identity
            .as_ref()
            .is_none_or(|own| own.matches(Some(content.size), content.validator.as_deref()))
    }

    /// Reads to the end of a file of unknown length. Needs a server that ignores ranges.
    pub fn clear_end(&mut self) {
        self.end = None;
    }

    /// Moves the end of the range to `end`. A new request follows once the current body is used up.
    pub fn extend_to(&mut self, end: u64) {
        if self.supports_ranges && self.end != Some(end) && self.unread.is_none() {
            self.body = None;
        }
        self.end = Some(end);
    }

    async fn fail(&mut self, reason: String, pause: Option<f64>) -> Result<(), ReadFault> {
        self.body = None;
        self.failures += 1;
        self.total_failures += 1;
        let retry = &self.remote.retry;
        if self.failures >= self.remote.max_attempts()
            || self.total_failures >= retry.total_attempts
        {
            let times = self.failures.max(self.total_failures);
            return Err(ReadFault::Failed(
                self.remote
                    .network(&self.url, format!("{reason} ({times} attempts)")),
            ));
        }
        let pause = pause.unwrap_or_else(|| retry.pause(self.failures));
        Ok(self.remote.pause(&self.url, pause, &reason).await?)
    }

    /// Opens a body at `pos`, unless the range is fully read. Returns once the headers have
    /// arrived.
    pub async fn open(&mut self) -> Result<(), ReadFault> {
        while self.body.is_none() && !self.is_done() {
            let range = match self.end {
                Some(end) => format!("bytes={}-{}", self.pos, end.saturating_sub(1)),
                None => format!("bytes={}-", self.pos),
            };
            match self
                .remote
                .send_once(
                    HttpMethod::Get,
                    &self.url,
                    &range,
                    self.remote.retry.stall_ms,
                )
                .await?
            {
                Ok(response)
                    if matches!(response.status, 200 | 206) && !response.headers.is_page() =>
                {
                    self.accept(response)?;
                }
                Ok(HttpResponse {
                    status: 416,
                    headers,
                    ..
                }) => self.handle_416(&headers)?,
                Ok(response) => {
                    let next = self.failures + 1;
                    let pause = self.remote.retry_pause(
                        &self.url,
                        response.status,
                        &response.headers,
                        next,
                    )?;
                    self.fail(format!("HTTP {}", response.status), Some(pause))
                        .await?;
                }
                Err(reason) => self.fail(reason, None).await?,
            }
        }
        Ok(())
    }

    /// Checks that an answer has the requested file and offset.
    fn accept(&mut self, response: HttpResponse<T::Body>) -> Result<(), ReadFault> {
        let headers = response.headers;
        let partial = response.status == 206;
        if partial {
            self.check_range(&headers)?;
        }
        let total = headers.content_range().total;
        let size = if partial {
            // A page may not see Content-Range. An open range, or one answered short, still ends at
            // the file's end.
            let reached = headers.body_length().map(|length| self.pos + length);
            total.or(reached.filter(|reached| self.end.is_none_or(|end| *reached < end)))
        } else {
            headers.body_length()
        };
        if let Some(size) = size.filter(|size| *size > MAX_FILE_BYTES) {
            return Err(ReadFault::Failed(
                self.remote
                    .network(&self.url, format!("the server claims {size} bytes")),
            ));
        }
        let validator = headers.validator();
        if let (Some(new), Some(old)) = (&validator, &self.validator)
            && new != old
        {
            return Err(ReadFault::Changed);
        }
        match (&self.identity, size) {
            (Some(identity), _) if !identity.matches(size, validator.as_deref()) => {
                return Err(ReadFault::Changed);
            }
            (None, Some(size)) => {
                self.identity = Some(FileValidator {
                    size,
                    validator: self.validator.clone().or(validator.clone()),
                });
                self.end = Some(self.end.map_or(size, |end| end.min(size)));
            }
            _ => {}
        }
        self.validator = self.validator.take().or(validator);
        self.commit = headers.commit.clone().or(self.commit.take());
        self.supports_ranges = partial;
        self.skip = if partial { 0 } else { self.pos };
        self.range_confirmed = !partial || headers.content_range().bounds.is_some();
        // With a Content-Length, the connection itself bounds the body.
        self.unread_of_range = if partial && headers.content_length.is_none() {
            let bounds = headers.content_range().bounds;
            let end = bounds.map(|(_, last)| last + 1).or(self.end);
            end.map(|end| end.saturating_sub(self.pos))
        } else {
            None
        };
        self.body = Some(response.body);
        Ok(())
    }

    /// Compares the headers of a 206 with the requested range. Bytes of another range must never
    /// reach the cache.
    fn check_range(&self, headers: &HttpHeaders) -> Result<(), ReadFault> {
        let refuse = |reason: String| Err(self.range_error(&reason));
        if let Some(encoding) = headers.encoding() {
            return refuse(format!(
                "the server compresses byte ranges (Content-Encoding: {encoding})"
            ));
        }
        let length = headers
            .content_length
            .as_deref()
            .and_then(|length| length.trim().parse::<u64>().ok());
        let range = headers.content_range();
        let Some((first, last)) = range.bounds else {
            if !headers.filtered {
                return refuse("the server answered 206 without a valid Content-Range".to_string());
            }
            let asked = self.end.map(|end| end - self.pos);
            return match (length, asked) {
                (Some(length), Some(asked)) if length > asked => refuse(format!(
                    "requested {asked} bytes, but the server sent {length}"
                )),
                _ => Ok(()),
            };
        };
        if first != self.pos {
            return refuse(format!(
                "requested byte {}, but the server sent from byte {first}",
                self.pos
            ));
        }
        if let Some(total) = range.total.filter(|total| last >= *total) {
            return refuse(format!(
                "the server sent byte {last} of a file of {total} bytes"
            ));
        }
        match length {
            Some(length) if length != last - first + 1 => refuse(format!(
                "the server announced bytes {first}-{last}, but sent {length} bytes"
            )),
            _ => Ok(()),
        }
    }

    /// The error for a server whose answers to range requests are wrong.
    pub fn range_error(&self, reason: &str) -> ReadFault {
        let advice = "Configure the server, or the proxy before it, to serve the model's files uncompressed and to answer range requests exactly";
        ReadFault::Failed(
            self.remote
                .network(&self.url, format!("{reason}. {advice}")),
        )
    }

    /// Refuses a server that sends, but so slowly that the download would take days.
    fn check_rate(&mut self, received: u64) -> Result<(), ReadFault> {
        self.rate.bytes += received;
        let ReceiveRate { bytes, wait_ms } = self.rate;
        let retry = &self.remote.retry;
        if wait_ms < retry.stall_ms {
            return Ok(());
        }
        self.rate = ReceiveRate::default();
        let seconds = wait_ms / 1000.0;
        if bytes as f64 >= retry.min_bytes_per_second * seconds {
            return Ok(());
        }
        let reason = format!(
            "the server sent {bytes} bytes in {seconds:.0} s, fewer than {} bytes a second",
            retry.min_bytes_per_second
        );
        Err(ReadFault::Failed(self.remote.network(&self.url, reason)))
    }

    /// Counts the bytes of a 206 without Content-Length, and refuses bytes beyond its range.
    async fn check_overrun(&mut self, received: u64) -> Result<(), ReadFault> {
        let Some(left) = self.unread_of_range else {
            return Ok(());
        };
        let mut excess = received.saturating_sub(left);
        self.unread_of_range = Some(left.saturating_sub(received));
        if received == left
            && let Some(body) = self.body.as_mut()
        {
            let next = clock::timeout(self.remote.retry.stall_ms, body.next());
            let what = format!("downloading {}", self.url);
            if let Some(Ok(Some(chunk))) = self.remote.abort.guard(&what, next).await? {
                excess = chunk.len() as u64;
            }
        }
        if excess == 0 {
            return Ok(());
        }
        Err(self.range_error("the server sent more bytes than its Content-Range announces"))
    }

    /// Handles 416: correct for an empty file and at the file's end, otherwise the file changed.
    fn handle_416(&mut self, headers: &HttpHeaders) -> Result<(), ReadFault> {
        let size = headers.content_range().total.unwrap_or(0);
        if self.identity.as_ref().is_some_and(|i| i.size != size) || self.pos > size {
            return Err(ReadFault::Changed);
        }
        self.validator = self.validator.take().or(headers.validator());
        self.identity = Some(FileValidator {
            size,
            validator: self.validator.clone(),
        });
        self.commit = headers.commit.clone().or(self.commit.take());
        self.end = Some(self.pos);
        Ok(())
    }

    /// Returns the next bytes at `pos`, at most `max`; `None` at the end of the range.
    pub async fn next(&mut self, max: usize) -> Result<Option<Chunk>, ReadFault> {
        loop {
            if let Some(rest) = self.unread.take() {
                return Ok(Some(self.take_at_most(rest, max)));
            }
            self.open().await?;
            if self.is_done() {
                self.body = None;
                return Ok(None);
            }
            let Some(body) = self.body.as_mut() else {
                return Ok(None);
            };
            let stall = self.remote.retry.stall_ms;
            let read = clock::timeout(stall, body.next());
            let progress = self.remote.progress.clone();
            let begin_ms = clock::now_ms();
            progress.begin_wait();
            let what = format!("downloading {}", self.url);
            let read = self.remote.abort.guard(&what, read).await;
            self.rate.wait_ms += clock::now_ms() - begin_ms;
            progress.end_wait(match &read {
                Ok(Some(Ok(Some(chunk)))) => chunk.len() as u64,
                _ => MIN_PROMPT_BYTES,
            });
            let read = read?;
            match read {
                None => {
                    self.fail(format!("no data received for {} s", stall / 1000.0), None)
                        .await?;
                }
                Some(Err(failure)) => self.fail(failure.0, None).await?,
                Some(Ok(None)) => self.handle_body_end().await?,
                Some(Ok(Some(chunk))) => {
                    self.check_overrun(chunk.len() as u64).await?;
                    self.check_rate(chunk.len() as u64)?;
                    if let Some(chunk) = self.trim(&chunk) {
                        self.failures = 0;
                        return Ok(Some(self.take_at_most(chunk, max)));
                    }
                }
            }
        }
    }

    /// Handles the end of the body: premature, unless the file's length was never known.
    async fn handle_body_end(&mut self) -> Result<(), ReadFault> {
        match (self.end, &self.identity) {
            (Some(end), Some(_)) => {
                let missing = end - self.pos;
                self.fail(format!("the response ended {missing} bytes early"), None)
                    .await
            }
            _ => {
                self.identity = Some(FileValidator {
                    size: self.pos,
                    validator: self.validator.clone(),
                });
                self.end = Some(self.pos);
                Ok(())
            }
        }
    }

    /// Removes bytes before `pos` (of a body that starts at the file's start) and after the end.
    fn trim(&mut self, chunk: &Chunk) -> Option<Chunk> {
        let length = chunk.len() as u64;
        if self.skip >= length {
            self.skip -= length;
            return None;
        }
        let from = std::mem::take(&mut self.skip);
        // Without ranges, bytes after this range's end may be requested next.
        let end = self
            .end
            .filter(|_| self.supports_ranges)
            .or(self.identity.as_ref().map(|i| i.size));
        let room = end.map_or(length - from, |end| (end - self.pos).min(length - from));
        (room > 0).then(|| chunk.slice(from as usize..(from + room) as usize))
    }

    fn take_at_most(&mut self, chunk: Chunk, max: usize) -> Chunk {
        // Compare as u64: the rest of a file may not fit into a 32-bit usize.
        let max = self
            .end
            .map_or(max, |end| (end - self.pos).min(max as u64) as usize);
        let chunk = if chunk.len() > max {
            self.unread = Some(chunk.slice(max..chunk.len()));
            chunk.slice(0..max)
        } else {
            chunk
        };
        self.pos += chunk.len() as u64;
        chunk
    }

    /// Reads until the buffer is full or the range ends; calls `count` with the bytes as they
    /// arrive.
    pub async fn fill(
        &mut self,
        buffer: &mut ChunkBuffer,
        count: &dyn Fn(u64),
    ) -> Result<(), ReadFault> {
        while buffer.missing() > 0 && !self.is_done() {
            let Some(chunk) = self.next(buffer.missing()).await? else {
                break;
            };
            count(chunk.len() as u64);
            buffer.push(&chunk);
        }
        Ok(())
    }
}
