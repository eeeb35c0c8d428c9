//! The normalizers of tokenizer.json that need Unicode tables: the four normalization forms, BERT's
//! cleaning, accents, and SentencePiece's character map. In browsers JavaScript provides the forms
//! and the grapheme clusters, whose tables would add 65 KB to the package.

use serde_json::Value;
use unicode_categories::UnicodeCategories;

use super::tokenizer_error;
use crate::Result;
use crate::util::base64;

/// Unicode normalization form (UAX #15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnicodeForm {
    /// Composed.
    Nfc,
    /// Decomposed.
    Nfd,
    /// Compatibility characters replaced, composed.
    Nfkc,
    /// Compatibility characters replaced, decomposed.
    Nfkd,
}

impl UnicodeForm {
    #[cfg(target_arch = "wasm32")]
    fn normalize(self, text: &str) -> String {
        let name = match self {
            UnicodeForm::Nfc => "NFC",
            UnicodeForm::Nfd => "NFD",
            UnicodeForm::Nfkc => "NFKC",
            UnicodeForm::Nfkd => "NFKD",
        };
        js_sys::JsString::from(text).normalize(name).into()
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn normalize(self, text: &str) -> String {
        use unicode_normalization::UnicodeNormalization;
        match self {
            UnicodeForm::Nfc => text.nfc().collect(),
            UnicodeForm::Nfd => text.nfd().collect(),
            UnicodeForm::Nfkc => text.nfkc().collect(),
            UnicodeForm::Nfkd => text.nfkd().collect(),
        }
    }
}

/// A normalizer that needs Unicode tables.
pub(super) enum UnicodeNormalizer {
    /// Unicode normalization.
    Form(UnicodeForm),
    /// Removes marks.
    StripAccents,
    /// Removes control characters and replaces rare spaces, as in Google's translation models.
    Nmt,
    /// BERT's normalization before splitting.
    Bert {
        /// Removes control characters and replaces white space by spaces.
        clean: bool,
        /// Adds spaces around Chinese characters.
        chinese: bool,
        /// Removes accents.
        strip: bool,
        /// Lowercases.
        lower: bool,
    },
    /// SentencePiece's character map.
    Map(CharacterMap),
}

impl UnicodeNormalizer {
    /// Reads an entry of tokenizer.json; `None` for other normalizers.
    pub fn load(entry: &Value) -> Result<Option<UnicodeNormalizer>> {
        let on = |name: &str| {
            entry.get(name).and_then(Value::as_bool).ok_or_else(|| {
                tokenizer_error(format!("tokenizer.json: BertNormalizer has no `{name}`"))
            })
        };
        Ok(Some(match entry.get("type").and_then(Value::as_str) {
            Some("NFC") => UnicodeNormalizer::Form(UnicodeForm::Nfc),
            Some("NFD") => UnicodeNormalizer::Form(UnicodeForm::Nfd),
            Some("NFKC") => UnicodeNormalizer::Form(UnicodeForm::Nfkc),
            Some("NFKD") => UnicodeNormalizer::Form(UnicodeForm::Nfkd),
            Some("StripAccents") => UnicodeNormalizer::StripAccents,
            Some("Nmt") => UnicodeNormalizer::Nmt,
            Some("BertNormalizer") => UnicodeNormalizer::Bert {
                clean: on("clean_text")?,
                chinese: on("handle_chinese_chars")?,
                strip: entry
                    .get("strip_accents")
                    .and_then(Value::as_bool)
                    .map_or_else(|| on("lowercase"), Ok)?,
                lower: on("lowercase")?,
            },
            Some("Precompiled") => {
                let map = entry
                    .get("precompiled_charsmap")
                    .and_then(Value::as_str)
                    .and_then(CharacterMap::read);

                UnicodeNormalizer::Map(map.ok_or_else(|| {
                    tokenizer_error(
                        "tokenizer.json: precompiled_charsmap is not a valid character map",
                    )
                })?)
            }
            _ => return Ok(None),
        }))
    }

