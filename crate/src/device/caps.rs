//! Device capabilities and the options that restrict them. Kernel selection depends on these values
//! only.

use super::memory::MeasuredMemory;
use super::registry::Kernel;
use super::tuning_table::{GemvVariant, TuningTable};
use crate::format::layout::WeightLayout;
use serde::Serialize;
use std::cell::{Cell, OnceCell};
use std::rc::Rc;

/// Capabilities of a device.
#[derive(Debug, Clone, Serialize)]
pub struct Caps {
    /// `nvidia`, `apple`, …, as the browser or the driver reports it.
    pub vendor: String,
    /// The GPU generation, or natively the backend.
    pub architecture: String,
    /// Human-readable description.
    pub description: String,
    /// Whether `enable f16` may be used.
    pub f16: bool,
    /// Whether subgroup operations may be used.
    pub subgroups: bool,
    /// Minimum and maximum subgroup size.
    pub subgroup_size: (u32, u32),
    /// Whether timestamp queries are available.
    pub timestamps: bool,
    /// The largest buffer in bytes.
    pub max_buffer_size: u64,
    /// The largest storage binding in bytes.
    pub max_binding_size: u64,
    /// Bytes that a model may take, estimated, where the system ends a page that takes too much.
    /// `None` where allocations are tried: the device refuses what it has no room for.
    pub memory: Option<u64>,
    /// An estimate of the device's memory in browsers, for work that is not tried.
    pub estimated_memory: Option<u64>,
    /// What loads have measured since, or before.
    #[serde(skip)]
    pub measured: Rc<Cell<MeasuredMemory>>,
    /// Bytes of workgroup memory.
    pub max_workgroup_storage: u32,
    /// Maximum threads of a workgroup.
    pub max_invocations: u32,
    /// Whether WGSL offers packed 4×8-bit dot products; they are not faster on every device.
    pub packed_dot: bool,
    /// Subgroup matrix support, where shaders may use it.
    pub matrix: Option<SubgroupMatrix>,
    /// Whether the implementation is WebKit, detected by the user agent because Chrome on a Mac
    /// also reports `apple`. Such a device gets no f16 shaders and at most 16 KiB of workgroup
    /// memory, whatever it reports.
    pub webkit: bool,
    /// Whether it is WebKit on a phone or tablet, where the system kills pages that use much
    /// memory.
    pub ios: bool,
    /// Whether the device is a software renderer, so speed measurements mean nothing.
    pub software: bool,
    /// Whether kernels are those of a GPU on a software renderer too.
    #[serde(skip)]
    pub gpu_kernels: bool,
    /// The browser's user agent; empty natively.
    #[serde(skip)]
    pub agent: String,
    /// Tuning results of this device, set once before the first plan is built.
    #[serde(skip)]
    pub tuned: OnceCell<TuningTable>,
    /// Overrides one tuning constant of a kernel family.
    #[serde(skip)]
    pub force: Option<VariantOverride>,
}

/// Overrides one tuning constant of a kernel family (`choices` in variants.toml): for tuning, and
/// for tests of rarely chosen values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VariantOverride {
    /// The kernel.
    pub kernel: Kernel,
    /// The constant's name.
    pub name: &'static str,
    /// A value that variants.toml declares.
    pub value: u32,
}

impl VariantOverride {
    /// Parses `gemm.BM=32`: a kernel, one of its `choices` and a declared value.
    pub fn from_name(text: &str) -> Option<Self> {
        let (kernel, number) = text.split_once('.')?;
        let (name, value) = number.split_once('=')?;
        let kernel = Kernel::all().find(|k| k.name() == kernel)?;
        let value = value.parse().ok()?;

        let (name, values) =
            super::registry::tunable_constants(kernel).find(|(known, _)| *known == name)?;
        values.contains(&value).then_some(Self {
            kernel,
            name,
            value,
        })
    }
}

