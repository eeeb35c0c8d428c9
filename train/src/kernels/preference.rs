//! The loss of preference pairs (DPO, arXiv 2305.18290) and its gradient.

use crate::kernel::{TrainKernel, TrainLaunch};
use crate::kernels::contiguous;
use crate::kernels::loss::cross_entropy;
use crate::kernels::norm::column_sums;
use jerboa::device::registry::Variant;
use jerboa::kernels::view::View;

/// Numbers per pair of [`PreferenceShape::results`]: loss, log-ratio of the chosen answer, of the
/// rejected one, and 1 if the chosen one has the larger.
pub const PAIR_RESULTS: usize = 4;

/// The loss of pairs over the logits of their sequences.
#[derive(Debug, Clone)]
pub struct PreferenceShape<B> {
    /// Rows of the logits.
    pub rows: usize,
    /// Columns of the logits.
    pub cols: usize,
    /// Pairs, with those that have no rows.
    pub pairs: usize,
    /// How much the log-ratios count.
    pub beta: f32,
    /// Label of each row: `rows` u32.
    pub labels: B,
    /// Loss of each row: `rows` f32.
    pub losses: B,
    /// First and end row of the chosen sequence, then of the rejected one: `[pairs, 4]` u32.
    pub spans: B,
    /// Log-probabilities by the reference model, chosen and rejected: `[pairs, 2]` f32.
    pub references: B,
    /// [`PAIR_RESULTS`] of each pair: `[pairs, 4]` f32.
    pub results: B,
    /// Sums of the results, which are added: 4 f32.
    pub sums: B,
}

impl<B: Clone> PreferenceShape<B> {
    /// Returns the launches that write `losses` and `results` and add to `sums`. With the buffers
    /// `hyper` and row scales (`rows` f32, written), they also replace the logits by the gradient
    /// of the pairs' losses times `hyper.loss_scale`.
    pub fn launches(&self, logits: &View<B>, gradient: Option<[B; 2]>) -> Vec<TrainLaunch<B>> {
        let size = [self.rows, self.cols];
        let row_losses = || {
            let (labels, losses) = (self.labels.clone(), self.losses.clone());
            cross_entropy(size, logits, labels, losses, None)
        };
        let [hyper, scales] = match gradient {
            Some(buffers) => buffers.map(Some),
            None => [None, None],
        };
        let variant = Variant::new(TrainKernel("preference"));
        let variant = variant.flag_if("GRADIENT", scales.is_some());
        let pairs = TrainLaunch::new(variant, [1, self.pairs as u32, 1])
            .bind("losses", self.losses.clone())
            .bind("pairs", self.spans.clone())
            .bind("references", self.references.clone())
            .bind("results", self.results.clone())
            .bind_opt("scales", scales.clone())
            .bind_opt("hyper", hyper)
            .set_f32("beta", self.beta);
        let results = contiguous(self.results.clone(), PAIR_RESULTS);
        let size = [self.pairs, 1, PAIR_RESULTS];
        let sums = column_sums(size, &results, self.sums.clone(), 0);
        let mut launches = vec![row_losses(), pairs, sums];
        if let Some(scales) = scales {
            let mut scaled = row_losses().bind("scales", scales);
            scaled.variant = scaled.variant.flag("GRADIENT").flag("SCALES");
            launches.push(scaled);
        }
        launches
    }
}
