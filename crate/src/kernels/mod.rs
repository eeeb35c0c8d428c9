//! Kernel choice: one file per family turns what must be computed (a key) into a variant, its numbers and its grid.
//! The families know shaders and capabilities; they know neither graphs nor wgpu.

pub mod altup;
pub mod attention;
pub mod blend;
pub mod conv;
pub mod elementwise;
pub mod embed;
pub mod experts;
pub mod matmul;
pub mod matrix;
pub mod norm;
pub mod patches;
pub mod pool;
pub mod recurrent;
pub mod runs;
pub mod sample;
pub mod segments;
pub mod sound;
pub mod transcode;
pub mod view;

pub use crate::device::{registry, tuned};

use crate::device::registry::{Shader, Variant};
use crate::device::{Grid, preprocess};
use crate::ir::Dim;
use crate::{Error, Result};

/// The most workgroups WebGPU allows in one dimension.
pub const MAX_GROUPS: u32 = 65_535;

/// How many workgroups a dispatch has, as a function of the rows (tokens) of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridSpec {
    /// `units` workgroups whatever the rows, folded into two dimensions; shaders number them by `x + y * groups.x`.
    Fixed {
        /// How many.
        units: u32,
    },
    /// `units * ceil(rows / per)` workgroups, folded likewise.
    Rows {
        /// Workgroups for each tile of rows.
        units: u32,
        /// Rows of a tile.
        per: u32,
    },
    /// These, whatever the rows.
    Exact(Grid),
    /// `[x, y, ceil(rows / per)]`: so many rows at a time.
    PerRow {
        /// Workgroups along x.
        x: u32,
        /// Workgroups along y.
        y: u32,
        /// Rows that a workgroup takes.
        per: u32,
    },
    /// `[x, runs, rows]`, with a run for each `tile` keys that a row may see, `most` at the most.
    Runs {
        /// Workgroups of a run.
        x: u32,
        /// Keys of a run.
        tile: u32,
        /// The most runs.
        most: u32,
    },
    /// Tiles as [`GridSpec::Tiled`], and along z as many workgroups to share each as come close to `target` in all.
    Split {
        /// Columns of tiles.
        x: u32,
        /// Rows of a tile.
        per: u32,
        /// Workgroups that fill a device.
        target: u32,
        /// The most workgroups for one tile.
        most: u32,
    },
    /// `[groups, rows / JOIN_ROWS, 1]` after a dispatch of [`GridSpec::Split`] that left its sums in parts, else nothing.
    Join {
        /// Workgroups of a row.
        groups: u32,
        /// Columns of tiles of the split dispatch.
        x: u32,
        /// Rows of its tiles.
        per: u32,
        /// Workgroups that fill a device.
        target: u32,
        /// The most workgroups for one of its tiles.
        most: u32,
        /// Whether tiles that nobody shares are left in parts too.
        always: bool,
    },
    /// `[x, y, rows * each]`: one pick of an expert at a time.
    Picks {
        /// Workgroups along x.
        x: u32,
        /// Workgroups along y.
        y: u32,
        /// Picks of a row.
        each: u32,
    },
    /// `[x, tiles, 1]` with as many tiles as picks sorted by expert may need.
    Buckets {
        /// Columns of tiles.
        x: u32,
        /// Picks of a row.
        each: u32,
        /// Picks of a tile.
        per: u32,
        /// Experts.
        experts: u32,
    },
    /// `[x, rows, 1]`; of more rows than a grid is high, as many layers as there must be.
    Lines {
        /// Columns of tiles.
        x: u32,
    },
    /// `[x, ceil(rows / per), z]`.
    Tiled {
        /// Columns of tiles.
        x: u32,
        /// Rows of a tile.
        per: u32,
        /// Layers, such as heads.
        z: u32,
    },
}

impl GridSpec {
    /// The grid for a number of rows.
    pub fn at(self, rows: u32) -> Grid {
        match self {
            GridSpec::Fixed { units } => fold(u64::from(units)),
            GridSpec::Rows { units, per } => fold(u64::from(units) * u64::from(rows.div_ceil(per))),
            GridSpec::Exact(grid) => grid,
            GridSpec::PerRow { x, y, per } => [x, y, rows.div_ceil(per)],
            GridSpec::Runs { x, most, .. } => [x, most, rows],
            GridSpec::Split { x, per, target, most } => {
                let y = rows.div_ceil(per);
                [x, y, splits(x * y, target, most)]
            }
            GridSpec::Join { groups, x, per, target, most, always } => {
                let any = always || splits(x * rows.div_ceil(per), target, most) > 1;
                if any { [groups, rows.div_ceil(JOIN_ROWS), 1] } else { [0, 0, 0] }
            }
            GridSpec::Picks { x, y, each } => [x, y, rows * each],
            GridSpec::Buckets { x, each, per, experts } => [x, experts::tiles(rows * each, per, experts), 1],
            GridSpec::Lines { x } => {
                let layers = rows.div_ceil(MAX_GROUPS).max(1);
                [x, rows.div_ceil(layers), layers]
            }
            GridSpec::Tiled { x, per, z } => [x, rows.div_ceil(per), z],
        }
    }

