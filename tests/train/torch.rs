//! Gradients and updates of single operations against PyTorch's (tests/golden/scripts/make_train.py).

use crate::{assert_close, run, unwritten, wide};
use jerboa::format::layout::{Float, PackedMatrix, WeightLayout};
use jerboa::ir::{Activation, RopeSpec};
use jerboa::kernels::matmul::WeightPlanes;
use jerboa_tests::bytes;
use jerboa_tests::golden::{Golden, golden};
use jerboa_train::kernels::attention::{AttentionShape, QueryKeyValue};
use jerboa_train::kernels::elementwise::{Function, elementwise};
use jerboa_train::kernels::loss::{self, IGNORED};
use jerboa_train::kernels::matmul::{WeightRows, linear, linear_input, linear_weight};
use jerboa_train::kernels::norm::{NormShape, column_sums};
use jerboa_train::kernels::rope::RopeShape;
use jerboa_train::kernels::short_conv::ShortConvShape;
use jerboa_train::kernels::update::Optimizer;
use jerboa_train::kernels::{contiguous, embed};

/// One operation of a golden file.
pub(super) struct Case {
    file: Golden,
    name: &'static str,
}

impl Case {
    pub(super) fn new(name: &'static str) -> Self {
        Self::of("ops", name)
    }

    /// A case of another file.
    pub(super) fn of(file: &str, name: &'static str) -> Self {
        let file = Golden::read(&golden(&format!("train/{file}.safetensors")));
        Self { file, name }
    }

    pub(super) fn floats(&self, key: &str) -> Vec<f32> {
        self.file.floats(&format!("{}.{key}", self.name))
    }

    pub(super) fn shape(&self, key: &str) -> Vec<usize> {
        self.file.shape(&format!("{}.{key}", self.name))
    }

    fn ints(&self, key: &str) -> Vec<u32> {
        let ints = self.file.ints(&format!("{}.{key}", self.name));
        ints.into_iter().map(|v| v as u32).collect()
    }

    #[track_caller]
    pub(super) fn check(&self, key: &str, found: &[f32]) {
        assert_close(
            &format!("{}.{key}", self.name),
            found,
            &wide(&self.floats(key)),
        );
    }
}

pub(super) fn zeros(count: usize) -> Vec<u8> {
    bytes(&vec![0.0f32; count])
}

#[test]
fn linear_layers() {
    let case = Case::new("linear");
    let [m, k] = case.shape("x")[..] else {
        panic!("a matrix");
    };
    let n = case.shape("w")[0];
    let mut w = PackedMatrix::zeros(WeightLayout::Dense(Float::F32), n, k);
    for (i, value) in case.floats("w").into_iter().enumerate() {
        w.set_dense(i / k, i % k, value);
    }
    let weight = WeightRows {
        planes: WeightPlanes {
            layout: w.layout,
            rows: n as u32,
            cols: k as u32,
            q: 0,
            s: None,
        },
        first: 0,
        count: n,
    };
    let contents = [
        bytes(&w.planes[0]),
        bytes(&case.floats("x")),
        bytes(&case.floats("b")),
        bytes(&case.floats("dy")),
        unwritten(m * n),
        unwritten(m * k),
        zeros(n * k),
        zeros(n),
    ];
    let [x, dy] = [contiguous(1, k), contiguous(3, n)];
    let launches = [
        linear(&weight, m, 1.0, &x, Some(2), &contiguous(4, n)),
        linear_input(&weight, m, 1.0, &dy, &contiguous(5, k), false),
        linear_weight([m, n, k], 1.0, &dy, &x, &contiguous(6, k)),
        column_sums([m, 1, n], &dy, 7, 0),
    ];
    let found = run(&launches, &contents);
    for (key, buffer) in [("y", 4), ("dx", 5), ("dw", 6), ("db", 7)] {
        case.check(key, &found[buffer]);
    }
}

#[test]
fn norms() {
    for (name, layer, offset) in [
        ("rms", false, 0.0),
        ("rms_offset", false, 1.0),
        ("layer", true, 0.0),
    ] {
        let case = Case::new(name);
        let [rows, cols] = case.shape("x")[..] else {
            panic!("a matrix");
        };
        let shape = NormShape {
            rows,
            groups: 1,
            cols,
            layer,
            gain: Some((2, 0)),
            bias: layer.then_some(3),
            offset,
            eps: 1e-5,
            stats: 4,
        };
        let contents = [
            bytes(&case.floats("x")),
            bytes(&case.floats("dy")),
            bytes(&case.floats("gain")),
            if layer {
                bytes(&case.floats("bias"))
            } else {
                zeros(1)
            },
            unwritten(rows * 2),
            unwritten(rows * cols),
            unwritten(rows * cols),
            zeros(cols),
            zeros(cols),
        ];
        let [x, dy] = [contiguous(0, cols), contiguous(1, cols)];
        let launches = [
            shape.forward(&x, &contiguous(5, cols)),
            shape.input(&x, &dy, &contiguous(6, cols), false),
            shape.gain(&x, &dy, 7, 0),
            column_sums([rows, 1, cols], &dy, 8, 0),
        ];
        let found = run(&launches, &contents);
        case.check("y", &found[5]);
        case.check("dx", &found[6]);
        case.check("dgain", &found[7]);
        if layer {
            case.check("dbias", &found[8]);
        }
    }
}

