//! Layers of GPT-OSS-20B with fewer experts on the device than the model has: checkpoints with
//! random weights, made here. Their numerics are covered by the small golden models of transformers
//! (tests/golden/models/gpt_oss_mxfp4).

use super::{exact, with_kv};
use jerboa::exec::{
    ExpertBudget, HEADROOM_BYTES, ModelFiles, Precision, PrecisionOptions, RunOptions, Session,
};
use jerboa::gpu::Backend;
use jerboa::ir::WeightKind;
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{golden, load, open as files_of};
use jerboa_tests::{open, random, relative_l2};
use pollster::block_on;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The model's number of experts per layer.
const EXPERTS: usize = 32;
/// The model's hidden size.
const WIDTH: usize = 2880;

/// A temporary folder, removed on drop.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // A folder that cannot be removed stays in the build's folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Random bytes, from which tensors of each kind take ranges.
struct Blocks {
    bytes: Vec<u8>,
    exponents: Vec<u8>,
    /// BF16 between -0.04 and 0.04.
    small: Vec<u8>,
}

impl Blocks {
    fn new() -> Self {
        let values = random(7, 1 << 20);
        let small = values
            .iter()
            .flat_map(|v| (((v * 0.04).to_bits() >> 16) as u16).to_le_bytes())
            .collect();
        let bytes: Vec<u8> = random(8, 1 << 20)
            .iter()
            .map(|v| (v * 128.0).floor() as i8 as u8)
            .collect();
        Self {
            exponents: bytes.iter().map(|byte| 116 + byte % 4).collect(),
            bytes,
            small,
        }
    }

    /// Returns this many bytes of a block, from a different offset for each tensor.
    fn piece(block: &[u8], tensor: usize, count: usize) -> Vec<u8> {
        block
            .iter()
            .copied()
            .cycle()
            .skip(tensor * 65_538 % block.len())
            .take(count)
            .collect()
    }

    /// Bytes of a tensor: norms of ones, a router with equal weights if `same` is set, else random.
    fn of(
        &self,
        (tensor, name): (usize, &str),
        dtype: Dtype,
        shape: &[usize],
        same: bool,
    ) -> Vec<u8> {
        let count: usize = shape.iter().product();
        match dtype {
            _ if same && name.contains("layers.0.mlp.router") => vec![0; 2 * count],
            _ if name.contains("norm") => Self::piece(&[0x80, 0x3f], 0, 2 * count),
            Dtype::U8 if name.ends_with("_scales") => Self::piece(&self.exponents, tensor, count),
            Dtype::U8 => Self::piece(&self.bytes, tensor, count),
            _ => Self::piece(&self.small, tensor, 2 * count),
        }
    }
}

