//! Runs a graph of one operation through the planner and compares it with the CPU reference, for
//! all kernels that the planner chooses. Inputs are tables, read by an embedding lookup.

use jerboa::format::layout::{Float, PackedMatrix, WeightLayout};
use jerboa::gpu::{Backend, Caps, Gpu};
use jerboa::ir::{
    Dim, Embed, Graph, GraphBuilder, IdSource, StateId, StepSizes, ValueId, WeightId, WeightKind,
};
use jerboa::kernels::attention::Kv;
use jerboa::kernels::registry::Kernel;
use jerboa::kernels::{GridSpec, Launch};
use jerboa::plan::{
    Plan, PlanOptions, Slot, StatePlan, StepKind, WeightPlans, lower, plan_states, plan_weights,
};
use jerboa_tests::{bytes, floats, run_all};
use std::collections::{BTreeMap, HashMap};

/// Words of the state, as laid out by exec.
const STATE_WORDS: usize = 8;

/// A graph under construction and the values of its weights.
pub struct Case {
    /// Adds nodes.
    pub b: GraphBuilder,
    tensors: HashMap<String, Tensor>,
    /// Token ids; 0, 1, 2, … by default, which makes tables act as inputs.
    pub ids: Vec<u32>,
}

enum Tensor {
    Matrix(PackedMatrix),
    Vector(Vec<f32>),
}

/// Division of a run's rows into steps.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Rows of the step.
    pub rows: usize,
    /// Kind of the plan, and its maximum rows.
    pub mode: StepKind,
}

/// A tiled step.
pub fn many(rows: usize) -> Cut {
    Cut {
        rows,
        mode: StepKind::Prefill(rows + 3),
    }
}

/// A step of a plan for few rows.
pub fn few(rows: usize) -> Cut {
    Cut {
        rows,
        mode: StepKind::Decode(rows),
    }
}

/// Inputs of a run besides the graph.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Element type of caches.
    pub kv: Kv,
    /// Positions of caches.
    pub capacity: usize,
    /// Maximum bytes of a weight's buffer.
    pub max_buffer: u64,
    /// First and end row of each row's segment, which is also the end of its image.
    pub segments: Vec<[u32; 2]>,
    /// The device whose kernels are chosen, if not the device that runs them.
    pub caps: Option<Caps>,
    /// A kernel disabled for steps of one row.
    pub without: Option<Kernel>,
    /// Expected number of launches with f16 activations in a step of many rows; single rows have
    /// none.
    pub halves: Option<usize>,
    /// Flags that variants of batched steps have.
    pub batch_flags: &'static [&'static str],
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            kv: Kv::F32,
            capacity: 256,
            max_buffer: u64::MAX,
            segments: Vec::new(),
            caps: None,
            without: None,
            halves: None,
            batch_flags: &[],
        }
    }
}

impl Setting {
    /// This setting for each of [`tested_caps`].
    pub fn for_devices(self, gpu: &Gpu) -> impl Iterator<Item = Self> {
        tested_caps(gpu).into_iter().map(move |caps| Self {
            caps: Some(caps),
            ..self.clone()
        })
    }
}

/// Capabilities that kernels are tested with: those of this device and, if it is a software
/// adapter, those with a GPU's tilings.
pub fn tested_caps(gpu: &Gpu) -> Vec<Caps> {
    let own = gpu.caps().clone();
    let as_gpu = own.software_kernels().then(|| Caps {
        software: false,
        ..own.clone()
    });
    std::iter::once(own).chain(as_gpu).collect()
}

/// The largest error; NaN if any is.
pub fn worst(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(0.0, |worst, error| {
        if error.is_nan() || error > worst {
            error
        } else {
            worst
        }
    })
}

impl Case {
    /// An empty graph.
    pub fn new() -> Self {
        Self {
            b: GraphBuilder::new("test"),
            tensors: HashMap::new(),
            ids: Vec::new(),
        }
    }

    /// An input with this many columns, row by row.
    pub fn input(&mut self, values: &[f32], cols: usize) -> ValueId {
        let rows = values.len() / cols;
        let mut packed = PackedMatrix::zeros(WeightLayout::Dense(Float::F32), rows, cols);
        for (i, value) in values.iter().enumerate() {
            packed.set_dense(i / cols, i % cols, *value);
        }
        let table = self.table(packed);
        if self.ids.len() < rows {
            self.ids = (0..rows as u32).collect();
        }
        self.b.node(
            "input",
            Embed {
                table,
                scale: 1.0,
                ids: IdSource::Tokens,
                soft: None,
            },
            &[],
            cols,
        )
    }

