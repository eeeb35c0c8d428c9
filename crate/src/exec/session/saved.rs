//! Saved sessions: tokens, states and last logits as bytes that outlive the page. A trailer after
//! the states has what it takes to check them: the model's fingerprint, sizes and a checksum.

use super::Session;
use crate::exec::checkpoint::used_buffers;
use crate::gpu::Buffer;
use crate::util::checksum::{EMPTY_CHECKSUM, add_to_checksum};
use crate::{Error, Result};
use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};

/// Last bytes of a saved session.
const MAGIC: &[u8; 8] = b"jerboa/s";
/// Version of the format; others are refused.
const VERSION: u32 = 1;
/// Bytes that are read from the device at a time.
const PART_BYTES: u64 = 8 << 20;
/// Takes the next bytes of a saved session.
pub type WritePart<'a> = &'a mut dyn FnMut(Vec<u8>) -> LocalBoxFuture<'static, Result<()>>;
/// Reads bytes of a saved session: offset and length.
pub type ReadPart<'a> = &'a mut dyn FnMut(u64, u64) -> LocalBoxFuture<'static, Result<Vec<u8>>>;

/// What follows the states of a saved session.
#[derive(Serialize, Deserialize)]
struct SavedTrailer {
    version: u32,
    fingerprint: String,
    tokens: Vec<u32>,
    written_until: usize,
    /// Bytes of each buffer.
    buffers: Vec<u64>,
    checksum: String,
}

fn refuse(reason: &str) -> Error {
    Error::Request {
        parameter: "session.restore".into(),
        reason: reason.into(),
    }
}

fn unsaveable(reason: &str) -> Error {
    Error::Request {
        parameter: "session.save".into(),
        reason: reason.into(),
    }
}

fn damaged(what: &str) -> Error {
    refuse(&format!(
        "the saved session is damaged: {what}. Run the prompt again and save it anew."
    ))
}

impl Session {
    /// Writes tokens, states and the last logits in parts; returns the bytes.
    ///
    /// # Errors
    /// `Request` for a session that is empty, has images or other inputs, or whose states depend on
    /// its length; errors of `write` and the device.
    pub async fn save(&self, write: WritePart<'_>) -> Result<u64> {
        self.check_saveable()?;
        if self.tokens.is_empty() {
            return Err(unsaveable(
                "the session is empty. Run its prompt first; releasing the model or losing the device empties it.",
            ));
        }
        let vocab = self.vocab();
        if self.tokens.iter().any(|id| *id as usize >= vocab) {
            return Err(unsaveable("the session has images. Save one of text."));
        }
        let fingerprint = self.model.fingerprint(&self.overlay_buffers()).await?;
        let mut checksum = EMPTY_CHECKSUM;
        let mut total = 0;
        let mut buffers = Vec::new();
        for (slot, bytes) in used_buffers(&self.model, self.written_until, |_| true)? {
            let bytes = bytes / 4 * 4;
            let mut at = 0;
            while at < bytes {
                let size = PART_BYTES.min(bytes - at);
                let part = self.read_state(slot, at, size).await?;
                checksum = add_to_checksum(checksum, &part);
                write(part).await?;
                at += size;
            }
            total += bytes;
            buffers.push(bytes);
        }
        let trailer = SavedTrailer {
            version: VERSION,
            fingerprint,
            tokens: self.tokens.clone(),
            written_until: self.written_until,
            buffers,
            checksum: String::new(),
        };
        let mut end = trailer.seal(checksum)?;
        let length = end.len() as u32;
        end.extend(length.to_le_bytes());
        end.extend(MAGIC);
        total += end.len() as u64;
        write(end).await?;
        Ok(total)
    }

