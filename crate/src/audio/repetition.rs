//! Guards against runaway decoding: token limit by audio length, detection of repetition, and
//! compression ratio.

use super::SAMPLE_RATE;
use crate::util::map::SortedMap;

/// Maximum length of a repeated phrase, in tokens.
const MAX_PHRASE_TOKENS: usize = 40;
/// Minimum copies of a phrase, and minimum tokens of all copies, that count as repetition.
const MIN_COPIES: usize = 4;
const MIN_REPEATED_TOKENS: usize = 24;

/// Returns the maximum tokens for Moonshine to decode, including the first one: 6.5 per second of
/// audio.
pub fn token_limit(samples: usize) -> usize {
    ((samples as f64 * 6.5 / f64::from(SAMPLE_RATE)) as usize).max(2)
}

/// Detects a repeated phrase at the end. Returns how many tokens to keep, including one copy of the
/// phrase.
pub fn find_repetition(ids: &[u32]) -> Option<usize> {
    (1..=MAX_PHRASE_TOKENS.min(ids.len() / MIN_COPIES)).find_map(|length| {
        let phrase = &ids[ids.len() - length..];
        let copies = ids
            .rchunks_exact(length)
            .take_while(|chunk| *chunk == phrase)
            .count();
        (copies >= MIN_COPIES && copies * length >= MIN_REPEATED_TOKENS)
            .then(|| ids.len() - (copies - 1) * length)
    })
}

/// Returns how many of the last tokens [`repetition`] may still cut: those that repeat a phrase
/// before them.
pub fn unstable_len(ids: &[u32]) -> usize {
    (1..=MAX_PHRASE_TOKENS.min(ids.len()))
        .map(|length: usize| {
            ids.iter()
                .rev()
                .zip(ids.iter().rev().skip(length))
                .take_while(|(a, b)| a == b)
                .count()
        })
        .max()
        .unwrap_or(0)
}

/// Estimates zlib's compression ratio; Whisper treats more than 2.4 as repetition. Finds matches as
/// zlib does and counts the bits of an optimal prefix code.
pub fn compression_ratio(bytes: &[u8]) -> f64 {
    let mut at = 0;
    let mut extra = 0.0;

    let mut last: SortedMap<u32, usize> = SortedMap::new();
    let mut symbols = SymbolCounts::default();
    let mut distances = SymbolCounts::default();

    while at < bytes.len() {
        let key = |at: usize| {
            bytes
                .get(at..at + 3)
                .map(|three| u32::from_be_bytes([0, three[0], three[1], three[2]]))
        };
        let before = key(at).and_then(|k| last.get(&k).copied());
        let length = before.map_or(1, |b: usize| {
            bytes[b..]
                .iter()
                .zip(&bytes[at..])
                .take(258)
                .take_while(|(x, y)| x == y)
                .count()
        });
        match before {
            Some(before) if length >= 3 => {
                let (length_code, length_bits) = bucket(length as u32 - 3, 4);
                let (distance_code, distance_bits) = bucket((at - before) as u32 - 1, 2);
                symbols.count(257 + length_code);
                distances.count(distance_code);
                extra += f64::from(length_bits + distance_bits);
            }
            _ => symbols.count(u32::from(bytes[at])),
        }
        for place in at..at + length {
            if let Some(key) = key(place) {
                last.insert(key, place);
            }
        }
        at += length;
    }
    symbols.count(256);
    // The code tables take about 6 bits per symbol.
    let description = 6.0 * (symbols.0.len() + distances.0.len()) as f64 + 70.0;
    let dynamic = symbols.entropy() + distances.entropy() + extra + description;
    let fixed = 8.0 * symbols.total() + 5.0 * distances.total() + extra;
    // Header, checksum and block header.
    bytes.len() as f64 / (6.0 + (dynamic.min(fixed) + 3.0) / 8.0)
}

/// Returns the bucket of a length or distance and its extra bits, with `per_octave` buckets per
/// octave.
fn bucket(value: u32, per_octave: u32) -> (u32, u32) {
    if value < 2 * per_octave {
        return (value, 0);
    }
    let octave = (value / per_octave).ilog2();
    (octave * per_octave + (value >> octave), octave)
}

/// Symbol counts.
#[derive(Default)]
struct SymbolCounts(SortedMap<u32, usize>);

impl SymbolCounts {
    fn count(&mut self, symbol: u32) {
        *self.0.get_or_insert_with(symbol, || 0) += 1;
    }

    fn total(&self) -> f64 {
        self.0.values().sum::<usize>() as f64
    }

    /// Bits of all symbols in an optimal code.
    fn entropy(&self) -> f64 {
        let total = self.total();
        self.0
            .values()
            .map(|n| *n as f64 * (total / *n as f64).log2().max(1.0))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_limit_tokens() {
        assert_eq!(token_limit(16_000), 6);
        assert_eq!(token_limit(20_001), 8);
        assert_eq!(token_limit(100), 2);
    }

    #[test]
    fn endless_repetition_is_cut_to_one() {
        let mut ids: Vec<u32> = (0..10).collect();
        assert_eq!(find_repetition(&ids), None);
        ids.extend([7, 8, 9].repeat(8));
        assert_eq!(find_repetition(&ids), Some(10));
        assert_eq!(find_repetition(&[5; 40]), Some(1));
        assert_eq!(find_repetition(&[5; 12]), None, "laughter is short");
        assert_eq!(find_repetition(&[]), None);
    }

    /// Tokens that are not loose are never cut later.
    #[test]
    fn repetition_cuts_only_unstable_tokens() {
        let mut seed = 1u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 16
        };
        let mut cut = 0;
        for _ in 0..200 {
            let head: Vec<u32> = (0..next() % 20).map(|_| next() % 4).collect();
            let phrase: Vec<u32> = (0..1 + next() % 12).map(|_| next() % 4).collect();
            let ids = [head, phrase.repeat(24)].concat();
            let mut safe = 0;
            for end in 1..=ids.len() {
                safe = safe.max(end - unstable_len(&ids[..end]));
                if let Some(keep) = find_repetition(&ids[..end]) {
                    assert!(safe <= keep, "{:?}: {safe} {keep}", &ids[..end]);
                    cut += 1;
                    break;
                }
            }
        }
        assert_eq!(
            (cut, unstable_len(&[]), unstable_len(&[1, 2, 3])),
            (200, 0, 0)
        );
    }

    /// Ratios of Python's `len(text) / len(zlib.compress(text))`.
    #[test]
    fn compression_is_close_to_zlib() {
        let speech = "And so my fellow Americans, ask not what your country can do for you, ask what you can do for your country.";
        let texts = [
            (speech.to_string(), 1.354),
            ("Thank you. ".repeat(40), 18.33),
            (format!("{speech} {speech} {speech}"), 3.756),
            (
                "Ever tried, ever failed. No matter. Try again. Fail again. Fail better.".into(),
                1.164,
            ),
            ("no ".repeat(8), 1.846),
        ];
        for (text, ratio) in texts {
            let found = compression_ratio(text.as_bytes());
            assert!(
                (found / ratio - 1.0).abs() < 0.15,
                "{text}: {found} for {ratio}"
            );
        }
    }
}
