//! Compares the weights of a loaded model with its files.

use super::Model;
use crate::exec::files::ModelFiles;
use crate::exec::load::{WeightLoadRequest, load_weights};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::Source;
use crate::ir::WeightId;
use crate::plan::{Slot, WeightPlans};
use crate::{Error, Result};

/// Bytes read back at once.
const READBACK_CHUNK_BYTES: u64 = 4 << 20;

impl Model {
    /// Reloads weights of up to `most` bytes, spread over the model, and compares them with those
    /// on the device. Returns a description of the first difference.
    ///
    /// # Errors
    /// Errors of the source or the device.
    pub async fn verify_weights(
        &self,
        source: &Source,
        files: &ModelFiles,
        most: u64,
    ) -> Result<Option<String>> {
        for id in self.sample_weights(most) {
            let Some(plan) = self.weights().get(&id) else {
                continue;
            };
            let plans = WeightPlans::from([(id, plan.clone())]);
            let gpu = &self.gpu;
            let graph = self.graph();
            let stored = &files.weights;

            let wanted = WeightLoadRequest {
                gpu,
                graph,
                plans: &plans,
                source,
                checkpoint: &files.checkpoint,
                stored,
            };
            for (slot, fresh) in load_weights(wanted).await? {
                let name = &graph.weight(id).parts[0].0;

                let held = self
                    .runner
                    .weights
                    .get(&slot)
                    .ok_or_else(|| Error::Internal(format!("{name} has no buffer")))?;
                if let Some(at) = first_difference(&self.gpu, held, &fresh).await? {
                    return Ok(Some(format!(
                        "{name} differs from its file at byte {at} of {}",
                        held.size()
                    )));
                }
            }
        }
        Ok(None)
    }

    /// The buffers of the weight that begins with a tensor.
    pub fn weight_buffers(&self, tensor: &str) -> Vec<&Buffer> {
        let is = |id: &WeightId| self.graph().weight(*id).parts[0].0 == tensor;

        self.runner
            .weights
            .iter()
            .filter_map(|(slot, buffer)| match slot {
                &Slot::WeightQ(id, _) | &Slot::WeightS(id, _) | &Slot::Vector(id) if is(&id) => {
                    Some(buffer)
                }
                _ => None,
            })
            .collect()
    }

    /// Selects weights from the beginning, middle and end of the model, up to `most` bytes in
    /// total.
    fn sample_weights(&self, most: u64) -> Vec<WeightId> {
        // Paged weights are not on the device as a whole.
        let whole = self.weights().iter().filter(|(_, plan)| !plan.is_paged());
        let ids: Vec<WeightId> = whole.map(|(id, _)| *id).collect();
        let total: u64 = self.weights().values().map(|plan| plan.bytes()).sum();
        let every = total.div_ceil(most.max(1)).max(1) as usize;
        let mut left = most;
        let spread = (0..every).flat_map(|first| ids.iter().skip(first).step_by(every));

        spread
            .filter(|id: &&WeightId| {
                let bytes = self.weights().get(id).map_or(0, |plan| plan.bytes());
                let fits = bytes <= left;
                left -= if fits { bytes } else { 0 };
                fits
            })
            .copied()
            .collect()
    }
}

/// The offset of the first byte that differs between two buffers.
async fn first_difference(gpu: &Gpu, a: &Buffer, b: &Buffer) -> Result<Option<u64>> {
    for at in (0..a.size()).step_by(READBACK_CHUNK_BYTES as usize) {
        let size = READBACK_CHUNK_BYTES.min(a.size() - at);
        let left = gpu.read(a, at, size).await?;
        let right = gpu.read(b, at, size).await?;

        if let Some(place) = left.iter().zip(&right).position(|(l, r)| l != r) {
            return Ok(Some(at + place as u64));
        }
    }
    Ok(None)
}
