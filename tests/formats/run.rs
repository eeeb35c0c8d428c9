//! Whole quantized models on the device: logits and greedy ids equal those of transformers with the
//! dequantized weights.

use jerboa::exec::{HEADROOM_BYTES, ModelFiles, Precision, PrecisionOptions, RunOptions, Session};
use jerboa::format::{Float, PartBytes, quantize, transcode};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::ir::WeightKind;
use jerboa::kernels::attention::Kv;
use jerboa::kernels::matmul::QuantizeInputs;
use jerboa::reference::dequant::dequant_in_order;
use jerboa::task::{ChatModel, GenerateRequest};
use jerboa_tests::golden::{Golden, golden, greedy};
use jerboa_tests::{on_units, open, relative_l2};
use pollster::block_on;
use std::collections::BTreeSet;
use std::path::Path;

fn options(precision: Precision) -> RunOptions {
    let overrides = PrecisionOptions {
        kv_type: Some(Kv::F32),
        precision,
        ..PrecisionOptions::default()
    };
    RunOptions {
        max_context: Some(128),
        overrides,
        ..RunOptions::default()
    }
}

fn load(folder: &str, gguf: Option<&str>, precision: Precision) -> jerboa::Result<Session> {
    block_on(async {
        let model = ModelRef::parse(&golden(folder).to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        let files = ModelFiles::open(&source, gguf).await?;
        let device = DeviceOptions {
            f16: false,
            ..DeviceOptions::default()
        };
        Session::load_files(open(&device), &source, files, options(precision)).await
    })
}

fn logits_error(model: &mut Session, golden: &Golden) -> f64 {
    let ids = golden.ids("input_ids");
    let found = block_on(model.all_rows(&ids, false)).expect("logits");
    relative_l2(&found, &golden.floats("logits"))
}

/// One or more checkpoints for each family of encodings; golden logits are those of transformers
/// with the dequantized weights.
const MODELS: [(&str, Option<&str>); 23] = [
    ("model_mlx", None),
    ("model_gptq", None),
    ("model_awq", None),
    ("gguf_q8_0", Some("model.gguf")),
    ("gguf_q4_k_m", Some("model.gguf")),
    ("gguf_tq2_0", Some("model.gguf")),
    ("llama_mxfp4", None),
    ("llama_dwq", None),
    ("llama_mlc", None),
    // One column order shared by sibling matrices, and one per matrix.
    ("llama_gptq_order", None),
    ("llama_ct_order", None),
    ("llama_bnb8", None),
    ("phi3_mlx", None),
    ("phi3_gptq", None),
    ("phi3_ct", None),
    ("phi3_mlc", None),
    // FP8 and FP4 weights become f16, as the libraries dequantize them.
    ("phi3_fp8", None),
    ("qwen3_gptq", None),
    ("qwen3_awq", None),
    ("qwen3_ct_asym", None),
    ("qwen3_mlc", None),
    ("qwen3_fp8", None),
    ("qwen3_nf4", None),
];

#[test]
fn quantized_models_equal_the_reference() {
    let mut wrong = Vec::new();
    for (name, gguf) in MODELS {
        let mut model = match load(&format!("quant/{name}"), gguf, Precision::Auto) {
            Ok(model) => model,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let expected = Golden::read(&golden(&format!("quant/{name}/golden.safetensors")));
        let error = logits_error(&mut model, &expected);
        let ids = expected.ids("input_ids");
        let reference = expected.ids("greedy");
        let found = greedy(&mut model, &ids, reference.len());
        println!("{name}: {error:e}");
        if error.is_nan() || error > 2e-4 || found != reference {
            wrong.push(format!("{name}: {error:e}, {found:?} for {reference:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// GPTQ with groups of arbitrary size, which no layout supports: the weights are dequantized to the
/// values of the decoder that the goldens check. Logits equal those of a model with these values.
#[test]
fn gptq_with_uneven_groups_runs() {
    let folder = golden("quant/llama_gptq_order");
    let file = std::fs::read(folder.join("model.safetensors")).expect("weights");
    let stored = safetensors::SafeTensors::deserialize(&file).expect("safetensors");
    let temporary =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("uneven-{}", std::process::id()));
    let [uneven, plain] = ["uneven", "plain"].map(|name| temporary.join(name));
    let mut tensors: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, view) in stored.tensors() {
        let mut data = view.data().to_vec();
        if name.ends_with(".g_idx") {
            // Inputs of another group join the first input's group.
            let group = data[..4].to_vec();
            data.chunks_exact_mut(4)
                .skip(1)
                .step_by(7)
                .for_each(|g| g.copy_from_slice(&group));
        }
        tensors.push((name, view.dtype(), view.shape().to_vec(), data));
    }
    write_checkpoint(&uneven, &folder, &tensors, |_| ());
    let source = |folder: &Path| {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        block_on(Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        ))
    };
    let files = source(&uneven)
        .and_then(|source| block_on(ModelFiles::open(&source, None)))
        .expect("opens");
    let data = std::fs::read(uneven.join("model.safetensors")).expect("weights");
    let mut scattered = 0;
    let numbers: Vec<_> = files
        .weights
        .iter()
        .map(|weight| {
            let bytes = weight.parts.iter().fold(PartBytes::new(), |all, part| {
                all.with(
                    part.role,
                    &data[part.info.range.start as usize..part.info.range.end as usize],
                )
            });
            let packed = transcode(weight, &bytes, true).expect("transcodes");
            if weight.is_scattered() {
                assert_eq!(packed.layout.name(), "f32", "{}", weight.name);
                scattered += 1;
            }
            let values = dequant_in_order(&packed)
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect();
            (
                weight.name.clone(),
                safetensors::Dtype::F32,
                weight.shape.clone(),
                values,
            )
        })
        .collect();
    assert!(scattered > 7, "{scattered} matrices are uneven");
    write_checkpoint(&plain, &folder, &numbers, |config| {
        drop(
            config
                .as_object_mut()
                .map(|c| c.remove("quantization_config")),
        );
    });
    let ids = [1, 5, 60, 30, 7, 31, 12, 3];
    for precision in [Precision::F32, Precision::Auto] {
        let logits = |folder: &Path, precision| {
            block_on(async {
                let source = source(folder)?;
                let files = ModelFiles::open(&source, None).await?;
                let device = DeviceOptions {
                    f16: false,
                    ..DeviceOptions::default()
                };
                Session::load_files(open(&device), &source, files, options(precision))
                    .await?
                    .all_rows(&ids, false)
                    .await
            })
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        };
        let error = relative_l2(&logits(&uneven, precision), &logits(&plain, Precision::F32));
        // Stored as f16 by default.
        assert!(
            error
                < if precision == Precision::F32 {
                    1e-6
                } else {
                    2e-3
                },
            "{precision:?}: {error:e}"
        );
    }
    std::fs::remove_dir_all(&temporary).expect("removed");
}

/// MLC's q4f32_1, with the newer name of its list: a q4f16_1 build whose f16 values are stored as
/// f32 is the same model.
#[test]
fn mlc_with_f32_runs() {
    let from = golden("quant/llama_mlc");
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("q4f32-{}", std::process::id()));
    let list = std::fs::read(from.join("ndarray-cache.json")).expect("a list");
    let mut list: serde_json::Value = serde_json::from_slice(&list).expect("JSON");
    let shard = std::fs::read(from.join("params_shard_0.bin")).expect("a shard");
    let mut wide = Vec::new();
    for record in list["records"][0]["records"]
        .as_array_mut()
        .expect("records")
    {
        let at = record["byteOffset"].as_u64().expect("an offset") as usize;
        let data = &shard[at..at + record["nbytes"].as_u64().expect("a size") as usize];
        let first = wide.len();
        if record["dtype"] == "float16" {
            wide.extend(data.chunks_exact(2).flat_map(|b| {
                half::f16::from_le_bytes([b[0], b[1]])
                    .to_f32()
                    .to_le_bytes()
            }));
            (record["dtype"], record["format"]) = ("float32".into(), "raw".into());
        } else {
            wide.extend_from_slice(data);
        }
        (record["byteOffset"], record["nbytes"]) = (first.into(), (wide.len() - first).into());
    }
    list["records"][0]["nbytes"] = wide.len().into();
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("tensor-cache.json"), list.to_string()).expect("written");
    std::fs::write(folder.join("params_shard_0.bin"), wide).expect("written");
    std::fs::copy(
        from.join("mlc-chat-config.json"),
        folder.join("mlc-chat-config.json"),
    )
    .expect("copied");
    let mut model = load(&folder.to_string_lossy(), None, Precision::Auto).expect("loads");
    let error = logits_error(&mut model, &Golden::read(&from.join("golden.safetensors")));
    assert!(
        layouts(&model)
            .iter()
            .flatten()
            .any(|l| l == "q4_g32_zero_f32"),
        "{:?}",
        layouts(&model)
    );
    assert!(error < 2e-4, "{error:e}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// A checkpoint of these tensors, with another model's changed configuration.
fn write_checkpoint(
    to: &Path,
    config_of: &Path,
    tensors: &[(String, safetensors::Dtype, Vec<usize>, Vec<u8>)],
    change: impl Fn(&mut serde_json::Value),
) {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (
            name,
            safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).expect("a view"),
        )
    });
    std::fs::create_dir_all(to).expect("a folder");
    std::fs::write(
        to.join("model.safetensors"),
        safetensors::serialize(views, None).expect("a file"),
    )
    .expect("written");
    let config = std::fs::read(config_of.join("config.json")).expect("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    change(&mut config);
    std::fs::write(to.join("config.json"), config.to_string()).expect("written");
}

/// The generated text of a prompt, with the model's own tokenizer.
fn told(
    folder: &Path,
    gguf: Option<&str>,
    precision: Precision,
    prompt: &str,
) -> (Vec<u32>, String) {
    block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        let gpu = open(&DeviceOptions {
            f16: false,
            ..DeviceOptions::default()
        });
        let mut loaded =
            ChatModel::load_file(gpu, &source, gguf, "twin", options(precision)).await?;
        let ids = loaded.text.tokenizer()?.encode(prompt, true)?;
        let request = serde_json::json!({ "prompt": prompt, "temperature": 0, "maxTokens": 48 });
        let request = GenerateRequest::from_json(&request.to_string())?;
        let outcome = loaded.generate(&request, &AbortFlag::new(), |_| {}).await?;
        Ok::<_, jerboa::Error>(([ids, outcome.ids].concat(), outcome.text))
    })
    .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
}

