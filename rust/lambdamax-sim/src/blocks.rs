//! The KV pool: free blocks in the order in which they will be taken, which is also the prefix cache.
//!
//! Blocks have no identity of their own. The free list is a queue of runs; a run that somebody may come back for (a preempted request, the
//! common prefix) is found again by its number, and what allocation has not eaten of it by then is a cache hit. A request frees its blocks
//! in reverse, so allocation eats the tail of a run first and what survives is its beginning.

use std::collections::VecDeque;

/// Tokens of one block.
pub const BLOCK: u32 = 16;

/// Blocks that hold this many tokens.
pub fn blocks_for(tokens: u32) -> u32 {
    tokens.div_ceil(BLOCK)
}

/// Names a run of the free list.
pub type Run = u64;

/// The free list's number for "nobody will come back".
pub const NO_RUN: Run = Run::MAX;

/// All blocks of a replica.
#[derive(Clone, Debug)]
pub struct Blocks {
    total: u32,
    free: u32,
    caching: bool,
    runs: VecDeque<u32>,
    /// Number of the first run in the queue.
    first: Run,
    /// Whether the last run belongs to nobody, so that more can be added to it.
    open: bool,
    prefix: CommonPrefix,
}

/// The prefix that many prompts begin with.
#[derive(Clone, Debug)]
struct CommonPrefix {
    /// Its blocks in the pool; valid while somebody holds it, else the surviving part of `run` is.
    resident: u32,
    holders: u32,
    run: Run,
}

impl Blocks {
    /// An empty pool. Without `caching` nothing is ever found again.
    pub fn new(total: u32, caching: bool) -> Self {
        let prefix = CommonPrefix { resident: 0, holders: 0, run: NO_RUN };
        Self { total, free: total, caching, runs: VecDeque::from([total]), first: 0, open: true, prefix }
    }

    /// Blocks that a request could take, cached ones among them.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Blocks in use.
    pub fn held(&self) -> u32 {
        self.total - self.free
    }

    /// Takes blocks from the head of the free list; at most `free`.
    pub fn allocate(&mut self, mut count: u32) {
        debug_assert!(count <= self.free);
        self.free -= count;
        while self.caching && count > 0 {
            let run = &mut self.runs[0];
            let taken = count.min(*run);
            *run -= taken;
            count -= taken;
            if *run == 0 && self.runs.len() > 1 {
                self.runs.pop_front();
                self.first += 1;
            }
        }
    }

    /// Puts blocks at the tail of the free list.
    pub fn release(&mut self, count: u32) {
        self.free += count;
        if self.caching && self.open {
            *self.runs.back_mut().expect("the queue is never empty") += count;
        } else if self.caching {
            self.runs.push_back(count);
            self.open = true;
        }
    }

    /// Puts blocks at the tail of the free list, to be looked for later.
    pub fn release_cached(&mut self, count: u32) -> Run {
        self.free += count;
        if !self.caching {
            return NO_RUN;
        }
        self.runs.push_back(count);
        self.open = false;
        self.first + self.runs.len() as Run - 1
    }

    /// What is left of a run.
    pub fn surviving(&self, run: Run) -> u32 {
        if run == NO_RUN || run < self.first { 0 } else { self.runs[(run - self.first) as usize] }
    }

    /// Takes what is left of a run out of the free list.
    fn reclaim(&mut self, run: Run) -> u32 {
        let left = self.surviving(run);
        if left > 0 {
            self.runs[(run - self.first) as usize] = 0;
            self.free -= left;
        }
        left
    }

    /// Takes the surviving beginning of a run, `count` blocks, and gives the rest up.
    pub fn reuse(&mut self, run: Run, count: u32) {
        let left = self.reclaim(run);
        self.release(left - count);
    }

    /// Blocks of the common prefix that are in the pool.
    pub fn prefix(&self) -> u32 {
        if self.prefix.holders > 0 { self.prefix.resident } else { self.surviving(self.prefix.run) }
    }

    /// Blocks that holding the prefix would take out of the free list.
    pub fn prefix_on_free_list(&self) -> u32 {
        if self.prefix.holders > 0 { 0 } else { self.prefix() }
    }

    /// One more request holds the prefix, as far as it is in the pool.
    pub fn hold_prefix(&mut self) {
        if self.prefix.holders == 0 {
            self.prefix.resident = self.reclaim(self.prefix.run);
        }
        self.prefix.holders += 1;
    }

    /// A request that holds the prefix has allocated more of it.
    pub fn extend_prefix(&mut self, blocks: u32) {
        self.prefix.resident = self.prefix.resident.max(blocks);
    }

    /// One request less holds the prefix; the last one leaves it in the cache.
    pub fn drop_prefix(&mut self) {
        self.prefix.holders -= 1;
        if self.prefix.holders == 0 {
            self.prefix.run = self.release_cached(self.prefix.resident);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_beginning_of_a_run_outlives_its_tail() {
        let mut blocks = Blocks::new(10, true);
        blocks.allocate(10);
        let run = blocks.release_cached(6);
        blocks.allocate(2);
        assert_eq!((blocks.surviving(run), blocks.free()), (4, 4));
        blocks.reuse(run, 3);
        assert_eq!((blocks.surviving(run), blocks.free(), blocks.held()), (0, 1, 9));
    }

    #[test]
    fn the_oldest_run_is_eaten_first() {
        let mut blocks = Blocks::new(8, true);
        blocks.allocate(8);
        let old = blocks.release_cached(3);
        let young = blocks.release_cached(5);
        blocks.allocate(4);
        assert_eq!((blocks.surviving(old), blocks.surviving(young)), (0, 4));
    }

    #[test]
    fn the_common_prefix_counts_once_and_stays_cached() {
        let mut blocks = Blocks::new(10, true);
        blocks.hold_prefix();
        blocks.allocate(4);
        blocks.extend_prefix(4);
        blocks.hold_prefix();
        assert_eq!((blocks.prefix(), blocks.held(), blocks.prefix_on_free_list()), (4, 4, 0));
        blocks.drop_prefix();
        blocks.drop_prefix();
        assert_eq!((blocks.prefix(), blocks.held(), blocks.prefix_on_free_list()), (4, 0, 4));
        blocks.allocate(8);
        assert_eq!(blocks.prefix(), 2);
    }

    proptest! {
        #[test]
        fn blocks_are_conserved(steps in prop::collection::vec((0u8..5, 0u32..20), 1..200)) {
            let mut blocks = Blocks::new(100, true);
            let (mut held, mut run) = (0u32, NO_RUN);
            for (kind, count) in steps {
                match kind {
                    0 | 1 => { let n = count.min(blocks.free()); blocks.allocate(n); held += n; }
                    2 => { let n = count.min(held); blocks.release(n); held -= n; }
                    3 => { let n = count.min(held); run = blocks.release_cached(n); held -= n; }
                    _ => { let n = blocks.surviving(run).min(count); blocks.reuse(run, n); held += n; run = NO_RUN; }
                }
                prop_assert_eq!(blocks.held(), held);
                prop_assert_eq!(blocks.runs.iter().sum::<u32>(), blocks.free());
            }
        }
    }
}