#[test]
fn activations_and_gates() {
    for (name, gate, act) in [
        ("Silu", "Silu.gate", Activation::Silu),
        ("GeluTanh", "GeluTanh.gate", Activation::GeluTanh),
        ("Gelu", "Gelu.gate", Activation::Gelu),
        ("Relu", "Relu.gate", Activation::Relu),
        ("Sigmoid", "Sigmoid.gate", Activation::Sigmoid),
        ("Tanh", "Tanh.gate", Activation::Tanh),
    ] {
        let case = Case::new(name);
        let [rows, cols] = case.shape("a")[..] else {
            panic!("a matrix");
        };
        let views = [0, 1, 2, 3, 4, 5].map(|buffer| contiguous(buffer, cols));
        let [a, b, dy, y, da, db] = &views;
        let contents = |case: &Case, b: &str| {
            let read = ["a", b, "dy"].map(|key| bytes(&case.floats(key)));
            let own = [(); 3].map(|()| unwritten(rows * cols));
            [read, own].concat()
        };
        let size = [rows, cols];
        let launches = [
            elementwise(Function::Activation(act), size, &[a], y, false),
            elementwise(Function::ActivationGradient(act), size, &[a, dy], da, false),
        ];
        let found = run(&launches, &contents(&case, "a"));
        case.check("y", &found[3]);
        case.check("da", &found[4]);
        let case = Case::new(gate);
        let launches = [
            elementwise(Function::Gate(act), size, &[a, b], y, false),
            elementwise(Function::GateGradient(act), size, &[a, b, dy], da, false),
            elementwise(Function::Gate(act), size, &[a, dy], db, false),
        ];
        let found = run(&launches, &contents(&case, "b"));
        case.check("y", &found[3]);
        case.check("da", &found[4]);
        case.check("db", &found[5]);
    }
}

#[test]
fn attention_of_grouped_heads_in_a_window() {
    let case = Case::new("attention");
    let [rows, heads, kv_heads, head_dim] = [21, 4, 2, 12];
    let [width, kv_width] = [heads * head_dim, kv_heads * head_dim];
    let spans: Vec<[u32; 2]> = (0..rows)
        .map(|row| if row < 9 { [0, 9] } else { [9, 21] })
        .collect();
    let shape = AttentionShape {
        rows,
        heads,
        kv_heads,
        head_dim,
        before: 4,
        after: 0,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: 0.0,
        sinks: None,
        spans: 4,
        stats: 5,
    };
    let inputs = QueryKeyValue {
        q: contiguous(0, width),
        k: contiguous(1, kv_width),
        v: contiguous(2, kv_width),
    };
    let contents = [
        bytes(&case.floats("q")),
        bytes(&case.floats("k")),
        bytes(&case.floats("v")),
        bytes(&case.floats("dy")),
        bytes(&spans),
        unwritten(rows * heads * 2),
        unwritten(rows * width),
        unwritten(rows * width),
        unwritten(rows * kv_width),
        unwritten(rows * kv_width),
    ];
    let dy = contiguous(3, width);
    let launches = [
        shape.forward(&inputs, &contiguous(6, width)),
        shape.dots(&contiguous(6, width), &dy),
        shape.queries(&inputs, &dy, &contiguous(7, width), false),
        shape.keys(
            &inputs,
            &dy,
            &contiguous(8, kv_width),
            &contiguous(9, kv_width),
        ),
    ];
    let found = run(&launches, &contents);
    for (key, buffer) in [("y", 6), ("dq", 7), ("dk", 8), ("dv", 9)] {
        case.check(key, &found[buffer]);
    }
}

#[test]
fn rotary_embeddings() {
    let case = Case::new("rope");
    let [rows, heads, head_dim] = [21, 4, 12];
    let width = heads * head_dim;
    let shape = RopeShape {
        rows,
        heads,
        head_dim,
        dim: head_dim,
        interleaved: false,
        table: 1,
        positions: 2,
    };
    let contents = [
        bytes(&case.floats("q")),
        bytes(&RopeSpec::plain(head_dim, 100.0).table(0, 21, 0)),
        bytes(&case.ints("positions")),
        bytes(&case.floats("dy")),
        unwritten(rows * width),
        unwritten(rows * width),
    ];
    let launches = [
        shape.rotate(&contiguous(0, width), &contiguous(4, width), false, false),
        shape.rotate(&contiguous(3, width), &contiguous(5, width), true, false),
    ];
    let found = run(&launches, &contents);
    case.check("y", &found[4]);
    case.check("dq", &found[5]);
}