/// Subgroup matrices (tensor cores): matmuls of small square matrices that are distributed over the
/// lanes of a subgroup (shaders/common/matrix.wgsl).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SubgroupMatrix {
    /// Rows and columns of a matrix: 8 or 16.
    pub side: u32,
    /// Whether inputs are f16, else f32; accumulation is f32.
    pub half: bool,
    /// Lanes of a subgroup.
    pub lanes: u32,
    /// The WGSL dialect that exposes them.
    pub words: MatrixDialect,
}

/// The WGSL dialect for subgroup matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MatrixDialect {
    /// naga's cooperative matrices.
    Coop,
    /// Chromium's experimental extension, `chromium-experimental-subgroup-matrix`.
    Chromium,
    /// The draft of gpuweb, `subgroup-matrix`.
    Standard,
    /// Emulated with scalar arithmetic, for tests on devices without subgroup matrices.
    Emulated,
}

impl MatrixDialect {
    /// The flag in shaders/variants.toml.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Coop => "COOP",
            Self::Chromium => "CHROMIUM",
            Self::Standard => "STANDARD",
            Self::Emulated => "EMULATED",
        }
    }
}

impl SubgroupMatrix {
    /// Selects the best configuration from `listed` pairs of (matrix size, f16 inputs). `lanes` is
    /// the minimum and maximum subgroup size; `None` if the subgroup size is ambiguous or
    /// unsupported.
    pub fn best(
        listed: &[(u32, bool)],
        lanes: (u32, u32),
        vendor: &str,
        words: MatrixDialect,
    ) -> Option<Self> {
        let lanes = match lanes {
            (least, most) if least == most => most,
            // Metal neither reports nor accepts a size: wgpu and older Chromium report 4 to 64.
            // There, only Apple GPUs have subgroup matrices, all with subgroups of 32, as newer
            // Chromium reports.
            _ if vendor == "apple" => 32,
            _ => return None,
        };
        // f16 needs less bandwidth, and larger matrices use the units better.
        let order = [(16, true), (8, true), (16, false), (8, false)];
        let (side, half) = order.into_iter().find(|wanted| listed.contains(wanted))?;
        [16, 32, 64].contains(&lanes).then_some(Self {
            side,
            half,
            lanes,
            words,
        })
    }
}

impl Default for Caps {
    /// The minimum of every WebGPU device, for plans without a device.
    fn default() -> Self {
        Self {
            vendor: String::new(),
            architecture: String::new(),
            description: String::new(),
            f16: false,
            subgroups: false,
            subgroup_size: (4, 128),
            timestamps: false,
            max_buffer_size: 256 << 20,
            max_binding_size: 128 << 20,
            memory: None,
            estimated_memory: None,
            measured: Rc::default(),
            max_workgroup_storage: 16384,
            max_invocations: 256,
            packed_dot: false,
            matrix: None,
            webkit: false,
            ios: false,
            software: false,
            gpu_kernels: false,
            agent: String::new(),
            tuned: OnceCell::new(),
            force: None,
        }
    }
}

impl Caps {
    /// A tuning constant of a kernel: `own`, unless forced.
    pub fn constant_or_forced(&self, kernel: Kernel, name: &str, own: u32) -> u32 {
        self.force
            .filter(|f| f.kernel == kernel && f.name == name)
            .map_or(own, |f| f.value)
    }

    /// A tuning constant of a kernel as measured on this device, or `own`.
    pub fn constant_or_measured(&self, kernel: Kernel, name: &str, own: u32) -> u32 {
        self.tuned
            .get()
            .and_then(|tuned| tuned.constant(kernel, name))
            .unwrap_or(own)
    }

    /// Whether dispatches are so expensive that plans use fewer, at the price of more work in some.
    /// Measured, or forced (`decode.ALONE=1`).
    pub fn dispatch_is_expensive(&self) -> bool {
        self.constant_or_forced(
            Kernel::AttentionDecode,
            "SINGLE_PASS",
            self.tuned
                .get()
                .is_some_and(|tuned| tuned.expensive_dispatch)
                .into(),
        ) == 1
    }

    /// Whether kernels are those that compile and run fastest without a GPU.
    pub fn software_kernels(&self) -> bool {
        self.software && !self.gpu_kernels
    }

