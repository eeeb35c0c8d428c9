//! Weights on the device by name. The graphs of a model number their weights independently; they
//! share buffers through the names.

use super::step::Buffers;
use crate::gpu::Buffer;
use crate::ir::{Graph, Weight, WeightId, WeightKind};
use crate::plan::{Slot, WeightPlan, WeightPlans};
use crate::util::map::SortedMap;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// Name of a weight: its checkpoint tensors in order, and whether it is a vector or a column order.
/// Copies share one allocation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightName(Rc<str>);

/// The names of a graph's weights by id.
pub type WeightNames = Rc<[WeightName]>;

/// A store that the graphs of a checkpoint load into.
pub type SharedWeights = Rc<RefCell<WeightStore>>;

impl WeightName {
    /// Returns the name of a graph's weight.
    pub fn of(weight: &Weight) -> Self {
        let mut name = String::from(match weight.kind {
            WeightKind::Vector => "vector ",
            WeightKind::Order => "order ",
            _ => "",
        });
        for (index, (part, _)) in weight.parts.iter().enumerate() {
            if index > 0 {
                name.push('+');
            }
            name.push_str(part);
        }
        Self(name.into())
    }

    /// Returns the names of all weights of a graph.
    pub fn all(graph: &Graph) -> WeightNames {
        graph.weights.iter().map(Self::of).collect()
    }
}

/// A buffer of a weight by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WeightPlane {
    /// Elements or codes of a shard.
    Elements(usize),
    /// Scales of a shard.
    Scales(usize),
    /// A vector or a column order.
    Vector,
    /// Slots of the token rows of a paged table.
    PagedRows,
}

impl WeightPlane {
    fn of(slot: &Slot) -> Option<(WeightId, Self)> {
        match *slot {
            Slot::WeightQ(id, shard) => Some((id, Self::Elements(shard))),
            Slot::WeightS(id, shard) => Some((id, Self::Scales(shard))),
            Slot::Vector(id) => Some((id, Self::Vector)),
            Slot::PagedRows(id) => Some((id, Self::PagedRows)),
            _ => None,
        }
    }

    fn slot(self, id: WeightId) -> Slot {
        match self {
            Self::Elements(shard) => Slot::WeightQ(id, shard),
            Self::Scales(shard) => Slot::WeightS(id, shard),
            Self::Vector => Slot::Vector(id),
            Self::PagedRows => Slot::PagedRows(id),
        }
    }
}

/// A weight on the device.
#[derive(Clone)]
struct StoredWeight {
    plan: WeightPlan,
    planes: Vec<(WeightPlane, Buffer)>,
}

/// Weights on the device by name.
#[derive(Clone, Default)]
pub struct WeightStore {
    weights: SortedMap<WeightName, StoredWeight>,
}

impl fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.weights.keys()).finish()
    }
}

impl WeightStore {
    /// Returns how a weight is stored; `None` if it is not in the store.
    pub fn plan(&self, name: &WeightName) -> Option<&WeightPlan> {
        self.weights.get(name).map(|weight| &weight.plan)
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        let planes = self.weights.values().flat_map(|weight| &weight.planes);
        planes.map(|(_, buffer)| buffer.size()).sum()
    }

    /// A buffer of each weight, in the order of their names.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let all = self.weights.values();
        all.filter_map(|weight| Some(&weight.planes.iter().max_by_key(|p| p.1.size())?.1))
    }

    /// Adds loaded weights, or further buffers of weights in the store. `buffers` and `plans` have
    /// the ids that `names` belong to; buffers without a plan are skipped.
    pub fn insert(&mut self, names: &WeightNames, plans: &WeightPlans, buffers: &Buffers) {
        for (slot, buffer) in buffers {
            let Some((id, plane)) = WeightPlane::of(slot) else {
                continue;
            };
            let Some(plan) = plans.get(&id) else {
                continue;
            };
            let name = names[id.0].clone();
            let stored = self.weights.get_or_insert_with(name, || StoredWeight {
                plan: plan.clone(),
                planes: Vec::new(),
            });
            stored.planes.retain(|(other, _)| *other != plane);
            stored.planes.push((plane, buffer.clone()));
        }
    }

    /// Returns the buffers of a graph's weights by slot. Weights of `overlay` replace those of this
    /// store.
    pub fn resolve(&self, names: &WeightNames, overlay: Option<&Self>) -> Buffers {
        let mut buffers = Buffers::new();
        for (index, name) in names.iter().enumerate() {
            let replaced = overlay.and_then(|store| store.weights.get(name));
            let Some(weight) = replaced.or_else(|| self.weights.get(name)) else {
                continue;
            };
            for (plane, buffer) in &weight.planes {
                buffers.insert(plane.slot(WeightId(index)), buffer.clone());
            }
        }
        buffers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_tensors_order_and_kind_apart() {
        let weight = |parts: &[&str], kind| Weight {
            parts: parts.iter().map(|name| (name.to_string(), 4)).collect(),
            cols: 8,
            kind,
        };
        let name = |parts: &[&str], kind| WeightName::of(&weight(parts, kind));
        assert_eq!(
            name(&["q", "k"], WeightKind::Matrix),
            name(&["q", "k"], WeightKind::Router)
        );
        let merged = name(&["q", "k"], WeightKind::Matrix);
        for other in [
            name(&["k", "q"], WeightKind::Matrix),
            name(&["q"], WeightKind::Matrix),
            name(&["q", "k"], WeightKind::Vector),
            name(&["q", "k"], WeightKind::Order),
        ] {
            assert_ne!(merged, other);
        }
    }
}
