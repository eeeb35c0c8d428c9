//! What families share, as functions over specs: norms, attention, MLPs, and the decoder that most families are. What sets
//! families apart is data of the specs; knows no family. The order of operations is that of transformers' models.

pub mod experts;
pub mod latent;

use super::config::Config;
use crate::ir::{
    Activation, Attention, Builder, Dim, Graph, HeadNorm, Ids, Linear, Mask, Norm, Op, RopeSpec, StateId, StateSpec,
    ValueId, WeightKind,
};
use crate::{Error, Result};
use experts::{ExpertsSpec, add_experts};
use latent::{LatentSpec, latent_attention};

/// The widest heads that attention over a cache takes.
pub const WIDEST_HEAD: usize = 512;

/// A norm of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Whether the mean is subtracted (layer norm).
    pub layer: bool,
    /// Whether it has a bias.
    pub bias: bool,
    /// Added to the gain.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

impl NormSpec {
    /// RMSNorm with a gain.
    pub fn rms(eps: f64) -> Self {
        Self { layer: false, bias: false, offset: 0.0, eps: eps as f32 }
    }

    /// LayerNorm with gain and bias.
    pub fn layer(eps: f64) -> Self {
        Self { layer: true, bias: true, offset: 0.0, eps: eps as f32 }
    }
}

/// A norm with the tensors `{name}.weight` and `{name}.bias`.
pub fn norm(b: &mut Builder, name: &str, spec: NormSpec, x: ValueId) -> ValueId {
    let cols = b.cols(x);
    let gain = Some(b.vector(&format!("{name}.weight"), cols));
    let bias = spec.bias.then(|| b.vector(&format!("{name}.bias"), cols));
    let NormSpec { layer, offset, eps, .. } = spec;
    b.node(name, Op::Norm(Norm { gain, bias, layer, offset, eps }), &[x], cols)
}

/// A norm of each `group` columns, with one gain for all groups, `{name}.weight`.
pub fn norm_each(b: &mut Builder, name: &str, spec: NormSpec, group: usize, x: ValueId) -> ValueId {
    let gain = Some(b.vector(&format!("{name}.weight"), group));
    let NormSpec { layer, offset, eps, .. } = spec;
    let (norm, cols) = (Norm { gain, bias: None, layer, offset, eps }, b.cols(x));
    b.node(name, Op::NormEach(norm, group), &[x], cols)
}

/// `y = act(x Wᵀ (+ bias)) * scale` with the tensors `{name}.weight` and `{name}.bias`.
pub fn product(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    rows: usize,
    bias: bool,
    act: Activation,
    scale: f32,
) -> ValueId {
    let cols = b.cols(x);
    let weight = b.matrix(&format!("{name}.weight"), rows, cols);
    let bias = bias.then(|| b.vector(&format!("{name}.bias"), rows));
    // The product's own scale comes before bias and activation.
    let within = bias.is_none() && act == Activation::None;
    let linear = Linear { act, scale: if within { scale } else { 1.0 }, ..Linear::new(weight, bias) };
    let y = b.node(name, Op::Linear(linear), &[x], rows);
    if within || scale == 1.0 { y } else { b.node(&format!("{name}.scaled"), Op::Scale(scale), &[y], rows) }
}

/// Rows of the table `{name}.weight` by number.
pub fn embed(b: &mut Builder, name: &str, rows: usize, cols: usize, scale: f32, ids: Ids) -> ValueId {
    let table = b.weight(&format!("{name}.weight"), rows, cols, WeightKind::Table);
    b.node(name, Op::Embed { table, scale, ids, soft: None }, &[], cols)
}