    /// The same where no row sees more than so many keys.
    pub fn within(self, keys: u32) -> Self {
        match self {
            GridSpec::Runs { x, tile, most } => GridSpec::Runs { x, tile, most: most.min(keys.div_ceil(tile)) },
            other => other,
        }
    }
}

/// Rows that a thread of shaders/matmul/gemm_join.wgsl has.
const JOIN_ROWS: u32 = 4;

/// How many workgroups share a tile: as many as fill the device, or two where a last round of whole tiles would leave more
/// than half of it idle. shaders/matmul/gemm_join.wgsl has the same.
fn splits(tiles: u32, target: u32, most: u32) -> u32 {
    let own = (target / tiles.max(1)).clamp(1, most);
    let last = tiles % target.max(1);
    let halves = tiles > target && tiles < 4 * target && last > 0 && 2 * last <= target;
    if halves { most.min(2) } else { own }
}

/// Folds a count of workgroups into two dimensions under WebGPU's limit.
pub fn fold(total: u64) -> Grid {
    let limit = u64::from(MAX_GROUPS);
    if total <= limit {
        return [total as u32, 1, 1];
    }
    let y = total.div_ceil(limit);
    [total.div_ceil(y) as u32, y as u32, 1]
}

/// A kernel with everything it is given by name; `B` is how the caller names buffers.
#[derive(Debug, Clone)]
pub struct Launch<B> {
    /// What the step does, for dumps and profiles.
    pub label: String,
    /// The kernel.
    pub variant: Variant,
    /// Buffers by the shader's names.
    pub binds: Vec<(&'static str, B)>,
    /// The words of `Params` by the shader's names.
    pub params: Vec<(&'static str, u32)>,
    /// The workgroups.
    pub grid: GridSpec,
    /// What its grid counts as rows.
    pub dim: Dim,
}

impl<B: Clone> Launch<B> {
    /// A launch with nothing bound.
    pub fn new(label: impl Into<String>, variant: Variant, grid: GridSpec) -> Self {
        Self { label: label.into(), variant, binds: Vec::new(), params: Vec::new(), grid, dim: Dim::TOKENS }
    }

    /// Binds a buffer.
    pub fn bind(mut self, name: &'static str, buffer: B) -> Self {
        self.binds.push((name, buffer));
        self
    }

    /// Binds a buffer when there is one.
    pub fn bind_opt(self, name: &'static str, buffer: Option<B>) -> Self {
        match buffer {
            Some(b) => self.bind(name, b),
            None => self,
        }
    }

    /// Sets a word of `Params`.
    pub fn set(mut self, name: &'static str, value: u32) -> Self {
        self.params.push((name, value));
        self
    }

    /// Sets an f32 of `Params`.
    pub fn set_f32(self, name: &'static str, value: f32) -> Self {
        self.set(name, value.to_bits())
    }

    /// Matches what is given against what the shader declares.
    ///
    /// # Errors
    /// `Error::Internal` when a name is missing or unknown: a fault of the family that made the launch.
    pub fn resolve(&self, shader: &Shader) -> Result<Resolved<B>> {
        let fault =
            |what: &str, name: &str| Error::Internal(format!("{} ({}): {what} {name}", self.label, self.variant));
        let mut buffers = Vec::with_capacity(self.binds.len());
        let mut uniform = None;
        for decl in &shader.bindings {
            if decl.access == preprocess::Access::Uniform {
                uniform = Some(decl.binding);
                continue;
            }
            let found = self.binds.iter().find(|(n, _)| *n == decl.name);
            let (_, buffer) = found.ok_or_else(|| fault("nothing is bound to", &decl.name))?;
            buffers.push((decl.binding, buffer.clone()));
        }
        if let Some((name, _)) = self.binds.iter().find(|(n, _)| shader.bindings.iter().all(|d| d.name != *n)) {
            return Err(fault("the shader does not bind", name));
        }
        let mut words = Vec::with_capacity(shader.params.len());
        for (name, _) in &shader.params {
            let found = self.params.iter().find(|(n, _)| n == name);
            words.push(found.ok_or_else(|| fault("no value for the parameter", name))?.1);
        }
        if let Some((name, _)) = self.params.iter().find(|(n, _)| shader.params.iter().all(|(p, _)| p != n)) {
            return Err(fault("the shader has no parameter", name));
        }
        Ok(Resolved { buffers, params: uniform.map(|binding| (binding, words)) })
    }
}

/// A launch in the shader's numbers.
#[derive(Debug, Clone)]
pub struct Resolved<B> {
    /// Binding and buffer.
    pub buffers: Vec<(u32, B)>,
    /// The uniform's binding and its words.
    pub params: Option<(u32, Vec<u32>)>,
}

#[cfg(test)]
mod tests {
    use super::GridSpec;

    #[test]
    fn runs_are_as_many_as_there_are_keys_for() {
        let grid = GridSpec::Runs { x: 3, tile: 32, most: 16 };
        let runs = |keys| grid.within(keys).at(2);
        assert_eq!([1, 32, 33, 512, 513].map(runs), [1, 1, 2, 16, 16].map(|y| [3, y, 2]));
        assert_eq!(grid.at(2), [3, 16, 2]);
        let other = GridSpec::PerRow { x: 3, y: 16, per: 1 };
        assert_eq!(other.within(1), other);
    }
}
