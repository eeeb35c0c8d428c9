//! Native transport, cache and local folders: HTTP through ureq on threads, a folder as the cache,
//! folders on disk as sources.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cache::{KeyValueStore, StoreError};
use super::chunk::Chunk;
use super::model_ref::is_inside;
use super::parts::{self, FileInfo, PartSource};
use super::progress::Progress;
use super::remote::ReadFault;
use super::transport::{
    HttpHeaders, HttpMethod, HttpRequest, HttpResponse, ResponseBody, Transport, TransportError,
};
use crate::util::sha256::update;
use crate::{Error, Result};

/// Maximum number of redirects followed.
const MAX_REDIRECTS: usize = 8;
/// Bytes per read from a socket.
const READ_BYTES: usize = 256 << 10;

/// HTTP client with one thread per request, so that waiting for one does not block the others.
#[derive(Clone, Debug)]
pub struct NativeTransport {
    agent: ureq::Agent,
}

impl Default for NativeTransport {
    fn default() -> NativeTransport {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(15)))
            .user_agent(concat!("jerboa/", env!("CARGO_PKG_VERSION")))
            .build();
        NativeTransport {
            agent: ureq::Agent::new_with_config(config),
        }
    }
}

type BodyMessage = Result<Vec<u8>, TransportError>;

/// A response body that a thread reads ahead, by at most two buffers.
#[derive(Debug)]
pub struct NativeBody(async_channel::Receiver<BodyMessage>);

impl ResponseBody for NativeBody {
    async fn next(&mut self) -> Result<Option<Chunk>, TransportError> {
        match self.0.recv().await {
            Ok(message) => message.map(|bytes| Some(Chunk::from_vec(bytes))),
            Err(_) => Ok(None),
        }
    }
}

impl Transport for NativeTransport {
    type Body = NativeBody;

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse<NativeBody>, TransportError> {
        let (headers_in, headers_out) = async_channel::bounded(1);
        let (body_in, body_out) = async_channel::bounded::<BodyMessage>(2);
        let agent = self.agent.clone();
        std::thread::spawn(move || match send_following_redirects(&agent, &request) {
            Ok(response) => {
                let status = response.status().as_u16();
                let get = |name: &str| {
                    response
                        .headers()
                        .get(name)?
                        .to_str()
                        .ok()
                        .map(str::to_string)
                };
                let headers = HttpHeaders::read(get);
                if headers_in.send_blocking(Ok((status, headers))).is_ok() {
                    read_body(response.into_body().into_reader(), &body_in);
                }
            }
            // The receiver may be gone already, which is not an error.
            Err(failure) => drop(headers_in.send_blocking(Err(failure))),
        });
        let (status, headers) = headers_out
            .recv()
            .await
            .map_err(|e| TransportError(e.to_string()))??;
        Ok(HttpResponse {
            status,
            headers,
            body: NativeBody(body_out),
        })
    }
}

/// Sends the request and follows redirects. The token is sent to the first origin only.
fn send_following_redirects(
    agent: &ureq::Agent,
    request: &HttpRequest,
) -> Result<ureq::http::Response<ureq::Body>, TransportError> {
    let failure = |e: &dyn std::fmt::Display| TransportError(e.to_string());
    let mut url = request.url.clone();
    for _ in 0..=MAX_REDIRECTS {
        let mut builder = match request.method {
            HttpMethod::Get => agent.get(&url),
            HttpMethod::Head => agent.head(&url),
        };
        if let Some(range) = &request.range {
            builder = builder.header("range", range);
        }
        if let Some(token) = request
            .token
            .as_ref()
            .filter(|_| url_origin(&url) == url_origin(&request.url))
        {
            builder = builder.header("authorization", format!("Bearer {token}"));
        }
        let response = builder.call().map_err(|e| failure(&e))?;
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(response);
        }
        let location = response
            .headers()
            .get("location")
            .and_then(|l| l.to_str().ok());
        let location = location
            .ok_or_else(|| TransportError("redirect without a Location header".to_string()))?;
        url = resolve_redirect(&url, location);
    }
    Err(TransportError(format!(
        "more than {MAX_REDIRECTS} redirects"
    )))
}

fn read_body(mut reader: impl Read, to: &async_channel::Sender<BodyMessage>) {
    loop {
        let mut buffer = vec![0; READ_BYTES];
        let message = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                buffer.truncate(count);
                Ok(buffer)
            }
            Err(e) => Err(TransportError(e.to_string())),
        };
        let ends = message.is_err();
        if to.send_blocking(message).is_err() || ends {
            return;
        }
    }
}

/// Scheme, host and port of a URL.
fn url_origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |i| i + 3);
    let end = url[host..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |i| host + i);
    &url[..end]
}

/// Resolves a `Location` header against the URL that returned it.
fn resolve_redirect(base: &str, location: &str) -> String {
    if location.contains("://") {
        location.to_string()
    } else if let Some(rest) = location.strip_prefix("//") {
        let scheme = base.split("://").next().unwrap_or("https");
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{}{location}", url_origin(base))
    } else {
        let folder = base.rfind('/').map_or(base, |slash| &base[..=slash]);
        format!("{folder}{location}")
    }
}

/// A cache in a folder, one file per entry.
#[derive(Clone, Debug)]
pub struct DirStore {
    root: PathBuf,
}

impl DirStore {
    /// Uses `root` as the cache folder; it is created on the first write.
    pub fn new(root: impl Into<PathBuf>) -> DirStore {
        DirStore { root: root.into() }
    }

