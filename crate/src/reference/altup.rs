//! CPU reference of shaders/altup: AltUp streams and whole-row operations, in f64.

use super::elementwise::activate;

/// Multiplies each row of a table by `modes`.
fn coefs(table: &[f32], modes: &[f32]) -> Vec<f64> {
    table
        .chunks(modes.len())
        .map(|row: &[f32]| {
            row.iter()
                .zip(modes)
                .map(|(c, m)| f64::from(*c) * f64::from(*m))
                .sum()
        })
        .collect()
}

/// Predicts one row of streams; `added` is first added to all streams but the first.
pub fn predict(streams: &[f32], modes: &[f32], table: &[f32], added: Option<&[f32]>) -> Vec<f32> {
    let count = modes.len();
    let cols = streams.len() / modes.len();

    let c = coefs(table, modes);
    let given = |stream: usize, col: usize| {
        let more = added
            .filter(|_| stream > 0)
            .map_or(0.0, |row| f64::from(row[col]));
        f64::from(streams[stream * cols + col]) + more
    };

    (0..streams.len())
        .map(|at: usize| {
            let i = at / cols;
            let col = at % cols;

            let mixed: f64 = (0..count).map(|j| c[i * count + j] * given(j, col)).sum();
            (given(i, col) + mixed) as f32
        })
        .collect()
}

/// Corrects one row of streams by the layer output.
pub fn correct(streams: &[f32], modes: &[f32], table: &[f32], layer: &[f32]) -> Vec<f32> {
    let c = coefs(table, modes);
    let cols = layer.len();

    streams
        .iter()
        .enumerate()
        .map(|(at, x): (usize, &f32)| {
            let changed = f64::from(layer[at % cols]) - f64::from(streams[at % cols]);
            (f64::from(*x) + (1.0 + c[at / cols]) * changed) as f32
        })
        .collect()
}

fn mean(x: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = x.len() as f64;
    x.sum::<f64>() / count
}

/// Scales one row to the magnitude of another, then adds a row.
pub fn match_magnitude(x: &[f32], like: &[f32], added: Option<&[f32]>) -> Vec<f32> {
    let square = |row: &[f32]| mean(row.iter().map(|v| f64::from(*v).powi(2)));
    let factor = square(like).sqrt() / square(x).max(1e-5).sqrt();

    x.iter()
        .enumerate()
        .map(|(i, v): (usize, &f32)| {
            (f64::from(*v) * factor + added.map_or(0.0, |a| f64::from(a[i]))) as f32
        })
        .collect()
}

/// Computes `act(relu(gate - (mean + factor * deviation))) * up` of one row.
pub fn sparse(gate: &[f32], up: &[f32], act: u32, factor: f64) -> Vec<f32> {
    let middle = mean(gate.iter().map(|v| f64::from(*v)));
    let deviation = mean(gate.iter().map(|v| (f64::from(*v) - middle).powi(2))).sqrt();
    let least = middle + factor * deviation;
    gate.iter()
        .zip(up)
        .map(|(g, u)| activate(act, (f64::from(*g) - least).max(0.0) as f32) * u)
        .collect()
}
