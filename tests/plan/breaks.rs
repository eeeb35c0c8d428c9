//! Breaks of a plan: where the host loads experts and table rows that are not on the device.

use super::goldens::families;
use super::{caps, layout_of};
use jerboa::arch;
use jerboa::ir::{Graph, WeightKind};
use jerboa::kernels::attention::Kv;
use jerboa::kernels::registry::Kernel;
use jerboa::plan::{
    ExpertSelection, Fusions, Plan, PlanBreak, PlanBreakKind, PlanOptions, Slot, StepKind,
    WeightPlans, add_prefetch_routers, fuse, lower, plan_states, plan_weights,
};

/// Plans a step with two experts of each layer and `table_rows` rows of each table on the device.
fn paged(graph: &Graph, rows: StepKind, table_rows: usize) -> Plan {
    let caps = caps();
    let mut weights = plan_weights(graph, &layout_of, caps.max_weight_buffer()).expect("weights");
    page(&mut weights, table_rows);
    let states = plan_states(graph, Kv::F16, 256, 64);
    let options = PlanOptions {
        rows,
        caps: &caps,
        weights: &weights,
        kv: Kv::F16,
        capacity: 256,
        states: &states,
        fuse_heads: true,
        fuse_norms: true,
        quantize_inputs: Default::default(),
    };
    lower(graph, options).expect("a plan")
}

fn page(weights: &mut WeightPlans, table_rows: usize) {
    let ids: Vec<_> = weights.keys().copied().collect();
    for id in ids {
        let plan = weights.get_mut(&id).expect("a weight");
        let limit = caps().max_weight_buffer();
        let held = match plan.kind {
            WeightKind::Experts { rows } => plan.hold_rows(2 * rows, rows, limit),
            WeightKind::Table if table_rows < plan.rows => plan.hold_rows(table_rows, 1, limit),
            _ => true,
        };
        assert!(held, "{id:?} cannot be paged");
    }
}

fn many_rows() -> Graph {
    let graph = arch::graph(&(&families()["Qwen3MoeForCausalLM"]).into()).expect("a graph");
    fuse::common(graph, Fusions::ALL, &layout_of)
}

fn few_rows() -> Graph {
    fuse::few_rows(many_rows(), Fusions::ALL)
}

fn experts(stop: &PlanBreak) -> &ExpertSelection {
    match &stop.kind {
        PlanBreakKind::PagedExperts(experts) => experts,
        kind @ PlanBreakKind::PagedRows { .. } => panic!("{kind:?}"),
    }
}

/// Number of router launches, including predictions.
fn routers(plan: &Plan) -> Vec<usize> {
    (0..plan.launches.len())
        .filter(|at| plan.launches[*at].variant.kernel == Kernel::Route)
        .collect()
}

#[test]
fn resident_weights_need_no_breaks() {
    let graph = few_rows();
    let plan = super::planned(&graph, StepKind::Decode(1)).expect("a plan");
    assert!(!routers(&plan).is_empty());
    assert_eq!(plan.breaks, []);
}

#[test]
fn a_break_follows_each_router_of_paged_experts() {
    let steps = [
        (few_rows(), StepKind::Decode(1)),
        (many_rows(), StepKind::Prefill(64)),
    ];
    for (graph, rows) in steps {
        let plan = paged(&graph, rows, usize::MAX);
        let routers = routers(&plan);
        assert_eq!(plan.breaks.len(), routers.len());
        for (index, (stop, router)) in plan.breaks.iter().zip(routers).enumerate() {
            let out = plan.launches[router]
                .binds
                .iter()
                .find(|b| b.0 == "out")
                .expect("out")
                .1;
            assert_eq!((stop.after, stop.read, stop.write), (router + 1, out, out));
            let found = experts(stop);
            assert_eq!((found.router, found.predicted), (index, None));
            assert!(found.top_k > 0 && found.stride >= 2 * found.top_k);
            let combined = found
                .combine
                .map(|at| plan.launches[at].variant.kernel.name());
            let expected = matches!(rows, StepKind::Prefill(_)).then(|| Kernel::Combine.name());
            assert_eq!(combined, expected);
        }
    }
}

#[test]
fn a_prediction_comes_before_the_break_of_its_layer() {
    let graph = few_rows();
    let plain = paged(&graph, StepKind::Decode(1), usize::MAX);
    let plan = paged(
        &add_prefetch_routers(graph),
        StepKind::Decode(1),
        usize::MAX,
    );
    assert_eq!(plan.breaks.len(), plain.breaks.len());
    assert_eq!(routers(&plan).len(), 2 * plain.breaks.len() - 1);
    let (last, others) = plan.breaks.split_last().expect("a break");
    for (index, stop) in others.iter().enumerate() {
        let guess = &plan.launches[stop.after - 1];
        assert_eq!(guess.variant.kernel.name(), Kernel::Route.name());
        let out = guess.binds.iter().find(|b| b.0 == "out").expect("out").1;
        assert_eq!(experts(stop).predicted, Some(out));
        assert_eq!(experts(stop).router, index);
        assert_ne!(stop.read, out);
    }
    assert_eq!(experts(last).predicted, None);
}

#[test]
fn a_paged_table_is_mapped_before_the_step() {
    let graph = few_rows();
    let plan = paged(&graph, StepKind::Decode(1), 8);
    let first = &plan.breaks[0];
    let PlanBreakKind::PagedRows { table } = first.kind else {
        panic!("{first:?}");
    };
    assert_eq!(
        (first.after, first.read, first.write),
        (0, Slot::Ids, Slot::PagedRows(table))
    );
    assert!(plan.breaks.is_sorted_by_key(|stop| stop.after));
    assert_eq!(plan.breaks.len(), routers(&plan).len() + 1);
}
