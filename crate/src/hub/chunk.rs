//! Bytes on their way from the network to the GPU. In the browser they stay in JavaScript's memory: only their length is
//! known here, and nothing is copied into WebAssembly unless [`Chunk::to_vec`] is called for something small.

use std::ops::Range;

#[cfg(target_arch = "wasm32")]
use js_sys::{Function, Reflect};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen::JsCast;

/// A run of bytes that is cheap to clone and to slice.
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
    /// Wraps an array without copying it.
    pub fn from_js(bytes: js_sys::Uint8Array) -> Chunk {
        Chunk { bytes }
    }

    /// Copies bytes out of WebAssembly's memory.
    #[allow(clippy::needless_pass_by_value)] // natively it takes them
    pub fn from_vec(bytes: Vec<u8>) -> Chunk {
        Chunk { bytes: js_sys::Uint8Array::from(bytes.as_slice()) }
    }

    /// The array itself, to hand to JavaScript.
    pub fn as_js(&self) -> &js_sys::Uint8Array {
        &self.bytes
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.length() as usize
    }

    /// The bytes of `range`, as a view; what lies outside the chunk is cut off.
    pub fn slice(&self, range: Range<usize>) -> Chunk {
        let end = range.end.min(self.len());
        Chunk { bytes: self.bytes.subarray(range.start.min(end) as u32, end as u32) }
    }

    /// Gives the memory of the array back, and that of all views of it, without waiting for the garbage collector.
    pub fn release(self) {
        let transfer = Reflect::get(&self.bytes.buffer(), &"transfer".into()).and_then(|f| f.dyn_into::<Function>());
        // Where a browser cannot, the collector does.
        let _ = transfer.and_then(|transfer| transfer.call1(&self.bytes.buffer(), &0.into()));
    }

    /// Copies the bytes into WebAssembly's memory: for headers and configuration, never for weights.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Chunk {
    /// Takes the bytes over.
    pub fn from_vec(bytes: Vec<u8>) -> Chunk {
        let range = 0..bytes.len();
        Chunk { bytes: std::sync::Arc::new(bytes), range }
    }

    /// The bytes themselves.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// The bytes of `range`, as a view; what lies outside the chunk is cut off.
    pub fn slice(&self, range: Range<usize>) -> Chunk {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        Chunk { bytes: self.bytes.clone(), range: self.range.start + start..self.range.start + end }
    }

    /// Gives the memory back where nobody else has the bytes.
    pub fn release(self) {}

    /// Copies the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.as_slice().to_vec()
    }
}

impl Chunk {
    /// Whether there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same bytes followed by zeros up to a multiple of `multiple`; a GPU write takes whole words only.
    pub fn padded(&self, multiple: usize) -> Chunk {
        let rest = self.len() % multiple.max(1);
        if rest == 0 {
            return self.clone();
        }
        let mut buffer = ChunkBuffer::new(self.len() + multiple - rest);
        buffer.push(self);
        buffer.fill_with_zeros();
        buffer.finish()
    }
}

/// Gathers chunks into one of known length.
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
    /// An empty buffer that will hold `capacity` bytes.
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

    /// Bytes that are still missing.
    pub fn missing(&self) -> usize {
        self.capacity - self.filled
    }

    /// Appends `chunk`, as far as it fits.
    pub fn push(&mut self, chunk: &Chunk) {
        let part = chunk.slice(0..self.missing());
        #[cfg(target_arch = "wasm32")]
        self.bytes.set(part.as_js(), self.filled as u32);
        #[cfg(not(target_arch = "wasm32"))]
        self.bytes.extend_from_slice(part.as_slice());
        self.filled += part.len();
    }

    fn fill_with_zeros(&mut self) {
        // A new Uint8Array is zero already.
        #[cfg(not(target_arch = "wasm32"))]
        self.bytes.resize(self.capacity, 0);
        self.filled = self.capacity;
    }

    /// What was gathered.
    pub fn finish(self) -> Chunk {
        #[cfg(target_arch = "wasm32")]
        return Chunk::from_js(self.bytes).slice(0..self.filled);
        #[cfg(not(target_arch = "wasm32"))]
        Chunk::from_vec(self.bytes)
    }
}
