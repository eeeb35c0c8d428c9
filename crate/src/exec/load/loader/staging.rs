//! GPU memory for stored bytes until they are transcoded. Small parts share buffers: most parts are
//! small, and making a buffer takes longer than filling it.

use crate::Result;
use crate::format::PartRole;
use crate::gpu::{Backend, Buffer, BufferUsage, Gpu};
use crate::kernels::transcode::BufferOffset;

/// Bytes of a shared buffer.
const SHARED_BYTES: u64 = 16 << 20;
/// Larger parts have a buffer of their own.
const MAX_SHARED_PART: u64 = SHARED_BYTES / 4;
/// Parts start at multiples of this many bytes.
const ALIGNMENT: u64 = 16;

/// Gives parts their place. A shared buffer is released when the last of its parts is.
#[derive(Default)]
pub(super) struct Staging {
    /// The buffer with room for more, and its first free byte.
    shared: Option<(Buffer, u64)>,
}

impl Staging {
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
        if is_table || bytes > MAX_SHARED_PART {
            let buffer = gpu.buffer("staging", bytes, BufferUsage::Storage)?;
            return Ok(BufferOffset { buffer, at: 0 });
        }
        let fits = |at: &u64| at + bytes.next_multiple_of(ALIGNMENT) <= SHARED_BYTES;
        let (buffer, at) = match self.shared.take().filter(|(_, at)| fits(at)) {
            Some(shared) => shared,
            None => (
                gpu.buffer("staging", SHARED_BYTES, BufferUsage::Storage)?,
                0,
            ),
        };
        self.shared = Some((buffer.clone(), at + bytes.next_multiple_of(ALIGNMENT)));
        Ok(BufferOffset {
            buffer,
            at: at as u32,
        })
    }
}
