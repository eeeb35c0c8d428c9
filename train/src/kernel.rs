//! Kernels of train/shaders: variants, their sources, and launches with bindings by name.

use jerboa::device::Grid;
use jerboa::device::preprocess::{self, Access};
use jerboa::device::registry::{Kernel, Shader, Variant, shader_file};
use jerboa::format::WeightLayout;
use jerboa::gpu::{Backend, Buffer, DispatchDesc, Gpu, Pipeline};
use jerboa::kernels::fold;
use jerboa::kernels::matmul::{View, scale_pairs, weight_flags};
use jerboa::{Error, Result, SortedMap, SortedSet};
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
    "column_sums",
    "convolution",
    "cross_entropy",
    "derivative",
    "elementwise",
    "embed",
    "embed_table",
    "fill",
    "hyper",
    "matmul",
    "mean_square",
    "norm",
    "norm_input",
    "recurrent_cell",
    "recurrent_gradient",
    "rope",
    "softmax",
    "sum",
    "total",
    "update",
];

/// Constants that every source may compare, with their defaults.
const DEFAULTS: [(&str, u32); 6] = [
    ("BITS", 4),
    ("GROUP", 32),
    ("SCALE", 0),
    ("ZERO", 0),
    ("OP", 0),
    ("HEAD", 64),
];

/// A kernel of train/shaders with its flags and constants: the key of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrainKernel {
    /// Name of its file.
    pub name: &'static str,
    flags: SortedSet<&'static str>,
    consts: SortedMap<&'static str, u32>,
}

impl TrainKernel {
    /// The kernel of a file, with no flag set and all constants at their defaults.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            flags: SortedSet::new(),
            consts: SortedMap::new(),
        }
    }

    /// Sets a flag if `on`.
    pub fn flag(mut self, name: &'static str, on: bool) -> Self {
        if on {
            self.flags.insert(name);
        }
        self
    }

    /// Sets a constant.
    pub fn set(mut self, name: &'static str, value: u32) -> Self {
        self.consts.insert(name, value);
        self
    }

    /// Adds the flags and constants that make it read a weight layout of the engine.
    pub fn layout(mut self, layout: WeightLayout) -> Self {
        let variant = weight_flags(Variant::new(Kernel::Embed), layout);
        for flag in &variant.flags {
            self.flags.insert(*flag);
        }
        for (name, value) in &variant.consts {
            self.consts.insert(*name, *value);
        }
        self
    }

    /// Expands the WGSL source and reads its bindings and parameters.
    ///
    /// # Errors
    /// `Internal` for a file that does not exist, or a directive that does not expand.
    pub fn shader(&self, browser: bool) -> Result<Shader> {
        let consts: Vec<(&str, u32)> = DEFAULTS
            .iter()
            .map(|(name, value)| (*name, self.consts.get(name).copied().unwrap_or(*value)))
            .collect();
        let has = |flag: &str| self.flags.contains(flag);
        let path = format!("train/{}", self.name);
        let body = preprocess::flatten(&path, &source, &mut Vec::new())
            .and_then(|text| preprocess::expand(&text, &has, &consts))
            .map_err(|e| Error::Internal(format!("{self}: {e}")))?;
        Ok(Shader {
            label: self.to_string(),
            text: preprocess::with_prologue(browser, &has, &consts, &body),
            bindings: preprocess::bindings(&body),
            params: preprocess::params(&body),
        })
    }
}