/// A checkpoint of these sizes. With `same`, all logits of the first router are equal, so that the
/// first four experts get every token and the others none.
fn make(name: &str, config: &Value, same: bool) -> Made {
    let folder = Made(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    std::fs::write(folder.0.join("config.json"), config.to_string()).expect("a file");
    let size = |field: &str| config[field].as_u64().expect(field) as usize;
    let width = size("hidden_size");
    let vocabulary = size("vocab_size");
    let dim = size("head_dim");

    let queries = size("num_attention_heads") * dim;
    let keys = size("num_key_value_heads") * dim;

    let mut tensors: Vec<(String, Dtype, Vec<usize>)> = vec![
        (
            "lm_head.weight".into(),
            Dtype::BF16,
            vec![vocabulary, width],
        ),
        (
            "model.embed_tokens.weight".into(),
            Dtype::BF16,
            vec![vocabulary, width],
        ),
        ("model.norm.weight".into(), Dtype::BF16, vec![width]),
    ];
    for layer in 0..size("num_hidden_layers") {
        let mut add = |name: &str, dtype, shape: &[usize]| {
            tensors.push((
                format!("model.layers.{layer}.{name}"),
                dtype,
                shape.to_vec(),
            ));
        };
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(&format!("{norm}.weight"), Dtype::BF16, &[width]);
        }
        for (name, rows, cols) in [
            ("q_proj", queries, width),
            ("k_proj", keys, width),
            ("v_proj", keys, width),
            ("o_proj", width, queries),
        ] {
            add(
                &format!("self_attn.{name}.weight"),
                Dtype::BF16,
                &[rows, cols],
            );
            add(&format!("self_attn.{name}.bias"), Dtype::BF16, &[rows]);
        }
        add(
            "self_attn.sinks",
            Dtype::BF16,
            &[size("num_attention_heads")],
        );
        add("mlp.router.weight", Dtype::BF16, &[EXPERTS, width]);
        add("mlp.router.bias", Dtype::BF16, &[EXPERTS]);
        for (name, rows) in [("gate_up_proj", 2 * width), ("down_proj", width)] {
            add(
                &format!("mlp.experts.{name}_bias"),
                Dtype::BF16,
                &[EXPERTS, rows],
            );
            add(
                &format!("mlp.experts.{name}_blocks"),
                Dtype::U8,
                &[EXPERTS, rows, width / 32, 16],
            );
            add(
                &format!("mlp.experts.{name}_scales"),
                Dtype::U8,
                &[EXPERTS, rows, width / 32],
            );
        }
    }
    let blocks = Blocks::new();
    let all = tensors.iter().enumerate();
    let data: Vec<_> = all
        .map(|(at, (name, dtype, shape))| blocks.of((at, name), *dtype, shape, same))
        .collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, dtype, shape), bytes)| {
            (
                name.clone(),
                TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"),
            )
        });
    safetensors::serialize_to_file(views, None, &folder.0.join("model.safetensors"))
        .expect("a checkpoint");
    folder
}

/// Logits after a prompt of the first `prompt` ids and after each of the other ids.
fn walk(model: &mut Session, ids: &[u32], prompt: usize) -> Vec<f32> {
    let logits = |model: &Session| block_on(model.logits()).expect("logits");
    block_on(model.prefill(&ids[..prompt], 0)).expect("prefill");
    let mut found = logits(model);
    for (pos, id) in ids.iter().enumerate().skip(prompt) {
        block_on(model.step(*id, pos)).expect("a step");
        found.extend(logits(model));
    }
    found
}

fn start(folder: &Made, options: RunOptions) -> Session {
    load(
        open(&exact()),
        &folder.0,
        RunOptions {
            prefill_chunk: 32,
            ..options
        },
    )
    .expect("a model")
}

/// Bytes of this many experts of a layer: two up matrices and one down matrix, at 4 bits a weight
/// with a scale per 32.
fn bytes_of_experts(count: usize, width: usize) -> u64 {
    (count * 3 * width * (width / 2 + width / 32)) as u64
}

fn resident(model: &Session) -> u64 {
    let stacks = model
        .model()
        .weights()
        .values()
        .filter(|w| matches!(w.kind, WeightKind::Experts { .. }));
    stacks.map(|w| w.bytes()).sum()
}

