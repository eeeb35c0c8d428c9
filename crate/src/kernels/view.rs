//! A matrix inside a buffer, as every kernel family reads and writes it. Knows no kernel.

/// A part of a buffer that is seen as a matrix of rows.
#[derive(Debug, Clone)]
pub struct View<B> {
    /// The buffer.
    pub buffer: B,
    /// Elements before the first row.
    pub offset: u32,
    /// Elements from one row to the next.
    pub stride: u32,
}
