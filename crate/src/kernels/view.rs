//! A matrix inside a buffer, the input and output type of all kernels.

/// A region of a buffer, read as a row-major matrix.
#[derive(Debug, Clone)]
pub struct View<B> {
    /// The buffer.
    pub buffer: B,
    /// Elements before the first row.
    pub offset: u32,
    /// Row stride in elements.
    pub stride: u32,
}
