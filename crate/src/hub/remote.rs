//! One file of a server, read by ranges: retried, resumed from the byte where it broke, and noticed when it changes.
//! Knows neither repositories nor the cache.

use std::cell::Cell;
use std::rc::Rc;

use super::abort::AbortFlag;
use super::chunk::{Chunk, ChunkBuffer};
use super::progress::Progress;
use super::retry::{RetryPolicy, is_transient};
use super::transport::{Body, Headers, Method, Request, Response, Transport};
use crate::Error;
use crate::util::clock;

/// No file is larger; a server that says so would make sums overflow.
const MAX_SIZE: u64 = 1 << 50;

/// What tells one content of a file from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub size: u64,
    /// ETag or date; `None` where the server shows neither.
    pub validator: Option<String>,
}

impl Identity {
    /// Whether an answer with these properties is of the same content, as far as both sides know.
    fn agrees(&self, size: Option<u64>, validator: Option<&str>) -> bool {
        size.is_none_or(|s| s == self.size)
            && match (validator, self.validator.as_deref()) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            }
    }
}

/// Why a read ended without its bytes.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The file on the server is not the one that was begun.
    Changed,
    /// Anything else.
    Failed(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Failed(error)
    }
}

/// What an answer to HEAD says.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub size: Option<u64>,
    pub validator: Option<String>,
    pub commit: Option<String>,
}

/// An answer, or what the connection said instead.
type Answer<T> = Result<Response<<T as Transport>::Body>, String>;

/// A server with all that its requests share.
pub(crate) struct Remote<T: Transport> {
    pub transport: T,
    pub token: Option<String>,
    pub retry: RetryPolicy,
    pub abort: AbortFlag,
    pub progress: Progress,
    /// No request before this time: a 429 slows all streams, not only its own.
    pub not_before: Cell<f64>,
    /// Set by a 429: the server does not want parallel streams.
    pub throttled: Cell<bool>,
    /// Set by the first answer, whatever it was.
    pub reached: Cell<bool>,
}

impl<T: Transport> Remote<T> {
    fn network(&self, url: &str, reason: impl Into<String>) -> Error {
        let (url, reason) = (url.to_string(), reason.into());
        if self.reached.get() { Error::Network { url, reason } } else { Error::Unreachable { url, reason } }
    }

    /// Failures in a row before giving up. A server that never answered will hardly do so: nobody waits long for it.
    fn attempts(&self) -> u32 {
        let RetryPolicy { attempts, first_attempts, .. } = self.retry;
        if self.reached.get() { attempts } else { attempts.min(first_attempts) }
    }

    async fn pause(&self, url: &str, ms: f64) -> Result<(), Error> {
        self.abort.guard(&format!("downloading {url}"), clock::sleep(ms)).await
    }

    /// One request, not repeated: status errors are for the caller.
    async fn once(&self, method: Method, url: &str, range: &str, limit_ms: f64) -> Result<Answer<T>, Error> {
        let wait = self.not_before.get() - clock::now_ms();
        if wait > 0.0 {
            self.pause(url, wait).await?;
        }
        let request =
            Request { method, url: url.to_string(), range: Some(range.to_string()), token: self.token.clone() };
        let sent = clock::timeout(limit_ms, self.transport.send(request));
        Ok(match self.abort.guard(&format!("downloading {url}"), sent).await? {
            Some(answer) => {
                self.reached.set(self.reached.get() || answer.is_ok());
                answer.map_err(|failure| failure.0)
            }
            None => Err(format!("no answer within {} s", limit_ms / 1000.0)),
        })
    }

