//! Whole quantised models on the device: their logits and greedy ids equal transformers run on the dequantised weights.

use jerboa::exec::{Files, GreedyDecode, Model, Overrides, Precision, RunOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;

fn options(precision: Precision) -> RunOptions {
    let overrides = Overrides { kv: Some(Kv::F32), precision };
    RunOptions { max_context: Some(128), overrides, ..RunOptions::default() }
}

fn load(folder: &str, gguf: Option<&str>, precision: Precision) -> jerboa::Result<Model> {
    block_on(async {
        let model = ModelRef::parse(&golden(folder).to_string_lossy())?;
        let source = Source::open(&model, &HubOptions::default(), AbortFlag::new(), Progress::none()).await?;
        let files = Files::open(&source, gguf).await?;
        let device = DeviceOptions { f16: false, ..DeviceOptions::default() };
        Model::load_files(open(&device), &source, files, options(precision)).await
    })
}

fn logits_error(model: &mut Model, golden: &Golden) -> f64 {
    let ids = golden.ids("input_ids");
    let found = block_on(model.every_row(&ids, false)).expect("logits");
    relative_l2(&found, &golden.floats("logits"))
}

fn greedy(model: &mut Model, ids: &[u32], count: usize) -> Vec<u32> {
    block_on(async {
        model.prefill(ids, 0).await.expect("prefill");
        let mut decode = GreedyDecode::start(model, ids.len(), &[], count).expect("start");
        let mut tokens = Vec::new();
        loop {
            let next = decode.next(model).await.expect("decode");
            if next.is_empty() {
                return tokens;
            }
            tokens.extend(next);
        }
    })
}

#[test]
fn quantised_models_equal_the_reference() {
    for (name, gguf) in [
        ("model_mlx", None),
        ("model_gptq", None),
        ("model_awq", None),
        ("gguf_q8_0", Some("model.gguf")),
        ("gguf_q4_k_m", Some("model.gguf")),
        ("gguf_tq2_0", Some("model.gguf")),
    ] {
        // GPTQ's act-order becomes plain numbers, here of 32 bits.
        let precision = if name == "model_gptq" { Precision::F32 } else { Precision::Auto };
        let mut model = load(&format!("quant/{name}"), gguf, precision).unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected = Golden::read(&golden(&format!("quant/{name}/golden.safetensors")));
        let error = logits_error(&mut model, &expected);
        assert!(error < 2e-4, "{name}: {error:e}");
        let ids = expected.ids("input_ids");
        assert_eq!(greedy(&mut model, &ids, 24), expected.ids("greedy"), "{name}");
    }
}

#[test]
fn quantised_on_load_stays_near() {
    for (name, q8, q4) in [("llama", 0.04, 0.5), ("qwen3", 0.04, 0.5), ("phi3", 0.04, 0.5)] {
        let folder = format!("models/{name}");
        let expected = Golden::read(&golden(&format!("{folder}/golden.safetensors")));
        let mut last = 0.0;
        for (precision, limit) in [(Precision::Q8, q8), (Precision::Q4, q4)] {
            let mut model = load(&folder, None, precision).unwrap_or_else(|e| panic!("{name}: {e}"));
            let error = logits_error(&mut model, &expected);
            assert!(error > last && error < limit, "{name} {precision:?}: {error}");
            last = error;
        }
    }
}

/// The tokenizer inside a GGUF file is the one that its tokens and merges describe.
#[test]
fn gguf_file_brings_its_tokenizer() {
    let loaded = block_on(async {
        let model = ModelRef::parse(&golden("quant/gguf_q8_0").to_string_lossy())?;
        let source = Source::open(&model, &HubOptions::default(), AbortFlag::new(), Progress::none()).await?;
        let gpu = open(&DeviceOptions::default());
        jerboa::task::Loaded::load_file(gpu, &source, Some("model.gguf"), "tiny", options(Precision::Auto)).await
    })
    .expect("loads");
    let tokenizer = loaded.text.tokenizer().expect("a tokenizer");
    let text = "the rest, aß\n";
    let ids = tokenizer.encode(text, true).expect("ids");
    // 3 special tokens and 256 bytes come before the merged pieces, of which the first are th, he, in, er.
    assert_eq!(ids[0], 259);
    assert_eq!(tokenizer.decode(&ids, true), text);
    assert_eq!(tokenizer.eos_ids(), [2]);
}
