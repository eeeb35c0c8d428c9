//! An LRU table of slots.

/// A slot and its content.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    number: Option<u32>,
    used: u64,
    /// Whether it was prefetched and not requested since.
    ahead: bool,
}

/// An LRU mapping from numbers to slots.
#[derive(Debug, Clone)]
pub struct Held {
    places: Vec<Place>,
    clock: u64,
}

impl Held {
    /// Creates empty slots.
    pub fn new(places: usize) -> Self {
        Self { places: vec![Place::default(); places], clock: 0 }
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the slot of a number.
    pub fn place(&self, number: u32) -> Option<usize> {
        self.places.iter().position(|place| place.number == Some(number))
    }

    /// Returns whether a requested number was prefetched, and clears the mark.
    pub fn was_ahead(&mut self, number: u32) -> bool {
        let at = self.place(number);
        at.is_some_and(|at| std::mem::take(&mut self.places[at].ahead))
    }

    /// Assigns slots to distinct numbers, at most as many as there are slots. Returns the missing numbers with their
    /// new slots. A slot stays empty until it is [committed](Self::has_come).
    pub fn take(&mut self, numbers: &[u32]) -> Vec<(u32, usize)> {
        self.clock += 1;
        let mut missing = Vec::new();
        for number in numbers {
            match self.place(*number) {
                Some(at) => self.places[at].used = self.clock,
                None => missing.push(*number),
            }
        }
        let clock = self.clock;
        let mut give = |number: u32| {
            let free = self.places.iter().enumerate().filter(|(_, place)| place.used < clock);
            let (at, _) = free.min_by_key(|(_, place)| place.used)?;
            self.places[at] = Place { number: None, used: clock, ahead: false };
            Some((number, at))
        };
        missing.into_iter().map_while(&mut give).collect()
    }

    /// Marks the content of a number as loaded in its slot.
    pub fn has_come(&mut self, number: u32, at: usize, ahead: bool) {
        (self.places[at].number, self.places[at].ahead) = (Some(number), ahead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(held: &mut Held, numbers: &[u32]) -> usize {
        let missing = held.take(numbers);
        missing.iter().for_each(|(number, at)| held.has_come(*number, *at, false));
        missing.len()
    }

    #[test]
    fn the_least_recently_used_goes_and_never_one_in_use() {
        let mut held = Held::new(3);
        assert_eq!(fill(&mut held, &[1, 2, 3]), 3);
        assert_eq!(fill(&mut held, &[2]), 0);
        assert_eq!(fill(&mut held, &[3, 4]), 1);
        assert_eq!((held.place(1), held.place(2).is_some(), held.place(4).is_some()), (None, true, true));
        // As many as there are slots: all others are evicted.
        assert_eq!(fill(&mut held, &[5, 4, 6]), 2);
        assert_eq!((held.place(2), held.place(3)), (None, None));
        // A number that was not committed has no slot.
        assert_eq!(held.take(&[9]).len(), 1);
        assert_eq!(held.place(9), None);
    }
}
