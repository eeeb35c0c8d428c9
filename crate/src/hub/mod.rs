//! Where a model's files come from: a repository of the Hub, a folder of a web server, a folder on disk, files that the
//! user picked. Finds, fetches by range, resumes, caches and reports; knows of a file's content only where tensors begin.
//!
//! Weights go from the network to the caller's sink as [`Chunk`]s, which in the browser never enter WebAssembly's memory.

mod abort;
mod cache;
mod chunk;
mod http;
mod model_ref;
mod parts;
mod progress;
mod remote;
mod retry;
mod source;
mod tensors;
mod transport;
mod writes;

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
mod webllm;

pub use abort::AbortFlag;
#[cfg(target_arch = "wasm32")]
pub use browser::{BrowserTransport, CacheStore, PickedFile, PickedFiles};
pub use cache::{CachedModel, Store, StoreError};
pub use chunk::{Chunk, ChunkBuffer};
pub use http::HttpSource;
pub use model_ref::{DEFAULT_ENDPOINT, ModelRef};
#[cfg(not(target_arch = "wasm32"))]
pub use native::{DirStore, LocalDir, NativeTransport};
pub use parts::FileInfo;
pub use progress::{Phase, Progress, ProgressEvent};
pub use retry::RetryPolicy;
pub use source::Source;
pub use source::{cached_models, delete_cached};
pub use transport::{Body, Failure, Headers, Method, Request, Response, Transport};

/// How a model is to be found and fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct HubOptions {
    /// Branch, tag or commit; overrides one in the name.
    pub revision: Option<String>,
    /// Sent to the endpoint's own origin only.
    pub token: Option<String>,
    /// Another Hub than huggingface.co.
    pub endpoint: Option<String>,
    /// Keep files between visits.
    pub cache: bool,
    /// Ask the server whether cached files are still those of the revision. A commit is never asked for.
    pub revalidate: bool,
    /// The last file of the weights may still be on its way into the cache when a load ends: [`Source::settle`] waits for it.
    pub defer_seal: bool,
    /// Parallel range requests at the most.
    pub streams: usize,
    /// Bytes of a part: what is cached as one entry and handed to a sink at once.
    pub part_size: u64,
    /// How stubbornly to retry.
    pub retry: RetryPolicy,
    /// The cache's folder (native only); without one nothing is kept.
    #[cfg(not(target_arch = "wasm32"))]
    pub cache_dir: Option<std::path::PathBuf>,
}

impl Default for HubOptions {
    fn default() -> HubOptions {
        HubOptions {
            revision: None,
            token: None,
            endpoint: None,
            cache: true,
            revalidate: true,
            defer_seal: false,
            streams: 3,
            part_size: 8 << 20,
            retry: RetryPolicy::default(),
            #[cfg(not(target_arch = "wasm32"))]
            cache_dir: None,
        }
    }
}
