//! A repository of the Hub or a folder of any web server: what is cached, what is still true of it, what must be fetched.
//!
//! When a cached file is used without asking, and when the server is asked:
//! - the revision is a commit: it cannot have changed, nothing is asked;
//! - a repository at a branch or tag: one HEAD for config.json tells the commit. The same commit as last time: nothing
//!   else is asked. Another, or a server that names none: one HEAD per file compares ETag (or date) and length;
//! - a folder: one HEAD per file;
//! - `revalidate: false`, or a server that cannot be reached: the cache is believed (the latter leaves a warning).
//!
//! No answer to HEAD has a body, so an unchanged model is loaded again without a byte of content over the network.

mod address;
mod check;
mod entry;
mod read;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

#[cfg(target_arch = "wasm32")]
pub(super) use address::main_branch;

use super::HubOptions;
use super::abort::AbortFlag;
use super::cache::{Shelf, Store, StoreError};
use super::chunk::Chunk;
use super::model_ref::{ModelRef, is_commit, percent_encode};
use super::parts::PartSource;
use super::progress::Progress;
use super::remote::Remote;
use super::transport::Transport;
use super::writes::Writes;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use address::Address;
use entry::Entry;

/// Parts on their way into the cache: the browser holds a copy of each.
const WRITES: usize = 4;

/// What came of a part that was to go into the cache.
type Written<T> = (Rc<Entry<T>>, u64, Result<(), StoreError>);

/// Files of a web server, cached in `S`.
pub struct HttpSource<T: Transport, S: Store> {
    remote: Rc<Remote<T>>,
    /// As [`super::CachedModel::source`] and messages name it.
    name: String,
    /// Where the Hub's API lists the repository's files.
    api: Option<String>,
    /// The folder's address with a slash at its end; a branch is replaced by its commit once that is known.
    base: RefCell<String>,
    commit: RefCell<Option<String>>,
    shelf: Option<Rc<Shelf<S>>>,
    /// Parts on their way into the cache.
    writes: Writes<Written<T>>,
    /// Parts were written since this was last asked.
    news: Cell<bool>,
    /// The last file of a load is sealed by [`Self::settle`].
    defers: Cell<bool>,
    /// Files that all came and are not yet sealed.
    later: RefCell<Vec<String>>,
    /// Manifests are believed without asking.
    trust: Cell<bool>,
    part_size: u64,
    streams: usize,
    files: RefCell<SortedMap<String, Option<Rc<Entry<T>>>>>,
    /// What the server said of the files that it does not have.
    absent: RefCell<SortedMap<String, Error>>,
    /// What the Hub's API says of the repository's files, once it was asked.
    listed: RefCell<Option<Rc<serde_json::Value>>>,
    warnings: RefCell<Vec<Error>>,
}

impl<T: Transport + 'static, S: Store + 'static> HttpSource<T, S> {
    /// Looks the model up: which commit its revision is, and whether the cache may be believed. `store`: `None` to keep
    /// nothing between visits.
    pub async fn open(
        model: &ModelRef,
        options: &HubOptions,
        transport: T,
        store: Option<S>,
        abort: AbortFlag,
        progress: Progress,
    ) -> Result<HttpSource<T, S>> {
        let address = Address::of(model, options)?;
        let pinned = address.revision.as_deref().is_some_and(is_commit);
        let source = HttpSource {
            remote: Rc::new(Remote {
                transport,
                token: options.token.clone().filter(|t| !t.is_empty()),
                retry: options.retry.clone(),
                abort,
                progress,
                not_before: Cell::new(0.0),
                throttled: Cell::new(false),
                reached: Cell::new(false),
            }),
            shelf: store.map(|store| Rc::new(Shelf::new(store, &address.name))),
            writes: Writes::new(WRITES),
            news: Cell::new(false),
            defers: Cell::new(options.defer_seal),
            later: RefCell::default(),
            base: RefCell::new(address.base(address.revision.as_deref())),
            commit: RefCell::new(address.revision.clone().filter(|_| pinned)),
            name: address.name.clone(),
            api: address.api.clone(),
            trust: Cell::new(pinned || !options.revalidate),
            part_size: options.part_size.max(1),
            streams: options.streams.clamp(1, 8),
            files: RefCell::default(),
            absent: RefCell::default(),
            listed: RefCell::default(),
            warnings: RefCell::default(),
        };
        if address.revision.is_some() && !pinned {
            source.resolve_commit(&address).await?;
        }
        Ok(source)
    }

