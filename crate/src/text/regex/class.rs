//! Character sets of regular expressions. Unicode classes use the tables of the library's own
//! splitters, so both follow the same version of Unicode.

use bitcannon::classify::{Atom, classify_scalar, in_mask, mask};

/// A general category or Perl class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CharCategory {
    Letter,
    Upper,
    Title,
    Lower,
    Caseless,
    Number,
    Mark,
    Punctuation,
    Symbol,
    Han,
    Digit,
    Word,
    Space,
    /// `Alphabetic`, `Uppercase` and `Lowercase` of POSIX brackets, which are more than letters.
    Alphabetic,
    Uppercase,
    Lowercase,
    /// Punctuation and the symbols of ASCII.
    PosixPunctuation,
}

#[derive(Debug, Clone)]
pub(super) enum ClassItem {
    Range(char, char),
    Category(CharCategory, bool),
    /// What all these classes have.
    All(Vec<CharClass>),
}

/// A character set.
#[derive(Debug, Clone)]
pub(super) struct CharClass {
    pub items: Vec<ClassItem>,
    pub negated: bool,
    pub ignore_case: bool,
}

impl CharClass {
    /// Number of items, with those of nested classes.
    pub fn weight(&self) -> usize {
        let weight = |item: &ClassItem| match item {
            ClassItem::All(classes) => classes.iter().map(CharClass::weight).sum(),
            _ => 1,
        };
        self.items.iter().map(weight).sum()
    }

    pub fn has(&self, c: char) -> bool {
        let inside = self.items.iter().any(|item| match item {
            ClassItem::Range(from, to) => {
                (*from..=*to).contains(&c) || self.ignore_case && folds_into(c, *from, *to)
            }
            ClassItem::Category(category, negated) => category.has(c) != *negated,
            ClassItem::All(classes) => classes.iter().all(|class| class.has(c)),
        });
        inside != self.negated
    }
}

/// Whether the other case of `c` is in the range.
fn folds_into(c: char, from: char, to: char) -> bool {
    let lower = c.to_lowercase().next();
    let upper = c.to_uppercase().next();
    [
        lower,
        upper,
        lower.and_then(|l| l.to_uppercase().next()),
        upper.and_then(|u| u.to_lowercase().next()),
    ]
    .iter()
    .any(|other| other.is_some_and(|o| (from..=to).contains(&o)))
}

fn tag_of(c: char) -> u8 {
    let mut buffer = [0; 4];
    let mut tags = [0; 4];
    let bytes = c.encode_utf8(&mut buffer).as_bytes();
    classify_scalar(bytes, &mut tags[..bytes.len()]);
    tags[0]
}

/// Punctuation as in BERT: Unicode's, and all ASCII symbols.
pub(in super::super) fn is_punctuation(c: char) -> bool {
    in_mask(tag_of(c), mask::PUNCT)
}

/// Word characters (`\w`).
pub(in super::super) fn is_word(c: char) -> bool {
    CharCategory::Word.has(c)
}

/// Nl, numbers that are letters: in \p{N}, not in \d.
const LETTER_NUMBERS: [(char, char); 12] = [
    ('\u{16EE}', '\u{16F0}'),
    ('\u{2160}', '\u{2182}'),
    ('\u{2185}', '\u{2188}'),
    ('\u{3007}', '\u{3007}'),
    ('\u{3021}', '\u{3029}'),
    ('\u{3038}', '\u{303A}'),
    ('\u{A6E6}', '\u{A6EF}'),
    ('\u{10140}', '\u{10174}'),
    ('\u{10341}', '\u{10341}'),
    ('\u{1034A}', '\u{1034A}'),
    ('\u{103D1}', '\u{103D5}'),
    ('\u{12400}', '\u{1246E}'),
];

impl CharCategory {
    fn has(self, c: char) -> bool {
        if self == CharCategory::Space {
            return c.is_whitespace();
        }
        let tag = tag_of(c);
        // The tables count ASCII symbols as punctuation.
        let ascii_symbol = matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '`' | '|' | '~');
        match self {
            CharCategory::Letter => in_mask(tag, mask::LETTER),
            CharCategory::Upper => in_mask(tag, mask::LETTER) && c.is_uppercase(),
            CharCategory::Title => tag == Atom::UpperLetter as u8 && !c.is_uppercase(),
            CharCategory::Lower => tag == Atom::LowerLetter as u8,
            CharCategory::Caseless => tag == Atom::Letter as u8 || tag == Atom::HanLetter as u8,
            CharCategory::Number => in_mask(tag, mask::NUMBER),
            CharCategory::Mark => tag == Atom::Mark as u8,
            CharCategory::Punctuation => in_mask(tag, mask::PUNCT) && !ascii_symbol,
            CharCategory::Symbol => {
                in_mask(tag, Atom::SymOther.bit())
                    || tag == Atom::AlphaSymMark as u8
                    || ascii_symbol
            }
            CharCategory::Han => tag & 0xF0 == 0x30,
            CharCategory::Digit => {
                in_mask(tag, Atom::NumWord.bit())
                    && !LETTER_NUMBERS.iter().any(|(a, b)| (*a..=*b).contains(&c))
            }
            CharCategory::Word => in_mask(tag, mask::WORD),
            CharCategory::Space => c.is_whitespace(),
            CharCategory::Alphabetic => c.is_alphabetic(),
            CharCategory::Uppercase => c.is_uppercase(),
            CharCategory::Lowercase => c.is_lowercase(),
            CharCategory::PosixPunctuation => is_punctuation(c),
        }
    }
}
