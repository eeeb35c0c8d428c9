//! Autotuning: finds the fastest kernel variants of this device, from a stored record or a
//! measurement at the start of a load. `contest` lists the variants, `probe` times them.

mod candidates;
mod probe;
mod record;

use super::load_times::Stopwatch;
use crate::device::tuning_table::TuningTable;
use crate::format::WeightLayout;
use crate::gpu::{Backend, Gpu};
use crate::hub::Source;
use crate::ir::WeightKind;
use crate::plan::WeightPlans;
use crate::{Error, Result};
pub use candidates::{TuningCase, TuningTarget};
use probe::Timings;
pub use probe::time_candidates;
pub use record::RECORDS as TUNING_RECORDS;
use record::{StoredRecords, TuningRecord};
use serde::Serialize;
use serde_json::{Map, Value};

/// Minimum relative speedup to replace the default variant. An H200 at a low clock when a page
/// opens shows the slowest variant up to 22 % ahead of the fastest (87 loads). A wrong variant
/// takes twice the time.
const MIN_VARIANT_GAIN: f64 = 0.4;
/// Microseconds from which a dispatch counts as expensive: 30 to 70 on phones, about 4 on an H200.
const EXPENSIVE_DISPATCH_US: f64 = 20.0;
/// Minimum valid rounds of a variant.
const MIN_ROUNDS: usize = 2;

/// Whether a load autotunes kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TuneMode {
    /// Use an earlier measurement, else measure. Never measures on software adapters, whose timings
    /// are meaningless.
    #[default]
    Auto,
    /// Use the default variants.
    Off,
    /// Measure again, on any adapter.
    Force,
}

impl TuneMode {
    /// Parses the value of the option `parameter`.
    pub fn from_name(parameter: &str, name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "force" => Ok(Self::Force),
            other => Err(Error::Request {
                parameter: parameter.into(),
                reason: format!("'{other}' is not supported. Use auto, off or force."),
            }),
        }
    }
}

/// Where the tuning table came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TuningSource {
    /// Measured by this load, at least in part.
    Measured,
    /// Measured by an earlier load.
    Cached,
    /// Tuning was disabled.
    Off,
    /// The adapter is a software renderer.
    Software,
    /// No weight of the model has several variants on this device.
    Single,
    /// Provided by the caller.
    Forced,
    /// The device failed.
    Failed,
}

/// The chosen variant for one layout's GEMV, for prefill GEMM or for attention.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TunedChoice {
    /// The layout's name, `prompt` or `attention`.
    pub layout: String,
    /// The variant in use.
    pub chosen: &'static str,
    /// The default variant.
    pub default: &'static str,
    /// Median microseconds by variant.
    pub us: Map<String, Value>,
}

/// The result of tuning.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tuning {
    /// Where the choices came from.
    pub origin: TuningSource,
    /// Milliseconds spent in this load; bytes arrive meanwhile.
    pub ms: f64,
    /// Microseconds of a dependent dispatch, if known; from 20 on, plans use fewer dispatches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatch_us: Option<f64>,
    /// Bytes of the device's buffers during the measurement.
    pub peak_bytes: u64,
    /// One for each kernel with several variants.
    pub choices: Vec<TunedChoice>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Tuning {
    /// No choices.
    pub(super) fn without_choices(origin: TuningSource) -> Self {
        Self {
            origin,
            ms: 0.0,
            dispatch_us: None,
            peak_bytes: 0,
            choices: Vec::new(),
            failure: None,
        }
    }
}

/// Finds the device's tuning table for a model's weights and sets it.
///
/// # Errors
/// Earlier device errors, or device loss. A failed measurement is reported in the result.
pub async fn tune(
    gpu: &Gpu,
    source: &Source,
    weights: &WeightPlans,
    wanted: TuneMode,
) -> Result<Tuning> {
    let mut lap = Stopwatch::start();
    let mut tuning = find_table(gpu, source, weights, wanted).await?;
    tuning.ms = lap.lap();
    Ok(tuning)
}