impl fmt::Display for TrainKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "train {}", self.name)?;
        for flag in &self.flags {
            write!(f, "+{}", flag.to_lowercase())?;
        }
        for (name, value) in &self.consts {
            write!(f, " {}={value}", name.to_lowercase())?;
        }
        Ok(())
    }
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
    pub kernel: TrainKernel,
    /// Buffers by their shader names.
    pub binds: Vec<(&'static str, B)>,
    /// `Params` words by their shader names.
    pub params: Vec<(&'static str, u32)>,
    /// Workgroups.
    pub grid: Grid,
}

impl<B: Clone> TrainLaunch<B> {
    /// Creates a launch without bindings.
    pub fn new(kernel: TrainKernel, grid: Grid) -> Self {
        Self {
            kernel,
            binds: Vec::new(),
            params: Vec::new(),
            grid,
        }
    }

    /// Creates a launch with a thread per item, in workgroups of `size`.
    pub fn threads(kernel: TrainKernel, items: usize, size: u32) -> Self {
        Self::new(kernel, fold((items as u64).div_ceil(u64::from(size))))
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

    /// Replaces the buffer handles.
    pub fn map<C>(self, buffer: impl Fn(&B) -> C) -> TrainLaunch<C> {
        TrainLaunch {
            kernel: self.kernel,
            binds: self
                .binds
                .iter()
                .map(|(name, handle)| (*name, buffer(handle)))
                .collect(),
            params: self.params,
            grid: self.grid,
        }
    }
}

impl TrainLaunch<Buffer> {
    /// Resolves names to the shader's binding numbers and parameter order.
    ///
    /// # Errors
    /// `Internal` when a binding or parameter is missing or unknown, which is a bug of the module
    /// that made the launch.
    pub fn dispatch(&self, pipelines: &TrainPipelines) -> Result<DispatchDesc> {
        let (shader, pipeline) = pipelines.get(&self.kernel)?;
        let fault =
            |what: &str, name: &str| Error::Internal(format!("{}: {what} '{name}'", self.kernel));
        let mut buffers = Vec::with_capacity(self.binds.len());
        let mut uniform = None;
        for declared in &shader.bindings {
            if declared.access == Access::Uniform {
                uniform = Some(declared.binding);
                continue;
            }
            let bound = self.binds.iter().find(|(name, _)| *name == declared.name);
            let (_, buffer) =
                bound.ok_or_else(|| fault("no buffer is bound to", &declared.name))?;
            buffers.push((declared.binding, buffer.clone()));
        }
        if buffers.len() != self.binds.len() {
            let is_declared = |name: &str| shader.bindings.iter().any(|b| b.name == name);
            let extra = self.binds.iter().find(|(name, _)| !is_declared(name));
            return Err(fault(
                "the shader has no binding",
                extra.map_or("", |b| b.0),
            ));
        }
        let mut words = Vec::with_capacity(shader.params.len());
        for (name, _) in &shader.params {
            let given = self.params.iter().find(|(given, _)| given == name);
            words.push(
                given
                    .ok_or_else(|| fault("no value for parameter", name))?
                    .1,
            );
        }
        Ok(DispatchDesc {
            label: self.kernel.to_string(),
            pipeline: pipeline.clone(),
            buffers,
            params: uniform.map(|binding| (binding, words)),
            grid: self.grid,
        })
    }
}

/// Compiled kernels.
#[derive(Default)]
pub struct TrainPipelines(HashMap<TrainKernel, (Shader, Pipeline)>);

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
        let mut wanted: Vec<TrainKernel> = Vec::new();
        for launch in launches {
            if !self.0.contains_key(&launch.kernel) && !wanted.contains(&launch.kernel) {
                wanted.push(launch.kernel.clone());
            }
        }
        let browser = cfg!(target_arch = "wasm32");
        let shaders = wanted
            .iter()
            .map(|kernel| kernel.shader(browser))
            .collect::<Result<Vec<Shader>>>()?;
        let made = gpu.pipelines(&shaders).await?;
        let compiled = shaders.into_iter().zip(made);
        self.0.extend(wanted.into_iter().zip(compiled));
        Ok(())
    }

    fn get(&self, kernel: &TrainKernel) -> Result<&(Shader, Pipeline)> {
        let compiled = self.0.get(kernel);
        compiled.ok_or_else(|| Error::Internal(format!("{kernel} was not compiled")))
    }
}