    /// Returns the normalized text; `None` if it is unchanged.
    pub fn apply(&self, text: &str) -> Option<String> {
        let done = match self {
            UnicodeNormalizer::Form(_) | UnicodeNormalizer::StripAccents if text.is_ascii() => {
                return None;
            }
            UnicodeNormalizer::Form(form) => form.normalize(text),
            UnicodeNormalizer::StripAccents => text.chars().filter(|c| !is_mark(*c)).collect(),
            UnicodeNormalizer::Nmt => text.chars().filter_map(nmt).collect(),
            UnicodeNormalizer::Bert {
                clean,
                chinese,
                strip,
                lower,
            } => {
                let kept = text
                    .chars()
                    .filter_map(|c| if *clean { clean_char(c) } else { Some(c) });
                let mut all = String::with_capacity(text.len());
                for c in kept {
                    let apart = *chinese && is_chinese(c);
                    all.extend(
                        apart
                            .then_some(' ')
                            .into_iter()
                            .chain([c])
                            .chain(apart.then_some(' ')),
                    );
                }
                if *strip && !all.is_ascii() {
                    all = UnicodeForm::Nfd
                        .normalize(&all)
                        .chars()
                        .filter(|c| !c.is_mark_nonspacing())
                        .collect();
                }
                // Per character, not per string: a sigma at the end of a word stays as it is.
                if *lower {
                    all.chars().flat_map(char::to_lowercase).collect()
                } else {
                    all
                }
            }
            UnicodeNormalizer::Map(map) => map.apply(text),
        };
        (done != text).then_some(done)
    }
}

/// Whether Unicode 9, the version of the models' own tokenizers, has the character as a mark. Those
/// are the marks of Unicode 8, and the ranges added in 9.
fn is_mark(c: char) -> bool {
    let came = matches!(
        u32::from(c),
        0x8d4..=0x8e1
            | 0x1885..=0x1886
            | 0x1dfb
            | 0xa8c5
            | 0x1123e
            | 0x11435..=0x11446
            | 0x11c2f..=0x11c36
            | 0x11c38..=0x11c3f
            | 0x11c92..=0x11ca7
            | 0x11ca9..=0x11cb6
            | 0x1e000..=0x1e006
            | 0x1e008..=0x1e018
            | 0x1e01b..=0x1e021
            | 0x1e023..=0x1e024
            | 0x1e026..=0x1e02a
            | 0x1e944..=0x1e94a
    );
    came || c.is_mark_nonspacing() || c.is_mark_spacing_combining() || c.is_mark_enclosing()
}

fn clean_char(c: char) -> Option<char> {
    match c {
        '\t' | '\n' | '\r' => Some(' '),
        '\0' | '\u{fffd}' => None,
        _ if c.is_other() => None,
        _ if c.is_whitespace() => Some(' '),
        _ => Some(c),
    }
}

/// The blocks of ideographs in BERT's list.
fn is_chinese(c: char) -> bool {
    matches!(
        u32::from(c),
        0x3400..=0x4dbf
            | 0x4e00..=0x9fff
            | 0xf900..=0xfaff
            | 0x20000..=0x2a6df
            | 0x2a700..=0x2b81f
            | 0x2b920..=0x2ceaf
            | 0x2f800..=0x2fa1f
    )
}

fn nmt(c: char) -> Option<char> {
    match u32::from(c) {
        0x01..=0x08 | 0x0b | 0x0e..=0x1f | 0x7f | 0x8f | 0x9f => None,
        0x09
        | 0x0a
        | 0x0c
        | 0x0d
        | 0x1680
        | 0x200b..=0x200f
        | 0x2028
        | 0x2029
        | 0x2581
        | 0xfeff
        | 0xfffd => Some(' '),
        _ => Some(c),
    }
}

/// SentencePiece's map of characters and short sequences: a double-array trie (darts-clone's
/// layout) over zero-terminated replacements.
pub(super) struct CharacterMap {
    trie: Vec<u32>,
    texts: String,
}

impl CharacterMap {
    fn read(text: &str) -> Option<CharacterMap> {
        let bytes = base64::decode(text)?;
        let (size, rest) = bytes.split_first_chunk::<4>()?;
        let (trie, texts) = rest.split_at_checked(u32::from_le_bytes(*size) as usize / 4 * 4)?;
        let trie = trie
            .as_chunks::<4>()
            .0
            .iter()
            .map(|unit| u32::from_le_bytes(*unit))
            .collect();
        Some(CharacterMap {
            trie,
            texts: String::from_utf8(texts.to_vec()).ok()?,
        })
    }

    /// Returns the replacement of the shortest prefix of `text` in the map.
    fn find(&self, text: &str) -> Option<&str> {
        let unit = |at: u32| self.trie.get(at as usize).copied();
        let next = |at: u32, unit: u32| at ^ (unit >> 10 << ((unit & 1 << 9) >> 6));
        let mut at = next(0, unit(0)?);
        for byte in text.bytes().take_while(|byte| *byte != 0) {
            at ^= u32::from(byte);
            let found = unit(at)?;
            if found & (1 << 31 | 0xff) != u32::from(byte) {
                return None;
            }
            at = next(at, found);
            if found >> 8 & 1 == 1 {
                return self
                    .texts
                    .get((unit(at)? & !(1 << 31)) as usize..)?
                    .split('\0')
                    .next();
            }
        }
        None
    }

    /// Replaces short grapheme clusters first, then the characters of clusters that the map lacks.
    fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for cluster in clusters(text) {
            match self.find(cluster).filter(|_| cluster.len() < 6) {
                Some(found) => out.push_str(found),
                None => {
                    for part in cluster.split_inclusive(|_| true) {
                        out.push_str(self.find(part).unwrap_or(part));
                    }
                }
            }
        }
        out
    }
}

/// Grapheme clusters (UAX #29).
#[cfg(not(target_arch = "wasm32"))]
fn clusters(text: &str) -> Vec<&str> {
    unicode_segmentation::UnicodeSegmentation::graphemes(text, true).collect()
}