fn stories() -> std::path::PathBuf {
    golden("../../www/public/models/stories260K")
}

/// A GGUF file of the gguf package with its tokenizer gives the ids of its safetensors counterpart.
#[test]
fn gguf_references_generate_the_same_ids() {
    for (gguf, safetensors, precision, prompts) in [
        // The file stores f16, so the safetensors model is loaded as f16 too.
        (
            golden("quant/twin_stories"),
            stories(),
            Precision::F16,
            ["Once upon a time, there was a dog", "Tim and Sü said: 42!"],
        ),
        (
            golden("quant/twin_qwen3"),
            golden("quant/twin_qwen3"),
            Precision::Auto,
            ["the <|im_start|>user\nrest 12", "I'm ßure  of it"],
        ),
    ] {
        for prompt in prompts {
            let found = told(&gguf, Some("model.gguf"), Precision::Auto, prompt);
            assert_eq!(
                found,
                told(&safetensors, None, precision, prompt),
                "{}: {prompt}",
                gguf.display()
            );
        }
    }
}

/// Perplexity of the bundled model with other precisions against f32: within 0.5 percent at 8 bits,
/// also with inputs of 8 bits in prompts, 8 percent at 4, and 0.2 percent with f16 matmuls on
/// subgroup matrices, native or emulated.
#[test]
fn perplexity_close_to_f32() {
    let text = std::fs::read_to_string(golden("stories260K/story.txt")).expect("the fixed text");
    let of = |precision, activations, device: DeviceOptions| {
        block_on(async {
            let model = ModelRef::parse(&stories().to_string_lossy())?;
            let source = Source::open(
                &model,
                &HubOptions::default(),
                AbortFlag::new(),
                Progress::silent(),
            )
            .await?;
            let mut options = RunOptions {
                max_context: Some(512),
                ..options(precision)
            };
            options.overrides.activations = activations;
            ChatModel::load(open(&device), &source, "stories", options)
                .await?
                .perplexity(&text)
                .await
        })
        .expect("perplexity")
    };
    let plain = DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    };
    let (reference, tokens) = of(Precision::F32, QuantizeInputs::Never, plain.clone());
    assert!(tokens > 2000, "{tokens}");
    let cases = [
        (Precision::Q8, QuantizeInputs::Never, plain.clone(), 0.005),
        (Precision::Q8, QuantizeInputs::Always, plain.clone(), 0.005),
        (Precision::Q4, QuantizeInputs::Never, plain, 0.08),
        (Precision::F16, QuantizeInputs::Never, on_units(64), 0.002),
    ];
    let mut all = Vec::new();
    for (precision, activations, device, limit) in cases {
        let (found, _) = of(precision, activations, device);
        all.push(found);
        println!("{precision:?}: {found} for {reference}");
        assert!(
            (found / reference - 1.0).abs() < limit,
            "{precision:?}: {found} for {reference}"
        );
    }
    assert_ne!(all[0], all[1], "inputs of 8 bits were not used");
}

