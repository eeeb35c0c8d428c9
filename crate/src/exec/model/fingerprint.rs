//! Identifies a loaded model, for states that outlive it.

use super::Model;
use crate::Result;
use crate::gpu::{Backend, Buffer};
use crate::util::checksum::{EMPTY_CHECKSUM, add_to_checksum};

/// Weights whose bytes are sampled.
const SAMPLED_WEIGHTS: usize = 24;
/// Bytes sampled of each.
const SAMPLED_BYTES: u64 = 256;

impl Model {
    /// Identifies the model with its weights, their precision and the layout of its states, and the
    /// weights of an adapter: from their sizes and a sample of their bytes on the device.
    ///
    /// # Errors
    /// Device errors.
    pub(in crate::exec) async fn fingerprint(&self, adapter: &[Buffer]) -> Result<String> {
        let mut text = format!("{} {:?} {}", self.graph().name, self.kv(), self.vocab());
        for state in self.states() {
            let position = state.written_bytes(state.planes.iter().sum(), 1);
            text += &format!(" {} {} {position}", state.spec.name(), state.ring);
        }
        for rope in &self.graph().ropes {
            text += &format!(" {rope:?}");
        }
        let mut sum = add_to_checksum(EMPTY_CHECKSUM, text.as_bytes());
        let mut all: Vec<_> = self.runner.weights.iter().collect();
        all.sort_unstable_by_key(|(slot, _)| **slot);
        let step = all.len().div_ceil(SAMPLED_WEIGHTS).max(1);
        let sampled = all.into_iter().step_by(step).map(|(_, buffer)| buffer);
        for buffer in sampled.chain(adapter) {
            let size = buffer.size().min(SAMPLED_BYTES) / 4 * 4;
            let middle = (buffer.size() - size) / 8 * 4;
            sum = add_to_checksum(sum, &buffer.size().to_le_bytes());
            sum = add_to_checksum(sum, &self.gpu.read(buffer, middle, size).await?);
        }
        Ok(format!("{sum:016x}"))
    }
}
