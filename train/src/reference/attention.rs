//! Attention of packed sequences and its gradients.

/// Attention over q `[rows, heads * head_dim]` and k, v `[rows, kv_heads * head_dim]`.
#[derive(Debug, Clone)]
pub struct AttentionLayer {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// Maximum distance of a key before its query.
    pub before: usize,
    /// Maximum distance of a key after its query.
    pub after: usize,
    /// Multiplies the scores.
    pub scale: f64,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f64,
    /// One logit per head.
    pub sinks: Option<Vec<f64>>,
    /// First and end row of each row's sequence.
    pub spans: Vec<[usize; 2]>,
}

/// Gradients of q, k and v.
pub type AttentionGradients = [Vec<f64>; 3];

impl AttentionLayer {
    fn keys(&self, row: usize) -> std::ops::Range<usize> {
        let [first, end] = self.spans[row];
        first.max(row.saturating_sub(self.before))..end.min(row.saturating_add(self.after + 1))
    }

    fn dot(&self, a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    fn head<'a>(&self, x: &'a [f64], row: usize, head: usize, heads: usize) -> &'a [f64] {
        let at = (row * heads + head) * self.head_dim;
        &x[at..at + self.head_dim]
    }

    /// Scores and probabilities of a row and head.
    fn probabilities(&self, q: &[f64], k: &[f64], row: usize, head: usize) -> [Vec<f64>; 2] {
        let shared = head / (self.heads / self.kv_heads);
        let query = self.head(q, row, head, self.heads);
        let score = |key: usize| {
            let score = self.dot(query, self.head(k, key, shared, self.kv_heads)) * self.scale;
            if self.softcap > 0.0 {
                self.softcap * (score / self.softcap).tanh()
            } else {
                score
            }
        };
        let scores: Vec<f64> = self.keys(row).map(score).collect();
        let sink = self.sinks.as_ref().map(|sinks| sinks[head]);
        let most = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
        let all = scores.iter().copied().chain(sink);
        let sum: f64 = all.map(|score| (score - most).exp()).sum();
        let weights = scores.iter().map(|score| (score - most).exp() / sum);
        let weights = weights.collect();
        [scores, weights]
    }

    /// Returns the output, `[rows, heads * head_dim]`.
    pub fn forward(&self, q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; q.len()];
        for row in 0..self.spans.len() {
            for head in 0..self.heads {
                let [_, weights] = self.probabilities(q, k, row, head);
                let shared = head / (self.heads / self.kv_heads);
                for (key, weight) in self.keys(row).zip(&weights) {
                    let value = self.head(v, key, shared, self.kv_heads);
                    for (d, value) in value.iter().enumerate() {
                        out[(row * self.heads + head) * self.head_dim + d] += weight * value;
                    }
                }
            }
        }
        out
    }

    /// Returns the gradients of q, k and v.
    pub fn gradients(&self, q: &[f64], k: &[f64], v: &[f64], dy: &[f64]) -> AttentionGradients {
        let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![0.0; x.len()]);
        for row in 0..self.spans.len() {
            for head in 0..self.heads {
                let [scores, weights] = self.probabilities(q, k, row, head);
                let shared = head / (self.heads / self.kv_heads);
                let upper = self.head(dy, row, head, self.heads);
                let above: Vec<f64> = self
                    .keys(row)
                    .map(|key| self.dot(upper, self.head(v, key, shared, self.kv_heads)))
                    .collect();
                let mean = self.dot(&above, &weights);
                for (i, key) in self.keys(row).enumerate() {
                    let cap = if self.softcap > 0.0 {
                        1.0 - (scores[i] / self.softcap).powi(2)
                    } else {
                        1.0
                    };
                    let slope = weights[i] * (above[i] - mean) * cap * self.scale;
                    let query_at = (row * self.heads + head) * self.head_dim;
                    let key_at = (key * self.kv_heads + shared) * self.head_dim;
                    for d in 0..self.head_dim {
                        dq[query_at + d] += slope * k[key_at + d];
                        dk[key_at + d] += slope * q[query_at + d];
                        dv[key_at + d] += weights[i] * upper[d];
                    }
                }
            }
        }
        [dq, dk, dv]
    }
}