    /// Finds the commit of a branch or tag, so that all files of a load are of one state of the repository.
    async fn resolve_commit(&self, address: &Address) -> Result<()> {
        let known = match &self.shelf {
            Some(shelf) => shelf.manifest("config.json").await,
            None => None,
        };
        let commit = if let Some(known) = known.as_ref().filter(|_| self.trust.get()) {
            known.commit.clone()
        } else {
            let url = self.url("config.json");
            match self.remote.head(&url, known.is_none()).await {
                Ok(head) => head.commit,
                // The repository may have no config.json, or not exist: the first file that is needed will tell.
                Err(Error::NotFound { .. }) => None,
                Err(error @ Error::Aborted { .. }) => return Err(error),
                Err(error) => {
                    let Some(known) = known else { return Err(error) };
                    self.believe(&error);
                    known.commit
                }
            }
        };
        if let Some(commit) = commit.filter(|c| is_commit(c)) {
            *self.base.borrow_mut() = address.base(Some(&commit));
            *self.commit.borrow_mut() = Some(commit);
        }
        Ok(())
    }

    /// The server cannot be asked: the cache is used as it is, for the rest of this load.
    fn believe(&self, error: &Error) {
        if !self.trust.replace(true) {
            self.warn(Error::Unverified { place: self.name.clone(), reason: error.to_string() });
        }
    }

    pub(crate) fn warn(&self, warning: Error) {
        self.warnings.borrow_mut().push(warning);
    }

    /// What went wrong without stopping the load: a full cache, a server that could not be asked.
    pub fn warnings(&self) -> Vec<Error> {
        self.warnings.borrow().clone()
    }

    /// The commit that is being read, where the server named one.
    pub fn commit(&self) -> Option<String> {
        self.commit.borrow().clone()
    }

    fn url(&self, file: &str) -> String {
        format!("{}{}", self.base.borrow(), percent_encode(file, true))
    }

    /// A failed write ends the caching of this load, not the load.
    fn note(&self, written: Result<(), StoreError>) -> bool {
        let warning = match written {
            Ok(()) => return true,
            Err(StoreError::Quota(reason)) => Error::Quota { reason },
            Err(StoreError::Other(reason)) => Error::Cache { reason },
        };
        if !self.warnings.borrow().iter().any(|w| w.code() == warning.code()) {
            self.warn(warning);
        }
        false
    }

    /// Begins to write a part; waits where too many are on their way.
    async fn store(&self, shelf: Rc<Shelf<S>>, entry: Rc<Entry<T>>, file: &str, part: u64, chunk: &Chunk) {
        let (file, chunk, part_size) = (file.to_string(), chunk.clone(), self.part_size);
        let write = async move {
            let written = shelf.put_part(&file, &entry.identity, part_size, part, &chunk).await;
            (entry, part, written)
        };
        self.written(self.writes.begin(write).await);
    }

    fn written(&self, parts: Vec<Written<T>>) {
        for (entry, part, written) in parts {
            if self.note(written) {
                entry.stored.borrow_mut().insert(part);
                entry.unsealed.set(true);
                self.news.set(true);
            }
        }
    }

    /// Waits until what this load fetched is in the cache, with the manifests that say so.
    pub async fn settle(&self) {
        self.defers.set(false);
        self.seal_deferred().await;
    }

    async fn seal_deferred(&self) {
        for file in self.later.take() {
            self.seal(&file, false).await;
        }
    }

    fn may_store(&self) -> bool {
        !self.warnings.borrow().iter().any(|w| matches!(w, Error::Quota { .. } | Error::Cache { .. }))
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;