#[test]
fn quantized_on_load_stays_close() {
    for (name, q8, q4) in [
        ("llama", 0.04, 0.5),
        ("qwen3", 0.04, 0.5),
        ("phi3", 0.04, 0.5),
    ] {
        let folder = format!("models/{name}");
        let expected = Golden::read(&golden(&format!("{folder}/golden.safetensors")));
        let mut last = 0.0;
        for (precision, limit) in [(Precision::Q8, q8), (Precision::Q4, q4)] {
            let mut model =
                load(&folder, None, precision).unwrap_or_else(|e| panic!("{name}: {e}"));
            let error = logits_error(&mut model, &expected);
            assert!(
                error > last && error < limit,
                "{name} {precision:?}: {error}"
            );
            last = error;
        }
    }
}

/// The layouts of the tables and of the other matrices.
fn layouts(model: &Session) -> [BTreeSet<String>; 2] {
    [true, false].map(|tables| {
        let matrices = model
            .model()
            .weights()
            .iter()
            .filter(|(_, w)| !matches!(w.kind, WeightKind::Vector | WeightKind::Order));
        let table = |id| {
            model
                .model()
                .graph()
                .weight(id)
                .parts
                .iter()
                .any(|p| p.0.contains("embed") || p.0.contains("lm_head"))
        };
        matrices
            .filter(|(id, _)| table(**id) == tables)
            .map(|(_, w)| w.layout.name())
            .collect()
    })
}

