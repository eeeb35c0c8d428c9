//! The sampler against its reference implementation, which sorts all tokens: equal tokens for every
//! seed.

use jerboa::reference::sample as reference;
use jerboa::sample::{Sampler, SamplingParams};
use proptest::prelude::*;

fn parameters() -> impl Strategy<Value = SamplingParams> {
    let filters = (
        prop_oneof![Just(0u32), 1u32..60],
        prop_oneof![Just(1.0), 0.0..1.0],
        prop_oneof![Just(0.0), 0.0..1.0],
    );
    let penalties = (prop_oneof![Just(1.0), 0.5..2.0], -2.0..2.0, -2.0..2.0);
    let bias = proptest::collection::btree_map(
        0u32..7,
        prop_oneof![Just(f64::NEG_INFINITY), -3.0..3.0],
        0..4,
    );
    (0.05..3.0, filters, penalties, bias, any::<u64>()).prop_map(
        |(temperature, filters, penalties, logit_bias, seed)| SamplingParams {
            greedy: false,
            temperature,
            top_k: filters.0,
            top_p: filters.1,
            min_p: filters.2,
            typical_p: 1.0,
            repetition_penalty: penalties.0,
            presence_penalty: penalties.1,
            frequency_penalty: penalties.2,
            logit_bias: logit_bias.into_iter().collect(),
            seed: Some(seed),
            ..SamplingParams::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn tokens_equal_the_reference(
        params in parameters(),
        mut row in prop_oneof![
            proptest::collection::vec(-12f32..12.0, 8..90),
            // Few distinct values: ties at every border.
            proptest::collection::vec((-3i8..3).prop_map(f32::from), 8..2100),
        ],
        prompt in proptest::collection::vec(0u32..50, 0..5),
    ) {
        row[7] += 0.5;
        row[0] -= 0.25;
        let seed = params.seed.unwrap();
        let mut sampler = Sampler::new(params.clone(), row.len(), 0).unwrap();
        sampler.start(&prompt);
        for step in 0..8 {
            let scores = reference::adjust(&row, &params, sampler.counts());
            let expected = reference::sample(&scores, &params, seed, step);
            let kept: Vec<u32> = reference::filtered(&scores, &params).into_iter().map(|(id, _)| id).collect();
            let found: Vec<u32> =
                sampler.distribution(&row, None).unwrap().probabilities().map(|(id, _)| id).collect();
            prop_assert_eq!(found, kept);
            prop_assert_eq!(Some(sampler.sample(&row, None).unwrap()), expected);
        }
    }
}
