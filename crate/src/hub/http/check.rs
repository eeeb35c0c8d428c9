//! What the Hub's API says of a repository: its files, and the SHA-256 of large ones, which a load is compared with. Reads no
//! parts.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::HttpSource;
use super::entry::Entry;
use crate::hub::cache::Store;
use crate::hub::parts::PartSource;
use crate::hub::remote::{Fault, RangeReader};
use crate::hub::transport::Transport;
use crate::util::sha256::hex;
use crate::{Error, Result};

/// A list of files is not read beyond this.
const MAX_LIST: usize = 16 << 20;

impl<T: Transport + 'static, S: Store + 'static> HttpSource<T, S> {
    /// The names of the repository's files, as the Hub's API lists them; none for a folder, or where nobody answers.
    pub async fn list(&self) -> Result<Vec<String>> {
        let list = self.listed().await?;
        let files = list["siblings"].as_array().into_iter().flatten();
        Ok(files.filter_map(|file| file["rfilename"].as_str()).map(str::to_string).collect())
    }

    /// The SHA-256 of a file as the Hub names it: of those that are large.
    async fn oid(&self, file: &str) -> Result<Option<String>> {
        let list = self.listed().await?;
        let mut files = list["siblings"].as_array().into_iter().flatten();
        let found = files.find(|each| each["rfilename"].as_str() == Some(file));
        Ok(found.and_then(|found| found["lfs"]["sha256"].as_str()).map(str::to_ascii_lowercase))
    }

    /// What the Hub's API says of the commit's files; null where nobody answers.
    async fn listed(&self) -> Result<Rc<serde_json::Value>> {
        if let Some(known) = &*self.listed.borrow() {
            return Ok(known.clone());
        }
        let list = Rc::new(self.ask_for_list().await?);
        *self.listed.borrow_mut() = Some(list.clone());
        Ok(list)
    }

    async fn ask_for_list(&self) -> Result<serde_json::Value> {
        let Some(api) = &self.api else { return Ok(serde_json::Value::Null) };
        let revision = self.commit();
        let url = match (&revision, api.rsplit_once('/')) {
            (Some(commit), Some((front, _))) => format!("{front}/{commit}?blobs=true"),
            _ => format!("{api}?blobs=true"),
        };
        let mut reader = RangeReader::new(self.remote.clone(), url, 0, None, None);
        reader.unbound();
        let mut text = Vec::new();
        loop {
            match reader.next(usize::MAX).await {
                Ok(Some(chunk)) if text.len() + chunk.len() <= MAX_LIST => text.extend(chunk.to_vec()),
                Ok(None) => break,
                Err(Fault::Failed(error @ Error::Aborted { .. })) => return Err(error),
                // The list is a help, not a file of the model.
                Ok(_) | Err(_) => return Ok(serde_json::Value::Null),
            }
        }
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// The files that the server has, as far as they were asked for.
    fn entries(&self) -> Vec<(String, Rc<Entry<T>>)> {
        self.files.borrow().iter().filter_map(|(f, e)| Some((f.clone(), e.clone()?))).collect()
    }

    /// Hashes, in order, what the cache has got of files that this load fetches from a Hub; whether that was anything.
    async fn hash_stored(&self) -> bool {
        let Some(shelf) = self.shelf.as_ref().filter(|_| self.api.is_some() && self.part_size.is_multiple_of(64))
        else {
            return false;
        };
        let mut any = false;
        for (file, entry) in self.entries().iter().filter(|(_, e)| e.fetched.get() && e.sha256.borrow().is_none()) {
            loop {
                let (next, state) = entry.hashed.get();
                if !entry.stored.borrow().contains(&next) {
                    break;
                }
                let hashed = shelf.hash_part(file, &entry.identity, self.part_size, next, state).await;
                let Some(hashed) = hashed else { break };
                // It begins again where a part was not what it should be.
                if entry.hashed.get() == (next, state) {
                    entry.hashed.set((next + 1, hashed));
                    any = true;
                }
            }
        }
        any
    }

    /// Hashes what a load brings for [`Self::verify`] as it is stored: polled after the load, until that is done.
    pub async fn hash_beside(&self) {
        loop {
            if !self.hash_stored().await {
                // The load stores, and wakes the task that polls both.
                poll_fn(|_| if self.news.replace(false) { Poll::Ready(()) } else { Poll::Pending }).await;
            }
        }
    }

    /// Compares what this load fetched with the SHA-256 that the Hub names. What differs is forgotten.
    ///
    /// # Errors
    /// `Network` when a file is not what the Hub says.
    pub async fn verify(&self) -> Result<()> {
        if self.api.is_none() {
            return Ok(());
        }
        self.seal_deferred().await;
        self.hash_stored().await;
        for (file, entry) in self.entries() {
            let (parts, state) = entry.hashed.get();
            // A file of which only some was wanted, or could be kept, has no hash.
            if entry.sha256.borrow().is_some() || parts == 0 || parts < entry.identity.size.div_ceil(self.part_size) {
                continue;
            }
            let Some(wanted) = self.oid(&file).await? else { continue };
            let found = hex(state);
            if found == wanted {
                *entry.sha256.borrow_mut() = Some(wanted);
                entry.unsealed.set(true);
                self.seal(&file, false).await;
                continue;
            }
            self.forget(&file).await;
            let reason = format!("what came has the SHA-256 {found}, and the Hub says {wanted}");
            return Err(Error::Network { url: self.url(&file), reason });
        }
        Ok(())
    }

    /// Forgets what in the cache is wrong, or may be for all that is known, of what this load took from there, files and that there
    /// are none: whether there was any.
    pub async fn heal(&self) -> bool {
        let Some(shelf) = &self.shelf else { return false };
        let absent: Vec<_> = self.files.borrow().iter().filter(|(_, e)| e.is_none()).map(|(f, _)| f.clone()).collect();
        let mut healed = false;
        for file in absent.iter().filter(|file| !self.absent.borrow().contains_key(*file)) {
            shelf.forget(file).await;
            healed = true;
        }
        for (file, entry) in self.entries().into_iter().filter(|(_, entry)| entry.from_cache) {
            let known = entry.sha256.borrow().clone();
            if known.is_some() && shelf.hash(&file, &entry.identity, self.part_size).await == known {
                continue;
            }
            self.forget(&file).await;
            healed = true;
        }
        healed
    }
}
