//! Measures a loaded model: GPU time by kernel, bytes read per step, host overhead.

use super::{LONGER_CONTEXT, Session};
use crate::exec::batch::{DecodeBatch, SequenceParams};
use crate::exec::logits_pipeline::{LogitsPipeline, MAX_BATCH_STEPS};
use crate::exec::roofline::{Roofline, measure_roofline};
use crate::exec::step::StepTimes;
use crate::gpu::{Backend, ResourceCounts};
use crate::kernels::sample::DRAFT_ROWS;
use crate::plan::{Slot, bytes_per_token};
use crate::schema::request_options;
use crate::util::clock::now_ms;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde::Serialize;

request_options! {
    /// What to measure.
    #[serde(deny_unknown_fields)]
    pub struct MeasureOptions, MEASURE_OPTIONS {
        /// Context length at which a decode step is measured.
        position: usize = 0 => RequestOption::count(0.0).default("0").of(&[Api::Measure]);
        /// Step sizes in tokens to profile; 1 is a decode step.
        profile: Vec<usize> = Vec::new() => RequestOption::counts(0.0).default("none").of(&[Api::Measure]);
        /// Numbers of sequences whose batched decode step to profile, after `position` tokens each.
        sequences: Vec<usize> = Vec::new() => RequestOption::counts(1.0).default("none").of(&[Api::Measure]);
        /// Measures the device's limits: read bandwidth and the cost of a dispatch.
        limits: bool = false => RequestOption::boolean().default("false").of(&[Api::Measure]);
        /// Number of decode steps for measuring the host overhead.
        steps: usize = 0 => RequestOption::count(0.0).default("0").of(&[Api::Measure]);
        /// Number of speculative steps for the same; each needs eight positions of the context.
        drafts: usize = 0 => RequestOption::count(0.0).default("0").of(&[Api::Measure]);
    }
}

/// The results.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measurement {
    /// Dispatches of one greedy decode step.
    pub dispatches_per_token: usize,
    /// Bytes read by one decode step.
    pub bytes_per_token: u64,
    /// Context length of both.
    pub position: usize,
    /// Roofline of the device.
    pub limits: Option<Roofline>,
    /// Host overhead of a decode step.
    pub host: Option<HostOverhead>,
    /// Host overhead of a decode step with drafts.
    pub speculation: Option<HostOverhead>,
    /// GPU time by kernel; empty without timestamp queries.
    pub profiles: Vec<Profile>,
    /// The same of batched decode steps.
    pub batches: Vec<Profile>,
    /// Bytes of all live buffers.
    pub gpu_bytes: u64,
}

/// GPU time by kernel.
#[derive(Debug, Clone, Serialize)]
pub struct Profile {
    /// Tokens of the step, one of each sequence in a batched one.
    pub rows: usize,
    /// Position of its first token, or of each in a batched step.
    pub position: usize,
    /// Milliseconds of all dispatches, each timed separately.
    pub ms: f64,
    /// Dispatches and milliseconds by kernel.
    pub kernels: SortedMap<String, KernelShare>,
}

impl Profile {
    fn of(times: &StepTimes, rows: usize, position: usize) -> Self {
        let mut kernels: SortedMap<String, KernelShare> = SortedMap::new();
        for (kernel, ms) in times.kernels.iter().zip(&times.ms) {
            let share = kernels.get_or_insert_with(kernel.clone(), KernelShare::default);
            *share = KernelShare {
                dispatches: share.dispatches + 1,
                ms: share.ms + ms,
            };
        }
        Self {
            rows,
            position,
            ms: times.ms.iter().sum(),
            kernels,
        }
    }
}

/// Share of one kernel in a profile.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct KernelShare {
    /// Dispatches.
    pub dispatches: usize,
    /// Milliseconds.
    pub ms: f64,
}

/// Host overhead of decode steps.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostOverhead {
    /// Submitted steps.
    pub steps: usize,
    /// Milliseconds per step until its commands are submitted.
    pub ms_per_step: f64,
    /// Milliseconds per step until the GPU is done, with as many steps in flight.
    pub total_ms_per_step: f64,
    /// Buffers, pipelines and bind groups created during the measurement.
    pub objects_created: u64,
}

impl Session {
    /// Times each dispatch of a step separately and sums by kernel.
    ///
    /// # Errors
    /// `UnsupportedOption` without timestamp queries; `SequenceTooLong` when the step does not fit.
    pub async fn profile_kernels(&mut self, rows: usize, position: usize) -> Result<Profile> {
        if !self.model.gpu.caps().timestamps {
            return Err(Error::UnsupportedOption {
                architecture: self.model.graph().name.clone(),
                option: "profile".into(),
                hint: "The device has no timestamp queries. Measure without 'profile', or on another device.".into(),
            });
        }
        self.check_room(rows, position)?;
        // Warm up caches and clocks.
        self.profile(rows, position).await?;
        let times = self.profile(rows, position).await?;
        Ok(Profile::of(&times, rows, position))
    }

    /// Times each dispatch of a batched decode step, of sequences with the same tokens. Clears the
    /// session.
    async fn profile_batch(&mut self, sequences: usize, position: usize) -> Result<Profile> {
        let position = position.max(1);
        self.check_room(1, position)?;
        let ids: Vec<u32> = (0..position).map(|at| (at % self.vocab()) as u32).collect();
        self.clear();
        self.prefill(&ids, 0).await?;
        let mut batch = DecodeBatch::for_sessions_like(self, sequences).await?;
        for _ in 0..sequences {
            batch.join(self, SequenceParams::greedy(1)).await?;
        }
        // Warm up caches and clocks.
        batch.profile().await?;
        let times = batch.profile().await?;
        self.clear();
        Ok(Profile::of(&times, sequences, position))
    }

