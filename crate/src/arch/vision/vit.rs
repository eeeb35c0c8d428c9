//! What towers are made of: patches with their places, blocks of attention within a tile, norms and products. It knows no
//! family.

use super::{PATCHES, PLACES};
use crate::arch::config::Config;
use crate::ir::{Activation, Attention, Builder, Dim, HeadNorm, Linear, Mask, Norm, Op, RopeSpec, ValueId, WeightKind};
use crate::vision::{Axial, Table};
use crate::{Error, Result};

/// What the blocks of a tower share.
pub struct Vit {
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// RMSNorm rather than layer norm.
    pub rms: bool,
    /// Added to the mean square.
    pub eps: f32,
    /// The rotation.
    pub rope: Option<RopeSpec>,
    /// A patch has two frames, each with a tensor of its own.
    pub apart: bool,
    /// q, k and v have a tensor each.
    pub qkv_apart: bool,
}

impl Vit {
    /// The sizes that towers name alike; `heads` is the field of the number of heads.
    pub fn of(config: Config<'_>, heads: &str, eps: f32) -> Result<Self> {
        let (hidden, heads) = (config.count("hidden_size")?, config.count(heads)?);
        if !hidden.is_multiple_of(4 * heads) {
            let reason = format!("vision_config: {heads} heads do not cut {hidden} columns into multiples of four");
            return Err(Error::Config { file: "config.json".into(), reason });
        }
        Ok(Self {
            hidden,
            heads,
            head_dim: hidden / heads,
            rms: false,
            eps,
            rope: None,
            apart: false,
            qkv_apart: false,
        })
    }

    /// A norm of rows.
    pub fn norm(&self, b: &mut Builder, name: &str, x: ValueId) -> ValueId {
        norm(b, name, x, !self.rms, self.eps, 0.0)
    }

    /// Attention of blocks within a tile, or within its windows.
    pub fn attention(&self, b: &mut Builder, path: &str, qkv: [ValueId; 3], windows: bool) -> ValueId {
        self.attention_of(b, path, qkv, windows, (self.head_dim as f32).powf(-0.5), None)
    }

    /// The same with another scale of the scores and norms of heads.
    pub fn attention_of(
        &self,
        b: &mut Builder,
        path: &str,
        qkv: [ValueId; 3],
        windows: bool,
        scale: f32,
        head_norm: Option<HeadNorm>,
    ) -> ValueId {
        let all = usize::MAX;
        let mask = if windows { Mask::Window } else { Mask::Segment { before: all, after: all } };
        let attention = Attention {
            heads: self.heads,
            kv_heads: self.heads,
            head_dim: self.head_dim,
            scale,
            mask,
            softcap: 0.0,
            relative: None,
            sinks: None,
            head_norm,
            rope: self.rope.clone().map(|r| b.rope(r)),
            state: None,
        };
        b.node(&format!("{path}.attention"), Op::Attention(attention), &qkv, self.heads * self.head_dim)
    }

    /// `h + attention(norm(h))` with one tensor for q, k and v.
    pub fn attend_fused(&self, b: &mut Builder, path: &str, h: ValueId, windows: bool) -> ValueId {
        let x = self.norm(b, &format!("{path}.norm1"), h);
        let parts = ["q", "k", "v"];
        let name = format!("{path}.attn.qkv");
        let qkv = if self.qkv_apart {
            let each = |kind: &str| parts.map(|part| (format!("{path}.attn.{part}.{kind}"), self.hidden));
            let weight = b.stacked(each("weight").into(), self.hidden, WeightKind::Matrix);
            let bias = b.joined(each("bias"));
            b.node(&name, Op::Linear(Linear::new(weight, Some(bias))), &[x], 3 * self.hidden)
        } else {
            b.linear(&name, x, 3 * self.hidden, true)
        };
        let view =
            |b: &mut Builder, i: usize| b.view(&format!("{path}.{}", parts[i]), qkv, i * self.hidden, self.hidden);
        let qkv = [view(b, 0), view(b, 1), view(b, 2)];
        let mixed = self.attention(b, path, qkv, windows);
        let out = b.linear(&format!("{path}.attn.proj"), mixed, self.hidden, true);
        b.add(&format!("{path}.attention_residual"), h, out)
    }
}