    /// A table or matrix.
    pub fn table(&mut self, packed: PackedMatrix) -> WeightId {
        let name = format!("weight {}", self.tensors.len());
        let id = self
            .b
            .weight(&name, packed.rows, packed.cols, WeightKind::Table);
        self.tensors.insert(name, Tensor::Matrix(packed));
        id
    }

    /// A vector.
    pub fn vector(&mut self, values: &[f32]) -> WeightId {
        let name = format!("weight {}", self.tensors.len());
        let id = self.b.vector(&name, values.len());
        self.tensors.insert(name, Tensor::Vector(values.to_vec()));
        id
    }

    /// Computes `out` in steps of rows; returns the rows of all steps, or each step's last row if
    /// the graph keeps only that.
    pub fn run(self, gpu: &Gpu, out: ValueId, setting: &Setting, cuts: &[Cut]) -> Vec<f32> {
        let Self { b, tensors, ids } = self;
        let graph = b.finish(out, None).expect("a graph");
        let layout_of = |name: &str| match tensors.get(name) {
            Some(Tensor::Matrix(packed)) => packed.layout,
            _ => WeightLayout::Dense(Float::F32),
        };
        let weights =
            plan_weights(&graph, &layout_of, setting.max_buffer).expect("storage of the weights");
        let chunk = cuts.iter().map(|cut| cut.rows).max().unwrap_or(1);
        let states = plan_states(&graph, setting.kv, setting.capacity, chunk);
        let mut buffers = own_buffers(&graph, &weights, &tensors, setting, &states);
        let mut found = Vec::new();
        let mut pos = 0;

        for cut in cuts {
            let kv = setting.kv;
            let capacity = setting.capacity;

            let caps = setting.caps.as_ref().unwrap_or(gpu.caps());
            let options = PlanOptions {
                rows: cut.mode,
                caps,
                weights: &weights,
                kv,
                capacity,
                states: &states,
                fuse_heads: true,
                fuse_norms: true,
                quantize_inputs: Default::default(),
            };
            let plan = lower(&graph, options).expect("a plan");
            let unwanted = plan
                .launches
                .iter()
                .find(|launch| Some(launch.variant.kernel) == setting.without);
            assert!(cut.rows > 1 || unwanted.is_none(), "{unwanted:?}");
            let halves = plan
                .launches
                .iter()
                .filter(|launch| launch.variant.flags.contains("F16_IO"))
                .count();
            assert!(
                setting
                    .halves
                    .is_none_or(|most| halves == if cut.rows > 1 { most } else { 0 }),
                "{halves}\n{plan}"
            );
            for flag in setting.batch_flags {
                let mut variants = plan.launches.iter().map(|launch| &launch.variant);
                let found = variants.any(|variant| variant.flags.contains(flag));
                assert_eq!(found, cut.mode.is_batch(), "{flag}\n{plan}");
            }
            let mut state = [0u32; STATE_WORDS];
            (state[0], state[1]) = (pos as u32, cut.rows as u32);
            buffers.insert(Slot::CURSOR, bytes(&state));
            let most = cut.mode.tokens();
            let mut step_ids = ids[pos..pos + cut.rows].to_vec();
            step_ids.resize(most, 0);
            buffers.insert(Slot::Ids, bytes(&step_ids));
            let strings = pack(&setting.segments, &mut buffers);
            let ends: Vec<u32> = setting.segments.iter().skip(pos).map(|s| s[1]).collect();
            buffers.insert(Slot::VisibleEnds, bytes(&ends));
            let counts = StepSizes {
                rows: cut.rows,
                sequences: strings,
            };
            for dim in graph
                .values
                .iter()
                .map(|v| v.rows)
                .filter(|dim| matches!(dim, Dim::Rows(_)))
            {
                state[1] = dim.eval(counts) as u32;
                buffers.insert(Slot::Cursor(dim), bytes(&state));
            }
            let rows = graph.value(graph.root(out).0).rows.eval(counts);
            found.extend(step(gpu, &plan, &mut buffers, counts, rows));
            pos += cut.rows;
        }
        found
    }
}

