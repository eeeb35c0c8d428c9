//! Mixture-of-experts layers: the router, the top-k experts, and shared experts. The order of operations follows
//! transformers' models.

use super::{Inner, MlpSpec, mlp};
use crate::arch::config::Config;
use crate::ir::{
    Activation, Builder, ExpertsIn, ExpertsOut, Groups, Op, Routing, Score, ValueId, WeightId, WeightKind, experts,
};
use crate::{Error, Result};

/// Maximum experts of a layer and maximum top-k, limited by the kernels.
const MOST: (usize, usize) = (512, 16);

/// Tensor layout of an expert's first projection. Tensors of expert `e` are under `experts.{e}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// Gate and up in one tensor each.
    Apart([&'static str; 2]),
    /// One tensor, gate rows before up rows.
    Fused(&'static str),
    /// One tensor with interleaved gate and up rows.
    Turns(&'static str),
    /// One tensor without gate: `act(up)`.
    Plain(&'static str),
}

/// A shared expert, applied to every token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// Name of its path.
    pub name: &'static str,
    /// Inner columns.
    pub size: usize,
    /// Name of the projection whose sigmoid multiplies the expert's output.
    pub gate: Option<&'static str>,
    /// Names of its projections.
    pub projections: (Inner, &'static str),
    /// Whether its tensors are next to the path of the routed experts instead of under it.
    pub beside: bool,
}

impl Shared {
    /// Returns a gated MLP with the usual tensor names.
    pub const fn new(name: &'static str, size: usize) -> Self {
        let projections = (Inner::Gated(["gate_proj", "up_proj"]), "down_proj");
        Self { name, size, gate: None, projections, beside: false }
    }
}

/// Down and up projections to a latent space in which the routed experts work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Names of the projections into and out of the latent space.
    pub names: [&'static str; 2],
    /// Columns of the latent space.
    pub cols: usize,
}

/// Options of a layer's experts.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Experts per token (top-k).
    pub each: usize,
    /// Inner columns of each expert.
    pub inner: usize,
    /// Activation.
    pub act: Activation,
    /// GPT-OSS's clamped gate `[alpha, limit]` instead of `act`.
    pub clamp: Option<[f32; 2]>,
    /// Name of the router, and whether it has a bias.
    pub router: (&'static str, bool),
    /// Function from router logits to scores.
    pub score: Score,
    /// Name of a bias added to the scores for selection only.
    pub choice: Option<&'static str>,
    /// Group-limited selection.
    pub groups: Option<Groups>,
    /// Whether the weights are divided by their sum.
    pub renormalize: bool,
    /// Added to that sum; for the sparse mixer, its tolerance.
    pub eps: f32,
    /// Scale of the weights.
    pub scale: f32,
    /// Name of a per-expert scale of the weights.
    pub gain: Option<&'static str>,
    /// The first projection.
    pub first: First,
    /// Name of the second projection.
    pub second: &'static str,
    /// Whether both projections have biases.
    pub bias: bool,
    /// A shared expert, applied to every token.
    pub shared: Option<Shared>,
    /// The latent space of the routed experts, instead of the layer's columns.
    pub latent: Option<Latent>,
    /// Scale of the output of all experts, including the shared one.
    pub out_scale: f32,
}

impl ExpertsSpec {
    /// Reads the usual fields: softmax, no biases, no shared expert. `inner` names the field of an expert's inner
    /// columns.
    ///
    /// # Errors
    /// `Config` or `UnsupportedOption`, naming the field.
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
                option: format!("top-{each} of {count} experts"),
                hint: format!("The kernels support up to top-{} of {} experts.", MOST.1, MOST.0),
            });
        }
        Ok(spec)
    }

    /// Sets group-limited selection from `n_group` and `topk_group`, if it excludes any group.
    ///
    /// # Errors
    /// `Config` if the experts do not divide into the groups.
    pub fn grouped(&mut self, config: Config<'_>, pairs: bool) -> Result<()> {
        let (groups, keep) = (config.count_or("n_group", 1)?, config.count_or("topk_group", 1)?);
        if groups == 1 || keep >= groups {
            return Ok(());
        }
        let size = self.count / groups;
        if !self.count.is_multiple_of(groups) || size * keep < self.each || (pairs && size < 2) {
            let reason = format!(
                "'n_group' is {groups}, which does not divide {} experts into groups for top-{}",
                self.count, self.each
            );
            return Err(Error::Config { file: "config.json".into(), reason });
        }
        self.groups = Some(Groups { count: groups as u32, keep: keep as u32, pairs });
        Ok(())
    }
}

/// Set where a checkpoint stores an expert's gate and up in one tensor. Derived from the tensors, not read from a file.
pub const FUSED: &str = "fused_experts";

/// Adds the router and all experts; returns `rest` plus their output for `x`. Tensors are under `path`.
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

/// Adds top-k routing by `logits` and the selected experts; returns their output for `x`. Tensors are under `path`.
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

/// Adds the shared expert.
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

/// Adds both projections of the selected experts; returns the weighted sum.
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

/// Stacks the tensors of all experts vertically, `rows` for each expert.
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
        // One tensor for all experts.
        First::Fused(name) | First::Turns(name) => {
            b.vector(&format!("{path}.experts.{name}_bias"), spec.count * 2 * spec.inner)
        }
        First::Plain(name) => b.vector(&format!("{path}.experts.{name}_bias"), spec.count * spec.inner),
    }
}
