//! Checkpoints in the layout of mlx_lm's converter, made here from the golden models: each family's
//! `sanitize` renames, stacks, splits or transposes tensors. Logits equal those of the original.

use super::{exact, with_kv};
use jerboa::arch::{self, LoadConfig};
use jerboa::format::Float;
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{Golden, golden, load};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// A stored tensor.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Stored {
    /// The rows of each matrix of a stack for which `wanted` is true. Rows of a vector are its
    /// elements.
    fn rows(&self, axis: usize, wanted: impl Fn(usize) -> bool) -> Stored {
        let rows = self.shape[axis];
        let count: usize = self.shape[..=axis].iter().product();
        let size = self.data.len() / count;
        let chosen = (0..count).filter(|at| wanted(at % rows));
        let mut shape = self.shape.clone();
        shape[axis] = (0..rows).filter(|row| wanted(*row)).count();
        Stored {
            dtype: self.dtype,
            shape,
            data: chosen
                .flat_map(|at| &self.data[at * size..(at + 1) * size])
                .copied()
                .collect(),
        }
    }

    /// The transpose of each matrix of a stack.
    fn transposed(&self) -> Stored {
        let [stack @ .., rows, cols] = &self.shape[..] else {
            panic!("{:?}", self.shape);
        };
        let (count, rows, cols) = (stack.iter().product::<usize>(), *rows, *cols);
        let size = self.data.len() / (count * rows * cols);
        let mut data = Vec::new();
        for matrix in 0..count {
            for col in 0..cols {
                for row in 0..rows {
                    let at = ((matrix * rows + row) * cols + col) * size;
                    data.extend(&self.data[at..at + size]);
                }
            }
        }
        Stored {
            dtype: self.dtype,
            shape: [stack, &[cols, rows]].concat(),
            data,
        }
    }
}

type Tensors = BTreeMap<String, Stored>;

/// The tensors of a golden model, by its folder.
fn tensors(model: &str) -> Tensors {
    let bytes = std::fs::read(golden(model).join("model.safetensors"));
    let bytes = bytes.expect("model.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    file.tensors()
        .into_iter()
        .map(|(name, view)| {
            let stored = Stored {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                data: view.data().to_vec(),
            };
            (name, stored)
        })
        .collect()
}

/// The logits of a golden model's configuration with these tensors.
fn logits(model: &str, case: &str, tensors: &Tensors) -> jerboa::Result<Vec<f32>> {
    let source = golden(model);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "mlx-{}-{case}-{}",
        model.replace('/', "-"),
        std::process::id()
    ));
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = std::fs::read(source.join("config.json")).expect("config.json");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    // Read for quantized tensors only.
    config["quantization"] = json!({"bits": 8, "group_size": 16});
    std::fs::write(folder.join("config.json"), config.to_string()).expect("config.json");
    let views = tensors.iter().map(|(name, stored)| {
        let view = TensorView::new(stored.dtype, stored.shape.clone(), &stored.data);
        (name.as_str(), view.expect("a tensor"))
    });
    let file = serialize(views, None).expect("a file");
    std::fs::write(folder.join("model.safetensors"), file).expect("written");
    let ids = Golden::read(&source.join("golden.safetensors")).ids("input_ids");
    let session = load(open(&exact()), &folder, with_kv(Kv::F32));
    let found = session.and_then(|mut session| block_on(session.all_rows(&ids, false)));
    std::fs::remove_dir_all(&folder).expect("the folder");
    found
}

/// Compares the logits of tensors in MLX's layout with the reference.
fn check(model: &str, tensors: &Tensors) {
    let found = logits(model, "plain", tensors).unwrap_or_else(|e| panic!("{model}: {e}"));
    let reference = Golden::read(&golden(model).join("golden.safetensors"));
    let error = relative_l2(&found, &reference.floats("logits"));
    assert!(error < 3e-4, "{model}: {error:e}");
}

/// Renames tensors: each part of a name as a list of pairs says.
fn rename(tensors: Tensors, names: &[(&str, &str)]) -> Tensors {
    let renamed = |name: String| {
        let found = names.iter().find(|(from, _)| name.contains(from));
        found.map_or(name.clone(), |(from, to)| name.replace(from, to))
    };
    let tensors = tensors.into_iter();
    tensors.map(|(name, t)| (renamed(name), t)).collect()
}

/// Stacks the tensors of experts as `switch_mlp`.
fn stack_experts(tensors: Tensors) -> Tensors {
    let mut out = Tensors::new();
    // Experts in the order of their names; there are fewer than ten.
    for (name, stored) in tensors {
        let split = name
            .split_once(".experts.")
            .and_then(|(path, rest)| Some((path, rest.split_once('.')?.1)));
        let Some((path, part)) = split else {
            out.insert(name, stored);
            continue;
        };
        let stack = out
            .entry(format!("{path}.switch_mlp.{part}"))
            .or_insert_with(|| Stored {
                dtype: stored.dtype,
                shape: [&[0], &stored.shape[..]].concat(),
                data: Vec::new(),
            });
        stack.shape[0] += 1;
        stack.data.extend(stored.data);
    }
    out
}

