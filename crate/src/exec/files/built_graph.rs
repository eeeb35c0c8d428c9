//! A decoder's graph, built once for a configuration.

use crate::ir::Graph;
use crate::{Result, arch};
use serde_json::Value;

/// A decoder's graph and the configuration that it was built from.
#[derive(Debug, Default)]
pub struct BuiltGraph {
    built: Option<(Value, Graph)>,
}

impl BuiltGraph {
    /// Returns the graph of a configuration. Builds it only if the configuration is another than
    /// last time.
    ///
    /// # Errors
    /// Configurations that are not supported.
    pub fn of(&mut self, config: &Value) -> Result<&Graph> {
        let built = match self.built.take() {
            Some(built) if built.0 == *config => built,
            _ => (config.clone(), arch::graph(config)?),
        };
        Ok(&self.built.insert(built).1)
    }

    /// Takes the graph of a configuration.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn take(&mut self, config: &Value) -> Result<Graph> {
        match self.built.take_if(|(of, _)| of == config) {
            Some((_, graph)) => Ok(graph),
            None => arch::graph(config),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::GraphBuilder;
    use serde_json::json;

    #[test]
    fn a_graph_is_built_again_only_for_another_configuration() {
        // No family builds a graph from these.
        let config = json!({ "model_type": "none" });
        let other = json!({ "model_type": "other" });
        let mut graph = BuiltGraph {
            built: Some((
                config.clone(),
                GraphBuilder::new("built before").graph().clone(),
            )),
        };
        assert_eq!(graph.of(&config).unwrap().name, "built before");
        assert!(graph.take(&other).is_err());
        assert_eq!(graph.take(&config).unwrap().name, "built before");
        assert!(graph.of(&config).is_err());
    }
}