    /// The pause that a refused answer asks for, or the error that ends it. Of the successful ones a page is refused.
    fn refusal(&self, url: &str, status: u16, headers: &Headers, failures: u32) -> Result<f64, Error> {
        // The Hub answers 401 for what does not exist, to anyone who may not know that it does; its code tells.
        let missing = headers.error_code.as_deref().is_some_and(|code| code.ends_with("NotFound"));
        match status {
            200 | 206 => {
                let answer = "the server answered with a web page instead of the file".to_string();
                Err(Error::NotFound { url: url.to_string(), answer })
            }
            404 | 410 => Err(Error::NotFound { url: url.to_string(), answer: format!("HTTP {status}") }),
            401 | 403 if missing => Err(Error::NotFound { url: url.to_string(), answer: format!("HTTP {status}") }),
            401 | 403 => Err(Error::Gated { url: url.to_string(), status }),
            status if is_transient(status) => {
                let asked = headers.retry_after.as_deref().and_then(RetryPolicy::retry_after);
                if let Some(wait) = asked.filter(|wait| *wait > self.retry.max_retry_after_ms) {
                    let seconds = wait / 1000.0;
                    return Err(self.network(url, format!("HTTP {status}, the server asks to wait {seconds:.0} s")));
                }
                let pause = asked.unwrap_or(0.0).max(self.retry.pause(failures));
                if status == 429 {
                    self.throttled.set(true);
                    self.not_before.set(self.not_before.get().max(clock::now_ms() + pause));
                }
                Ok(pause)
            }
            status => Err(self.network(url, format!("HTTP {status}"))),
        }
    }

    /// Size and validator of a file without its body. `patient` retries; otherwise the first failure ends it.
    pub async fn head(&self, url: &str, patient: bool) -> Result<Head, Error> {
        let limit_ms = if patient { self.retry.stall_ms } else { self.retry.stall_ms.min(8000.0) };
        let mut failures = 0;
        let mut method = Method::Head;
        loop {
            // The range keeps the browser from asking for a compressed body, whose length says nothing; where HEAD is not
            // allowed (signed URLs are signed for GET), the first byte tells as much.
            let range = if method == Method::Head { "bytes=0-" } else { "bytes=0-0" };
            failures += 1;
            let (reason, pause) = match self.once(method, url, range, limit_ms).await? {
                Ok(Response { status: 200 | 206, headers, .. }) if !headers.is_page() => {
                    let total = headers.content_range().1;
                    let size = total.or_else(|| headers.length().filter(|_| method == Method::Head));
                    return Ok(Head { size, validator: headers.validator(), commit: headers.commit });
                }
                Ok(Response { status: 416, headers, .. }) => {
                    return Ok(Head { size: Some(0), validator: headers.validator(), commit: headers.commit });
                }
                Ok(Response { status: 400 | 403 | 405 | 501, .. }) if method == Method::Head => {
                    method = Method::Get;
                    failures -= 1;
                    continue;
                }
                Ok(answer) => {
                    let pause = self.refusal(url, answer.status, &answer.headers, failures)?;
                    (format!("HTTP {}", answer.status), pause)
                }
                Err(reason) => (reason, self.retry.pause(failures)),
            };
            if failures >= if patient { self.attempts() } else { 1 } {
                return Err(self.network(url, reason));
            }
            self.pause(url, pause).await?;
        }
    }
}

/// Reads one range of a file in order; a broken connection is resumed where it broke.
pub(crate) struct RangeReader<T: Transport> {
    remote: Rc<Remote<T>>,
    url: String,
    /// The next byte that will be returned.
    pub pos: u64,
    /// The byte after the last; `None` until the file's length is known.
    end: Option<u64>,
    /// What the file must be; set by the first answer where the caller does not know it.
    pub identity: Option<Identity>,
    /// The validator that the first answer showed, even when it told no size.
    pub validator: Option<String>,
    /// The commit of the last answer.
    pub commit: Option<String>,
    /// False when the server answers a range with the whole file.
    pub ranges: bool,
    body: Option<T::Body>,
    /// Bytes that have come but were not yet handed out.
    rest: Option<Chunk>,
    /// Bytes of the present body before `pos`.
    skip: u64,
    failures: u32,
    total_failures: u32,
}

impl<T: Transport> RangeReader<T> {
    pub fn new(remote: Rc<Remote<T>>, url: String, start: u64, end: Option<u64>, identity: Option<Identity>) -> Self {
        let validator = identity.as_ref().and_then(|i| i.validator.clone());
        RangeReader {
            remote,
            url,
            pos: start,
            end,
            identity,
            validator,
            commit: None,
            ranges: true,
            body: None,
            rest: None,
            skip: 0,
            failures: 0,
            total_failures: 0,
        }
    }