async fn find_table(
    gpu: &Gpu,
    source: &Source,
    weights: &WeightPlans,
    wanted: TuneMode,
) -> Result<Tuning> {
    let caps = gpu.caps();
    if caps.tuned.get().is_some() {
        return Ok(Tuning::without_choices(TuningSource::Forced));
    }
    if wanted == TuneMode::Off {
        return Ok(Tuning::without_choices(TuningSource::Off));
    }
    let contests = TuningCase::all_for(caps, &matrix_layouts(weights));
    let mut stored = StoredRecords::read(source).await;
    let mut records = Vec::new();
    let mut missing = Vec::new();
    for contest in &contests {
        let key = record::validity_key(caps, &contest.target.name(), contest.hash);
        match stored
            .record(contest, &key)
            .filter(|_| wanted != TuneMode::Force)
        {
            Some(record) => records.push((contest, record)),
            None => missing.push((contest, key)),
        }
    }
    let dispatch_key = record::validity_key(caps, "a dispatch", 2);
    let known = stored
        .dispatch_cost(&dispatch_key)
        .filter(|_| wanted != TuneMode::Force);
    // Software timings say nothing about dispatch cost.
    let known_or_skipped = known.is_some() || (caps.software && wanted == TuneMode::Auto);
    let origin = match (missing.is_empty() && known_or_skipped, records.is_empty()) {
        (true, true) => TuningSource::Single,
        (true, false) => TuningSource::Cached,
        _ if caps.software && wanted == TuneMode::Auto => TuningSource::Software,
        _ => TuningSource::Measured,
    };
    let mut tuning = Tuning {
        dispatch_us: known,
        ..Tuning::without_choices(origin)
    };
    if origin == TuningSource::Measured {
        // Earlier errors belong to the load, later ones to this measurement.
        gpu.check().await?;
        let contests: Vec<&TuningCase> = missing.iter().map(|(contest, _)| *contest).collect();
        let measured = async {
            let us = match known {
                Some(us) => us,
                None => probe::dispatch_us(gpu, EXPENSIVE_DISPATCH_US).await?,
            };
            let time = async |cases: &[&TuningCase]| time_candidates(gpu, cases).await;
            let (choices, peak) = choose_variants(&contests, time).await?;
            Ok((us, choices, peak))
        };
        let measured = measured.await;
        match (measured, gpu.check().await) {
            (Err(error @ Error::DeviceLost { .. }), _)
            | (_, Err(error @ Error::DeviceLost { .. })) => {
                return Err(error);
            }
            (Ok((us, choices, peak)), Ok(())) => {
                tuning.peak_bytes = peak;
                tuning.dispatch_us = Some(us);
                if known.is_none() {
                    stored.add_dispatch_cost(&dispatch_key, us);
                }
                for ((contest, key), (chosen, times)) in missing.into_iter().zip(choices) {
                    let medians = times.medians(contest);
                    let record = TuningRecord::new(key, contest, chosen, medians);
                    stored.add(contest, &record);
                    records.push((contest, record));
                }
                stored.store(source).await;
            }
            (Err(error), _) | (_, Err(error)) => {
                (tuning.origin, tuning.failure) = (TuningSource::Failed, Some(error.to_string()));
            }
        }
    }
    let expensive_dispatch = tuning
        .dispatch_us
        .is_some_and(|us| us >= EXPENSIVE_DISPATCH_US)
        && !caps.software;
    let mut tuned = TuningTable::empty(expensive_dispatch);
    for (
        contest,
        TuningRecord {
            variant: form, us, ..
        },
    ) in records
    {
        let (chosen, table) = &contest.variants[form];
        tuned = tuned.merged_with(table);
        let layout = contest.target.name();
        let default = contest.variants[contest.default_variant].0;

        tuning.choices.push(TunedChoice {
            layout,
            chosen,
            default,
            us,
        });
    }
    // It was empty above, and nothing else sets it.
    let _ = caps.tuned.set(tuned);
    Ok(tuning)
}

/// The layouts of a model's matrices, the most frequent first.
fn matrix_layouts(weights: &WeightPlans) -> Vec<WeightLayout> {
    let mut found: Vec<(WeightLayout, usize)> = Vec::new();
    for weight in weights.values() {
        if matches!(weight.kind, WeightKind::Vector | WeightKind::Order) {
            continue;
        }
        match found
            .iter_mut()
            .find(|(layout, _)| *layout == weight.layout)
        {
            Some((_, count)) => *count += 1,
            None => found.push((weight.layout, 1)),
        }
    }
    if let Some(most) = (0..found.len()).max_by_key(|i| found[*i].1) {
        found.swap(0, most);
    }
    found.into_iter().map(|(layout, _)| layout).collect()
}

