//! Assigns the virtual buffers of a tape to physical ones. A buffer is free again after the last
//! launch that uses it.

use crate::tape::{Tape, TrainBuffer};
use std::collections::HashMap;

/// Physical buffers of a tape's values and temporary buffers.
#[derive(Debug, Clone, Default)]
pub struct TapeMemory {
    /// Elements per row of each physical buffer.
    pub cols: Vec<usize>,
    /// Physical buffer of each virtual one.
    pub places: HashMap<TrainBuffer, usize>,
}

impl TapeMemory {
    /// Assigns the buffers of a tape; `lasting` stays untouched until the end. The result does not
    /// depend on the tape's rows.
    pub fn assign(tape: &Tape<'_>, lasting: TrainBuffer) -> Self {
        let cols_of = |buffer: TrainBuffer| match buffer {
            TrainBuffer::Value(id) => Some(tape.cols_of(id)),
            TrainBuffer::Temporary(index) => Some(tape.cols[index]),
            _ => None,
        };
        let mut last_use = HashMap::new();
        for (index, launch) in tape.launches.iter().enumerate() {
            for (_, buffer) in &launch.binds {
                last_use.insert(*buffer, index);
            }
        }
        let mut memory = Self::default();
        let mut free: Vec<usize> = Vec::new();
        for (index, launch) in tape.launches.iter().enumerate() {
            for (_, buffer) in &launch.binds {
                let Some(cols) = cols_of(*buffer) else {
                    continue;
                };
                if memory.places.contains_key(buffer) {
                    continue;
                }
                // The smallest that is large enough, unless most of it would be unused.
                let fits = |place: &usize| (cols..=2 * cols).contains(&memory.cols[*place]);
                let best = free
                    .iter()
                    .copied()
                    .filter(fits)
                    .min_by_key(|place| (memory.cols[*place], *place));
                let place = best.unwrap_or_else(|| {
                    memory.cols.push(cols);
                    memory.cols.len() - 1
                });
                free.retain(|other| *other != place);
                memory.places.insert(*buffer, place);
            }
            for (_, buffer) in &launch.binds {
                if last_use[buffer] == index
                    && *buffer != lasting
                    && let Some(place) = memory.places.get(buffer)
                    && !free.contains(place)
                {
                    free.push(*place);
                }
            }
        }
        memory
    }

    /// Bytes of all physical buffers for `rows` rows.
    pub fn bytes(&self, rows: usize) -> u64 {
        self.cols.iter().map(|cols| (cols * rows * 4) as u64).sum()
    }
}
