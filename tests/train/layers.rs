//! Layers that no text model has: convolutions, recurrent layers, softmax. Kernels against CPU
//! references and PyTorch, references against central differences.

use crate::gradients::check;
use crate::torch::{Case, zeros};
use crate::{assert_close, run, unwritten, wide};
use jerboa::format::layout::{Float, PackedMatrix, WeightLayout};
use jerboa::kernels::matmul::WeightPlanes;
use jerboa_tests::{bytes, random};
use jerboa_train::kernels::contiguous;
use jerboa_train::kernels::convolution::Convolution;
use jerboa_train::kernels::gru::{Gru, GruGradients};
use jerboa_train::kernels::matmul::WeightRows;
use jerboa_train::kernels::recurrent::{Recurrence, RecurrenceGradients};
use jerboa_train::kernels::softmax::{softmax, softmax_gradient};
use jerboa_train::reference;
use jerboa_train::reference::gru::GruLayer;
use jerboa_train::reference::recurrent::RecurrentLayer;

/// Convolutions of one, two and three dimensions with their names in ops.safetensors.
fn convolutions() -> [(&'static str, Convolution); 3] {
    [
        (
            "conv1",
            Convolution {
                batch: 2,
                channels: 6,
                outputs: 9,
                groups: 3,
                inputs: [1, 1, 17],
                kernel: [1, 1, 4],
                stride: [1, 1, 2],
                padding: [0, 0, 3],
                dilation: [1, 1, 2],
            },
        ),
        (
            "conv2",
            Convolution {
                batch: 3,
                channels: 4,
                outputs: 6,
                groups: 2,
                inputs: [1, 9, 7],
                kernel: [1, 3, 2],
                stride: [1, 2, 1],
                padding: [0, 1, 2],
                dilation: [1, 1, 3],
            },
        ),
        (
            "conv3",
            Convolution {
                batch: 1,
                channels: 3,
                outputs: 5,
                groups: 1,
                inputs: [4, 5, 6],
                kernel: [2, 3, 3],
                stride: [1, 2, 3],
                padding: [1, 0, 2],
                dilation: [2, 1, 1],
            },
        ),
    ]
}

#[test]
fn convolutions_and_their_gradients() {
    for (name, layer) in convolutions() {
        let case = Case::new(name);
        let [x, w, b, dy] = ["x", "w", "b", "dy"].map(|key| case.floats(key));
        assert_eq!((x.len(), w.len()), (layer.in_count(), layer.weight_count()));
        let contents = [
            bytes(&x),
            bytes(&w),
            bytes(&b),
            bytes(&dy),
            unwritten(layer.out_count()),
            unwritten(layer.in_count()),
            bytes(&w),
            zeros(layer.outputs),
        ];
        let launches = [
            layer.forward(0, 1, Some(2), 4),
            layer.input(3, 1, 5),
            layer.weight(0, 3, 6),
            layer.bias(3, 7),
        ];
        let found = run(&launches, &contents);
        case.check("y", &found[4]);
        case.check("dx", &found[5]);
        case.check("db", &found[7]);
        // The gradient was added to the weights.
        let dw: Vec<f32> = found[6].iter().zip(&w).map(|(sum, w)| sum - w).collect();
        case.check("dw", &dw);
        let [x, w, b, dy] = [x, w, b, dy].map(|values| wide(&values));
        let volume = layer.out_sizes().iter().product::<usize>();
        let y = reference::convolution::forward(&layer, &x, &w);
        let y: Vec<f64> = y
            .iter()
            .enumerate()
            .map(|(at, y)| y + b[at / volume % layer.outputs])
            .collect();
        assert_close(name, &found[4], &y);
        let [dx, dw] = reference::convolution::gradients(&layer, &x, &w, &dy);
        assert_close(name, &found[5], &dx);
        assert_close(name, &found[7], &reference::convolution::bias(&layer, &dy));
        let f = |x: &[f64], w: &[f64]| reference::convolution::forward(&layer, x, w);
        check(name, &x, &dy, &dx, |x| f(x, &w));
        check(name, &w, &dy, &dw, |w| f(&x, w));
    }
}

fn planes(q: usize, values: &[f32], cols: usize) -> (WeightRows<usize>, Vec<u8>) {
    let rows = values.len() / cols;
    let mut matrix = PackedMatrix::zeros(WeightLayout::Dense(Float::F32), rows, cols);
    for (i, value) in values.iter().enumerate() {
        matrix.set_dense(i / cols, i % cols, *value);
    }
    let weight = WeightRows {
        planes: WeightPlanes {
            layout: matrix.layout,
            rows: rows as u32,
            cols: cols as u32,
            q,
            s: None,
        },
        first: 0,
        count: rows,
    };
    (weight, bytes(&matrix.planes[0]))
}

#[test]
fn recurrent_layers_through_time() {
    for (name, lstm) in [("lstm", true), ("rnn", false)] {
        let case = Case::new(name);
        let [steps, rows, inputs] = case.shape("x")[..] else {
            panic!("a sequence");
        };
        let hidden = case.shape("y")[2];
        let [x, w, u, dy] = ["x", "w", "u", "dy"].map(|key| case.floats(key));
        let bias: Vec<f32> = case
            .floats("b")
            .iter()
            .zip(case.floats("c"))
            .map(|(b, c)| b + c)
            .collect();
        let (input_weight, w_bytes) = planes(1, &w, inputs);
        let (state_weight, u_bytes) = planes(2, &u, hidden);
        let layer = Recurrence {
            lstm,
            steps,
            rows,
            inputs,
            hidden,
            input_weight,
            state_weight,
            bias: Some(3),
            out: 4,
            cells: 5,
            gates: 6,
            sums: 7,
            state_sums: 8,
        };
        let gates = layer.gate_cols();
        let to = RecurrenceGradients {
            dy: 9,
            dx: 10,
            gates: 11,
            cells: 12,
            input_weight: contiguous(13, inputs),
            state_weight: contiguous(14, hidden),
            biases: vec![15],
        };
        let all = steps * rows;
        let contents = [
            bytes(&x),
            w_bytes,
            u_bytes,
            bytes(&bias),
            unwritten(all * hidden),
            unwritten(all * hidden),
            unwritten(all * gates),
            unwritten(all * gates),
            unwritten(rows * gates),
            bytes(&dy),
            unwritten(all * inputs),
            unwritten(all * gates),
            unwritten(rows * hidden),
            zeros(gates * inputs),
            zeros(gates * hidden),
            zeros(gates),
        ];
        let launches = [layer.forward(&0), layer.backward(&0, &to)].concat();
        let found = run(&launches, &contents);
        for (key, buffer) in [
            ("y", 4),
            ("dx", 10),
            ("dw", 13),
            ("du", 14),
            ("db", 15),
            ("dc", 15),
        ] {
            case.check(key, &found[buffer]);
        }
        let own = RecurrentLayer {
            lstm,
            sizes: [steps, rows, inputs, hidden],
            input_weight: wide(&w),
            state_weight: wide(&u),
            bias: wide(&bias),
        };
        let [x, dy] = [wide(&x), wide(&dy)];
        assert_close(name, &found[4], &own.forward(&x));
        let [dx, dw, du, db] = own.gradients(&x, &dy);
        for (gradient, buffer) in [(&dx, 10), (&dw, 13), (&du, 14), (&db, 15)] {
            assert_close(name, &found[buffer], gradient);
        }
        check(name, &x, &dy, &dx, |x| own.forward(x));
        check(name, &own.state_weight, &dy, &du, |u| {
            let moved = RecurrentLayer {
                state_weight: u.to_vec(),
                ..own.clone()
            };
            moved.forward(&x)
        });
        check(name, &own.bias, &dy, &db, |b| {
            let moved = RecurrentLayer {
                bias: b.to_vec(),
                ..own.clone()
            };
            moved.forward(&x)
        });
    }
}

#[test]
fn gru_through_time() {
    let case = Case::of("layers", "gru");
    let [steps, rows, inputs] = case.shape("x")[..] else {
        panic!("a sequence");
    };
    let hidden = case.shape("y")[2];
    let [x, w, u, b, c, dy] = ["x", "w", "u", "b", "c", "dy"].map(|key| case.floats(key));
    let (input_weight, w_bytes) = planes(1, &w, inputs);
    let (state_weight, u_bytes) = planes(2, &u, hidden);
    let layer = Gru {
        steps,
        rows,
        inputs,
        hidden,
        input_weight,
        state_weight,
        biases: Some([3, 4]),
        out: 5,
        gates: 6,
        sums: 7,
        state_sums: 8,
    };
    let to = GruGradients {
        dy: 9,
        dx: 10,
        gates: 11,
        state_gates: 12,
        input_weight: contiguous(13, inputs),
        state_weight: contiguous(14, hidden),
        biases: Some([15, 16]),
    };
    let all = steps * rows;
    let gates = 3 * hidden;
    let contents = [
        bytes(&x),
        w_bytes,
        u_bytes,
        bytes(&b),
        bytes(&c),
        unwritten(all * hidden),
        unwritten(all * 4 * hidden),
        unwritten(all * gates),
        unwritten(rows * gates),
        bytes(&dy),
        unwritten(all * inputs),
        unwritten(all * gates),
        unwritten(all * gates),
        zeros(gates * inputs),
        zeros(gates * hidden),
        zeros(gates),
        zeros(gates),
    ];
    let launches = [layer.forward(&0), layer.backward(&0, &to)].concat();
    let found = run(&launches, &contents);
    for (key, buffer) in [
        ("y", 5),
        ("dx", 10),
        ("dw", 13),
        ("du", 14),
        ("db", 15),
        ("dc", 16),
    ] {
        case.check(key, &found[buffer]);
    }
    let own = GruLayer {
        sizes: [steps, rows, inputs, hidden],
        input_weight: wide(&w),
        state_weight: wide(&u),
        biases: [wide(&b), wide(&c)],
    };
    let [x, dy] = [wide(&x), wide(&dy)];
    assert_close("gru", &found[5], &own.forward(&x));
    let [dx, dw, du, db, dc] = own.gradients(&x, &dy);
    for (gradient, buffer) in [(&dx, 10), (&dw, 13), (&du, 14), (&db, 15), (&dc, 16)] {
        assert_close("gru", &found[buffer], gradient);
    }
    check("gru", &x, &dy, &dx, |x| own.forward(x));
    check("gru", &own.state_weight, &dy, &du, |u| {
        let moved = GruLayer {
            state_weight: u.to_vec(),
            ..own.clone()
        };
        moved.forward(&x)
    });
    check("gru", &own.biases[1], &dy, &dc, |c| {
        let moved = GruLayer {
            biases: [own.biases[0].clone(), c.to_vec()],
            ..own.clone()
        };
        moved.forward(&x)
    });
}

#[test]
fn softmax_as_a_layer() {
    let [rows, cols] = [5, 131];
    let x: Vec<f32> = random(1, rows * cols).iter().map(|v| v * 8.0).collect();
    let dy = random(2, rows * cols);
    let count = rows * cols;
    let contents = [bytes(&x), bytes(&dy), unwritten(count), unwritten(count)];
    let size = [rows, cols];
    let found = run(
        &[softmax(size, 0, 2), softmax_gradient(size, 2, 1, 3)],
        &contents,
    );
    let [x, dy] = [wide(&x), wide(&dy)];
    assert_close("softmax", &found[2], &reference::softmax::softmax(&x, cols));
    let dx = reference::softmax::softmax_gradient(&x, &dy, cols);
    assert_close("its gradient", &found[3], &dx);
    check("softmax", &x, &dy, &dx, |x| {
        reference::softmax::softmax(x, cols)
    });
}
