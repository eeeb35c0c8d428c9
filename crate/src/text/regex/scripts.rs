//! Scripts by name (`\p{Arabic}`), as characters of a class.

use super::class::ClassItem;
use crate::text::sentencepiece::varint;

/// Names and ranges of scripts. Written by tests/golden/scripts/make_regex_scripts.py, which
/// describes the format. Rare scripts and those without text of their own (`Common`) are not in it.
const SCRIPTS: &[u8] = include_bytes!("scripts.bin");

/// Returns the characters of a script; `None` if the table lacks it.
pub(super) fn script(name: &str) -> Option<Vec<ClassItem>> {
    let mut bytes = SCRIPTS;
    loop {
        let length = varint(&mut bytes)?;
        let (found, rest) = bytes.split_at_checked(length as usize)?;
        bytes = rest;
        let count = varint(&mut bytes)?;
        let mut at = 0;
        let mut ranges = Vec::new();
        for _ in 0..count {
            let from = at + varint(&mut bytes)? as u32;
            at = from + varint(&mut bytes)? as u32;
            ranges.push(ClassItem::Range(char::from_u32(from)?, char::from_u32(at)?));
        }
        if found.eq_ignore_ascii_case(name.as_bytes()) {
            return Some(ranges);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of characters and sums of their codes, as the library's expressions have them.
    const CHARS: [(&str, u64, u64); 31] = [
        ("Arabic", 1373, 71326622),
        ("Armenian", 96, 446531),
        ("Bengali", 96, 239445),
        ("Bopomofo", 77, 949027),
        ("Cherokee", 172, 3980606),
        ("Cyrillic", 508, 12793574),
        ("Devanagari", 164, 2397130),
        ("Ethiopic", 523, 7671168),
        ("Georgian", 173, 1173380),
        ("Greek", 518, 15787342),
        ("Gujarati", 91, 249800),
        ("Gurmukhi", 80, 209325),
        ("Hangul", 11739, 566124223),
        ("Hebrew", 134, 3087732),
        ("Hiragana", 381, 33455756),
        ("Kannada", 91, 295976),
        ("Katakana", 321, 9165001),
        ("Khmer", 146, 904829),
        ("Lao", 83, 312038),
        ("Latin", 1487, 27421744),
        ("Malayalam", 118, 400133),
        ("Mongolian", 168, 1892316),
        ("Myanmar", 243, 4840591),
        ("Oriya", 91, 261565),
        ("Sinhala", 111, 1721911),
        ("Syriac", 88, 164618),
        ("Tamil", 123, 3974599),
        ("Telugu", 100, 312966),
        ("Thaana", 50, 97225),
        ("Thai", 86, 312105),
        ("Tibetan", 207, 816833),
    ];

    #[test]
    fn scripts_have_the_characters_of_the_library() {
        for (name, count, sum) in CHARS {
            let ranges = script(name).expect(name);
            let codes = ranges.iter().flat_map(|item| match item {
                ClassItem::Range(from, to) => u64::from(*from)..=u64::from(*to),
                other => panic!("{other:?}"),
            });
            let (mut found, mut total) = (0, 0);
            for code in codes {
                found += 1;
                total += code;
            }
            assert_eq!((found, total), (count, sum), "{name}");
        }
        assert!(script("Elephant").is_none());
    }
}
