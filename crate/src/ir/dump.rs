//! Text form of a graph, stable between runs, for `run plan` and golden tests.

use super::{Activation, AltUp, Graph, IdSource, Mask, Norm, Op, RecurrenceRule, SoftTokens};
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}", self.name)?;
        for (i, rope) in self.ropes.iter().enumerate() {
            writeln!(f, "rope {i}: {rope:?}")?;
        }
        for (i, state) in self.states.iter().enumerate() {
            writeln!(f, "state {i}: {state:?}")?;
        }
        for node in &self.nodes {
            let out = self.value(node.output);
            let rows = out.rows;
            let inputs: Vec<&str> = node
                .inputs
                .iter()
                .map(|i| self.value(*i).name.as_str())
                .collect();
            writeln!(
                f,
                "{} [{rows}, {}] = {}({})",
                out.name,
                out.cols,
                self.describe(&node.op),
                inputs.join(", ")
            )?;
        }
        let logits = self.logits.map_or("none", |l| self.value(l).name.as_str());
        writeln!(
            f,
            "hidden {}, logits {logits}",
            self.value(self.hidden).name
        )
    }
}

impl Graph {
    fn describe(&self, op: &Op) -> String {
        let name = |id: super::WeightId| {
            let parts: Vec<&str> = self.weight(id).parts.iter().map(|p| p.0.as_str()).collect();
            parts.join(" | ")
        };
        match op {
            Op::Embed {
                table,
                scale,
                ids,
                soft,
            } => {
                let by = if *ids == IdSource::Tokens {
                    String::new()
                } else {
                    format!(", by {ids:?}")
                };
                let soft = match soft {
                    Some(SoftTokens::Rows(id)) => format!(", or {}", self.inputs[id.0].name),
                    Some(SoftTokens::Row(number)) => format!(", or its row {number}"),
                    None => String::new(),
                };
                format!("embed[{} * {scale}{by}{soft}]", name(*table))
            }
            Op::Input(id) => format!("input {}", self.inputs[id.0].name),
            Op::EmbeddingBag { table, taps } => format!("blend[{taps} of {}]", name(*table)),
            Op::AddSoftTokens { rows, column, .. } => {
                format!("add soft[{} from {column}]", self.inputs[rows.0].name)
            }
            Op::Concat => "beside".into(),
            Op::Norm(norm) => describe_norm(norm),
            Op::Linear(l) => {
                let mut text = format!("linear[{}", name(l.weight));
                if l.row0 > 0 {
                    text += &format!(" from row {}", l.row0);
                }
                if l.bias.is_some() {
                    text += " + bias";
                }
                if let Some(norm) = &l.norm {
                    text += &format!(", after {}", describe_norm(norm));
                }
                if l.gated {
                    text += ", gated";
                }
                if l.act != Activation::None {
                    text += &format!(", {:?}", l.act);
                }
                if l.residual {
                    text += if l.multiply {
                        ", times"
                    } else {
                        ", + residual"
                    };
                }
                if l.softcap > 0.0 {
                    text += &format!(", softcap {}", l.softcap);
                }
                text + "]"
            }
            Op::Attention(a) => {
                let mask = match a.mask {
                    Mask::Causal { window: 0 } => "causal".to_string(),
                    Mask::Causal { window } => format!("causal window {window}"),
                    Mask::BidirectionalImages { window } => {
                        format!("causal window {window}, pictures both ways")
                    }
                    Mask::CrossAttention => "memory".to_string(),
                    Mask::Packed {
                        before: usize::MAX,
                        after: usize::MAX,
                    } => "segment".to_string(),
                    Mask::Packed {
                        before: usize::MAX,
                        after: 0,
                    } => "segment causal".to_string(),
                    Mask::PackedWindow => "window".to_string(),
                    Mask::Packed { before, after } => {
                        format!("segment {before} before, {after} after")
                    }
                };
                let rope = a.rope.map_or(String::new(), |r| format!(", rope {r}"));
                let norm = match &a.head_norm {
                    Some(norm) if norm.values => ", head norm of q, k and v",
                    Some(_) => ", head norm",
                    None => "",
                };
                format!(
                    "attention[{}/{} heads of {}, {mask}{rope}{norm}]",
                    a.heads, a.kv_heads, a.head_dim
                )
            }
            Op::Add => "add".into(),
            Op::Mul => "mul".into(),
            Op::Gated(act) => format!("gated {act:?}"),
            Op::Unary(act) => format!("{act:?}"),
            Op::Scale(factor) => format!("scale {factor}"),
            Op::ConcatHeads { head_dim, parts } => {
                let part =
                    |p: &super::HeadSlice| format!("{} from {} by {}", p.cols, p.first, p.step);
                format!(
                    "heads of {head_dim}[{}]",
                    parts.iter().map(part).collect::<Vec<_>>().join(", ")
                )
            }
            Op::LastRow => "last row".into(),
            Op::Gather { order } => format!("gather[order of {}]", name(*order)),
            Op::NormPerGroup(norm, group) => format!("{} of each {group}", describe_norm(norm)),
            Op::NormResidual(n) => {
                let scale = if n.scale == 1.0 {
                    String::new()
                } else {
                    format!(" * {}", n.scale)
                };
                let by = n
                    .scale_weight
                    .map_or(String::new(), |by| format!(" * {}", name(by)));
                format!("{} + residual{scale}{by}", describe_norm(&n.norm))
            }
            Op::MulVector(by) => format!("times {}", name(*by)),
            Op::Clip(limits) => format!("clip[{}]", name(*limits)),
            Op::QuantizeActivations(None) => "round".into(),
            Op::QuantizeActivations(Some(norm)) => format!("round after {}", describe_norm(norm)),
            Op::Pool(pooling) => format!("pool {pooling:?}"),
            Op::TopKRouter(r) => self.describe_routing(r),
            Op::ExpertUp(e) => {
                let gate = if e.clamp.is_some() {
                    "clamped".into()
                } else {
                    format!("{:?}", e.act)
                };
                let norm = e
                    .norm
                    .as_ref()
                    .map_or(String::new(), |n| format!(", after {}", describe_norm(n)));
                let bias = if e.bias.is_some() { " + bias" } else { "" };
                let first = self.first_part(e.weight);
                format!(
                    "experts[{} of {}, {first} …{bias}, {gate}{norm}]",
                    e.top_k, e.count
                )
            }
            Op::ExpertDown(e) => {
                let bias = if e.bias.is_some() { " + bias" } else { "" };
                let residual = if e.residual { ", + residual" } else { "" };
                format!(
                    "mix[{} of {}, {} …{bias}{residual}]",
                    e.top_k,
                    e.count,
                    self.first_part(e.weight)
                )
            }
            Op::Im2Col(w) => {
                format!(
                    "windows[{} by {}, dilation {}, padding {:?}]",
                    w.kernel_size, w.stride, w.dilation, w.padding
                )
            }
            Op::ConvTranspose1d(u) => format!(
                "upsample[{}, {} groups, by {}]",
                name(u.weight),
                u.groups,
                u.rate
            ),
            Op::Snake { alpha } => format!("snake[{}]", name(*alpha)),
            Op::GroupNorm { groups, gain, .. } => {
                format!("group norm[{}, {groups} groups]", name(*gain))
            }
            Op::Asinh { k } => format!("asinh[{}]", name(*k)),
            Op::AddPositionEmbedding { table } => format!("add positions[{}]", name(*table)),
            Op::PadHeads { count } => format!("{count} heads"),
            Op::ShortConv(c) => {
                let act = if c.act == Activation::None {
                    String::new()
                } else {
                    format!(", {:?}", c.act)
                };
                format!(
                    "short conv[{}, {} taps{act}, state {}]",
                    name(c.weight),
                    c.kernel_size,
                    c.state.0
                )
            }
            Op::Recurrent(r) => {
                let rule = if matches!(r.rule, RecurrenceRule::Delta { .. }) {
                    "delta net"
                } else {
                    "ssm"
                };
                let keys = format!("{} of {}", r.key_heads, r.key_dim);
                let values = format!("{} of {}", r.heads, r.value_dim);

                format!("{rule}[{values} over {keys}, state {}]", r.state.0)
            }
            Op::AltUp(a) => match a {
                AltUp::Predict { coefs, count } => {
                    format!("predict[{}, {count} streams]", name(*coefs))
                }
                AltUp::Correct { coefs, count } => {
                    format!("correct[{}, {count} streams]", name(*coefs))
                }
                AltUp::MatchMagnitude => "match".into(),
                AltUp::Sparse { act, factor } => format!("sparse {act:?} above {factor}"),
            },
            Op::GatedNorm(n) => format!("gated rms norm[{}, {} runs]", name(n.gain), n.groups),
        }
    }
}

impl Graph {
    fn first_part(&self, id: super::WeightId) -> &str {
        self.weight(id).parts.first().map_or("", |p| p.0.as_str())
    }

    fn describe_routing(&self, r: &super::Routing) -> String {
        let mut text = format!("route[{} of {}, {:?}", r.top_k, r.experts, r.score);
        if let Some(bias) = r.bias {
            text += &format!(", chosen by {}", self.first_part(bias));
        }
        if let Some(groups) = r.groups {
            text += &format!(", {} of {} groups", groups.keep, groups.count);
        }
        if r.renormalize {
            text += ", renormalized";
        }
        if r.scale != 1.0 {
            text += &format!(", * {}", r.scale);
        }
        if let Some(gain) = r.gain {
            text += &format!(", * {}", self.first_part(gain));
        }
        text + "]"
    }
}

fn describe_norm(norm: &Norm) -> String {
    let kind = if norm.layer { "layer norm" } else { "rms norm" };
    let offset = if norm.offset == 0.0 {
        String::new()
    } else {
        format!(" + {}", norm.offset)
    };
    format!("{kind}{offset}")
}
