//! Describes a checkpoint and whether it runs, from headers alone.

use super::ModelFiles;
use crate::arch::{EncoderHead, LoadConfig, vision::match_suffixes};
use crate::exec::options::PrecisionOptions;
use crate::exec::planned_graph::LayoutRules;
use crate::format::WeightSource;
use crate::ir::{Graph, Pooling, WeightKind};
use crate::util::map::{SortedMap, SortedSet};
use crate::{Error, Result, arch};
use serde_json::Value;
use std::fmt;

/// A weight that the model needs, as the checkpoint stores it.
#[derive(Debug, Clone)]
pub struct WeightReport {
    /// Hugging Face tensor name.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Encoding in the files.
    pub encoding: String,
    /// Bytes in the files.
    pub stored: u64,
    /// Layout on the device.
    pub layout: String,
    /// Bytes on the device.
    pub bytes: u64,
}

/// The result of [`ModelFiles::inspect`].
#[derive(Debug)]
pub struct Inspection {
    /// `architectures[0]` and the model type.
    pub architecture: String,
    /// Whether the embedding is also the output head.
    pub tied: bool,
    /// Reasons why it does not run; empty if it runs.
    pub faults: Vec<Error>,
    /// The weights that the model needs, in graph order.
    pub weights: Vec<WeightReport>,
    /// Weights of the checkpoint that the model does not use.
    pub unused: Vec<String>,
    /// Files and their sizes in bytes.
    pub files: Vec<(String, u64)>,
}

impl ModelFiles {
    /// Inspects the checkpoint and the device layouts that the given options would lead to.
    pub fn inspect(&self, overrides: PrecisionOptions) -> Inspection {
        let config = &self.config;
        let text = |field: &Value| field.as_str().unwrap_or("none").to_string();
        let mut out = Inspection {
            architecture: format!(
                "{} ({})",
                text(&config["architectures"][0]),
                text(&config["model_type"])
            ),
            tied: config.fields().is_tied(false),
            faults: Vec::new(),
            weights: Vec::new(),
            unused: Vec::new(),
            files: self
                .checkpoint
                .files
                .iter()
                .map(|f| (f.name.clone(), f.size))
                .collect(),
        };
        let mut used = SortedSet::new();
        match self.graphs(config) {
            Ok(graphs) => graphs.iter().for_each(|graph| {
                self.weights_of(
                    graph,
                    &LayoutRules::new(graph, overrides),
                    &mut out,
                    &mut used,
                );
            }),
            Err(error) => {
                out.faults.push(error);
                // Without a graph, list all weights.
                let layouts = LayoutRules::uniform(overrides);
                for source in self.weights.iter() {
                    used.insert(source.name.clone());
                    out.weights
                        .push(weight_report(source, &layouts, WeightKind::Matrix));
                }
            }
        }
        // Scalars that a family reads together with the configuration.
        arch::scalar_tensors(config)
            .into_iter()
            .for_each(|name| _ = used.insert(name));
        // Projects speaker embeddings to prompt rows.
        used.insert(arch::SPEAKER_PROJECTION.into());
        out.unused = self
            .weights
            .iter()
            .map(|w| w.name.clone())
            .filter(|name| !used.contains(name))
            .collect();
        out
    }

    /// All graphs that a load builds: decoder, audio encoder and vision encoder.
    fn graphs(&self, config: &LoadConfig) -> Result<Vec<Graph>> {
        let names = || self.weights.iter().map(|w| w.name.as_str());
        let mut graphs = if let Some(speech) = arch::speech_graphs(config)? {
            vec![speech.decoder, speech.encoder, speech.keys, speech.values]
        } else if arch::is_encoder(config) {
            let head = if arch::joint_embedding(config).is_some() {
                EncoderHead::Vector {
                    pooling: Pooling::Last,
                    dense: Vec::new(),
                }
            } else if config.class().ends_with("ForSequenceClassification") {
                EncoderHead::Score
            } else {
                EncoderHead::Hidden
            };
            let mut graph = arch::encoder_graph(config, &head)?.graph;
            arch::match_names(&mut graph, names());
            vec![graph]
        } else {
            vec![arch::graph(config)?]
        };
        if let Ok(mut encoder) = arch::vision_encoder(config) {
            match_suffixes(
                &mut encoder.graph,
                &names().map(String::from).collect::<Vec<_>>(),
            );
            graphs.push(encoder.graph);
        }
        Ok(graphs)
    }

