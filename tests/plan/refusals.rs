//! What a kernel would not compute is refused instead of left out, each with its name.

use super::planned;
use jerboa::ir::{
    Activation, Attention, Graph, GraphBuilder, HeadNorm, IdSource, Linear, Mask, Norm, Op,
    RopeScaling, RopeSpec, StateId, StateSpec, ValueId, WeightKind,
};
use jerboa::plan::StepKind;

const COLS: usize = 64;
const PACKED: StepKind = StepKind::Packed {
    tokens: 32,
    sequences: 4,
};

/// Four heads of 16 over packed strings.
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

/// A graph of an embedding and what `make` puts after it.
fn graph(make: impl FnOnce(&mut GraphBuilder, ValueId) -> ValueId) -> jerboa::Result<Graph> {
    let mut b = GraphBuilder::new("test");
    let table = b.weight("table", 100, COLS, WeightKind::Table);
    let x = b.node(
        "x",
        Op::Embed {
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

/// Attention that `change` alters, in steps of `rows`.
fn attend(
    rows: StepKind,
    change: impl FnOnce(&mut GraphBuilder, &mut Attention),
) -> Result<(), String> {
    let graph = graph(|b, x| {
        let mut a = attention();
        change(b, &mut a);
        b.node("attn", Op::Attention(a), &[x, x, x], COLS)
    });
    graph
        .and_then(|g| planned(&g, rows))
        .map(|_| ())
        .map_err(|e| e.to_string())
}

/// A matmul that `change` alters, in steps of `rows`.
fn multiply(
    rows: StepKind,
    change: impl FnOnce(&mut GraphBuilder, &mut Linear),
) -> Result<(), String> {
    let graph = graph(|b, x| {
        let mut linear = Linear::new(b.matrix("proj.weight", COLS, COLS), None);
        change(b, &mut linear);
        b.node("proj", Op::Linear(linear), &[x], COLS)
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

/// Keys and values of so many heads of 16, the last `window` of them.
fn kept(b: &mut GraphBuilder, kv_heads: usize, window: usize) -> Option<StateId> {
    Some(b.state(StateSpec::Kv {
        kv_heads,
        head_dim: 16,
        window,
    }))
}

/// Makes it causal, with keys and values of its own.
fn causal(b: &mut GraphBuilder, a: &mut Attention) {
    (a.mask, a.state) = (Mask::Causal { window: 0 }, kept(b, 4, 0));
}

#[test]
fn attention_computes_all_that_its_node_says() {
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
    let with = |b: &mut GraphBuilder, l: &mut Linear| l.norm = Some(norm(b));
    assert_eq!(multiply(StepKind::Decode(1), with), Ok(()));
    refused(
        multiply(StepKind::Prefill(64), with),
        "a norm fused into a tiled matmul",
    );

    refused(
        multiply(
            StepKind::Decode(1),
            |_: &mut GraphBuilder, l: &mut Linear| {
                l.norm = Some(Norm {
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
                l.norm = Some(Norm {
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
                l.norm = Some(Norm {
                    bias: Some(b.vector("b", COLS)),
                    ..norm(b)
                });
            },
        ),
        "the mean or the bias",
    );
}

#[test]
fn a_graph_names_what_is_there_in_the_kind_and_size_it_is_read() {
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
            l.bias = Some(b.vector("bias", 3));
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
    let few = graph(|b, x| b.node("sum", Op::Add, &[x], COLS))
        .map(|_| ())
        .map_err(|e| e.to_string());
    refused(few, "has 1 inputs, expected 2");
    let rows = graph(|b, x| {
        let last = b.node("last", Op::LastRow, &[x], COLS);
        b.node("sum", Op::Add, &[x, last], COLS)
    });
    refused(rows.map(|_| ()).map_err(|e| e.to_string()), "sum");
}

#[test]
fn an_op_names_all_of_its_weights() {
    let mut b = GraphBuilder::new("test");
    let norm = norm(&mut b);
    let linear = Linear {
        norm: Some(norm.clone()),
        act: Activation::Silu,
        ..Linear::new(b.matrix("w", 8, COLS), None)
    };
    let linear = Linear {
        bias: Some(b.vector("b", 8)),
        ..linear
    };
    assert_eq!(
        Op::Linear(linear.clone()).weights(),
        [
            linear.weight,
            linear.bias.expect("a bias"),
            norm.gain.expect("a gain")
        ]
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
    assert_eq!(Op::Attention(all).weights(), [sinks, relative, gains]);
}
