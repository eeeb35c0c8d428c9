//! Kernels of train/shaders: variants, their sources, and launches with bindings by name.

use crate::kernels::matmul::{MATMUL_MATRIX, MatrixOperands};
use crate::tiles::{Tiles, Tiling};
use jerboa::device::Grid;
use jerboa::device::registry::{Shader, Variant, shader_file};
use jerboa::format::WeightLayout;
use jerboa::gpu::{Backend, Buffer, DispatchDesc, Gpu, Pipeline};
use jerboa::kernels::matmul::{View, scale_pairs};
use jerboa::kernels::{Resolved, fold};
use jerboa::{Error, Result};
use std::collections::HashMap;
use std::fmt;

/// Names the sources of train/shaders.
macro_rules! sources {
    ($($name:literal,)*) => {
        &[$(($name, include_str!(concat!("../shaders/", $name, ".wgsl"))),)*]
    };
}

/// Shader sources by name.
const FILES: &[(&str, &str)] = sources![
    "attention",
    "attention_dots",
    "attention_keys",
    "attention_mask",
    "attention_params",
    "attention_query",
    "attention_tiles",
    "column_sums",
    "convolution",
    "cross_entropy",
    "derivative",
    "elementwise",
    "embed",
    "embed_table",
    "fill",
    "gru_cell",
    "gru_gradient",
    "hyper",
    "matmul",
    "matmul_matrix",
    "matmul_params",
    "matmul_rows",
    "mean_square",
    "norm",
    "norm_input",
    "pool",
    "preference",
    "recurrent_cell",
    "recurrent_gradient",
    "rope",
    "row_scales",
    "short_conv",
    "short_conv_weight",
    "softmax",
    "sum",
    "swap",
    "total",
    "update",
];

/// Constants that every source may compare, with their defaults.
const DEFAULTS: [(&str, u32); 15] = [
    ("BITS", 4),
    ("GROUP", 32),
    ("SCALE", 0),
    ("ZERO", 0),
    ("OP", 0),
    ("HEAD", 64),
    ("SIDE", 4),
    ("LOADS", 1),
    ("PASSES", 1),
    ("BM", 128),
    ("BN", 128),
    ("DOWN", 2),
    ("ACROSS", 2),
    ("WIDTH", 32),
    ("LANES", 32),
];

/// A kernel of train/shaders: the name of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrainKernel(pub &'static str);

impl fmt::Display for TrainKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "train {}", self.0)
    }
}

/// A kernel of train/shaders with its flags and constants.
pub type TrainVariant = Variant<TrainKernel>;

/// Expands a variant's WGSL source and reads its bindings and parameters.
fn shader(variant: &TrainVariant, browser: bool) -> Result<Shader> {
    let path = format!("train/{}", variant.kernel.0);
    variant.expand(&path, &source, DEFAULTS.into_iter(), browser)
}

/// The code of a shader file: `train/NAME` of this crate, other paths of the engine.
fn source(path: &str) -> Result<String, String> {
    let Some(name) = path.strip_prefix("train/") else {
        return shader_file(path);
    };
    let found = FILES.iter().find(|(file, _)| *file == name);
    let (_, text) = found.ok_or_else(|| format!("train/shaders/{name}.wgsl is missing"))?;
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or("").trim());
    Ok(code
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect())
}

