//! Graphs and plans of each family as text, compared with tests/golden/plans: a missing fusion,
//! another kernel choice or an additional dispatch is a difference.

use super::dispatches::shape;
use super::{caps, layout_of, planned, planned_on};
use jerboa::arch::{self, EncoderHead, LoadConfig};
use jerboa::device::{MatrixDialect, SubgroupMatrix};
use jerboa::format::{Float, WeightLayout};
use jerboa::gpu::{Caps, VariantOverride};
use jerboa::ir::{Graph, Pooling};
use jerboa::kernels::Launch;
use jerboa::kernels::attention::Kv;
use jerboa::kernels::registry::{Kernel, Variant};
use jerboa::plan::{Fusions, Plan, PlanOptions, Slot, StepKind, fuse, lower, plan_weights};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Environment variable: writes the files instead of comparing them.
const WRITE: &str = "JERBOA_WRITE_PLANS";

fn golden(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(folder)
}

/// A config.json per architecture: that of the first folder of tests/golden/models with the
/// architecture.
pub(super) fn families() -> BTreeMap<String, Value> {
    configurations(&["models"])
}

/// As above, for other folders of tests/golden.
fn configurations(places: &[&str]) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let folders = places.iter().flat_map(|place| {
        let entries = std::fs::read_dir(golden(place)).expect("golden models");
        let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
        folders.sort();
        folders
    });
    for folder in folders {
        let Ok(text) = std::fs::read_to_string(folder.join("config.json")) else {
            continue;
        };
        let config: Value = serde_json::from_str(&text).expect("config.json");
        let name = config
            .pointer("/architectures/0")
            .or(config.get("model_type"))
            .and_then(Value::as_str);
        found
            .entry(name.expect("an architecture").to_owned())
            .or_insert(config);
    }
    found
}

/// A line per launch: its label and kernel variant.
fn section(out: &mut String, what: &str, graph: &Graph, rows: StepKind) {
    let plan = planned(graph, rows).unwrap_or_else(|e| panic!("{}, {what}: {e}", graph.name));
    let _ = writeln!(out, "\n{what}: {} dispatches", plan.launches.len());
    for launch in &plan.launches {
        let _ = writeln!(out, "{}: {}", launch.label, launch.variant);
    }
}

/// A decode step at a low position where dispatches are expensive: their number, and the attention
/// kernels.
fn near(out: &mut String, graph: &Graph) {
    let force = Some(VariantOverride {
        kernel: Kernel::AttentionDecode,
        name: "SINGLE_PASS",
        value: 1,
    });
    let plan = planned_on(&Caps { force, ..caps() }, graph, StepKind::Decode(1)).expect("a plan");
    let _ = writeln!(
        out,
        "\ndecode 1 token where dispatches are expensive: {} dispatches",
        plan.launches.len()
    );
    let alone = plan
        .launches
        .iter()
        .filter(|launch| launch.variant.kernel == Kernel::AttentionDecode);
    for launch in alone {
        let _ = writeln!(out, "{}: {}", launch.label, launch.variant);
    }
}

/// Dense families take five dispatches per layer there: q, k and v, attention, its projection, gate
/// and up, down.
#[test]
fn dense_layers_take_five_dispatches_when_dispatches_are_expensive() {
    let force = Some(VariantOverride {
        kernel: Kernel::AttentionDecode,
        name: "SINGLE_PASS",
        value: 1,
    });
    let caps = Caps { force, ..caps() };
    let families = families();
    for name in [
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Phi3ForCausalLM",
        "SmolLM3ForCausalLM",
    ] {
        let config = &families[name];
        let few = fuse::few_rows(
            fuse::common(
                arch::graph(&config.into()).expect(name),
                Fusions::ALL,
                &layout_of,
            ),
            Fusions::ALL,
        );
        let plan = planned_on(&caps, &few, StepKind::Decode(1)).expect(name);
        let layers = config["num_hidden_layers"].as_u64().expect("layers") as usize;
        // Besides the layers: the embedding and the logits.
        assert_eq!(plan.launches.len(), 5 * layers + 2, "{name}");
    }
}

