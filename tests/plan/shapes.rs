//! Shapes of the bench page: www/bench/tensors.json lists the tensors of their checkpoints by the
//! graphs' names.

use jerboa::arch::{self, EncoderHead};
use jerboa::ir::{Graph, Pooling, WeightKind};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../www/bench")
        .join(name)
}

fn graph(config: &Value) -> Graph {
    let head = EncoderHead::Vector {
        pooling: Pooling::Mean,
        dense: vec![],
    };
    let config = &config.into();
    arch::graph(config)
        .or_else(|_| arch::encoder_graph(config, &head).map(|encoder| encoder.graph))
        .expect("a graph")
}

/// A name with stars for the numbers of its layer and of its expert, and these numbers.
fn pattern(name: &str) -> (String, Option<usize>, Option<usize>) {
    let mut layer = None;
    let mut expert = None;
    let mut before = "";

    let mut parts = Vec::new();
    for part in name.split('.') {
        let number = part
            .parse::<usize>()
            .ok()
            .filter(|_| matches!(before, "layers" | "layer" | "experts"));
        parts.push(if number.is_some() { "*" } else { part });
        match (number, before) {
            (Some(_), "experts") => expert = number,
            (Some(_), _) => layer = number,
            _ => {}
        }
        before = part;
    }
    (parts.join("."), layer, expert)
}

fn kind(name: &str, kind: WeightKind) -> &'static str {
    match kind {
        WeightKind::Matrix => "matrix",
        WeightKind::Table => "table",
        WeightKind::Router => "plain",
        WeightKind::Experts { .. } => "experts",
        WeightKind::Vector | WeightKind::Order if name.ends_with("bias") => "zeros",
        WeightKind::Vector | WeightKind::Order => "ones",
    }
}

/// A name with stars, its kind and its shape.
type Key = (String, &'static str, Vec<usize>);

/// Groups tensors that differ only in the number of their layer and expert, in the graph's order.
fn tensors(graph: &Graph) -> Vec<Value> {
    let mut order = Vec::new();
    let mut found: BTreeMap<Key, (Vec<usize>, usize)> = BTreeMap::new();
    for weight in &graph.weights {
        for (name, rows) in &weight.parts {
            let (path, layer, expert) = pattern(name);
            let kind = kind(name, weight.kind);
            let shape = if matches!(kind, "ones" | "zeros") {
                vec![*rows]
            } else {
                vec![*rows, weight.cols]
            };
            let key = (path, kind, shape);
            if !found.contains_key(&key) {
                order.push(key.clone());
            }
            let (layers, experts) = found.entry(key).or_default();
            layers.extend(layer.filter(|layer| layers.last() != Some(layer)));
            *experts = (*experts).max(expert.map_or(0, |e| e + 1));
        }
    }
    let entry = |key: &Key| {
        let (layers, experts) = &found[key];
        let lead = (*experts > 0).then_some(*experts).into_iter();
        let shape: Vec<usize> = lead.chain(key.2.iter().copied()).collect();
        let mut entry = json!({ "name": key.0, "kind": key.1, "shape": shape });
        if !layers.is_empty() {
            let all = layers.iter().copied().eq(0..layers.len());
            entry["layers"] = if all {
                json!(layers.len())
            } else {
                json!(layers)
            };
        }
        entry
    };
    order.iter().map(entry).collect()
}

#[test]
fn the_bench_page_knows_the_tensors_of_each_shape() {
    let shapes = std::fs::read(file("shapes.json")).expect("shapes.json");
    let shapes: Map<String, Value> = serde_json::from_slice(&shapes).expect("shapes");
    let mut text = String::new();
    for (name, shape) in &shapes {
        let entries: Vec<String> = tensors(&graph(&shape["config"]))
            .iter()
            .map(|e| format!("    {e}"))
            .collect();
        let comma = if text.is_empty() { "" } else { ",\n" };
        text.push_str(&format!(
            "{comma}  \"{name}\": [\n{}\n  ]",
            entries.join(",\n")
        ));
    }
    let text = format!("{{\n{text}\n}}\n");
    if std::env::var_os("JERBOA_WRITE_PLANS").is_some() {
        std::fs::write(file("tensors.json"), text).expect("tensors.json");
    } else {
        let kept = std::fs::read_to_string(file("tensors.json")).expect("tensors.json");
        assert!(
            kept == text,
            "www/bench/tensors.json is not what shapes.json makes: JERBOA_WRITE_PLANS=1 writes it"
        );
    }
}