/// A checkpoint whose tables are stored in MLX's format, quantized by the CPU reference.
fn with_tables_of_the_reference(folder: &Path, to: &Path, bits: u8) {
    let file = std::fs::read(folder.join("model.safetensors")).expect("weights");
    let stored = safetensors::SafeTensors::deserialize(&file).expect("safetensors");
    let mut tensors: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, view) in stored.tensors() {
        let Some(base) = name
            .strip_suffix(".weight")
            .filter(|n| n.contains("embed") || n.contains("lm_head"))
        else {
            tensors.push((
                name,
                view.dtype(),
                view.shape().to_vec(),
                view.data().to_vec(),
            ));
            continue;
        };
        let float = match view.dtype() {
            safetensors::Dtype::F32 => Float::F32,
            safetensors::Dtype::F16 => Float::F16,
            _ => Float::BF16,
        };
        let rows = view.shape()[0];
        let cols = view.shape()[1];

        let packed = quantize::quantize(bits, rows, cols, |row, col| {
            float.get(view.data(), row * cols + col).expect("a value")
        });
        let bytes = |words: &mut dyn Iterator<Item = u32>| {
            words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
        };
        let halves = |shift: u32| {
            packed.planes[1]
                .iter()
                .flat_map(|w| ((w >> shift) as u16).to_le_bytes())
                .collect()
        };
        let code_words = cols * usize::from(bits) / 32;
        let codes = bytes(&mut packed.planes[0].iter().copied());
        tensors.push((
            name.clone(),
            safetensors::Dtype::U32,
            vec![rows, code_words],
            codes,
        ));
        for (part, shift) in [("scales", 0), ("biases", 16)] {
            tensors.push((
                format!("{base}.{part}"),
                safetensors::Dtype::F16,
                vec![rows, cols / 32],
                halves(shift),
            ));
        }
    }
    write_checkpoint(to, folder, &tensors, |config| {
        config["quantization"] = serde_json::json!({"bits": bits, "group_size": 32});
    });
}