    /// Whether plans also prefer fewer kernels. A browser's software adapter takes longest to
    /// compile. A forced GEMM or attention constant disables this.
    pub fn prefers_fast_compile(&self) -> bool {
        let forced = self
            .force
            .is_some_and(|force| matches!(force.kernel, Kernel::Gemm | Kernel::AttentionDecode));
        self.software_kernels() && cfg!(target_arch = "wasm32") && !forced
    }

    /// The subgroup matrices to use: the device's, or emulated ones where their tiles are forced.
    pub fn subgroup_matrix(&self) -> Option<SubgroupMatrix> {
        let emulated = SubgroupMatrix {
            side: 16,
            half: self.f16,
            lanes: 32,
            words: MatrixDialect::Emulated,
        };
        let forced = self
            .force
            .is_some_and(|force| force.kernel == Kernel::GemmMatrix);
        self.matrix.or_else(|| forced.then_some(emulated))
    }

    /// The measured GEMV variant of a layout, if any.
    pub fn gemv_variant(&self, layout: WeightLayout) -> Option<GemvVariant> {
        self.tuned.get()?.gemv(layout)
    }

    /// Whether packed dot products are faster for a layout: as measured, or by vendor.
    pub fn uses_packed_dot(&self, layout: WeightLayout) -> bool {
        self.packed_dot
            && self.gemv_variant(layout).map_or_else(
                || Self::has_packed_dot(&self.vendor),
                |pick| pick == GemvVariant::PackedBlocks,
            )
    }

    /// Maximum bytes of one weight buffer.
    pub fn max_weight_buffer(&self) -> u64 {
        self.max_buffer_size.min(self.max_binding_size)
    }

    /// Number of workgroups of 64 threads that saturates the device. WebGPU does not report core
    /// counts, so these are values for the larger GPUs of each vendor.
    pub fn target_workgroups(&self) -> u32 {
        match self.vendor.as_str() {
            "nvidia" => 1056,
            "amd" => 512,
            "apple" | "intel" => 160,
            _ => 64,
        }
    }

    /// Whether packed dot products are the device's fastest multiplication: it has an instruction
    /// for them, and no subgroup matrices.
    pub fn multiplies_packed(&self) -> bool {
        self.packed_dot
            && Self::has_packed_dot(&self.vendor)
            && !self.software
            && self.matrix.is_none()
    }

    /// Whether the vendor's GPUs have a 4×8-bit dot product instruction; others emulate it.
    pub fn has_packed_dot(vendor: &str) -> bool {
        matches!(vendor, "nvidia" | "amd" | "intel")
    }
}

/// Options for opening a device.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Use f16 arithmetic where supported.
    pub f16: bool,
    /// Use subgroups where supported.
    pub subgroups: bool,
    /// Use subgroup matrices where supported; needs `f16` and `subgroups`.
    pub matrix: bool,
    /// Limit the buffer size, in bytes; for tests.
    pub max_buffer_size: Option<u64>,
    /// Use only the limits of every WebGPU device, iPads included: 256 MiB buffers, 128 MiB
    /// bindings, 16 KiB of workgroup memory, 256 threads per workgroup.
    pub min_limits: bool,
    /// Skip dispatches whose `program/label` contains this (native only); for tests of error
    /// detection.
    pub omit: Option<&'static str>,
    /// Overrides one tuning constant of a kernel family; for tests.
    pub variant_override: Option<VariantOverride>,
    /// Use a GPU's kernels on a software renderer too; for tests.
    pub gpu_kernels: bool,
    /// A tuning table to use instead of measuring; for tools and tests.
    pub tuned: Option<TuningTable>,
    /// Dispatches per command buffer. The default is `Free`, on WebKit one dispatch, which is
    /// correct everywhere.
    pub submit_grouping: Option<SubmitGrouping>,
    /// `navigator.maxTouchPoints`, which a page knows and a worker does not; it distinguishes an
    /// iPad from a Mac.
    pub touch_points: u32,
}