    /// Makes a saved session of `size` bytes this one.
    ///
    /// # Errors
    /// `Request` for bytes that are no saved session, that are damaged, or that another model,
    /// precision or version has written; errors of `read` and the device. The session is then
    /// empty.
    pub async fn load_saved(&mut self, size: u64, read: ReadPart<'_>) -> Result<()> {
        self.clear();
        self.check_saveable()?;
        let tail = MAGIC.len() as u64 + 4;
        let end = size.checked_sub(tail);
        let end = end.ok_or_else(|| refuse("these bytes are no saved session."))?;
        let last = read(end, tail).await?;
        let (length, magic) = last.split_at(4);
        if magic != MAGIC {
            return Err(refuse("these bytes are no saved session."));
        }
        let length = u64::from(u32::from_le_bytes(length.try_into().unwrap_or_default()));
        let start = end.checked_sub(length);
        let start = start.ok_or_else(|| damaged("its end is missing"))?;
        let trailer = SavedTrailer::parse(&read(start, length).await?)?;
        let own = self.model.fingerprint(&self.overlay_buffers()).await?;
        if trailer.fingerprint != own {
            return Err(refuse(
                "it was saved with another model, precision or adapter. Load that model with the same options, or run the prompt again.",
            ));
        }
        let capacity = self.capacity();
        if trailer.written_until > capacity {
            return Err(Error::SequenceTooLong {
                what: "the saved session",
                tokens: trailer.written_until,
                limit: capacity,
                hint: super::LONGER_CONTEXT,
            });
        }
        let vocab = self.vocab() as u32;
        let slots = used_buffers(&self.model, trailer.written_until, |_| true)?;
        let sizes = slots.iter().map(|(_, bytes)| bytes / 4 * 4);
        let is_consistent = trailer.buffers.iter().copied().eq(sizes)
            && trailer.buffers.iter().sum::<u64>() == start
            && (1..=trailer.written_until).contains(&trailer.tokens.len())
            && trailer.tokens.iter().all(|id| *id < vocab);
        if !is_consistent {
            return Err(damaged("its sizes do not match"));
        }
        self.reserve_states(trailer.written_until).await?;
        if let Some(offload) = &mut self.offload {
            // Of the sequence before, or of bytes that could not be read to their end.
            offload.get_mut().truncate(0);
        }
        if let Some(offload) = &mut self.offload {
            offload.get_mut().truncate(0);
        }
        let mut checksum = EMPTY_CHECKSUM;
        let mut from = 0;
        for (slot, bytes) in slots {
            let bytes = bytes / 4 * 4;
            let mut at = 0;
            while at < bytes {
                let size = PART_BYTES.min(bytes - at);
                let part = read(from, size).await?;
                checksum = add_to_checksum(checksum, &part);
                self.write_state(slot, at, &part).await?;
                (at, from) = (at + size, from + size);
            }
        }
        if trailer.sum(checksum)? != trailer.checksum {
            return Err(damaged("its checksum differs"));
        }
        if let Some(offload) = &mut self.offload {
            let offload = offload.get_mut();
            offload.set_moved(trailer.written_until);
            let bytes = offload.host_bytes();
            self.count_host_bytes(bytes);
        }
        self.tokens = trailer.tokens;
        self.written_until = trailer.written_until;
        // A state that cannot be trimmed can be rolled back to here.
        self.checkpoint()
    }

    fn check_saveable(&self) -> Result<()> {
        if !self.shared_buffers.is_empty() || !self.model.reuses_prefix() {
            return Err(Error::UnsupportedOption {
                architecture: self.model.graph().name.clone(),
                option: "saved sessions".into(),
                hint: "Its states depend on the sequence's length or on other inputs. Run the prompt again.".into(),
            });
        }
        Ok(())
    }

    /// The weights of its adapter.
    fn overlay_buffers(&self) -> Vec<Buffer> {
        self.model.runner.overlay_buffers(self.overlay)
    }
}

impl SavedTrailer {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let parsed: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|_| damaged("its trailer cannot be read"))?;
        match parsed["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                let reason = format!(
                    "it was saved by another version of the engine (format {version}, expected {VERSION}). Run the prompt again."
                );
                return Err(refuse(&reason));
            }
            None => return Err(damaged("its trailer has no version")),
        }
        serde_json::from_value(parsed).map_err(|_| damaged("its trailer is incomplete"))
    }

    /// The checksum of the states and of the other fields.
    fn sum(&self, states: u64) -> Result<String> {
        let fields = serde_json::to_vec(&(&self.tokens, self.written_until, &self.buffers))
            .map_err(|e| Error::Internal(e.to_string()))?;
        Ok(format!("{:016x}", add_to_checksum(states, &fields)))
    }

    /// Sets the checksum and returns the trailer's bytes.
    fn seal(mut self, states: u64) -> Result<Vec<u8>> {
        self.checksum = self.sum(states)?;
        serde_json::to_vec(&self).map_err(|e| Error::Internal(e.to_string()))
    }
}
