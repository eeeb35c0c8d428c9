//! Kernel selection: each module maps an operation to a shader variant, its constants and its grid.
//! Depends on shaders and device capabilities only, not on graphs or wgpu.

pub mod altup;
pub mod attention;
pub mod audio_conv;
pub mod conv;
pub mod elementwise;
pub mod embed;
pub mod embedding_bag;
pub mod experts;
pub mod kv_splits;
pub mod matmul;
pub mod norm;
pub mod packed_attention;
pub mod patches;
pub mod pool;
pub mod recurrent;
pub mod sample;
pub mod subgroup_matrix;
pub mod transcode;
pub mod view;

pub use crate::device::{registry, tuning_table};

use crate::device::registry::{Shader, Variant};
use crate::device::{Grid, preprocess};
use crate::ir::Dim;
use crate::{Error, Result};

/// Maximum workgroups per dimension that WebGPU guarantees.
pub const MAX_GROUPS: u32 = 65_535;

/// Threads per workgroup where one core runs them together, as the lanes of its vectors: without a GPU.
pub const SOFTWARE_LANES: u32 = 8;

/// Workgroup count of a dispatch, as a function of the step's rows (tokens).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridSpec {
    /// `units` workgroups for any number of rows, folded into two dimensions. Shaders index them by
    /// `x + y * groups.x`.
    Fixed {
        /// Workgroups.
        units: u32,
    },
    /// `units * ceil(rows / per)` workgroups, folded into two dimensions.
    Rows {
        /// Workgroups per row tile.
        units: u32,
        /// Rows per tile.
        per: u32,
    },
    /// A fixed grid for any number of rows.
    Exact(Grid),
    /// `[x, y, ceil(rows / per)]`.
    PerRow {
        /// Workgroups along x.
        x: u32,
        /// Workgroups along y.
        y: u32,
        /// Rows per workgroup.
        per: u32,
    },
    /// `[x, splits, rows]`: one KV split per `tile` visible keys of a row, at most `most`.
    KvSplits {
        /// Workgroups per split.
        x: u32,
        /// Keys per split.
        tile: u32,
        /// Maximum splits.
        max: u32,
    },
    /// Split-K: tiles as in [`GridSpec::Tiled`]. Along z, several workgroups share a tile so that
    /// the total approaches `target`.
    SplitK {
        /// Tile columns.
        x: u32,
        /// Rows per tile.
        per: u32,
        /// Workgroups that fill the device.
        target: u32,
        /// Maximum workgroups per tile.
        max: u32,
    },
    /// `[groups, rows / REDUCE_ROWS, 1]` after a [`GridSpec::SplitK`] dispatch that left partial sums;
    /// otherwise an empty grid.
    SplitKReduce {
        /// Workgroups per row.
        groups: u32,
        /// Tile columns of the split dispatch.
        x: u32,
        /// Rows per tile of the split dispatch.
        per: u32,
        /// Workgroups that fill the device.
        target: u32,
        /// Maximum workgroups per tile of the split dispatch.
        max: u32,
        /// Whether unshared tiles leave partial sums too.
        always: bool,
    },
    /// `[x, y, rows * each]`: the rows of selected experts one by one.
    PerExpert {
        /// Workgroups along x.
        x: u32,
        /// Workgroups along y.
        y: u32,
        /// Selected experts per row.
        top_k: u32,
    },
    /// `[x, tiles, 1]`, with the maximum number of tiles that row-expert pairs sorted by expert may
    /// need.
    ExpertTiles {
        /// Tile columns.
        x: u32,
        /// Selected experts per row.
        top_k: u32,
        /// Row-expert pairs per tile.
        per: u32,
        /// Experts.
        experts: u32,
    },
    /// `[x, rows, 1]`; adds layers along z when the rows exceed [`MAX_GROUPS`].
    LayeredRows {
        /// Tile columns.
        x: u32,
    },
    /// `[x, ceil(rows / per), z]`.
    Tiled {
        /// Tile columns.
        x: u32,
        /// Rows per tile.
        per: u32,
        /// Layers, such as heads.
        z: u32,
    },
}

