//! Files of a Hub repository or of a folder on any web server: cached, revalidated, or downloaded.
//!
//! When the server is asked about a cached file:
//! - the revision is a commit: never, since it cannot change;
//! - a repository at a branch or tag: one HEAD of config.json returns the commit. If it is
//!   unchanged, nothing else is asked. If it changed, or the server names none: one HEAD per file
//!   compares ETag (or date) and length;
//! - a folder: one HEAD per file;
//! - `revalidate: false`, or an unreachable server: the cache is used as is (the latter adds a
//!   warning).
//!
//! HEAD responses have no body, so loading an unchanged model again downloads no content.

mod address;
mod check;
mod http_file;
mod read;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

#[cfg(target_arch = "wasm32")]
pub(super) use address::main_branch_url;

use super::HubOptions;
use super::abort::AbortFlag;
use super::cache::{KeyValueStore, SourceCache, StoreError};
use super::chunk::Chunk;
use super::model_ref::{ModelRef, is_commit, percent_encode};
use super::parts::PartSource;
use super::pending_writes::PendingWrites;
use super::progress::Progress;
use super::read_ahead::ReadsAhead;
use super::remote::{NO_ENTRY_CODE, ReadFault, RemoteServer};
use super::transport::Transport;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use address::ModelUrls;
use http_file::HttpFile;

/// Maximum number of parts being written to the cache. The browser keeps a copy of each in memory.
const MAX_PENDING_WRITES: usize = 4;

/// Whether a server that denies a cached file may have it: a captive portal, a deployment.
fn may_be_passing(error: &Error) -> bool {
    matches!(error, Error::NotFound { answer, .. } if !answer.ends_with(NO_ENTRY_CODE))
}

/// Result of writing a part to the cache.
type PartWriteResult<T> = (Rc<HttpFile<T>>, u64, Result<(), StoreError>);

/// Files of a web server, cached in `S`.
pub struct HttpSource<T: Transport, S: KeyValueStore> {
    remote: Rc<RemoteServer<T>>,
    /// The name in [`super::CachedModel::source`] and in messages.
    name: String,
    /// URL of the Hub's API for this repository's file list.
    api: Option<String>,
    /// The repository's subfolder with a trailing slash; empty for its root.
    folder: String,
    /// The folder's URL with a trailing slash. A branch is replaced by its commit once that is
    /// known.
    base: RefCell<String>,
    commit: RefCell<Option<String>>,
    cache: Option<Rc<SourceCache<S>>>,
    /// Parts being written to the cache.
    writes: PendingWrites<PartWriteResult<T>>,
    /// Whether parts were written since the last check.
    parts_written: Cell<bool>,
    /// Whether [`Self::flush`] finalizes the last file of a load.
    defer_finalize: Cell<bool>,
    /// Completely read files that are not yet finalized.
    unfinalized: RefCell<Vec<String>>,
    /// Whether manifests are used without asking the server.
    trust_cache: Cell<bool>,
    part_size: u64,
    streams: usize,
    files: RefCell<SortedMap<String, Option<Rc<HttpFile<T>>>>>,
    /// Parts that are downloaded before a load asks for them.
    ahead: ReadsAhead<Result<Chunk, ReadFault>>,
    /// The server's error for each file that it does not have.
    not_found_errors: RefCell<SortedMap<String, Error>>,
    /// The Hub's metadata of the repository's files, once requested.
    metadata: RefCell<Option<Rc<serde_json::Value>>>,
    warnings: RefCell<Vec<Error>>,
}

impl<T: Transport + 'static, S: KeyValueStore + 'static> HttpSource<T, S> {
    /// Opens a model: finds the commit of its revision, and whether the cache can be used without
    /// asking. `store: None` disables the cache.
    pub async fn open(
        model: &ModelRef,
        options: &HubOptions,
        transport: T,
        store: Option<S>,
        abort: AbortFlag,
        progress: Progress,
    ) -> Result<HttpSource<T, S>> {
        let address = ModelUrls::for_model(model, options)?;
        let pinned = address.revision.as_deref().is_some_and(is_commit);
        let source = HttpSource {
            remote: Rc::new(RemoteServer {
                transport,
                token: options.token.clone().filter(|t| !t.is_empty()),
                retry: options.retry.clone(),
                abort,
                progress,
                earliest_request_ms: Cell::new(0.0),
                throttled: Cell::new(false),
                reached: Cell::new(false),
            }),
            cache: store.map(|store| Rc::new(SourceCache::new(store, &address.name))),
            writes: PendingWrites::new(MAX_PENDING_WRITES),
            parts_written: Cell::new(false),
            defer_finalize: Cell::new(options.defer_finalize),
            unfinalized: RefCell::default(),
            base: RefCell::new(address.base_url(address.revision.as_deref())),
            commit: RefCell::new(address.revision.clone().filter(|_| pinned)),
            name: address.name.clone(),
            api: address.api.clone(),
            folder: address.folder.clone(),
            trust_cache: Cell::new(pinned || !options.revalidate),
            part_size: options.part_size.max(1),
            streams: options.max_streams.clamp(1, 8),
            files: RefCell::default(),
            ahead: ReadsAhead::default(),
            not_found_errors: RefCell::default(),
            metadata: RefCell::default(),
            warnings: RefCell::default(),
        };
        if address.revision.is_some() && !pinned {
            source.resolve_commit(&address).await?;
        }
        Ok(source)
    }