/// On subgroup matrices, matmuls of experts leave partial sums in tiles: after the first a separate
/// pass reduces them to rows, after the second the weighted sum over experts reads them directly.
#[test]
fn experts_of_prompts_use_subgroup_matrices() {
    let units = SubgroupMatrix {
        side: 16,
        half: true,
        lanes: 32,
        words: MatrixDialect::Coop,
    };
    let caps = Caps {
        matrix: Some(units),
        ..caps()
    };
    let families = families();
    for name in ["Qwen3MoeForCausalLM", "GptOssForCausalLM"] {
        let graph = fuse::common(
            arch::graph(&(&families[name]).into()).expect(name),
            Fusions::ALL,
            &layout_of,
        );
        let plan = planned_on(&caps, &graph, StepKind::Prefill(256)).expect(name);
        let of = |kernel, flag| {
            let has = |v: &Variant| v.kernel == kernel && v.to_string().contains(flag);
            plan.launches
                .iter()
                .filter(|launch| has(&launch.variant))
                .count()
        };
        let layers = of(Kernel::Bucket, "");
        let found = [
            of(Kernel::GemmMatrix, "+experts"),
            of(Kernel::SplitkReduce, "+experts"),
            of(Kernel::Combine, "+parts"),
        ];
        assert!(layers > 0, "{name}");
        assert_eq!(found, [2 * layers, layers, layers], "{name}\n{plan}");
    }
}

/// On subgroup matrices, matmuls read f16 activations of norms, attention and other matmuls: all
/// four of a dense layer. Exceptions are values that an f32 consumer reads too, such as a router,
/// and attention with heads too wide for subgroup matrices.
#[test]
fn prefill_stores_matmul_inputs_as_f16() {
    let units = SubgroupMatrix {
        side: 16,
        half: true,
        lanes: 32,
        words: MatrixDialect::Coop,
    };
    let caps = Caps {
        matrix: Some(units),
        ..caps()
    };
    for (name, each) in [("llama-3.1-8b", 4), ("gemma-3-1b", 3), ("qwen3-30b-a3b", 2)] {
        let shape = shape(name);
        let graph = fuse::common(
            arch::graph(&(&shape).into()).expect(name),
            Fusions::ALL,
            &layout_of,
        );
        let plan = planned_on(&caps, &graph, StepKind::Prefill(256)).expect(name);
        let layers = shape["num_hidden_layers"].as_u64().expect("layers") as usize;
        let kept = |launch: &&Launch<Slot>| launch.variant.flags.contains("F16_IO");
        let reads = plan
            .launches
            .iter()
            .filter(kept)
            .filter(|l| l.variant.kernel == Kernel::GemmMatrix)
            .count();
        let writes = plan.launches.iter().filter(kept).count() - reads;
        assert_eq!([writes, reads], [each * layers; 2], "{name}\n{plan}");
        let floats = planned_on(
            &Caps {
                matrix: None,
                ..caps.clone()
            },
            &graph,
            StepKind::Prefill(256),
        )
        .expect(name);
        let bytes = |plan: &Plan| plan.activations.iter().sum::<u64>();
        // With experts, other buffers dominate.
        assert!(bytes(&plan) < bytes(&floats) || each == 2, "{name}");
    }
}

/// Dumps a model of one graph.
fn dump(config: &Value) -> Option<String> {
    let fused = |graph: Graph| fuse::common(graph, Fusions::ALL, &layout_of);
    let Ok(graph) = arch::graph(&config.into()) else {
        let head = EncoderHead::Vector {
            pooling: Pooling::Mean,
            dense: vec![],
        };
        let graph = arch::encoder_graph(&config.into(), &head).ok()?.graph;
        let mut out = graph.to_string();
        section(
            &mut out,
            "encode 512 tokens",
            &fused(graph),
            StepKind::Packed {
                tokens: 512,
                sequences: 16,
            },
        );
        return Some(out);
    };
    let mut out = graph.to_string();
    let common = fused(graph);
    let few = fuse::few_rows(common.clone(), Fusions::ALL);
    section(&mut out, "decode 1 token", &few, StepKind::Decode(1));
    near(&mut out, &few);
    section(&mut out, "verify 4 tokens", &few, StepKind::Decode(4));
    section(
        &mut out,
        "prefill 256 tokens",
        &common,
        StepKind::Prefill(256),
    );
    Some(out)
}

/// Dumps graphs other than the decoder: vision encoders, audio encoders with cross-attention
/// projections, codecs. Weights have the type of the file; inputs come from outside, a vision
/// encoder's in blocks.
fn side(out: &mut String, what: &str, graph: &Graph, rows: usize, block: Option<usize>) {
    let dense = |_: &str| WeightLayout::Dense(Float::F16);
    let graph = fuse::common(graph.clone(), Fusions::ALL, &dense);
    let caps = caps();
    let weights = plan_weights(&graph, &dense, caps.max_weight_buffer()).expect("weights");
    let options = PlanOptions {
        rows: block.map_or(StepKind::Prefill(rows), |block| StepKind::Packed {
            tokens: rows,
            sequences: rows / block,
        }),
        caps: &caps,
        weights: &weights,
        kv: Kv::F32,
        capacity: rows,
        states: &[],
        fuse_heads: false,
        fuse_norms: false,
        quantize_inputs: Default::default(),
    };
    let plan = lower(&graph, options).unwrap_or_else(|e| panic!("{}, {what}: {e}", graph.name));
    let _ = writeln!(
        out,
        "\n{what} {rows} rows: {} dispatches",
        plan.launches.len()
    );
    for launch in &plan.launches {
        let _ = writeln!(out, "{}: {}", launch.label, launch.variant);
    }
    out.push('\n');
}

