//! GPU memory for stored bytes until they are transcoded. Small parts share buffers: most parts are
//! small, and making a buffer takes longer than filling it.

use crate::Result;
use crate::format::PartRole;
use crate::gpu::{Backend, Buffer, BufferUsage, Gpu};
use crate::kernels::transcode::BufferOffset;

/// Maximum bytes of a shared buffer, and of what is transcoded at once.
const SHARED_BYTES: u64 = 16 << 20;
/// The same as a share of all staged bytes: a load needs little more memory than its weights.
const SHARE_OF_ALL: u64 = 8;
/// Parts above this share of a shared buffer have one of their own.
const MAX_SHARE: u64 = 4;
/// Parts start at multiples of this many bytes.
const ALIGNMENT: u64 = 16;

/// Gives parts their place. A shared buffer is released when the last of its parts is.
#[derive(Default)]
pub(super) struct Staging {
    /// The buffer with room for more, and its first free byte.
    shared: Option<(Buffer, u64)>,
    /// Bytes of all parts.
    all: u64,
    /// Bytes of the parts that are still to be placed.
    rest: u64,
}

impl Staging {
    /// Notes that a part will need a place.
    pub fn expect(&mut self, bytes: u64) {
        let taken = bytes.next_multiple_of(ALIGNMENT);
        self.all += taken;
        self.rest += taken;
    }

    /// Bytes of a shared buffer, and of the units that are transcoded together.
    pub fn shared_bytes(&self) -> u64 {
        SHARED_BYTES.min(self.all / SHARE_OF_ALL / ALIGNMENT * ALIGNMENT)
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
        let room = self.shared_bytes().min(gpu.caps().max_weight_buffer());
        let rest = self.rest.max(taken);
        self.rest = rest - taken;
        if is_table || bytes > room / MAX_SHARE {
            let buffer = gpu.buffer("staging", bytes, BufferUsage::Storage)?;
            return Ok(BufferOffset { buffer, at: 0 });
        }
        let fits = |(buffer, at): &(Buffer, u64)| at + taken <= buffer.size();
        let (buffer, at) = match self.shared.take().filter(fits) {
            Some(shared) => shared,
            None => (
                gpu.buffer("staging", room.min(rest).max(taken), BufferUsage::Storage)?,
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
