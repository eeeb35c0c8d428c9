//! What a device can do, and how a caller restricts it. Kernels choose their variants by these facts alone.

use super::registry::Kernel;
use super::tuned::{GemvPick, Tuned};
use crate::format::layout::Layout;
use serde::Serialize;
use std::cell::OnceCell;

/// The facts that decisions depend on.
#[derive(Debug, Clone, Serialize)]
pub struct Caps {
    /// `nvidia`, `apple`, …, as the browser says it, or the driver's name.
    pub vendor: String,
    /// The GPU's generation, or the backend.
    pub architecture: String,
    /// A sentence for people.
    pub description: String,
    /// Whether `enable f16` may be used.
    pub f16: bool,
    /// Whether subgroup operations may be used.
    pub subgroups: bool,
    /// The smallest and largest subgroup.
    pub subgroup_size: (u32, u32),
    /// Whether passes can be timed.
    pub timestamps: bool,
    /// The largest buffer in bytes.
    pub max_buffer_size: u64,
    /// The largest storage binding in bytes.
    pub max_binding_size: u64,
    /// Bytes of memory that a model may take, as far as anyone tells: a guess in a browser, nothing natively.
    pub memory: Option<u64>,
    /// Bytes of workgroup memory.
    pub max_workgroup_storage: u32,
    /// Threads of a workgroup.
    pub max_invocations: u32,
    /// Whether WGSL has products of four packed bytes; whether they pay is another question.
    pub packed_dot: bool,
    /// The units that multiply whole matrices, where shaders may use them.
    pub matrix: Option<MatrixUnits>,
    /// Whether it is WebKit's implementation; known by the user agent, since Chrome on a Mac says `apple` too. Such a device
    /// has no f16 in shaders, whatever it says, and no more workgroup memory than 16 KiB.
    pub webkit: bool,
    /// Whether it is WebKit's on a phone or a tablet, where the system ends pages that take much memory.
    pub ios: bool,
    /// Whether the device is a software renderer, whose speed says nothing.
    pub software: bool,
    /// What drives the device where that is a browser: its user agent.
    #[serde(skip)]
    pub agent: String,
    /// What was measured on this device, set once before the first plan is made.
    #[serde(skip)]
    pub tuned: OnceCell<Tuned>,
    /// A number that kernels take instead of their own choice.
    #[serde(skip)]
    pub force: Option<Force>,
}

/// A number that a kernel family chooses (`choices` in variants.toml), set for it: for tuning, and for tests, so that what is
/// seldom chosen is tested like the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Force {
    /// The kernel.
    pub kernel: Kernel,
    /// The number's name.
    pub name: &'static str,
    /// Its value, one that variants.toml declares.
    pub value: u32,
}

impl Force {
    /// By its name in options: `gemm.BM=32`, as variants.toml names kernels and their choices.
    pub fn from_name(text: &str) -> Option<Self> {
        let (kernel, number) = text.split_once('.')?;
        let (name, value) = number.split_once('=')?;
        let (kernel, value) = (Kernel::all().find(|k| k.name() == kernel)?, value.parse().ok()?);
        let (name, values) = super::registry::choices(kernel).find(|(known, _)| *known == name)?;
        values.contains(&value).then_some(Self { kernel, name, value })
    }
}

/// Units that multiply whole matrices, which the lanes of a subgroup hold together (shaders/common/matrix.wgsl).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MatrixUnits {
    /// Rows and columns of what is multiplied at once: 8 or 16.
    pub side: u32,
    /// Whether the factors are halves, else floats; sums are floats.
    pub half: bool,
    /// Lanes of a subgroup.
    pub lanes: u32,
    /// The words that shaders have for them.
    pub words: MatrixWords,
}

/// Whose words a shader uses for matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MatrixWords {
    /// naga's cooperative matrices.
    Coop,
    /// Chromium's experiment, `chromium-experimental-subgroup-matrix`.
    Chromium,
    /// gpuweb's draft, `subgroup-matrix`.
    Standard,
    /// None: plain arithmetic, for tests on devices without such units.
    Spelled,
}

impl MatrixWords {
    /// The condition of shaders/variants.toml.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Coop => "COOP",
            Self::Chromium => "CHROMIUM",
            Self::Standard => "STANDARD",
            Self::Spelled => "SPELLED",
        }
    }
}

