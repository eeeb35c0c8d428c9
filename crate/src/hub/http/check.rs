//! Repository metadata from the Hub's API: file names, and SHA-256 sums of large files, against
//! which downloads are verified.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::HttpSource;
use super::http_file::HttpFile;
use crate::hub::cache::KeyValueStore;
use crate::hub::parts::PartSource;
use crate::hub::remote::{RangeReader, ReadFault};
use crate::hub::transport::Transport;
use crate::util::clock;
use crate::util::sha256::to_hex;
use crate::{Error, Result};

/// Maximum time in milliseconds that a finished download waits for the Hub's checksums.
const MAX_CHECKSUM_WAIT_MS: f64 = 5000.0;
/// Maximum bytes read of a file list.
const MAX_LIST_BYTES: usize = 16 << 20;

impl<T: Transport + 'static, S: KeyValueStore + 'static> HttpSource<T, S> {
    /// Names of the repository's files, from the Hub's API. Empty for a folder, or if the API does
    /// not answer.
    pub async fn list(&self) -> Result<Vec<String>> {
        let list = self.repo_metadata(None).await?;
        let files = list["siblings"].as_array().into_iter().flatten();
        Ok(files
            .filter_map(|file| file["rfilename"].as_str()?.strip_prefix(&self.folder))
            .map(str::to_string)
            .collect())
    }

    /// The SHA-256 of a file published by the Hub; large files only.
    async fn published_sha256(&self, file: &str) -> Result<Option<String>> {
        let list = self.repo_metadata(Some(MAX_CHECKSUM_WAIT_MS)).await?;
        if list.is_null() {
            self.warn_unchecked();
        }
        let path = format!("{}{file}", self.folder);
        let mut files = list["siblings"].as_array().into_iter().flatten();
        let found = files.find(|each| each["rfilename"].as_str() == Some(&path));
        Ok(found
            .and_then(|found| found["lfs"]["sha256"].as_str())
            .map(str::to_ascii_lowercase))
    }

    /// The Hub's metadata of the commit's files; null if the API does not answer, or not within
    /// `limit_ms`.
    async fn repo_metadata(&self, limit_ms: Option<f64>) -> Result<Rc<serde_json::Value>> {
        if let Some(known) = &*self.metadata.borrow() {
            return Ok(known.clone());
        }
        let list = match limit_ms {
            None => self.fetch_metadata().await?,
            Some(limit_ms) => {
                // The API's wish to be asked later must not delay other requests.
                let earliest_ms = self.remote.earliest_request_ms.get();
                let list = clock::timeout(limit_ms, self.fetch_metadata()).await;
                self.remote.earliest_request_ms.set(earliest_ms);
                list.transpose()?.unwrap_or_default()
            }
        };
        let list = Rc::new(list);
        *self.metadata.borrow_mut() = Some(list.clone());
        Ok(list)
    }

    /// Warns once that the Hub's checksums are missing.
    fn warn_unchecked(&self) {
        let warning = Error::Unchecked {
            location: self.name.clone(),
            reason: "the Hub's API does not list the files".to_string(),
        };
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.iter().any(|w| w.code() == warning.code()) {
            warnings.push(warning);
        }
    }

