//! Twin of shaders/embed: rows of a table by id.

/// `table[id] * scale` for each id, one after another.
pub fn lookup(table: &[f32], cols: usize, ids: &[u32], scale: f32) -> Vec<f32> {
    ids.iter().flat_map(|id| table[*id as usize * cols..(*id as usize + 1) * cols].iter().map(|v| v * scale)).collect()
}
