//! The dense decoder that most families use, as sizes and switches. The order of operations follows
//! transformers' models.

use super::attention::{AttentionHeads, AttentionSpec, attention};
use super::experts::{ExpertsSpec, add_experts};
use super::latent::{LatentSpec, latent_attention};
use super::mlp::{MlpKind, MlpSpec, mlp};
use super::{NormSpec, embed, norm};
use crate::arch::config::Config;
use crate::ir::{Dim, Graph, GraphBuilder, IdSource, LastRow, Linear, Mask, ValueId, WeightKind};
use crate::{Error, Result};

/// Maximum head dimension of attention over a KV cache.
pub const MAX_HEAD_DIM: usize = 512;

/// A layer of a dense decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderLayer {
    /// Attention.
    pub attention: AttentionSpec,
    /// The MLP.
    pub mlp: MlpSpec,
    /// Experts instead of the MLP.
    pub experts: Option<ExpertsSpec>,
    /// Latent attention (MLA) instead of `attention`.
    pub latent: Option<LatentSpec>,
}

/// Tensor names of a decoder's parts; empty for norms that a family lacks.
#[derive(Debug, Clone, Copy)]
pub struct TensorNames {
    /// The token embedding table.
    pub embed: &'static str,
    /// Path of the layers.
    pub layers: &'static str,
    /// Path of attention within a layer.
    pub attention: &'static str,
    /// Path of the MLP within a layer.
    pub mlp: &'static str,
    /// Norm before attention.
    pub before_attention: &'static str,
    /// Norm after attention.
    pub after_attention: &'static str,
    /// Norm before the MLP. If empty in a parallel layer, the MLP reads attention's input.
    pub before_mlp: &'static str,
    /// Norm after the MLP.
    pub after_mlp: &'static str,
    /// The final norm.
    pub final_norm: &'static str,
}

impl TensorNames {
    /// Norms before attention and MLP (pre-norm).
    pub const PRE: Self = Self {
        embed: "model.embed_tokens",
        layers: "model.layers",
        attention: "self_attn",
        mlp: "mlp",
        before_attention: "input_layernorm",
        after_attention: "",
        before_mlp: "post_attention_layernorm",
        after_mlp: "",
        final_norm: "model.norm",
    };
    /// Norms after attention and MLP (post-norm).
    pub const POST: Self = Self {
        before_attention: "",
        after_attention: "post_attention_layernorm",
        before_mlp: "",
        after_mlp: "post_feedforward_layernorm",
        ..Self::PRE
    };
    /// Norms before and after attention and MLP.
    pub const SANDWICH: Self = Self {
        before_attention: "input_layernorm",
        before_mlp: "pre_feedforward_layernorm",
        ..Self::POST
    };
}

/// A dense decoder as sizes and switches.
#[derive(Debug, Clone)]
pub struct DenseDecoder {
    /// Architecture name.
    pub name: String,
    /// Tensor names of its parts.
    pub names: TensorNames,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Scale of the embeddings.
    pub embed_scale: f32,
    /// Learned position embeddings: table name and number of rows.
    pub positions: Option<(&'static str, usize)>,
    /// The norm used throughout.
    pub norm: NormSpec,
    /// Whether attention and MLP run in parallel on the same input.
    pub parallel: bool,
    /// Whether the output head is the embedding table.
    pub tied: bool,
    /// Whether the output head has a bias.
    pub head_bias: bool,
    /// Scale of the logits.
    pub logits_scale: f32,
    /// Softcap of the logits: `cap * tanh(logit / cap)`; 0 for none.
    pub logits_softcap: f32,
    /// The layers.
    pub layers: Vec<DecoderLayer>,
}

impl DenseDecoder {
    /// Reads the fields common to all families. Defaults: RMSNorm before each part, SiLU, no
    /// biases, full attention with RoPE in every layer.
    ///
    /// # Errors
    /// `Config` or `UnsupportedOption`, naming the field.
    pub fn from_config(config: Config<'_>, tied_by_default: bool) -> Result<Self> {
        let (heads, kv_heads) = config.heads()?;
        let hidden = config.count("hidden_size")?;
        let head_dim = config.head_dim(hidden, heads, MAX_HEAD_DIM)?;
        let round = quantizes_activations(config)?;
        let attention = AttentionSpec {
            quantize_activations: round,
            ..AttentionSpec::new(
                AttentionHeads {
                    query: heads,
                    kv: kv_heads,
                    dim: head_dim,
                },
                Some(config.rope(head_dim, 10_000.0)?),
            )
        };
        let mlp = MlpSpec {
            size: config.count("intermediate_size")?,
            act: config.activation("hidden_act", "silu")?,
            kind: MlpKind::Gated(["gate_proj", "up_proj"]),
            sub_norm: None,
            down: "down_proj",
            bias: false,
            gate_scale: 1.0,
            out_scale: 1.0,
            quantize_activations: round,
        };
        let mut layers = vec![
            DecoderLayer {
                attention,
                mlp,
                experts: None,
                latent: None
            };
            config.layers("num_hidden_layers")?
        ];
        for (index, layer) in layers.iter_mut().enumerate() {
            if let Some(shared) = layer.attention.rope.take() {
                layer.attention.rope = config.rope_for_layer(index, &shared, head_dim)?;
            }
        }
        Ok(Self {
            name: config.architecture(),
            names: TensorNames::PRE,
            hidden,
            vocab: config.count("vocab_size")?,
            embed_scale: 1.0,
            positions: None,
            norm: NormSpec::rms(config.number_or("rms_norm_eps", 1e-6)?),
            parallel: false,
            tied: config.is_tied(tied_by_default),
            head_bias: false,
            logits_scale: 1.0,
            logits_softcap: 0.0,
            layers,
        })
    }

