//! CPU reference of shaders/pool: one row per row span, in f64.

use crate::ir::Pooling;
use std::ops::Range;

/// Pools each span of `x`, whose rows have `cols` columns.
pub fn pool(x: &[f32], cols: usize, spans: &[Range<usize>], pooling: Pooling) -> Vec<f32> {
    let at = |row: usize, c: usize| f64::from(x[row * cols + c]);
    let one = |span: &Range<usize>, c: usize| {
        let n = span.len() as f64;
        let sum =
            |weight: &dyn Fn(usize) -> f64| span.clone().map(|r| at(r, c) * weight(r)).sum::<f64>();
        match pooling {
            Pooling::Mean => sum(&|_| 1.0) / n,
            Pooling::First => at(span.start, c),
            Pooling::Last => at(span.end - 1, c),
            Pooling::Max => span.clone().map(|r| at(r, c)).fold(f64::MIN, f64::max),
            Pooling::MeanSqrt => sum(&|_| 1.0) / n.sqrt(),
            Pooling::Weighted => sum(&|r| (r - span.start + 1) as f64) / (n * (n + 1.0) / 2.0),
        }
    };
    spans
        .iter()
        .flat_map(|span| (0..cols).map(|c| one(span, c) as f32).collect::<Vec<f32>>())
        .collect()
}
