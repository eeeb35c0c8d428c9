//! The decoder that most families are, by its sizes and switches. The order of operations is that of transformers' models.

use super::attention::{AttentionSpec, Projections, attention};
use super::experts::{ExpertsSpec, add_experts};
use super::latent::{LatentSpec, latent_attention};
use super::mlp::{Inner, MlpSpec, mlp};
use super::{NormSpec, embed, norm};
use crate::arch::config::Config;
use crate::ir::{Builder, Dim, Graph, Ids, Linear, Mask, Op, ValueId, WeightKind};
use crate::{Error, Result};

/// The widest heads that attention over a cache takes.
pub const WIDEST_HEAD: usize = 512;

/// A layer of a dense decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Its attention.
    pub attention: AttentionSpec,
    /// Its MLP.
    pub mlp: MlpSpec,
    /// Experts in the MLP's place.
    pub experts: Option<ExpertsSpec>,
    /// Latent attention in the attention's place.
    pub latent: Option<LatentSpec>,
}

/// What the parts of a decoder are called; norms that a family has not are empty.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// The table of tokens.
    pub embed: &'static str,
    /// The path of layers.
    pub layers: &'static str,
    /// The path of attention in a layer.
    pub attention: &'static str,
    /// The path of the MLP in a layer.
    pub mlp: &'static str,
    /// The norm of what attention reads.
    pub before_attention: &'static str,
    /// The norm of what attention gives.
    pub after_attention: &'static str,
    /// The norm of what the MLP reads; with a parallel residual and none of its own, it reads what attention does.
    pub before_mlp: &'static str,
    /// The norm of what the MLP gives.
    pub after_mlp: &'static str,
    /// The last norm.
    pub last: &'static str,
}

impl Names {
    /// Norms before each part.
    pub const PRE: Self = Self {
        embed: "model.embed_tokens",
        layers: "model.layers",
        attention: "self_attn",
        mlp: "mlp",
        before_attention: "input_layernorm",
        after_attention: "",
        before_mlp: "post_attention_layernorm",
        after_mlp: "",
        last: "model.norm",
    };
    /// Norms after each part.
    pub const POST: Self = Self {
        before_attention: "",
        after_attention: "post_attention_layernorm",
        before_mlp: "",
        after_mlp: "post_feedforward_layernorm",
        ..Self::PRE
    };
    /// Norms before and after each part.
    pub const SANDWICH: Self =
        Self { before_attention: "input_layernorm", before_mlp: "pre_feedforward_layernorm", ..Self::POST };
}

/// A dense decoder by its sizes and switches.
#[derive(Debug, Clone)]
pub struct Dense {
    /// The architecture's name.
    pub name: String,
    /// What its parts are called.
    pub names: Names,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Multiplies the embeddings.
    pub embed_scale: f32,
    /// A table of learned positions: its name and rows.
    pub positions: Option<(&'static str, usize)>,
    /// All norms of rows.
    pub norm: NormSpec,
    /// Whether attention and MLP read the same rows and are added together.
    pub parallel: bool,
    /// Whether the output head is the embedding table.
    pub tied: bool,
    /// Whether the head has a bias.
    pub head_bias: bool,
    /// Multiplies the logits.
    pub logits_scale: f32,
    /// `cap * tanh(logit / cap)`; 0 for none.
    pub logits_softcap: f32,
    /// The layers.
    pub layers: Vec<Layer>,
}

impl Dense {
    /// The sizes that every family names alike: RMSNorm before each part, SiLU, no biases, full attention with rotation
    /// in every layer.
    ///
    /// # Errors
    /// `Config` or `UnsupportedOption` by the field.
    pub fn from_config(config: Config<'_>, tied_by_default: bool) -> Result<Self> {
        let (heads, kv_heads) = config.heads()?;
        let hidden = config.count("hidden_size")?;
        let head_dim = config.head_dim(hidden, heads, WIDEST_HEAD)?;
        let round = rounds(config)?;
        let attention = AttentionSpec {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            softcap: 0.0,
            mask: Mask::Causal { window: 0 },
            rope: Some(config.rope(head_dim, 10_000.0)?),
            projections: Projections::Apart(["q_proj", "k_proj", "v_proj"]),
            qkv_bias: false,
            qk_norm: None,
            value_norm: None,
            relative: None,
            shared: None,
            gated: false,
            sinks: None,
            sub_norm: None,
            out: "o_proj",
            out_bias: false,
            out_scale: 1.0,
            round,
        };
        let mlp = MlpSpec {
            size: config.count("intermediate_size")?,
            act: config.activation("hidden_act", "silu")?,
            inner: Inner::Gated(["gate_proj", "up_proj"]),
            sub_norm: None,
            down: "down_proj",
            bias: false,
            gate_scale: 1.0,
            out_scale: 1.0,
            round,
        };
        let mut layers =
            vec![Layer { attention, mlp, experts: None, latent: None }; config.layers("num_hidden_layers")?];
        for (index, layer) in layers.iter_mut().enumerate() {
            if let Some(shared) = layer.attention.rope.take() {
                layer.attention.rope = config.rope_of_layer(index, &shared, head_dim)?;
            }
        }
        Ok(Self {
            name: config.architecture(),
            names: Names::PRE,
            hidden,
            vocab: config.count("vocab_size")?,
            embed_scale: 1.0,
            positions: None,
            norm: NormSpec::rms(config.number_or("rms_norm_eps", 1e-6)?),
            parallel: false,
            tied: config.flag_or("tie_word_embeddings", tied_by_default),
            head_bias: false,
            logits_scale: 1.0,
            logits_softcap: 0.0,
            layers,
        })
    }