impl GridSpec {
    /// Returns the grid for a number of rows.
    pub fn at(self, rows: u32) -> Grid {
        match self {
            GridSpec::Fixed { units } => fold(u64::from(units)),
            GridSpec::Rows { units, per } => fold(u64::from(units) * u64::from(rows.div_ceil(per))),
            GridSpec::Exact(grid) => grid,
            GridSpec::PerRow { x, y, per } => [x, y, rows.div_ceil(per)],
            GridSpec::KvSplits { x, max: most, .. } => [x, most, rows],
            GridSpec::SplitK {
                x,
                per,
                target,
                max: most,
            } => {
                let y = rows.div_ceil(per);
                [x, y, workgroups_per_tile(x * y, target, most)]
            }
            GridSpec::SplitKReduce {
                groups,
                x,
                per,
                target,
                max: most,
                always,
            } => {
                let any = always || workgroups_per_tile(x * rows.div_ceil(per), target, most) > 1;
                if any {
                    [groups, rows.div_ceil(REDUCE_ROWS), 1]
                } else {
                    [0, 0, 0]
                }
            }
            GridSpec::PerExpert { x, y, top_k: each } => [x, y, rows * each],
            GridSpec::ExpertTiles {
                x,
                top_k: each,
                per,
                experts,
            } => [x, experts::max_tiles(rows * each, per, experts), 1],
            GridSpec::LayeredRows { x } => {
                let layers = rows.div_ceil(MAX_GROUPS).max(1);
                [x, rows.div_ceil(layers), layers]
            }
            GridSpec::Tiled { x, per, z } => [x, rows.div_ceil(per), z],
        }
    }

    /// Returns the grid for rows with at most `keys` visible keys.
    pub fn limit_keys(self, keys: u32) -> Self {
        match self {
            GridSpec::KvSplits { x, tile, max: most } => GridSpec::KvSplits {
                x,
                tile,
                max: most.min(keys.div_ceil(tile)),
            },
            other => other,
        }
    }
}

/// Rows per thread of shaders/matmul/splitk_reduce.wgsl.
const REDUCE_ROWS: u32 = 4;

/// Returns the workgroups that share a tile: enough to fill the device. Two, if a last wave of
/// whole tiles would leave more than half the device idle. Must match
/// shaders/matmul/splitk_reduce.wgsl.
fn workgroups_per_tile(tiles: u32, target: u32, most: u32) -> u32 {
    let own = (target / tiles.max(1)).clamp(1, most);
    let last = tiles % target.max(1);
    let split_last_wave = tiles > target && tiles < 4 * target && last > 0 && 2 * last <= target;
    if split_last_wave { most.min(2) } else { own }
}

/// Folds a workgroup count into two dimensions under WebGPU's limit.
pub fn fold(total: u64) -> Grid {
    let limit = u64::from(MAX_GROUPS);
    if total <= limit {
        return [total as u32, 1, 1];
    }
    let y = total.div_ceil(limit);
    [total.div_ceil(y) as u32, y as u32, 1]
}

