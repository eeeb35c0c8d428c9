//! Which forms of the kernels are the fastest on this device: remembered, or measured at the start of a load. Knows when
//! to measure and whom to believe; `probe` knows how, the kernels know what the forms are.

mod probe;
mod record;

use super::load_times::Lap;
use crate::device::tuned::{GemvPick, Tuned};
use crate::format::Layout;
use crate::gpu::{Backend, Gpu};
use crate::hub::Source;
use crate::ir::WeightKind;
use crate::plan::WeightPlans;
use crate::{Error, Result};
use probe::{Forms, Times};
use record::Record;
use serde::Serialize;
use serde_json::{Map, Value};

/// Another form than the family's own has to be faster by this share. An H200 whose clock is still low when a page opens
/// shows the slowest form up to 22 % ahead of the fastest (87 loads); where a form is wrong for a device it takes twice the
/// time.
const MARGIN: f64 = 0.4;
/// Microseconds from which on a dispatch is dear: on phones it takes 30 to 70, on an H200 some 4.
const DEAR_US: f64 = 20.0;
/// Rounds that a form needs to be believed.
const LEAST: usize = 2;

/// Whether a load measures which kernels are the fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tune {
    /// What was measured before, else a measurement; a software adapter's speed says nothing, so none there.
    #[default]
    Auto,
    /// The kernels' own choice.
    Off,
    /// A new measurement, on whatever adapter.
    Again,
}

impl Tune {
    /// By its name in the option `parameter`.
    pub fn from_name(parameter: &str, name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "again" => Ok(Self::Again),
            other => Err(Error::Request {
                parameter: parameter.into(),
                reason: format!("'{other}' is not one of auto, off, again"),
            }),
        }
    }
}

/// Where a table came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// This load measured, at least in part.
    Measured,
    /// An earlier one did.
    Remembered,
    /// Nobody asked for it.
    Off,
    /// The adapter is a software renderer.
    Software,
    /// The model has no weights for which this device has two forms.
    Alike,
    /// The caller brought the table along.
    Given,
    /// The device refused.
    Failed,
}