/// Matrices that read the residual stream; small models quantize them to 8 bits when 4 are
/// requested.
const READERS: [&str; 5] = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"];

/// Embeddings and head have 8 bits in a 4-bit model unless requested otherwise; the codes equal the
/// CPU reference's. In these small models, matrices that read the residual stream have 8 bits, the
/// others 4.
#[test]
fn tables_use_the_requested_layout() {
    use Precision::{Auto, F16, Q4, Q8};
    let device = DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    };
    let load = |folder: &Path, precision, tables| {
        block_on(async {
            let model = ModelRef::parse(&folder.to_string_lossy())?;
            let source = Source::open(
                &model,
                &HubOptions::default(),
                AbortFlag::new(),
                Progress::silent(),
            )
            .await?;
            let files = ModelFiles::open(&source, None).await?;
            let mut options = options(precision);
            options.overrides.tables = tables;
            Session::load_files(open(&device), &source, files, options).await
        })
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
    };
    let logits =
        |model: &mut Session, ids: &[u32]| block_on(model.all_rows(ids, false)).expect("logits");
    let [q4, q8] = ["q4_g32_bias_f16", "q8_g32_bias_f16"];
    let temporary =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tables-{}", std::process::id()));
    for name in ["models/qwen2_untied", "quant/twin_qwen3"] {
        let folder = golden(name);
        let ids = [1, 5, 60, 200, 7, 31, 100, 3];

        let reference = logits(&mut load(&folder, Precision::F32, Auto), &ids);
        for (precision, tables, expected) in [
            (Q4, Auto, [q8, q4]),
            (Q4, Q8, [q8, q4]),
            (Q4, Q4, [q4, q4]),
            (Q4, F16, ["f16", q4]),
            (Q8, Q4, [q4, q8]),
            (F16, Q4, [q4, "f16"]),
            (Q8, Auto, [q8, q8]),
        ] {
            let others = expected[1];
            let readers = if others == q4 { q8 } else { others };
            let mut model = load(&folder, precision, tables);
            let found = layouts(&model);
            let wanted = [
                BTreeSet::from([expected[0]]),
                BTreeSet::from([readers, others]),
            ];
            assert_eq!(
                found,
                wanted.map(|set| set.into_iter().map(String::from).collect::<BTreeSet<_>>()),
                "{name} {precision:?} {tables:?}"
            );
            for (id, weight) in model
                .model()
                .weights()
                .iter()
                .filter(|(_, w)| w.kind == WeightKind::Matrix)
            {
                for (tensor, _) in &model.model().graph().weight(*id).parts {
                    let reads = READERS.iter().any(|reader| tensor.contains(reader));
                    assert_eq!(
                        weight.layout.name(),
                        if reads { readers } else { others },
                        "{name}: {tensor}"
                    );
                }
            }
            let found = logits(&mut model, &ids);
            let error = relative_l2(&found, &reference);
            let limit = if precision == Q4 || tables == Q4 {
                0.5
            } else {
                0.04
            };
            println!("{name} {precision:?} {tables:?}: {error}");
            assert!(
                error > 0.0 && error < limit,
                "{name} {precision:?} {tables:?}: {error}"
            );
            for (bits, layout) in [(4, q4), (8, q8)] {
                if expected[0] == layout {
                    with_tables_of_the_reference(&folder, &temporary, bits);
                    let reference = logits(&mut load(&temporary, precision, Auto), &ids);
                    let same = reference
                        .iter()
                        .zip(&found)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        same,
                        "{name} {precision:?} {tables:?}: codes differ from the CPU reference's"
                    );
                }
            }
        }
        // Tables with few bits cost accuracy and save memory.
        let [eight, four] = [Auto, Q4].map(|tables| load(&folder, Q4, tables));
        assert!(
            four.model().bytes().weights < eight.model().bytes().weights,
            "{name}"
        );
        let [mut eight, mut four] = [eight, four];
        let error = |model: &mut Session| relative_l2(&logits(model, &ids), &reference);
        assert!(error(&mut eight) < error(&mut four), "{name}");
    }
    std::fs::remove_dir_all(&temporary).expect("removed");
}