/// Weights, RoPE tables, and caches with stale values.
fn own_buffers(
    graph: &Graph,
    weights: &WeightPlans,
    tensors: &HashMap<String, Tensor>,
    setting: &Setting,
    states: &[StatePlan],
) -> BTreeMap<Slot, Vec<u8>> {
    let mut buffers = BTreeMap::new();
    for (id, plan) in weights {
        let parts: Vec<&Tensor> = graph
            .weight(*id)
            .parts
            .iter()
            .map(|p| &tensors[&p.0])
            .collect();
        match parts[0] {
            Tensor::Vector(_) => {
                let all: Vec<f32> = parts
                    .iter()
                    .flat_map(|t| {
                        if let Tensor::Vector(v) = t {
                            v.clone()
                        } else {
                            vec![]
                        }
                    })
                    .collect();
                buffers.insert(Slot::Vector(*id), bytes(&all));
            }
            Tensor::Matrix(packed) => {
                let words = [
                    packed.layout.row_words(packed.cols),
                    packed.layout.row_param_words(packed.cols),
                ];
                for (index, run) in plan.shards.iter().enumerate() {
                    let plane = |p: usize| {
                        let whole = run.len() == packed.rows;
                        let from = run.start * words[p];
                        let to = run.end * words[p];

                        bytes(if whole {
                            &packed.planes[p]
                        } else {
                            &packed.planes[p][from..to]
                        })
                    };
                    buffers.insert(Slot::WeightQ(*id, index), plane(0));
                    buffers.insert(Slot::WeightS(*id, index), plane(1));
                }
            }
        }
    }
    for (index, spec) in graph.ropes.iter().enumerate() {
        buffers.insert(
            Slot::Rope(index),
            bytes(&spec.table(0, setting.capacity, 0)),
        );
    }
    for (index, state) in states.iter().enumerate() {
        for (plane, size) in state.planes.iter().enumerate() {
            // 1124 as f16 and 4e21 as f32: stale values of an earlier conversation must not be
            // read.
            let stale = bytes(&vec![0x6464_6464u32; *size as usize / 4]);
            buffers.insert(Slot::State(StateId(index), plane as u8), stale);
        }
    }
    buffers
}

/// Inputs of a packed step besides its ids, from the first and end row of each row's sequence;
/// returns also the number of sequences.
fn pack(segments: &[[u32; 2]], buffers: &mut BTreeMap<Slot, Vec<u8>>) -> usize {
    let positions: Vec<u32> = segments
        .iter()
        .enumerate()
        .map(|(row, s)| row as u32 - s[0])
        .collect();
    let mut spans = segments.to_vec();
    spans.dedup();
    let mut state = [0u32; STATE_WORDS];
    state[1] = spans.len() as u32;
    buffers.insert(Slot::SequenceSpans, bytes(segments));
    buffers.insert(Slot::Positions, bytes(&positions));
    buffers.insert(Slot::PoolSpans, bytes(&spans));
    buffers.insert(Slot::Cursor(Dim::Sequences), bytes(&state));
    spans.len()
}

/// Runs a plan for this many tokens and sequences; returns `out_rows` of its output without padding
/// between rows.
fn step(
    gpu: &Gpu,
    plan: &Plan,
    buffers: &mut BTreeMap<Slot, Vec<u8>>,
    counts: StepSizes,
    out_rows: usize,
) -> Vec<f32> {
    for (index, size) in plan.activations.iter().enumerate() {
        buffers.insert(Slot::Activation(index), poison(*size));
    }
    for (slot, size) in std::iter::once((Slot::Output, plan.output)).chain(plan.scratch()) {
        buffers.insert(slot, poison(size));
    }
    let slots: Vec<Slot> = buffers.keys().copied().collect();
    let number = |slot: &Slot| {
        slots
            .iter()
            .position(|s| s == slot)
            .unwrap_or_else(|| panic!("no buffer for {slot:?}"))
    };

    let launches: Vec<Launch<usize>> = plan
        .launches
        .iter()
        .map(|launch: &Launch<Slot>| Launch {
            label: launch.label.clone(),
            variant: launch.variant.clone(),
            binds: launch
                .binds
                .iter()
                .map(|(name, slot)| (*name, number(slot)))
                .collect(),
            params: launch.params.clone(),
            grid: GridSpec::Exact(launch.grid.at(launch.dim.eval(counts) as u32)),
            dim: launch.dim,
        })
        .collect();
    let given: Vec<Vec<u8>> = buffers.values().cloned().collect();
    let left = run_all(gpu, &launches, counts.rows as u32, &given);
    for (slot, bytes) in slots.iter().zip(left) {
        buffers.insert(*slot, bytes);
    }
    let output = floats(&buffers[&Slot::Output]);
    let stride = plan.output_cols.next_multiple_of(4);
    output
        .chunks_exact(stride)
        .take(out_rows)
        .flat_map(|row| row[..plan.output_cols].to_vec())
        .collect()
}

/// Fills unwritten memory with NaN, so that reads of it are detected.
fn poison(size: u64) -> Vec<u8> {
    bytes(&vec![f32::NAN; size as usize / 4])
}
