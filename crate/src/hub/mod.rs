//! Model files: finds them, downloads them by range, resumes, caches and reports progress.
//!
//! Sources: a Hub repository, a folder of a web server, a folder on disk, or files that the user
//! selected. Of a file's content this module parses only what locates its tensors. Weights flow from
//! the network to the caller's sink as [`Chunk`]s; in the browser their bytes never enter
//! WebAssembly memory.

mod abort;
mod cache;
mod chunk;
mod http;
mod model_ref;
mod parts;
mod pending_writes;
mod progress;
mod read_ahead;
mod remote;
mod retry;
mod source;
mod source_kind;
mod tensors;
mod transport;

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
mod webllm;

pub use abort::AbortFlag;
#[cfg(target_arch = "wasm32")]
pub use browser::{BrowserTransport, CacheStore, PickedFile, PickedFiles};
pub use cache::{CachedModel, KeyValueStore, StoreError};
pub use chunk::{Chunk, ChunkBuffer};
pub use http::HttpSource;
pub(crate) use model_ref::percent_decode;
pub use model_ref::{DEFAULT_ENDPOINT, ModelRef};
#[cfg(not(target_arch = "wasm32"))]
pub use native::{DirStore, LocalDir, NativeTransport};
pub use parts::FileInfo;
pub use progress::{Phase, Progress, ProgressEvent};
pub use retry::RetryPolicy;
pub use source::{FileForm, Source, cached_models, delete_cached};
pub(crate) use tensors::SINGLE_FILE_NAME;
pub use transport::{
    ContentRange, HttpHeaders, HttpMethod, HttpRequest, HttpResponse, ResponseBody, Transport,
    TransportError,
};

/// How to find and download a model.
#[derive(Debug, Clone, PartialEq)]
pub struct HubOptions {
    /// Branch, tag or commit; overrides the one in the model's name.
    pub revision: Option<String>,
    /// Access token, sent to the endpoint's own origin only.
    pub token: Option<String>,
    /// URL of a Hub other than huggingface.co.
    pub endpoint: Option<String>,
    /// Persist files between visits.
    pub cache: bool,
    /// Ask the server whether cached files are still those of the revision. A commit never needs
    /// this check.
    pub revalidate: bool,
    /// Let a load end before its last weight file is fully cached; [`Source::flush`] waits for it.
    pub defer_finalize: bool,
    /// Maximum number of parallel range requests.
    pub max_streams: usize,
    /// Bytes of a part: the unit of one cache entry and of one call of a sink.
    pub part_size: u64,
    /// Retry limits and pauses.
    pub retry: RetryPolicy,
    /// The cache folder (native only); without one nothing is cached.
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
            defer_finalize: false,
            max_streams: 3,
            part_size: 8 << 20,
            retry: RetryPolicy::default(),
            #[cfg(not(target_arch = "wasm32"))]
            cache_dir: None,
        }
    }
}