/// Dumps a model of several graphs. Of a vision-language model only the vision encoder: its decoder
/// is the same as the text model's.
fn parts(json: &Value) -> String {
    let config = &LoadConfig::from(json);
    let mut out = String::new();
    if let Some(speech) = arch::speech_graphs(config).expect("a model that receives") {
        for (what, graph) in [
            ("encoder", speech.encoder),
            ("keys", speech.keys),
            ("values", speech.values),
        ] {
            let _ = write!(out, "{graph}");
            side(&mut out, what, &graph, 256, None);
        }
    } else if let Ok(codec) = arch::codec_graph(config) {
        // The codec's graph has about a hundred equal blocks: the dispatches are enough.
        side(&mut out, "codec", &codec, 64, None);
        return out;
    } else if let Ok(encoder) = arch::vision_encoder(config) {
        let _ = write!(out, "{}", encoder.graph);
        side(
            &mut out,
            "tower",
            &encoder.graph,
            512,
            Some(encoder.merge * encoder.merge),
        );
        if arch::graph(config).is_ok() {
            return out;
        }
    }
    out + &dump(json).expect("the rest of it")
}

/// All dumps, by file name.
fn dumps() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    all.extend(
        families()
            .iter()
            .filter_map(|(name, config)| Some((name.clone(), dump(config)?))),
    );
    for (name, config) in configurations(&["speech", "vision/models", "vision/pairs"]) {
        let before = all.insert(name.clone(), parts(&config));
        assert!(before.is_none(), "{name} twice");
    }
    all
}

/// The first difference of two strings, with some lines around it.
fn difference(old: &str, new: &str) -> String {
    let same = old
        .lines()
        .zip(new.lines())
        .take_while(|(a, b)| a == b)
        .count();
    let lines = |text: &str| {
        let from = same.saturating_sub(2);
        text.lines()
            .skip(from)
            .take(8)
            .map(|l| format!("  {l}\n"))
            .collect::<String>()
    };
    format!("line {}, was\n{}is\n{}", same + 1, lines(old), lines(new))
}

#[test]
fn graphs_and_plans_equal_golden_dumps() {
    let write = std::env::var_os(WRITE).is_some();
    let mut wrong = Vec::new();
    for (name, found) in dumps() {
        let path = golden("plans").join(format!("{name}.txt"));
        if write {
            std::fs::write(&path, &found).expect("a golden dump");
            continue;
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        if kept != found {
            wrong.push(format!("{name}: {}", difference(&kept, &found)));
        }
    }
    let advice =
        "What is meant is written by `JERBOA_WRITE_PLANS=1 cargo test -p jerboa-tests --test plan`";
    assert!(
        wrong.is_empty(),
        "plans differ from tests/golden/plans. {advice}; read the difference.\n{}",
        wrong.join("\n")
    );
}

#[test]
fn no_golden_dump_is_obsolete() {
    let dumps = dumps();
    for entry in std::fs::read_dir(golden("plans")).expect("golden plans") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        assert!(
            dumps.contains_key(name),
            "no checkpoint of tests/golden is a {name}, or none that can be built"
        );
    }
}

#[test]
fn a_missing_fusion_is_detected() {
    let configs = families();
    let graph = arch::graph(&(&configs["Qwen3ForCausalLM"]).into()).expect("a graph");
    let count = |fusions: Fusions| {
        let few = fuse::few_rows(fuse::common(graph.clone(), fusions, &layout_of), fusions);
        planned(&few, StepKind::Decode(1))
            .expect("a plan")
            .launches
            .len()
    };
    let all = count(Fusions::ALL);
    let without = [
        Fusions {
            siblings: false,
            ..Fusions::ALL
        },
        Fusions {
            gated: false,
            ..Fusions::ALL
        },
        Fusions {
            residual: false,
            ..Fusions::ALL
        },
        Fusions {
            norm: false,
            ..Fusions::ALL
        },
    ];
    for fusions in without {
        assert!(
            count(fusions) > all,
            "{fusions:?} takes no more dispatches than all fusions"
        );
    }
    assert!(caps().max_weight_buffer() > 0);
}
