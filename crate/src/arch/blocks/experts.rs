//! Mixture-of-experts layers: the router, the top-k experts, and shared experts. The order of
//! operations follows transformers' models.

use super::{MlpKind, MlpSpec, mlp};
use crate::arch::config::Config;
use crate::ir::{
    Activation, ExpertDown, ExpertGroups, ExpertUp, GateRows, Gated, GraphBuilder, RouterScore,
    TopKRouter, ValueId, WeightId, WeightKind, selected_expert_stride,
};
use crate::{Error, Result};

/// Tensor layout of an expert's first projection. Tensors of expert `e` are under `experts.{e}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertTensors {
    /// Gate and up in one tensor each.
    Separate([&'static str; 2]),
    /// One tensor, gate rows before up rows.
    Fused(&'static str),
    /// One tensor with interleaved gate and up rows.
    Interleaved(&'static str),
    /// One tensor without gate: `act(up)`.
    Ungated(&'static str),
}

/// A shared expert, applied to every token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Name of its path.
    pub name: &'static str,
    /// Inner columns.
    pub size: usize,
    /// Name of the projection whose sigmoid multiplies the expert's output.
    pub gate: Option<&'static str>,
    /// Names of its projections.
    pub projections: (MlpKind, &'static str),
    /// Whether its tensors are next to the path of the routed experts instead of under it.
    pub in_layer: bool,
}

impl SharedExpert {
    /// Returns a gated MLP with the default tensor names.
    pub const fn new(name: &'static str, size: usize) -> Self {
        let projections = (MlpKind::Gated(["gate_proj", "up_proj"]), "down_proj");
        Self {
            name,
            size,
            gate: None,
            projections,
            in_layer: false,
        }
    }
}

/// Down and up projections to a latent space in which the routed experts work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentProjection {
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
    pub top_k: usize,
    /// Inner columns of each expert.
    pub inner: usize,
    /// Activation.
    pub act: Activation,
    /// GPT-OSS's clamped gate `[alpha, limit]` instead of `act`.
    pub clamp: Option<[f32; 2]>,
    /// Name of the router, and whether it has a bias.
    pub router: (&'static str, bool),
    /// Function from router logits to scores.
    pub score: RouterScore,
    /// Name of a bias added to the scores for selection only.
    pub selection_bias: Option<&'static str>,
    /// Group-limited selection.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights are divided by their sum.
    pub renormalize: bool,
    /// Added to that sum; for the sparse mixer, its tolerance.
    pub eps: f32,
    /// Scale of the weights.
    pub scale: f32,
    /// Name of a per-expert scale of the weights.
    pub expert_scale: Option<&'static str>,
    /// The first projection.
    pub up: ExpertTensors,
    /// Name of the second projection.
    pub down: &'static str,
    /// Whether both projections have biases.
    pub bias: bool,
    /// A shared expert, applied to every token.
    pub shared: Option<SharedExpert>,
    /// The latent space of the routed experts, instead of the layer's columns.
    pub latent: Option<LatentProjection>,
    /// Scale of the output of all experts, including the shared one.
    pub out_scale: f32,
}

impl ExpertsSpec {
    /// Reads the common fields: softmax, no biases, no shared expert. `inner` names the field of an
    /// expert's inner columns.
    ///
    /// # Errors
    /// `Config` or `UnsupportedOption`, naming the field.
    pub fn from_config(config: Config<'_>, inner: &str) -> Result<Self> {
        let either = |names: &[&'static str]| {
            names
                .iter()
                .find(|f| config.get(f).is_some())
                .unwrap_or(&names[0])
                .to_owned()
        };
        let count = config.count(either(&[
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "moe_num_experts",
        ]))?;
        let each = config.count(either(&["num_experts_per_tok", "moe_k", "top_k_experts"]))?;
        let fused = config.load().fused_experts.unwrap_or(false);
        let spec = Self {
            count,
            top_k: each,
            inner: config.count(inner)?,
            act: config.activation("hidden_act", "silu")?,
            clamp: None,
            router: ("gate", false),
            score: RouterScore::Softmax,
            selection_bias: None,
            groups: None,
            renormalize: config.flag_or("norm_topk_prob", false),
            eps: 0.0,
            scale: 1.0,
            expert_scale: None,
            up: if fused {
                ExpertTensors::Fused("gate_up_proj")
            } else {
                ExpertTensors::Separate(["gate_proj", "up_proj"])
            },
            down: "down_proj",
            bias: false,
            shared: None,
            latent: None,
            out_scale: 1.0,
        };
        if !TopKRouter::supports(count, each) {
            return Err(Error::UnsupportedOption {
                architecture: config.architecture(),
                option: format!("top-{each} of {count} experts"),
                hint: format!(
                    "The kernels support up to top-{} of {} experts.",
                    TopKRouter::MAX_TOP_K,
                    TopKRouter::MAX_EXPERTS
                ),
            });
        }
        Ok(spec)
    }

    /// Sets group-limited selection from `n_group` and `topk_group`, if it excludes any group.
    ///
    /// # Errors
    /// `Config` if the experts do not divide into the groups.
    pub fn set_groups(&mut self, config: Config<'_>, pairs: bool) -> Result<()> {
        let groups = config.count_or("n_group", 1)?;
        let keep = config.count_or("topk_group", 1)?;

        if groups == 1 || keep >= groups {
            return Ok(());
        }
        let size = self.count / groups;
        if !self.count.is_multiple_of(groups) || size * keep < self.top_k || (pairs && size < 2) {
            let reason = format!(
                "'n_group' is {groups}, which does not divide {} experts into groups for top-{}",
                self.count, self.top_k
            );
            return Err(Error::Config {
                file: "config.json".into(),
                reason,
            });
        }
        self.groups = Some(ExpertGroups {
            count: groups as u32,
            keep: keep as u32,
            sum_two_best: pairs,
        });
        Ok(())
    }
}

/// Adds the router and all experts; returns `rest` plus their output for `x`. Tensors are under
/// `path`.
pub fn add_experts(
    b: &mut GraphBuilder,
    path: &str,
    spec: &ExpertsSpec,
    x: ValueId,
    rest: ValueId,
) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let mut sum = rest;
    if let Some(shared) = &spec.shared {
        let y = shared_expert(b, path, spec, shared, x);
        sum = b.add(&name("shared_residual"), rest, y);
    }
    let logits = b.router(&name(spec.router.0), x, spec.count, spec.router.1);
    let routed = top_k_experts(b, path, spec, x, logits);
    b.add(&name("experts_residual"), sum, routed)
}

/// Adds top-k routing by `logits` and the selected experts; returns their output for `x`. Tensors
/// are under `path`.
pub fn top_k_experts(
    b: &mut GraphBuilder,
    path: &str,
    spec: &ExpertsSpec,
    x: ValueId,
    logits: ValueId,
) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let routing = TopKRouter {
        experts: spec.count,
        top_k: spec.top_k,
        score: spec.score,
        bias: spec.selection_bias.map(|n| b.vector(&name(n), spec.count)),
        groups: spec.groups,
        renormalize: spec.renormalize,
        eps: spec.eps,
        scale: spec.scale * spec.out_scale,
        gain: spec.expert_scale.map(|n| b.vector(&name(n), spec.count)),
        prefetch: false,
    };
    let selection = b.node(&name("picks"), routing, &[logits], 2 * spec.top_k);
    let Some(latent) = spec.latent else {
        return selected_experts(b, path, spec, x, selection);
    };
    let outer = b.cols(x);
    let narrow = b.linear(&name(latent.names[0]), x, latent.cols, false);
    let routed = selected_experts(b, path, spec, narrow, selection);
    b.linear(&name(latent.names[1]), routed, outer, false)
}

/// Adds the shared expert.
fn shared_expert(
    b: &mut GraphBuilder,
    path: &str,
    spec: &ExpertsSpec,
    shared: &SharedExpert,
    x: ValueId,
) -> ValueId {
    let layer = path.rsplit_once('.').map_or(path, |(layer, _)| layer);
    let (inner, down) = shared.projections;
    let dense = MlpSpec {
        size: shared.size,
        act: spec.act,
        kind: inner,
        sub_norm: None,
        down,
        bias: false,
        gate_scale: 1.0,
        out_scale: spec.out_scale,
        quantize_activations: false,
    };
    let y = mlp(
        b,
        &format!(
            "{}.{}",
            if shared.in_layer { layer } else { path },
            shared.name
        ),
        &dense,
        x,
    );
    let Some(gate) = shared.gate else { return y };
    let gate = b.router(&format!("{path}.{gate}"), x, 1, false);
    let cols = b.cols(x);

    b.node(
        &format!("{path}.shared_gated"),
        Gated(Activation::Sigmoid),
        &[gate, y],
        cols,
    )
}

/// Adds both projections of the selected experts; returns the weighted sum.
fn selected_experts(
    b: &mut GraphBuilder,
    path: &str,
    spec: &ExpertsSpec,
    x: ValueId,
    selection: ValueId,
) -> ValueId {
    let name = |part: &str| format!("{path}.{part}");
    let cols = b.cols(x);
    let first = ExpertUp {
        weight: up_weight(b, path, spec, cols),
        bias: spec.bias.then(|| up_bias(b, path, spec)),
        count: spec.count,
        top_k: spec.top_k,
        inner: spec.inner,
        gate: match spec.up {
            ExpertTensors::Ungated(_) => GateRows::None,
            ExpertTensors::Interleaved(_) => GateRows::Interleaved,
            ExpertTensors::Separate(_) | ExpertTensors::Fused(_) => GateRows::First,
        },
        act: spec.act,
        clamp: spec.clamp,
        norm: None,
    };
    let inner = b.node(
        &name("experts"),
        first,
        &[x, selection],
        spec.top_k * selected_expert_stride(spec.inner),
    );
    let down = |e: usize| (expert_weight_name(path, e, spec.down), cols);
    let weight = stack_experts(b, (0..spec.count).map(down), spec.inner, cols);
    let stacked = !matches!(spec.up, ExpertTensors::Separate(_));
    let bias = spec.bias.then(|| {
        if stacked {
            b.vector(
                &name(&format!("experts.{}_bias", spec.down)),
                spec.count * cols,
            )
        } else {
            let names: Vec<String> = (0..spec.count)
                .map(|e| expert_bias_name(path, e, spec.down))
                .collect();
            b.vectors(&names, cols)
        }
    });
    let second = ExpertDown {
        weight,
        bias,
        count: spec.count,
        top_k: spec.top_k,
        inner: spec.inner,
        residual: false,
    };
    b.node(&name("mixed"), second, &[inner, selection], cols)
}

fn expert_weight_name(path: &str, e: usize, part: &str) -> String {
    format!("{path}.experts.{e}.{part}.weight")
}

fn expert_bias_name(path: &str, e: usize, part: &str) -> String {
    format!("{path}.experts.{e}.{part}.bias")
}

/// Stacks the tensors of all experts vertically, `rows` for each expert.
fn stack_experts(
    b: &mut GraphBuilder,
    parts: impl Iterator<Item = (String, usize)>,
    cols: usize,
    rows: usize,
) -> WeightId {
    b.stacked(parts.collect(), cols, WeightKind::Experts { rows })
}

fn up_weight(b: &mut GraphBuilder, path: &str, spec: &ExpertsSpec, cols: usize) -> WeightId {
    let one = |name: &str, rows: usize| {
        (0..spec.count)
            .map(|e| (expert_weight_name(path, e, name), rows))
            .collect()
    };
    let (parts, rows): (Vec<(String, usize)>, usize) = match spec.up {
        ExpertTensors::Separate(names) => (
            (0..spec.count)
                .flat_map(|e: usize| names.map(|n| (expert_weight_name(path, e, n), spec.inner)))
                .collect(),
            2 * spec.inner,
        ),
        ExpertTensors::Fused(name) | ExpertTensors::Interleaved(name) => {
            (one(name, 2 * spec.inner), 2 * spec.inner)
        }
        ExpertTensors::Ungated(name) => (one(name, spec.inner), spec.inner),
    };
    stack_experts(b, parts.into_iter(), cols, rows)
}

fn up_bias(b: &mut GraphBuilder, path: &str, spec: &ExpertsSpec) -> WeightId {
    match spec.up {
        ExpertTensors::Separate(names) => b.vectors(
            &(0..spec.count)
                .flat_map(|e: usize| names.map(|n| expert_bias_name(path, e, n)))
                .collect::<Vec<_>>(),
            spec.inner,
        ),
        // One tensor for all experts.
        ExpertTensors::Fused(name) | ExpertTensors::Interleaved(name) => b.vector(
            &format!("{path}.experts.{name}_bias"),
            spec.count * 2 * spec.inner,
        ),
        ExpertTensors::Ungated(name) => b.vector(
            &format!("{path}.experts.{name}_bias"),
            spec.count * spec.inner,
        ),
    }
}
