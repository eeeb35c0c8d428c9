//! Unsupported operations are refused by name instead of ignored.

use super::planned;
use jerboa::ir::{
    Activation, Add, Addend, Attention, Combine, Embed, Epilogue, Graph, GraphBuilder, HeadNorm,
    IdSource, LastRow, Linear, Mask, Norm, Op, Prologue, RopeScaling, RopeSpec, RouterScore,
    ShortConv, StateId, StateSpec, TopKRouter, ValueId, WeightKind,
};
use jerboa::plan::StepKind;

const COLS: usize = 64;
const PACKED: StepKind = StepKind::Packed {
    tokens: 32,
    sequences: 4,
};

/// Four heads of 16 on packed sequences.
fn attention() -> Attention {
    Attention {
        heads: 4,
        kv_heads: 4,
        head_dim: 16,
        scale: 0.25,
        mask: Mask::Packed {
            before: usize::MAX,
            after: usize::MAX,
        },
        softcap: 0.0,
        relative: None,
        sinks: None,
        head_norm: None,
        rope: None,
        state: None,
    }
}

fn norm(b: &mut GraphBuilder) -> Norm {
    Norm {
        gain: Some(b.vector("gain", COLS)),
        bias: None,
        layer: false,
        offset: 0.0,
        eps: 1e-5,
    }
}

/// A graph of an embedding followed by the nodes of `make`.
fn graph(make: impl FnOnce(&mut GraphBuilder, ValueId) -> ValueId) -> jerboa::Result<Graph> {
    let mut b = GraphBuilder::new("test");
    let table = b.weight("table", 100, COLS, WeightKind::Table);
    let x = b.node(
        "x",
        Embed {
            table,
            scale: 1.0,
            ids: IdSource::Tokens,
            soft: None,
        },
        &[],
        COLS,
    );
    let out = make(&mut b, x);
    b.finish(out, None)
}

/// Attention changed by `change`, in steps of `rows`.
fn attend(
    rows: StepKind,
    change: impl FnOnce(&mut GraphBuilder, &mut Attention),
) -> Result<(), String> {
    let graph = graph(|b, x| {
        let mut a = attention();
        change(b, &mut a);
        b.node("attn", a, &[x, x, x], COLS)
    });
    graph
        .and_then(|g| planned(&g, rows))
        .map(|_| ())
        .map_err(|e| e.to_string())
}

/// A matmul changed by `change`, in steps of `rows`.
fn multiply(
    rows: StepKind,
    change: impl FnOnce(&mut GraphBuilder, &mut Linear),
) -> Result<(), String> {
    let graph = graph(|b, x| {
        let mut linear = Linear::new(b.matrix("proj.weight", COLS, COLS), None);
        change(b, &mut linear);
        b.node("proj", linear, &[x], COLS)
    });
    graph
        .and_then(|g| planned(&g, rows))
        .map(|_| ())
        .map_err(|e| e.to_string())
}

#[track_caller]
fn refused(found: Result<(), String>, what: &str) {
    let message = found.expect_err(what);
    assert!(message.contains(what), "{message}");
}

/// Keys and values of this many heads of 16; `window` limits them.
fn kept(b: &mut GraphBuilder, kv_heads: usize, window: usize) -> Option<StateId> {
    Some(b.state(StateSpec::Kv {
        kv_heads,
        head_dim: 16,
        window,
    }))
}

/// Makes it causal, with its own keys and values.
fn causal(b: &mut GraphBuilder, a: &mut Attention) {
    (a.mask, a.state) = (Mask::Causal { window: 0 }, kept(b, 4, 0));
}

#[test]
fn attention_refuses_unsupported_fields() {
    assert_eq!(attend(PACKED, |_, _| {}), Ok(()));
    assert_eq!(
        attend(PACKED, |b, a| a.relative = Some(b.vector("r", 128))),
        Ok(())
    );
    assert_eq!(attend(StepKind::Decode(1), causal), Ok(()));

    refused(
        attend(PACKED, |b: &mut GraphBuilder, a: &mut Attention| {
            a.sinks = Some(b.vector("sinks", 4));
        }),
        "attention sinks in packed attention",
    );
    refused(
        attend(PACKED, |b, a| a.state = kept(b, 4, 0)),
        "a KV cache in packed attention",
    );
    let relative = |b: &mut GraphBuilder, a: &mut Attention| {
        causal(b, a);
        a.relative = Some(b.vector("r", 128));
    };
    refused(
        attend(StepKind::Decode(1), relative),
        "relative position bias",
    );
    refused(
        attend(StepKind::Prefill(64), relative),
        "relative position bias",
    );
    refused(
        attend(StepKind::Decode(1), |_, a| {
            a.mask = Mask::Causal { window: 0 }
        }),
        "without a KV cache",
    );
}

