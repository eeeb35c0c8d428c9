//! Runs the graphs of a model on given inputs, with a file's weights in memory.

use half::{bf16, f16};
use jerboa::format::layout::{Float, PackedMatrix, WeightLayout};
use jerboa::gpu::Backend;
use jerboa::ir::{Dim, Graph, InputId, StateId, StepSizes, WeightKind};
use jerboa::kernels::attention::Kv;
use jerboa::kernels::{GridSpec, Launch};
use jerboa::plan::{Fusions, PlanOptions, Slot, StepKind, fuse, lower, plan_states, plan_weights};
use jerboa_tests::{bytes, floats, gpu, run_all};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Tensors by name, as f32.
pub type Tensors = HashMap<String, Vec<f32>>;

/// Reads a checkpoint and folds weight norms into their weights.
pub fn tensors(path: &Path) -> Tensors {
    let file = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut all = Tensors::new();
    for (name, view) in SafeTensors::deserialize(&file)
        .expect("a safetensors file")
        .tensors()
    {
        let halves = || {
            view.data()
                .chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]))
        };
        let values = match view.dtype() {
            Dtype::F32 => floats(view.data()),
            Dtype::F16 => halves().map(|h| f16::from_bits(h).to_f32()).collect(),
            Dtype::BF16 => halves().map(|h| bf16::from_bits(h).to_f32()).collect(),
            Dtype::I32 => bytemuck::pod_collect_to_vec::<u8, i32>(view.data())
                .iter()
                .map(|v| *v as f32)
                .collect(),
            other => panic!("{name}: {other:?}"),
        };
        all.insert(name, values);
    }
    let normed = all
        .keys()
        .filter_map(|n| n.strip_suffix(".parametrizations.weight.original0"))
        .map(String::from);
    for name in normed.collect::<Vec<_>>() {
        let part = |which: &str| &all[&format!("{name}.parametrizations.weight.{which}")];
        let g = part("original0");
        let v = part("original1");

        let rows = v.chunks_exact(v.len() / g.len()).zip(g);
        let weight = rows.flat_map(|(row, g)| {
            let norm = row
                .iter()
                .map(|x| f64::from(*x).powi(2))
                .sum::<f64>()
                .sqrt();
            row.iter()
                .map(|x| (f64::from(*x) * f64::from(*g) / norm) as f32)
                .collect::<Vec<f32>>()
        });
        let weight = weight.collect();
        all.insert(format!("{name}.weight"), weight);
    }
    all
}

/// Inputs of a run besides the weights.
#[derive(Default)]
pub struct Given<'a> {
    /// Rows of the step.
    pub rows: usize,
    /// Inputs by name, each `[rows, cols]`.
    pub inputs: Vec<(&'a str, &'a [f32])>,
    /// Tokens of a decoder.
    pub ids: Vec<u32>,
    /// Rows of the sequence that a decoder attends to.
    pub memory: usize,
}

