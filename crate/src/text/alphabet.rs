//! GPT-2's byte alphabet: one printable character per byte.

/// Returns the character of a byte.
pub(super) fn byte_to_char(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte - 0x7f),
        0xad => 0x143,
    };
    char::from_u32(code).unwrap_or_default()
}

/// Returns the byte of a character; `None` outside the alphabet.
pub(super) fn char_to_byte(character: char) -> Option<u8> {
    let byte = match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => code,
        code @ 0x100..=0x120 => code - 0x100,
        code @ 0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Appends `text` in the byte alphabet.
pub(super) fn push_mapped(text: &str, out: &mut String) {
    out.extend(text.bytes().map(byte_to_char));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let mut all: Vec<char> = (0..=255).map(byte_to_char).collect();
        assert!((0..=255u8).all(|byte| char_to_byte(byte_to_char(byte)) == Some(byte)));
        assert_eq!(
            (byte_to_char(b' '), byte_to_char(b'\n'), byte_to_char(0xad)),
            ('Ġ', 'Ċ', '\u{143}')
        );
        assert_eq!(
            (
                char_to_byte(' '),
                char_to_byte('\u{144}'),
                char_to_byte('字')
            ),
            (None, None, None)
        );
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256);
    }
}
