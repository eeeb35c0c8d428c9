//! What the steps of constrained generations take on a device.

/// Weight of the last measurement in a mean.
const LAST_MEASUREMENT_WEIGHT: f64 = 0.25;
/// Shortest wait for a readback that is assumed, in milliseconds.
const MIN_WAIT_MS: f64 = 0.05;

/// Milliseconds of a constrained generation's steps, as measured on this device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepCosts {
    /// From one token to the next if each waits for its readback.
    alone: Option<f64>,
    /// The same if the next step was queued behind the last.
    queued: Option<f64>,
}

impl StepCosts {
    fn mean(known: &mut Option<f64>, took: f64) {
        let mean = known.get_or_insert(took);
        *mean += LAST_MEASUREMENT_WEIGHT * (took - *mean);
    }

    /// Notes the time of a step that waited for the readback of the one before.
    pub(super) fn record_alone(&mut self, took: f64) {
        Self::mean(&mut self.alone, took);
    }

    /// Notes the time of a step that was queued behind another.
    pub(super) fn record_queued(&mut self, took: f64) {
        Self::mean(&mut self.queued, took);
    }

    /// What a kept token saves, and what a step costs; `None` until both were measured.
    pub(super) fn known(self) -> Option<(f64, f64)> {
        let step = self.queued?.max(0.01);
        Some(((self.alone? - step).max(MIN_WAIT_MS), step))
    }
}
