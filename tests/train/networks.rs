//! Networks of layers against PyTorch (tests/golden/scripts/make_layers.py): outputs, gradients,
//! fits; and what a description must have.

use jerboa::Result;
use jerboa::gpu::DeviceOptions;
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::{random, relative_l2};
use jerboa_train::kernels::loss::IGNORED;
use jerboa_train::layers::fit::{FitOptions, Loss};
use jerboa_train::layers::network::{FitProgress, Network};
use jerboa_train::tensors::{NamedTensor, read_safetensors, write_safetensors};
use pollster::block_on;
use serde_json::{Map, Value, json};
use std::rc::Rc;

/// Maximum relative L2 distance from PyTorch.
const LIMIT: f64 = 1e-4;

fn network(description: &Value, seed: u64) -> Result<Network> {
    let gpu = Rc::new(jerboa_tests::open(&DeviceOptions::default()));
    Network::new(gpu, description, seed)
}

fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn descriptions() -> Map<String, Value> {
    let text = std::fs::read(golden("train/layers.json")).expect("layers.json");
    serde_json::from_slice(&text).expect("JSON")
}

/// Sets the weights of an entry to PyTorch's.
fn set_weights(network: &Network, file: &Golden, name: &str) {
    let tensor = |(weight, shape): (&String, &Vec<usize>)| {
        let key = format!("{name}.w.{weight}");
        assert_eq!(&file.shape(&key), shape, "{key}");
        NamedTensor {
            name: weight.clone(),
            shape: shape.clone(),
            values: file.floats(&key),
        }
    };
    let list = network.weight_list().iter();
    let tensors: Vec<NamedTensor> = list.map(|w| tensor((&w.name, &w.shape))).collect();
    network.set_weights(&tensors).expect("the same weights");
}

/// Records of a comparison that is over the limit.
fn compare(failures: &mut Vec<String>, what: &str, found: &[f32], expected: &[f32]) {
    let error = relative_l2(found, expected);
    if found.len() != expected.len() || error.is_nan() || error > LIMIT {
        failures.push(format!("{what}: relative L2 {error:e}"));
    }
}

