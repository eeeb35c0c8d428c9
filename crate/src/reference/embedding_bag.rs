//! CPU references of shaders/embed/embedding_bag.wgsl and soft.wgsl.

/// Sums weighted rows of a table `[_, cols]` for each list of (row, weight).
pub fn embedding_bag(table: &[f32], cols: usize, pairs: &[Vec<(u32, f32)>]) -> Vec<f32> {
    let one = |list: &[(u32, f32)], c: usize| {
        list.iter()
            .map(|(row, w)| w * table[*row as usize * cols + c])
            .sum::<f32>()
    };
    pairs
        .iter()
        .flat_map(|list| (0..cols).map(|c| one(list, c)).collect::<Vec<_>>())
        .collect()
}

/// Adds rows of `soft` to the rows of `a` whose id is `first` or more.
pub fn add_soft_tokens(a: &[f32], cols: usize, ids: &[u32], rows: &[f32], first: u32) -> Vec<f32> {
    a.chunks(cols)
        .zip(ids)
        .flat_map(|(row, id): (&[f32], &u32)| -> Vec<f32> {
            match id.checked_sub(first) {
                Some(i) => row
                    .iter()
                    .zip(&rows[i as usize * cols..])
                    .map(|(a, s)| a + s)
                    .collect(),
                None => row.to_vec(),
            }
        })
        .collect()
}
