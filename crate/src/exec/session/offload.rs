//! When a sequence's KV caches go to main memory, and back once it is empty.

use super::Session;
use crate::exec::kv_offload::{KvOffload, plan_kv_offload};
use crate::exec::step::Buffers;
use crate::gpu::Backend;
use crate::plan::Slot;
use crate::{Error, Result};
use futures_util::lock::Mutex;

impl Session {
    /// Returns the capacity of states on the device that hold `positions` positions; `None` if they
    /// exceed their memory limit.
    pub(super) fn growth_target(&self, positions: usize) -> Option<usize> {
        let model = &self.model;
        let held = match self.offload {
            Some(_) => 0,
            None => self.kv_capacity,
        };
        let wanted = model.capacity_for(positions, held);
        let Some(limit) = model.options.kv_memory else {
            return Some(wanted);
        };
        // The first page is always on the device.
        let first = model.capacity_for(1, 0);
        let targets = [wanted, model.capacity_for(positions, 0)];
        targets
            .into_iter()
            .find(|held| *held <= first || model.state_bytes(*held) <= limit)
    }

    /// Whether KV caches are in main memory, or would be with `positions` positions: steps are then
    /// submitted one by one.
    pub(in crate::exec) fn is_offloaded_at(&self, positions: usize) -> bool {
        self.offload.is_some()
            || (positions > self.kv_capacity && self.growth_target(positions).is_none())
    }

    /// Moves KV caches to main memory, until the rest takes no more than the limit at full context.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for the buffers that they share; the sequence then
    /// stays as it was.
    pub(super) async fn enter_offload(&mut self) -> Result<()> {
        let model = self.model.clone();
        let limit = model.options.kv_memory.unwrap_or(u64::MAX);
        let plan = plan_kv_offload(model.states(), model.chunk(), limit)?;
        let mut offload = KvOffload::new(&model.gpu, model.states(), &plan)?;
        let mut whole = Buffers::new();
        for index in 0..model.states().len() {
            model.state_buffers_unless(index, model.capacity(), &mut whole, |slot, bytes| {
                let own = self.own.get(&slot);
                offload.has(slot) || own.is_some_and(|own| own.size() >= bytes)
            })?;
        }
        model.gpu.check().await?;
        model.gpu.submit(&self.copies_to(&whole))?;
        offload
            .move_in(&model.gpu, &self.own, self.written_until)
            .await?;
        whole.extend(offload.buffers());
        self.rebind(whole)?;
        self.count_host_bytes(offload.host_bytes());
        self.offload = Some(Mutex::new(offload));
        self.set_state_bytes(model.capacity(), plan.bytes);
        Ok(())
    }

    /// Replaces the states by new buffers on the device, with room for `held` positions.
    pub(super) fn replace_states(&mut self, made: Buffers, held: usize) -> Result<()> {
        self.rebind(made)?;
        self.offload = None;
        self.count_host_bytes(0);
        self.set_kv_capacity(held);
        Ok(())
    }

    /// Notes the bytes of KV caches in main memory.
    pub(super) fn count_host_bytes(&self, bytes: u64) {
        let before = self.host_bytes.replace(bytes);
        self.model.update_memory_use(|all| {
            all.kv_in_main_memory = all.kv_in_main_memory + bytes - before;
        });
    }

    /// Returns the error of an operation that needs all states on the device.
    pub(super) fn offload_error(&self, what: &str) -> Error {
        Error::UnsupportedOption {
            architecture: self.model.graph().name.clone(),
            option: format!("{what} while KV caches are in main memory"),
            hint: "Load the model with a larger 'maxKvMemory', or use a shorter sequence.".into(),
        }
    }

    /// Reserves positions; fails if KV caches are in main memory.
    pub(super) async fn reserve_on_device(&mut self, positions: usize) -> Result<()> {
        self.reserve(positions).await?;
        match self.offload {
            Some(_) => Err(self.offload_error("measuring steps")),
            None => Ok(()),
        }
    }

    /// Bytes of a state's buffer.
    pub(super) async fn read_state(&self, slot: Slot, offset: u64, size: u64) -> Result<Vec<u8>> {
        let gpu = &self.model.gpu;
        if let Some(offload) = &self.offload {
            let offload = offload.lock().await;
            if offload.has(slot) {
                return offload.read(gpu, slot, offset, size).await;
            }
        }
        gpu.read(self.buffer(slot)?, offset, size).await
    }

    /// Writes the next bytes of a state's buffer, from its beginning on.
    pub(super) async fn write_state(&self, slot: Slot, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Some(offload) = &self.offload {
            let mut offload = offload.lock().await;
            if offload.has(slot) {
                offload.append(slot, bytes);
                return Ok(());
            }
        }
        self.model.gpu.write(self.buffer(slot)?, offset, bytes);
        Ok(())
    }
}