#[test]
fn norm_fuses_into_matmul_or_is_refused() {
    let with = |b: &mut GraphBuilder, l: &mut Linear| l.prologue = Prologue::Norm(norm(b));
    assert_eq!(multiply(StepKind::Decode(1), with), Ok(()));
    refused(
        multiply(StepKind::Prefill(64), with),
        "a norm fused into a tiled matmul",
    );

    refused(
        multiply(
            StepKind::Decode(1),
            |_: &mut GraphBuilder, l: &mut Linear| {
                l.prologue = Prologue::Norm(Norm {
                    gain: None,
                    bias: None,
                    layer: false,
                    offset: 0.0,
                    eps: 1e-5,
                });
            },
        ),
        "a norm without a gain",
    );

    refused(
        multiply(
            StepKind::Decode(1),
            |b: &mut GraphBuilder, l: &mut Linear| {
                l.prologue = Prologue::Norm(Norm {
                    layer: true,
                    ..norm(b)
                });
            },
        ),
        "the mean or the bias",
    );

    refused(
        multiply(
            StepKind::Decode(1),
            |b: &mut GraphBuilder, l: &mut Linear| {
                l.prologue = Prologue::Norm(Norm {
                    bias: Some(b.vector("b", COLS)),
                    ..norm(b)
                });
            },
        ),
        "the mean or the bias",
    );
}

#[test]
fn rows_are_added_before_the_epilogue_where_it_is_empty() {
    let plan = |addend: Addend, change: fn(&mut Linear)| {
        let graph = graph(|b, x| {
            let mut linear = Linear::new(b.matrix("proj.weight", COLS, COLS), None);
            linear.addend = addend;
            change(&mut linear);
            let inputs = vec![x; 1 + linear.combined_input().unwrap_or(1)];
            b.node("proj", linear, &inputs, COLS)
        });
        graph
            .and_then(|g| planned(&g, StepKind::Decode(1)))
            .map(|plan| plan.to_string())
            .map_err(|e| e.to_string())
    };
    let rows = plan(Addend::Rows, |_| {});
    assert!(rows.is_ok());
    assert_eq!(rows, plan(Addend::None, |l| l.combine = Combine::Add));
    let changes: [fn(&mut Linear); 3] = [
        |l| l.epilogue = Epilogue::Activation(Activation::Silu),
        |l| l.softcap = 30.0,
        |l| l.combine = Combine::Mul,
    ];
    for change in changes {
        let found = plan(Addend::Rows, change).map(|_| ());
        refused(found, "rows added before other fused operations");
    }
}

