//! Recognises work already asked for, within one block: the same curve, the same limit on it, the same operating point.
//!
//! A small direct-mapped table. A forgotten entry costs a repeated solve, never a different answer.

const EMPTY: u32 = u32::MAX;

/// Numbers distinct keys in the order of their first appearance.
#[derive(Debug)]
pub struct Interner<K> {
    slots: Vec<u32>,
    keys: Vec<K>,
}

impl<K: Copy + PartialEq> Interner<K> {
    /// A table for about so many keys.
    pub fn new(keys: usize) -> Self {
        Self { slots: vec![EMPTY; (2 * keys.max(1)).next_power_of_two()], keys: Vec::new() }
    }

    /// The key's number; a new one if it is not remembered.
    pub fn number(&mut self, key: K, hash: u64) -> u32 {
        let slot = (mix(hash) >> (64 - self.slots.len().trailing_zeros())) as usize;
        let known = self.slots[slot];
        if known != EMPTY && self.keys[known as usize] == key {
            return known;
        }
        let number = self.keys.len() as u32;
        self.slots[slot] = number;
        self.keys.push(key);
        number
    }

    /// The keys, by number.
    pub fn keys(&self) -> &[K] {
        &self.keys
    }
}

/// Spreads the bits of a hash; Fibonacci hashing.
pub fn mix(hash: u64) -> u64 {
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_key_keeps_its_number_and_another_gets_its_own() {
        let mut interner = Interner::new(8);
        let numbers: Vec<u32> = [7u64, 8, 7, 9, 8].iter().map(|&key| interner.number(key, key)).collect();
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        assert_eq!(interner.keys(), [7, 8, 9]);
    }

    #[test]
    fn a_collision_forgets_but_does_not_confuse() {
        let mut interner = Interner::new(8);
        let numbers: Vec<u32> = [1u64, 2, 1].iter().map(|&key| interner.number(key, 0)).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(interner.keys(), [1, 2, 1]);
    }
}