    /// Finds the commit of a branch or tag, so that all files of a load come from one state of the
    /// repository.
    async fn resolve_commit(&self, address: &ModelUrls) -> Result<()> {
        let known = match &self.cache {
            Some(shelf) => shelf.manifest("config.json").await,
            None => None,
        };
        let commit = if let Some(known) = known.as_ref().filter(|_| self.trust_cache.get()) {
            known.commit.clone()
        } else {
            let url = self.url("config.json");
            let mut head = self.remote.head(&url, known.is_none()).await;
            let cached = known.as_ref().is_some_and(|known| known.content.is_some());
            if cached && matches!(&head, Err(error) if may_be_passing(error)) {
                head = self.remote.head(&url, false).await;
            }
            match head {
                Ok(head) => head.commit,
                // The repository may lack config.json, or not exist. The first required file
                // reports that.
                Err(error @ Error::NotFound { .. }) if !(cached && may_be_passing(&error)) => None,
                Err(error @ Error::Aborted { .. }) => return Err(error),
                Err(error) => {
                    let Some(known) = known else {
                        return Err(error);
                    };
                    self.trust_cached_commit(&error);
                    known.commit
                }
            }
        };
        if let Some(commit) = commit.filter(|c| is_commit(c)) {
            *self.base.borrow_mut() = address.base_url(Some(&commit));
            *self.commit.borrow_mut() = Some(commit);
        }
        Ok(())
    }

    /// The server cannot be reached: uses the cache as is for the rest of this load.
    fn trust_cached_commit(&self, error: &Error) {
        if !self.trust_cache.replace(true) {
            self.warn(Error::Unverified {
                location: self.name.clone(),
                reason: error.to_string(),
            });
        }
    }

    pub(crate) fn warn(&self, warning: Error) {
        self.warnings.borrow_mut().push(warning);
    }

    /// Problems that did not stop the load: a full cache, a server that could not be reached.
    pub fn warnings(&self) -> Vec<Error> {
        self.warnings.borrow().clone()
    }

    /// The commit being read, if the server named one.
    pub fn commit(&self) -> Option<String> {
        self.commit.borrow().clone()
    }

    fn url(&self, file: &str) -> String {
        format!("{}{}", self.base.borrow(), percent_encode(file, true))
    }

    /// Records the result of a write. A failed write ends the caching of this load, not the load.
    fn record_write(&self, written: Result<(), StoreError>) -> bool {
        let warning = match written {
            Ok(()) => return true,
            Err(StoreError::Quota(reason)) => Error::Quota { reason },
            Err(StoreError::Other(reason)) => Error::Cache { reason },
        };
        if !self
            .warnings
            .borrow()
            .iter()
            .any(|w| w.code() == warning.code())
        {
            self.warn(warning);
        }
        false
    }

    /// Starts writing a part; waits while too many writes are pending.
    async fn start_write(
        &self,
        shelf: Rc<SourceCache<S>>,
        entry: Rc<HttpFile<T>>,
        file: &str,
        part: u64,
        chunk: &Chunk,
    ) {
        let file = file.to_string();
        let chunk = chunk.clone();
        let part_size = self.part_size;

        let write = async move {
            let written = shelf
                .put_part(&file, &entry.identity, part_size, part, &chunk)
                .await;
            (entry, part, written)
        };
        self.handle_writes(self.writes.start(write).await);
    }

    fn handle_writes(&self, parts: Vec<PartWriteResult<T>>) {
        for (entry, part, written) in parts {
            if self.record_write(written) {
                entry.stored.borrow_mut().insert(part);
                entry.manifest_stale.set(true);
                self.parts_written.set(true);
            }
        }
    }

    /// Waits until everything this load downloaded is cached, manifests included.
    pub async fn flush(&self) {
        self.defer_finalize.set(false);
        self.finalize_deferred().await;
    }

    async fn finalize_deferred(&self) {
        for file in self.unfinalized.take() {
            self.finalize(&file, false).await;
        }
    }

    fn can_store(&self) -> bool {
        !self
            .warnings
            .borrow()
            .iter()
            .any(|w| matches!(w, Error::Quota { .. } | Error::Cache { .. }))
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;