    fn collect(folder: &Path, prefix: &str, keys: &mut Vec<String>) -> std::io::Result<()> {
        let entries = match std::fs::read_dir(folder) {
            // It was never written to, or another process removes it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = entry.path();
            if path.is_dir() {
                Self::collect(&path, &format!("{prefix}{name}/"), keys)?;
            } else if !name.ends_with(".tmp") {
                keys.push(format!("{prefix}{name}"));
            }
        }
        Ok(())
    }

    fn error(&self, error: &std::io::Error) -> StoreError {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                StoreError::Quota(error.to_string())
            }
            _ => StoreError::Other(format!("{}: {error}", self.root.display())),
        }
    }

    fn write(&self, key: &str, value: &Chunk) -> std::io::Result<()> {
        let path = self.root.join(key);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // The rename makes the entry appear complete or not at all.
        let draft = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&draft, value.as_slice())?;
        std::fs::rename(&draft, &path)
    }
}

impl KeyValueStore for DirStore {
    async fn get(&self, key: &str, _size: u64) -> Option<Chunk> {
        std::fs::read(self.root.join(key)).ok().map(Chunk::from_vec)
    }

    async fn put(&self, key: &str, value: &Chunk) -> Result<(), StoreError> {
        self.write(key, value).map_err(|e| self.error(&e))
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        match std::fs::remove_file(self.root.join(key)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(self.error(&e)),
            _ => Ok(()),
        }
    }

    async fn keys(&self) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::new();
        Self::collect(&self.root, "", &mut keys).map_err(|e| self.error(&e))?;
        Ok(keys)
    }

    async fn hash(
        &self,
        key: &str,
        size: u64,
        state: [u32; 8],
        end: Option<u64>,
    ) -> Option<[u32; 8]> {
        let bytes = self
            .get(key, size)
            .await
            .filter(|bytes| bytes.len() as u64 == size)?;
        Some(update(state, bytes.as_slice(), end))
    }
}

/// A model folder on this machine.
#[derive(Debug)]
pub struct LocalDir {
    root: PathBuf,
    name: String,
    part_size: u64,
    progress: Progress,
}

impl LocalDir {
    /// Opens the folder `root`.
    pub fn open(root: &Path, part_size: u64, progress: Progress) -> Result<LocalDir> {
        let name = root.display().to_string();
        if !root.is_dir() {
            return Err(Error::ModelName {
                name,
                reason: "the folder does not exist".to_string(),
            });
        }
        Ok(LocalDir {
            root: root.to_path_buf(),
            name,
            part_size: part_size.max(1),
            progress,
        })
    }

    /// Names of the files directly in the folder; subfolders are not searched.
    pub(super) fn list(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .flatten();
        entries
            .filter_map(|e| e.file_name().into_string().ok())
            .collect()
    }

    fn io_error(&self, file: &str, error: &std::io::Error) -> Error {
        Error::MissingFile {
            file: file.to_string(),
            location: self.name.clone(),
            hint: format!("The operating system reports: {error}."),
        }
    }

    fn read(&self, file: &str, range: Range<u64>) -> std::io::Result<Chunk> {
        use std::io::{Seek, SeekFrom};
        let mut handle = std::fs::File::open(self.root.join(file))?;
        handle.seek(SeekFrom::Start(range.start))?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        handle.read_exact(&mut bytes)?;
        Ok(Chunk::from_vec(bytes))
    }
}

impl PartSource for LocalDir {
    type Reader = ();

    fn source_name(&self) -> &str {
        &self.name
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn part_size(&self) -> u64 {
        self.part_size
    }

    async fn info(&self, file: &str) -> Result<Option<FileInfo>> {
        if !is_inside(file) {
            let reason = "the path leads outside the model's folder".to_string();
            return Err(Error::ModelName {
                name: file.to_string(),
                reason,
            });
        }
        self.progress.file(file);
        match std::fs::metadata(self.root.join(file)) {
            Ok(data) if data.is_file() => {
                let changed = data
                    .modified()
                    .ok()
                    .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
                let etag = changed.map(|at| format!("{} ns", at.as_nanos()));
                Ok(Some(FileInfo {
                    size: data.len(),
                    etag,
                    from_cache: false,
                }))
            }
            Ok(_) => Ok(None),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.io_error(file, &e)),
        }
    }

    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, ReadFault> {
        self.read(file, range)
            .map_err(|e| ReadFault::Failed(self.io_error(file, &e)))
    }

    async fn part(
        &self,
        file: &str,
        part: u64,
        _run_end: u64,
        _reader: &mut Option<()>,
    ) -> Result<Chunk, ReadFault> {
        let size = std::fs::metadata(self.root.join(file))
            .map_err(|e| self.io_error(file, &e))?
            .len();
        let range = (part * self.part_size).min(size)..((part + 1) * self.part_size).min(size);
        let chunk = self
            .read(file, range)
            .map_err(|e| self.io_error(file, &e))?;
        parts::count_part(self, file, part, chunk.len(), false);
        Ok(chunk)
    }

    fn missing_error(&self, file: &str) -> Error {
        Error::MissingFile {
            file: file.to_string(),
            location: self.name.clone(),
            hint: "Check the folder's path and its contents.".to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved() {
        let base = "https://hub.example:1/a/b?x=y";
        assert_eq!(url_origin(base), "https://hub.example:1");
        assert_eq!(
            resolve_redirect(base, "https://cdn.example/f"),
            "https://cdn.example/f"
        );
        assert_eq!(resolve_redirect(base, "/c"), "https://hub.example:1/c");
        assert_eq!(resolve_redirect(base, "//cdn/c"), "https://cdn/c");
        assert_eq!(resolve_redirect("https://h/a/b", "c"), "https://h/a/c");
    }
}