/// The form of one layout's product.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The layout's name.
    pub layout: String,
    /// What runs.
    pub chosen: GemvPick,
    /// What would run if nothing had been measured.
    pub own: GemvPick,
    /// Microseconds of a product, medians, by its form.
    pub us: Map<String, Value>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tuning {
    /// Where the choices came from.
    pub origin: Origin,
    /// Milliseconds that this took of this load; bytes arrive meanwhile.
    pub ms: f64,
    /// Microseconds of a dispatch that waits for the one before, where that is known; from 20 on, plans take fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatch_us: Option<f64>,
    /// Bytes of the device's buffers while it measured.
    pub peak_bytes: u64,
    /// One for each layout that has several forms.
    pub choices: Vec<Choice>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Tuning {
    /// Nothing chosen.
    pub(super) fn none(origin: Origin) -> Self {
        Self { origin, ms: 0.0, dispatch_us: None, peak_bytes: 0, choices: Vec::new(), failure: None }
    }
}

/// Finds the device's table for a model's weights and sets it.
///
/// # Errors
/// What the device had to report before, or that it is lost; that it could not be measured is no error.
pub async fn tune(gpu: &Gpu, source: &Source, weights: &WeightPlans, wanted: Tune) -> Result<Tuning> {
    let mut lap = Lap::start();
    let mut tuning = found(gpu, source, weights, wanted).await?;
    tuning.ms = lap.lap();
    Ok(tuning)
}

async fn found(gpu: &Gpu, source: &Source, weights: &WeightPlans, wanted: Tune) -> Result<Tuning> {
    let caps = gpu.caps();
    if caps.tuned.get().is_some() {
        return Ok(Tuning::none(Origin::Given));
    }
    if wanted == Tune::Off {
        return Ok(Tuning::none(Origin::Off));
    }
    let forms: Vec<Forms> = layouts(weights).into_iter().filter_map(|l| Forms::of(caps, l)).collect();
    let (mut records, mut missing) = (Vec::new(), Vec::new());
    for forms in &forms {
        let key = record::key(caps, forms.layout, forms.hash);
        let known = if wanted == Tune::Again { None } else { record::recall(source, forms, &key).await };
        match known {
            Some(record) => records.push((forms, record)),
            None => missing.push((forms, key)),
        }
    }
    let dispatch_key = record::key(caps, "a dispatch", 0);
    let known = if wanted == Tune::Again { None } else { record::recall_dispatch(source, &dispatch_key).await };
    // What a software adapter takes says nothing of its dispatches.
    let told = known.is_some() || (caps.software && wanted == Tune::Auto);
    let origin = match (missing.is_empty() && told, records.is_empty()) {
        (true, true) => Origin::Alike,
        (true, false) => Origin::Remembered,
        _ if caps.software && wanted == Tune::Auto => Origin::Software,
        _ => Origin::Measured,
    };
    let mut tuning = Tuning { dispatch_us: known, ..Tuning::none(origin) };
    if origin == Origin::Measured {
        // What the device had to say so far is the load's business, what it says from here on is this one's.
        gpu.check().await?;
        let contests: Vec<&Forms> = missing.iter().map(|(forms, _)| *forms).collect();
        let measured = async {
            let us = match known {
                Some(us) => us,
                None => probe::dispatch_us(gpu).await?,
            };
            let (times, peak) =
                if contests.is_empty() { (Vec::new(), 0) } else { probe::measure(gpu, &contests).await? };
            Ok((us, times, peak))
        };
        let measured = measured.await;
        match (measured, gpu.check().await) {
            (Err(error @ Error::DeviceLost { .. }), _) | (_, Err(error @ Error::DeviceLost { .. })) => {
                return Err(error);
            }
            (Ok((us, times, peak)), Ok(())) => {
                tuning.peak_bytes = peak;
                tuning.dispatch_us = Some(us);
                if known.is_none() {
                    record::remember_dispatch(source, &dispatch_key, us).await;
                }
                for ((forms, key), times) in missing.into_iter().zip(times) {
                    let record = Record::new(key, decide(forms.own, &times), times.medians());
                    record::remember(source, forms, &record).await;
                    records.push((forms, record));
                }
            }
            (Err(error), _) | (_, Err(error)) => {
                (tuning.origin, tuning.failure) = (Origin::Failed, Some(error.to_string()));
            }
        }
    }
    let dear = tuning.dispatch_us.is_some_and(|us| us >= DEAR_US) && !caps.software;
    let mut tuned = Tuned::empty(dear);
    for (forms, Record { pick, us, .. }) in records {
        tuned = tuned.with(forms.layout, pick);
        tuning.choices.push(Choice { layout: forms.layout.name(), chosen: pick, own: forms.own, us });
    }
    // It was empty above, and nobody else sets it.
    let _ = caps.tuned.set(tuned);
    Ok(tuning)
}

/// The layouts of a model's matrices.
fn layouts(weights: &WeightPlans) -> Vec<Layout> {
    let mut found = Vec::new();
    for weight in weights.values() {
        let matrix = !matches!(weight.kind, WeightKind::Vector | WeightKind::Order);
        if matrix && !found.contains(&weight.layout) {
            found.push(weight.layout);
        }
    }
    found
}

/// The fastest form, where it is so beyond doubt; else the family's own.
fn decide(own: GemvPick, times: &Times) -> GemvPick {
    let Some(mine) = times.median(own) else { return own };
    let enough = mine * (1.0 - MARGIN);
    let mut best = (own, f64::MAX);
    for (pick, _) in &times.rounds {
        if let Some(median) = times.median(*pick).filter(|_| *pick != own)
            && median < best.1
        {
            best = (*pick, median);
        }
    }
    let clear = best.1 < enough && mine - best.1 > times.resolution;
    if clear { best.0 } else { own }
}

#[cfg(test)]
mod tests {
    use super::GemvPick::{Blocks, PackedBlocks, Rows};
    use super::*;

    fn chosen(own: GemvPick, resolution: f64, rounds: &[(GemvPick, &[f64])]) -> GemvPick {
        let rounds = rounds.iter().map(|(pick, us)| (*pick, us.to_vec())).collect();
        decide(own, &Times { resolution, rounds })
    }

    #[test]
    fn the_fastest_form_is_taken_where_it_is_clearly_so() {
        let rounds: [(GemvPick, &[f64]); 3] =
            [(Rows, &[10.0, 9.0, 11.0]), (Blocks, &[8.0, 8.1, 30.0]), (PackedBlocks, &[4.0, 4.2, 4.1])];
        for own in GemvPick::ALL {
            assert_eq!(chosen(own, 0.0, &rounds), PackedBlocks);
        }
    }

    #[test]
    fn a_small_gain_is_noise() {
        assert_eq!(chosen(Rows, 0.0, &[(Rows, &[10.0, 10.0]), (Blocks, &[6.4, 6.4])]), Rows);
        assert_eq!(chosen(Blocks, 0.0, &[(Rows, &[10.0, 10.0]), (Blocks, &[6.4, 6.4])]), Blocks);
        assert_eq!(chosen(Blocks, 0.0, &[(Rows, &[6.4, 6.4]), (Blocks, &[10.0, 10.0])]), Blocks);
        assert_eq!(chosen(Rows, 0.0, &[(Rows, &[10.0, 10.0]), (Blocks, &[5.6, 5.6])]), Blocks);
    }

    #[test]
    fn a_gain_below_what_the_clock_tells_is_none() {
        let rounds: [(GemvPick, &[f64]); 2] = [(Rows, &[10.0, 10.0]), (Blocks, &[5.0, 5.0])];
        assert_eq!(chosen(Rows, 6.0, &rounds), Rows);
        assert_eq!(chosen(Rows, 1.0, &rounds), Blocks);
    }

    #[test]
    fn ties_go_to_the_own_form_and_then_to_the_first() {
        let even: [(GemvPick, &[f64]); 3] = [(Rows, &[5.0, 5.0]), (Blocks, &[5.0, 5.0]), (PackedBlocks, &[5.0, 5.0])];
        assert_eq!(chosen(PackedBlocks, 0.0, &even), PackedBlocks);
        let even: [(GemvPick, &[f64]); 3] = [(Rows, &[9.0, 9.0]), (Blocks, &[5.0, 5.0]), (PackedBlocks, &[5.0, 5.0])];
        assert_eq!(chosen(Rows, 0.0, &even), Blocks);
    }

    #[test]
    fn what_was_cut_short_or_never_timed_changes_nothing() {
        // The time was over in the first round.
        assert_eq!(chosen(Rows, 0.0, &[(Rows, &[10.0]), (Blocks, &[1.0])]), Rows);
        assert_eq!(chosen(Rows, 0.0, &[(Rows, &[10.0, 10.0]), (Blocks, &[1.0])]), Rows);
        assert_eq!(chosen(Rows, 0.0, &[(Rows, &[10.0]), (Blocks, &[1.0, 1.0])]), Rows);
        // A form is missing, or all are.
        assert_eq!(chosen(Rows, 0.0, &[(Blocks, &[1.0, 1.0])]), Rows);
        assert_eq!(chosen(Rows, 0.0, &[]), Rows);
        // A hiccup in the short run made the difference negative.
        assert_eq!(chosen(Rows, 0.0, &[(Rows, &[10.0, 10.0]), (Blocks, &[-1.0, 0.0, f64::NAN, 2.0])]), Rows);
    }
}
