//! Which numbers have a place, where there are fewer places than numbers: the least recently used give theirs away. Pure: knows
//! neither what the numbers are of, nor how it comes.

/// A place and what is there.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    number: Option<u32>,
    used: u64,
    /// Whether it came before it was asked for, and was not asked for since.
    ahead: bool,
}

/// Places of numbers.
#[derive(Debug, Clone)]
pub struct Held {
    places: Vec<Place>,
    clock: u64,
}

impl Held {
    /// So many empty places.
    pub fn new(places: usize) -> Self {
        Self { places: vec![Place::default(); places], clock: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Where a number is.
    pub fn place(&self, number: u32) -> Option<usize> {
        self.places.iter().position(|place| place.number == Some(number))
    }

    /// Whether a number that is asked for now came ahead; told once.
    pub fn was_ahead(&mut self, number: u32) -> bool {
        let at = self.place(number);
        at.is_some_and(|at| std::mem::take(&mut self.places[at].ahead))
    }

    /// Sees to places for numbers, each once and no more than there are places: those that are there stay, the others and their
    /// new places are given back. A place is empty until what belongs there [has come](Self::has_come).
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

    /// What belongs to a number is in its place.
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
        // As many as there are places: all others go.
        assert_eq!(fill(&mut held, &[5, 4, 6]), 2);
        assert_eq!((held.place(2), held.place(3)), (None, None));
        // What did not come is nowhere.
        assert_eq!(held.take(&[9]).len(), 1);
        assert_eq!(held.place(9), None);
    }
}