/// A kernel launch with bindings and parameters by name. `B` is the caller's buffer handle.
#[derive(Debug, Clone)]
pub struct Launch<B> {
    /// Label for plan dumps and profiles.
    pub label: String,
    /// Kernel variant.
    pub variant: Variant,
    /// Buffers by their shader names.
    pub binds: Vec<(&'static str, B)>,
    /// `Params` words by their shader names.
    pub params: Vec<(&'static str, u32)>,
    /// Workgroup grid.
    pub grid: GridSpec,
    /// The dimension that the grid counts as rows.
    pub dim: Dim,
}

impl<B: Clone> Launch<B> {
    /// Creates a launch without bindings.
    pub fn new(label: impl Into<String>, variant: Variant, grid: GridSpec) -> Self {
        Self {
            label: label.into(),
            variant,
            binds: Vec::new(),
            params: Vec::new(),
            grid,
            dim: Dim::TOKENS,
        }
    }

    /// Binds a buffer.
    pub fn bind(mut self, name: &'static str, buffer: B) -> Self {
        self.binds.push((name, buffer));
        self
    }

    /// Binds a buffer if there is one.
    pub fn bind_opt(self, name: &'static str, buffer: Option<B>) -> Self {
        match buffer {
            Some(b) => self.bind(name, b),
            None => self,
        }
    }

    /// Sets a `Params` word.
    pub fn set(mut self, name: &'static str, value: u32) -> Self {
        self.params.push((name, value));
        self
    }

    /// Sets an f32 `Params` word.
    pub fn set_f32(self, name: &'static str, value: f32) -> Self {
        self.set(name, value.to_bits())
    }

    /// Returns a `Params` word that is set.
    pub fn param(&self, name: &str) -> Option<u32> {
        let found = self.params.iter().find(|(given, _)| *given == name);
        found.map(|(_, word)| *word)
    }

    /// Resolves names to the shader's binding numbers and parameter order.
    ///
    /// # Errors
    /// `Error::Internal` if a binding or parameter is missing or unknown, which is a bug in the
    /// kernel module.
    pub fn resolve(&self, shader: &Shader) -> Result<Resolved<B>> {
        let owner = format!("{} ({})", self.label, self.variant);
        let resolved = Resolved::new(shader, &owner, &self.binds, &self.params)?;
        let is_declared = |name: &str| shader.params.iter().any(|(param, _)| param == name);
        match self.params.iter().find(|(name, _)| !is_declared(name)) {
            Some((name, _)) => Err(Error::Internal(format!(
                "{owner}: the shader has no parameter '{name}'"
            ))),
            None => Ok(resolved),
        }
    }
}

/// A launch resolved to binding numbers.
#[derive(Debug, Clone)]
pub struct Resolved<B> {
    /// Binding number and buffer.
    pub buffers: Vec<(u32, B)>,
    /// Binding of the uniform and its words.
    pub params: Option<(u32, Vec<u32>)>,
}

impl<B: Clone> Resolved<B> {
    /// Resolves the names of bindings and parameters. `owner` names the launch in errors.
    ///
    /// # Errors
    /// `Error::Internal` if a binding is missing or unknown, or a parameter is missing.
    pub fn new(
        shader: &Shader,
        owner: &str,
        binds: &[(&'static str, B)],
        params: &[(&'static str, u32)],
    ) -> Result<Self> {
        let fault = |what: &str, name: &str| Error::Internal(format!("{owner}: {what} '{name}'"));
        let mut buffers = Vec::with_capacity(binds.len());
        let mut uniform = None;
        for declared in &shader.bindings {
            if declared.access == preprocess::Access::Uniform {
                uniform = Some(declared.binding);
                continue;
            }
            let bound = binds.iter().find(|(name, _)| *name == declared.name);
            let (_, buffer) =
                bound.ok_or_else(|| fault("no buffer is bound to", &declared.name))?;
            buffers.push((declared.binding, buffer.clone()));
        }
        let is_declared = |name: &str| shader.bindings.iter().any(|b| b.name == name);
        if let Some((name, _)) = binds.iter().find(|(name, _)| !is_declared(name)) {
            return Err(fault("the shader has no binding", name));
        }
        let mut words = Vec::with_capacity(shader.params.len());
        for (name, _) in &shader.params {
            let given = params.iter().find(|(given, _)| given == name);
            let (_, word) = given.ok_or_else(|| fault("no value for parameter", name))?;
            words.push(*word);
        }
        Ok(Self {
            buffers,
            params: uniform.map(|binding| (binding, words)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::GridSpec;

    #[test]
    fn runs_are_as_many_as_there_are_keys_for() {
        let grid = GridSpec::KvSplits {
            x: 3,
            tile: 32,
            max: 16,
        };
        let runs = |keys| grid.limit_keys(keys).at(2);
        assert_eq!(
            [1, 32, 33, 512, 513].map(runs),
            [1, 1, 2, 16, 16].map(|y| [3, y, 2])
        );
        assert_eq!(grid.at(2), [3, 16, 2]);
        let other = GridSpec::PerRow {
            x: 3,
            y: 16,
            per: 1,
        };
        assert_eq!(other.limit_keys(1), other);
    }
}