/// Chooses a variant of each case by what `time` measures. Another one than the default must be chosen
/// twice: a load's uploads and a rising clock disturb measurements. Also returns the peak bytes of
/// the device's buffers.
async fn choose_variants(
    cases: &[&TuningCase],
    mut time: impl AsyncFnMut(&[&TuningCase]) -> Result<(Vec<Timings>, u64)>,
) -> Result<(Vec<(usize, Timings)>, u64)> {
    if cases.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let (times, mut peak) = time(cases).await?;
    let choose = |case: &TuningCase, times: &Timings| choose_variant(case.default_variant, times);
    let mut choices: Vec<(usize, Timings)> = cases
        .iter()
        .zip(times)
        .map(|(case, times)| (choose(case, &times), times))
        .collect();
    let unusual: Vec<usize> = (0..cases.len())
        .filter(|index| choices[*index].0 != cases[*index].default_variant)
        .collect();
    if unusual.is_empty() {
        return Ok((choices, peak));
    }
    let again: Vec<&TuningCase> = unusual.iter().map(|index| cases[*index]).collect();
    let (times, bytes) = time(&again).await?;
    peak = peak.max(bytes);
    for (index, times) in unusual.into_iter().zip(times) {
        if choose(cases[index], &times) != choices[index].0 {
            choices[index].0 = cases[index].default_variant;
        }
    }
    Ok((choices, peak))
}

