//! Beam search as a state machine: takes rows of log-probabilities, returns the next token and
//! parent of each beam. Follows transformers' `generate`: scores are summed log-probabilities over
//! length to the power of the penalty.

use crate::util::sort;

/// Lower than any real score.
const MIN_SCORE: f32 = -1e9;

/// Options of a beam search.
#[derive(Debug, Clone)]
pub struct BeamOptions {
    /// Number of beams.
    pub beams: usize,
    /// Exponent of the length that divides a score.
    pub length_penalty: f32,
    /// Maximum tokens after the prompt.
    pub max_tokens: usize,
    /// End tokens.
    pub end_tokens: Vec<u32>,
}

/// A running or finished hypothesis.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Tokens after the prompt, the end token included.
    pub ids: Vec<u32>,
    /// The parent beam of each token.
    pub path: Vec<usize>,
    /// Sum of log-probabilities; once finished, divided by the length penalty.
    pub score: f32,
}

/// A beam of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeamStep {
    /// The previous beam whose KV cache it continues.
    pub parent: usize,
    /// Its next token.
    pub token: u32,
}

/// State of a beam search.
#[derive(Debug, Clone)]
pub struct BeamSearch {
    options: BeamOptions,
    running: Vec<Hypothesis>,
    finished: Vec<Hypothesis>,
}

impl BeamSearch {
    /// Creates a search that starts after the prompt.
    pub fn new(options: BeamOptions) -> Self {
        let running = vec![Hypothesis {
            ids: Vec::new(),
            path: Vec::new(),
            score: 0.0,
        }];
        Self {
            options,
            running,
            finished: Vec::new(),
        }
    }

    /// Takes the log-probabilities of each running beam, with disallowed tokens at -inf; one row in
    /// the first step. Returns the beams of the next step, or none when the search is over.
    pub fn step(&mut self, rows: &[Vec<f32>]) -> Vec<BeamStep> {
        let beams = self.options.beams;
        let keep = beams * (1 + self.options.end_tokens.len()).max(2);
        let mut best: Vec<(f32, usize, u32)> = Vec::new();
        for (beam, row) in rows.iter().enumerate() {
            best.extend(
                top_values(row, keep)
                    .into_iter()
                    .map(|(id, p)| (p + self.running[beam].score, beam, id)),
            );
        }
        sort::sort_by(&mut best, |a, b| {
            b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2)))
        });
        best.truncate(keep);
        let length = self.running[0].ids.len() + 1;
        let ended =
            |id: u32| self.options.end_tokens.contains(&id) || length >= self.options.max_tokens;
        let grown = |&(score, beam, id): &(f32, usize, u32)| {
            let mut next = self.running[beam].clone();
            next.ids.push(id);
            next.path.push(beam);
            next.score = score;
            next
        };
        let divisor = (length as f32).powf(self.options.length_penalty);
        let mut done: Vec<Hypothesis> = best
            .iter()
            .take(beams)
            .filter(|c| ended(c.2))
            .map(grown)
            .collect();
        done.iter_mut().for_each(|h| h.score /= divisor);
        let running: Vec<Hypothesis> = best
            .iter()
            .filter(|c| !ended(c.2))
            .take(beams)
            .map(grown)
            .collect();
        let goes_on = running.len() == beams.min(best.len());
        self.finished.extend(done);
        sort::sort_by(&mut self.finished, |a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(beams);
        self.running = running;
        let Some(leader) = self.running.first() else {
            return Vec::new();
        };
        // Continue only if the best running beam can still beat the worst finished one.
        let worst = if self.finished.len() == beams {
            self.finished[beams - 1].score
        } else {
            MIN_SCORE
        };
        if !goes_on || leader.score / divisor <= worst {
            return Vec::new();
        }

        self.running
            .iter()
            .map(|h: &Hypothesis| BeamStep {
                parent: h.path[length - 1],
                token: h.ids[length - 1],
            })
            .collect()
    }

    /// Returns the finished hypotheses, best first; the running ones if none is finished.
    pub fn results(mut self) -> Vec<Hypothesis> {
        if self.finished.is_empty() {
            for text in &mut self.running {
                text.score /= (text.ids.len().max(1) as f32).powf(self.options.length_penalty);
            }
            return self.running;
        }
        self.finished
    }
}

/// Converts a row of logits to log-probabilities in place.
pub fn log_softmax(logits: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|v| f64::from(v - max).exp()).sum();
    let norm = f64::from(max) + sum.ln();
    logits
        .iter_mut()
        .for_each(|v| *v = (f64::from(*v) - norm) as f32);
}

/// Returns the `count` largest values of a row, largest first.
fn top_values(row: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (id, p) in row.iter().enumerate().filter(|(_, p)| p.is_finite()) {
        // Ties keep the order of ids.
        let place = best.partition_point(|(_, other)| other.total_cmp(p).is_ge());
        if place < count {
            best.truncate(count - 1);
            best.insert(place, (id as u32, *p));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A toy model of three tokens whose probabilities depend on the last one; 2 is the end token.
    fn row(last: Option<u32>) -> Vec<f32> {
        let p: [f32; 4] = match last {
            None => [0.5, 0.4, 0.1, 1e-6],
            Some(0) => [0.35, 0.35, 0.3, 1e-6],
            Some(1) => [0.05, 0.05, 0.9, 1e-6],
            _ => [0.25; 4],
        };
        p.iter().map(|p| p.ln()).collect()
    }

    fn search(beams: usize, most: usize) -> Vec<Hypothesis> {
        let mut search = BeamSearch::new(BeamOptions {
            beams,
            length_penalty: 0.0,
            max_tokens: most,
            end_tokens: vec![2],
        });
        let mut rows = vec![row(None)];
        loop {
            let next = search.step(&rows);
            if next.is_empty() {
                return search.results();
            }
            rows = next.iter().map(|s| row(Some(s.token))).collect();
        }
    }

    #[test]
    fn the_best_hypothesis_is_not_the_greedy_one() {
        let found = search(3, 6);
        assert_eq!(
            found[0].ids,
            [1, 2],
            "0.36 in all, where the greedy text begins with 0"
        );
        assert!((found[0].score - 0.36f32.ln()).abs() < 1e-5);
        assert_eq!(found[1].ids, [0, 1, 2]);
        assert!(found.windows(2).all(|w| w[0].score >= w[1].score));
    }

    #[test]
    fn a_limit_ends_hypotheses_without_an_end_token() {
        let found = search(2, 1);
        assert_eq!(
            found.iter().map(|h| h.ids.clone()).collect::<Vec<_>>(),
            [[0], [1]]
        );
    }

    #[test]
    fn log_softmax_sums_to_one() {
        let mut row = vec![1.0, 2.0, -50.0, f32::NEG_INFINITY];
        log_softmax(&mut row);
        assert!((row.iter().map(|v| v.exp()).sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(top_values(&row, 9).len(), 3);
    }
}
