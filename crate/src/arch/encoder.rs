//! Shared code of encoder families: layers, heads for embeddings and scores, and the conversion of
//! a decoder to an encoder of packed sequences. The order of operations follows transformers'
//! models.

use super::blocks::{NormSpec, embed, linear_act, norm};
use super::config::{Config, LoadConfig};
use super::direction::{check_score, embeds_bidirectionally, is_bidirectional};
use crate::ir::{
    Activation, Attention, Combine, Dim, Embed, Graph, GraphBuilder, IdSource, Linear, Mask, Op,
    Pool, Pooling, ValueId, WeightKind,
};
use crate::{Error, Result};

/// Maximum head dimension of attention over packed sequences.
const MAX_ENCODER_HEAD_DIM: usize = 512;

/// A dense layer after pooling. sentence-transformers stores each in its own folder.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseLayer {
    /// The folder, also the prefix of its tensors; empty for a layer of the model's own files.
    pub path: String,
    /// Input columns.
    pub inputs: usize,
    /// Output columns.
    pub outputs: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// Activation.
    pub act: Activation,
}

/// The output of an encoder.
#[derive(Debug, Clone, PartialEq)]
pub enum EncoderHead {
    /// The last hidden states of all tokens.
    Hidden,
    /// One embedding per sequence.
    Vector {
        /// Pooling of the tokens into one row.
        pooling: Pooling,
        /// Dense layers after pooling.
        dense: Vec<DenseLayer>,
    },
    /// The score of the checkpoint's classification head.
    Score,
    /// The logit difference of two tokens after the sequence, such as yes and no.
    LogitDifference {
        /// The first token.
        yes: u32,
        /// The second token; `None` for the first token's logit alone.
        no: Option<u32>,
    },
}

/// Position ids of a sequence's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionScheme {
    /// Position of the first token.
    pub first: usize,
    /// A token that is not counted, if any; its position is `first - 1`.
    pub padding: Option<u32>,
    /// Maximum number of tokens; `usize::MAX` without a position table.
    pub max_tokens: usize,
    /// Number of token types; 0 or 1 without a token type table.
    pub token_types: usize,
}

impl PositionScheme {
    /// Positions from 0, without a table of positions or token types: for RoPE and relative biases.
    pub const UNBOUNDED: Self = Self {
        first: 0,
        padding: None,
        max_tokens: usize::MAX,
        token_types: 0,
    };
}

/// An encoder's graph and its position ids.
#[derive(Debug, Clone)]
pub struct EncoderGraph {
    /// The graph; its `hidden` is the output of the head.
    pub graph: Graph,
    /// Position ids of the input.
    pub positions: PositionScheme,
}

/// The body of an encoder under construction.
#[derive(Debug)]
pub struct EncoderBody {
    /// The last hidden states `[tokens, cols]`.
    pub hidden: ValueId,
    /// Position ids of the input.
    pub positions: PositionScheme,
}

/// An encoder before its head is added.
#[derive(Debug)]
pub enum HeadlessEncoder {
    /// A family's own encoder.
    Encoder {
        /// Its graph under construction.
        builder: GraphBuilder,
        /// Its output and positions.
        body: EncoderBody,
        /// Builds the family's classification head.
        classification_head: Option<HeadBuilder>,
    },
    /// A decoder, which becomes an encoder.
    Decoder(Graph),
}

impl DenseLayer {
    /// Prefix of the layer's tensors; without a folder it is a tensor of the model itself.
    fn name(&self) -> String {
        match self.path.as_str() {
            "" => "linear".into(),
            path => format!("{path}/linear"),
        }
    }
}

impl HeadlessEncoder {
    /// The graph up to the last hidden states.
    pub fn graph(&self) -> &Graph {
        match self {
            Self::Encoder { builder, .. } => builder.graph(),
            Self::Decoder(graph) => graph,
        }
    }

    /// Position ids of the input.
    pub fn positions(&self) -> PositionScheme {
        match self {
            Self::Encoder { body, .. } => body.positions,
            Self::Decoder(_) => PositionScheme::UNBOUNDED,
        }
    }

    /// Adds a head.
    ///
    /// # Errors
    /// `UnsupportedOption` for a head that the model does not have; `Config` for damaged fields.
    pub fn with_head(self, config: &LoadConfig, head: &EncoderHead) -> Result<EncoderGraph> {
        let positions = self.positions();
        let config = config.fields();
        let graph = match self {
            Self::Encoder {
                builder,
                body,
                classification_head,
            } => with_head(config, builder, &body, head, classification_head)?,
            Self::Decoder(graph) => {
                let mut graph = from_decoder(config, graph, head)?;
                graph.name = config.architecture();
                graph
            }
        };
        Ok(EncoderGraph { graph, positions })
    }
}

