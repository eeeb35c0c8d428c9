//! Layers of experts as functions over specs: the router, the picked experts, experts that every token takes. Knows no
//! family. The order of operations is that of transformers' models.

use super::{Inner, MlpSpec, mlp};
use crate::arch::config::Config;
use crate::ir::{
    Activation, Builder, ExpertsIn, ExpertsOut, Groups, Op, Routing, Score, ValueId, WeightId, WeightKind, experts,
};
use crate::{Error, Result};

/// The most experts of a layer, and the most that a token picks: the kernels'.
const MOST: (usize, usize) = (512, 16);

/// What the first product of an expert is called; tensors of expert `e` are under `experts.{e}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// Gate and up, one tensor each.
    Apart([&'static str; 2]),
    /// One tensor, the gate's rows first.
    Fused(&'static str),
    /// One tensor whose rows are the gate's and up's in turns.
    Turns(&'static str),
    /// One tensor without a gate: `act(up)`.
    Plain(&'static str),
}

/// An expert that every token takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// Its name.
    pub name: &'static str,
    /// Its inner columns.
    pub size: usize,
    /// The product whose sigmoid multiplies it.
    pub gate: Option<&'static str>,
    /// The names of its projections.
    pub projections: (Inner, &'static str),
    /// Whether its tensors lie beside the path of the routed experts instead of under it.
    pub beside: bool,
}

impl Shared {
    /// A gated MLP with the common names.
    pub const fn new(name: &'static str, size: usize) -> Self {
        let projections = (Inner::Gated(["gate_proj", "up_proj"]), "down_proj");
        Self { name, size, gate: None, projections, beside: false }
    }
}

/// Projections between the residual stream and narrower columns that the routed experts work in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// The names of the projections into and out of it.
    pub names: [&'static str; 2],
    /// Its columns.
    pub cols: usize,
}

/// The experts of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// How many.
    pub count: usize,
    /// How many a token picks.
    pub each: usize,
    /// Inner columns of each.
    pub inner: usize,
    /// The activation.
    pub act: Activation,
    /// GPT-OSS's gate instead.
    pub clamp: Option<[f32; 2]>,
    /// The name of the router, and whether it has a bias.
    pub router: (&'static str, bool),
    /// What the router's logits become.
    pub score: Score,
    /// A vector added to the scores that choose.
    pub choice: Option<&'static str>,
    /// Groups of experts.
    pub groups: Option<Groups>,
    /// Whether the weights are divided by their sum.
    pub renormalize: bool,
    /// Added to that sum; the mixer's tolerance.
    pub eps: f32,
    /// Multiplies the weights.
    pub scale: f32,
    /// A vector that multiplies the weights too.
    pub gain: Option<&'static str>,
    /// The first product.
    pub first: First,
    /// The name of the second product.
    pub second: &'static str,
    /// Whether both products have biases.
    pub bias: bool,
    /// An expert that every token takes.
    pub shared: Option<Shared>,
    /// What the routed experts read and write instead of the layer's own columns.
    pub latent: Option<Latent>,
    /// Multiplies the output of all experts, the shared one included.
    pub out_scale: f32,
}

impl ExpertsSpec {
    /// The sizes by the names that configurations have for them: softmax, no biases, none shared; `inner` names the field of
    /// an expert's columns.
    ///
    /// # Errors
    /// `Config` or `UnsupportedOption` by the field.
    pub fn from_config(config: Config<'_>, inner: &str) -> Result<Self> {
        let either =
            |names: &[&'static str]| names.iter().find(|f| config.get(f).is_some()).unwrap_or(&names[0]).to_owned();
        let count =
            config.count(either(&["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"]))?;
        let each = config.count(either(&["num_experts_per_tok", "moe_k", "top_k_experts"]))?;
        let fused = config.flag_or(FUSED, false);
        let spec = Self {
            count,
            each,
            inner: config.count(inner)?,
            act: config.activation("hidden_act", "silu")?,
            clamp: None,
            router: ("gate", false),
            score: Score::Softmax,
            choice: None,
            groups: None,
            renormalize: config.flag_or("norm_topk_prob", false),
            eps: 0.0,
            scale: 1.0,
            gain: None,
            first: if fused { First::Fused("gate_up_proj") } else { First::Apart(["gate_proj", "up_proj"]) },
            second: "down_proj",
            bias: false,
            shared: None,
            latent: None,
            out_scale: 1.0,
        };
        if count > MOST.0 || each > MOST.1 || each > count {
            return Err(Error::UnsupportedOption {
                architecture: config.architecture(),
                option: format!("{each} of {count} experts"),
                hint: format!("The engine picks at most {} of at most {} experts.", MOST.1, MOST.0),
            });
        }
        Ok(spec)
    }

    /// Groups of experts by `n_group` and `topk_group`, where they leave some out.
    ///
    /// # Errors
    /// `Config` where experts do not come in so many groups.
    pub fn grouped(&mut self, config: Config<'_>, pairs: bool) -> Result<()> {
        let (groups, keep) = (config.count_or("n_group", 1)?, config.count_or("topk_group", 1)?);
        if groups == 1 || keep >= groups {
            return Ok(());
        }
        let size = self.count / groups;
        if !self.count.is_multiple_of(groups) || size * keep < self.each || (pairs && size < 2) {
            let reason = format!("'n_group' is {groups}, which does not suit {} experts", self.count);
            return Err(Error::Config { file: "config.json".into(), reason });
        }
        self.groups = Some(Groups { count: groups as u32, keep: keep as u32, pairs });
        Ok(())
    }
}

/// The field that tells that a checkpoint has gate and up of an expert in one tensor: its tensors say so, no file.
pub const FUSED: &str = "fused_experts";

/// `rest` plus what the experts make of `x`, with tensors under `path`.
pub fn add_experts(b: &mut Builder, path: &str, spec: &ExpertsSpec, x: ValueId, rest: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let mut sum = rest;
    if let Some(shared) = &spec.shared {
        let y = shared_expert(b, path, spec, shared, x);
        sum = b.add(&name("shared_residual"), rest, y);
    }
    let logits = b.router(&name(spec.router.0), x, spec.count, spec.router.1);
    let routed = picked(b, path, spec, x, logits);
    b.add(&name("experts_residual"), sum, routed)
}

/// What the experts that `logits` pick make of `x`, with tensors under `path`.
pub fn picked(b: &mut Builder, path: &str, spec: &ExpertsSpec, x: ValueId, logits: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let routing = Routing {
        experts: spec.count,
        picks: spec.each,
        score: spec.score,
        bias: spec.choice.map(|n| b.vector(&name(n), spec.count)),
        groups: spec.groups,
        renormalize: spec.renormalize,
        eps: spec.eps,
        scale: spec.scale * spec.out_scale,
        gain: spec.gain.map(|n| b.vector(&name(n), spec.count)),
    };
    let picks = b.node(&name("picks"), Op::Route(routing), &[logits], 2 * spec.each);
    let Some(latent) = spec.latent else { return routed(b, path, spec, x, picks) };
    let outer = b.cols(x);
    let narrow = b.linear(&name(latent.names[0]), x, latent.cols, false);
    let routed = routed(b, path, spec, narrow, picks);
    b.linear(&name(latent.names[1]), routed, outer, false)
}

/// The expert that every token takes.
fn shared_expert(b: &mut Builder, path: &str, spec: &ExpertsSpec, shared: &Shared, x: ValueId) -> ValueId {
    let layer = path.rsplit_once('.').map_or(path, |(layer, _)| layer);
    let (inner, down) = shared.projections;
    let dense = MlpSpec {
        size: shared.size,
        act: spec.act,
        inner,
        sub_norm: None,
        down,
        bias: false,
        gate_scale: 1.0,
        out_scale: spec.out_scale,
        round: false,
    };
    let y = mlp(b, &format!("{}.{}", if shared.beside { layer } else { path }, shared.name), &dense, x);
    let Some(gate) = shared.gate else { return y };
    let (gate, cols) = (b.router(&format!("{path}.{gate}"), x, 1, false), b.cols(x));
    b.node(&format!("{path}.shared_gated"), Op::Gated(Activation::Sigmoid), &[gate, y], cols)
}

/// Both products of the chosen experts, summed by their weights.
fn routed(b: &mut Builder, path: &str, spec: &ExpertsSpec, x: ValueId, picks: ValueId) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let cols = b.cols(x);
    let first = ExpertsIn {
        weight: first_weight(b, path, spec, cols),
        bias: spec.bias.then(|| first_bias(b, path, spec)),
        count: spec.count,
        each: spec.each,
        inner: spec.inner,
        gated: !matches!(spec.first, First::Plain(_)),
        turns: matches!(spec.first, First::Turns(_)),
        act: spec.act,
        clamp: spec.clamp,
        norm: None,
    };
    let inner = b.node(&name("experts"), Op::Experts(first), &[x, picks], spec.each * experts::span(spec.inner));
    let down = |e: usize| (expert(path, e, spec.second), cols);
    let weight = stack(b, (0..spec.count).map(down), spec.inner, cols);
    let stacked = !matches!(spec.first, First::Apart(_));
    let bias = spec.bias.then(|| {
        if stacked {
            b.vector(&name(&format!("experts.{}_bias", spec.second)), spec.count * cols)
        } else {
            let names: Vec<String> = (0..spec.count).map(|e| bias_name(path, e, spec.second)).collect();
            b.vectors(&names, cols)
        }
    });
    let second = ExpertsOut { weight, bias, count: spec.count, each: spec.each, inner: spec.inner, residual: false };
    b.node(&name("mixed"), Op::Mix(second), &[inner, picks], cols)
}

fn expert(path: &str, e: usize, part: &str) -> String {
    format!("{path}.experts.{e}.{part}.weight")
}

fn bias_name(path: &str, e: usize, part: &str) -> String {
    format!("{path}.experts.{e}.{part}.bias")
}

/// Tensors of all experts, one under another, as many rows for each expert.
fn stack(b: &mut Builder, parts: impl Iterator<Item = (String, usize)>, cols: usize, rows: usize) -> WeightId {
    b.stacked(parts.collect(), cols, WeightKind::Experts { rows })
}

fn first_weight(b: &mut Builder, path: &str, spec: &ExpertsSpec, cols: usize) -> WeightId {
    let one = |name: &str, rows: usize| (0..spec.count).map(|e| (expert(path, e, name), rows)).collect();
    let (parts, rows): (Vec<(String, usize)>, usize) = match spec.first {
        First::Apart(names) => {
            let of = |e: usize| names.map(|n| (expert(path, e, n), spec.inner));
            ((0..spec.count).flat_map(of).collect(), 2 * spec.inner)
        }
        First::Fused(name) | First::Turns(name) => (one(name, 2 * spec.inner), 2 * spec.inner),
        First::Plain(name) => (one(name, spec.inner), spec.inner),
    };
    stack(b, parts.into_iter(), cols, rows)
}

fn first_bias(b: &mut Builder, path: &str, spec: &ExpertsSpec) -> WeightId {
    match spec.first {
        First::Apart(names) => {
            let of = |e: usize| names.map(|n| bias_name(path, e, n));
            b.vectors(&(0..spec.count).flat_map(of).collect::<Vec<_>>(), spec.inner)
        }
        // All experts' in one tensor.
        First::Fused(name) | First::Turns(name) => {
            b.vector(&format!("{path}.experts.{name}_bias"), spec.count * 2 * spec.inner)
        }
        First::Plain(name) => b.vector(&format!("{path}.experts.{name}_bias"), spec.count * spec.inner),
    }
}