    /// Whether nothing is left.
    pub fn is_done(&self) -> bool {
        self.end == Some(self.pos)
    }

    /// Whether it reads this content of the file, as far as both sides know.
    pub fn reads(&self, content: &Identity) -> bool {
        self.identity.as_ref().is_none_or(|own| own.agrees(Some(content.size), content.validator.as_deref()))
    }

    /// Goes on to the end of a file whose length nobody tells: only a server that ignores ranges can do that.
    pub fn unbound(&mut self) {
        self.end = None;
    }

    /// Goes on to `end`; a body that was asked for less is replaced by a new request when it is used up.
    pub fn extend(&mut self, end: u64) {
        if self.ranges && self.end != Some(end) && self.rest.is_none() {
            self.body = None;
        }
        self.end = Some(end);
    }

    async fn fail(&mut self, reason: String, pause: Option<f64>) -> Result<(), Fault> {
        self.body = None;
        self.failures += 1;
        self.total_failures += 1;
        let retry = &self.remote.retry;
        if self.failures >= self.remote.attempts() || self.total_failures >= retry.total_attempts {
            let times = self.failures.max(self.total_failures);
            return Err(Fault::Failed(self.remote.network(&self.url, format!("{reason} ({times} attempts)"))));
        }
        let pause = pause.unwrap_or_else(|| retry.pause(self.failures));
        Ok(self.remote.pause(&self.url, pause).await?)
    }

    /// Makes sure that a body is open at `pos`, or that there is nothing left. Returns when the headers have come.
    pub async fn open(&mut self) -> Result<(), Fault> {
        while self.body.is_none() && !self.is_done() {
            let range = match self.end {
                Some(end) => format!("bytes={}-{}", self.pos, end.saturating_sub(1)),
                None => format!("bytes={}-", self.pos),
            };
            match self.remote.once(Method::Get, &self.url, &range, self.remote.retry.stall_ms).await? {
                Ok(response) if matches!(response.status, 200 | 206) && !response.headers.is_page() => {
                    self.accept(response)?;
                }
                Ok(Response { status: 416, headers, .. }) => self.past_the_end(&headers)?,
                Ok(response) => {
                    let next = self.failures + 1;
                    let pause = self.remote.refusal(&self.url, response.status, &response.headers, next)?;
                    self.fail(format!("HTTP {}", response.status), Some(pause)).await?;
                }
                Err(reason) => self.fail(reason, None).await?,
            }
        }
        Ok(())
    }

    /// Checks that an answer is of the file and the place that was asked for.
    fn accept(&mut self, response: Response<T::Body>) -> Result<(), Fault> {
        let headers = response.headers;
        let (first, total) = headers.content_range();
        let partial = response.status == 206;
        if partial && first.is_some_and(|first| first != self.pos) {
            let reason = format!("asked for byte {}, the server sent from byte {}", self.pos, first.unwrap_or(0));
            return Err(Fault::Failed(self.remote.network(&self.url, reason)));
        }
        let size = if partial {
            // A page may not see Content-Range; an open range, or one that came short, still ends where the file does.
            let reached = headers.length().map(|length| self.pos + length);
            total.or(reached.filter(|reached| self.end.is_none_or(|end| *reached < end)))
        } else {
            headers.length()
        };
        if let Some(size) = size.filter(|size| *size > MAX_SIZE) {
            return Err(Fault::Failed(self.remote.network(&self.url, format!("the server claims {size} bytes"))));
        }
        let validator = headers.validator();
        if let (Some(new), Some(old)) = (&validator, &self.validator)
            && new != old
        {
            return Err(Fault::Changed);
        }
        match (&self.identity, size) {
            (Some(identity), _) if !identity.agrees(size, validator.as_deref()) => return Err(Fault::Changed),
            (None, Some(size)) => {
                self.identity = Some(Identity { size, validator: self.validator.clone().or(validator.clone()) });
                self.end = Some(self.end.map_or(size, |end| end.min(size)));
            }
            _ => {}
        }
        self.validator = self.validator.take().or(validator);
        self.commit = headers.commit.or(self.commit.take());
        self.ranges = partial;
        self.skip = if partial { 0 } else { self.pos };
        self.body = Some(response.body);
        Ok(())
    }

