//! GPU memory for stored bytes until they are transcoded. Small parts share buffers: most parts are
//! small, and making a buffer takes longer than filling it.

use crate::Result;
use crate::format::PartRole;
use crate::gpu::{Backend, Buffer, BufferUsage, Gpu};
use crate::kernels::transcode::BufferOffset;

/// Bytes of a shared buffer, where the device has buffers of that size.
const SHARED_BYTES: u64 = 16 << 20;
/// Parts above this share of a shared buffer have one of their own.
const MAX_SHARE: u64 = 4;
/// Parts start at multiples of this many bytes.
const ALIGNMENT: u64 = 16;

/// Gives parts their place. A shared buffer is released when the last of its parts is.
#[derive(Default)]
pub(super) struct Staging {
    /// The buffer with room for more, and its first free byte.
    shared: Option<(Buffer, u64)>,
    /// Bytes of the parts that are still to be placed.
    expected: u64,
}

impl Staging {
    /// Notes that a part will need a place.
    pub fn expect(&mut self, bytes: u64) {
        self.expected += bytes.next_multiple_of(ALIGNMENT);
    }

    /// The place of a part of `bytes` bytes, up to the next multiple of four.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn place(&mut self, gpu: &Gpu, role: PartRole, bytes: u64) -> Result<BufferOffset<Buffer>> {
        // Kernels read tables from the start of a buffer.
        let is_table = !matches!(
            role,
            PartRole::Weight | PartRole::Scales | PartRole::Zeros | PartRole::Biases
        );
        let taken = bytes.next_multiple_of(ALIGNMENT);
        let room = SHARED_BYTES.min(gpu.caps().max_weight_buffer());
        let rest = self.expected.max(taken);
        self.expected = rest - taken;
        if is_table || bytes > room / MAX_SHARE {
            let buffer = gpu.buffer("staging", bytes, BufferUsage::Storage)?;
            return Ok(BufferOffset { buffer, at: 0 });
        }
        let fits = |(buffer, at): &(Buffer, u64)| at + taken <= buffer.size();
        let (buffer, at) = match self.shared.take().filter(fits) {
            Some(shared) => shared,
            None => (
                gpu.buffer("staging", room.min(rest), BufferUsage::Storage)?,
                0,
            ),
        };
        self.shared = Some((buffer.clone(), at + taken));
        Ok(BufferOffset {
            buffer,
            at: at as u32,
        })
    }
}