#[test]
fn short_convolutions_of_two_sequences() {
    let case = Case::new("short_conv");
    let [rows, cols] = case.shape("x")[..] else {
        panic!("a matrix");
    };
    let taps = case.shape("w")[1];
    let spans: Vec<[u32; 2]> = (0..rows)
        .map(|row| if row < 9 { [0, 9] } else { [9, 21] })
        .collect();
    let shape = ShortConvShape {
        rows,
        cols,
        taps,
        weight: 1,
        spans: 4,
    };
    let contents = [
        bytes(&case.floats("x")),
        bytes(&case.floats("w")),
        bytes(&case.floats("b")),
        bytes(&case.floats("dy")),
        bytes(&spans),
        unwritten(rows * cols),
        unwritten(rows * cols),
        zeros(cols * taps),
        zeros(cols),
    ];
    let [x, dy] = [0, 3].map(|buffer| contiguous(buffer, cols));
    let launches = [
        shape.forward(&x, Some(2), &contiguous(5, cols)),
        shape.input(&dy, &contiguous(6, cols), false),
        shape.weight(&x, &dy, 7),
        column_sums([rows, 1, cols], &dy, 8, 0),
    ];
    let found = run(&launches, &contents);
    for (key, buffer) in [("y", 5), ("dx", 6), ("dw", 7), ("db", 8)] {
        case.check(key, &found[buffer]);
    }
}

#[test]
fn embeddings_and_losses() {
    let case = Case::new("embed");
    let [table_rows, cols] = case.shape("table")[..] else {
        panic!("a matrix");
    };
    let ids = case.ints("ids");
    let contents = [
        bytes(&ids),
        bytes(&case.floats("dy")),
        zeros(table_rows * cols),
    ];
    let [dy, table] = [contiguous(1, cols), contiguous(2, cols)];
    let launch = embed::embed_table([ids.len(), cols], 1.0, 0, &dy, &table);
    case.check("dtable", &run(&[launch], &contents)[2]);

    let case = Case::new("loss");
    let [rows, cols] = case.shape("logits")[..] else {
        panic!("a matrix");
    };
    // PyTorch ignores -100.
    let labels: Vec<u32> = case
        .ints("labels")
        .into_iter()
        .map(|label| {
            if label > i32::MAX as u32 {
                IGNORED
            } else {
                label
            }
        })
        .collect();
    let counted = labels.iter().filter(|label| **label != IGNORED).count();
    let contents = [
        bytes(&case.floats("logits")),
        bytes(&labels),
        unwritten(rows),
        bytes(&[1.0 / counted as f32; 8]),
        zeros(1),
    ];
    let launches = [
        loss::cross_entropy([rows, cols], &contiguous(0, cols), 1, 2, Some(3)),
        loss::add_losses(rows, 2, 4),
    ];
    let found = run(&launches, &contents);
    case.check("dlogits", &found[0]);
    case.check("loss", &[found[4][0] / counted as f32]);
}

#[test]
fn optimizers() {
    let adamw = Optimizer::AdamW {
        beta1: 0.8,
        beta2: 0.95,
        eps: 1e-6,
    };
    for (name, optimizer, decay) in [
        ("sgd", Optimizer::Sgd { momentum: 0.0 }, 0.2),
        ("momentum", Optimizer::Sgd { momentum: 0.9 }, 0.0),
        ("adamw", adamw, 0.2),
    ] {
        let case = Case::new(name);
        let before = case.floats("before");
        let count = before.len();
        let mut state = [bytes(&before), zeros(count), zeros(count)];
        for (step, gradient) in case.floats("gradients").chunks(count).enumerate() {
            let corrections = [0.8f32, 0.95].map(|beta| 1.0 - beta.powi(step as i32 + 1));
            let hyper = [
                0.0,
                0.1,
                decay,
                corrections[0],
                corrections[1],
                0.0,
                0.0,
                0.0,
            ];
            let [weight, mean, square] = state;
            let contents = [
                weight,
                mean,
                square,
                bytes(gradient),
                bytes(&[1.0f32; 2]),
                bytes(&hyper),
            ];
            let used = &[1, 2][..optimizer.states()];
            let launch = optimizer.update(count, decay != 0.0, 0, 3, used, [4, 5]);
            let found = run(&[launch], &contents);
            state = [0, 1, 2].map(|buffer: usize| bytes(&found[buffer]));
        }
        case.check("after", &jerboa_tests::floats(&state[0]));
    }
}
