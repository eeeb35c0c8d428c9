// Rows of packed sequences that attend to each other: `spans` has the first and the end row of each row's sequence.
// Row i sees keys from i - before to i + after of its sequence.
fn first_key(row: u32) -> u32 {
    return max(spans[row].x, row - min(row, params.before));
}

fn end_key(row: u32) -> u32 {
    return min(spans[row].y, row + min(params.after, params.rows) + 1u);
}

// Rows that see a key.
fn first_query(key: u32) -> u32 {
    return max(spans[key].x, key - min(key, params.after));
}

fn end_query(key: u32) -> u32 {
    return min(spans[key].y, key + min(params.before, params.rows) + 1u);
}

// Score of a query and a key from their dot product.
fn score_of(product: f32) -> f32 {
    let score = product * params.scale;
    if (params.softcap > 0.0) { return params.softcap * tanh(clamp(score / params.softcap, -15.0, 15.0)); }
    return score;
}

// Derivative of `score_of` by the dot product, from the score.
fn score_slope(score: f32) -> f32 {
    if (params.softcap > 0.0) {
        let t = score / params.softcap;
        return params.scale * (1.0 - t * t);
    }
    return params.scale;
}
