//! Vocabulary in a few flat lists: 150,000 tokens load without one allocation each.

/// Marks a missing entry or id.
pub(in super::super) const NO_ENTRY: u32 = u32::MAX;

/// A vocabulary. Several tokens may share an id; the last one is the spelling of the id.
#[derive(Debug, Default)]
pub(in super::super) struct Vocab {
    /// All tokens, concatenated.
    text: String,
    /// End of each entry in `text`.
    ends: Vec<u32>,
    /// Id of each entry.
    ids: Vec<u32>,
    /// Entry of each id.
    by_id: Vec<u32>,
    /// Hash of each entry.
    hashes: Vec<u32>,
    /// Open-addressing hash table from token to entry.
    table: Vec<u32>,
}

/// Incremental FNV-1a hash.
#[derive(Clone, Copy)]
pub(in super::super) struct VocabHash(u64);

impl VocabHash {
    pub fn new() -> VocabHash {
        VocabHash(0xcbf2_9ce4_8422_2325)
    }

    pub fn add(self, bytes: &[u8]) -> VocabHash {
        VocabHash(bytes.iter().fold(self.0, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    fn fold(self) -> u32 {
        (self.0 ^ self.0 >> 29) as u32
    }
}

impl Vocab {
    /// Adds a token, or changes the id of a known one.
    pub fn insert(&mut self, token: &str, id: u32) {
        if (self.ends.len() + 1) * 2 > self.table.len() {
            self.grow();
        }
        let hash = VocabHash::new().add(token.as_bytes());
        let slot = self.find(token, hash);
        let entry = match self.table[slot] {
            NO_ENTRY => {
                self.text.push_str(token);
                self.table[slot] = self.ends.len() as u32;
                self.ends.push(self.text.len() as u32);
                self.ids.push(id);
                self.hashes.push(hash.fold());
                self.ids.len() - 1
            }
            known => {
                self.ids[known as usize] = id;
                known as usize
            }
        };
        if id as usize >= self.by_id.len() {
            self.by_id.resize(id as usize + 1, NO_ENTRY);
        }
        self.by_id[id as usize] = entry as u32;
    }

    /// Creates a vocabulary from the lists of [`Self::lists`]; `None` if they contradict each
    /// other.
    pub fn from_lists(text: String, [ends, ids, by_id]: [Vec<u32>; 3]) -> Option<Vocab> {
        let last = ends.last().copied().unwrap_or_default();
        let is_whole = last as usize == text.len()
            && ends.is_sorted()
            && ends.iter().all(|end| text.is_char_boundary(*end as usize))
            && ids.len() == ends.len()
            && ids.iter().all(|id| (*id as usize) < by_id.len())
            && by_id
                .iter()
                .all(|entry| *entry == NO_ENTRY || (*entry as usize) < ends.len());
        if !is_whole {
            return None;
        }
        let mut vocab = Vocab {
            text,
            ends,
            ids,
            by_id,
            ..Vocab::default()
        };
        vocab.hashes = (0..vocab.ends.len() as u32)
            .map(|entry| VocabHash::new().add(vocab.entry(entry).as_bytes()).fold())
            .collect();
        vocab.fill_table((vocab.ends.len() * 2).next_power_of_two().max(64));
        Some(vocab)
    }

    /// What the vocabulary is rebuilt from: all tokens, concatenated; the end of each in bytes; the
    /// id of each; the token of each id, as an index.
    pub fn lists(&self) -> (&str, [&[u32]; 3]) {
        (&self.text, [&self.ends, &self.ids, &self.by_id])
    }

    fn grow(&mut self) {
        self.fill_table((self.table.len() * 2).max(64));
    }

    /// Fills a table of `size`, a power of two.
    fn fill_table(&mut self, size: usize) {
        self.table.clear();
        self.table.resize(size, NO_ENTRY);
        for (entry, hash) in self.hashes.iter().enumerate() {
            let mut slot = *hash as usize & (size - 1);
            while self.table[slot] != NO_ENTRY {
                slot = (slot + 1) & (size - 1);
            }
            self.table[slot] = entry as u32;
        }
    }

    fn entry(&self, entry: u32) -> &str {
        let at = entry as usize;
        let start = if at == 0 {
            0
        } else {
            self.ends[at - 1] as usize
        };
        &self.text[start..self.ends[at] as usize]
    }

    /// Returns the slot of a token, or the free slot for it.
    fn find(&self, token: &str, hash: VocabHash) -> usize {
        let mask = self.table.len() - 1;
        let hash = hash.fold();
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.table[slot];
            if entry == NO_ENTRY {
                return slot;
            }
            if self.hashes[entry as usize] == hash && self.entry(entry) == token {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Returns the id of a token.
    pub fn get(&self, token: &str) -> Option<u32> {
        self.get_hashed(token, VocabHash::new().add(token.as_bytes()))
    }

    /// Returns the id of a token with a known hash.
    pub(in super::super) fn get_hashed(&self, token: &str, hash: VocabHash) -> Option<u32> {
        if self.table.is_empty() {
            return None;
        }
        self.ids
            .get(self.table[self.find(token, hash)] as usize)
            .copied()
    }

    /// Returns the spelling of an id.
    pub fn token(&self, id: u32) -> Option<&str> {
        let entry = self
            .by_id
            .get(id as usize)
            .copied()
            .filter(|entry| *entry != NO_ENTRY)?;
        Some(self.entry(entry))
    }

    /// Number of distinct tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// One more than the largest id.
    pub fn id_bound(&self) -> u32 {
        self.by_id.len() as u32
    }

    /// Length of the longest token in bytes.
    pub fn longest(&self) -> usize {
        (0..self.ends.len() as u32)
            .map(|entry| self.entry(entry).len())
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_ids_find_each_other() {
        let mut vocab = Vocab::default();
        assert_eq!(
            (vocab.get("a"), vocab.token(0), vocab.id_bound()),
            (None, None, 0)
        );
        for id in 0..5000 {
            vocab.insert(&format!("t{id}"), id * 2);
        }
        assert!((0..5000).all(|id| vocab.get(&format!("t{id}")) == Some(id * 2)));
        assert!((0..5000).all(|id| vocab.token(id * 2) == Some(format!("t{id}").as_str())));
        assert_eq!(
            (
                vocab.get("t"),
                vocab.get("t5000"),
                vocab.token(1),
                vocab.token(9999)
            ),
            (None, None, None, None)
        );
        assert_eq!(
            (vocab.len(), vocab.id_bound(), vocab.longest()),
            (5000, 9999, 5)
        );
        // The last id of a token and the last token of an id win.
        vocab.insert("t1", 7);
        vocab.insert("", 7);
        assert_eq!(
            (vocab.get("t1"), vocab.get(""), vocab.token(7), vocab.len()),
            (Some(7), Some(7), Some(""), 5001)
        );
    }
}