    /// 416: right for an empty file and at its end, a change anywhere else.
    fn past_the_end(&mut self, headers: &Headers) -> Result<(), Fault> {
        let size = headers.content_range().1.unwrap_or(0);
        if self.identity.as_ref().is_some_and(|i| i.size != size) || self.pos > size {
            return Err(Fault::Changed);
        }
        self.validator = self.validator.take().or(headers.validator());
        self.identity = Some(Identity { size, validator: self.validator.clone() });
        self.commit = headers.commit.clone().or(self.commit.take());
        self.end = Some(self.pos);
        Ok(())
    }

    /// The next bytes, at `pos`, at most `max` of them; `None` at the end of the range.
    pub async fn next(&mut self, max: usize) -> Result<Option<Chunk>, Fault> {
        loop {
            if let Some(rest) = self.rest.take() {
                return Ok(Some(self.hand_out(rest, max)));
            }
            self.open().await?;
            if self.is_done() {
                self.body = None;
                return Ok(None);
            }
            let Some(body) = self.body.as_mut() else { return Ok(None) };
            let stall = self.remote.retry.stall_ms;
            let read = clock::timeout(stall, body.next());
            let read = self.remote.abort.guard(&format!("downloading {}", self.url), read).await?;
            match read {
                None => self.fail(format!("no byte for {} s", stall / 1000.0), None).await?,
                Some(Err(failure)) => self.fail(failure.0, None).await?,
                Some(Ok(None)) => self.body_ended().await?,
                Some(Ok(Some(chunk))) => {
                    if let Some(chunk) = self.cut(&chunk) {
                        self.failures = 0;
                        return Ok(Some(self.hand_out(chunk, max)));
                    }
                }
            }
        }
    }

    /// The body is over: too early, unless nobody ever said how long the file is.
    async fn body_ended(&mut self) -> Result<(), Fault> {
        match (self.end, &self.identity) {
            (Some(end), Some(_)) => {
                let missing = end - self.pos;
                self.fail(format!("the server ended the body {missing} bytes too early"), None).await
            }
            _ => {
                self.identity = Some(Identity { size: self.pos, validator: self.validator.clone() });
                self.end = Some(self.pos);
                Ok(())
            }
        }
    }

    /// Cuts off what lies before `pos` (a body that begins at the file's begin) or after the end.
    fn cut(&mut self, chunk: &Chunk) -> Option<Chunk> {
        let length = chunk.len() as u64;
        if self.skip >= length {
            self.skip -= length;
            return None;
        }
        let from = std::mem::take(&mut self.skip);
        // What a body without ranges holds after this range's end may be asked for next.
        let end = self.end.filter(|_| self.ranges).or(self.identity.as_ref().map(|i| i.size));
        let room = end.map_or(length - from, |end| (end - self.pos).min(length - from));
        (room > 0).then(|| chunk.slice(from as usize..(from + room) as usize))
    }

    fn hand_out(&mut self, chunk: Chunk, max: usize) -> Chunk {
        // Compared as u64: what is left of a file may not fit into a usize of 32 bits.
        let max = self.end.map_or(max, |end| (end - self.pos).min(max as u64) as usize);
        let chunk = if chunk.len() > max {
            self.rest = Some(chunk.slice(max..chunk.len()));
            chunk.slice(0..max)
        } else {
            chunk
        };
        self.pos += chunk.len() as u64;
        chunk
    }

    /// Reads on until the buffer is full or the range ends; `count` hears of the bytes as they come.
    pub async fn fill(&mut self, buffer: &mut ChunkBuffer, count: impl Fn(u64)) -> Result<(), Fault> {
        while buffer.missing() > 0 && !self.is_done() {
            let Some(chunk) = self.next(buffer.missing()).await? else { break };
            count(chunk.len() as u64);
            buffer.push(&chunk);
        }
        Ok(())
    }
}