/// How many dispatches go into one command buffer. All variants except `Free` have at most one
/// command buffer in flight. Older WebKit versions lose writes between dispatches, and on some
/// phones larger command buffers crash the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitGrouping {
    /// All dispatches of a submit, without waiting for earlier submits.
    Free,
    /// This many dispatches.
    Dispatches(u32),
    /// All dispatches of a submit.
    All,
}

impl SubmitGrouping {
    /// Parses `free`, `all` or a number from 1 to 2^20.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "free" => Some(Self::Free),
            "all" => Some(Self::All),
            number => number
                .parse()
                .ok()
                .filter(|n| (1..=1 << 20).contains(n))
                .map(Self::Dispatches),
        }
    }

    /// The group size for js/gpu.js; 0 is `Free`.
    pub fn size(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Dispatches(n) => n,
            Self::All => u32::MAX,
        }
    }
}

impl DeviceOptions {
    /// The minimum limits of every WebGPU device, without optional features.
    pub fn min_limits() -> Self {
        Self {
            f16: false,
            subgroups: false,
            matrix: false,
            min_limits: true,
            ..Self::default()
        }
    }

    /// Applies `max_buffer_size` to a device limit in bytes.
    pub(crate) fn limit_buffer_size(&self, limit: u64) -> u64 {
        self.max_buffer_size.map_or(limit, |most| most.min(limit))
    }

    /// The initial tuning table.
    pub(crate) fn tuning_table(&self) -> OnceCell<TuningTable> {
        self.tuned
            .clone()
            .map_or_else(OnceCell::new, OnceCell::from)
    }
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            f16: true,
            subgroups: true,
            matrix: true,
            max_buffer_size: None,
            min_limits: false,
            omit: None,
            variant_override: None,
            gpu_kernels: false,
            tuned: None,
            submit_grouping: None,
            touch_points: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variant_override_parses_kernel_constant() {
        assert_eq!(
            VariantOverride::from_name("gemm.BM=32"),
            Some(VariantOverride {
                kernel: Kernel::Gemm,
                name: "BM",
                value: 32
            })
        );
        for wrong in [
            "",
            "gemm",
            "gemm.BM",
            "gemm.BM=33",
            "gemm.BITS=4",
            "nothing.BM=32",
            "gemm.BM=x",
        ] {
            assert_eq!(VariantOverride::from_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn best_subgroup_matrix_is_largest_f16() {
        let best = |listed: &[(u32, bool)], lanes, vendor| {
            let units = SubgroupMatrix::best(listed, lanes, vendor, MatrixDialect::Standard)?;
            assert_eq!(units.words, MatrixDialect::Standard);
            Some((units.side, units.half, units.lanes))
        };
        let all = [(8, false), (16, false), (8, true), (16, true)];
        assert_eq!(best(&all, (32, 32), "nvidia"), Some((16, true, 32)));
        assert_eq!(best(&all[..3], (64, 64), ""), Some((8, true, 64)));
        assert_eq!(best(&all[..2], (16, 16), ""), Some((16, false, 16)));
        assert_eq!(best(&all[..1], (32, 32), ""), Some((8, false, 32)));
        for (listed, lanes) in [
            (&[][..], (32, 32)),
            (&[(32, true), (4, true)], (32, 32)),
            (&all, (4, 4)),
            (&all, (128, 128)),
            (&all, (0, 0)),
        ] {
            assert_eq!(
                best(listed, lanes, "nvidia"),
                None,
                "{listed:?} with {lanes:?}"
            );
        }
    }

    #[test]
    fn subgroup_matrix_needs_one_subgroup_size() {
        let lanes = |lanes, vendor| {
            SubgroupMatrix::best(&[(16, true)], lanes, vendor, MatrixDialect::Coop).map(|u| u.lanes)
        };
        for vendor in ["amd", "intel", "nvidia", "qualcomm", ""] {
            assert_eq!(
                (lanes((32, 64), vendor), lanes((64, 64), vendor)),
                (None, Some(64)),
                "{vendor}"
            );
        }
        // Metal: an unknown size and a reported one.
        assert_eq!(
            [lanes((4, 64), "apple"), lanes((32, 32), "apple")],
            [Some(32); 2]
        );
    }
}