impl MatrixUnits {
    /// The best of those that an adapter lists, each the sides of a square product and whether its factors are halves; none
    /// where it is not known how many lanes hold a matrix: `lanes` are the least and the most of a kernel's subgroups.
    pub fn best(listed: &[(u32, bool)], lanes: (u32, u32), vendor: &str, words: MatrixWords) -> Option<Self> {
        let lanes = match lanes {
            (least, most) if least == most => most,
            // Metal neither tells nor takes a size: wgpu says 4 to 64 there, as older Chromiums do. Only Apple's own GPUs have such
            // units there, all with subgroups of 32, which newer Chromiums say.
            _ if vendor == "apple" => 32,
            _ => return None,
        };
        // Halves move less, and larger squares keep the units busier.
        let order = [(16, true), (8, true), (16, false), (8, false)];
        let (side, half) = order.into_iter().find(|wanted| listed.contains(wanted))?;
        [16, 32, 64].contains(&lanes).then_some(Self { side, half, lanes, words })
    }
}

impl Default for Caps {
    /// What every WebGPU device has and no more: where plans are made without a device.
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
            max_workgroup_storage: 16384,
            max_invocations: 256,
            packed_dot: false,
            matrix: None,
            webkit: false,
            ios: false,
            software: false,
            agent: String::new(),
            tuned: OnceCell::new(),
            force: None,
        }
    }
}

impl Caps {
    /// A number of a kernel: the family's own choice unless another one is forced.
    pub fn choose(&self, kernel: Kernel, name: &str, own: u32) -> u32 {
        self.force.filter(|f| f.kernel == kernel && f.name == name).map_or(own, |f| f.value)
    }

    /// A number of a kernel as it was measured on this device, else the family's own.
    pub fn measured(&self, kernel: Kernel, name: &str, own: u32) -> u32 {
        self.tuned.get().and_then(|tuned| tuned.number(kernel, name)).unwrap_or(own)
    }

    /// Whether a dispatch costs so much that plans take fewer, at the price of more work in some: as it was measured, or forced
    /// (`decode.ALONE=1`).
    pub fn dear_dispatches(&self) -> bool {
        self.choose(Kernel::Decode, "ALONE", self.tuned.get().is_some_and(|tuned| tuned.dear).into()) == 1
    }

    /// Whether plans take what is compiled and run soonest without a GPU: on a page's software adapter the texts of tiles take
    /// seconds to compile, and a workgroup that has nothing to do takes as long as one that has. Where a number of products'
    /// or attention's is forced, plans are those of other devices.
    pub fn frugal(&self) -> bool {
        let forced = self.force.is_some_and(|force| matches!(force.kernel, Kernel::Gemm | Kernel::Decode));
        self.software && cfg!(target_arch = "wasm32") && !forced
    }

    /// The matrix units to use: the device's, or where there are none and their tiles are forced, plain
    /// arithmetic.
    pub fn matrix_units(&self) -> Option<MatrixUnits> {
        let spelled = MatrixUnits { side: 16, half: self.f16, lanes: 32, words: MatrixWords::Spelled };
        let forced = self.force.is_some_and(|force| force.kernel == Kernel::GemmMatrix);
        self.matrix.or_else(|| forced.then_some(spelled))
    }

    /// How a product of one row goes through a layout's weights, where that was measured.
    pub fn tuned(&self, layout: Layout) -> Option<GemvPick> {
        self.tuned.get()?.gemv(layout)
    }

    /// Whether products of packed bytes pay with a layout: as it was measured, else as the vendor's devices are known.
    pub fn packs(&self, layout: Layout) -> bool {
        let known = || Self::has_packed_dot(&self.vendor);
        self.packed_dot && self.tuned(layout).map_or_else(known, |pick| pick == GemvPick::PackedBlocks)
    }

    /// The largest number of bytes one buffer of weights may have.
    pub fn max_weight_buffer(&self) -> u64 {
        self.max_buffer_size.min(self.max_binding_size)
    }

    /// Workgroups of 64 threads that keep the device busy. WebGPU does not tell how many cores there are: this is what
    /// the vendors' larger devices want.
    pub fn full_load(&self) -> u32 {
        match self.vendor.as_str() {
            "nvidia" => 1056,
            "amd" => 512,
            "apple" | "intel" => 160,
            _ => 64,
        }
    }