/// Builds a family's classification head: hidden states to `[sequences, labels]`.
pub type HeadBuilder = fn(Config<'_>, &mut GraphBuilder, ValueId) -> Result<ValueId>;

/// Adds a head to an encoder body.
fn with_head(
    config: Config<'_>,
    mut b: GraphBuilder,
    body: &EncoderBody,
    head: &EncoderHead,
    score: Option<HeadBuilder>,
) -> Result<Graph> {
    let refuse = |option: &str, hint: &str| {
        Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: option.into(),
            hint: hint.into(),
        })
    };
    let out = match head {
        EncoderHead::Hidden => body.hidden,
        EncoderHead::Vector { pooling, dense } => {
            let cols = b.cols(body.hidden);
            let pooled = b.node("pooled", Pool(*pooling), &[body.hidden], cols);
            dense_layers(&mut b, pooled, dense)?
        }
        EncoderHead::Score => match score {
            Some(score) if config.architecture().ends_with("ForSequenceClassification") => {
                score(config, &mut b, body.hidden)?
            }
            _ => {
                return refuse(
                    "reranking",
                    "The model has no classification head. Use it for embeddings.",
                );
            }
        },
        EncoderHead::LogitDifference { .. } => {
            return refuse(
                "reranking by tokens",
                "The model is not a decoder. Use it for embeddings.",
            );
        }
    };
    b.finish(out, None)
}

/// Converts a decoder's graph to an encoder of packed sequences: no KV cache, and each sequence
/// attends only to its own tokens.
fn from_decoder(config: Config<'_>, graph: Graph, head: &EncoderHead) -> Result<Graph> {
    let is_bidirectional = match head {
        EncoderHead::Hidden | EncoderHead::Vector { .. } => embeds_bidirectionally(config),
        EncoderHead::Score | EncoderHead::LogitDifference { .. } => is_bidirectional(config),
    };
    if matches!(head, EncoderHead::Score) {
        check_score(config)?;
    }
    let is_recurrent = |op: &Op| op.state().is_some() && !matches!(op, Op::Attention(_));
    if graph.nodes.iter().any(|node| is_recurrent(&node.op)) {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: "embedding and reranking with convolution or recurrent layers".into(),
            hint: "Use a model whose layers all have attention.".into(),
        });
    }
    let mut b = GraphBuilder::resume(without_caches(graph, is_bidirectional));
    let hidden = b.graph().hidden;
    let cols = b.cols(hidden);
    let head_pooling = match head {
        EncoderHead::Hidden => None,
        EncoderHead::Vector { pooling, .. } => Some(*pooling),
        EncoderHead::Score | EncoderHead::LogitDifference { .. } => Some(Pooling::Last),
    };
    // The steps between the last layer and the hidden states work on each row separately, so
    // pooling by selection can run before them.
    let pooled = match head_pooling {
        None => hidden,
        Some(pooling) if pooling.selects_token() => {
            replace_last_row(b.graph_mut(), Some(pooling));
            hidden
        }
        Some(pooling) => b.node("pooled", Pool(pooling), &[hidden], cols),
    };
    if !head_pooling.is_some_and(Pooling::selects_token) {
        replace_last_row(b.graph_mut(), None);
    }
    let out = match head {
        EncoderHead::Hidden => pooled,
        EncoderHead::Vector { dense, .. } => dense_layers(&mut b, pooled, dense)?,
        EncoderHead::Score => b.linear("score", pooled, label_count(config), false),
        EncoderHead::LogitDifference { yes, no } => {
            let vocab = config.count("vocab_size")?;
            let tied = config.is_tied(false);
            let table = match tied {
                true => b.graph().nodes.iter().find_map(|n| match n.op {
                    Op::Embed(Embed { table, .. }) => Some(table),
                    _ => None,
                }),
                false => Some(b.weight("lm_head.weight", vocab, cols, WeightKind::Table)),
            };
            let weight = table.ok_or_else(|| {
                Error::Internal("a decoder without a token embedding table".into())
            })?;
            let mut logit = |token: u32, scale: f32, plus: Option<ValueId>| {
                let linear = Linear {
                    row0: token as usize,
                    scale,
                    combine: if plus.is_some() {
                        Combine::Add
                    } else {
                        Combine::None
                    },
                    ..Linear::new(weight, None)
                };
                let inputs: Vec<ValueId> = [Some(pooled), plus].into_iter().flatten().collect();
                b.node(&format!("logit of {token}"), linear, &inputs, 1)
            };
            let other = no.map(|no| logit(no, -1.0, None));
            logit(*yes, 1.0, other)
        }
    };
    b.finish(out, None)
}