    fn check_room(&self, rows: usize, position: usize) -> Result<()> {
        if rows == 0 || position + rows > self.model.capacity() {
            return Err(Error::SequenceTooLong {
                what: "the measured step",
                tokens: position + rows,
                limit: self.model.capacity(),
                hint: LONGER_CONTEXT,
            });
        }
        Ok(())
    }

    /// Submits decode steps as a generation does and times the host's part. Overwrites the KV cache
    /// from `position` on.
    ///
    /// # Errors
    /// `SequenceTooLong` when the steps do not fit; device errors.
    pub async fn host_cost(&mut self, steps: usize, position: usize) -> Result<HostOverhead> {
        self.reserve_steps(steps, position, 1).await?;
        let end = position + steps.next_multiple_of(MAX_BATCH_STEPS);
        let greedy = LogitsPipeline::greedy();
        self.time_steps(steps, position, 1, |count| {
            self.submit_steps(count, &greedy, end)
        })
        .await
    }

    /// Measures the same for steps with seven drafts each, whether accepted or not.
    ///
    /// # Errors
    /// `SequenceTooLong` when the steps do not fit; device errors.
    pub async fn speculation_cost(
        &mut self,
        steps: usize,
        position: usize,
    ) -> Result<HostOverhead> {
        self.prepare_speculation().await?;
        self.reserve_steps(steps, position, DRAFT_ROWS as usize)
            .await?;
        // Identical tokens make every lookup match.
        let text = vec![0u32; self.model.capacity()];
        self.model
            .gpu
            .write(self.buffer(Slot::History)?, 0, bytemuck::cast_slice(&text));
        self.model
            .gpu
            .write(self.buffer(Slot::Ids)?, 0, bytemuck::cast_slice(&text[..1]));
        let rows = DRAFT_ROWS as usize;
        self.time_steps(steps, position, rows, |count| {
            self.submit_speculative(count, true, self.model.capacity())
        })
        .await
    }

    /// Clears the sequence and reserves room for steps of up to `most` tokens each.
    async fn reserve_steps(&mut self, steps: usize, position: usize, most: usize) -> Result<()> {
        let rows = steps.next_multiple_of(MAX_BATCH_STEPS) * most;
        self.check_room(rows, position)?;
        self.clear();
        self.reserve_on_device(position + rows).await
    }

    /// Times steps that yield up to `most` tokens each.
    async fn time_steps(
        &self,
        steps: usize,
        position: usize,
        most: usize,
        submit: impl Fn(usize) -> Result<()>,
    ) -> Result<HostOverhead> {
        let steps = steps.next_multiple_of(MAX_BATCH_STEPS);
        let made = |c: ResourceCounts| c.buffers + c.pipelines + c.bind_groups;
        self.set_state(position, 1, steps * most)?;
        self.model.gpu.wait_idle().await?;
        let before = made(self.model.gpu.resource_counts());
        let start = now_ms();
        for _ in 0..steps / MAX_BATCH_STEPS {
            submit(MAX_BATCH_STEPS)?;
        }
        let submitted = now_ms();
        let after = made(self.model.gpu.resource_counts());
        self.model.gpu.wait_idle().await?;
        let done = now_ms();
        self.model.gpu.check().await?;
        Ok(HostOverhead {
            steps,
            ms_per_step: (submitted - start) / steps as f64,
            total_ms_per_step: (done - start) / steps as f64,
            objects_created: after - before,
        })
    }

    /// Bytes that a decode step at `position` reads ([`bytes_per_token`]).
    pub fn bytes_per_token(&self, position: usize) -> u64 {
        bytes_per_token(
            self.model.graph(),
            self.model().weights(),
            self.model.states(),
            position,
        )
    }

    /// Runs all requested measurements.
    ///
    /// # Errors
    /// As each measurement.
    pub async fn measure(&mut self, options: &MeasureOptions) -> Result<Measurement> {
        let position = options
            .position
            .min(self.model.capacity().saturating_sub(1));
        let mut profiles = Vec::new();
        if self.model.gpu.caps().timestamps {
            for rows in &options.profile {
                let position = if *rows == 1 { position } else { 0 };
                profiles.push(self.profile_kernels(*rows, position).await?);
            }
        }
        let mut batches = Vec::new();
        if self.model.gpu.caps().timestamps {
            for sequences in &options.sequences {
                batches.push(self.profile_batch(*sequences, position).await?);
            }
        }
        let limits = if options.limits {
            Some(measure_roofline(&self.model.gpu).await?)
        } else {
            None
        };
        let host = match options.steps {
            0 => None,
            steps => Some(self.host_cost(steps, position).await?),
        };
        let speculation = match options.drafts {
            0 => None,
            steps => Some(self.speculation_cost(steps, position).await?),
        };
        Ok(Measurement {
            dispatches_per_token: self.model.dispatches(),
            bytes_per_token: self.bytes_per_token(position),
            position,
            limits,
            host,
            speculation,
            profiles,
            batches,
            gpu_bytes: self.model.gpu.resource_counts().bytes,
        })
    }
}