/// Grapheme clusters (UAX #29).
#[cfg(target_arch = "wasm32")]
fn clusters(text: &str) -> Vec<&str> {
    #[wasm_bindgen::prelude::wasm_bindgen(module = "/js/text.js")]
    extern "C" {
        fn clusters(text: &str) -> Vec<u32>;
    }
    let mut rest = text
        .char_indices()
        .map(|(at, c)| (at + c.len_utf8(), c.len_utf16() as u32));
    let mut start = 0;

    clusters(text)
        .into_iter()
        .map_while(|units: u32| {
            let mut left = units;
            let mut end = start;

            while left > 0 {
                let (next, units) = rest.next()?;
                (end, left) = (next, left.saturating_sub(units));
            }
            let found = text.get(start..end);
            start = end;
            found
        })
        .collect()
}

#[cfg(not(target_arch = "wasm32"))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::reference_library::single_component;
    use serde_json::json;
    use tokenizers::pipeline;

    /// Normalizes with the library, whose normalizers are compiled only for tests and the native
    /// runner.
    fn library_output(entry: &Value, texts: &[String]) -> Vec<String> {
        let library = single_component("normalizer", entry.clone()).unwrap();

        texts
            .iter()
            .map(|text: &String| {
                pipeline::normalize_all(library.get_normalizers(), text, 0)
                    .unwrap()
                    .into_owned()
            })
            .collect()
    }

    /// Every character, alone and between others.
    fn texts() -> Vec<String> {
        let all: Vec<char> = (0..=0x2_ffff)
            .chain(0xe_0000..0xe_0200)
            .filter_map(char::from_u32)
            .collect();
        let mut texts: Vec<String> = all.chunks(64).map(|some| some.iter().collect()).collect();
        texts.extend(all.iter().map(|c| format!("a{c}\u{301}e\u{323}\u{302}")));
        texts.extend(
            [
                "",
                "ΑΣ",
                "Crème Brûlée",
                "ｶﾞ ﬁ ½ ①",
                "각 각",
                "中文a字",
                "a\u{0}b\tc\r\nd",
            ]
            .map(String::from),
        );
        texts
    }

    #[test]
    fn unicode_normalizers_match_the_library() {
        let bert = |clean, chinese, strip: Value, lower| json!({"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": strip, "lowercase": lower});
        let mut entries = vec![
            bert(true, true, Value::Null, true),
            bert(false, false, json!(true), false),
        ];
        entries.push(bert(true, true, json!(false), true));
        entries.extend(
            ["NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Nmt"].map(|name| json!({"type": name})),
        );
        let texts = texts();
        for entry in entries {
            let ours = UnicodeNormalizer::load(&entry).unwrap().unwrap();
            for (text, expected) in texts.iter().zip(library_output(&entry, &texts)) {
                assert_eq!(
                    ours.apply(text).unwrap_or_else(|| text.clone()),
                    expected,
                    "{entry}: {text:?}"
                );
            }
        }
    }

    /// Builds a map of one-byte keys: the root's offset is 256, a leaf's value is next to its node.
    fn map(pairs: &[(u8, &str)]) -> String {
        let mut trie = vec![0u32; 1024];
        let mut texts = String::new();

        trie[0] = 256 << 10;
        for (key, text) in pairs {
            let node = 256 ^ usize::from(*key);
            trie[node] = 512 << 10 | 1 << 8 | u32::from(*key);
            trie[node ^ 512] = 1 << 31 | texts.len() as u32;
            texts.push_str(text);
            texts.push('\0');
        }
        let mut bytes = 4096u32.to_le_bytes().to_vec();
        bytes.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(texts.bytes());
        base64::encode(&bytes)
    }

    #[test]
    fn character_maps_match_the_library() {
        let entry = json!({"type": "Precompiled", "precompiled_charsmap": map(&[(b'A', "a"), (b'\t', " "), (b'-', "")])});
        let ours = UnicodeNormalizer::load(&entry).unwrap().unwrap();
        let texts = [
            "",
            "AB-A\tc",
            "A\u{301}A",
            "e\u{301}A",
            "\r\nA",
            "A\u{301}\u{302}\u{303}",
        ]
        .map(String::from);
        for (text, expected) in texts.iter().zip(library_output(&entry, &texts)) {
            assert_eq!(
                ours.apply(text).unwrap_or_else(|| text.clone()),
                expected,
                "{text:?}"
            );
        }
    }

    #[test]
    fn invalid_character_maps_are_rejected() {
        for wrong in ["", "AAAA", "!", "/////w=="] {
            let entry = json!({"type": "Precompiled", "precompiled_charsmap": wrong});
            assert!(UnicodeNormalizer::load(&entry).is_err(), "{wrong}");
        }
        assert!(
            UnicodeNormalizer::load(&json!({"type": "Lowercase"}))
                .unwrap()
                .is_none()
        );
    }
}
