//! Shared code of encoder-decoder speech models: their graphs, and the layers around
//! [`cross_attention`](super::blocks::cross_attention). Covers neither audio samples nor text.

use super::blocks::cross_attention::CrossNorms;
use super::config::Config;
use super::encoder::dense;
use crate::ir::{
    Activation, Embed, Graph, GraphBuilder, IdSource, LastRow, Linear, RopeSpec, ValueId,
    WeightKind,
};
use crate::{Error, Result};

/// How samples at 16 kHz become input rows of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AudioFrontend {
    /// Raw samples: `(samples + plus) / cols` rows, the last one padded with zeros.
    Samples {
        /// Samples per row.
        cols: usize,
        /// Added before the division.
        plus: usize,
        /// Whether the samples of an incomplete last row are used.
        use_partial_row: bool,
        /// Maximum number of samples.
        max_samples: usize,
    },
    /// A fixed number of log-mel frames of 160 samples; shorter audio is padded with silence.
    Mel {
        /// Mel bands.
        mels: usize,
        /// Frames.
        frames: usize,
    },
}

impl AudioFrontend {
    /// Returns the maximum number of samples of one encoder run.
    pub fn max_samples(self) -> usize {
        match self {
            Self::Samples {
                max_samples: longest,
                ..
            } => longest,
            Self::Mel { frames, .. } => frames * crate::audio::mel::HOP,
        }
    }

    /// Returns the number of input rows for a number of samples.
    pub fn rows(self, samples: usize) -> usize {
        match self {
            Self::Samples { cols, plus, .. } => (samples + plus) / cols,
            Self::Mel { frames, .. } => frames,
        }
    }
}

/// An encoder and a decoder with cross-attention, as graphs over one set of weights.
#[derive(Debug, Clone)]
pub struct SpeechGraphs {
    /// Audio to encoder states; the family names its input.
    pub encoder: Graph,
    /// The input "states" to the cross-attention keys of all decoder layers, concatenated.
    pub keys: Graph,
    /// The input "states" to the cross-attention values.
    pub values: Graph,
    /// Tokens to logits, with the inputs "keys" and "values".
    pub decoder: Graph,
    /// Columns of the encoder states.
    pub state_cols: usize,
    /// Audio front end of the encoder.
    pub frontend: AudioFrontend,
    /// Maximum number of encoder state rows.
    pub max_states: usize,
}

/// Adds a convolution as im2col and a matmul.
pub(super) fn conv(
    b: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    windows: crate::ir::Im2Col,
    outputs: usize,
    bias: bool,
    act: Activation,
) -> ValueId {
    let cols = b.cols(x) * windows.kernel_size;
    let seen = b.node(&format!("{name}.windows"), windows, &[x], cols);
    dense(b, name, seen, outputs, bias, act)
}

/// Adds the token embedding table `{name}.weight` `[vocab, cols]`; returns the table and the
/// embeddings.
pub(super) fn token_embeddings(
    b: &mut GraphBuilder,
    name: &str,
    vocab: usize,
    cols: usize,
) -> (crate::ir::WeightId, ValueId) {
    let table = b.weight(&format!("{name}.weight"), vocab, cols, WeightKind::Table);
    (
        table,
        b.node(
            name,
            Embed {
                table,
                scale: 1.0,
                ids: IdSource::Tokens,
                soft: None,
            },
            &[],
            cols,
        ),
    )
}

/// Adds a decoder's final norm and output head over the last row.
pub(super) fn output_head(
    mut b: GraphBuilder,
    x: ValueId,
    norm: &str,
    norms: CrossNorms,
    weight: crate::ir::WeightId,
) -> Result<Graph> {
    let cols = b.cols(x);
    let last = b.node("last", LastRow, &[x], cols);
    let hidden = norms.norm(&mut b, norm, last);
    let vocab = b.graph().weight(weight).rows();
    let logits = b.node("logits", Linear::new(weight, None), &[hidden], vocab);
    b.finish(hidden, Some(logits))
}

/// Reads the RoPE of a family with interleaved columns; it covers `share` of a head unless the
/// configuration sets it.
///
/// # Errors
/// `Config`, also for an odd number of rotated columns.
pub(super) fn interleaved_rope(
    config: Config<'_>,
    head_dim: usize,
    share: f64,
) -> Result<RopeSpec> {
    let mut spec = RopeSpec {
        interleaved: true,
        ..config.rope(head_dim, 10_000.0)?
    };
    let inner = config
        .get("rope_parameters")
        .and_then(|p| p.get("partial_rotary_factor"));
    if inner
        .or_else(|| config.get("partial_rotary_factor"))
        .is_none()
    {
        spec.dim = (head_dim as f64 * share) as usize / 2 * 2;
    }
    Ok(spec)
}

/// Builds the error for an unsupported option.
pub(super) fn unsupported(config: Config<'_>, option: &str, hint: &str) -> Error {
    Error::UnsupportedOption {
        architecture: config.architecture(),
        option: option.into(),
        hint: hint.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::LoadConfig;
    use serde_json::json;

    #[test]
    fn partial_rotary_factor_sets_the_rope_dim() {
        let spec = |config: serde_json::Value, share| {
            interleaved_rope(LoadConfig::from(config).fields(), 12, share).map(|s| (s.dim, s.base))
        };
        assert_eq!(spec(json!({}), 0.9).unwrap(), (10, 10_000.0));
        assert_eq!(
            spec(json!({ "partial_rotary_factor": 0.5 }), 0.9).unwrap(),
            (6, 10_000.0)
        );
        let newer = json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 500.0 } });
        assert_eq!(spec(newer, 1.0).unwrap(), (12, 500.0));
    }
}