    fn weights_of(
        &self,
        graph: &Graph,
        layouts: &LayoutRules,
        out: &mut Inspection,
        used: &mut SortedSet<String>,
    ) {
        for weight in &graph.weights {
            for (name, rows) in &weight.parts {
                if !used.insert(name.clone()) {
                    continue;
                }
                let source = match self.weights.get(name, &graph.name) {
                    Ok(source) => source,
                    Err(error) => {
                        out.faults.push(error);
                        continue;
                    }
                };
                let vector = weight.kind == WeightKind::Vector;
                let expected = if vector {
                    vec![*rows]
                } else {
                    vec![*rows, weight.cols]
                };
                // Convolution weights are stored like matmul weights, one row for each output.
                let folded = source.shape.len() > 2 || (source.shape.len() == 1 && weight.cols > 1);
                let fits = match vector || folded {
                    true => {
                        source.shape.iter().product::<usize>() == expected.iter().product::<usize>()
                    }
                    false => source.shape == expected,
                };
                if !fits {
                    let tensor = name.clone();
                    let found = source.shape.clone();

                    out.faults.push(Error::Shape {
                        tensor,
                        found,
                        expected,
                    });
                }
                if let Err(error) = source.layout() {
                    out.faults.push(error);
                }
                out.weights
                    .push(weight_report(source, layouts, weight.kind));
            }
        }
    }
}

fn weight_report(source: &WeightSource, layouts: &LayoutRules, kind: WeightKind) -> WeightReport {
    let (rows, cols) = source.rows_cols();
    let (layout, bytes) = if kind == WeightKind::Vector || source.shape.len() < 2 {
        ("f32".to_string(), rows as u64 * cols as u64 * 4)
    } else {
        let layout = layouts.of(source, kind);
        (layout.name(), layout.bytes(rows, cols))
    };
    WeightReport {
        name: source.name.clone(),
        shape: source.shape.clone(),
        encoding: source.encoding.name(),
        stored: source.stored_bytes(),
        layout,
        bytes,
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "architecture: {}{}",
            self.architecture,
            if self.tied {
                ", head tied to the embedding"
            } else {
                ""
            }
        )?;
        for (name, size) in &self.files {
            writeln!(f, "file: {name}, {size} bytes")?;
        }
        let parameters: u64 = self
            .weights
            .iter()
            .map(|w| w.shape.iter().map(|d| *d as u64).product::<u64>())
            .sum();
        let bytes: u64 = self.weights.iter().map(|w| w.bytes).sum();
        writeln!(f, "parameters: {parameters}, {bytes} bytes on the device")?;
        let mut encodings: SortedMap<(&str, &str), (usize, u64, u64)> = SortedMap::new();
        for weight in &self.weights {
            let entry =
                encodings.get_or_insert_with((&weight.encoding, &weight.layout), Default::default);
            *entry = (entry.0 + 1, entry.1 + weight.stored, entry.2 + weight.bytes);
        }
        for ((encoding, layout), (count, stored, bytes)) in encodings {
            writeln!(
                f,
                "encoding: {encoding}, {count} weights, {stored} bytes; on the device: {layout}, {bytes} bytes"
            )?;
        }
        match &self.faults[..] {
            [] => writeln!(f, "runs: yes")?,
            faults => {
                writeln!(f, "runs: no")?;
                for fault in faults {
                    writeln!(f, "  {}: {fault}", fault.code())?;
                }
            }
        }
        for WeightReport {
            name,
            shape,
            encoding,
            stored,
            layout,
            bytes,
        } in &self.weights
        {
            writeln!(
                f,
                "{name} {shape:?}: {encoding}, {stored} bytes; {layout}, {bytes} bytes"
            )?;
        }
        for name in &self.unused {
            writeln!(f, "{name}: not used")?;
        }
        Ok(())
    }
}
