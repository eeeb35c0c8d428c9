//! Where the files of a model come from, as one `PartSource`.

use std::ops::Range;

use super::chunk::Chunk;
use super::http::HttpSource;
use super::parts::{FileInfo, PartSource};
use super::progress::Progress;
use super::remote::{RangeReader, ReadFault};
use crate::{Error, Result};

#[cfg(target_arch = "wasm32")]
pub(super) use super::browser::{
    BrowserTransport as DefaultTransport, CacheStore as DefaultStore, PickedFiles,
};
#[cfg(not(target_arch = "wasm32"))]
pub(super) use super::native::{
    DirStore as DefaultStore, LocalDir, NativeTransport as DefaultTransport,
};
#[cfg(target_arch = "wasm32")]
use super::webllm::WebLlm;

/// Files over HTTP with the transport and the store of this target.
pub(super) type DefaultHttpSource = HttpSource<DefaultTransport, DefaultStore>;

/// The kinds of sources.
pub(super) enum SourceKind {
    /// A repository or a folder of a server.
    Http(Box<DefaultHttpSource>),
    /// A folder of this machine.
    #[cfg(not(target_arch = "wasm32"))]
    Local(LocalDir),
    /// Files that the user selected.
    #[cfg(target_arch = "wasm32")]
    Picked(PickedFiles),
    /// A model in WebLLM's cache.
    #[cfg(target_arch = "wasm32")]
    WebLlm(Box<WebLlm>),
}

/// Evaluates an expression with the source of any kind.
macro_rules! with_source {
    ($self:expr, $source:ident => $call:expr) => {
        match $self {
            SourceKind::Http($source) => $call,
            #[cfg(not(target_arch = "wasm32"))]
            SourceKind::Local($source) => $call,
            #[cfg(target_arch = "wasm32")]
            SourceKind::Picked($source) => $call,
            #[cfg(target_arch = "wasm32")]
            SourceKind::WebLlm($source) => $call,
        }
    };
}

impl SourceKind {
    /// The source, if it is a server.
    pub(super) fn http(&self) -> Option<&DefaultHttpSource> {
        match self {
            SourceKind::Http(http) => Some(http),
            _ => None,
        }
    }

    /// Names of all files, as far as the source can list them.
    pub(super) async fn list(&self) -> Result<Vec<String>> {
        match self {
            SourceKind::Http(http) => http.list().await,
            #[cfg(not(target_arch = "wasm32"))]
            SourceKind::Local(local) => Ok(local.list()),
            #[cfg(target_arch = "wasm32")]
            SourceKind::Picked(picked) => Ok(picked.list()),
            #[cfg(target_arch = "wasm32")]
            SourceKind::WebLlm(_) => Ok(Vec::new()),
        }
    }
}

impl PartSource for SourceKind {
    type Reader = RangeReader<DefaultTransport>;

    fn source_name(&self) -> &str {
        with_source!(self, source => source.source_name())
    }

    fn progress(&self) -> &Progress {
        with_source!(self, source => source.progress())
    }

    fn part_size(&self) -> u64 {
        with_source!(self, source => source.part_size())
    }

    fn streams(&self, file: &str) -> usize {
        with_source!(self, source => source.streams(file))
    }

    fn throttled(&self) -> bool {
        with_source!(self, source => source.throttled())
    }

    fn is_stored(&self, file: &str, part: u64) -> bool {
        with_source!(self, source => source.is_stored(file, part))
    }

    async fn info(&self, file: &str) -> Result<Option<FileInfo>> {
        with_source!(self, source => source.info(file).await)
    }

    async fn range(&self, file: &str, range: Range<u64>) -> Result<Chunk, ReadFault> {
        with_source!(self, source => source.range(file, range).await)
    }

    async fn part(
        &self,
        file: &str,
        part: u64,
        run_end: u64,
        reader: &mut Option<Self::Reader>,
    ) -> Result<Chunk, ReadFault> {
        match self {
            SourceKind::Http(http) => http.part(file, part, run_end, reader).await,
            #[cfg(not(target_arch = "wasm32"))]
            SourceKind::Local(local) => local.part(file, part, run_end, &mut None).await,
            #[cfg(target_arch = "wasm32")]
            SourceKind::Picked(picked) => picked.part(file, part, run_end, &mut None).await,
            #[cfg(target_arch = "wasm32")]
            SourceKind::WebLlm(model) => model.part(file, part, run_end, reader).await,
        }
    }

    fn release_part(&self, part: Chunk) {
        with_source!(self, source => source.release_part(part));
    }

    async fn finalize(&self, file: &str, last: bool) {
        with_source!(self, source => source.finalize(file, last).await);
    }

    async fn evict(&self, file: &str) {
        with_source!(self, source => source.evict(file).await);
    }

    fn missing_error(&self, file: &str) -> Error {
        with_source!(self, source => source.missing_error(file))
    }
}