async fn opened(path: &str) -> jerboa::Result<Source> {
    let model = ModelRef::parse(&golden(path).to_string_lossy())?;
    Source::open(
        &model,
        &HubOptions::default(),
        AbortFlag::new(),
        Progress::silent(),
    )
    .await
}

/// `auto` preserves the stored format if it fits, then tries 8 bits, then 4, and says so.
#[test]
fn auto_fits_the_memory() {
    let load = |precision, memory| {
        block_on(async {
            let source = opened("models/qwen3").await?;
            let files = ModelFiles::open(&source, None).await?;
            let options = RunOptions {
                memory,
                ..options(precision)
            };
            Session::load_files(open(&DeviceOptions::default()), &source, files, options).await
        })
        .expect("loads")
    };
    let needed = |model: &Session| {
        model
            .model()
            .weights()
            .values()
            .map(|w| w.bytes())
            .sum::<u64>()
            + model.model().bytes().kv
            + HEADROOM_BYTES
    };
    let stored = load(Precision::Auto, None);
    assert_eq!(
        (stored.model().precision.name(), stored.model().notes.len()),
        ("stored", 0)
    );
    let [q8, q4] = [Precision::Q8, Precision::Q4].map(|precision| needed(&load(precision, None)));
    assert!(q4 < q8 && q8 < needed(&stored));
    for (memory, name, notes) in [
        (needed(&stored), "stored", 0),
        (q8, "q8", 1),
        (q8 - 1, "q4", 1),
        (q4 - 1, "q4", 2),
    ] {
        let model = load(Precision::Auto, Some(memory));
        assert_eq!(
            (model.model().precision.name(), model.model().notes.len()),
            (name, notes),
            "{memory}: {:?}",
            model.model().notes
        );
        assert!(
            notes == 0 || model.model().notes[0].contains(&format!("quantized to {name}")),
            "{:?}",
            model.model().notes
        );
    }
    // An explicit precision is used, with a warning.
    let model = load(Precision::F32, Some(q4));
    assert_eq!(
        (model.model().precision.name(), model.model().notes.len()),
        ("f32", 1)
    );
}

