//! RoPE and its gradient.

/// Rotates the first `dim` columns of heads of `head_dim` columns by a row's (cos, sin) pairs, or
/// with `inverse` back.
pub fn rotate(
    x: &[f64],
    [head_dim, dim]: [usize; 2],
    interleaved: bool,
    turns: &dyn Fn(usize) -> Vec<[f64; 2]>,
    width: usize,
    inverse: bool,
) -> Vec<f64> {
    let mut out = x.to_vec();
    for (row, values) in out.chunks_exact_mut(width).enumerate() {
        let turns = turns(row);
        for head in values.chunks_exact_mut(head_dim) {
            for (pair, [cos, sin]) in turns.iter().enumerate() {
                let places = if interleaved {
                    [2 * pair, 2 * pair + 1]
                } else {
                    [pair, pair + dim / 2]
                };
                let [a, b] = places.map(|place| head[place]);
                let sin = if inverse { -sin } else { *sin };
                head[places[0]] = a * cos - b * sin;
                head[places[1]] = b * cos + a * sin;
            }
        }
    }
    out
}