const W_NAMES: [(&str, &str); 3] = [
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
];

#[test]
fn mixtral_and_phimoe() {
    for model in ["models/mixtral", "models/phimoe"] {
        check(model, &stack_experts(rename(tensors(model), &W_NAMES)));
    }
}

#[test]
fn lfm2_moe() {
    let renamed = rename(tensors("models/lfm2_moe"), &W_NAMES);
    assert!(renamed.contains_key("model.layers.0.feed_forward.gate_proj.weight"));
    check("models/lfm2_moe", &stack_experts(renamed));
}

/// MXFP4 codes become words; 16-bit experts are [outputs, inputs], unlike the original's.
#[test]
fn gpt_oss() {
    for model in ["models/gpt_oss_mxfp4", "models/gpt_oss"] {
        let mut out = Tensors::new();
        for (name, stored) in tensors(model) {
            let Some((path, part)) = name.split_once(".experts.") else {
                out.insert(name, stored);
                continue;
            };
            let is_bias = part.ends_with("_bias");
            let stored = match part.ends_with("_blocks") {
                true => {
                    let [experts, rows, blocks, _] = stored.shape[..] else {
                        panic!("{name}: {:?}", stored.shape);
                    };
                    Stored {
                        dtype: Dtype::U32,
                        shape: vec![experts, rows, blocks * 4],
                        ..stored
                    }
                }
                false if part.ends_with("_proj") => stored.transposed(),
                false => stored,
            };
            let end = match part.rsplit_once('_').expect("a name").1 {
                "scales" => "scales",
                "bias" => "bias",
                _ => "weight",
            };
            if part.starts_with("down_proj") {
                out.insert(format!("{path}.experts.down_proj.{end}"), stored);
                continue;
            }
            assert_eq!(stored.shape.len(), if is_bias { 2 } else { 3 }, "{name}");
            for (first, projection) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                let rows = stored.rows(1, |row| row % 2 == first);
                out.insert(format!("{path}.experts.{projection}.{end}"), rows);
            }
        }
        check(model, &out);
    }
}

/// Granite 4 without experts has another name for its MLP, and gate and up apart.
#[test]
fn granite_hybrid() {
    let mut out = Tensors::new();
    for (name, stored) in tensors("models/granite_hybrid") {
        let half = stored.shape[0] / 2;
        if name.contains(".shared_mlp.input_linear.") {
            for (part, first) in [("gate_proj", 0), ("up_proj", half)] {
                let name = name.replace(".shared_mlp.input_linear.", &format!(".mlp.{part}."));
                out.insert(
                    name,
                    stored.rows(0, |row| (first..first + half).contains(&row)),
                );
            }
        } else {
            let name = name.replace(".shared_mlp.output_linear.", ".mlp.down_proj.");
            out.insert(name, stored);
        }
    }
    check("models/granite_hybrid", &out);
}

/// mlx_lm's models of Ernie route without the bias, as if it were zero.
#[test]
fn ernie_without_selection_bias() {
    let mut zero = tensors("models/ernie4_5_moe");
    let is_bias = |name: &str| name.ends_with(".e_score_correction_bias");
    let mut without = stack_experts(zero.clone());
    without.retain(|name, _| !is_bias(name));
    for (_, stored) in zero.iter_mut().filter(|(name, _)| is_bias(name)) {
        stored.data.fill(0);
    }
    let [expected, found] = [("zero", zero), ("without", without)]
        .map(|(case, tensors)| logits("models/ernie4_5_moe", case, &tensors).expect(case));
    let error = relative_l2(&found, &expected);
    assert!(error < 1e-6, "{error:e}");
}

/// Heads and columns of keys and of values of the golden models with latent attention.
fn split_latents(tensors: Tensors, [heads, keys, values]: [usize; 3]) -> Tensors {
    let mut out = Tensors::new();
    for (name, stored) in tensors {
        let Some(path) = name.strip_suffix(".kv_b_proj.weight") else {
            out.insert(name, stored);
            continue;
        };
        let latent = stored.shape[1];
        let both = Stored {
            shape: vec![heads, keys + values, latent],
            ..stored
        };
        let embed = both.rows(1, |row| row < keys).transposed();
        out.insert(format!("{path}.embed_q.weight"), embed);
        let unembed = both.rows(1, |row| row >= keys);
        out.insert(format!("{path}.unembed_out.weight"), unembed);
    }
    stack_experts(out)
}

#[test]
fn latent_attention() {
    for (model, sizes) in [
        ("models/deepseek_v3", [4, 16, 12]),
        ("models/glm4_moe_lite", [4, 16, 24]),
    ] {
        check(model, &split_latents(tensors(model), sizes));
    }
    check(
        "models/deepseek_v2",
        &stack_experts(tensors("models/deepseek_v2")),
    );
}

