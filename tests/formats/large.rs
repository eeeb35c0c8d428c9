//! Tensors larger than the device's limits are split into several buffers, with equal logits.

use jerboa::exec::{ModelFiles, PrecisionOptions, RunOptions, Session};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::ir::WeightKind;
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::{open, random, relative_l2};
use pollster::block_on;
use std::io::Write;
use std::path::Path;

fn load(folder: &Path, gguf: Option<&str>, buffers: Option<u64>, weights: Option<u64>) -> Session {
    block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
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
            max_buffer_size: buffers,
            ..DeviceOptions::default()
        };
        let overrides = PrecisionOptions {
            kv_type: Some(Kv::F32),
            ..PrecisionOptions::default()
        };
        let options = RunOptions {
            max_context: Some(64),
            max_weight_buffer: weights,
            overrides,
            ..RunOptions::default()
        };
        Session::load_files(open(&device), &source, files, options).await
    })
    .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
}

/// Matrices in several buffers, without tables.
fn cut_matrices(model: &Session) -> usize {
    model
        .model()
        .weights()
        .values()
        .filter(|w| w.kind == WeightKind::Matrix && w.shards.len() > 1)
        .count()
}

#[test]
fn split_matrices_give_the_reference_logits() {
    for (name, gguf) in [
        ("models/llama", None),
        ("models/qwen3", None),
        ("models/phi3", None),
        ("quant/model_mlx", None),
        ("quant/llama_mxfp4", None),
        ("quant/llama_gptq_order", None),
        ("quant/phi3_fp8", None),
        ("quant/phi3_mlc", None),
        ("quant/qwen3_awq", None),
        ("quant/qwen3_ct_asym", None),
        ("quant/gguf_q8_0", Some("model.gguf")),
        ("quant/gguf_q4_k_m", Some("model.gguf")),
        ("quant/gguf_tq2_0", Some("model.gguf")),
    ] {
        let expected = Golden::read(&golden(&format!("{name}/golden.safetensors")));
        let ids = expected.ids("input_ids");
        let logits = expected.floats("logits");

        let mut model = load(&golden(name), gguf, None, Some(2048));
        assert!(cut_matrices(&model) > 0, "{name}: nothing was cut");
        let found = block_on(model.all_rows(&ids, false)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let error = relative_l2(&found, &logits);
        let cut = cut_matrices(&model);

        println!("{name}: {cut} matrices in several buffers, {error:e}");
        assert!(error < 2e-4, "{name}: {error:e}");
    }
}

/// An expert's rows are in one buffer; the experts of a row may be in several, for few rows and for
/// many.
#[test]
fn experts_in_several_buffers_give_the_reference_logits() {
    for (name, gguf) in [
        ("models/mixtral", None),
        ("quant/gguf_mixtral", Some("model.gguf")),
    ] {
        let expected = Golden::read(&golden(&format!("{name}/golden.safetensors")));
        let ids = expected.ids("input_ids");
        let logits = expected.floats("logits");

        let mut model = load(&golden(name), gguf, None, Some(5000));
        let experts = |w: &&jerboa::plan::WeightPlan| {
            matches!(w.kind, WeightKind::Experts { .. }) && w.shards.len() > 1
        };
        assert!(
            model.model().weights().values().filter(experts).count() > 1,
            "{name}: nothing was cut"
        );
        let error = relative_l2(
            &block_on(model.all_rows(&ids, false)).expect("logits"),
            &logits,
        );
        assert!(error < 2e-4, "{name}: {error:e}");
        let mut found = Vec::new();
        for (pos, id) in ids.iter().enumerate() {
            block_on(model.step(*id, pos)).expect("a step");
            found.extend(block_on(model.logits()).expect("logits"));
        }
        let error = relative_l2(&found, &logits);
        assert!(error < 2e-4, "{name}: token by token {error:e}");
    }
}

/// Rows and columns of the table: 402,653,184 bytes of f16, more rows than a grid's maximum per
/// dimension.
const ROWS: usize = 131_072;
const COLS: usize = 1_536;

/// A prime larger than the number of rows: each row has its own offset.
const PLACES: usize = 131_101;

/// f16 numbers of about ±0.02 for the table. Rows are overlapping ranges of one block, no two
/// equal: 400 MB of separate numbers would take longer to make than to load.
struct Table(Vec<u16>);

impl Table {
    fn new() -> Self {
        Self(
            random(1, PLACES + COLS)
                .into_iter()
                .map(|v| half::f16::from_f32(v * 0.02).to_bits())
                .collect(),
        )
    }

    fn row(&self, row: usize) -> &[u16] {
        let first = row * 7_919 % PLACES;
        &self.0[first..first + COLS]
    }
}

/// A llama of one layer whose tied embedding takes 400 MB.
fn write_large(folder: &Path, table: &Table) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let config = serde_json::json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": ROWS,
        "hidden_size": COLS, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "torch_dtype": "float16"});
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let layer = "model.layers.0";
    let mut tensors = vec![("model.embed_tokens.weight".to_string(), vec![ROWS, COLS])];
    for (name, shape) in [
        ("self_attn.q_proj", vec![128, COLS]),
        ("self_attn.k_proj", vec![64, COLS]),
        ("self_attn.v_proj", vec![64, COLS]),
        ("self_attn.o_proj", vec![COLS, 128]),
        ("mlp.gate_proj", vec![64, COLS]),
        ("mlp.up_proj", vec![64, COLS]),
        ("mlp.down_proj", vec![COLS, 64]),
        ("input_layernorm", vec![COLS]),
        ("post_attention_layernorm", vec![COLS]),
    ] {
        tensors.push((format!("{layer}.{name}.weight"), shape));
    }
    tensors.push(("model.norm.weight".into(), vec![COLS]));
    let mut header = serde_json::Map::new();
    let mut at = 0;

    for (name, shape) in &tensors {
        let end = at + 2 * shape.iter().product::<usize>();
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": "F16", "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file =
        std::io::BufWriter::new(std::fs::File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for row in 0..ROWS {
        file.write_all(bytemuck::cast_slice(table.row(row)))?;
    }
    for (i, (_, shape)) in tensors.iter().enumerate().skip(1) {
        let about = if shape.len() == 1 { 1.0 } else { 0.0 };
        let values = random(900 + i as u64, shape.iter().product());
        let halves: Vec<u16> = values
            .into_iter()
            .map(|v| half::f16::from_f32(v * 0.03 + about).to_bits())
            .collect();
        file.write_all(bytemuck::cast_slice(&halves))?;
    }
    file.flush()
}

#[test]
fn a_tensor_of_400_mb_in_buffers_of_128_mib_gives_the_same_logits() {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("large-{}", std::process::id()));
    let table = Table::new();
    write_large(&folder, &table).expect("room for 400 MB");
    // Includes the first and last rows of buffers.
    let ids = [0, 131_071, 43_690, 43_691, 65_535, 65_536, 87_381, 1];
    let found: Vec<(usize, Vec<f32>, Vec<f32>)> = [1 << 30, 128 << 20, 50_000_000]
        .into_iter()
        .map(|limit| {
            let mut model = load(&folder, None, Some(limit), None);
            let runs = model
                .model()
                .weights()
                .values()
                .map(|w| w.shards.len())
                .max()
                .unwrap_or(0);
            assert!(
                runs * limit as usize >= ROWS * COLS * 2,
                "{runs} buffers of {limit}"
            );
            block_on(async {
                let hidden = model.all_rows(&ids, true).await?;
                model.prefill(&ids, 0).await?;
                Ok::<_, jerboa::Error>((runs, hidden, model.logits().await?))
            })
            .expect("runs")
        })
        .collect();
    std::fs::remove_dir_all(&folder).expect("removed");
    for (runs, hidden, logits) in &found {
        assert!(
            relative_l2(hidden, &found[0].1) < 1e-6,
            "{runs} buffers: hidden states"
        );
        assert!(
            relative_l2(logits, &found[0].2) < 1e-6,
            "{runs} buffers: logits"
        );
        // Reference: the head in f64 on the last hidden state, for rows across the table.
        let last = &hidden[hidden.len() - COLS..];
        for row in (0..ROWS).step_by(4_999).chain(ids.map(|id| id as usize)) {
            let matmul: f64 = table
                .row(row)
                .iter()
                .zip(last)
                .map(|(w, x)| f64::from(half::f16::from_bits(*w).to_f32()) * f64::from(*x))
                .sum();
            assert!(
                (matmul - f64::from(logits[row])).abs() < 1e-4,
                "{runs} buffers, row {row}: {matmul}"
            );
        }
    }
}