/// Output rows of a graph: all logits if it has them, else the last value.
pub fn run(graph: &Graph, all: &Tensors, given: &Given<'_>) -> Vec<f32> {
    let float = |_: &str| WeightLayout::Dense(Float::F32);
    let graph = fuse::common(fuse::all_rows(graph.clone()), Fusions::ALL, &float);
    let weights = plan_weights(&graph, &float, u64::MAX).expect("storage of the weights");
    let states = plan_states(&graph, Kv::F32, given.rows.max(64), given.rows);
    let options = PlanOptions {
        rows: StepKind::Prefill(given.rows),
        caps: gpu().caps(),
        weights: &weights,
        kv: Kv::F32,
        capacity: given.rows.max(64),
        states: &states,
        fuse_heads: true,
        fuse_norms: true,
        quantize_inputs: Default::default(),
    };
    let plan = lower(&graph, options).expect("a plan");
    let mut buffers: BTreeMap<Slot, Vec<u8>> = BTreeMap::new();
    for (id, stored) in &weights {
        let weight = graph.weight(*id);
        let found = weight.parts.iter().flat_map(|p| {
            all.get(&p.0)
                .unwrap_or_else(|| panic!("no {}", p.0))
                .clone()
        });
        let values: Vec<f32> = found.collect();
        assert_eq!(
            values.len(),
            weight.rows() * weight.cols,
            "{:?}",
            weight.parts
        );
        if stored.kind == WeightKind::Vector {
            buffers.insert(Slot::Vector(*id), bytes(&values));
            continue;
        }
        let mut packed = PackedMatrix::zeros(stored.layout, stored.rows, stored.cols);
        for (i, value) in values.iter().enumerate() {
            packed.set_dense(i / stored.cols, i % stored.cols, *value);
        }
        buffers.insert(Slot::WeightQ(*id, 0), bytes(&packed.planes[0]));
    }
    let capacity = given.rows.max(64);
    for (index, spec) in graph.ropes.iter().enumerate() {
        let most = plan
            .launches
            .iter()
            .map(|l| l.dim.eval(StepSizes::rows(given.rows)))
            .max()
            .unwrap_or(1)
            .max(capacity);
        buffers.insert(Slot::Rope(index), bytes(&spec.table(0, most, 0)));
    }
    for (index, state) in states.iter().enumerate() {
        for (plane, size) in state.planes.iter().enumerate() {
            buffers.insert(
                Slot::State(StateId(index), plane as u8),
                vec![0x64; *size as usize],
            );
        }
    }
    for (index, input) in graph.inputs.iter().enumerate() {
        let found = given.inputs.iter().find(|(name, _)| *name == input.name);
        let (_, values) = found.unwrap_or_else(|| panic!("no input {}", input.name));
        let stride = input.cols.next_multiple_of(4);
        let mut padded = vec![f32::NAN; values.len() / input.cols * stride];
        for (row, from) in padded
            .chunks_exact_mut(stride)
            .zip(values.chunks_exact(input.cols))
        {
            row[..input.cols].copy_from_slice(from);
        }
        buffers.insert(Slot::Input(InputId(index)), bytes(&padded));
    }
    let counts = StepSizes::rows(given.rows);
    let out = graph
        .value(graph.root(graph.logits.unwrap_or(graph.hidden)).0)
        .rows
        .eval(counts);
    let seen = graph
        .nodes
        .iter()
        .map(|n| graph.value(n.output).rows.eval(counts))
        .max()
        .unwrap_or(1);
    let cursor = |rows: usize| bytes(&[0, rows as u32, 0, 0, 0, 0, 0, 0]);
    for dim in graph
        .values
        .iter()
        .map(|v| v.rows)
        .filter(|d| *d != Dim::Last)
    {
        buffers.insert(Slot::Cursor(dim), cursor(dim.eval(counts)));
    }
    buffers.insert(Slot::CURSOR, cursor(given.rows));
    buffers.insert(Slot::Ids, bytes(&given.ids));
    // Encoders attend to all of their own rows, the rows of their last value.
    buffers.insert(Slot::SequenceSpans, bytes(&vec![[0, out as u32]; seen]));
    buffers.insert(
        Slot::Positions,
        bytes(&(0..seen as u32).collect::<Vec<u32>>()),
    );
    buffers.insert(
        Slot::CrossSpans,
        bytes(&vec![[0, given.memory as u32]; seen]),
    );
    let poison = |size: u64| bytes(&vec![f32::NAN; size as usize / 4]);
    for (index, size) in plan.activations.iter().enumerate() {
        buffers.insert(Slot::Activation(index), poison(*size));
    }
    for (slot, size) in std::iter::once((Slot::Output, plan.output)).chain(plan.scratch()) {
        buffers.insert(slot, poison(size.max(16)));
    }
    buffers.retain(|_, b| !b.is_empty());
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
    let given_bytes: Vec<Vec<u8>> = buffers.values().cloned().collect();
    let left = run_all(gpu(), &launches, given.rows as u32, &given_bytes);
    let output = floats(&left[number(&Slot::Output)]);
    let stride = plan.output_cols.next_multiple_of(4);
    output
        .chunks_exact(stride)
        .take(out)
        .flat_map(|row| row[..plan.output_cols].to_vec())
        .collect()
}
