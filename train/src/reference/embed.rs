//! The gradient of an embedding table.

/// Returns the gradient of a table of `table_rows` rows: the sum of the rows of dy `[ids, cols]` by
/// id.
pub fn embed_table(ids: &[u32], dy: &[f64], table_rows: usize, cols: usize) -> Vec<f64> {
    let mut table = vec![0.0; table_rows * cols];
    for (row, id) in ids.iter().enumerate() {
        for c in 0..cols {
            table[*id as usize * cols + c] += dy[row * cols + c];
        }
    }
    table
}