/// Replaces attention over KV caches with attention within packed sequences, to both sides if
/// `is_bidirectional`, and drops the output head.
fn without_caches(mut graph: Graph, is_bidirectional: bool) -> Graph {
    for node in &mut graph.nodes {
        if let Op::Attention(attention) = &mut node.op
            && let Mask::Causal { window } = attention.mask
        {
            // A causal window contains the token itself, one to both sides does not.
            let (before, after) = match (window, is_bidirectional) {
                (0, true) => (usize::MAX, usize::MAX),
                (0, false) => (usize::MAX, 0),
                (window, true) => (window, window),
                (window, false) => (window - 1, 0),
            };
            attention.mask = Mask::Packed { before, after };
            attention.state = None;
        }
    }
    graph.states.clear();
    graph.without_head()
}

/// Adds the dense layers after pooling.
fn dense_layers(b: &mut GraphBuilder, mut x: ValueId, layers: &[DenseLayer]) -> Result<ValueId> {
    for layer in layers {
        if layer.inputs != b.cols(x) {
            let reason = format!(
                "'in_features' is {}, but the previous layer has {} columns",
                layer.inputs,
                b.cols(x)
            );
            return Err(Error::Config {
                file: format!("{}/config.json", layer.path),
                reason,
            });
        }
        x = dense(b, &layer.name(), x, layer.outputs, layer.bias, layer.act);
    }
    Ok(x)
}

/// Returns the number of labels of a classification head; transformers' default is two.
pub(super) fn label_count(config: Config<'_>) -> usize {
    let listed = config
        .get("id2label")
        .and_then(|l| l.as_object())
        .map(|l| l.len());
    listed
        .or(config.count_or("num_labels", 2).ok())
        .unwrap_or(2)
        .max(1)
}

/// Adds `y = act(x Wᵀ (+ bias))` with the tensors `{name}.weight` and `{name}.bias`.
pub(super) fn dense(
    b: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    rows: usize,
    bias: bool,
    act: Activation,
) -> ValueId {
    linear_act(b, name, x, rows, bias, act, 1.0)
}

/// Adds a LayerNorm with the tensors `{name}.weight` and `{name}.bias`.
pub(super) fn layer_norm(
    b: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    eps: f32,
    bias: bool,
) -> ValueId {
    let spec = NormSpec {
        layer: true,
        bias,
        offset: 0.0,
        eps,
    };
    norm(b, name, spec, x)
}

/// Looks up rows of the table `{name}.weight` `[rows, cols]`.
pub(super) fn embedding_table(
    b: &mut GraphBuilder,
    name: &str,
    rows: usize,
    cols: usize,
    ids: IdSource,
) -> ValueId {
    embed(b, name, rows, cols, 1.0, ids)
}

/// Returns bidirectional attention within a sequence, with one key-value head per query head.
pub(super) fn bidirectional(heads: usize, head_dim: usize) -> Attention {
    Attention {
        heads,
        kv_heads: heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        mask: Mask::Packed {
            before: usize::MAX,
            after: usize::MAX,
        },
        softcap: 0.0,
        relative: None,
        sinks: None,
        head_norm: None,
        rope: None,
        state: None,
    }
}

/// Adds attention over a fused projection with the columns of q, k and v in this order.
pub(super) fn fused_attention(
    b: &mut GraphBuilder,
    path: &str,
    qkv: ValueId,
    attention: Attention,
) -> ValueId {
    let cols = attention.heads * attention.head_dim;
    let mut view = |part: &str, first| b.view(&format!("{path}.{part}"), qkv, first, cols);
    let q = view("q", 0);
    let k = view("k", cols);
    let v = view("v", 2 * cols);

    b.node(&format!("{path}.attention"), attention, &[q, k, v], cols)
}

/// Returns the head dimension. Without `head_dim`, the heads must divide the hidden size.
pub(super) fn head_dim(config: Config<'_>, hidden: usize, heads: usize) -> Result<usize> {
    if config.get("head_dim").is_none() && !hidden.is_multiple_of(heads) {
        let reason = format!(
            "'num_attention_heads' is {heads}, which does not divide 'hidden_size' {hidden}. Set 'head_dim'."
        );
        return Err(Error::Config {
            file: "config.json".into(),
            reason,
        });
    }
    config.head_dim(hidden, heads, MAX_ENCODER_HEAD_DIM)
}

/// Replaces the last token's row with the pooled row of each sequence, or with all rows.
fn replace_last_row(graph: &mut Graph, pooling: Option<Pooling>) {
    let Some(at) = graph
        .nodes
        .iter()
        .position(|n| matches!(n.op, Op::LastRow(_)))
    else {
        return;
    };
    let rows = match pooling {
        Some(pooling) => {
            graph.nodes[at].op = Pool(pooling).into();
            Dim::Sequences
        }
        None => {
            let node = graph.nodes.remove(at);
            graph.values[node.output.0].view = Some((node.inputs[0], 0));
            Dim::TOKENS
        }
    };
    graph
        .values
        .iter_mut()
        .filter(|v| v.rows == Dim::Last)
        .for_each(|v| v.rows = rows);
}