    /// Whether devices of a vendor multiply four bytes in one instruction; elsewhere it is made of many.
    pub fn has_packed_dot(vendor: &str) -> bool {
        matches!(vendor, "nvidia" | "amd" | "intel")
    }
}

/// What a caller asks of the device.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Use f16 arithmetic where the device has it.
    pub f16: bool,
    /// Use subgroups where the device has them.
    pub subgroups: bool,
    /// Use matrix units where the device has them and shaders may use f16 and subgroups.
    pub matrix: bool,
    /// Pretend that no buffer may be larger, in bytes; for tests.
    pub max_buffer_size: Option<u64>,
    /// Take no more than what every WebGPU device has, an iPad among them: buffers of 256 MiB, bindings of 128 MiB, 16 KiB of workgroup
    /// memory, workgroups of 256.
    pub least: bool,
    /// Leave dispatches out that have this in `program/label`, natively; for tests of what notices it.
    pub omit: Option<&'static str>,
    /// A number that kernels take instead of their own choice; for tests.
    pub force: Option<Force>,
    /// What takes the place of measuring; for tools and tests.
    pub tuned: Option<Tuned>,
    /// How work is handed over; by default as it comes, but on WebKit one dispatch at a time, which is right everywhere.
    pub group: Option<Group>,
    /// How many fingers the screen feels, which a page knows and a worker does not; it tells an iPad from a Mac.
    pub touch_points: u32,
}

/// How many dispatches go into one command buffer. All but `Free` have one command buffer in flight at the most: older
/// WebKits lose what a dispatch wrote to the ones behind it, and on some phones larger ones end the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// All of a submit, and the next submits behind it.
    Free,
    /// So many.
    Of(u32),
    /// All of a submit.
    All,
}

impl Group {
    /// By its name in options: `free`, `all` or a number.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "free" => Some(Self::Free),
            "all" => Some(Self::All),
            number => number.parse().ok().filter(|n| (1..=1 << 20).contains(n)).map(Self::Of),
        }
    }

    /// The number of dispatches for js/gpu.js: 0 is `Free`.
    pub fn size(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Of(n) => n,
            Self::All => u32::MAX,
        }
    }
}

impl DeviceOptions {
    /// What every WebGPU device has, and no feature beside.
    pub fn least() -> Self {
        Self { f16: false, subgroups: false, matrix: false, least: true, ..Self::default() }
    }

    /// The bytes of a buffer that a device with this limit may have.
    pub(crate) fn cap(&self, limit: u64) -> u64 {
        self.max_buffer_size.map_or(limit, |most| most.min(limit))
    }

    /// The table that a device begins with.
    pub(crate) fn table(&self) -> OnceCell<Tuned> {
        self.tuned.clone().map_or_else(OnceCell::new, OnceCell::from)
    }
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            f16: true,
            subgroups: true,
            matrix: true,
            max_buffer_size: None,
            least: false,
            omit: None,
            force: None,
            tuned: None,
            group: None,
            touch_points: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_forced_by_its_name() {
        assert_eq!(Force::from_name("gemm.BM=32"), Some(Force { kernel: Kernel::Gemm, name: "BM", value: 32 }));
        for wrong in ["", "gemm", "gemm.BM", "gemm.BM=33", "gemm.BITS=4", "nothing.BM=32", "gemm.BM=x"] {
            assert_eq!(Force::from_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_best_units_are_the_largest_squares_of_halves() {
        let best = |listed: &[(u32, bool)], lanes, vendor| {
            let units = MatrixUnits::best(listed, lanes, vendor, MatrixWords::Standard)?;
            assert_eq!(units.words, MatrixWords::Standard);
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
            assert_eq!(best(listed, lanes, "nvidia"), None, "{listed:?} with {lanes:?}");
        }
    }

    #[test]
    fn units_want_one_number_of_lanes() {
        let lanes = |lanes, vendor| MatrixUnits::best(&[(16, true)], lanes, vendor, MatrixWords::Coop).map(|u| u.lanes);
        for vendor in ["amd", "intel", "nvidia", "qualcomm", ""] {
            assert_eq!((lanes((32, 64), vendor), lanes((64, 64), vendor)), (None, Some(64)), "{vendor}");
        }
        // Where nobody tells, and what does.
        assert_eq!([lanes((4, 64), "apple"), lanes((32, 32), "apple")], [Some(32); 2]);
    }
}