/// `inspect` on checkpoints of each kind, and on broken ones.
#[test]
fn inspection() {
    let inspect = |path: &str| {
        block_on(async {
            Ok::<_, jerboa::Error>(
                ModelFiles::open_unchecked(&opened(path).await?, None)
                    .await?
                    .inspect(PrecisionOptions::default()),
            )
        })
        .unwrap_or_else(|e| panic!("{path}: {e}"))
        .to_string()
    };
    for (path, lines) in [
        (
            "models/llama_sharded",
            [
                "architecture: LlamaForCausalLM (llama)",
                "runs: yes",
                "file: model-00001",
            ]
            .as_slice(),
        ),
        (
            "quant/model_mlx",
            &[
                "runs: yes",
                "encoding: mlx 4 bit group 64",
                "encoding: mlx 6 bit group 32",
            ],
        ),
        (
            "quant/llama_gptq_order",
            &["runs: yes", "encoding: gptq 4 bit group 32"],
        ),
        ("quant/qwen3_nf4", &["runs: yes", "on the device: f16"]),
        (
            "quant/phi3_mlc",
            &[
                "architecture: Phi3ForCausalLM (phi3)",
                "runs: yes",
                "file: params_shard_0.bin",
            ],
        ),
        (
            "quant/gguf_q4_k_m/model.gguf",
            &["runs: yes", "Q4_K", "Q6_K", "file: model.gguf"],
        ),
        (
            "models/bert",
            &[
                "architecture: BertModel (bert)",
                "runs: yes",
                "encoding: f32",
            ],
        ),
        (
            "quant/twin_stories",
            &["runs: yes", "F16", "head tied to the embedding"],
        ),
    ] {
        let found = inspect(path);
        for line in lines {
            assert!(found.contains(line), "{path}: {line} in\n{found}");
        }
    }
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("inspect-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let config =
        std::fs::read_to_string(golden("quant/model_mlx/config.json")).expect("config.json");
    std::fs::copy(
        golden("quant/model_mlx/model.safetensors"),
        folder.join("model.safetensors"),
    )
    .expect("copied");
    for (from, to, faults) in [
        (
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 3",
            ["runs: no", "missing_tensor", "model.layers.2."],
        ),
        (
            "\"intermediate_size\": ",
            "\"intermediate_size\": 1",
            ["runs: no", "shape", "mlp.down_proj.weight"],
        ),
        (
            "ForCausalLM\"",
            "ForNobody\"",
            ["runs: no", "unknown_architecture", "ForNobody"],
        ),
    ] {
        assert!(config.contains(from), "{from}");
        std::fs::write(folder.join("config.json"), config.replace(from, to)).expect("written");
        let found = inspect(&folder.to_string_lossy());
        for fault in faults {
            assert!(found.contains(fault), "{to}: {fault} in\n{found}");
        }
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// The tokenizer of a GGUF file is the one of its tokens and merges.
#[test]
fn gguf_tokenizer_is_used() {
    let loaded = block_on(async {
        let model = ModelRef::parse(&golden("quant/gguf_q8_0").to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        let gpu = open(&DeviceOptions::default());
        ChatModel::load_file(
            gpu,
            &source,
            Some("model.gguf"),
            "tiny",
            options(Precision::Auto),
        )
        .await
    })
    .expect("loads");
    let tokenizer = loaded.text.tokenizer().expect("a tokenizer");
    let text = "the rest, aß\n";
    let ids = tokenizer.encode(text, true).expect("ids");
    // 3 special tokens and 256 bytes precede the merged tokens, of which the first are th, he, in,
    // er.
    assert_eq!(ids[0], 259);
    assert_eq!(tokenizer.decode(&ids, true), text);
    assert_eq!(tokenizer.eos_ids(), [2]);
}