/// Quantizes a stack of matrices to 8 bits in groups of 16; returns the dequantized values too.
fn quantize(stored: &Stored) -> ([Stored; 3], Vec<f32>) {
    let float = match stored.dtype {
        Dtype::BF16 => Float::BF16,
        Dtype::F16 => Float::F16,
        _ => Float::F32,
    };
    let count: usize = stored.shape.iter().product();
    let (mut codes, mut scales, mut biases, mut values) = (vec![], vec![], vec![], vec![]);
    for first in (0..count).step_by(16) {
        let group: Vec<f32> = (first..first + 16)
            .map(|at| float.get(&stored.data, at).expect("a value"))
            .collect();
        let least = group.iter().copied().fold(f32::INFINITY, f32::min);
        let largest = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = ((largest - least) / 255.0).max(1e-8);
        scales.extend(scale.to_le_bytes());
        biases.extend(least.to_le_bytes());
        for value in group {
            let code = ((value - least) / scale).round();
            codes.push(code as u8);
            values.push(code * scale + least);
        }
    }
    let shape = |by: usize| {
        let mut shape = stored.shape.clone();
        *shape.last_mut().expect("a matrix") /= by;
        shape
    };
    let part = |dtype, by, data| Stored {
        dtype,
        shape: shape(by),
        data,
    };
    let parts = [
        part(Dtype::U32, 4, codes),
        part(Dtype::F32, 16, scales),
        part(Dtype::F32, 16, biases),
    ];
    (parts, values)
}

/// The quantized key projections of latent attention are stored transposed.
#[test]
fn quantized_latent_attention() {
    let split = split_latents(tensors("models/glm4_moe_lite"), [4, 16, 24]);
    let [mut quantized, mut dequantized] = [Tensors::new(), Tensors::new()];
    let mut count = 0;
    for (name, stored) in split {
        let base = name.strip_suffix(".weight").unwrap_or(&name);
        if !base.ends_with(".embed_q") && !base.ends_with(".unembed_out") {
            quantized.insert(name.clone(), stored.clone());
            dequantized.insert(name, stored);
            continue;
        }
        let (parts, values) = quantize(&stored);
        for (end, part) in ["weight", "scales", "biases"].into_iter().zip(parts) {
            quantized.insert(format!("{base}.{end}"), part);
        }
        let values = Stored {
            dtype: Dtype::F32,
            shape: stored.shape,
            data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        dequantized.insert(name, values);
        count += 1;
    }
    assert!(count >= 4, "{count}");
    let [expected, found] = [("dequantized", dequantized), ("quantized", quantized)]
        .map(|(case, tensors)| logits("models/glm4_moe_lite", case, &tensors).expect(case));
    let error = relative_l2(&found, &expected);
    assert!(error < 1e-3, "{error:e}");
}

/// mlx-vlm's language model of Idefics 3 and SmolVLM has no `model` level.
#[test]
fn idefics3_of_mlx_vlm() {
    let model = "vision/models/idefics3";
    let original = tensors(model);
    let renamed = |name: &str| {
        let name = name.strip_prefix("model.").unwrap_or(name);
        match name.strip_prefix("text_model.") {
            Some(rest) => format!("language_model.{rest}"),
            None => name.replace("lm_head.", "language_model.lm_head."),
        }
    };
    let config = std::fs::read(golden(model).join("config.json")).expect("config.json");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let config = LoadConfig::from(config);
    for name in original.keys() {
        let [expected, found] = [name.clone(), renamed(name)];
        let [expected, found] = [expected, found].map(|name| arch::canonical_name(&config, &name));
        assert_eq!(found, expected);
    }
    let stored = original.clone().into_iter();
    let converted = stored.map(|(name, t)| (renamed(&name), t)).collect();
    let [expected, found] = [("original", original), ("converted", converted)]
        .map(|(case, tensors)| logits(model, case, &tensors).expect(case));
    assert_eq!(found, expected);
}

/// Key projections in a mode without a transpose are refused with the reason and another checkpoint.
#[test]
fn latent_attention_in_mxfp4_is_refused() {
    let model = "models/glm4_moe_lite";
    let mut tensors = split_latents(tensors(model), [4, 16, 24]);
    let names: Vec<String> = tensors.keys().cloned().collect();
    for base in names
        .iter()
        .filter_map(|n| n.strip_suffix(".embed_q.weight"))
    {
        for (end, dtype, words, bytes) in
            [("weight", Dtype::U32, 4, 16), ("scales", Dtype::U8, 1, 1)]
        {
            let shape = vec![4, 16, words];
            let data = vec![0; 4 * 16 * bytes];
            tensors.insert(
                format!("{base}.embed_q.{end}"),
                Stored { dtype, shape, data },
            );
        }
    }
    let error = logits(model, "mxfp4", &tensors)
        .expect_err("a refusal")
        .to_string();
    for part in ["embed_q", "mlx mxfp4", "use the original repository"] {
        assert!(error.contains(part), "{error}");
    }
}