/// The names of the projections of q, k and v.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// One tensor each; the values are the keys where their names are the same.
    Apart([&'static str; 3]),
    /// One tensor that holds all three.
    Fused(&'static str),
}

/// Norms of q and k between projection and attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    /// The tensors' names.
    pub names: [&'static str; 2],
    /// The norm.
    pub spec: NormSpec,
    /// Over the whole projection rather than each head.
    pub whole: bool,
    /// After the rotation rather than before it.
    pub after_rope: bool,
}

/// Attention of a layer, from projections to output.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// Which keys a query sees; causal attention keeps keys and values.
    pub mask: Mask,
    /// The rotation; none for layers without.
    pub rope: Option<RopeSpec>,
    /// The projections of q, k and v.
    pub projections: Projections,
    /// Their biases.
    pub qkv_bias: bool,
    /// Norms of q and k.
    pub qk_norm: Option<QkNorm>,
    /// RMSNorm of each head of v, without a gain: what is added to the mean square.
    pub value_norm: Option<f32>,
    /// The tensor of the biases that all layers add to scores by distance, `[32][heads]`; only within packed texts.
    pub relative: Option<&'static str>,
    /// Keys and values of another layer, which this one reads and has none of its own.
    pub shared: Option<StateId>,
    /// Whether the projection of q has as many rows again for a gate, whose sigmoid multiplies what attention gives.
    pub gated: bool,
    /// The vector of logits, one a head, that join the softmax and are dropped.
    pub sinks: Option<&'static str>,
    /// A norm between attention and the output projection.
    pub sub_norm: Option<(&'static str, NormSpec)>,
    /// The name of the output projection.
    pub out: &'static str,
    /// Its bias.
    pub out_bias: bool,
    /// Multiplies what comes out.
    pub out_scale: f32,
    /// Whether what products read is rounded to 8 bits.
    pub round: bool,
}

/// What a product reads, rounded to 8 bits where asked for.
fn read(b: &mut Builder, path: &str, round: bool, x: ValueId) -> ValueId {
    let cols = b.cols(x);
    if round { b.node(&format!("{path}.rounded"), Op::Round(None), &[x], cols) } else { x }
}

/// q, k and v of a layer; q alone where it reads another one's keys and values.
fn project(b: &mut Builder, path: &str, spec: &AttentionSpec, x: ValueId) -> Vec<ValueId> {
    let name = |part: &str| format!("{path}.{part}");
    let (q_cols, kv_cols) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    match spec.projections {
        Projections::Fused(qkv) => {
            let qkv = b.linear(&name(qkv), x, q_cols + 2 * kv_cols, spec.qkv_bias);
            let view = |b: &mut Builder, part: &str, first, cols| b.view(&name(part), qkv, first, cols);
            vec![view(b, "q", 0, q_cols), view(b, "k", q_cols, kv_cols), view(b, "v", q_cols + kv_cols, kv_cols)]
        }
        Projections::Apart(names) => {
            let project = |b: &mut Builder, part: &str, cols| b.linear(&name(part), x, cols, spec.qkv_bias);
            let q = project(b, names[0], if spec.gated { 2 * q_cols } else { q_cols });
            if spec.shared.is_some() {
                return vec![q];
            }
            let k = project(b, names[1], kv_cols);
            let v = if names[2] == names[1] { k } else { project(b, names[2], kv_cols) };
            vec![q, k, v]
        }
    }
}

/// Attention over `x` with tensors under `path`; gives columns of `x`.
pub fn attention(b: &mut Builder, path: &str, spec: &AttentionSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let (q_cols, x) = (spec.heads * spec.head_dim, read(b, path, spec.round, x));
    let mut qkv = project(b, path, spec, x);
    let mut gate = None;
    if spec.gated {
        gate = Some(b.view(&name("gate"), qkv[0], q_cols, q_cols));
        qkv[0] = b.view(&name("q"), qkv[0], 0, q_cols);
    }
    let mut head_norm = None;
    if let Some(QkNorm { names, spec: norms, whole, after_rope }) = spec.qk_norm {
        let own = &names[..qkv.len().min(2)];
        if whole {
            for (x, part) in qkv.iter_mut().zip(own) {
                *x = norm(b, &name(part), norms, *x);
            }
        } else {
            let gains: Vec<String> = own.iter().map(|n| format!("{path}.{n}.weight")).collect();
            let gains = b.vectors(&gains, spec.head_dim);
            head_norm = Some(HeadNorm { gains, offset: norms.offset, eps: norms.eps, after_rope, values: false });
        }
    }
    if let (Some(eps), Some(v)) = (spec.value_norm, qkv.get_mut(2)) {
        let (norm, cols) = (Norm { gain: None, bias: None, layer: false, offset: 0.0, eps }, b.cols(*v));
        *v = b.node(&name("v_norm"), Op::NormEach(norm, spec.head_dim), &[*v], cols);
    }
    let (kv_heads, head_dim) = (spec.kv_heads, spec.head_dim);
    let state = match spec.mask {
        mask if mask.causal().is_some() && spec.shared.is_some() => spec.shared,
        Mask::Causal { window } | Mask::Pictures { window } => {
            Some(b.state(StateSpec::Kv { kv_heads, head_dim, window }))
        }
        Mask::Segment { .. } | Mask::Window | Mask::Memory => None,
    };
    let attention = Attention {
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        scale: spec.scale,
        mask: spec.mask,
        softcap: spec.softcap,
        relative: spec.relative.map(|name| b.vector(name, 32 * spec.heads)),
        sinks: spec.sinks.map(|n| b.vector(&name(n), spec.heads)),
        head_norm,
        rope: spec.rope.clone().map(|r| b.rope(r)),
        state,
    };
    let mut mixed = b.node(&name("attention"), Op::Attention(attention), &qkv, q_cols);
    if let Some(gate) = gate {
        mixed = b.node(&name("gated"), Op::Gated(Activation::Sigmoid), &[gate, mixed], q_cols);
    }
    if let Some((sub, norms)) = spec.sub_norm {
        mixed = norm(b, &name(sub), norms, mixed);
    }
    let (cols, mixed) = (b.cols(x), read(b, &name(spec.out), spec.round, mixed));
    product(b, &name(spec.out), mixed, cols, spec.out_bias, Activation::None, spec.out_scale)
}

/// What goes into an MLP's inner columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inner {
    /// `act(gate) * up`, from two tensors.
    Gated([&'static str; 2]),
    /// The same from one tensor, the gate first.
    GatedFused(&'static str),
    /// `act(up)`.
    Plain(&'static str),
}

/// The MLP of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct MlpSpec {
    /// Inner columns.
    pub size: usize,
    /// The activation.
    pub act: Activation,
    /// What comes in.
    pub inner: Inner,
    /// A norm of the inner columns.
    pub sub_norm: Option<(&'static str, NormSpec)>,
    /// The name of the product that goes out.
    pub down: &'static str,
    /// Biases of all products.
    pub bias: bool,
    /// Multiplies what comes out.
    pub out_scale: f32,
    /// Whether what products read is rounded to 8 bits.
    pub round: bool,
}

/// An MLP over `x` with tensors under `path`; gives columns of `x`.
pub fn mlp(b: &mut Builder, path: &str, spec: &MlpSpec, x: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let (size, x) = (spec.size, read(b, path, spec.round, x));
    let gates = match spec.inner {
        Inner::Gated([gate, up]) => {
            let gate = b.linear(&name(gate), x, size, spec.bias);
            Some((gate, b.linear(&name(up), x, size, spec.bias)))
        }
        Inner::GatedFused(both) => {
            let both = b.linear(&name(both), x, 2 * size, spec.bias);
            Some((b.view(&name("gate"), both, 0, size), b.view(&name("up"), both, size, size)))
        }
        Inner::Plain(_) => None,
    };
    let mut inner = match (gates, spec.inner) {
        (Some((gate, up)), _) => b.node(&name("gated"), Op::Gated(spec.act), &[gate, up], size),
        (None, Inner::Plain(up) | Inner::GatedFused(up) | Inner::Gated([_, up])) => {
            product(b, &name(up), x, size, spec.bias, spec.act, 1.0)
        }
    };
    if let Some((sub, norms)) = spec.sub_norm {
        inner = norm(b, &name(sub), norms, inner);
    }
    let (cols, inner) = (b.cols(x), read(b, &name(spec.down), spec.round, inner));
    product(b, &name(spec.down), inner, cols, spec.bias, Activation::None, spec.out_scale)
}

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
            out_scale: 1.0,
            round,
        };
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
            layers: vec![Layer { attention, mlp, experts: None, latent: None }; config.layers("num_hidden_layers")?],
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