    /// Modifies the attention of all layers.
    pub fn map_attention(&mut self, change: impl FnMut(&mut AttentionSpec)) {
        self.layers
            .iter_mut()
            .map(|l| &mut l.attention)
            .for_each(change);
    }

    /// Modifies the MLPs of all layers.
    pub fn map_mlp(&mut self, change: impl FnMut(&mut MlpSpec)) {
        self.layers.iter_mut().map(|l| &mut l.mlp).for_each(change);
    }

    /// Sets each layer's sliding window by its index; 0 for full attention.
    pub fn set_windows(&mut self, mut of: impl FnMut(usize) -> usize) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.attention.mask = Mask::Causal { window: of(index) };
        }
    }

    /// Rotates adjacent columns (interleaved RoPE) rather than the halves of a head.
    pub fn interleave_rope(&mut self) {
        self.layers
            .iter_mut()
            .filter_map(|l| l.attention.rope.as_mut())
            .for_each(|r| r.interleaved = true);
    }

    /// Builds the whole decoder, from token ids to logits.
    ///
    /// # Errors
    /// `Internal` if shapes do not match.
    pub fn graph(&self) -> Result<Graph> {
        let mut b = GraphBuilder::new(&self.name);
        let x = self.residual_stream(&mut b);
        self.finish(b, x)
    }

    /// Adds the final norm and the output head to a residual stream, or to its last row.
    ///
    /// # Errors
    /// `Internal` if shapes do not match.
    pub fn finish(&self, mut b: GraphBuilder, x: ValueId) -> Result<Graph> {
        let single = b.graph().value(x).rows == Dim::Last;
        let last = if single {
            x
        } else {
            b.node("last_row", LastRow, &[x], self.hidden)
        };
        let hidden = norm(&mut b, self.names.final_norm, self.norm, last);
        self.with_head(b, hidden)
    }

    /// Adds all layers and the final norm; returns the last hidden states of all tokens.
    pub fn hidden_states(&self, b: &mut GraphBuilder) -> ValueId {
        let x = self.residual_stream(b);
        norm(b, self.names.final_norm, self.norm, x)
    }

    /// Adds the scaled token embeddings.
    pub fn embed_tokens(&self, b: &mut GraphBuilder) -> ValueId {
        embed(
            b,
            self.names.embed,
            self.vocab,
            self.hidden,
            self.embed_scale,
            IdSource::Tokens,
        )
    }

    /// Adds embeddings and layers; returns the residual stream.
    fn residual_stream(&self, b: &mut GraphBuilder) -> ValueId {
        let mut x = self.embed_tokens(b);
        if let Some((name, rows)) = self.positions {
            let places = embed(b, name, rows, self.hidden, 1.0, IdSource::Positions);
            x = b.add("placed", x, places);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.layer(b, &format!("{}.{index}", self.names.layers), layer, x);
        }
        x
    }

    fn layer(&self, b: &mut GraphBuilder, path: &str, layer: &DecoderLayer, x: ValueId) -> ValueId {
        let names = &self.names;
        let normed = |b: &mut GraphBuilder, name: &str, x: ValueId| {
            if name.is_empty() {
                x
            } else {
                norm(b, &format!("{path}.{name}"), self.norm, x)
            }
        };
        let read = normed(b, names.before_attention, x);
        let attention_path = format!("{path}.{}", names.attention);
        let mixed = match &layer.latent {
            Some(latent) => latent_attention(b, &attention_path, latent, read),
            None => attention(b, &attention_path, &layer.attention, read),
        };
        let mixed = normed(b, names.after_attention, mixed);
        let sum = b.add(&format!("{path}.attention_residual"), x, mixed);
        let read = match (self.parallel, names.before_mlp) {
            (false, name) => normed(b, name, sum),
            (true, "") => read,
            (true, name) => normed(b, name, x),
        };
        let mlp_path = format!("{path}.{}", names.mlp);
        if let Some(experts) = &layer.experts {
            return add_experts(b, &mlp_path, experts, read, sum);
        }
        let outer = mlp(b, &mlp_path, &layer.mlp, read);
        let outer = normed(b, names.after_mlp, outer);
        b.add(&format!("{path}.mlp_residual"), sum, outer)
    }

    fn with_head(&self, mut b: GraphBuilder, hidden: ValueId) -> Result<Graph> {
        let table = format!("{}.weight", self.names.embed);
        let weight = if self.tied {
            b.weight(&table, self.vocab, self.hidden, WeightKind::Table)
        } else {
            b.weight("lm_head.weight", self.vocab, self.hidden, WeightKind::Table)
        };
        let bias = self.head_bias.then(|| b.vector("lm_head.bias", self.vocab));
        if bias.is_some() && self.logits_scale != 1.0 {
            return Err(Error::Internal(
                "an output head with a bias cannot be scaled".into(),
            ));
        }
        let scale = self.logits_scale;
        let softcap = self.logits_softcap;

        let head = Linear {
            scale,
            softcap,
            ..Linear::new(weight, bias)
        };
        let logits = b.node("logits", head, &[hidden], self.vocab);
        b.finish(hidden, Some(logits))
    }
}

/// Returns whether activations are quantized to 8 bits before each matmul, as BitNet's
/// `quantization_config` says.
fn quantizes_activations(config: Config<'_>) -> Result<bool> {
    let how = config.nested("quantization_config");
    let Some(how) = how.filter(|q| q.string("quant_method") == Some("bitnet")) else {
        return Ok(false);
    };
    if how.flag_or("use_rms_norm", false) {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: "use_rms_norm in BitNet's quantization_config".into(),
            hint: "Use a checkpoint without it; the published models have none.".into(),
        });
    }
    Ok(true)
}