/// Returns the fastest variant if it is faster beyond doubt; else the default.
fn choose_variant(default: usize, times: &Timings) -> usize {
    let mine = times.median(default).unwrap_or(0.0);
    let mut best = default;
    let mut least = 1.0 - MIN_VARIANT_GAIN;

    for form in 0..times.rounds.len() {
        // The default is always valid.
        if let Some(share) = times.time_ratio(form, default)
            && share < least
            && mine - mine * share > times.resolution
        {
            (best, least) = (form, share);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 0;
    const BLOCKS: usize = 1;
    const PACKED: usize = 2;

    fn chosen(default: usize, resolution: f64, rounds: &[(usize, &[f64])]) -> usize {
        let mut all = vec![Vec::new(); 3];
        rounds
            .iter()
            .for_each(|(form, us)| all[*form] = us.to_vec());
        choose_variant(
            default,
            &Timings {
                resolution,
                rounds: all,
            },
        )
    }

    #[test]
    fn another_variant_must_be_chosen_twice() {
        let layout = crate::format::quantize::layout(4);
        let case = TuningCase::of(&candidates::tests::caps(), TuningTarget::Gemv(layout));
        let case = case.expect("several variants");
        let default = case.default_variant;
        let other = (default + 1) % case.variants.len();
        let times = |fastest: usize| {
            let us = |form: usize| vec![if form == fastest { 4.0 } else { 10.0 }; 3];
            Timings {
                resolution: 0.0,
                rounds: (0..case.variants.len()).map(us).collect(),
            }
        };
        for (measured, expected, count) in [
            (vec![default], default, 1),
            (vec![other, other], other, 2),
            (vec![other, default], default, 2),
        ] {
            let mut fastest = measured.into_iter();
            let time = async |_: &[&TuningCase]| {
                let fastest = fastest.next().expect("a measurement");
                Ok((vec![times(fastest)], 64))
            };
            let chosen = pollster::block_on(choose_variants(&[&case], time));
            let (choices, peak) = chosen.expect("a choice");
            assert_eq!((choices[0].0, peak), (expected, 64), "{count} measurements");
            assert_eq!(fastest.next(), None, "{count} measurements");
        }
    }

    #[test]
    fn a_clearly_faster_variant_is_chosen() {
        let rounds: [(usize, &[f64]); 3] = [
            (ROWS, &[10.0, 9.0, 11.0]),
            (BLOCKS, &[8.0, 8.1, 30.0]),
            (PACKED, &[4.0, 4.2, 4.1]),
        ];
        for default in [ROWS, BLOCKS, PACKED] {
            assert_eq!(chosen(default, 0.0, &rounds), PACKED);
        }
    }

    #[test]
    fn a_small_gain_is_noise() {
        assert_eq!(
            chosen(ROWS, 0.0, &[(ROWS, &[10.0, 10.0]), (BLOCKS, &[6.4, 6.4])]),
            ROWS
        );
        assert_eq!(
            chosen(BLOCKS, 0.0, &[(ROWS, &[10.0, 10.0]), (BLOCKS, &[6.4, 6.4])]),
            BLOCKS
        );
        assert_eq!(
            chosen(BLOCKS, 0.0, &[(ROWS, &[6.4, 6.4]), (BLOCKS, &[10.0, 10.0])]),
            BLOCKS
        );
        assert_eq!(
            chosen(ROWS, 0.0, &[(ROWS, &[10.0, 10.0]), (BLOCKS, &[5.6, 5.6])]),
            BLOCKS
        );
    }

    #[test]
    fn outliers_affect_one_round_only() {
        // Other work disturbed the default variant.
        assert_eq!(
            chosen(ROWS, 0.0, &[(ROWS, &[10.0, 40.0]), (BLOCKS, &[12.0, 12.0])]),
            ROWS
        );
        // The device's clock rose within a round, then between two.
        assert_eq!(
            chosen(
                ROWS,
                0.0,
                &[(ROWS, &[95.0, 20.0, 20.0]), (BLOCKS, &[20.0, 20.0, 20.0])]
            ),
            ROWS
        );
        assert_eq!(
            chosen(ROWS, 0.0, &[(ROWS, &[95.0, 20.0]), (BLOCKS, &[90.0, 11.0])]),
            ROWS
        );
        assert_eq!(
            chosen(ROWS, 0.0, &[(ROWS, &[95.0, 20.0]), (BLOCKS, &[48.0, 10.0])]),
            BLOCKS
        );
    }

    #[test]
    fn a_gain_below_clock_resolution_is_ignored() {
        let rounds: [(usize, &[f64]); 2] = [(ROWS, &[10.0, 10.0]), (BLOCKS, &[5.0, 5.0])];
        assert_eq!(chosen(ROWS, 6.0, &rounds), ROWS);
        assert_eq!(chosen(ROWS, 1.0, &rounds), BLOCKS);
    }

    #[test]
    fn ties_prefer_the_default_variant_then_the_first() {
        let even: [(usize, &[f64]); 3] = [
            (ROWS, &[5.0, 5.0]),
            (BLOCKS, &[5.0, 5.0]),
            (PACKED, &[5.0, 5.0]),
        ];
        assert_eq!(chosen(PACKED, 0.0, &even), PACKED);
        let even: [(usize, &[f64]); 3] = [
            (ROWS, &[9.0, 9.0]),
            (BLOCKS, &[5.0, 5.0]),
            (PACKED, &[5.0, 5.0]),
        ];
        assert_eq!(chosen(ROWS, 0.0, &even), BLOCKS);
    }

    #[test]
    fn incomplete_timings_change_nothing() {
        // Time ran out in the first round.
        assert_eq!(
            chosen(ROWS, 0.0, &[(ROWS, &[10.0]), (BLOCKS, &[1.0])]),
            ROWS
        );
        assert_eq!(
            chosen(ROWS, 0.0, &[(ROWS, &[10.0, 10.0]), (BLOCKS, &[1.0])]),
            ROWS
        );
        assert_eq!(
            chosen(ROWS, 0.0, &[(ROWS, &[10.0]), (BLOCKS, &[1.0, 1.0])]),
            ROWS
        );
        // One variant has no rounds, or all have none.
        assert_eq!(chosen(ROWS, 0.0, &[(BLOCKS, &[1.0, 1.0])]), ROWS);
        assert_eq!(chosen(ROWS, 0.0, &[]), ROWS);
        // A delay in the short run made the difference negative.
        assert_eq!(
            chosen(
                ROWS,
                0.0,
                &[(ROWS, &[10.0, 10.0]), (BLOCKS, &[-1.0, 0.0, f64::NAN, 2.0])]
            ),
            ROWS
        );
    }
}
