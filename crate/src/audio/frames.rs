//! Codec tokens in a vocabulary: several form a frame and share its position.

use serde_json::Value;

/// Layout of codec tokens in a vocabulary, and their positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frames {
    /// First codec token id.
    pub start: u32,
    /// Codes per frame, one per codebook in order.
    pub per: usize,
    /// Codes per codebook.
    pub size: u32,
    /// Position step between frames; None if each token has its own position.
    pub step: Option<f32>,
}

/// Special tokens, counted from the first id after the text vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Start of codec tokens.
    StartOfSpeech = 1,
    /// End of codec tokens.
    EndOfSpeech = 2,
    /// Start of the input text.
    StartOfHuman = 3,
    /// End of the input text.
    EndOfHuman = 4,
    /// Start of the answer.
    StartOfAi = 5,
}

/// Number of special tokens before the codec tokens.
const SPECIALS: u32 = 10;
/// Codebook size of NanoCodec, for configurations without `audio_tokens_start`.
const USUAL: u32 = 4032;

impl Frames {
    /// Reads config.json. None if the vocabulary is too small for codec tokens.
    pub fn read(config: &Value) -> Option<Self> {
        let number = |name: &str| config.get(name).and_then(Value::as_u64).map(|n| n as u32);
        let (vocab, per) = (number("vocab_size")?, number("tokens_per_frame").unwrap_or(4).max(1));
        let start = number("audio_tokens_start").or_else(|| vocab.checked_sub(per * USUAL))?;
        let size = vocab.checked_sub(start)? / per;
        let step = config.get("audio_step").and_then(Value::as_f64).map(|step| step as f32);
        (size > 0 && start > SPECIALS).then_some(Self { start, per: per as usize, size, step })
    }

    /// Returns the id of a special token.
    pub fn special(&self, which: Special) -> u32 {
        self.start - SPECIALS + which as u32
    }

    /// Returns the code of a token at index `place` of its frame; None if it is not a code of that codebook.
    pub fn code(&self, token: u32, place: usize) -> Option<u32> {
        let code = token.checked_sub(self.start + place as u32 * self.size)?;
        (code < self.size).then_some(code)
    }

    /// Returns the token ids of the codebook at index `place`.
    pub fn turn(&self, place: usize) -> std::ops::Range<u32> {
        let first = self.start + (place % self.per) as u32 * self.size;
        first..first + self.size
    }

    /// Returns the positions of `capacity` tokens: `before` prompt tokens, then codec tokens.
    pub fn positions(&self, before: usize, capacity: usize) -> Vec<f32> {
        let at = |token: usize| match (token.checked_sub(before), self.step) {
            (Some(code), Some(step)) => before as f32 + (code / self.per) as f32 * step,
            _ => token as f32,
        };
        (0..capacity).map(at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn frames_share_a_position() {
        let config = json!({
            "vocab_size": 148, "audio_tokens_start": 100, "tokens_per_frame": 4, "audio_step": 0.5,
        });
        let frames = Frames::read(&config).unwrap();
        assert_eq!((frames.size, frames.special(Special::EndOfSpeech)), (12, 92));
        assert_eq!(frames.positions(3, 9), [0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.5, 3.5]);
        assert_eq!((frames.code(125, 2), frames.code(125, 1), frames.code(99, 0)), (Some(1), None, None));
        assert_eq!(frames.turn(5), 112..124);
        // Without these fields, codec tokens end the vocabulary, each with its own position.
        let older = Frames::read(&json!({ "vocab_size": 80_538 })).unwrap();
        assert_eq!((older.start, older.size, older.step), (64_410, 4032, None));
        assert_eq!(older.positions(1, 4), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(Frames::read(&json!({ "vocab_size": 100 })), None);
    }
}
