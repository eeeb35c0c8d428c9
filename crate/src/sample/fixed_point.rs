//! Probabilities as integers, so that the CPU, every GPU and every browser sample the same token.
//!
//! A token's score becomes its *gap*: how many bits less likely it is than the most likely token,
//! in units of 2^-24 bit. The gap becomes a *weight* of at most 2^31 in integer arithmetic, and
//! sums of weights (*masses*) are exact. So the order of a reduction, a fused multiply-add or a
//! device's `exp` cannot change a decision. The only floating-point operations are one subtraction
//! and one multiplication, which IEEE 754 rounds identically everywhere.

/// Bits after the binary point of a gap.
pub const GAP_BITS: u32 = 24;

/// Largest gap: just under 2^6 bits and exact in f32. Less likely tokens are clamped to it; its
/// weight is zero.
pub const GAP_LIMIT: u32 = 0x3fff_ffc0;

/// The weight of the most likely token.
pub const WEIGHT_ONE: u32 = 1 << 31;

/// Score of a token that must not be sampled. Finite, because shader compilers may assume that
/// infinities do not occur.
pub const BANNED_SCORE: f32 = -1e30;

/// Limit of score differences, so that the scaled difference stays finite.
pub const SCORE_LIMIT: f32 = 1e20;

/// Temperatures below this are greedy: the share of the second token is below f32's resolution of
/// the logits.
pub const MIN_TEMPERATURE: f64 = 1e-5;

/// 2^-f = 1 - f (C0 - f (C1 - f (C2 - …))) for f in [0, 1), relative error 3.4e-9; in units of
/// 2^-32.
const EXP2: [u32; 6] = [
    0xb172_1605,
    0x3d7f_581c,
    0x0e34_a46b,
    0x0273_c7f8,
    0x0053_8aba,
    0x0007_251b,
];

/// Returns the factor from a score difference to a gap at this temperature.
pub fn gap_scale(temperature: f64) -> f32 {
    (std::f64::consts::LOG2_E * f64::from(1u32 << GAP_BITS) / temperature) as f32
}

/// The gap of `score` below `max`, which must be the largest score.
pub fn gap(max: f32, score: f32, scale: f32) -> u32 {
    let difference = (max - score).min(SCORE_LIMIT);
    (difference * scale).min(GAP_LIMIT as f32) as u32
}

/// Returns the upper 32 bits of a · b.
pub fn mul_high(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

/// Returns 2^31 · 2^-gap, rounded. Never increases with the gap.
pub fn weight(gap: u32) -> u32 {
    let octave = gap >> GAP_BITS;
    if octave > 31 {
        return 0;
    }
    let fraction = gap << (32 - GAP_BITS);
    let mut polynomial = EXP2[5];
    for coefficient in EXP2[..5].iter().rev() {
        polynomial = coefficient - mul_high(fraction, polynomial);
    }
    let mantissa = WEIGHT_ONE - (mul_high(fraction, polynomial) >> 1);
    // Half a unit is added before the shift; the sum stays below 2^32.
    let half = (1 << octave) >> 1;
    (mantissa + half) >> octave
}

/// Returns `fraction`/2^32 of a mass, rounded down: the mass that top-p keeps, or the sampling
/// position of a random `fraction`.
pub fn mass_share(fraction: u32, mass: u64) -> u64 {
    ((u128::from(fraction) * u128::from(mass)) >> 32) as u64
}

/// Converts a probability in [0, 1] to units of 2^-32. Never returns all ones, which shaders read
/// as "no filter".
pub fn fraction(probability: f64) -> u32 {
    ((probability * 4_294_967_296.0) as u32).min(u32::MAX - 1)
}

/// Returns the largest gap that min-p keeps: the last whose weight is at least `min_p` of the
/// largest weight.
pub fn min_p_limit(min_p: f64) -> u32 {
    let least = f64::from(WEIGHT_ONE) * min_p;
    // Weights never increase with the gap: bisect the interval [kept, dropped).
    let mut kept = 0;
    let mut dropped = GAP_LIMIT + 1;

    while dropped - kept > 1 {
        let middle = kept + (dropped - kept) / 2;
        if f64::from(weight(middle)) >= least {
            kept = middle;
        } else {
            dropped = middle;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_the_exponential() {
        for gap in (0..GAP_LIMIT).step_by(7919) {
            let exact = 2f64.powi(31) * (-f64::from(gap) / f64::from(1 << GAP_BITS)).exp2();
            let error = (f64::from(weight(gap)) - exact).abs();
            assert!(
                error <= 0.51 + exact * 4e-9,
                "gap {gap}: {} for {exact}",
                weight(gap)
            );
        }
        assert_eq!(weight(0), WEIGHT_ONE);
        assert_eq!(weight(GAP_LIMIT), 0);
    }

    #[test]
    fn weights_never_rise() {
        let borders =
            (1..32u32).flat_map(|octave| (octave << GAP_BITS) - 300..(octave << GAP_BITS) + 300);
        for gap in borders.chain((0..1 << 29).step_by(4099)) {
            assert!(weight(gap + 1) <= weight(gap), "gap {gap}");
        }
    }

    #[test]
    fn gaps_are_bits() {
        let scale = gap_scale(1.0);
        assert_eq!(gap(3.0, 3.0, scale), 0);
        let one_bit = gap(0.0, -std::f32::consts::LN_2, scale);
        assert!(one_bit.abs_diff(1 << GAP_BITS) <= 2, "{one_bit}");
        assert_eq!(gap(0.0, BANNED_SCORE, scale), GAP_LIMIT);
        assert_eq!(
            gap(f32::MAX, -f32::MAX, gap_scale(MIN_TEMPERATURE)),
            GAP_LIMIT
        );
    }

    #[test]
    fn shares_and_limits() {
        assert_eq!(mass_share(1 << 31, 101), 50);
        assert_eq!(
            mass_share(u32::MAX, u64::from(u32::MAX)),
            u64::from(u32::MAX) - 1
        );
        assert_eq!(fraction(0.5), 1 << 31);
        assert_eq!(fraction(1.0), u32::MAX - 1);
        assert_eq!(min_p_limit(1.0), 0);
        assert_eq!(min_p_limit(0.0), GAP_LIMIT);
        assert!(min_p_limit(0.5).abs_diff(1 << GAP_BITS) <= 1);
    }
}