    /// Changes the attention of all layers.
    pub fn attentions(&mut self, change: impl FnMut(&mut AttentionSpec)) {
        self.layers.iter_mut().map(|l| &mut l.attention).for_each(change);
    }

    /// Changes the MLPs of all layers.
    pub fn mlps(&mut self, change: impl FnMut(&mut MlpSpec)) {
        self.layers.iter_mut().map(|l| &mut l.mlp).for_each(change);
    }

    /// Gives each layer the window that `of` tells for its number; 0 for full attention.
    pub fn windows(&mut self, mut of: impl FnMut(usize) -> usize) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.attention.mask = Mask::Causal { window: of(index) };
        }
    }

    /// Rotates neighbouring columns rather than halves.
    pub fn interleave(&mut self) {
        self.layers.iter_mut().filter_map(|l| l.attention.rope.as_mut()).for_each(|r| r.interleaved = true);
    }

    /// The whole decoder, from token ids to logits.
    ///
    /// # Errors
    /// `Internal` when shapes do not meet.
    pub fn graph(&self) -> Result<Graph> {
        let mut b = Builder::new(&self.name);
        let x = self.rows(&mut b);
        self.finish(b, x)
    }

    /// The last norm and the head over a residual stream, or over the last row of one.
    ///
    /// # Errors
    /// `Internal` when shapes do not meet.
    pub fn finish(&self, mut b: Builder, x: ValueId) -> Result<Graph> {
        let single = b.graph().value(x).rows == Dim::Last;
        let last = if single { x } else { b.node("last_row", Op::LastRow, &[x], self.hidden) };
        let hidden = norm(&mut b, self.names.last, self.norm, last);
        self.with_head(b, hidden)
    }

    /// The last hidden states of all tokens, after the last norm.
    pub fn body(&self, b: &mut Builder) -> ValueId {
        let x = self.rows(b);
        norm(b, self.names.last, self.norm, x)
    }

    /// The residual stream after the last layer.
    fn rows(&self, b: &mut Builder) -> ValueId {
        let mut x = embed(b, self.names.embed, self.vocab, self.hidden, self.embed_scale, Ids::Tokens);
        if let Some((name, rows)) = self.positions {
            let places = embed(b, name, rows, self.hidden, 1.0, Ids::Positions);
            x = b.add("placed", x, places);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.layer(b, &format!("{}.{index}", self.names.layers), layer, x);
        }
        x
    }

    fn layer(&self, b: &mut Builder, path: &str, layer: &Layer, x: ValueId) -> ValueId {
        let names = &self.names;
        let normed = |b: &mut Builder, name: &str, x: ValueId| {
            if name.is_empty() { x } else { norm(b, &format!("{path}.{name}"), self.norm, x) }
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

    fn with_head(&self, mut b: Builder, hidden: ValueId) -> Result<Graph> {
        let table = format!("{}.weight", self.names.embed);
        let weight = if self.tied {
            b.weight(&table, self.vocab, self.hidden, WeightKind::Table)
        } else {
            b.weight("lm_head.weight", self.vocab, self.hidden, WeightKind::Table)
        };
        let bias = self.head_bias.then(|| b.vector("lm_head.bias", self.vocab));
        if bias.is_some() && self.logits_scale != 1.0 {
            return Err(Error::Internal("a head with a bias cannot be scaled".into()));
        }
        let (scale, softcap) = (self.logits_scale, self.logits_softcap);
        let head = Linear { scale, softcap, ..Linear::new(weight, bias) };
        let logits = b.node("logits", Op::Linear(head), &[hidden], self.vocab);
        b.finish(hidden, Some(logits))
    }
}

/// Whether what products read is rounded to 8 bits: the configuration says that they are BitNet's.
fn rounds(config: Config<'_>) -> Result<bool> {
    let how = config.get("quantization_config").map(Config);
    let Some(how) = how.filter(|q| q.text("quant_method") == Some("bitnet")) else { return Ok(false) };
    if how.flag_or("use_rms_norm", false) {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: "use_rms_norm of BitNet's quantization".into(),
            hint: "The engine runs BitNet's products without a norm of their own, as the published models are.".into(),
        });
    }
    Ok(true)
}