    async fn fetch_metadata(&self) -> Result<serde_json::Value> {
        let Some(api) = &self.api else {
            return Ok(serde_json::Value::Null);
        };
        let revision = self.commit();
        let url = match (&revision, api.rsplit_once('/')) {
            (Some(commit), Some((front, _))) => format!("{front}/{commit}?blobs=true"),
            _ => format!("{api}?blobs=true"),
        };
        let mut reader = RangeReader::new(self.remote.clone(), url, 0, None, None);
        reader.clear_end();
        let mut text = Vec::new();
        loop {
            match reader.next(usize::MAX).await {
                Ok(Some(chunk)) if text.len() + chunk.len() <= MAX_LIST_BYTES => {
                    text.extend(chunk.to_vec());
                }
                Ok(None) => break,
                Err(ReadFault::Failed(error @ Error::Aborted { .. })) => return Err(error),
                // The list is optional, unlike the model's files.
                Ok(_) | Err(_) => return Ok(serde_json::Value::Null),
            }
        }
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// The files that were requested and exist on the server.
    fn open_files(&self) -> Vec<(String, Rc<HttpFile<T>>)> {
        self.files
            .borrow()
            .iter()
            .filter_map(|(f, e)| Some((f.clone(), e.clone()?)))
            .collect()
    }

    /// Hashes, in order, the stored parts of files that this load downloads from a Hub. Returns
    /// whether it hashed any.
    async fn hash_stored_parts(&self) -> bool {
        let Some(shelf) = self
            .cache
            .as_ref()
            .filter(|_| self.api.is_some() && self.part_size.is_multiple_of(64))
        else {
            return false;
        };
        let mut any = false;
        for (file, entry) in self
            .open_files()
            .iter()
            .filter(|(_, e)| e.fetched.get() && e.sha256.borrow().is_none())
        {
            loop {
                let (next, state) = entry.hashed.get();
                if !entry.stored.borrow().contains(&next) {
                    break;
                }
                let hashed = shelf
                    .hash_part(file, &entry.identity, self.part_size, next, state)
                    .await;
                let Some(hashed) = hashed else { break };
                // Hashing restarts if a part was found corrupt.
                if entry.hashed.get() == (next, state) {
                    entry.hashed.set((next + 1, hashed));
                    any = true;
                }
            }
        }
        any
    }

    /// Hashes downloaded parts for [`Self::verify`] as they are stored. Polled together with the
    /// load; ends with it.
    pub async fn hash_while_loading(&self) {
        loop {
            if !self.hash_stored_parts().await {
                // Storing a part wakes the task that polls both.
                poll_fn(|_| {
                    if self.parts_written.replace(false) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
            }
        }
    }

    /// Compares downloaded files with the Hub's SHA-256 sums and evicts files that differ.
    ///
    /// # Errors
    /// `Network` when a file differs from the Hub's checksum.
    pub async fn verify(&self) -> Result<()> {
        if self.api.is_none() {
            return Ok(());
        }
        self.finalize_deferred().await;
        self.hash_stored_parts().await;
        for (file, entry) in self.open_files() {
            let (parts, state) = entry.hashed.get();
            // A file that was read or cached only in part has no checksum.
            if entry.sha256.borrow().is_some()
                || parts == 0
                || parts < entry.identity.size.div_ceil(self.part_size)
            {
                continue;
            }
            let Some(wanted) = self.published_sha256(&file).await? else {
                continue;
            };
            let found = to_hex(state);
            if found == wanted {
                *entry.sha256.borrow_mut() = Some(wanted);
                entry.manifest_stale.set(true);
                self.finalize(&file, false).await;
                continue;
            }
            self.evict(&file).await;
            let reason = format!("the file's SHA-256 is {found}, the Hub lists {wanted}");
            return Err(Error::Network {
                url: self.url(&file),
                reason,
            });
        }
        Ok(())
    }

    /// Evicts cached entries that may be corrupt, among those this load used: files, and records
    /// that a file does not exist. Returns whether there were any. A file that the server does not
    /// have accuses no other file.
    pub async fn evict_corrupt(&self, error: &Error) -> bool {
        let Some(shelf) = &self.cache else {
            return false;
        };
        let absent: Vec<_> = self
            .files
            .borrow()
            .iter()
            .filter(|(_, e)| e.is_none())
            .map(|(f, _)| f.clone())
            .collect();
        let mut healed = false;
        for file in absent
            .iter()
            .filter(|file| !self.not_found_errors.borrow().contains_key(*file))
        {
            shelf.evict(file).await;
            healed = true;
        }
        let denied = matches!(error, Error::NotFound { .. } | Error::MissingFile { .. });
        for (file, entry) in self
            .open_files()
            .into_iter()
            .filter(|(_, entry)| entry.from_cache && !denied)
        {
            let known = entry.sha256.borrow().clone();
            if known.is_some() && shelf.hash(&file, &entry.identity, self.part_size).await == known
            {
                continue;
            }
            self.evict(&file).await;
            healed = true;
        }
        healed
    }

    /// Evicts what this load downloaded and no checksum vouches for, because the model does not
    /// work: a later load must not trust it.
    pub async fn evict_unverified(&self) {
        for (file, entry) in self.open_files() {
            if entry.sha256.borrow().is_none() {
                self.evict(&file).await;
            }
        }
    }
}
