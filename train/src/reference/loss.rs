//! Losses of rows and their gradients.

/// Returns the softmax cross-entropy of each row, and the gradient of their sum times `scale`. Rows
/// without a label have neither.
pub fn cross_entropy(
    logits: &[f64],
    labels: &[Option<u32>],
    cols: usize,
    scale: f64,
) -> [Vec<f64>; 2] {
    let mut losses = Vec::with_capacity(labels.len());
    let mut gradient = Vec::with_capacity(logits.len());
    for (row, label) in logits.chunks_exact(cols).zip(labels) {
        let Some(label) = label.map(|label| label as usize) else {
            losses.push(0.0);
            gradient.extend(std::iter::repeat_n(0.0, cols));
            continue;
        };
        let most = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
        losses.push(sum.ln() - (row[label] - most));
        gradient.extend(row.iter().enumerate().map(|(c, x)| {
            let hot = f64::from(u8::from(c == label));
            ((x - most).exp() / sum - hot) * scale
        }));
    }
    [losses, gradient]
}

/// Returns the sum of squared errors of each row, and the gradient of their sum times `scale`.
pub fn mean_square(predictions: &[f64], goals: &[f64], cols: usize, scale: f64) -> [Vec<f64>; 2] {
    let differences: Vec<f64> = predictions.iter().zip(goals).map(|(p, g)| p - g).collect();
    let losses = differences
        .chunks_exact(cols)
        .map(|row| row.iter().map(|d| d * d).sum())
        .collect();
    [
        losses,
        differences.iter().map(|d| 2.0 * d * scale).collect(),
    ]
}
