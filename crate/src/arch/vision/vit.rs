//! Building blocks of vision encoders: patch and position embeddings, attention blocks within a
//! tile, norms and dense layers.

use super::{PATCHES, POSITION_PAIRS};
use crate::arch::blocks::{NormSpec, norm};
use crate::arch::config::Config;
use crate::ir::{
    Attention, Dim, EmbeddingBag, GraphBuilder, HeadNorm, Linear, Mask, RopeSpec, ValueId,
    WeightKind,
};
use crate::vision::{AxialRope, PositionTable};
use crate::{Error, Result};

/// Dimensions and options shared by the blocks of a vision encoder.
pub struct Vit {
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// The norms.
    pub norm: NormSpec,
    /// RoPE.
    pub rope: Option<RopeSpec>,
    /// Whether the two frames of a patch have a tensor each.
    pub split_frames: bool,
    /// Whether q, k and v have a tensor each.
    pub split_qkv: bool,
}

impl Vit {
    /// Reads the common fields, for LayerNorms; `heads` is the name of the head count's field.
    pub fn from_config(config: Config<'_>, heads: &str, eps: f64) -> Result<Self> {
        let hidden = config.count("hidden_size")?;
        let heads = config.count(heads)?;

        if !hidden.is_multiple_of(4 * heads) {
            let reason = format!(
                "vision_config: 'hidden_size' is {hidden}, which is not a multiple of 4 × {heads} heads"
            );
            return Err(Error::Config {
                file: "config.json".into(),
                reason,
            });
        }
        Ok(Self {
            hidden,
            heads,
            head_dim: hidden / heads,
            norm: NormSpec::layer(eps),
            rope: None,
            split_frames: false,
            split_qkv: false,
        })
    }

    /// Adds a norm.
    pub fn norm(&self, b: &mut GraphBuilder, name: &str, x: ValueId) -> ValueId {
        norm(b, name, self.norm, x)
    }

    /// Adds bidirectional attention within a tile, or within its windows.
    pub fn attention(
        &self,
        b: &mut GraphBuilder,
        path: &str,
        qkv: [ValueId; 3],
        windows: bool,
    ) -> ValueId {
        self.attention_with(
            b,
            path,
            qkv,
            windows,
            (self.head_dim as f32).powf(-0.5),
            None,
        )
    }

    /// Like [`Self::attention`], with a scale of the scores and optional norms of heads.
    pub fn attention_with(
        &self,
        b: &mut GraphBuilder,
        path: &str,
        qkv: [ValueId; 3],
        windows: bool,
        scale: f32,
        head_norm: Option<HeadNorm>,
    ) -> ValueId {
        let all = usize::MAX;
        let mask = if windows {
            Mask::PackedWindow
        } else {
            Mask::Packed {
                before: all,
                after: all,
            }
        };
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
        b.node(
            &format!("{path}.attention"),
            attention,
            &qkv,
            self.heads * self.head_dim,
        )
    }

    /// Adds `h + attention(norm(h))` with one matmul for q, k and v.
    pub fn attention_block(
        &self,
        b: &mut GraphBuilder,
        path: &str,
        h: ValueId,
        windows: bool,
    ) -> ValueId {
        let x = self.norm(b, &format!("{path}.norm1"), h);
        let parts = ["q", "k", "v"];
        let name = format!("{path}.attn.qkv");
        let qkv = if self.split_qkv {
            let each =
                |kind: &str| parts.map(|part| (format!("{path}.attn.{part}.{kind}"), self.hidden));
            let weight = b.stacked(each("weight").into(), self.hidden, WeightKind::Matrix);
            let bias = b.concat_vectors(each("bias"));
            b.node(
                &name,
                Linear::new(weight, Some(bias)),
                &[x],
                3 * self.hidden,
            )
        } else {
            b.linear(&name, x, 3 * self.hidden, true)
        };
        let view = |b: &mut GraphBuilder, i: usize| {
            b.view(
                &format!("{path}.{}", parts[i]),
                qkv,
                i * self.hidden,
                self.hidden,
            )
        };
        let qkv = [view(b, 0), view(b, 1), view(b, 2)];
        let mixed = self.attention(b, path, qkv, windows);
        let out = b.linear(&format!("{path}.attn.proj"), mixed, self.hidden, true);
        b.add(&format!("{path}.attention_residual"), h, out)
    }
}

/// Adds the patch projection and the position embeddings.
pub fn patch_embeddings(
    b: &mut GraphBuilder,
    vit: &Vit,
    name: &str,
    cols: usize,
    bias: bool,
    table: PositionTable,
    places: &str,
) -> ValueId {
    let hidden = vit.hidden;
    let patches = b.input(PATCHES, Dim::TOKENS, cols);

    let h = if vit.split_frames {
        let half = cols / 2;
        let [first, second] = [0, half].map(|from| b.view("frame", patches, from, half));
        let h = b.linear(name, first, hidden, bias);
        let weight = b.matrix(&format!("{name}.weight.1"), hidden, half);
        let other = b.node("second frame", Linear::new(weight, None), &[second], hidden);
        b.add("frames", h, other)
    } else {
        b.linear(name, patches, hidden, bias)
    };
    if table == PositionTable::None {
        return h;
    }
    let pairs = b.input(POSITION_PAIRS, Dim::TOKENS, 2 * table.taps());
    let weight = b.weight(places, table.entries(), hidden, WeightKind::Table);
    let positions = b.node(
        "placed",
        EmbeddingBag {
            table: weight,
            taps: table.taps(),
        },
        &[pairs],
        hidden,
    );
    b.add("embedded", h, positions)
}

/// Returns the side of a square position table from the field of its entries.
pub fn table_side(config: Config<'_>, field: &str) -> Result<usize> {
    let entries = config.count(field)?;
    let side = entries.isqrt();
    if side * side != entries {
        let reason = format!("vision_config: '{field}' is {entries}, which is not a square number");
        return Err(Error::Config {
            file: "config.json".into(),
            reason,
        });
    }
    Ok(side)
}

/// Returns the RoPE base.
pub fn rope_base(config: Config<'_>) -> Result<f64> {
    let base = config.number_or("rope_theta", 10_000.0)?;
    config
        .nested("rope_parameters")
        .map_or(Ok(base), |p| p.number_or("rope_theta", base))
}

/// Sets the RoPE of Qwen's vision encoders: by row, then by column, over the whole head.
pub fn axial_rope(vit: &mut Vit, base: f64) -> AxialRope {
    vit.rope = Some(RopeSpec::plain(vit.head_dim, base));
    AxialRope {
        dim: vit.head_dim,
        base,
        column_first: false,
    }
}

/// Returns the columns of the language model.
pub fn text_columns(all: Config<'_>) -> Result<usize> {
    let text = all.nested("text_config").unwrap_or(all);
    text.count("hidden_size")
}

/// Returns the patches along a tile's side, for vision encoders with a fixed image size.
pub fn tile_side(config: Config<'_>, patch: usize, merge: usize) -> Result<usize> {
    let side = config.count_or("image_size", 224)? / patch;
    if side == 0 || !side.is_multiple_of(merge) {
        let reason = format!(
            "vision_config: 'image_size' gives {side} patches a side, which blocks of {merge} do not divide"
        );
        return Err(Error::Config {
            file: "config.json".into(),
            reason,
        });
    }
    Ok(side)
}