/// A norm with the tensors `{name}.weight` and, of a layer norm, `{name}.bias`.
pub fn norm(b: &mut Builder, name: &str, x: ValueId, layer: bool, eps: f32, offset: f32) -> ValueId {
    let cols = b.cols(x);
    let gain = Some(b.vector(&format!("{name}.weight"), cols));
    let bias = layer.then(|| b.vector(&format!("{name}.bias"), cols));
    b.node(name, Op::Norm(Norm { gain, bias, layer, offset, eps }), &[x], cols)
}

/// `act(x Wᵀ + bias)`.
pub fn dense(b: &mut Builder, name: &str, x: ValueId, rows: usize, bias: bool, act: Activation) -> ValueId {
    let cols = b.cols(x);
    let weight = b.matrix(&format!("{name}.weight"), rows, cols);
    let bias = bias.then(|| b.vector(&format!("{name}.bias"), rows));
    b.node(name, Op::Linear(Linear { act, ..Linear::new(weight, bias) }), &[x], rows)
}

/// Patches through the first product, with what the table of positions says of their places.
pub fn embedded(
    b: &mut Builder,
    vit: &Vit,
    name: &str,
    cols: usize,
    bias: bool,
    table: Table,
    places: &str,
) -> ValueId {
    let (hidden, patches) = (vit.hidden, b.input(PATCHES, Dim::TOKENS, cols));
    let h = if vit.apart {
        let half = cols / 2;
        let [first, second] = [0, half].map(|from| b.view("frame", patches, from, half));
        let h = b.linear(name, first, hidden, bias);
        let weight = b.matrix(&format!("{name}.weight.1"), hidden, half);
        let other = b.node("second frame", Op::Linear(Linear::new(weight, None)), &[second], hidden);
        b.add("frames", h, other)
    } else {
        b.linear(name, patches, hidden, bias)
    };
    if table == Table::None {
        return h;
    }
    let pairs = b.input(PLACES, Dim::TOKENS, 2 * table.taps());
    let weight = b.weight(places, table.entries(), hidden, WeightKind::Table);
    let placed = b.node("placed", Op::Blend { table: weight, taps: table.taps() }, &[pairs], hidden);
    b.add("embedded", h, placed)
}

/// The side of a square table by the field of its entries.
pub fn side(config: Config<'_>, field: &str) -> Result<usize> {
    let entries = config.count(field)?;
    let side = entries.isqrt();
    if side * side != entries {
        let reason = format!("vision_config: {field} = {entries} is no square");
        return Err(Error::Config { file: "config.json".into(), reason });
    }
    Ok(side)
}

/// The base of the rotation.
pub fn rope_base(config: Config<'_>) -> Result<f64> {
    let base = config.number_or("rope_theta", 10_000.0)?;
    config.get("rope_parameters").map(Config).map_or(Ok(base), |p| p.number_or("rope_theta", base))
}

/// The rotation of Qwen's towers: by row, then by column, over the whole head.
pub fn axial(vit: &mut Vit, base: f64) -> Axial {
    vit.rope = Some(RopeSpec::plain(vit.head_dim, base));
    Axial { dim: vit.head_dim, base, column_first: false }
}

/// Columns of the language model.
pub fn text_columns(all: Config<'_>) -> Result<usize> {
    all.get("text_config").map_or(all, Config).count("hidden_size")
}

/// The tiles of a tower whose pictures have one size: patches along a side.
pub fn tile_side(config: Config<'_>, patch: usize, merge: usize) -> Result<usize> {
    let side = config.count_or("image_size", 224)? / patch;
    if side == 0 || !side.is_multiple_of(merge) {
        let reason = format!("vision_config: blocks of {merge} do not divide {side} patches");
        return Err(Error::Config { file: "config.json".into(), reason });
    }
    Ok(side)
}
