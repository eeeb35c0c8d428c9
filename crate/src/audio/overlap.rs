//! Overlapping windows of long audio, and joining of their token sequences without loss or
//! duplicates.

use std::ops::Range;

/// Splits the segments `speech`, in order, into windows of at most `longest` samples. Segments that
/// fit into one window share it; longer ones become windows that overlap by `overlap` samples.
/// Returns no window without speech.
pub fn windows(speech: &[Range<usize>], longest: usize, overlap: usize) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    let mut open = false;
    for stretch in speech {
        if let Some(last) = out.last_mut().filter(|_| open)
            && stretch.end - last.start <= longest
        {
            last.end = stretch.end;
            continue;
        }
        let mut start = stretch.start;
        loop {
            let end = stretch.end.min(start + longest);
            out.push(start..end);
            if end == stretch.end {
                break;
            }
            start = end - overlap.min(longest / 2);
        }
        open = true;
    }
    out
}

/// Joins two sequences decoded from overlapping windows. Returns how many tokens of `left` to keep
/// and how many of `right` to skip. Slides the sequences over each other and cuts in the middle of
/// the best overlap: the left window has more context for its first half, the right window for its
/// second half. Keeps all tokens if nothing matches.
pub fn join_overlap(left: &[u32], right: &[u32]) -> (usize, usize) {
    let l = left.len();
    let r = right.len();

    let mut best = (0.0, (l, 0));
    for i in 1..l + r {
        let a = l.saturating_sub(i)..l.min(l + r - i);
        let b = i.saturating_sub(l)..r.min(i);

        let same = left[a.clone()]
            .iter()
            .zip(&right[b.clone()])
            .filter(|(x, y)| x == y)
            .count();
        // Prefer a long overlap to a short perfect one.
        let score = same as f64 / i as f64 + i as f64 / 10_000.0;
        if same > 1 && score > best.0 {
            best = (score, (a.start.midpoint(a.end), b.start.midpoint(b.end)));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_what_fits() {
        let speech = [10..40, 60..90, 130..140, 300..555];
        assert_eq!(
            windows(&speech, 100, 20),
            [10..90, 130..140, 300..400, 380..480, 460..555]
        );
        assert_eq!(windows(&[], 100, 20), []);
        // Every sample of speech is in some window.
        for longest in [17, 64, 1000] {
            let cut = windows(&speech, longest, 8);
            assert!(
                speech
                    .iter()
                    .cloned()
                    .flatten()
                    .all(|s| cut.iter().any(|w| w.contains(&s)))
            );
            assert!(cut.iter().all(|w| w.len() <= longest));
        }
    }

    #[test]
    fn a_joined_overlap_loses_and_repeats_nothing() {
        let text: Vec<u32> = (0..60).map(|i| i * 37 % 1009).collect();
        for (end, begin) in [(30, 20), (31, 30), (28, 14), (30, 30)] {
            let left = &text[..end];
            let right = &text[begin..];

            let (keep, skip) = join_overlap(left, right);
            // A single common token is not enough evidence: it may be duplicated, never lost.
            let joined = [&left[..keep], &right[skip..]].concat();
            let expected = if end - begin > 1 {
                text.clone()
            } else {
                [left, right].concat()
            };
            assert_eq!(joined, expected, "{end} {begin}");
        }
        // Both windows decoded the word cut at their edge wrongly.
        let mut left = text[..30].to_vec();
        let mut right = text[20..].to_vec();

        (left[29], right[0]) = (5000, 5001);
        let (keep, skip) = join_overlap(&left, &right);
        assert_eq!([&left[..keep], &right[skip..]].concat(), text);
        assert_eq!(join_overlap(&[], &[1, 2]), (0, 0));
        assert_eq!(join_overlap(&[1, 2], &[]), (2, 0));
    }
}
