//! An LRU table of slots.

/// A slot and its content.
#[derive(Debug, Clone, Copy, Default)]
struct LruSlot {
    key: Option<u32>,
    used: u64,
    /// Whether it was prefetched and not requested since.
    is_prefetched: bool,
}

/// An LRU mapping from numbers to slots.
#[derive(Debug, Clone)]
pub struct LruSlots {
    slots: Vec<LruSlot>,
    clock: u64,
}

impl LruSlots {
    /// Creates empty slots.
    pub fn new(places: usize) -> Self {
        Self {
            slots: vec![LruSlot::default(); places],
            clock: 0,
        }
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the slot of a number.
    pub fn slot_of(&self, number: u32) -> Option<usize> {
        self.slots
            .iter()
            .position(|place| place.key == Some(number))
    }

    /// Returns whether a requested number was prefetched, and clears the mark.
    pub fn take_prefetched(&mut self, number: u32) -> bool {
        let at = self.slot_of(number);
        at.is_some_and(|at| std::mem::take(&mut self.slots[at].is_prefetched))
    }

    /// Assigns slots to distinct numbers, at most as many as there are slots. Returns the missing
    /// numbers with their new slots. A slot stays empty until it is [committed](Self::has_come).
    pub fn assign_slots(&mut self, numbers: &[u32]) -> Vec<(u32, usize)> {
        self.clock += 1;
        let mut missing = Vec::new();
        for number in numbers {
            match self.slot_of(*number) {
                Some(at) => self.slots[at].used = self.clock,
                None => missing.push(*number),
            }
        }
        let clock = self.clock;
        let mut give = |number: u32| {
            let free = self
                .slots
                .iter()
                .enumerate()
                .filter(|(_, place)| place.used < clock);
            let (at, _) = free.min_by_key(|(_, place)| place.used)?;
            self.slots[at] = LruSlot {
                key: None,
                used: clock,
                is_prefetched: false,
            };
            Some((number, at))
        };
        missing.into_iter().map_while(&mut give).collect()
    }

    /// Marks the content of a number as loaded in its slot.
    pub fn commit(&mut self, number: u32, at: usize, ahead: bool) {
        (self.slots[at].key, self.slots[at].is_prefetched) = (Some(number), ahead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(held: &mut LruSlots, numbers: &[u32]) -> usize {
        let missing = held.assign_slots(numbers);
        missing
            .iter()
            .for_each(|(number, at)| held.commit(*number, *at, false));
        missing.len()
    }

    #[test]
    fn evicts_the_least_recently_used_unless_in_use() {
        let mut held = LruSlots::new(3);
        assert_eq!(fill(&mut held, &[1, 2, 3]), 3);
        assert_eq!(fill(&mut held, &[2]), 0);
        assert_eq!(fill(&mut held, &[3, 4]), 1);
        assert_eq!(
            (
                held.slot_of(1),
                held.slot_of(2).is_some(),
                held.slot_of(4).is_some()
            ),
            (None, true, true)
        );
        // As many as there are slots: all others are evicted.
        assert_eq!(fill(&mut held, &[5, 4, 6]), 2);
        assert_eq!((held.slot_of(2), held.slot_of(3)), (None, None));
        // A number that was not committed has no slot.
        assert_eq!(held.assign_slots(&[9]).len(), 1);
        assert_eq!(held.slot_of(9), None);
    }
}
