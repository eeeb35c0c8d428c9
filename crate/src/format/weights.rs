//! The weights of a checkpoint by name, those that cannot be read with the reason. Knows no container and no architecture.

use super::encoding::WeightSource;
use crate::util::map::SortedMap;
use crate::{Error, Result};

/// The weights of a model by the names that its architecture knows.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    pub(super) sources: SortedMap<String, WeightSource>,
    refused: SortedMap<String, Error>,
}

impl Weights {
    /// Weights from a list of them.
    pub fn from_list(list: Vec<WeightSource>) -> Weights {
        Weights { sources: list.into_iter().map(|s| (s.name.clone(), s)).collect(), refused: SortedMap::new() }
    }

    /// The weight of that name; an error that says what it is instead where it cannot be read.
    pub fn get(&self, name: &str, architecture: &str) -> Result<&WeightSource> {
        if let Some(source) = self.sources.get(name) {
            return Ok(source);
        }
        Err(self
            .refused
            .get(name)
            .cloned()
            .unwrap_or_else(|| Error::MissingTensor { tensor: name.into(), architecture: architecture.into() }))
    }

    /// Whether there is a weight of that name, readable or not.
    pub fn contains(&self, name: &str) -> bool {
        self.sources.contains_key(name) || self.refused.contains_key(name)
    }

    /// All weights that can be read, by name.
    pub fn iter(&self) -> impl Iterator<Item = &WeightSource> {
        self.sources.values()
    }

    /// The weights that cannot be read, with the reason.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &Error)> {
        self.refused.iter().map(|(name, error)| (name.as_str(), error))
    }

    /// All weights that can be read, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut WeightSource> {
        self.sources.values_mut()
    }

    /// Gives weights other names; those for which `name` has none keep theirs.
    pub fn rename(&mut self, name: impl Fn(&str) -> Option<String>) {
        let renamed = |old: String| name(&old).unwrap_or(old);
        self.sources = std::mem::take(&mut self.sources)
            .into_values()
            .map(|mut source| {
                source.name = renamed(source.name);
                (source.name.clone(), source)
            })
            .collect();
        self.refused = std::mem::take(&mut self.refused).into_iter().map(|(old, e)| (renamed(old), e)).collect();
    }

    pub(super) fn insert(&mut self, name: &str, source: Result<WeightSource>) {
        match source {
            Ok(source) => drop(self.sources.insert(source.name.clone(), source)),
            Err(error) => drop(self.refused.insert(name.into(), error)),
        }
    }
}
