//! Prompts on f16 subgroup matrices, emulated on devices without them: for every feature of a
//! family, f16 matmuls with f32 sums give the reference's logits within 1e-2 and its greedy ids.

use super::{greedy, halves, start, with_kv};
use jerboa::exec::{Precision, PrecisionOptions, RunOptions};
use jerboa::gpu::Backend;
use jerboa_tests::{least, relative_l2};
use pollster::block_on;

/// Models of tests/golden/models with f16 weights and cache, alternating between tile heights.
fn on_units(names: &[&str], limit: f64) {
    for (name, tile) in names.iter().zip([32, 64, 128, 256].into_iter().cycle()) {
        let overrides = PrecisionOptions {
            precision: Precision::F16,
            ..with_kv(halves()).overrides
        };
        let options = RunOptions {
            overrides,
            ..with_kv(halves())
        };
        let (mut model, golden) = start(name, &jerboa_tests::on_units(tile), options);
        let units = model.gpu().caps().subgroup_matrix();
        assert!(
            least() || units.is_some_and(|units| units.half),
            "{name}: {units:?}"
        );
        let (ids, reference) = (golden.ids("input_ids"), golden.ids("greedy"));
        let found = block_on(model.all_rows(&ids, false)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let error = relative_l2(&found, &golden.floats("logits"));
        assert!(error < limit, "{name}, tiles of {tile} rows: {error:e}");
        assert_eq!(
            greedy(&mut model, &ids, reference.len()),
            reference,
            "{name}, tiles of {tile} rows"
        );
        println!("{name}, tiles of {tile} rows: {error:.1e}");
    }
}

#[test]
fn dense_families() {
    let names = [
        "llama",
        "llama_bias",
        "mistral",
        "smollm3",
        "qwen2",
        "qwen3",
        "phi3",
        "gemma2",
        "gemma3",
        "gemma4",
        "gemma4_kv",
        "granite",
        "olmo2",
        "glm4",
        "ernie4_5",
        "helium",
        "starcoder2",
        "gpt_neox",
        "gpt2",
        "gemma3n",
    ];
    on_units(&names, 1e-2);
}

#[test]
fn hybrids_and_experts() {
    let names = [
        "lfm2",
        "qwen3_5",
        "qwen3_5_odd",
        "granite_hybrid",
        "nemotron_h",
        "granite_moe",
        "granite_moe_shared",
        "granite_hybrid_moe",
        "nemotron_h_moe",
        "falcon_h1",
        "mixtral",
        "qwen3_moe",
        "gpt_oss",
        "gpt_oss_mxfp4",
        "phimoe",
        "deepseek_v2",
        "deepseek_v3",
        "qwen3_5_moe",
        "qwen3_next",
        "lfm2_moe",
        "olmo3",
        "olmoe",
        "ernie4_5_moe",
        "glm4_moe_lite",
        // In gemma4_moe the third and fourth expert of one row are so close that f16 selects
        // another one, in transformers too.
        "gemma4_moe_odd",
    ];
    on_units(&names, 1e-2);
}

/// Rounding activations to 8 bits amplifies small differences now and then: an f16 cache alone,
/// without subgroup matrices, has an error of 1.1e-2 and 1.5e-2 here.
#[test]
fn int8_activations() {
    on_units(&["bitnet_packed", "bitnet"], 2e-2);
}