/// A launch with bindings and parameters by name. `B` is the caller's buffer handle.
#[derive(Debug, Clone)]
pub struct TrainLaunch<B> {
    /// Kernel variant.
    pub variant: TrainVariant,
    /// Buffers by their shader names.
    pub binds: Vec<(&'static str, B)>,
    /// `Params` words by their shader names.
    pub params: Vec<(&'static str, u32)>,
    /// Workgroups, unless they follow from the tiles of the device: see `tiles.rs`.
    pub grid: Grid,
    /// For a matmul that may run on subgroup matrices.
    pub matrix: Option<MatrixOperands<B>>,
}

impl<B: Clone> TrainLaunch<B> {
    /// Creates a launch without bindings.
    pub fn new(variant: TrainVariant, grid: Grid) -> Self {
        Self {
            variant,
            binds: Vec::new(),
            params: Vec::new(),
            grid,
            matrix: None,
        }
    }

    /// Creates a launch with a thread per item, in workgroups of `size`.
    pub fn threads(variant: TrainVariant, items: usize, size: u32) -> Self {
        Self::new(variant, fold((items as u64).div_ceil(u64::from(size))))
    }

    /// Binds a buffer.
    pub fn bind(mut self, name: &'static str, buffer: B) -> Self {
        self.binds.push((name, buffer));
        self
    }

    /// Binds a buffer if there is one.
    pub fn bind_opt(self, name: &'static str, buffer: Option<B>) -> Self {
        match buffer {
            Some(buffer) => self.bind(name, buffer),
            None => self,
        }
    }

    /// Binds the buffer of a view and sets its offset and stride: the names of the three.
    pub fn view(self, [buffer, offset, stride]: [&'static str; 3], view: &View<B>) -> Self {
        self.bind(buffer, view.buffer.clone())
            .set(offset, view.offset as usize)
            .set(stride, view.stride as usize)
    }

    /// Sets a `Params` word.
    pub fn set(mut self, name: &'static str, value: usize) -> Self {
        self.params.push((name, value as u32));
        self
    }

    /// Sets an f32 `Params` word.
    pub fn set_f32(mut self, name: &'static str, value: f32) -> Self {
        self.params.push((name, value.to_bits()));
        self
    }

    /// Binds the planes of a weight and sets the parameters of their layout.
    pub fn weight(self, layout: WeightLayout, cols: usize, q: B, s: Option<B>) -> Self {
        self.bind("w_q", q)
            .bind_opt("w_s", s)
            .set("k_blocks", layout.padded_cols(cols) / 32)
            .set("groups", scale_pairs(layout, cols as u32) as usize)
    }

    /// Sets the scales of the left factor's rows, for a matmul that may run on subgroup matrices.
    pub fn with_scales(mut self, scales: B) -> Self {
        if let Some(operands) = &mut self.matrix {
            operands.scales = Some(scales);
        }
        self
    }

    /// Replaces the buffer handles.
    pub fn map<C>(self, buffer: impl Fn(&B) -> C) -> TrainLaunch<C> {
        TrainLaunch {
            variant: self.variant,
            binds: self
                .binds
                .iter()
                .map(|(name, handle)| (*name, buffer(handle)))
                .collect(),
            params: self.params,
            grid: self.grid,
            matrix: self.matrix.map(|operands| MatrixOperands {
                layout: operands.layout,
                scales: operands.scales.as_ref().map(buffer),
            }),
        }
    }
}

impl<B> TrainLaunch<B> {
    /// A word of `Params`; 0 if it is not set.
    pub(crate) fn param(&self, name: &str) -> u32 {
        let found = self.params.iter().find(|(known, _)| *known == name);
        found.map_or(0, |(_, value)| *value)
    }
}

impl TrainLaunch<Buffer> {
    /// Resolves names to the shader's binding numbers and parameter order. `None` if this device
    /// needs no such launch.
    ///
    /// # Errors
    /// `Internal` when a binding or parameter is missing or unknown, which is a bug of the module
    /// that made the launch.
    pub fn dispatch(&self, pipelines: &TrainPipelines) -> Result<Option<DispatchDesc>> {
        let Some(tiling) = pipelines.tiles.of(self) else {
            return Ok(None);
        };
        let Tiling { variant, grid } = tiling;
        let (shader, pipeline) = pipelines.get(&variant)?;
        let label = variant.to_string();
        let mut binds = self.binds.clone();
        if variant.kernel == MATMUL_MATRIX
            && let Some(scales) = self.matrix.as_ref().and_then(|own| own.scales.clone())
        {
            binds.push(("scales", scales));
        }
        let resolved = Resolved::new(shader, &label, &binds, &self.params)?;
        Ok(Some(DispatchDesc {
            label,
            pipeline: pipeline.clone(),
            buffers: resolved.buffers,
            params: resolved.params,
            grid,
        }))
    }
}

/// Compiled kernels.
#[derive(Default)]
pub struct TrainPipelines {
    compiled: HashMap<TrainVariant, (Shader, Pipeline)>,
    tiles: Tiles,
}

impl TrainPipelines {
    /// Compiles the kernels of launches, except those compiled before.
    ///
    /// # Errors
    /// `Internal` for a source that does not expand; device errors.
    pub async fn compile<'a, B: 'a>(
        &mut self,
        gpu: &Gpu,
        launches: impl Iterator<Item = &'a TrainLaunch<B>>,
    ) -> Result<()> {
        self.tiles = Tiles::on(gpu.caps());
        let mut wanted: Vec<TrainVariant> = Vec::new();
        for launch in launches {
            let Some(Tiling { variant, .. }) = self.tiles.of(launch) else {
                continue;
            };
            if !self.compiled.contains_key(&variant) && !wanted.contains(&variant) {
                wanted.push(variant);
            }
        }
        let browser = cfg!(target_arch = "wasm32");
        let shaders = wanted
            .iter()
            .map(|variant| shader(variant, browser))
            .collect::<Result<Vec<Shader>>>()?;
        let made = gpu.pipelines(&shaders).await?;
        let compiled = shaders.into_iter().zip(made);
        self.compiled.extend(wanted.into_iter().zip(compiled));
        Ok(())
    }

    fn get(&self, variant: &TrainVariant) -> Result<&(Shader, Pipeline)> {
        let compiled = self.compiled.get(variant);
        compiled.ok_or_else(|| Error::Internal(format!("{variant} was not compiled")))
    }
}
