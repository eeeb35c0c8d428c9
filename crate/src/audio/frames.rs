//! Tokens that are codes of sound: several make a frame and share its position. Knows token ids and positions.

use serde_json::Value;

/// How a model's vocabulary holds codes, and where they stand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frames {
    /// The first token that is a code.
    pub start: u32,
    /// Codes of a frame, one of each codebook in turn.
    pub per: usize,
    /// Codes of a codebook.
    pub size: u32,
    /// Positions from a frame to the next; none where each token has its own.
    pub step: Option<f32>,
}

/// Special tokens, counted from the first after the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Codes follow.
    StartOfSpeech = 1,
    /// The codes are over.
    EndOfSpeech = 2,
    /// The text to speak follows.
    StartOfHuman = 3,
    /// The text is over.
    EndOfHuman = 4,
    /// The answer follows.
    StartOfAi = 5,
}

/// Special tokens before the codes.
const SPECIALS: u32 = 10;
/// Codes of NanoCodec's codebooks, for configurations that do not say where codes begin.
const USUAL: u32 = 4032;

impl Frames {
    /// Reads config.json; none where the vocabulary has no room for codes.
    pub fn read(config: &Value) -> Option<Self> {
        let number = |name: &str| config.get(name).and_then(Value::as_u64).map(|n| n as u32);
        let (vocab, per) = (number("vocab_size")?, number("tokens_per_frame").unwrap_or(4).max(1));
        let start = number("audio_tokens_start").or_else(|| vocab.checked_sub(per * USUAL))?;
        let size = vocab.checked_sub(start)? / per;
        let step = config.get("audio_step").and_then(Value::as_f64).map(|step| step as f32);
        (size > 0 && start > SPECIALS).then_some(Self { start, per: per as usize, size, step })
    }

    /// A special token.
    pub fn special(&self, which: Special) -> u32 {
        self.start - SPECIALS + which as u32
    }

    /// The code of a token at a place of its frame; none where the place is another codebook's, or the token is no code.
    pub fn code(&self, token: u32, place: usize) -> Option<u32> {
        let code = token.checked_sub(self.start + place as u32 * self.size)?;
        (code < self.size).then_some(code)
    }

    /// The tokens that may come at a place of a frame.
    pub fn turn(&self, place: usize) -> std::ops::Range<u32> {
        let first = self.start + (place % self.per) as u32 * self.size;
        first..first + self.size
    }

    /// The positions of `capacity` tokens of which the first `before` are no codes and all others are.
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
        // An older model says nothing: its codes are the last of the vocabulary, each with a position of its own.
        let older = Frames::read(&json!({ "vocab_size": 80_538 })).unwrap();
        assert_eq!((older.start, older.size, older.step), (64_410, 4032, None));
        assert_eq!(older.positions(1, 4), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(Frames::read(&json!({ "vocab_size": 100 })), None);
    }
}
