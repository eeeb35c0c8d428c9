//! Codec tokens in a vocabulary: several form a frame and share its position.

use serde_json::Value;

/// Layout of codec tokens in a vocabulary, and their positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodecVocab {
    /// First codec token id.
    pub start: u32,
    /// Codes per frame, one per codebook in order.
    pub codes_per_frame: usize,
    /// Codes per codebook.
    pub codebook_size: u32,
    /// Position step between frames; None if each token has its own position.
    pub position_step: Option<f32>,
}

/// Special tokens, counted from the first id after the text vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeechToken {
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
const SPECIAL_COUNT: u32 = 10;
/// Codebook size of NanoCodec, for configurations without `audio_tokens_start`.
const NANOCODEC_CODES: u32 = 4032;

impl CodecVocab {
    /// Reads config.json. None if the vocabulary is too small for codec tokens.
    pub fn read(config: &Value) -> Option<Self> {
        let number = |name: &str| config.get(name).and_then(Value::as_u64).map(|n| n as u32);
        let vocab = number("vocab_size")?;
        let per = number("tokens_per_frame").unwrap_or(4).max(1);

        let start =
            number("audio_tokens_start").or_else(|| vocab.checked_sub(per * NANOCODEC_CODES))?;
        let size = vocab.checked_sub(start)? / per;
        let step = config
            .get("audio_step")
            .and_then(Value::as_f64)
            .map(|step| step as f32);
        (size > 0 && start > SPECIAL_COUNT).then_some(Self {
            start,
            codes_per_frame: per as usize,
            codebook_size: size,
            position_step: step,
        })
    }

    /// Returns the id of a special token.
    pub fn special(&self, which: SpeechToken) -> u32 {
        self.start - SPECIAL_COUNT + which as u32
    }

    /// Returns the code of a token of the codebook at index `codebook`;
    /// None if it is not a code of that codebook.
    pub fn code(&self, token: u32, codebook: usize) -> Option<u32> {
        let code = token.checked_sub(self.start + codebook as u32 * self.codebook_size)?;
        (code < self.codebook_size).then_some(code)
    }

    /// Returns the token ids of the codebook at index `codebook`.
    pub fn codebook_tokens(&self, codebook: usize) -> std::ops::Range<u32> {
        let first = self.start + (codebook % self.codes_per_frame) as u32 * self.codebook_size;
        first..first + self.codebook_size
    }

    /// Returns the positions of `capacity` tokens: `before` prompt tokens, then codec tokens.
    pub fn positions(&self, before: usize, capacity: usize) -> Vec<f32> {
        (0..capacity)
            .map(
                |token: usize| match (token.checked_sub(before), self.position_step) {
                    (Some(code), Some(step)) => {
                        before as f32 + (code / self.codes_per_frame) as f32 * step
                    }
                    _ => token as f32,
                },
            )
            .collect()
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
        let frames = CodecVocab::read(&config).unwrap();
        assert_eq!(
            (
                frames.codebook_size,
                frames.special(SpeechToken::EndOfSpeech)
            ),
            (12, 92)
        );
        assert_eq!(
            frames.positions(3, 9),
            [0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.5, 3.5]
        );
        assert_eq!(
            (frames.code(125, 2), frames.code(125, 1), frames.code(99, 0)),
            (Some(1), None, None)
        );
        assert_eq!(frames.codebook_tokens(5), 112..124);
        // Without these fields, codec tokens end the vocabulary, each with its own position.
        let older = CodecVocab::read(&json!({ "vocab_size": 80_538 })).unwrap();
        assert_eq!(
            (older.start, older.codebook_size, older.position_step),
            (64_410, 4032, None)
        );
        assert_eq!(older.positions(1, 4), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(CodecVocab::read(&json!({ "vocab_size": 100 })), None);
    }
}