#[test]
fn graphs_with_wrong_ids_or_sizes_are_refused() {
    refused(attend(PACKED, |_, a| a.rope = Some(3)), "RoPE table 3");
    let wide = RopeSpec {
        dim: 32,
        base: 1e4,
        scaling: RopeScaling::Default,
        interleaved: false,
    };
    refused(
        attend(PACKED, |b, a| a.rope = Some(b.rope(wide))),
        "wider than a head of 16",
    );
    let state = |heads: usize, kept_window: usize, window: usize| {
        attend(StepKind::Decode(1), |b, a| {
            (a.mask, a.state) = (Mask::Causal { window }, kept(b, heads, kept_window));
        })
    };
    assert_eq!(state(4, 32, 32), Ok(()));
    refused(state(2, 0, 0), "stores 2 heads");
    refused(state(4, 32, 0), "stores 32 positions");
    refused(state(4, 32, 64), "stores 32 positions, 64");
    refused(
        attend(StepKind::Decode(1), |_, a| {
            (a.mask, a.state) = (Mask::Causal { window: 0 }, Some(StateId(5)));
        }),
        "state 5",
    );

    refused(
        attend(
            StepKind::Decode(1),
            |b: &mut GraphBuilder, a: &mut Attention| {
                (a.mask, a.state) = (
                    Mask::Causal { window: 0 },
                    Some(b.state(StateSpec::Conv {
                        channels: 4,
                        kernel_size: 3,
                    })),
                );
            },
        ),
        "not a KV cache",
    );

    refused(
        attend(PACKED, |b: &mut GraphBuilder, a: &mut Attention| {
            a.head_norm = Some(HeadNorm {
                gains: b.vector("g", 16),
                offset: 0.0,
                eps: 1e-5,
                after_rope: false,
                values: false,
            });
        }),
        "g has 16 elements, expected 32",
    );
    refused(
        multiply(StepKind::Decode(1), |b, l| {
            l.addend = Addend::Vector(b.vector("bias", 3));
        }),
        "bias has 3 elements, expected 64",
    );
    refused(
        multiply(StepKind::Decode(1), |b, l| l.weight = b.vector("v", COLS)),
        "v is a Vector",
    );
    refused(
        multiply(StepKind::Decode(1), |b, l| {
            l.weight = b.matrix("narrow", 32, COLS);
        }),
        "32 × 64",
    );
    let few = graph(|b, x| b.node("sum", Add, &[x], COLS))
        .map(|_| ())
        .map_err(|e| e.to_string());
    refused(few, "has 1 inputs, expected 2");
    let rows = graph(|b, x| {
        let last = b.node("last", LastRow, &[x], COLS);
        b.node("sum", Add, &[x, last], COLS)
    });
    refused(rows.map(|_| ()).map_err(|e| e.to_string()), "sum");
}

#[test]
fn sizes_that_no_kernel_supports_are_refused() {
    let conv = |kernel_size: usize| {
        let graph = graph(|b, x| {
            let weight = b.vector("taps", COLS * kernel_size);
            let state = b.state(StateSpec::Conv {
                channels: COLS,
                kernel_size,
            });
            let conv = ShortConv {
                weight,
                bias: None,
                kernel_size,
                act: Activation::None,
                scales: [(0, 1.0); 3],
                state,
            };
            b.node("conv", conv, &[x], COLS)
        });
        graph.map(|_| ()).map_err(|e| e.to_string())
    };
    let largest = *ShortConv::KERNEL_SIZES.end();
    assert_eq!(conv(largest), Ok(()));
    refused(conv(largest + 1), "no kernel has 9 taps");

    let route = |top_k: usize| {
        let graph = graph(|b, x| {
            let router = TopKRouter {
                experts: COLS,
                top_k,
                score: RouterScore::Softmax,
                bias: None,
                groups: None,
                renormalize: true,
                eps: 0.0,
                scale: 1.0,
                gain: None,
                prefetch: false,
            };
            b.node("router", router, &[x], 2 * top_k)
        });
        graph.map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(route(TopKRouter::MAX_TOP_K), Ok(()));
    refused(
        route(TopKRouter::MAX_TOP_K + 1),
        "no kernel selects 17 of 64 experts",
    );
}

#[test]
fn operations_list_all_of_their_weights() {
    let mut b = GraphBuilder::new("test");
    let norm = norm(&mut b);
    let linear = Linear {
        prologue: Prologue::Norm(norm.clone()),
        epilogue: Epilogue::Activation(Activation::Silu),
        ..Linear::new(b.matrix("w", 8, COLS), None)
    };
    let bias = b.vector("b", 8);
    let linear = Linear {
        addend: Addend::Vector(bias),
        ..linear
    };
    assert_eq!(
        Op::from(linear.clone()).weights(),
        [linear.weight, bias, norm.gain.expect("a gain")]
    );
    let sinks = b.vector("s", 4);
    let relative = b.vector("r", 128);
    let gains = b.vector("g", 32);

    let head_norm = Some(HeadNorm {
        gains,
        offset: 0.0,
        eps: 1e-5,
        after_rope: false,
        values: false,
    });
    let all = Attention {
        sinks: Some(sinks),
        relative: Some(relative),
        head_norm,
        ..attention()
    };
    assert_eq!(Op::from(all).weights(), [sinks, relative, gains]);
}