#[test]
fn layers_and_their_gradients_equal_those_of_pytorch() {
    let file = Golden::read(&golden("train/layers.safetensors"));
    let mut failures = Vec::new();
    let mut tested = 0;
    for (name, description) in descriptions() {
        if !name.starts_with("net_") {
            continue;
        }
        tested += 1;
        let mut network = network(&description, 0).unwrap_or_else(|e| panic!("{name}: {e}"));
        set_weights(&network, &file, &name);
        let is_ids = description["layers"][0]["type"] == "embedding";
        let x = if is_ids {
            let ids = file.ints(&format!("{name}.x"));
            ids.into_iter().map(|id| id as u32).collect()
        } else {
            words(&file.floats(&format!("{name}.x")))
        };
        let expected = file.floats(&format!("{name}.y"));
        let dy = file.floats(&format!("{name}.dy"));
        let gradients =
            block_on(network.gradients(&x, &dy)).unwrap_or_else(|e| panic!("{name}: {e}"));
        compare(
            &mut failures,
            &format!("{name}: y"),
            &gradients.output,
            &expected,
        );
        assert_eq!(gradients.input.is_some(), !is_ids, "{name}");
        if let Some(dx) = gradients.input {
            let expected = file.floats(&format!("{name}.dx"));
            compare(&mut failures, &format!("{name}: dx"), &dx, &expected);
        }
        for weight in &gradients.weights {
            let expected = file.floats(&format!("{name}.d.{}", weight.name));
            let what = format!("{name}: gradient of {}", weight.name);
            compare(&mut failures, &what, &weight.values, &expected);
        }
        // One example at a time, in buffers that have room for three.
        let found = block_on(network.predict(&x, 1)).expect("a prediction");
        compare(
            &mut failures,
            &format!("{name}: predictions"),
            &found,
            &expected,
        );
    }
    assert!(tested >= 35, "{tested} networks");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Fits to the end; returns the loss of each epoch.
fn fit(network: &mut Network, x: &[u32], y: &[u32], options: FitOptions) -> Result<Vec<f32>> {
    let mut run = network.start(x.to_vec(), y.to_vec(), options)?;
    let mut losses = Vec::new();
    let mut last: Option<FitProgress> = None;
    while let Some(done) = block_on(network.advance(&mut run))? {
        assert!(last.is_none_or(|last| last.step < done.step && done.step <= done.steps));
        if done.is_epoch_end {
            losses.push(done.loss);
        }
        last = Some(done);
    }
    assert_eq!(losses.len(), options.epochs);
    Ok(losses)
}

#[test]
fn fits_equal_those_of_pytorch() {
    let file = Golden::read(&golden("train/layers.safetensors"));
    for name in ["fit_mse", "fit_entropy"] {
        let entry = &descriptions()[name];
        let mut network = network(entry, 0).expect(name);
        set_weights(&network, &file, name);
        let options = FitOptions::from_json(&entry["options"]).expect("options");
        let x = words(&file.floats(&format!("{name}.x")));
        let y = match options.loss {
            Loss::MeanSquare => words(&file.floats(&format!("{name}.y"))),
            Loss::CrossEntropy => {
                let labels = file.ints(&format!("{name}.y"));
                let label = |label: i32| u32::try_from(label).unwrap_or(IGNORED);
                labels.into_iter().map(label).collect()
            }
        };
        let losses = fit(&mut network, &x, &y, options).expect("a fit");
        let expected = file.floats(&format!("{name}.losses"));
        let error = relative_l2(&losses, &expected);
        assert!(error < 1e-3, "{name}: {losses:?}, not {expected:?}");
        let found = block_on(network.predict(&x, 5)).expect("predictions");
        let error = relative_l2(&found, &file.floats(&format!("{name}.predictions")));
        assert!(error < 2e-3, "{name}: predictions {error:e}");
        let loss = block_on(network.evaluate(&x, &y, options.loss, 3)).expect("a loss");
        assert!(loss < losses[losses.len() - 1], "{name}: {loss}");
    }
}

/// Images of 8 × 8 with a bar that lies, stands, or goes along a diagonal, and noise.
fn bars(count: usize, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let noise = random(seed, count * 64);
    let places = random(seed + 1, count);
    let mut images = Vec::with_capacity(count * 64);
    let mut labels = Vec::with_capacity(count);
    for index in 0..count {
        let class = index % 3;
        let place = ((places[index] + 1.0) * 4.0) as usize % 8;
        for at in 0..64 {
            let [row, col] = [at / 8, at % 8];
            let is_lit = [row == place, col == place, (row + place) % 8 == col][class];
            let value = f32::from(u8::from(is_lit)) + 0.2 * noise[index * 64 + at];
            images.push(value);
        }
        labels.push(class as u32);
    }
    (words(&images), labels)
}

fn classifier() -> Value {
    json!({
        "input": [1, 8, 8],
        "layers": [
            { "type": "conv2d", "filters": 8, "kernelSize": 3, "padding": 1, "activation": "relu" },
            { "type": "conv2d", "filters": 8, "kernelSize": 3, "stride": 2, "activation": "relu" },
            { "type": "flatten" },
            { "type": "dense", "units": 3 },
        ],
    })
}

/// Share of the rows whose largest value is at the label.
fn accuracy(predictions: &[f32], labels: &[u32]) -> f32 {
    let right = |(row, label): (&[f32], &u32)| {
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        usize::from(best == Some(*label as usize))
    };
    let rows = predictions.chunks_exact(predictions.len() / labels.len());
    rows.zip(labels).map(right).sum::<usize>() as f32 / labels.len() as f32
}

#[test]
fn a_network_learns_images_with_equal_bits() {
    let options = FitOptions {
        loss: Loss::CrossEntropy,
        learning_rate: 1e-2,
        epochs: 24,
        batch_size: 20,
        seed: 3,
        ..FitOptions::default()
    };
    let (x, y) = bars(150, 1);
    let run = |seed: u64| {
        let mut network = network(&classifier(), seed).expect("a network");
        let losses = fit(&mut network, &x, &y, options).expect("a fit");
        let weights = block_on(network.weights()).expect("weights");
        (network, losses, write_safetensors(&weights))
    };
    let (mut network, losses, weights) = run(5);
    assert!(losses[0] > 0.5, "{losses:?}");
    assert!(losses[23] < 0.05, "{losses:?}");
    let (images, labels) = bars(60, 9);
    let found = block_on(network.predict(&images, 32)).expect("predictions");
    let accuracy = accuracy(&found, &labels);
    assert!(accuracy > 0.9, "{accuracy} of unseen images");
    let loss = block_on(network.evaluate(&images, &labels, Loss::CrossEntropy, 17));
    let loss = loss.expect("a loss");
    assert!(loss < 0.4, "{loss} of unseen images");
    let (_, again, equal) = run(5);
    assert_eq!(losses, again);
    assert!(weights == equal, "equal seeds have equal bits");
    let (mut other, _, different) = run(6);
    assert!(weights != different, "other seeds have other bits");
    // Saved weights make another network predict the same.
    let tensors = read_safetensors(&weights).expect("tensors");
    other.set_weights(&tensors).expect("the same network");
    let read = block_on(other.predict(&images, 32)).expect("predictions");
    assert_eq!(read, found);
}

/// A sequence of bits has the label of its first one, which the state carries to the last step.
#[test]
fn recurrent_networks_learn_to_remember() {
    let mut x = Vec::new();
    let mut y = Vec::new();
    for number in 0..32u32 {
        x.extend((0..5).map(|bit| ((number >> bit & 1) as f32).to_bits()));
        y.push(number & 1);
    }
    for kind in ["rnn", "lstm", "gru"] {
        let description = json!({
            "input": [5, 1],
            "layers": [{ "type": kind, "units": 12 }, { "type": "dense", "units": 2 }],
        });
        let mut network = network(&description, 1).expect("a network");
        let options = FitOptions {
            loss: Loss::CrossEntropy,
            learning_rate: 0.02,
            epochs: 80,
            ..FitOptions::default()
        };
        let losses = fit(&mut network, &x, &y, options).expect("a fit");
        assert!(losses[79] < 0.1, "{kind}: {}", losses[79]);
    }
}

/// Token ids: the label of each step is the token before it.
#[test]
fn causal_attention_learns_to_look_back() {
    let tokens: Vec<u32> = random(4, 64 * 6)
        .iter()
        .map(|v| ((v + 1.0) * 3.0) as u32)
        .collect();
    let labels: Vec<u32> = tokens
        .chunks_exact(6)
        .flat_map(|own| (0..6).map(|at| if at == 0 { IGNORED } else { own[0] }))
        .collect();
    let description = json!({
        "input": [6],
        "layers": [
            { "type": "embedding", "inputDim": 6, "outputDim": 16 },
            { "type": "gru", "units": 16, "returnSequences": true },
            { "type": "residual", "layers": [{ "type": "layerNorm" }, { "type": "attention", "heads": 2, "causal": true }] },
            { "type": "residual", "layers": [{ "type": "rmsNorm" }, { "type": "swiglu", "hidden": 24 }] },
            { "type": "dense", "units": 6, "name": "head" },
        ],
    });
    let mut network = network(&description, 2).expect("a network");
    let names: Vec<&str> = network.weight_list().iter().map(|w| &w.name[..]).collect();
    assert!(
        names.contains(&"2.1.in_proj_weight") && names.contains(&"head.bias"),
        "{names:?}"
    );
    let options = FitOptions {
        loss: Loss::CrossEntropy,
        learning_rate: 0.01,
        epochs: 25,
        batch_size: 16,
        ..FitOptions::default()
    };
    let losses = fit(&mut network, &tokens, &labels, options).expect("a fit");
    assert!(losses[24] < 0.3, "{losses:?}");
}

fn refusal(description: &Value) -> String {
    match network(description, 0) {
        Ok(_) => panic!("{description} is accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn descriptions_that_do_not_fit_are_refused_by_layer() {
    for (input, layers, parts) in [
        (
            json!([4]),
            json!([{ "type": "dense" }]),
            vec!["layers[0] (dense)", "'units'"],
        ),
        (
            json!([4]),
            json!([{ "type": "dense", "units": 0 }]),
            vec!["layers[0] (dense)", "from 1"],
        ),
        (
            json!([4]),
            json!([{ "type": "dens", "units": 2 }]),
            vec!["layers[0]", "'dens'", "dense, conv1d"],
        ),
        (
            json!([4]),
            json!([{ "units": 2 }]),
            vec!["layers[0]", "'type'"],
        ),
        (
            json!([4]),
            json!([{ "type": "dense", "units": 2, "unit": 3 }]),
            vec!["'unit'", "units"],
        ),
        (
            json!([4]),
            json!([{ "type": "dense", "units": 2, "activation": "elu" }]),
            vec!["'elu'", "relu"],
        ),
        (
            json!([4]),
            json!([{ "type": "dense", "units": 2 }, { "type": "conv2d", "filters": 1, "kernelSize": 1 }]),
            vec!["layers[1] (conv2d)", "[channels, height, width]", "[2]"],
        ),
        (
            json!([1, 4, 4]),
            json!([{ "type": "conv2d", "filters": 1, "kernelSize": 5 }]),
            vec!["layers[0] (conv2d)", "spans 5", "padding"],
        ),
        (
            json!([3, 4, 4]),
            json!([{ "type": "conv2d", "filters": 4, "kernelSize": 1, "groups": 2 }]),
            vec!["'groups' 2", "3 channels"],
        ),
        (
            json!([1, 4, 4]),
            json!([{ "type": "conv2d", "filters": 1, "kernelSize": [1, 1, 1] }]),
            vec!["'kernelSize'", "array of 2"],
        ),
        (
            json!([4]),
            json!([{ "type": "gru", "units": 2 }]),
            vec!["layers[0] (gru)", "[steps, features]"],
        ),
        (
            json!([2, 6]),
            json!([{ "type": "attention", "heads": 4 }]),
            vec!["'heads' 4", "6 features"],
        ),
        (
            json!([4]),
            json!([{ "type": "residual", "layers": [{ "type": "dense", "units": 3 }] }]),
            vec!["layers[0] (residual)", "[4]", "[3]"],
        ),
        (
            json!([4]),
            json!([{ "type": "residual", "layers": [{ "type": "tanh" }, { "type": "dense", "units": -1 }] }]),
            vec!["layers[0].layers[1] (dense)"],
        ),
        (
            json!([4]),
            json!([{ "type": "parallel", "branches": [[{ "type": "dense", "units": 2 }], []], "combine": "add" }]),
            vec!["layers[0] (parallel)", "[2] and [4]"],
        ),
        (
            json!([4]),
            json!([{ "type": "parallel", "branches": [[], [{ "type": "gelu", "x": 1 }]] }]),
            vec!["layers[0].branches[1][0] (gelu)", "'x'"],
        ),
        (
            json!([4]),
            json!([{ "type": "dense", "units": 3 }, { "type": "embedding", "inputDim": 3, "outputDim": 2 }]),
            vec!["layers[1] (embedding)", "ids"],
        ),
        (
            json!([4]),
            json!([{ "type": "reshape", "shape": [3] }]),
            vec!["layers[0] (reshape)", "3 elements", "has 4"],
        ),
        (
            json!([4]),
            json!([{ "type": "tanh", "name": "a.b" }]),
            vec!["layers[0] (tanh)", "'name'"],
        ),
        (
            json!([4]),
            json!([{ "type": "dense", "units": 4, "name": "a" }, { "type": "dense", "units": 4, "name": "a" }]),
            vec!["'a.weight'"],
        ),
        (
            json!([16_777_216]),
            json!([{ "type": "dense", "units": 16_777_216 }]),
            vec!["0.weight", "elements"],
        ),
        (
            json!([]),
            json!([{ "type": "tanh" }]),
            vec!["input", "shape of one example"],
        ),
        (json!([4]), json!([]), vec!["layers", "array of layers"]),
    ] {
        let error = refusal(&json!({ "input": input, "layers": layers }));
        for part in parts {
            assert!(error.contains(part), "{layers}: {error}");
        }
    }
    let mut deep = json!([{ "type": "tanh" }]);
    for _ in 0..40 {
        deep = json!([{ "type": "sequential", "layers": deep }]);
    }
    assert!(refusal(&json!({ "input": [2], "layers": deep })).contains("16 deep"));
}

#[test]
fn examples_and_weights_that_do_not_fit_are_refused() {
    let description = json!({
        "input": [3],
        "layers": [{ "type": "embedding", "inputDim": 9, "outputDim": 2 }, { "type": "flatten" }, { "type": "dense", "units": 4 }],
    });
    let mut network = network(&description, 0).expect("a network");
    let options = FitOptions {
        loss: Loss::CrossEntropy,
        ..FitOptions::default()
    };
    let start = |x: &[u32], y: &[u32], options: FitOptions| match network.start(
        x.to_vec(),
        y.to_vec(),
        options,
    ) {
        Ok(_) => panic!("{x:?} and {y:?} are accepted"),
        Err(error) => error.to_string(),
    };
    assert!(start(&[1, 2], &[0], options).contains("multiple of 3"));
    assert!(start(&[1, 2, 9], &[0], options).contains("id 9"));
    assert!(start(&[1, 2, 3], &[0, 1], options).contains("2 labels"));
    assert!(start(&[1, 2, 3], &[4], options).contains("label 4"));
    assert!(start(&[1, 2, 3], &[IGNORED], options).contains("all are ignored"));
    let mse = FitOptions::default();
    assert!(start(&[1, 2, 3], &[0], mse).contains("1 values"));
    let tensor = |name: &str, shape: &[usize]| NamedTensor {
        name: name.into(),
        shape: shape.to_vec(),
        values: vec![0.5; shape.iter().product()],
    };
    let wrong = [tensor("0.weight", &[9, 2]), tensor("2.weight", &[6, 4])];
    let before = block_on(network.weights()).expect("weights");
    let error = network
        .set_weights(&wrong)
        .expect_err("another shape")
        .to_string();
    assert!(
        error.contains("'2.weight'") && error.contains("[4, 6]"),
        "{error}"
    );
    assert_eq!(block_on(network.weights()).expect("weights"), before);
    let error = network
        .set_weights(&[tensor("1.weight", &[1])])
        .expect_err("another name");
    assert!(error.to_string().contains("0.weight, 2.weight"), "{error}");
    let error = block_on(network.predict(&[7], 1)).expect_err("another shape");
    assert!(error.to_string().contains("multiple of 3"), "{error}");
    for (options, part) in [
        (json!({ "loss": "mae" }), "'mae'"),
        (json!({ "optimizer": "adam" }), "'adam'"),
        (
            json!({ "optimizer": { "type": "sgd", "learningRate": -1 } }),
            "learningRate",
        ),
        (json!({ "epochs": 0 }), "epochs"),
    ] {
        let error = FitOptions::from_json(&options)
            .expect_err("options")
            .to_string();
        assert!(error.contains(part), "{error}");
    }
    let huge = FitOptions {
        learning_rate: 1e30,
        optimizer: jerboa_train::kernels::update::Optimizer::Sgd { momentum: 0.0 },
        epochs: 4,
        ..options
    };
    let error = fit(&mut network, &[1, 2, 3, 4, 5, 6], &[0, 1], huge).expect_err("infinite");
    assert!(
        error.to_string().contains("smaller learning rate"),
        "{error}"
    );
}
