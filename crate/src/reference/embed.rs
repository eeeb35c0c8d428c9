//! CPU reference of shaders/embed: table rows by id.

/// Returns `table[id] * scale` for each id.
pub fn lookup(table: &[f32], cols: usize, ids: &[u32], scale: f32) -> Vec<f32> {
    ids.iter()
        .flat_map(|id| {
            table[*id as usize * cols..(*id as usize + 1) * cols]
                .iter()
                .map(|v| v * scale)
        })
        .collect()
}
