//! Every named value of a graph, against transformers' hidden states between layers.

use super::{exact, start, with_kv};
use jerboa::exec::RunOptions;
use jerboa::kernels::attention::Kv;
use jerboa::plan::Fusions;
use jerboa_tests::relative_l2;
use pollster::block_on;

#[test]
fn values_between_layers_are_those_of_the_reference() {
    // Includes selected experts and views of fused projections.
    for (name, end) in [
        ("qwen3_moe", "experts_residual"),
        ("gemma2", "mlp_residual"),
    ] {
        let options = RunOptions {
            fusions: Fusions::NONE,
            prefill_chunk: 16,
            ..with_kv(Kv::F32)
        };
        let (mut session, golden) = start(name, &exact(), options);
        let ids = golden.ids("input_ids");
        let all = block_on(session.trace(&ids)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let value = |name: &str| {
            all.iter()
                .find(|t| t.name == name)
                .unwrap_or_else(|| panic!("no value {name}"))
        };
        let found = [
            ("hidden.0", value("model.embed_tokens")),
            (
                "hidden.1",
                all.iter()
                    .find(|t| t.name.starts_with("model.layers.0.") && t.name.ends_with(end))
                    .expect(end),
            ),
            ("hidden.2", value("model.norm")),
        ];
        for (expected, found) in found {
            let error = relative_l2(&found.values, &golden.halves(expected));
            assert!(
                error < 1e-3,
                "{name}: {} is not {expected}: {error:e}",
                found.name
            );
        }
        let error = relative_l2(&value("logits").values, &golden.floats("logits"));
        assert!(error < 2e-4, "{name}: {error:e}");
        let heads = value("model.layers.0.self_attn.q_proj");
        assert_eq!(heads.values.len(), ids.len() * heads.cols, "{name}");
    }
}
