//! Sorted maps and sets: the used part of `BTreeMap` and `BTreeSet` in a tenth of the code. Each
//! pair of types used with std's adds 5 KB to the package.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Index;

/// Map sorted by key. Lookup takes log n comparisons. Insertion moves one pointer per larger key,
/// so tens of thousands of keys insert within milliseconds in any order. Boxed entries let all
/// types share that code.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedMap<K, V>(Vec<Box<(K, V)>>);

impl<K, V> SortedMap<K, V> {
    /// Creates an empty map.
    pub const fn new() -> Self {
        SortedMap(Vec::new())
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Entries in key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + ExactSizeIterator + Clone {
        self.0.iter().map(|pair| (&pair.0, &pair.1))
    }

    /// Keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator + Clone {
        self.0.iter().map(|pair| &pair.0)
    }

    /// Values in key order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.0.iter().map(|pair| &pair.1)
    }

    /// Mutable values in key order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|pair| &mut pair.1)
    }

    /// Consumes the map and returns its values in key order.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.0.into_iter().map(|pair| pair.1)
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|pair| keep(&pair.0, &mut pair.1));
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        // Keys that arrive in order are appended without a search.
        match self.0.last() {
            Some(last) if last.0.borrow() < key => Err(self.0.len()),
            _ => self.0.binary_search_by(|pair| pair.0.borrow().cmp(key)),
        }
    }

    /// Returns the value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// Returns the mutable value of a key.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Whether the map has a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Sets the value of a key and returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, Box::new((key, value)));
                None
            }
        }
    }

    /// Returns the value of a key, after inserting `make()` if it is absent.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.0.insert(at, Box::new((key, make())));
            at
        });
        &mut self.0[at].1
    }

    /// Removes a key and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| self.0.remove(at).1)
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        SortedMap::new()
    }
}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for SortedMap<K, V> {
    type Output = V;

    /// Returns the value of a key.
    ///
    /// # Panics
    /// If the map does not have the key.
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no such key")
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
        for (key, value) in items {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(items: I) -> Self {
        let mut all = SortedMap::new();
        all.extend(items);
        all
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SortedMap<K, V> {
    fn from(items: [(K, V); N]) -> Self {
        items.into_iter().collect()
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::iter::Map<std::vec::IntoIter<Box<(K, V)>>, fn(Box<(K, V)>) -> (K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|pair| *pair)
    }
}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter =
        std::iter::Map<std::slice::Iter<'a, Box<(K, V)>>, fn(&'a Box<(K, V)>) -> (&'a K, &'a V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|pair| (&pair.0, &pair.1))
    }
}

impl<K: Serialize, V: Serialize> Serialize for SortedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, K: Ord + Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for SortedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Ord + Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = SortedMap<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut entries: A,
            ) -> Result<SortedMap<K, V>, A::Error> {
                let mut all = SortedMap::new();
                while let Some((key, value)) = entries.next_entry()? {
                    all.insert(key, value);
                }
                Ok(all)
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// Sorted set.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedSet<T>(Vec<T>);

impl<T> SortedSet<T> {
    /// Creates an empty set.
    pub const fn new() -> Self {
        SortedSet(Vec::new())
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Keeps the values for which `keep` returns true.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.0.retain(keep);
    }
}

impl<T: Ord> SortedSet<T> {
    /// Inserts a value; returns true if it was absent.
    pub fn insert(&mut self, value: T) -> bool {
        let place = self.0.binary_search(&value);
        if let Err(at) = place {
            self.0.insert(at, value);
        }
        place.is_err()
    }

    /// Whether the set has a value.
    pub fn contains<Q: Ord + ?Sized>(&self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0
            .binary_search_by(|each| each.borrow().cmp(value))
            .is_ok()
    }

    /// Removes a value; returns true if it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        let place = self.0.binary_search_by(|each| each.borrow().cmp(value));
        place.map(|at| self.0.remove(at)).is_ok()
    }
}

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        SortedSet::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for SortedSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<T: Ord> Extend<T> for SortedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut all = SortedSet::new();
        all.extend(items);
        all
    }
}

impl<T: Serialize> Serialize for SortedSet<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Ord + Deserialize<'de>> Deserialize<'de> for SortedSet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}

impl<T> IntoIterator for SortedSet<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Unsorted numbers, each several times.
    fn numbers() -> impl Iterator<Item = u64> {
        (0..500u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57)
    }

    #[test]
    fn map_matches_std() {
        let mut ours = SortedMap::new();
        let mut theirs = BTreeMap::new();

        for (i, n) in numbers().enumerate() {
            match i % 4 {
                0 => assert_eq!(ours.remove(&n), theirs.remove(&n)),
                1 => *ours.get_or_insert_with(n, || 5) += i,
                _ => assert_eq!(ours.insert(n, i), theirs.insert(n, i)),
            }
            if i % 4 == 1 {
                *theirs.entry(n).or_insert(5) += i;
            }
            assert_eq!(ours.get(&(n / 2)), theirs.get(&(n / 2)));
            assert!(ours.iter().eq(theirs.iter()) && ours.len() == theirs.len());
        }
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        assert_eq!(
            serde_json::to_string(&ours).unwrap(),
            serde_json::to_string(&theirs).unwrap()
        );
        ours.retain(|key, _| key % 2 == 0);
        theirs.retain(|key, _| key % 2 == 0);
        assert!(ours.into_iter().eq(theirs));
        let last: SortedMap<String, u32> = serde_json::from_str(r#"{"b":1,"a":2,"b":3}"#).unwrap();
        assert_eq!(
            last,
            SortedMap::from([("a".to_string(), 2), ("b".to_string(), 3)])
        );
    }

    #[test]
    fn set_matches_std() {
        let mut ours = SortedSet::new();
        let mut theirs = BTreeSet::new();

        for (i, n) in numbers().enumerate() {
            if i % 3 == 0 {
                assert_eq!(ours.remove(&n), theirs.remove(&n));
            } else {
                assert_eq!(ours.insert(n), theirs.insert(n));
            }
            assert_eq!(ours.contains(&(n + 1)), theirs.contains(&(n + 1)));
        }
        assert!(ours.iter().eq(&theirs) && !ours.is_empty());
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }
}