/// Four of 32 experts, as many as a token selects, in exactly their bytes: ties, experts with all
/// tokens and with none. Two layers of a fifth of the width, whose blocks and scale words end where
/// those of a row of 2880 columns do.
#[test]
fn four_of_32_experts_in_little_memory() {
    let width = WIDTH / 5;
    let config = std::fs::read(golden("models/gpt_oss_mxfp4/config.json")).expect("config.json");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    for (field, value) in [
        ("hidden_size", width),
        ("intermediate_size", width),
        ("num_local_experts", EXPERTS),
        ("num_experts_per_tok", 4),
    ] {
        config[field] = value.into();
    }
    let folder = make("gpt_oss_many", &config, true);
    let ids = (0..20).map(|i| (i * 37 + 5) % 256).collect::<Vec<u32>>();

    let mut whole = start(&folder, with_kv(Kv::F32));
    // The estimate of the runner's `plan`, without a device.
    let source = block_on(files_of(&folder.0)).expect("a folder");
    let files = block_on(ModelFiles::open(&source, None)).expect("files");
    let predicted = files
        .estimate(
            whole.gpu().caps(),
            &RunOptions {
                prefill_chunk: 32,
                ..with_kv(Kv::F32)
            },
        )
        .expect("a plan");
    assert_eq!(predicted.dispatches(), whole.model().dispatches());
    assert_eq!(predicted.bytes_per_token(20), whole.bytes_per_token(20));
    let expected = walk(&mut whole, &ids, 16);
    let experts = Some(ExpertBudget::MaxBytes(2 * bytes_of_experts(4, width)));
    let mut few = start(
        &folder,
        RunOptions {
            experts,
            ..with_kv(Kv::F32)
        },
    );
    let error = relative_l2(&walk(&mut few, &ids, 16), &expected);
    assert!(error < 1e-5, "{error:e}");
    assert_eq!(
        few.model().bytes().weights,
        whole.model().bytes().weights - 2 * bytes_of_experts(28, width),
        "28 of 32 are not there"
    );
    let paging = few.model().paging().expect("experts come from the file");
    assert!(
        paging.slots == 4 && paging.hits < paging.requested && paging.hits > 0,
        "{paging:?}"
    );
}

/// A layer of GPT-OSS-20B at full width, with all heads and experts, in memory for eight experts.
#[test]
fn a_layer_of_gpt_oss_20b_in_forced_memory() {
    let config =
        std::fs::read(golden("configs/openai__gpt-oss-20b/config.json")).expect("config.json");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["num_hidden_layers"] = 1.into();
    config["layer_types"] = json!(["sliding_attention"]);
    config["vocab_size"] = 256.into();
    for field in ["eos_token_id", "pad_token_id"] {
        config[field] = 0.into();
    }
    // Repeated tokens select the same experts.
    let folder = make("gpt_oss_layer", &config, false);
    let ids = [5, 42, 5, 42, 79];

    // Other weights stay on the device, however little memory there is.
    let overrides = PrecisionOptions {
        precision: Precision::F16,
        ..with_kv(Kv::F32).overrides
    };
    let options = || RunOptions {
        max_context: Some(64),
        overrides,
        ..with_kv(Kv::F32)
    };
    let mut whole = start(&folder, options());
    assert_eq!(resident(&whole), bytes_of_experts(EXPERTS, WIDTH));
    let expected = walk(&mut whole, &ids, 2);
    let weights = whole.model().bytes().weights;
    let states = whole.model().state_bytes(whole.capacity());

    drop(whole);
    // Memory for eight and a half experts.
    let memory = weights - bytes_of_experts(EXPERTS - 8, WIDTH)
        + bytes_of_experts(1, WIDTH) / 2
        + states
        + HEADROOM_BYTES;
    let mut few = start(
        &folder,
        RunOptions {
            memory: Some(memory),
            ..options()
        },
    );
    assert_eq!(
        resident(&few),
        bytes_of_experts(8, WIDTH),
        "{:?}",
        few.model().notes
    );
    let error = relative_l2(&walk(&mut few, &ids, 2), &expected);
    assert!(error < 1e-5, "{error:e}");
    assert!(
        few.gpu().resource_counts().bytes <= memory,
        "{} of {memory}",
        few.gpu().resource_counts().bytes
    );
    let paging = few.model().paging().expect("experts come from the file");
    println!(
        "{paging:?}, {} of {memory} bytes",
        few.gpu().resource_counts().bytes
    );
    assert!(
        paging.slots == 8 && paging.hits < paging.requested && paging.hits > 0,
        "{paging:?}"
    );
    assert_eq!(
        paging.bytes,
        (paging.requested - paging.hits) * bytes_of_experts(1, WIDTH),
        "{paging:?}"
    );
}
