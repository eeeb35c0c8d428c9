//! Byte buffers on their way from the network to the GPU. In the browser the bytes stay in
//! JavaScript memory and only their length is known here. [`Chunk::to_vec`] copies them into
//! WebAssembly, for small data only.

use std::ops::Range;

#[cfg(target_arch = "wasm32")]
use js_sys::{Function, Reflect};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen::JsCast;

/// A byte range that is cheap to clone and to slice.
#[derive(Clone, Debug)]
pub struct Chunk {
    #[cfg(target_arch = "wasm32")]
    bytes: js_sys::Uint8Array,
    #[cfg(not(target_arch = "wasm32"))]
    bytes: std::sync::Arc<Vec<u8>>,
    #[cfg(not(target_arch = "wasm32"))]
    range: Range<usize>,
}

#[cfg(target_arch = "wasm32")]
impl Chunk {
    /// Wraps a JavaScript array without copying it.
    pub fn from_js(bytes: js_sys::Uint8Array) -> Chunk {
        Chunk { bytes }
    }

    /// Copies bytes out of WebAssembly memory.
    #[allow(clippy::needless_pass_by_value)] // natively it takes them
    pub fn from_vec(bytes: Vec<u8>) -> Chunk {
        Chunk {
            bytes: js_sys::Uint8Array::from(bytes.as_slice()),
        }
    }

    /// The underlying array, to pass to JavaScript.
    pub fn as_js(&self) -> &js_sys::Uint8Array {
        &self.bytes
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.length() as usize
    }

    /// A view of `range`, clamped to the chunk.
    pub fn slice(&self, range: Range<usize>) -> Chunk {
        let end = range.end.min(self.len());
        Chunk {
            bytes: self.bytes.subarray(range.start.min(end) as u32, end as u32),
        }
    }

    /// Frees the array's memory and that of all its views, without waiting for the garbage
    /// collector.
    pub fn release(self) {
        let transfer = Reflect::get(&self.bytes.buffer(), &"transfer".into())
            .and_then(|f| f.dyn_into::<Function>());
        // Browsers without `transfer` leave it to the garbage collector.
        let _ = transfer.and_then(|transfer| transfer.call1(&self.bytes.buffer(), &0.into()));
    }

    /// Copies the bytes into WebAssembly memory: for headers and configuration, never for weights.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Chunk {
    /// Takes ownership of the bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Chunk {
        let range = 0..bytes.len();
        Chunk {
            bytes: std::sync::Arc::new(bytes),
            range,
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// A view of `range`, clamped to the chunk.
    pub fn slice(&self, range: Range<usize>) -> Chunk {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        Chunk {
            bytes: self.bytes.clone(),
            range: self.range.start + start..self.range.start + end,
        }
    }

    /// Drops this reference; the memory is freed with the last one.
    pub fn release(self) {}

    /// Copies the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.as_slice().to_vec()
    }
}

impl Chunk {
    /// Whether the chunk has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends zeros up to a multiple of `multiple` bytes; GPU writes need whole words.
    pub fn padded(&self, multiple: usize) -> Chunk {
        let rest = self.len() % multiple.max(1);
        if rest == 0 {
            return self.clone();
        }
        let mut buffer = ChunkBuffer::new(self.len() + multiple - rest);
        buffer.push(self);
        buffer.zero_fill();
        buffer.finish()
    }
}

/// Concatenates chunks into one of known length.
#[derive(Debug)]
pub struct ChunkBuffer {
    #[cfg(target_arch = "wasm32")]
    bytes: js_sys::Uint8Array,
    #[cfg(not(target_arch = "wasm32"))]
    bytes: Vec<u8>,
    capacity: usize,
    filled: usize,
}

impl ChunkBuffer {
    /// Creates an empty buffer of `capacity` bytes.
    pub fn new(capacity: usize) -> ChunkBuffer {
        ChunkBuffer {
            #[cfg(target_arch = "wasm32")]
            bytes: js_sys::Uint8Array::new_with_length(capacity as u32),
            #[cfg(not(target_arch = "wasm32"))]
            bytes: Vec::with_capacity(capacity),
            capacity,
            filled: 0,
        }
    }

    /// Number of bytes not yet filled.
    pub fn missing(&self) -> usize {
        self.capacity - self.filled
    }

    /// Appends `chunk`, truncated to the remaining capacity.
    pub fn push(&mut self, chunk: &Chunk) {
        let part = chunk.slice(0..self.missing());
        #[cfg(target_arch = "wasm32")]
        self.bytes.set(part.as_js(), self.filled as u32);
        #[cfg(not(target_arch = "wasm32"))]
        self.bytes.extend_from_slice(part.as_slice());
        self.filled += part.len();
    }

    fn zero_fill(&mut self) {
        // A new Uint8Array is already zeroed.
        #[cfg(not(target_arch = "wasm32"))]
        self.bytes.resize(self.capacity, 0);
        self.filled = self.capacity;
    }

    /// Returns the filled bytes.
    pub fn finish(self) -> Chunk {
        #[cfg(target_arch = "wasm32")]
        return Chunk::from_js(self.bytes).slice(0..self.filled);
        #[cfg(not(target_arch = "wasm32"))]
        Chunk::from_vec(self.bytes)
    }
}
